"""The exceptions of handlers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from querator.client import Reject, Retry

MINUTE = timedelta(minutes=1)


def test_they_carry_what_they_ask_for():
    retry = Retry("busy", delay=MINUTE, count_attempt=False)
    assert (str(retry), retry.reason, retry.delay, retry.at) == ("busy", "busy", MINUTE, None)
    assert not retry.count_attempt
    assert (Retry().reason, Retry().delay, Retry().count_attempt) == ("", None, True)
    assert (str(Reject("no address")), Reject().reason) == ("no address", "")


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"delay": 60}, TypeError, "delay is 60; it must be a timedelta"),
        ({"reason": MINUTE}, TypeError, "must be a text"),
        ({"delay": -MINUTE}, ValueError, "must not be negative"),
        ({"at": datetime(2030, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001 - that is the point
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": MINUTE}, ValueError, "either"),
        ({"attributes": "page"}, TypeError, "attributes is 'page'; it must be a dict of texts"),
        ({"attributes": {"page": 7}}, TypeError, "attributes has 'page': 7; names and values must"),
        (
            {"attributes": {str(n): "" for n in range(65)}},
            ValueError,
            "attributes has 65 attributes; at most 64",
        ),
        (
            {"attributes": {"é": "x" * 8191}},
            ValueError,
            "attributes has 8193 bytes of names and values; at most 8192",
        ),
        ({"attributes": {"page": "\ud800"}}, ValueError, "attributes has text that is not UTF-8"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], kind: type, words: str):
    with pytest.raises(kind, match=words):
        Retry(**options)


AHEAD = "at most 3650 days, 0:00:00"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"at": "tomorrow"}, TypeError, "at is 'tomorrow'; it must be a datetime with a time zone"),
        ({"delay": timedelta.max}, ValueError, f"delay is {timedelta.max}; {AHEAD}"),
        ({"delay": timedelta(days=4000)}, ValueError, f"delay is 4000 days, 0:00:00; {AHEAD}"),
        ({"at": datetime.max.replace(tzinfo=UTC)}, ValueError, f"ahead; {AHEAD}"),
    ],
)
def test_times_that_a_queue_does_not_keep_are_refused(
    options: dict[str, Any], kind: type, words: str
):
    with pytest.raises(kind, match=words):
        Retry(**options)


def test_a_subclass_need_not_call_the_constructor():
    class Busy(Retry):
        def __init__(self) -> None:
            pass

    class Bad(Reject):
        def __init__(self) -> None:
            pass

    assert (Busy().reason, Busy().delay, Busy().at, Busy().count_attempt) == ("", None, None, True)
    assert Bad().reason == ""
