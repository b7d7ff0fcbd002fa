"""Leases of activations for workers that say which versions of functions they have: they also get
pinned executions.

A call leases as every other one does. When it has waited PINNED_WAIT_MS, it also asks the leaders
of all partitions for pins that fit, and waits for them. Whatever comes first ends the call; leases
that come behind it are released. Where others are always ready, no call waits that long. So a call
looks for pins first if none has done so for PINNED_LOOK_MS with its versions on this node. Without
pinned executions that is one read of each partition in this time.

Nothing is remembered but the time of the last look. A pinned execution is found by each call of a
worker that fits, whichever node or leader has failed before.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from querator.model.calls import LeaseCall, LeasedRun
from querator.model.commands import LeaseItems, Retry
from querator.model.errors import QueratorError
from querator.model.execution_calls import PinsPage
from querator.model.execution_commands import LeasePinned, PinnedLease
from querator.model.ids import (
    LeaseNumber,
    PartitionNumber,
    QueueId,
    format_lease_id,
    parse_lease_id,
)
from querator.model.limits import (
    EXECUTION_LOOK_MS_MAX,
    PINNED_LOOK_MS,
    PINNED_WAIT_MS,
    PINS_LOOKED_MAX,
)
from querator.model.queues import Queue
from querator.service.lease.calls import LeaseService
from querator.service.routing.first_found import first_found
from querator.service.routing.forwarder import PinsQuery
from querator.service.routing.outcomes import Accepted
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

if TYPE_CHECKING:
    from querator.raft.clock import Clock

_LOOKS_KEPT = 1_000
_Worker = tuple[QueueId, tuple[tuple[str, str], ...]]


class LeasedActivations(msgspec.Struct, frozen=True):
    """Activations under one lease. `attempts` are by sequence."""

    lease_id: str
    attempts: dict[int, int]
    remaining_ms: int


def of_run(run: LeasedRun) -> LeasedActivations:
    loaded = run.loaded
    ordinals = loaded.ordinals or range(loaded.count)
    attempts = {loaded.first_seq + ordinal: run.attempt for ordinal in ordinals}
    return LeasedActivations(run.lease_id, attempts, run.remaining_ms)


class PinnedLeases:
    """Used on the event loop."""

    def __init__(self, router: Router, leasing: LeaseService, clock: "Clock") -> None:
        self._router = router
        self._leasing = leasing
        self._clock = clock
        self._looks: dict[_Worker, float] = {}
        """When pins were looked for last, by the monotonic clock."""

    async def lease(self, queue: Queue, call: LeaseCall) -> list[LeasedActivations]:
        """Waits as a lease of items does, for what is ready or pinned. Raises QueratorError."""
        if call.given_up:
            return await self._given_up(queue, call)
        looked = self._is_due(queue, call)
        if looked:
            found = await self._pinned_now(queue, call)
            if found:
                return found
        loop = asyncio.get_running_loop()
        until = loop.time() + call.wait_ms / 1000
        # Owned, as the other one: both have ended when this returns.
        ready = loop.create_task(self._ready(call))
        pinned: asyncio.Task[list[LeasedActivations]] | None = None
        try:
            await asyncio.wait({ready}, timeout=PINNED_WAIT_MS / 1000)
            if ready.done():
                found = await ready
                return found if found or looked else await self._pinned_now(queue, call)
            wait_ms = max(0, int((until - loop.time()) * 1000))
            pinned = loop.create_task(self._pinned(queue, call, wait_ms))
            await asyncio.wait({ready, pinned}, return_when=asyncio.FIRST_COMPLETED)
            # A failed look affects nothing else: the next call looks again.
            found = pinned.result() if pinned.done() and not pinned.exception() else []
            if not found:
                return await ready
            if ready.done() and not ready.exception() and ready.result():
                self._release(queue, found)
                return ready.result()
            return found
        finally:
            for task in (ready, pinned):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def _pinned_now(self, queue: Queue, call: LeaseCall) -> list[LeasedActivations]:
        """What is pinned, if the leaders say so soon: one that does not answer keeps back no leases
        of other partitions. The next call looks again.
        """
        try:
            async with asyncio.timeout(PINNED_LOOK_MS / 1000):
                return await self._pinned(queue, call, 0)
        except (TimeoutError, QueratorError):
            return []

    async def _given_up(self, queue: Queue, call: LeaseCall) -> list[LeasedActivations]:
        pinned = msgspec.structs.replace(call, request_id=_of_pinned(call.request_id))
        replies = await asyncio.gather(
            self._leasing.granted_before(queue, call), self._leasing.granted_before(queue, pinned)
        )
        return [of_run(run) for reply in replies for run in reply.batches]

    def _is_due(self, queue: Queue, call: LeaseCall) -> bool:
        """Whether a call looks for pins before it leases what is ready."""
        now_s = self._clock.monotonic_s()
        worker = queue.id, call.versions
        if now_s - self._looks.get(worker, float("-inf")) < PINNED_LOOK_MS / 1000:
            return False
        if len(self._looks) >= _LOOKS_KEPT:
            self._looks.clear()
        self._looks[worker] = now_s
        return True

    async def _ready(self, call: LeaseCall) -> list[LeasedActivations]:
        return [of_run(run) for run in (await self._leasing.lease(call)).batches]

    async def _pinned(self, queue: Queue, call: LeaseCall, wait_ms: int) -> list[LeasedActivations]:
        """Leases of pinned executions, as soon as there are any; none, if there are none in
        time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while True:
            left_ms = max(0, int((until - loop.time()) * 1000))
            look_ms = min(left_ms, EXECUTION_LOOK_MS_MAX)
            asks = {
                partition: self._look(queue, partition, call, look_ms)
                for partition in range(len(queue.groups))
            }
            pins: dict[int, list[bytes]] = {}
            for partition, pin in await first_found(asks, "looking for pinned executions"):
                pins.setdefault(partition, []).append(pin)
            leased = await self._take_all(queue, call, pins)
            if leased or loop.time() >= until:
                return leased

    async def _take_all(
        self, queue: Queue, call: LeaseCall, pins: dict[int, list[bytes]]
    ) -> list[LeasedActivations]:
        """Leases what waits under pins, by partition. Raises QueratorError if it gets nothing."""
        leased: list[LeasedActivations] = []
        try:
            for partition, some in pins.items():
                most = call.max_items - sum(len(one.attempts) for one in leased)
                if most > 0:
                    leased += await self._take(queue, partition, call, tuple(some), most)
        except asyncio.CancelledError:
            self._release(queue, leased)
            raise
        except QueratorError:
            if not leased:
                raise
        return leased

    async def _look(
        self, queue: Queue, partition: int, call: LeaseCall, wait_ms: int
    ) -> tuple[bytes, ...]:
        group = queue.groups[partition]
        query = PinsQuery(group, call.versions, PINS_LOOKED_MAX, wait_ms)
        page: PinsPage = await self._router.read(group, query)
        return page.pins

    async def _take(
        self, queue: Queue, partition: int, call: LeaseCall, pins: tuple[bytes, ...], most: int
    ) -> list[LeasedActivations]:
        """A lease that is granted when the caller is gone is released."""
        route = self._router.routes(queue)[partition]
        done: asyncio.Future[list[LeasedActivations]] = asyncio.get_running_loop().create_future()
        sent_s = self._clock.monotonic_s()

        def again() -> None:
            nonlocal sent_s
            sent_s = self._clock.monotonic_s()

        def answered(outcome: Accepted | QueratorError) -> None:
            if isinstance(outcome, QueratorError):
                if not done.done():
                    done.set_exception(outcome)
                return
            assert isinstance(outcome, PinnedLease)
            leased = self._leased(route, partition, outcome, sent_s)
            if done.done():
                self._release(queue, leased)
            else:
                done.set_result(leased)

        named = _of_pinned(call.request_id) if call.request_id else self._router.lease_name()
        command = LeasePinned(call.client_id, named, most, pins, call.lease_timeout_ms)
        self._router.post(route, command, then=answered, patient=True, on_repeat=again)
        return await done

    def _leased(
        self, route: PartitionRoute, partition: int, lease: PinnedLease, sent_s: float
    ) -> list[LeasedActivations]:
        if not lease.lease:
            return []
        passed_ms = int((self._clock.monotonic_s() - sent_s) * 1000)
        number = LeaseNumber(lease.lease)
        lease_id = format_lease_id(route.group, PartitionNumber(partition), number)
        remaining_ms = max(0, lease.deadline_ms - lease.now_ms - passed_ms)
        attempts = dict(lease.activations)
        return [LeasedActivations(lease_id, attempts, remaining_ms)]

    def _release(self, queue: Queue, leased: list[LeasedActivations]) -> None:
        """Releases leases without counting an attempt. A lease whose release fails lapses."""
        for one in leased:
            _, partition, number = parse_lease_id(one.lease_id, field="lease_id")
            command = Retry((LeaseItems(number),), count_attempt=False)
            route = self._router.routes(queue)[partition]
            self._router.post(route, command, then=_settled, patient=True)


def _of_pinned(request_id: str) -> str:
    """Names the leases of pinned executions of a request: others have its own id."""
    return f"{request_id}/pinned"


def _settled(_outcome: Accepted | QueratorError) -> None:
    """Ignores the outcome: the lease of a failed release lapses."""
