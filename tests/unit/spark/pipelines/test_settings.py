"""Settings of pipelines refuse values of the wrong type, by field and value."""

from typing import Any

import pytest

from querator.spark.pipelines.settings import (
    ArchiveSettings,
    Columns,
    CopySettings,
    IngestSettings,
    QueuePlace,
    RedriveSettings,
    ReplaySettings,
    SettingsError,
    StatsSettings,
)

PLACE = QueuePlace("h:1", "orders")


def archive(**more: Any) -> ArchiveSettings:
    return ArchiveSettings(**{"source": PLACE, "reader_id": "lake", "path": "/lake", **more})


def ingest(**more: Any) -> IngestSettings:
    return IngestSettings(**{"path": "/in", "format": "csv", "target": PLACE, **more})


def place(**more: Any) -> QueuePlace:
    return QueuePlace(**{"endpoint": "h:1", "queue": "orders", **more})


@pytest.mark.parametrize(
    ("make", "fields", "words"),
    [
        (archive, {"partition_by": "kind"},
         "partition_by is 'kind': give a list of texts, ['kind']"),
        (archive, {"partition_by": ("kind", 1)}, "partition_by has 1: give a list of texts"),
        (archive, {"partition_by": None}, "partition_by is None: give a list of texts"),
        (archive, {"reader_id": ["lake"]}, "reader_id is ['lake']: give one text, not a list"),
        (archive, {"max_items": "many"}, "max_items is 'many': give a whole number"),
        (archive, {"every_seconds": True}, "every_seconds is True: give a number"),
        (archive, {"adopt": "yes"}, "adopt is 'yes': give True or False"),
        (archive, {"source": "orders"}, "source is 'orders': give a QueuePlace"),
        (ingest, {"path": ["/in/a", "/in/b"]},
         "path is ['/in/a', '/in/b']: give one text, not a list"),
        (ingest, {"options": [("header", "true")]},
         "options is [('header', 'true')]: give a dict of texts by name"),
        (ingest, {"options": {"header": True}},
         "options has 'header': True; give a dict of texts by name"),
        (ingest, {"options": {"mode": "FAIL"}},
         "option mode=FAIL: there are PERMISSIVE, DROPMALFORMED, FAILFAST"),
        (ingest, {"options": {"headr": "true"}},
         "Spark's reader of csv has no option 'headr': did you mean header?"),
        (ingest, {"columns": {"key": "id"}}, "columns is {'key': 'id'}: give a Columns"),
        (Columns, {"key": ["id"]}, "key is ['id']: give one text, not a list"),
        (place, {"endpoint": ["h:1", "i:2"]},
         "endpoint is ['h:1', 'i:2']: give one text, not a list"),
        (place, {"queue": None}, "queue is None: give a text"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type(make: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make(**fields)
    assert str(caught.value) == words


@pytest.mark.parametrize("name", ["reasons", "kinds"])
def test_one_text_is_no_list_of_reasons_or_kinds(name: str) -> None:
    wrong: dict[str, Any] = {name: "expired"}
    with pytest.raises(SettingsError, match=rf"{name} is 'expired': give a list of texts"):
        RedriveSettings(PLACE, **wrong)


def test_values_of_the_right_types() -> None:
    archive(partition_by=["kind"], every_seconds=5)
    ingest(options={"mode": "permissive"}, columns=Columns(key="id"))
    CopySettings(PLACE, QueuePlace("h:1", "other"), "copy", "/checkpoint")
    ReplaySettings("/lake", PLACE, "/checkpoint", rate=1)
    StatsSettings(PLACE)
