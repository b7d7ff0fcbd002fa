"""An operator that pauses the leases and the producers of a queue, and lets them continue.

a lease call that begins after a pause of leases was answered, and is answered before another
change begins, gets no item
the same holds for produces and a pause of producers
at the end nothing is paused, and everything is delivered (`WholeWorld`)
"""

import asyncio
from dataclasses import dataclass, field

from querator.model.errors import ErrorCode
from querator.model.queues import Queue, QueueSettings
from tests.simulation.whole.programs import NAMESPACE, Program

PAUSED = ("lease_paused", "produce_paused")
HOLD_S = (0.2, 1.0, 3.0)
CHOICES = ((True, False), (True, False), (False, True), (True, True))
"""Of leases, and of producers."""


@dataclass
class _Pause:
    """`since_us`: when the change that paused was answered; None: leases or producers may be
    served.
    """

    leases_since_us: int | None = None
    produces_since_us: int | None = None


@dataclass
class Pauses:
    """Decides what may be granted and stored. Instants are of virtual time."""

    found: list[str] = field(default_factory=list)
    _queues: dict[str, _Pause] = field(default_factory=dict)

    def changing(self, queue: str) -> None:
        """A change begins: until it is answered, nothing is certain."""
        self._queues.pop(queue, None)

    def changed(self, queue: str, now_us: int, *, leases: bool, producers: bool) -> None:
        """A change was answered."""
        self._queues[queue] = _Pause(now_us if leases else None, now_us if producers else None)

    def leased(self, queue: str, asked_us: int, items: int) -> None:
        """A call that was made at `asked_us` has been answered with new leases of `items`."""
        since_us = self._queues.get(queue, _Pause()).leases_since_us
        if items and since_us is not None and since_us < asked_us:
            self.found.append(f"{queue}: {items} items were leased in a pause")

    def produced(self, queue: str, asked_us: int, items: int) -> None:
        """A call that was made at `asked_us` has stored `items`."""
        since_us = self._queues.get(queue, _Pause()).produces_since_us
        if items and since_us is not None and since_us < asked_us:
            self.found.append(f"{queue}: {items} items were stored in a pause")


class Updating(Program):
    """An operator that changes settings of its queue."""

    async def update(self, settings: QueueSettings, mask: tuple[str, ...]) -> bool:
        """Returns whether all partitions have the settings. The change names the version of the
        settings that it has read. So if its answer is lost, it is not executed after a later one.
        """
        read = await self.call(
            "settings", lambda core: core.admin.get_queue(NAMESPACE, self.queue), again=True
        )
        if read.error is not None:
            self.unexpected("reading the settings", read)
        if read.result is None:
            return False
        queue: Queue = read.result
        self.updating()
        ended = await self.call(
            "update",
            lambda core: core.admin.update_queue(
                NAMESPACE, self.queue, settings, mask, queue.settings_version
            ),
            again=False,
        )
        # Another operator may have changed the settings meanwhile.
        allowed = (ErrorCode.VERSION_CONFLICT, ErrorCode.LIMIT_EXCEEDED)
        if ended.error is not None and ended.error.code not in allowed:
            self.unexpected("a change of settings", ended)
        return ended.result is not None

    def updating(self) -> None:
        """Called before a change is sent."""


class Pausing(Updating):
    """Pauses leases, producers, or both."""

    async def act(self) -> None:
        leases, producers = self._chance.choice(CHOICES)
        if await self._pause(leases=leases, producers=producers):
            await asyncio.sleep(self._chance.choice(HOLD_S))
        await self._pause(leases=False, producers=False)

    async def finish(self) -> None:
        """Lets all continue, after the faults."""
        while not await self._pause(leases=False, producers=False):
            self._preferred = ""

    async def _pause(self, *, leases: bool, producers: bool) -> bool:
        settings = QueueSettings(lease_paused=leases, produce_paused=producers)
        done = await self.update(settings, PAUSED)
        if done:
            now_us = self._ground.timeline.now_us
            self._ground.pauses.changed(self.queue, now_us, leases=leases, producers=producers)
        return done

    def updating(self) -> None:
        self._ground.pauses.changing(self.queue)
