import io
import logging
from collections.abc import Iterator

import msgspec
import pytest

from querator import telemetry
from querator.config import LogFormat


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()  # noqa: TID251 - what set_up changes is the standard library's
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
