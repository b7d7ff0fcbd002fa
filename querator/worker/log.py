"""The logger of workers, `querator.worker`, and the log of worker processes.

A worker in a program adds no handler: the program's own logging has its lines. `set_up` is for the
processes of `querator worker`, with the means of the standard library alone.
"""

import logging
import sys
import time
from typing import Any, Final, Literal, TextIO

import msgspec

LOG: Final = logging.getLogger("querator.worker")  # noqa: TID251 - the program's own logging

LogFormat = Literal["auto", "text", "json"]


def set_up(*, format_: LogFormat = "auto", level: str = "info", process: int = 0) -> None:
    """Sends all logs of this process to standard error, also those of the handlers' modules; `auto`
    is text on a terminal, else JSON. `process` is the number of a worker process; 0: there is one.
    """
    as_text = format_ == "text" or (format_ == "auto" and sys.stderr.isatty())
    send_to(sys.stderr, as_text=as_text, level=level, process=process)


def send_to(stream: TextIO, *, as_text: bool, level: str, process: int) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Text(process) if as_text else _Json(process))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


class _Text(logging.Formatter):
    """`12:00:00.123 ERROR   [2] querator.worker: Item 0-3 …`, and a traceback on further lines."""

    def __init__(self, process: int) -> None:
        number = f"[{process}] " if process else ""
        super().__init__(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s {number}%(name)s: %(message)s",
            datefmt="%H:%M:%S",
        )


class _Json(logging.Formatter):
    """One JSON object a line, with the keys of the node's log."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": f"{seconds}.{int(record.msecs):03d}Z",
        }
        if self._process:
            line["process"] = self._process
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
