"""Pictures of reports: SVG that shows the given data, and executes nothing that its text
contains.
"""

from datetime import UTC, datetime
from xml.etree import ElementTree

from querator.spark.pipelines.counting_page import stats_page
from querator.spark.pipelines.scans import ItemGroup, QueueScan, StateHistogram
from querator.spark.report.charts import bars, columns, heat
from querator.spark.report.page import PageTable, Picture, Section

FOREIGN = "<script>$x^2$\x1b注文</script>"


def texts(svg: bytes) -> list[str]:
    """All readable text of a picture."""
    return [text.strip() for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def test_labels_are_text_whatever_is_in_them():
    shown = FOREIGN.replace("\x1b", "")
    for svg in (
        columns([FOREIGN], {FOREIGN: [1], "b": [2]}, x=FOREIGN, y="items"),
        bars([FOREIGN], {FOREIGN: [1]}),
        heat([FOREIGN], [FOREIGN], [[1.0]], x=FOREIGN),
    ):
        assert shown in texts(svg)
        assert b"<script" not in svg


def test_columns_name_series_and_places():
    svg = columns(["< 1 s", "1 s – 10 s"], {"ready": [1, 2], "leased": [0, 7]}, x="age", y="items")
    assert {"ready", "leased", "age", "items", "< 1 s", "1 s –", "10 s"} <= set(texts(svg))
    many = columns([str(number) for number in range(400)], {"ready": range(400)}, x="p", y="items")
    assert {"0", "13", "26"} <= set(texts(many))
    assert "1" not in texts(many)


def test_a_series_has_its_colour_wherever_it_is_drawn():
    order = ("ready", "leased")
    both = columns(["a"], {"ready": [1], "leased": [1]}, x="", y="", order=order)
    one = columns(["a"], {"leased": [1]}, x="", y="", order=order)
    assert b"#e08e2b" in both
    assert b"#e08e2b" in one
    assert b"#2f6db5" not in one


def test_bars_say_their_values():
    svg = bars(["a", "b" * 40], {"items": [1_234, 5], "MiB": [0.25, 3]}, decimals=2)
    assert {"1,234", "5", "0.25", "3.00", "a", "b" * 27 + "…", "items", "MiB"} <= set(texts(svg))


def test_a_heat_map_leaves_out_what_is_not_there():
    svg = heat(["UA", "F9"], ["5", "6"], [[1.4, None], [-20.0, 3.0]], x="hour")
    assert {"1", "-20", "3", "UA", "F9"} <= set(texts(svg))


def test_the_same_is_drawn_the_same():
    first, second = (bars(["a"], {"items": [1]}) for _ in range(2))
    assert first == second


def test_small_payloads_are_drawn_in_a_unit_that_shows_them():
    """In MiB, the axis and all values of these bars would be 0."""
    found = texts(kinds_picture({"email": 1_500, "sms": 0}))
    assert "KiB of payload" in found
    assert {"1.46", "0.00"} <= set(found)
    assert "B of payload" in texts(kinds_picture({"email": 300}))
    assert "MiB of payload" in texts(kinds_picture({"email": 3 << 20, "sms": 100}))


def test_items_without_a_kind_are_no_kind_and_means_are_named():
    section = kinds_section({"email": 1, "sms": 2, "": 3})
    assert ("kinds", 2) in section.facts
    tables = {part.title: part for part in section.parts if isinstance(part, PageTable)}
    assert {"attempts, mean", "attempts, most"} <= set(tables["Kinds"].columns)
    assert {row[0] for row in tables["Kinds"].rows} == {"email", "sms", "(no kind)"}


def kinds_picture(payload_bytes: dict[str, int]) -> bytes:
    """The picture of kinds in the report."""
    return next(
        part.svg
        for part in kinds_section(payload_bytes).parts
        if isinstance(part, Picture) and part.title == "Kinds"
    )


def kinds_section(payload_bytes: dict[str, int]) -> Section:
    """The report on a queue with an item of each kind."""
    groups = {
        kind: ItemGroup(
            items=1,
            age_s_p50=0.0,
            age_s_p95=0.0,
            age_s_max=0.0,
            attempts_mean=0.0,
            attempts_max=0,
            payload_bytes=count,
            payload_bytes_max=count,
        )
        for kind, count in payload_bytes.items()
    }
    histogram = StateHistogram((1,), {"ready": (0, len(groups))})
    scan = QueueScan(
        queue="mail",
        scanned_at=datetime(2026, 3, 1, tzinfo=UTC),
        rows=len(groups),
        states={"ready": groups["email"]},
        kinds=groups,
        kinds_more=0,
        other_kinds=None,
        partitions={0: groups["email"]},
        states_of_partitions={0: {"ready": len(groups)}},
        ages=histogram,
        attempts=histogram,
        sizes=histogram,
        dead_letters={},
        told={},
        stood_still=True,
        problems=(),
    )
    [section] = stats_page([scan]).sections
    return section
