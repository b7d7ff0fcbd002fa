"""The leases of a worker's activations, extended while activations are at work.

A worker begins no effect when a lease is over by its own monotonic clock. A lease, and each
extension, counts from when it was asked for: the answer may have waited for a worker that was
frozen.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from querator.client.errors import RequestError
from querator.client.executions import ExecutionCalls
from querator.durable.logs import WORKER as LOG
from querator.model.ids import parse_lease_id
from querator.model.limits import REQUEST_ITEMS_MAX

_SHARE: Final = 1 / 3
"""The part of a lease after which it is extended: two extensions may fail."""
_TOGETHER_SECONDS: Final = 0.5
"""Leases that are due within this time are extended by the same calls."""
_AGAIN_SECONDS: Final = 1.0


class KeptLease:
    """A lease of one or more activations. Times are of `time.monotonic`, in seconds."""

    def __init__(self, lease_id: str, since: float, remaining: timedelta) -> None:
        self.id = lease_id
        self.is_lost = False
        self.ends = self.due = 0.0
        self.wakes: set[Callable[[], None]] = set()
        """Called when the lease was extended or is lost; one for each activation at work."""
        self.lasts(since, remaining)

    @property
    def is_over(self) -> bool:
        return self.is_lost or time.monotonic() >= self.ends

    def lasts(self, since: float, remaining: timedelta) -> None:
        seconds = remaining.total_seconds()
        self.ends = since + seconds
        self.due = since + seconds * _SHARE

    def wake(self) -> None:
        for wake in tuple(self.wakes):
            wake()


class LeaseKeeper:
    """Extends leases until `keep` is cancelled."""

    def __init__(self, calls: ExecutionCalls, queue: str) -> None:
        self._calls = calls
        self._queue = queue
        self._leases: dict[str, KeptLease] = {}
        self._changed = asyncio.Event()

    def hold(
        self, lease_id: str, since: float, remaining: timedelta, wake: Callable[[], None]
    ) -> KeptLease:
        """The lease of an activation, asked for at `since`; extended until `release`."""
        lease = self._leases.get(lease_id)
        if lease is None:
            lease = self._leases[lease_id] = KeptLease(lease_id, since, remaining)
            self._changed.set()
        lease.wakes.add(wake)
        return lease

    def release(self, lease: KeptLease, wake: Callable[[], None]) -> None:
        lease.wakes.discard(wake)
        if not lease.wakes:
            self._leases.pop(lease.id, None)

    async def keep(self) -> None:
        ran = time.monotonic()
        while True:
            first = min(self._leases.values(), key=lambda lease: lease.due, default=None)
            now = time.monotonic()
            if first is None or now < first.due:
                ran = now
                self._changed.clear()
                try:
                    async with asyncio.timeout(None if first is None else first.due - now):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            self._warn_if_late(first, now - max(first.due, ran))
            soon = time.monotonic() + _TOGETHER_SECONDS
            partitions: defaultdict[int, list[KeptLease]] = defaultdict(list)
            for lease in self._leases.values():
                if lease.due <= soon:
                    partitions[parse_lease_id(lease.id, field="lease_id")[1]].append(lease)
            await asyncio.gather(*(self._extend(leases) for leases in partitions.values()))
            ran = time.monotonic()

    def _warn_if_late(self, lease: KeptLease, late: float) -> None:
        """`late`: for how many seconds the loop has not run what was due."""
        if late > max(_AGAIN_SECONDS, (lease.ends - lease.due) / 2):
            LOG.warning(
                "the event loop of the worker of queue %s stood still for %.1f s: leases lapse, "
                "and steps run again. If an async step or a durable function blocks it (time.sleep,"
                " a sync client), make that a step with def: it runs in a thread",
                self._queue, late,
            )  # fmt: skip

    async def _extend(self, leases: list[KeptLease]) -> None:
        """Extends leases of one partition."""
        del leases[REQUEST_ITEMS_MAX:]
        asked = time.monotonic()
        seconds = max(_AGAIN_SECONDS, min(lease.ends - lease.due for lease in leases) / 2)
        try:
            outcomes = await self._calls.extend(
                self._queue, [lease.id for lease in leases], seconds=seconds
            )
        except RequestError as error:
            LOG.warning("%d leases of queue %s are not extended: %s", len(leases), self._queue,
                        error)  # fmt: skip
            for lease in leases:
                lease.due = time.monotonic() + _AGAIN_SECONDS
            return
        for lease in leases:
            remaining = outcomes.get(lease.id)
            if remaining is None:
                lease.is_lost = True
                self._leases.pop(lease.id, None)
            else:
                lease.lasts(asked, remaining)
            lease.wake()
