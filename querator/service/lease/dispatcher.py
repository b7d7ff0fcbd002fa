"""Lease calls that wait, and how what is ready is shared among them.

Nothing polls. A waiter is parked at its queue's desk; what the partitions say about themselves
(effects) wakes the desk; once per step of the loop the desk shares what is ready among all who wait
(`asks`) and proposes at most one lease command per partition, carrying all its callers.
A command that would find nothing is never proposed, but for a repeated request that names its
partition: only the partition knows whether it has been granted before.

    parked ──shared out──► asked ──something granted──► answered
       ▲                     │
       └──nothing granted────┘        an error, the end of the wait or of the queue answer as well

A waiter is answered when all partitions asked for it have answered; once it has something, those
that are late are waited for STRAGGLER_WAIT_MS only. A lease that is granted to a waiter who
has gone meanwhile is released politely, never kept and never handed to another one: it names its
client. A repeated grant is left alone, for the client may be at work on its first delivery.

A request id that this node has made may have been granted to nobody: its answer was lost, and the
lease has lapsed. The partition answers a repeat with LEASE_ENDED, and the waiter gets another id.
A partition that has something ready and grants nothing, LEASES_EMPTY_MAX times in a row, is asked
again after OVERLOADED_RETRY_MS. So the commands of a waiter are bounded by time, whatever the
partitions answer.

Partitions take turns: one that has been asked goes to the end of the line.

Longer than 500 lines: every way in which a waiter's wait ends is read in one place.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from querator.model.commands import (
    Lease,
    LeaseGrant,
    LeaseItems,
    LeaseResult,
    Refusal,
    Retry,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import QueueId
from querator.model.limits import LEASES_EMPTY_MAX, OVERLOADED_RETRY_MS, STRAGGLER_WAIT_MS
from querator.model.queues import Queue
from querator.service.lease.fair_queue import Line
from querator.service.lease.requests import Ask, allot, granted_by, within_a_frame
from querator.service.lease.supply import PartitionSupply
from querator.service.lease.waiter import Grant, Waiter
from querator.service.routing.forwarder import CarriedLease
from querator.service.routing.outcomes import Accepted, defect_error, refused
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

if TYPE_CHECKING:
    from querator.raft.clock import Clock

_TRANSIENT = frozenset({ErrorCode.NOT_LEADER, ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE})
"""Certainly not executed, and worth another try by whoever waits."""

_PAUSING = _TRANSIENT | {ErrorCode.STORAGE_FULL}
"""The partition would answer the next lease the same at once. A lease call is told that there is no
space; a stream asks again.
"""


class Elsewhere(Protocol):
    """The other nodes, as the dispatchers of this one see them."""

    async def look_around(self, queue: Queue) -> None:
        """Asks what other nodes have ready of the queue, for callers that do not wait."""
        ...

    def forget(self, desk: "LeaseDispatcher") -> None:
        """The queue of the dispatcher is gone."""
        ...

    def wanting(self, desk: "LeaseDispatcher") -> None:
        """What is known of has been shared out among those who wait."""
        ...

    def asked(self, desk: "LeaseDispatcher", supply: PartitionSupply) -> None:
        """Another node is about to be asked for a lease."""
        ...

    def answered(
        self,
        desk: "LeaseDispatcher",
        supply: PartitionSupply,
        asked: str,
        outcome: Accepted | QueratorError,
        took_s: float,
    ) -> None:
        """A lease has been answered after so long: what is left may go to other nodes. `asked`:
        which one it was first sent to, empty for this one.
        """
        ...


class LeaseDispatcher:
    """All who wait for items of one queue."""

    def __init__(
        self,
        queue_id: QueueId,
        supplies: tuple[PartitionSupply, ...],
        *,
        router: Router,
        clock: "Clock",
        elsewhere: "Elsewhere | None" = None,
    ) -> None:
        """`elsewhere` None: there are no other nodes."""
        self.queue_id = queue_id
        self.supplies: tuple[PartitionSupply, ...] = ()
        self._elsewhere = elsewhere
        self._router = router
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._members: dict[Waiter, None] = {}
        self._hasty: dict[Waiter, None] = {}
        """The members that are not patient."""
        self._parked = Line()
        self._pinned: dict[PartitionSupply, dict[Waiter, None]] = {}
        self._open: dict[PartitionSupply, None] = {}
        """Partitions that have something and are not asked, in the order of their turns."""
        self._busy = 0
        """Partitions asked, or pausing after a failure."""
        self._pauses: dict[PartitionSupply, asyncio.TimerHandle] = {}
        self._empty: dict[PartitionSupply, int] = {}
        """Lease commands in a row that granted nothing while the partition had something ready."""
        self._scheduled = False
        self._ended: QueratorError | None = None
        self._stopped = False
        self.follow(supplies)

    def follow(self, supplies: tuple[PartitionSupply, ...]) -> None:
        """The queue has these partitions now. Who waits for one that has gone, which was empty, is
        answered with nothing.
        """
        if supplies == self.supplies:
            return
        before, self.supplies = self.supplies, supplies
        for supply in [supply for supply in before if supply not in supplies]:
            supply.dispatcher = None
            self._open.pop(supply, None)
            self._empty.pop(supply, None)
            for waiter in list(self._pinned.get(supply, ())):
                self._finish(waiter)
        for supply in supplies:
            supply.dispatcher = self
            self.on_supply(supply)

    # --- those who wait ----------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        self._members[waiter] = None
        if self._ended is not None or self._stopped:
            waiter.error = self._ended
            self._finish(waiter)
            return
        if not waiter.patient:
            self._hasty[waiter] = None
        self._park(waiter)
        self._wake()

    def end_wait(self, waiter: Waiter) -> None:
        """Its time is over: answers with nothing, or when the partitions asked have answered."""
        if waiter.closed:
            return
        if waiter.asked:
            waiter.over = True
        else:
            self._finish(waiter)

    def abandon(self, waiter: Waiter) -> None:
        """Its caller is gone: what it has got, or will get, goes back."""
        if not waiter.closed:
            self._close(waiter)
        grants, waiter.grants = waiter.grants, []
        self.release(grants)

    def release(self, grants: list[Grant]) -> None:
        """Gives leases back politely. Those that cannot be given back lapse."""
        by_route: dict[PartitionRoute, list[LeaseItems]] = {}
        for grant in grants:
            if not grant.repeated:
                by_route.setdefault(grant.route, []).append(LeaseItems(grant.lease))
        for route, leases in by_route.items():
            command = Retry(tuple(leases), count_attempt=False)
            self._router.post(route, command, then=_settled, patient=True)

    def ready(self, *, most: int) -> int:
        """Items that partitions which are not being asked have ready; counted up to `most`."""
        ready = 0
        for supply in self._open:
            ready += supply.ready
            if ready >= most:
                break
        return ready

    @property
    def wanted(self) -> int:
        """Items that those who are parked want, and may have from any partition."""
        return self._parked.wanted

    def demand(self) -> tuple[int, int]:
        """How many wait and are not being asked for, and how many items they want."""
        waiters, items = len(self._parked), self._parked.wanted
        for there in self._pinned.values():
            waiters += len(there)
            items += sum(waiter.items_max for waiter in there)
        return waiters, items

    def served(self) -> tuple[int, int]:
        """As `demand`, of all who would take what comes, those being asked for among them."""
        patient = [waiter for waiter in self._members if waiter.patient]
        return len(patient), sum(waiter.items_max for waiter in patient)

    # --- what happens to the queue -----------------------------------------------------------

    def on_supply(self, supply: PartitionSupply) -> None:
        """The partition says something new about itself."""
        if supply.dispatcher is not self:
            # It has left the queue while it was asked.
            return
        if supply.ready and supply.route.is_reachable and not supply.in_flight:
            self._open.setdefault(supply)
            if self._parked or supply in self._pinned:
                self._wake()
        else:
            self._open.pop(supply, None)
            if supply in self._pinned and not supply.in_flight:
                self._wake()

    def end(self, error: QueratorError) -> None:
        """The queue is gone: ends every wait by `error`."""
        self._ended = error
        self._finish_all()

    def stop(self) -> None:
        """The node stops: ends the wait of whoever has not been granted anything."""
        self._stopped = True
        self._finish_all()

    def turn_away(self, error: QueratorError) -> None:
        """Nothing can be had here: whoever waits is told to go to another node."""
        for waiter in list(self._members):
            if not waiter.asked:
                waiter.error = error
                self._finish(waiter)

    def _finish_all(self) -> None:
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for waiter in list(self._members):
            if not waiter.asked:
                waiter.error = self._ended
                self._finish(waiter)

    # --- sharing out -------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._share_out)

    def _share_out(self) -> None:
        self._scheduled = False
        if self._ended is not None or self._stopped:
            return
        asks: dict[PartitionSupply, list[Ask]] = {}
        self._unpin()
        for supply, waiters in self._pinned.items():
            if supply.route.is_reachable and not supply.in_flight:
                asking = [
                    Ask(waiter, waiter.items_max, waiter.bytes_max)
                    for waiter in waiters
                    if supply.ready or waiter.probe
                ]
                if asking:
                    asks[supply] = asking
        if self._parked and self._open:
            allot(self._askable(), self._parked, asks)
        for supply, asking in asks.items():
            self._ask(supply, asking if supply.route.local else within_a_frame(asking))
        if self._hasty:
            self._dismiss()
        if self._elsewhere is not None and self._members:
            self._elsewhere.wanting(self)

    def _askable(self) -> Iterable[PartitionSupply]:
        """Those that are open and do not rest. Who does not wait may ask any."""
        return (
            self._open
            if self._hasty
            else (supply for supply in self._open if not supply.is_resting)
        )

    def _unpin(self) -> None:
        """Frees those who wait for one large item that is not to be had any more."""
        for supply in list(self._pinned):
            if supply.in_flight or (supply.ready and supply.route.is_reachable):
                continue
            strays = [waiter for waiter in self._pinned[supply] if waiter.home is None]
            for waiter in reversed(strays):
                self._unpark(waiter)
                waiter.pinned = None
                self._park(waiter, first=True)

    def _ask(self, supply: PartitionSupply, asks: list[Ask]) -> None:
        supply.in_flight = True
        self._open.pop(supply, None)
        self._busy += 1
        for ask in asks:
            waiter = ask.waiter
            self._unpark(waiter)
            waiter.probe = False
            waiter.asked += 1
        asked = "" if supply.route.local else supply.route.leader
        then = partial(self._answered, supply, asked, asks, self._clock.monotonic_s())
        if self._elsewhere is not None and not supply.route.local:
            self._elsewhere.asked(self, supply)
        self._router.post(supply.route, Lease(tuple(ask.caller for ask in asks)), then=then)
        for ask in asks:
            if ask.waiter.on_asked is not None:
                ask.waiter.on_asked()

    def _dismiss(self) -> None:
        """Answers those who do not wait and for whom nothing is to be had: whoever may ask any
        partition, when none is busy; whoever may ask one only, when that is not.
        """
        if self._busy:
            idle = [there for supply, there in self._pinned.items() if not supply.in_flight]
            waiters = [waiter for there in idle for waiter in there if not waiter.patient]
        else:
            waiters = list(self._hasty)
        for waiter in waiters:
            if not waiter.asked:
                self._finish(waiter)

    # --- answers -----------------------------------------------------------------------------

    def _answered(
        self,
        supply: PartitionSupply,
        asked: str,
        asks: list[Ask],
        asked_s: float,
        outcome: Accepted | QueratorError,
    ) -> None:
        self._busy -= 1
        supply.in_flight = False
        try:
            self._take_in(supply, asked, asks, asked_s, outcome)
        except Exception as error:  # noqa: BLE001 - whoever waits must be answered
            failed = defect_error(error, "taking in a lease")
            for ask in asks:
                ask.waiter.error = failed
        self._settle_all([ask.waiter for ask in asks])
        if not supply.in_flight:
            self.on_supply(supply)
        if self._parked or self._hasty:
            self._wake()

    def _take_in(
        self,
        supply: PartitionSupply,
        asked: str,
        asks: list[Ask],
        asked_s: float,
        outcome: Accepted | QueratorError,
    ) -> None:
        if self._elsewhere is not None:
            if not supply.route.local:
                supply.ready = outcome.ready if isinstance(outcome, CarriedLease) else 0
            took_s = self._clock.monotonic_s() - asked_s
            self._elsewhere.answered(self, supply, asked, outcome, took_s)
        if isinstance(outcome, QueratorError):
            for ask in asks:
                self._failed(ask.waiter, outcome)
            if outcome.code in _PAUSING and supply.route.is_reachable:
                self._pause(supply)
        else:
            assert isinstance(outcome, LeaseResult)
            self._granted(supply, asks, asked_s, outcome)
            if self._is_stuck(supply, outcome):
                self._pause(supply)

    def _granted(
        self, supply: PartitionSupply, asks: list[Ask], asked_s: float, result: LeaseResult
    ) -> None:
        orphans: list[Grant] = []
        for place, (ask, grant) in enumerate(zip(asks, result.grants, strict=True)):
            ask.waiter.pinned = ask.waiter.home
            if isinstance(grant, Refusal):
                self._refused(supply, ask, grant)
            elif grant.lease:
                granted = granted_by(
                    supply.route, ask.waiter, grant, result, place=place, asked_s=asked_s
                )
                (orphans if ask.waiter.closed else ask.waiter.grants).extend(granted)
                items = sum(segment.count for segment in grant.segments)
                self._parked.got(ask.waiter.account, items)
        if orphans:
            self.release(orphans)

    def _is_stuck(self, supply: PartitionSupply, result: LeaseResult) -> bool:
        """Whether the partition grants nothing, again and again, and has something ready."""
        if not supply.ready or not all(map(_is_empty, result.grants)):
            self._empty.pop(supply, None)
            return False
        times = self._empty[supply] = self._empty.get(supply, 0) + 1
        return times >= LEASES_EMPTY_MAX

    def _failed(self, waiter: Waiter, error: QueratorError) -> None:
        if error.code not in _TRANSIENT or not waiter.patient:
            waiter.error = error
        elif waiter.named and waiter.home is not None:
            # Only the partition knows whether it has granted the request before.
            waiter.probe = True

    def _refused(self, supply: PartitionSupply, ask: Ask, refusal: Refusal) -> None:
        """An item larger than this partition's piece of the caller's bytes may fit into the whole:
        the caller then asks this partition alone.
        """
        waiter = ask.waiter
        if refusal.code is ErrorCode.ITEM_TOO_LARGE and ask.size < waiter.bytes_max:
            waiter.pinned = supply
        elif refusal.code is ErrorCode.LEASE_ENDED and waiter.rename is not None:
            waiter.request_id = waiter.rename()
        else:
            waiter.error = refused(refusal)

    def _pause(self, supply: PartitionSupply) -> None:
        """Leaves the partition alone for a moment."""
        self._busy += 1
        supply.in_flight = True
        self._pauses[supply] = self._loop.call_later(
            OVERLOADED_RETRY_MS / 1000, self._resume, supply
        )

    def _resume(self, supply: PartitionSupply) -> None:
        del self._pauses[supply]
        self._busy -= 1
        supply.in_flight = False
        self.on_supply(supply)

    def _settle_all(self, waiters: list[Waiter]) -> None:
        """After a partition has answered: in its order, so that one who has several gets the
        oldest items first.
        """
        again = []
        for waiter in waiters:
            waiter.asked -= 1
            if not self._settle(waiter):
                again.append(waiter)
        # Backwards, for each goes to the head of the line.
        for waiter in reversed(again):
            self._park(waiter, first=True)

    def _settle(self, waiter: Waiter) -> bool:
        """Decides on a waiter after a partition has answered; False: it has to wait on."""
        if waiter.closed:
            return True
        if waiter.asked:
            if waiter.grants and waiter.straggler is None:
                waiter.straggler = self._loop.call_later(
                    STRAGGLER_WAIT_MS / 1000, self._finish, waiter
                )
            return True
        if waiter.grants or waiter.error is not None or waiter.over or self._stopped:
            self._finish(waiter)
            return True
        if self._ended is not None:
            waiter.error = self._ended
            self._finish(waiter)
            return True
        return False

    def _finish(self, waiter: Waiter) -> None:
        self._close(waiter)
        try:
            waiter.answer(waiter)
        except Exception as error:  # noqa: BLE001 - the others must be answered as well
            defect_error(error, "answering who waits for items")

    def _close(self, waiter: Waiter) -> None:
        assert not waiter.closed
        waiter.closed = True
        if waiter.straggler is not None:
            waiter.straggler.cancel()
        self._members.pop(waiter, None)
        self._hasty.pop(waiter, None)
        self._unpark(waiter)

    # --- parking -----------------------------------------------------------------------------

    def _park(self, waiter: Waiter, *, first: bool = False) -> None:
        if waiter.pinned is not None:
            self._pinned.setdefault(waiter.pinned, {})[waiter] = None
            return
        self._parked.add(waiter, first=first)

    def _unpark(self, waiter: Waiter) -> None:
        if waiter.pinned is not None:
            there = self._pinned.get(waiter.pinned)
            if there is not None:
                there.pop(waiter, None)
                if not there:
                    del self._pinned[waiter.pinned]
        else:
            self._parked.remove(waiter)


def _is_empty(grant: LeaseGrant | Refusal) -> bool:
    if isinstance(grant, Refusal):
        return grant.code is ErrorCode.LEASE_ENDED
    return not grant.lease


def _settled(_outcome: Accepted | QueratorError) -> None:
    """A release that failed leaves the lease to lapse; nobody waits for it."""
