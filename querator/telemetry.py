"""Logs: events with keys, as text on a terminal and as JSON for machines.

    log = telemetry.logger(__name__)
    log.warning("placement.step_failed", queue="orders", pause_s=0.02)

An event is named `package.what`. Its keys end in their unit. Events go through the standard
library's loggers under `querator`, so a program with a node inside keeps its own logging: it sees
`placement.step_failed queue=orders pause_s=0.02`. `set_up` is for processes that belong to
Querator: one line per event on a stream, JSON or coloured text, also for other libraries' logs.
`bind` adds keys to every line of such a process.
"""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, TextIO

import msgspec
import structlog

from querator.config import LogFormat, LogLevel

_EVENT_KEY: Final = "querator_event"
"""Attribute of a log record that holds its event; no other attribute has this name."""

_LEVELS: Final[dict[LogLevel, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


_bound: dict[str, str] = {}


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module. `name` is its `__name__`."""
    wrapped: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),  # noqa: TID251 - structlog wraps this logger
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _to_record,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return wrapped


def debugs(name: str) -> Callable[[], bool]:
    """Returns a test whether the logger of a module accepts debug events. Where there are thousands
    a second, the test costs less than making events and dropping them.
    """
    asked = logging.getLogger(name)  # noqa: TID251 - as in `logger`
    return partial(asked.isEnabledFor, logging.DEBUG)


def bind(**keys: str) -> None:
    """Adds these keys to every further line of the process, unless its event has them; empty values
    are skipped. Needs `set_up`, which clears all bound keys.
    """
    _bound.update({key: value for key, value in keys.items() if value})


def set_up(*, format_: LogFormat = "auto", level: LogLevel = "info", stream: TextIO) -> None:
    """Sends all logs of this process to `stream`; `auto` is text on a terminal, else JSON. Replaces
    an earlier setup.
    """
    _bound.clear()
    as_text = format_ == "text" or (format_ == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(as_text=as_text, colours=stream.isatty()))
    logging.basicConfig(handlers=[handler], level=_LEVELS[level], force=True)
    # "Using selector", "Shutting down": only their warnings and errors are useful.
    for chatty in ("asyncio", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)  # noqa: TID251 - not ours


def _formatter(*, as_text: bool, colours: bool) -> logging.Formatter:
    renderer: Any
    if as_text:
        before: list[Any] = []
        renderer = structlog.dev.ConsoleRenderer(
            colors=colours, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        # Without the values of local variables, because they may contain items.
        before = [structlog.processors.format_exc_info]
        renderer = structlog.processors.JSONRenderer(serializer=_to_json)
    return structlog.stdlib.ProcessorFormatter(
        processors=[
            _from_record,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *before,
            renderer,
        ]
    )


def _to_record(
    _: Any, __: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """Arguments of the standard logger: a readable line, and the event as an extra."""
    passed_on = {
        key: event.pop(key) for key in ("exc_info", "stack_info", "stacklevel") if key in event
    }
    keys = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
    line = f"{event['event']} {keys}".rstrip()
    # The line is not a format string. Without args, a per cent sign in it stays unchanged.
    return (line,), {**passed_on, "extra": {_EVENT_KEY: dict(event)}}


def event_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The keys and values of an event of `logger`; empty for another library's message."""
    carried: Mapping[str, Any] = getattr(record, _EVENT_KEY, {})
    return carried


def _from_record(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event of `_to_record`, or another library's message, with the bound keys."""
    event.update(event_of(event["_record"]))
    for key, value in _bound.items():
        event.setdefault(key, value)
    return event


def _to_json(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
