"""What happens to the executions at work of a worker, asked for by one call for all of them.

A run that lasts hears at once of what has arrived for its execution: a signal, a cancellation, the
result of a child. It also hears that its lease is lost, because the execution was ended or rewound.
Most runs are over before they are asked for. Without an answer nothing is lost: a run looks for
arrivals when its lease is extended, and when it is about to park.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Final, Protocol

from querator.client.errors import RequestError
from querator.client.executions import AtWork, ExecutionCalls
from querator.client.transport.backoff import Backoff
from querator.durable.logs import WORKER as LOG
from querator.model.limits import EXECUTION_WAIT_IDS_MAX

_YOUNG_SECONDS: Final = 0.5
"""Runs that have begun, or heard something, within this time are not asked for."""
_WAIT_SECONDS: Final = 5.0
_UNREAD_SECONDS: Final = 30.0
_TURN_SECONDS: Final = 1.0
"""How long a question waits when there are more runs than it may name."""
_PAUSE_SECONDS: Final = 0.0002
"""Of each run of a question that found something, before the next one: the leader looks at all."""


class Watched(Protocol):
    """A run. `asked_from` is when it is asked for again, by the monotonic clock."""

    asked_from: float

    @property
    def at_work(self) -> AtWork: ...

    def heard_of(self, *, is_lost: bool) -> None: ...


class ArrivalWatch:
    """Asks until `watch` is cancelled."""

    def __init__(self, calls: ExecutionCalls, queue: str) -> None:
        self._calls = calls
        self._queue = queue
        self._runs: dict[tuple[str, int], Watched] = {}
        self._unread: dict[tuple[str, int], tuple[int, float]] = {}
        """What runs knew when they heard something, and how long they were not asked for then."""
        self._changed = asyncio.Event()

    def add(self, run: Watched) -> None:
        run.asked_from = time.monotonic() + _YOUNG_SECONDS
        at_work = run.at_work
        self._runs[at_work.lease_id, at_work.item] = run
        if len(self._runs) == 1:
            # Behind others, it is asked for after them.
            self._changed.set()

    def remove(self, run: Watched) -> None:
        at_work = run.at_work
        self._runs.pop((at_work.lease_id, at_work.item), None)
        self._unread.pop((at_work.lease_id, at_work.item), None)

    async def watch(self) -> None:
        backoff = Backoff()
        while True:
            now = time.monotonic()
            asked = [run for run in self._runs.values() if run.asked_from <= now]
            later = min(
                (run.asked_from for run in self._runs.values() if run.asked_from > now),
                default=None,
            )
            if not asked:
                await self._until(later)
                continue
            seconds = _WAIT_SECONDS
            if later is not None:
                # They come to the next question.
                seconds = min(seconds, max(_YOUNG_SECONDS, later - now))
            if len(asked) > EXECUTION_WAIT_IDS_MAX:
                asked = asked[:EXECUTION_WAIT_IDS_MAX]
                seconds = min(seconds, _TURN_SECONDS)
                self._to_the_end(asked)
            known = [run.at_work for run in asked]
            try:
                arrived, lost = await self._calls.arrivals(self._queue, known, seconds=seconds)
            except RequestError as error:
                LOG.debug("queue %s cannot be asked for arrivals: %s", self._queue, error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._tell(arrived, is_lost=False)
            self._tell(lost, is_lost=True)
            if arrived or lost:
                await asyncio.sleep(len(known) * _PAUSE_SECONDS)

    def _to_the_end(self, asked: Iterable[Watched]) -> None:
        """The others have their turn first."""
        for run in asked:
            self.remove(run)
            at_work = run.at_work
            self._runs[at_work.lease_id, at_work.item] = run

    async def _until(self, at: float | None) -> None:
        """Until then, or until another run is there."""
        self._changed.clear()
        try:
            async with asyncio.timeout(None if at is None else max(0.0, at - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _tell(self, named: Iterable[tuple[str, int]], *, is_lost: bool) -> None:
        for one in named:
            run = self._runs.get(one)
            if run is not None:
                # It reads the journal first. One that cannot read it is asked for less and less.
                known = run.at_work.known
                before, pause = self._unread.get(one, (-1, 0.0))
                pause = min(2 * pause, _UNREAD_SECONDS) if before == known else _YOUNG_SECONDS
                self._unread[one] = known, pause
                run.asked_from = time.monotonic() + pause
                run.heard_of(is_lost=is_lost)
