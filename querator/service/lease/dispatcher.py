"""Lease calls that wait, and how ready items are shared among them.

Nothing polls. A waiter is parked at the dispatcher of its queue. Reports of the partitions
(effects) wake the dispatcher. Once per step of the event loop it shares the ready items among all
waiters (`requests`), and proposes at most one lease command per partition, which carries all
callers. A command that would find nothing is never proposed, with one exception: a repeated request
that names its partition, because only the partition knows whether it has granted the request
before.

    parked ──shared out──► asked ──something granted──► answered
       ▲                     │
       └──nothing granted────┘        an error, the end of the wait or of the queue answer as well

A waiter is answered when all partitions asked for it have answered. Once it has a grant, it waits
only STRAGGLER_WAIT_MS for the others. A lease that is granted to a waiter that has left meanwhile
is released without counting an attempt. It is never kept and never handed to another waiter,
because it names its client. A repeated grant is left alone, because the client may be processing
its first delivery.

A request id that this node has made may have been granted without a receiver: its answer was lost,
and the lease has lapsed. The partition answers a repeat with LEASE_ENDED, and the waiter gets
another id. A partition that has something ready and grants nothing, LEASES_EMPTY_MAX times in a
row, is asked again after OVERLOADED_RETRY_MS. This bounds the rate of a waiter's commands, whatever
the partitions answer.

Partitions take turns: a partition that has been asked moves to the end of the order.

The file is longer than 500 lines, so that every way in which a wait ends is in one place.
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
from querator.service.lease.fair_queue import FairQueue
from querator.service.lease.lost_requests import LostRequests
from querator.service.lease.requests import (
    LeaseRequest,
    SentLease,
    allot,
    granted_by,
    within_a_frame,
)
from querator.service.lease.supply import PartitionSupply
from querator.service.lease.waiter import Grant, Waiter, WaiterState
from querator.service.routing.forwarder import CarriedLease
from querator.service.routing.outcomes import Accepted, defect_error
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

if TYPE_CHECKING:
    from querator.raft.clock import Clock

_TRANSIENT = frozenset({ErrorCode.NOT_LEADER, ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE})
"""The command was certainly not executed, and a waiter may try again."""

_PAUSING = _TRANSIENT | {ErrorCode.STORAGE_FULL}
"""The partition would give the next lease the same answer at once. A lease call fails with
STORAGE_FULL; a stream asks again.
"""


class OtherNodes(Protocol):
    """The other nodes, as seen by the dispatchers of this node."""

    async def look_around(self, queue: Queue) -> None:
        """Asks what other nodes have ready of the queue, for callers that do not wait."""
        ...

    def forget(self, dispatcher: "LeaseDispatcher") -> None:
        """The queue of the dispatcher is gone."""
        ...

    def wanting(self, dispatcher: "LeaseDispatcher") -> None:
        """The dispatcher has shared out all items that it knows of among its waiters."""
        ...

    def on_lease_asked(self, dispatcher: "LeaseDispatcher", supply: PartitionSupply) -> None:
        """Another node is about to be asked for a lease."""
        ...

    def on_lease_answered(
        self,
        dispatcher: "LeaseDispatcher",
        supply: PartitionSupply,
        asked: str,
        outcome: Accepted | QueratorError,
        took_s: float,
    ) -> None:
        """A lease has been answered after `took_s`: the remaining items may go to other nodes.
        `asked`: the node that the lease was first sent to, empty for this node.
        """
        ...


class LeaseDispatcher:
    """The dispatcher of one queue: all its waiters."""

    def __init__(
        self,
        queue_id: QueueId,
        supplies: tuple[PartitionSupply, ...],
        *,
        router: Router,
        clock: "Clock",
        other_nodes: "OtherNodes | None" = None,
    ) -> None:
        """`other_nodes` is None when there are no other nodes."""
        self.queue_id = queue_id
        self.supplies: tuple[PartitionSupply, ...] = ()
        self._other_nodes = other_nodes
        self._router = router
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._members: dict[Waiter, None] = {}
        self._impatient: dict[Waiter, None] = {}
        """The members that are not patient."""
        self._parked = FairQueue()
        self._pinned: dict[PartitionSupply, dict[Waiter, None]] = {}
        self._open: dict[PartitionSupply, None] = {}
        """Partitions that have items ready and are not asked, in the order of their turns."""
        self._busy = 0
        """Number of partitions that are asked, or pause after a failure."""
        self._pauses: dict[PartitionSupply, asyncio.TimerHandle] = {}
        self._empty: dict[PartitionSupply, int] = {}
        """Successive lease commands that granted nothing while the partition had items ready."""
        self._scheduled = False
        self._lost = LostRequests(router)
        self._ended: QueratorError | None = None
        self._stopped = False
        self.follow(supplies)

    def follow(self, supplies: tuple[PartitionSupply, ...]) -> None:
        """Sets the partitions of the queue. Waiters pinned to a removed partition, which was empty,
        are answered with nothing.
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

    # --- the waiters -------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        self._members[waiter] = None
        if self._ended is not None or self._stopped:
            waiter.error = self._ended
            self._finish(waiter)
            return
        if not waiter.patient:
            self._impatient[waiter] = None
        self._park(waiter)
        self._wake()

    def end_wait(self, waiter: Waiter) -> None:
        """Ends the wait: answers with nothing, or once all asked partitions have answered."""
        if waiter.state is WaiterState.CLOSED:
            return
        if waiter.asked:
            waiter.state = WaiterState.ENDING
        else:
            self._finish(waiter)

    def abandon(self, waiter: Waiter) -> None:
        """The waiter's caller is gone: present and later grants are released."""
        if waiter.state is not WaiterState.CLOSED:
            self._close(waiter)
        grants, waiter.grants = waiter.grants, []
        self.release(grants)

    def release(self, grants: list[Grant]) -> None:
        """Releases leases without counting an attempt. A lease whose release fails lapses."""
        by_route: dict[PartitionRoute, list[LeaseItems]] = {}
        for grant in grants:
            if not grant.repeated:
                by_route.setdefault(grant.route, []).append(LeaseItems(grant.lease))
        for route, leases in by_route.items():
            command = Retry(tuple(leases), count_attempt=False)
            self._router.post(route, command, then=_settled, patient=True)

    def ready(self, *, most: int) -> int:
        """Number of ready items of partitions that are not being asked, counted up to `most`."""
        ready = 0
        for supply in self._open:
            ready += supply.ready
            if ready >= most:
                break
        return ready

    @property
    def wanted(self) -> int:
        """Number of items that parked waiters want from any partition."""
        return self._parked.wanted

    def demand(self) -> tuple[int, int]:
        """Number of waiters that are not being asked for, and number of items they want."""
        waiters, items = len(self._parked), self._parked.wanted
        for there in self._pinned.values():
            waiters += len(there)
            items += sum(waiter.items_max for waiter in there)
        return waiters, items

    def served(self) -> tuple[int, int]:
        """As `demand`, for all patient waiters, including those that are being asked for."""
        patient = [waiter for waiter in self._members if waiter.patient]
        return len(patient), sum(waiter.items_max for waiter in patient)

    # --- events of the queue -----------------------------------------------------------------

    def on_supply(self, supply: PartitionSupply) -> None:
        """The partition has reported a change."""
        self._lost.look(supply.route)
        if supply.dispatcher is not self:
            # The partition left the queue while it was asked.
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
        """The queue is gone: ends every wait with `error`."""
        self._ended = error
        self._finish_all()

    def stop(self) -> None:
        """The node stops: ends the wait of every waiter without a grant."""
        self._stopped = True
        self._finish_all()

    def turn_away(self, error: QueratorError) -> None:
        """Nothing can be leased on this node: ends waits with `error`, which sends callers
        elsewhere.
        """
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
        asks: dict[PartitionSupply, list[LeaseRequest]] = {}
        self._unpin()
        for supply, waiters in self._pinned.items():
            if supply.route.is_reachable and not supply.in_flight:
                asking = [
                    LeaseRequest(waiter, waiter.items_max, waiter.bytes_max)
                    for waiter in waiters
                    if supply.ready or waiter.probe
                ]
                if asking:
                    asks[supply] = asking
        if self._parked and self._open:
            allot(self._askable(), self._parked, asks)
        for supply, asking in asks.items():
            self._ask(supply, asking if supply.route.local else within_a_frame(asking))
        if self._impatient:
            self._dismiss()
        if self._other_nodes is not None and self._members:
            self._other_nodes.wanting(self)

    def _askable(self) -> Iterable[PartitionSupply]:
        """Open partitions that do not rest. While a waiter is not patient, all open partitions."""
        return (
            self._open
            if self._impatient
            else (supply for supply in self._open if not supply.is_resting)
        )

    def _unpin(self) -> None:
        """Frees waiters pinned for one large item that is not available any more."""
        for supply in list(self._pinned):
            if supply.in_flight or (supply.ready and supply.route.is_reachable):
                continue
            strays = [waiter for waiter in self._pinned[supply] if waiter.home is None]
            for waiter in reversed(strays):
                self._unpark(waiter)
                waiter.pinned = None
                self._park(waiter, first=True)

    def _ask(self, supply: PartitionSupply, asks: list[LeaseRequest]) -> None:
        supply.in_flight = True
        self._open.pop(supply, None)
        self._busy += 1
        for ask in asks:
            waiter = ask.waiter
            self._unpark(waiter)
            waiter.probe = False
            waiter.asked += 1
            if waiter.state is WaiterState.PARKED:
                waiter.state = WaiterState.ASKING
        asked = "" if supply.route.local else supply.route.leader
        sent = SentLease(supply, asked, asks, self._clock)
        if self._other_nodes is not None and not supply.route.local:
            self._other_nodes.on_lease_asked(self, supply)
        self._router.post(
            supply.route,
            Lease(tuple(ask.caller for ask in asks)),
            then=partial(self._on_lease_answered, sent),
            on_repeat=sent.on_repeat,
        )
        for ask in asks:
            if ask.waiter.on_asked is not None:
                ask.waiter.on_asked()

    def _dismiss(self) -> None:
        """Answers impatient waiters that cannot get anything. A waiter of any partition is answered
        when no partition is busy, a waiter of one partition when that one is not in flight.
        """
        if self._busy:
            idle = [there for supply, there in self._pinned.items() if not supply.in_flight]
            waiters = [waiter for there in idle for waiter in there if not waiter.patient]
        else:
            waiters = list(self._impatient)
        for waiter in waiters:
            if not waiter.asked:
                self._finish(waiter)

    # --- answers -----------------------------------------------------------------------------

    def _on_lease_answered(self, sent: SentLease, outcome: Accepted | QueratorError) -> None:
        supply = sent.supply
        self._busy -= 1
        supply.in_flight = False
        try:
            self._take_in(sent, outcome)
        except Exception as error:  # noqa: BLE001 - every waiter must be answered
            failed = defect_error(error, "accepting a lease")
            for ask in sent.asks:
                ask.waiter.error = failed
        self._settle_all([ask.waiter for ask in sent.asks])
        if not supply.in_flight:
            self.on_supply(supply)
        if self._parked or self._impatient:
            self._wake()

    def _take_in(self, sent: SentLease, outcome: Accepted | QueratorError) -> None:
        supply = sent.supply
        if self._other_nodes is not None:
            if not supply.route.local:
                supply.renew(outcome.ready if isinstance(outcome, CarriedLease) else 0)
            took_s = self._clock.monotonic_s() - sent.asked_s
            self._other_nodes.on_lease_answered(self, supply, sent.asked, outcome, took_s)
        if isinstance(outcome, QueratorError):
            for ask in sent.asks:
                self._failed(ask.waiter, outcome)
            if outcome.code is ErrorCode.OUTCOME_UNKNOWN:
                self._lost.add(supply.route, sent.asks)
            if outcome.code in _PAUSING and supply.route.is_reachable:
                self._pause(supply)
        else:
            assert isinstance(outcome, LeaseResult)
            self._granted(sent, outcome)
            if self._is_stuck(supply, outcome):
                self._pause(supply)

    def _granted(self, sent: SentLease, result: LeaseResult) -> None:
        orphans: list[Grant] = []
        for place, (ask, grant) in enumerate(zip(sent.asks, result.grants, strict=True)):
            ask.waiter.pinned = ask.waiter.home
            if isinstance(grant, Refusal):
                self._refused(sent.supply, ask, grant)
            elif grant.lease:
                granted = granted_by(
                    sent.supply.route,
                    grant,
                    result,
                    named=ask.waiter.named,
                    place=place,
                    sent_s=sent.sent_s,
                )
                closed = ask.waiter.state is WaiterState.CLOSED
                (orphans if closed else ask.waiter.grants).extend(granted)
                items = sum(segment.count for segment in grant.segments)
                self._parked.got(ask.waiter.account, items)
        if orphans:
            self.release(orphans)

    def _is_stuck(self, supply: PartitionSupply, result: LeaseResult) -> bool:
        """Whether the partition has something ready and has repeatedly granted nothing."""
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

    def _refused(self, supply: PartitionSupply, ask: LeaseRequest, refusal: Refusal) -> None:
        """Handles the refusal of one request. An item larger than this partition's share of the
        caller's bytes may fit into all of them: the caller then asks this partition alone.
        """
        waiter = ask.waiter
        if refusal.code is ErrorCode.ITEM_TOO_LARGE and ask.size < waiter.bytes_max:
            waiter.pinned = supply
        elif refusal.code is ErrorCode.LEASE_ENDED and waiter.rename is not None:
            waiter.request_id = waiter.rename()
        else:
            waiter.error = refusal.as_error()

    def _pause(self, supply: PartitionSupply) -> None:
        """Asks nothing of the partition for OVERLOADED_RETRY_MS."""
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
        """Settles waiters after a partition has answered, in the order of the partition: a caller
        with several waiters gets the oldest items first.
        """
        again = []
        for waiter in waiters:
            waiter.asked -= 1
            if not self._settle(waiter):
                again.append(waiter)
        # In reverse order, because each waiter moves to the head of the wait queue.
        for waiter in reversed(again):
            self._park(waiter, first=True)

    def _settle(self, waiter: Waiter) -> bool:
        """Decides on a waiter after a partition has answered; False: it has to wait on."""
        if waiter.state is WaiterState.CLOSED:
            return True
        if waiter.asked:
            if waiter.grants and waiter.straggler is None:
                waiter.straggler = self._loop.call_later(
                    STRAGGLER_WAIT_MS / 1000, self._finish, waiter
                )
            return True
        ending = waiter.state is WaiterState.ENDING or self._stopped
        if waiter.grants or waiter.error is not None or ending:
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
        except Exception as error:  # noqa: BLE001 - the other waiters must be answered as well
            defect_error(error, "answering lease calls that wait for items")

    def _close(self, waiter: Waiter) -> None:
        assert waiter.state is not WaiterState.CLOSED
        waiter.state = WaiterState.CLOSED
        if waiter.straggler is not None:
            waiter.straggler.cancel()
        self._members.pop(waiter, None)
        self._impatient.pop(waiter, None)
        self._unpark(waiter)

    # --- parking -----------------------------------------------------------------------------

    def _park(self, waiter: Waiter, *, first: bool = False) -> None:
        waiter.state = WaiterState.PARKED
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
    """Ignores the outcome: the lease of a failed release lapses."""
