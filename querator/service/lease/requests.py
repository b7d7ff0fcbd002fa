"""Lease requests to partitions on behalf of waiters, and the grants in their answers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from querator.model.commands import LeaseCaller, LeaseGrant, LeaseResult
from querator.model.limits import FORWARD_BYTES_MAX
from querator.service.lease.allocation import allocate
from querator.service.lease.fair_queue import FairQueue
from querator.service.lease.supply import PartitionSupply
from querator.service.lease.waiter import Grant, Waiter
from querator.service.routing.forwarder import CarriedLease
from querator.service.routing.route import PartitionRoute

if TYPE_CHECKING:
    from querator.raft.clock import Clock


class LeaseRequest(msgspec.Struct, frozen=True, gc=False):
    """The request to one partition for one waiter: items, and bytes of them."""

    waiter: Waiter
    items: int
    size: int

    @property
    def caller(self) -> LeaseCaller:
        waiter = self.waiter
        return LeaseCaller(
            waiter.client_id, waiter.request_id, self.items, self.size, waiter.lease_timeout_ms
        )


class SentLease:
    """A lease command that has been sent to a partition, by instants of the monotonic clock."""

    __slots__ = ("_clock", "asked", "asked_s", "asks", "sent_s", "supply")

    def __init__(
        self, supply: PartitionSupply, asked: str, asks: list[LeaseRequest], clock: "Clock"
    ) -> None:
        """`asked`: the node that the command is first sent to, empty for this node."""
        self.supply = supply
        self.asked = asked
        self.asks = asks
        self._clock = clock
        self.asked_s = self.sent_s = clock.monotonic_s()
        """`asked_s` is that of the first attempt, `sent_s` that of the last: the remaining time of
        a lease counts from the attempt that was answered.
        """

    def on_repeat(self) -> None:
        self.sent_s = self._clock.monotonic_s()


def allot(
    ready: Iterable[PartitionSupply],
    line: FairQueue,
    asks: dict[PartitionSupply, list[LeaseRequest]],
) -> None:
    """Allots the ready items of these partitions to the waiters in the wait queue, as far as either
    suffices, and adds the requests of each partition to `asks`.
    """
    supplies: list[PartitionSupply] = []
    available = 0
    for supply in ready:
        supplies.append(supply)
        available += supply.ready
        if available >= line.wanted:
            break
    waiters = line.next(available)
    draws = allocate(
        [supply.ready for supply in supplies], [waiter.items_max for waiter in waiters]
    )
    pieces = [0] * len(waiters)
    given = [0] * len(waiters)
    for draw in draws:
        for caller, items in draw:
            pieces[caller] += 1
            given[caller] += items
    for supply, draw in zip(supplies, draws, strict=True):
        for caller, items in draw:
            waiter = waiters[caller]
            if pieces[caller] == 1 and not supply.reserved:
                # The partition may have more items by the time it answers, and it shares by the
                # same rule.
                ask = LeaseRequest(waiter, waiter.items_max, waiter.bytes_max)
            else:
                size = max(1, waiter.bytes_max * items // given[caller])
                ask = LeaseRequest(waiter, items, size)
            asks.setdefault(supply, []).append(ask)


def within_a_frame(asks: list[LeaseRequest]) -> list[LeaseRequest]:
    """Requests that another node can answer in one frame; the others wait for the next turn."""
    size = 0
    for number, ask in enumerate(asks):
        size += ask.size
        if size > FORWARD_BYTES_MAX and number:
            return asks[:number]
    return asks


def granted_by(
    route: PartitionRoute,
    grant: LeaseGrant,
    result: LeaseResult,
    *,
    named: bool,
    place: int,
    sent_s: float,
) -> list[Grant]:
    """Grants of the partition for one caller, one per lease. `named`: the request id is the
    client's. `place` is the caller's position in the request, which was sent at `sent_s` by the
    monotonic clock.
    """
    # When the request id is this node's own, no client is processing a first delivery.
    repeated = grant.repeated and named
    loaded = result.loaded[place] if isinstance(result, CarriedLease) else None
    if not grant.segments[0].lease:
        length_s = (grant.deadline_ms - result.now_ms) / 1000
        expires_s = sent_s + length_s
        return [
            Grant(
                route=route,
                lease=grant.lease,
                deadline_ms=grant.deadline_ms,
                expires_s=expires_s,
                length_s=length_s,
                segments=grant.segments,
                repeated=repeated,
                loaded=loaded,
            )
        ]
    by_lease: dict[int, list[int]] = {}
    for number, segment in enumerate(grant.segments):
        by_lease.setdefault(segment.lease, []).append(number)
    found: list[Grant] = []
    for lease, places in sorted(by_lease.items()):
        segments = tuple(grant.segments[number] for number in places)
        deadline_ms = segments[0].deadline_ms
        length_s = (deadline_ms - result.now_ms) / 1000
        its_items = None if loaded is None else tuple(loaded[number] for number in places)
        found.append(
            Grant(
                route=route,
                lease=lease,
                deadline_ms=deadline_ms,
                expires_s=sent_s + length_s,
                length_s=length_s,
                segments=segments,
                repeated=repeated,
                loaded=its_items,
                first=grant.lease,
                places=tuple(places),
            )
        )
    return found
