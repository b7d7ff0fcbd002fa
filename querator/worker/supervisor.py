"""Worker processes: starts them, replaces those that die, and stops them.

The first child must be ready before the others start, so that a handler that cannot be loaded is
reported once: if it ends with an exit code before that, the supervisor ends with this code. Later,
a child that dies is replaced after a pause, which grows while children die young. A child that ends
with one of `final_codes` before it is ready is not replaced, because its successor would end in the
same way: the supervisor stops the others and ends with this code. Once a child has been ready, its
exit code proves nothing, because the user's code may have chosen it: each end that was not asked
for is a death, except code 0 of children that end by themselves.

The first SIGTERM or Ctrl-C asks all children to stop, and a second one to stop at once. A child
whose supervisor has died stops by itself.
"""

import contextlib
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any, Final

from querator.worker.changes import watching
from querator.worker.child import KILL_S, ChildMain, ChildPlace
from querator.worker.log import LOG

PAUSE_FIRST_S: Final = 1.0
PAUSE_MOST_S: Final = 30.0
YOUNG_S: Final = 60.0
"""A child that lives shorter counts as a further failure."""
RELOAD_GRACE_S: Final = 2.0
"""How long handlers may take when files have changed."""


class Supervisor:
    """Keeps `processes` children alive, each of which calls `main(child, argument)`. Both are
    pickled: `main` is a function of a module. An instance is used once, in the main thread.
    """

    def __init__(
        self,
        main: ChildMain,
        argument: Any,
        *,
        processes: int,
        grace: timedelta,
        final_codes: Collection[int],
        end_by_themselves: bool = False,
        folder: Path | None = None,
        on_end: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """`grace`: how long handlers may take after a stop. `final_codes`: exit codes after which a
        child that was never ready is not replaced. `end_by_themselves`: a child that ends with code
        0 is done; else it has died. `folder`: all children are replaced when Python files below it
        change, and a child that ends with a final code before it is ready waits for the next
        change; None: files do not matter.
        `on_end` is called with the process id of each child that has ended.
        """
        self._main, self._argument = main, argument
        self._grace_s = grace.total_seconds() + KILL_S
        self._final_codes = final_codes
        self._end_by_themselves = end_by_themselves
        self._folder = folder
        self._on_end = on_end
        self._places = [ChildPlace(number) for number in range(1, processes + 1)]
        self._signals: list[int] = []
        self._changed: deque[str] = deque()
        self._proven = False
        """Whether a child has been ready since the start, or since files changed."""
        self._waits_for_change = False
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        """Returns the exit code: 0 after an orderly stop or when all children are done, the final
        code of a child, or 128 plus the number of the signal that ended the children at once.
        """
        with contextlib.ExitStack() as parts:
            reader, writer = socket.socketpair()
            parts.enter_context(reader)
            parts.enter_context(writer)
            writer.setblocking(False)
            parts.callback(self._kill_all)
            parts.enter_context(self._noticing_signals(writer))
            if self._folder is not None:
                parts.enter_context(watching(self._folder, lambda found: self._note(found, writer)))
                LOG.info("Python files below %s are watched for changes", self._folder)
            while self._places and not (self._stopping and not self._living()):
                self._start_due()
                self._wait(reader)
                self._obey_signals()
                self._reap()
                self._follow_changes()
                for place in self._living():
                    place.press(self._given_s())
        return self._code

    def _living(self) -> list[ChildPlace]:
        return [place for place in self._places if place.process is not None]

    def _given_s(self) -> float:
        return self._grace_s if self._stopping else RELOAD_GRACE_S

    # Starts.

    def _start_due(self) -> None:
        for place in self._startable():
            if place.start_s <= time.monotonic():
                place.start(self._main, self._argument)
                if not self._proven:
                    return

    def _startable(self) -> list[ChildPlace]:
        """The places without a process that may have one."""
        if self._stopping or self._waits_for_change or (not self._proven and self._living()):
            return []
        free = [place for place in self._places if place.process is None]
        return free if self._proven else free[:1]

    # Waiting.

    def _wait(self, reader: socket.socket) -> None:
        """Returns when a child has reported or ended, at a signal or a change, or when something is
        due.
        """
        objects: list[Any] = [reader]
        for place in self._living():
            assert place.process is not None
            objects += [place.process.sentinel] + ([place.link] if place.link else [])
        instants = [place.start_s for place in self._startable()]
        lates = (place.late_s(self._given_s()) for place in self._living())
        instants += [late for late in lates if late is not None]
        timeout = max(0.0, min(instants) - time.monotonic()) if instants else None
        ready = wait(objects, timeout)
        if reader in ready:
            reader.recv(4096)
        for place in self._places:
            if place.link is not None and place.link in ready:
                self._proven = place.has_reported() or self._proven

    # Ends of children.

    def _reap(self) -> None:
        for place in list(self._places):
            if (ended := place.reap()) is None:
                continue
            pid, code = ended
            self._on_end(pid)
            if place.link is not None:
                self._proven = place.has_reported() or self._proven
            self._has_ended(place, code)

    def _has_ended(self, place: ChildPlace, code: int) -> None:
        if self._stopping:
            LOG.info("Worker process %d has ended: %s", place.number, _how(code))
        elif place.is_asked:
            place.start_s = 0.0
        elif code == 0 and (self._end_by_themselves or not place.was_ready):
            self._places.remove(place)
        elif place.was_ready:
            self._replace_later(place, code)
        elif self._folder is not None and code in self._final_codes:
            self._waits_for_change = True
            LOG.error(
                "Worker process %d has ended: %s. It starts again when a Python file changes.",
                place.number,
                _how(code),
            )
        elif self._folder is None and (
            code in self._final_codes or (code > 0 and not self._proven)
        ):
            self._code = code
            self._stop()
        else:
            self._replace_later(place, code)

    def _replace_later(self, place: ChildPlace, code: int) -> None:
        place.failures = place.failures + 1 if place.lived_s < YOUNG_S else 1
        pause_s = min(PAUSE_MOST_S, PAUSE_FIRST_S * 2 ** min(place.failures - 1, 30))
        place.start_s = time.monotonic() + pause_s
        LOG.error(
            "Worker process %d has died after %.1f s: %s. It is replaced in %g s.",
            place.number,
            place.lived_s,
            _how(code),
            pause_s,
        )

    def _kill_all(self) -> None:
        """After an orderly end there is none. After an exception no child may be left."""
        for place in self._living():
            place.kill()
            assert place.process is not None
            place.process.join()

    # Signals.

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._stopping:
                self._code = 128 + number
            else:
                LOG.info("The worker processes stop; a second signal ends them at once")
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for place in self._living():
            place.ask()

    @contextlib.contextmanager
    def _noticing_signals(self, writer: socket.socket) -> Iterator[None]:
        def received(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)
            _wake(writer)

        taken = (signal.SIGINT, signal.SIGTERM)
        former = {number: signal.signal(number, received) for number in taken}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    # Changes of files.

    def _note(self, paths: list[str], writer: socket.socket) -> None:
        """On the thread that watches."""
        self._changed.extend(paths)
        _wake(writer)

    def _follow_changes(self) -> None:
        paths = set()
        while self._changed:
            paths.add(self._changed.popleft())
        if not paths or self._stopping:
            return
        LOG.info("Changed: %s. The worker starts again.", ", ".join(sorted(paths)))
        self._waits_for_change = self._proven = False
        for place in self._places:
            place.start_s, place.failures = 0.0, 0
            if place.process is not None and not place.is_asked:
                place.ask()


def _wake(writer: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        writer.send(b"x")


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"
