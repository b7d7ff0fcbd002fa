"""One worker process, as it sees itself and as its supervisor sees it.

A child is a new interpreter (`spawn`): it shares no connection, thread or lock with its supervisor.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from querator.worker.log import LOG

KILL_S: Final = 15.0
"""A child that still runs this long after the end of its grace is asked again, then killed. A child
ends itself earlier (`querator.cli.worker`).
"""
AGAIN_S: Final = 0.5
"""Pause between repeats of the second request. Two signals of one kind that a busy process has not
handled yet count once.
"""


@dataclass(frozen=True, slots=True)
class Child:
    """A child's view of itself. `number`: from 1."""

    number: int
    link: Connection

    def ready(self) -> None:
        """Reports to the supervisor that this child works. May be called once."""
        with contextlib.suppress(OSError):  # A supervisor that has died needs no report.
            self.link.send_bytes(b"ready")
        self.link.close()


ChildMain = Callable[[Child, Any], None]


def _run(child: Child, main: ChildMain, argument: Any) -> None:
    """The first function of a child process."""
    # The terminal's Ctrl-C goes to all processes; the supervisor decides what it means here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None

    def stop_after_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_after_parent, name="querator-parent", daemon=True).start()
    main(child, argument)


class ChildPlace:
    """The place of one child, which has one process after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.failures = 0
        """How often in a row its process has died young."""
        self.start_s = 0.0
        """When the next process may start."""
        self.process: SpawnProcess | None = None
        self.link: Connection | None = None
        """Where the process reports that it is ready; None afterwards."""
        self.was_ready = False
        """Whether its process, or the last one, has reported that it is ready."""
        self._began_s = 0.0
        self._asked_s: float | None = None
        self._times_asked = 0
        self._sent_s = 0.0
        self._killed = False

    @property
    def is_asked(self) -> bool:
        """Whether the process has been asked to stop."""
        return self._asked_s is not None

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._began_s

    def start(self, main: ChildMain, argument: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, link = context.Pipe(duplex=False)
        process = context.Process(
            target=_run,
            args=(Child(self.number, link), main, argument),
            name=f"querator-worker-{self.number}",
        )
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        link.close()
        self.process = process
        self._began_s = time.monotonic()
        self.was_ready = False
        self._asked_s, self._times_asked, self._killed = None, 0, False

    def has_reported(self) -> bool:
        """Reads the report. False if the process has ended without one."""
        assert self.link is not None
        reported = False
        with contextlib.suppress(EOFError, OSError):
            reported = bool(self.link.recv_bytes())
        self.link.close()
        self.link = None
        self.was_ready = reported
        return reported

    def ask(self) -> None:
        """Asks the process to stop. The second request ends its handlers at once."""
        self._asked_s = time.monotonic()
        self._times_asked += 1
        self._send()

    def _send(self) -> None:
        assert self.process is not None
        self._sent_s = time.monotonic()
        self.process.terminate()

    def late_s(self, grace_s: float) -> float | None:
        """When the process must be pressed, because it has been asked to stop; None: never."""
        if self._asked_s is None or self._killed:
            return None
        if self._times_asked == 1:
            return self._asked_s + grace_s
        return min(self._sent_s + AGAIN_S, self._asked_s + KILL_S)

    def press(self, grace_s: float) -> None:
        """Asks again a process that is late, and kills it when it is late again."""
        late_s, now = self.late_s(grace_s), time.monotonic()
        if self.process is None or late_s is None or now < late_s:
            return
        if self._times_asked == 1:
            self.ask()
        elif self._asked_s is not None and now < self._asked_s + KILL_S:
            self._send()
        else:
            LOG.error("Worker process %d does not end, and is killed", self.number)
            self.kill()

    def kill(self) -> None:
        if self.process is not None:
            self._killed = True
            self.process.kill()

    def reap(self) -> tuple[int, int] | None:
        """The process id and exit code of a process that has ended; None while it runs."""
        process = self.process
        if process is None or process.exitcode is None or process.pid is None:
            return None
        process.join()
        ended = process.pid, process.exitcode
        process.close()
        self.process = None
        return ended
