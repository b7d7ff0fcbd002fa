import io
import logging
from collections.abc import Iterator

import msgspec
import pytest

from querator import telemetry
from querator.config import LogFormat


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()  # noqa: TID251 - set_up changes the standard library's logger
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_has_one_object_per_event():
    stream = io.StringIO()
    telemetry.set_up(format_="auto", stream=stream)
    log = telemetry.logger("querator.room")
    log.info("room.event", queue="orders", name="5%", pause_s=0.5)
    log.debug("room.detail")
    logging.getLogger("other").warning("plain %s", "text")  # noqa: TID251 - another library's
    first, second = (msgspec.json.decode(line) for line in stream.getvalue().splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "room.event",
        "queue": "orders",
        "name": "5%",
        "pause_s": 0.5,
        "level": "info",
        "logger": "querator.room",
    }
    assert (second["event"], second["logger"]) == ("plain text", "other")


def test_what_is_bound_is_on_every_line_that_does_not_say_otherwise():
    stream = io.StringIO()
    telemetry.set_up(format_="json", stream=stream)
    log = telemetry.logger("querator.room")
    log.info("room.before")
    telemetry.bind(node="n1", cluster_id="")
    telemetry.bind(cluster_id="c1")
    log.info("room.event")
    log.info("room.other", node="n2")
    logging.getLogger("other").warning("text")  # noqa: TID251 - another library's
    telemetry.set_up(format_="json", stream=stream)
    log.info("room.anew")
    said = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    bound = [(each["event"], each.get("node"), each.get("cluster_id")) for each in said]
    assert bound == [
        ("room.before", None, None),
        ("room.event", "n1", "c1"),
        ("room.other", "n2", "c1"),
        ("text", "n1", "c1"),
        ("room.anew", None, None),
    ]


def test_whether_debug_events_are_taken():
    debugs = telemetry.debugs("querator.room")
    telemetry.set_up(level="info", stream=io.StringIO())
    assert not debugs()
    telemetry.set_up(level="debug", stream=io.StringIO())
    assert debugs()


@pytest.mark.parametrize("format_", ["json", "text"])
def test_tracebacks_do_not_show_values(format_: LogFormat):
    stream = io.StringIO()
    telemetry.set_up(format_=format_, stream=stream)
    payload = "secret"
    try:
        raise ValueError(len(payload))
    except ValueError:
        telemetry.logger("querator.room").exception("room.failed")
    assert "ValueError: 6" in stream.getvalue()
    assert f"'{payload}'" not in stream.getvalue()


def test_an_embedding_program_sees_lines(caplog: pytest.LogCaptureFixture):
    telemetry.logger("querator.room").warning("room.event", queue="orders", share="5%")
    assert [record.getMessage() for record in caplog.records] == [
        "room.event queue=orders share=5%"
    ]
