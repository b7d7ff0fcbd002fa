"""The log of worker processes."""

import io
import logging
from collections.abc import Callable, Iterator

import msgspec
import pytest

from querator.worker.log import LOG, send_to

Logged = Callable[..., str]


@pytest.fixture
def logged() -> Iterator[Logged]:
    """Returns the text of one failure in the log, by the options of `send_to`."""
    root = logging.getLogger()  # noqa: TID251 - it is set up here
    handlers, level = list(root.handlers), root.level

    def fail(*, as_text: bool, process: int = 0, level: str = "info") -> str:
        stream = io.StringIO()
        send_to(stream, as_text=as_text, level=level, process=process)
        LOG.info("one line")
        try:
            raise ValueError("no address")
        except ValueError:
            LOG.exception("Item %s failed", "0-3")
        return stream.getvalue()

    yield fail
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_has_the_time_the_process_and_the_traceback(logged: Logged):
    first, second, *trace = logged(as_text=True, process=2).splitlines()
    assert first.endswith(" INFO    [2] querator.worker: one line")
    assert second.endswith(" ERROR   [2] querator.worker: Item 0-3 failed")
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: no address"
    assert "[" not in logged(as_text=True).splitlines()[0]


def test_json_is_one_object_a_line_with_the_keys_of_the_nodes_log(logged: Logged):
    first, second = map(msgspec.json.decode, logged(as_text=False, process=2).splitlines())
    assert first.keys() == {"event", "level", "logger", "timestamp", "process"}
    assert (second["event"], second["level"]) == ("Item 0-3 failed", "error")
    assert (second["logger"], second["process"]) == ("querator.worker", 2)
    assert second["exception"].endswith("ValueError: no address")
    assert second["timestamp"].endswith("Z")
    assert "process" not in msgspec.json.decode(logged(as_text=False).splitlines()[0])


def test_lines_below_the_level_are_left_out(logged: Logged):
    assert "one line" not in logged(as_text=True, level="warning")
