"""Signals that end `Consumer.run` in an orderly way."""

import asyncio
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and the signal of process managers."""


@contextlib.contextmanager
def stopping_at(
    signals: Collection[signal.Signals], stop: Callable[[timedelta | None], object]
) -> Iterator[None]:
    """Within the block, the first of these signals calls `stop(None)`, and the second one `stop` of
    no time. Further signals have their former effect. `stop` is called in the main thread, between
    any two of its instructions.

    Takes over only signals for which the program has no handler of its own, and only in the main
    thread. Elsewhere the block has no effect on signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in signals}
    taken = {number: handler for number, handler in former.items() if _is_default(handler)}
    pid = os.getpid()
    graces = [timedelta(0), None]

    def received(number: int, frame: FrameType | None) -> None:
        if os.getpid() != pid:
            # A process that a handler has forked: the stop is not its concern.
            restore()
            signal.raise_signal(number)
            return
        grace = graces.pop()
        if not graces:
            restore()
        stop(grace)

    def restore() -> None:
        for number in signals:
            handler = taken.pop(number, None)
            if handler is not None:
                signal.signal(number, handler)

    for number in taken:
        signal.signal(number, received)
    try:
        yield
    finally:
        restore()


def _is_default(handler: Any) -> bool:
    """Whether a signal has its default effect, or the one that `asyncio.run` gives to Ctrl-C."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    runs = handler.func if isinstance(handler, functools.partial) else handler
    return isinstance(getattr(runs, "__self__", None), asyncio.Runner)
