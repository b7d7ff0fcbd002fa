"""The live leases of one stream: delivered leases, without those that are settled on the stream or
known to be lost.

Automatic extension extends leases when a third of their time is over, with one timer and one
command per partition. A lease is not extended again while an answer is outstanding; that may take
long when the partition has no leader. A lease that is settled elsewhere, or not at all, is
forgotten when its time is over.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from querator.model.calls import ExtendReply, SettleReply
from querator.model.commands import Extend, ExtendResult, LeaseItems, Retry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import parse_lease_id
from querator.model.limits import REQUEST_LEASES_MAX, STREAM_LEASES_MAX
from querator.service.lease.waiter import Grant
from querator.service.routing.outcomes import Accepted
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

if TYPE_CHECKING:
    from querator.raft.clock import Clock

EXTEND_SHARE = 3
"""Leases are extended when 1/EXTEND_SHARE of their time is over."""
EXTEND_RETRY_S = 0.1
"""Minimum delay before a failed extension is tried again."""
FULL_RETRY_S = 0.1
"""Minimum interval at which a stream with too many leases searches for ended ones."""


class _Held:
    """A delivered lease. `left`: number of items that are not known to be settled. It is due for
    extension from `extend_s` on, unless an extension is outstanding (`asked`).
    """

    __slots__ = ("asked", "expires_s", "extend_s", "lease", "left", "length_s", "route")

    def __init__(self, grant: Grant) -> None:
        self.route = grant.route
        self.lease = grant.lease
        self.left = sum(segment.count for segment in grant.segments)
        self.asked = False
        self.lasts(grant.expires_s, grant.length_s)

    def lasts(self, expires_s: float, length_s: float) -> None:
        self.expires_s = expires_s
        self.length_s = length_s
        self.extend_s = expires_s - length_s * (EXTEND_SHARE - 1) / EXTEND_SHARE


class HeldLeases:
    """Created on the event loop of the stream; `close` ends it."""

    def __init__(
        self,
        *,
        router: Router,
        clock: "Clock",
        auto_extend: bool,
        lease_timeout_ms: int,
        on_room: Callable[[], None],
    ) -> None:
        """`on_room` is called when a lease has ended, or may have ended."""
        self._router = router
        self._clock = clock
        self._auto_extend = auto_extend
        self._lease_timeout_ms = lease_timeout_ms
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._held: dict[tuple[int, int], _Held] = {}
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._full: asyncio.TimerHandle | None = None
        """Fires when leases of a full stream may have lapsed; None: the stream is not full."""

    def add(self, grant: Grant, *, left_out: int = 0) -> None:
        """`left_out`: number of items of the lease that are not delivered."""
        held = _Held(grant)
        held.left -= left_out
        if held.left <= 0:
            return
        self._held[grant.route.group, grant.lease] = held
        if self._auto_extend:
            self._set_timer(held.extend_s)

    def remaining_s(self, lease_id: str) -> float:
        """Minimum remaining time of the lease. 0 or less: it has ended, or all its items are
        settled.
        """
        group, _, lease = parse_lease_id(lease_id, field="lease_id")
        held = self._held.get((group, lease))
        return 0.0 if held is None else held.expires_s - self._clock.monotonic_s()

    def give_back(self, lease_id: str) -> None:
        """Forgets a lease that is not delivered to its consumer; releases its remaining items."""
        group, _, lease = parse_lease_id(lease_id, field="lease_id")
        held = self._held.pop((group, lease), None)
        if held is not None:
            command = Retry((LeaseItems(lease),), count_attempt=False)
            self._router.post(held.route, command, then=_released, patient=True)

    def has_room(self) -> bool:
        """Whether one more lease fits. If not, `on_room` is called when one may fit again."""
        if len(self._held) < STREAM_LEASES_MAX:
            return True
        if self._full is not None:
            return False
        now_s = self._clock.monotonic_s()
        for key, held in list(self._held.items()):
            if held.expires_s < now_s:
                del self._held[key]
        if len(self._held) < STREAM_LEASES_MAX:
            return True
        next_s = min(held.expires_s for held in self._held.values())
        self._full = self._loop.call_later(max(FULL_RETRY_S, next_s - now_s), self._look_again)
        return False

    def _look_again(self) -> None:
        self._full = None
        self._on_room()

    def settled(self, reply: SettleReply) -> None:
        """Subtracts settled items, and forgets leases without remaining items."""
        for outcome in reply.outcomes:
            group, _, lease = parse_lease_id(outcome.lease_id, field="lease_id")
            held = self._held.get((group, lease))
            if held is None:
                continue
            # Lost items were not held, or their lease has ended and is forgotten in its time.
            held.left -= sum(count for _, count in outcome.done)
            unknown = outcome.error is ErrorCode.LEASE_LOST and not (outcome.done or outcome.lost)
            if held.left <= 0 or unknown:
                del self._held[group, lease]
        self._on_room()

    def extended(self, reply: ExtendReply, asked_s: float) -> None:
        """Applies the outcome of the consumer's own call."""
        for outcome in reply.outcomes:
            group, _, lease = parse_lease_id(outcome.lease_id, field="lease_id")
            length_s = outcome.remaining_ms / 1000 if outcome.deadline_ms else None
            self._record(group, lease, length_s, asked_s)
        self._on_room()

    def _record(self, group: int, lease: int, length_s: float | None, asked_s: float) -> None:
        """Records that a lease lasts `length_s` from `asked_s`; None: it has ended."""
        held = self._held.get((group, lease))
        if held is None:
            return
        if length_s is not None:
            held.lasts(asked_s + length_s, length_s)
        else:
            del self._held[group, lease]

    def close(self, *, release: bool) -> None:
        """Forgets all leases; `release`: releases them without counting an attempt."""
        self._closed = True
        for timer in (self._timer, self._full):
            if timer is not None:
                timer.cancel()
        by_route: dict[PartitionRoute, list[LeaseItems]] = {}
        if release:
            for held in self._held.values():
                by_route.setdefault(held.route, []).append(LeaseItems(held.lease))
        for route, leases in by_route.items():
            for start in range(0, len(leases), REQUEST_LEASES_MAX):
                batch = tuple(leases[start : start + REQUEST_LEASES_MAX])
                command = Retry(batch, count_attempt=False)
                self._router.post(route, command, then=_released, patient=True)
        self._held.clear()

    # --- automatic extension -----------------------------------------------------------------

    def _set_timer(self, due_s: float) -> None:
        """Makes sure that the timer fires at `due_s` at the latest."""
        if self._closed:
            return
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        delay_s = max(0.0, due_s - self._clock.monotonic_s())
        self._timer = self._loop.call_later(delay_s, self._extend_due)

    def _extend_due(self) -> None:
        """Extends leases that are due, and those that are due soon."""
        self._timer = None
        now_s = self._clock.monotonic_s()
        due: dict[PartitionRoute, list[int]] = {}
        for held in self._held.values():
            if not held.asked and held.extend_s <= now_s + held.length_s / (2 * EXTEND_SHARE):
                held.asked = True
                due.setdefault(held.route, []).append(held.lease)
        for route, leases in due.items():
            for start in range(0, len(leases), REQUEST_LEASES_MAX):
                asked = tuple(leases[start : start + REQUEST_LEASES_MAX])
                command = Extend(asked, lease_timeout_ms=self._lease_timeout_ms)
                then = partial(self._on_extended, route, asked, now_s)
                self._router.post(route, command, then=then, patient=True)
        self._wait_for_next()

    def _wait_for_next(self) -> None:
        next_s = min(
            (held.extend_s for held in self._held.values() if not held.asked), default=None
        )
        if next_s is not None:
            self._set_timer(next_s)

    def _on_extended(
        self,
        route: PartitionRoute,
        leases: tuple[int, ...],
        asked_s: float,
        outcome: Accepted | QueratorError,
    ) -> None:
        now_s = self._clock.monotonic_s()
        for lease in leases:
            held = self._held.get((route.group, lease))
            if held is not None:
                held.asked = False
                # If this extension has failed, the next one follows after a third of the remaining
                # time.
                left_s = held.expires_s - now_s
                held.extend_s = now_s + max(EXTEND_RETRY_S, left_s / EXTEND_SHARE)
        try:
            if not isinstance(outcome, QueratorError):
                assert isinstance(outcome, ExtendResult)
                for lease, deadline_ms in outcome.outcomes:
                    length_s = (deadline_ms - outcome.now_ms) / 1000 if deadline_ms else None
                    self._record(route.group, lease, length_s, asked_s)
                self._on_room()
        finally:
            self._wait_for_next()


def _released(_outcome: Accepted | QueratorError) -> None:
    """Ignores the outcome: the leases of a failed release lapse, and the consumer has left."""
