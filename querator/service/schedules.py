"""Scheduled items for operators: listed and counted by due time, moved, run and cancelled.

The order of a list is (due time, partition, sequence) over all partitions. A page is made in two
steps. First each partition is asked for keys of its next items, with their sizes, and the keys are
merged. Then the partitions are asked for the chosen items alone. So the memory of a page does not
grow with the number of partitions, and the sizes bound it before any payload moves.

A partition that has found nothing yet has still checked everything up to some place. A key is
certain to be the next one when all other partitions have checked as far. After ROUNDS_MAX rounds a
page ends, and the next one continues from the last place that is certain.

A change by a filter asks a partition for keys, and then proposes one command that names them, with
the span of the filter: an item that has left the span meanwhile is not changed. The position in the
order only grows, so that an item is changed again only when others have scheduled it once more.
"""

import asyncio
import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from querator.model import limits
from querator.model.calls import BrowsedItem, PeekedPage
from querator.model.commands import ItemsChanged, Reschedule
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.ids import GroupId
from querator.model.queues import Queue
from querator.model.schedule_calls import (
    CountScheduledCall,
    DueFilter,
    ListScheduledCall,
    RescheduleCall,
    RescheduleReply,
    ScheduledCounts,
)
from querator.partition import masks
from querator.partition.schedule_queries import DueKey, DuePage, DuePlace, DueSpan
from querator.service.item_changes import ItemChanges
from querator.service.item_ids import by_partition
from querator.service.reading import paging
from querator.service.reading.queries import Queries, all_results
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.forwarder import DueCountsQuery, DueItemsQuery, DueKeysQuery
from querator.service.routing.router import deadline_after
from querator.service.validate import check_between, page_items

if TYPE_CHECKING:
    from querator.raft.clock import Clock

ROUNDS_MAX = 16
"""Rounds of questions for one page: many items may be of other kinds."""
KEYS_MIN = 16
"""Keys that a partition is asked for at first; doubled each time that it is asked again."""
CHANGES_MAX = 16
"""Partitions that one call changes at a time: each has a page of keys in memory."""
_SEQ_MAX = (1 << 64) - 1
_INSTANT_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last instant of a timestamp."""

T = TypeVar("T")
_Place = tuple[int, int, int]
"""(due time, partition, sequence)."""


class _Stream:
    """The next keys of a partition in order. `after` is how far they have been found; None: all
    have been.
    """

    def __init__(self, partition: int, group: GroupId, after: DuePlace, limit: int) -> None:
        self.partition = partition
        self.group = group
        self.after: DuePlace | None = after
        self.limit = limit
        self._keys: list[DueKey] = []

    def add(self, page: DuePage) -> None:
        self._keys = list(reversed(page.keys))
        self.after = page.after
        self.limit = min(2 * self.limit, limits.PAGE_ITEMS_MAX)

    @property
    def next(self) -> _Place | None:
        if not self._keys:
            return None
        return self._keys[-1].due_ms, self.partition, self._keys[-1].seq

    @property
    def is_unknown(self) -> bool:
        """Whether there may be further keys, and the next one is not known."""
        return not self._keys and self.after is not None

    @property
    def checked(self) -> _Place:
        """The place up to which an unknown stream has no further keys."""
        assert self.after is not None
        return self.after.due_ms, self.partition, self.after.seq

    def take(self) -> DueKey:
        return self._keys.pop()


class Schedules:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(
        self, *, changes: ItemChanges, directory: QueueDirectory, reads: Queries, clock: "Clock"
    ) -> None:
        self._changes = changes
        self._directory = directory
        self._reads = reads
        self._clock = clock

    # --- list ------------------------------------------------------------------------------

    async def list_items(self, call: ListScheduledCall) -> PeekedPage:
        """A page of at most `page_size` items, and about REPLY_BYTES_DEFAULT bytes. It may be
        empty, and still have a token.
        """
        deadline = deadline_after(call.timeout_ms)
        limit = page_items(call.page_size)
        span = _span(call.due)
        queue = await self._changes.queue(
            call.namespace, call.queue, stale=call.stale, deadline=deadline
        )
        scope = f"scheduled/{queue.id}/{span.from_ms}/{span.until_ms}/{span.kind}"
        after = paging.decode_due(scope, call.page_token) if call.page_token else (0, 0, 0)
        chosen, place = await self._merged(
            queue, span, after, limit, stale=call.stale, deadline=deadline
        )
        items = await self._items(queue, chosen, stale=call.stale, deadline=deadline)
        if place is None and len(items) < len(chosen):
            # What has left its place may have a later one.
            place = chosen[-1]
        return PeekedPage(items, "" if place is None else paging.encode_due(scope, *place))

    async def _merged(
        self,
        queue: Queue,
        span: DueSpan,
        after: _Place,
        limit: int,
        *,
        stale: bool,
        deadline: float | None,
    ) -> tuple[list[_Place], _Place | None]:
        """The places of the next items, and where to continue (None: there are no more)."""
        most = min(limit, max(KEYS_MIN, 2 * limit // len(queue.groups)))
        streams = [
            _Stream(partition, group, _after(after, partition), most)
            for partition, group in enumerate(queue.groups)
        ]
        # A heap of the next places of streams that know theirs.
        ahead: list[tuple[_Place, _Stream]] = []
        unknown = streams
        chosen: list[_Place] = []
        left_bytes = limits.REPLY_BYTES_DEFAULT
        rounds = 0
        while len(chosen) < limit:
            behind = [one for one in unknown if not ahead or one.checked < ahead[0][0]]
            if behind:
                if rounds == ROUNDS_MAX:
                    return chosen, min(one.checked for one in behind)
                rounds += 1
                await self._refill(queue, behind, span, stale=stale, deadline=deadline)
                for one in behind:
                    if one.next is not None:
                        heapq.heappush(ahead, (one.next, one))
                unknown = [one for one in unknown if one.is_unknown]
                continue
            if not ahead:
                return chosen, None
            place, stream = heapq.heappop(ahead)
            key = stream.take()
            if chosen and key.bytes > left_bytes:
                return chosen, chosen[-1]
            left_bytes -= key.bytes
            chosen.append(place)
            if stream.next is not None:
                heapq.heappush(ahead, (stream.next, stream))
            elif stream.is_unknown:
                unknown.append(stream)
        return chosen, chosen[-1] if ahead or unknown else None

    async def _refill(
        self,
        queue: Queue,
        streams: Sequence[_Stream],
        span: DueSpan,
        *,
        stale: bool,
        deadline: float | None,
    ) -> None:
        async def fill(stream: _Stream) -> None:
            assert stream.after is not None
            query = DueKeysQuery(stream.group, span, stream.after, stream.limit, stale)
            none = DuePage((), None)
            stream.add(
                await self._changes.asked(queue, stream.group, none, self._keys(query, deadline))
            )

        await all_results([fill(stream) for stream in streams])

    async def _keys(self, query: DueKeysQuery, deadline: float | None) -> DuePage:
        page: DuePage = await self._reads.due(query, deadline=deadline)
        return page

    async def _items(
        self, queue: Queue, chosen: Sequence[_Place], *, stale: bool, deadline: float | None
    ) -> tuple[tuple[int, int, BrowsedItem], ...]:
        """The items at these places, without those that have left theirs."""
        places: dict[int, list[DuePlace]] = {}
        for due_ms, partition, seq in chosen:
            places.setdefault(partition, []).append(DuePlace(due_ms, seq))
        found: dict[tuple[int, int], BrowsedItem] = {}

        async def load(partition: int, those: list[DuePlace]) -> None:
            group = queue.groups[partition]
            query = DueItemsQuery(group, tuple(those), stale)
            none: tuple[BrowsedItem, ...] = ()
            asked = self._reads.due(query, deadline=deadline)
            for item in await self._changes.asked(queue, group, none, asked):
                found[partition, item.seq] = item

        await all_results([load(partition, those) for partition, those in places.items()])
        return tuple(
            (queue.groups[partition], partition, found[partition, seq])
            for _, partition, seq in chosen
            if (partition, seq) in found
        )

    # --- count -----------------------------------------------------------------------------

    async def count_items(self, call: CountScheduledCall) -> ScheduledCounts:
        """Counts by interval. Each partition is counted at a time of its own, and in pieces if it
        has many: an item that is moved meanwhile may count twice, or not at all.
        """
        deadline = deadline_after(call.timeout_ms)
        interval_ms = call.interval_ms or limits.SCHEDULE_INTERVAL_MS_DEFAULT
        check_between(
            interval_ms,
            limits.SCHEDULE_INTERVAL_MS_MIN,
            limits.SCHEDULE_INTERVAL_MS_MAX,
            field="interval",
            unit="ms",
        )
        _span(DueFilter(call.from_ms or 0, call.until_ms, call.kind))
        if call.from_ms is not None:
            _check_buckets(call.from_ms, call.until_ms, interval_ms)
        queue = await self._changes.queue(
            call.namespace, call.queue, stale=call.stale, deadline=deadline
        )
        from_ms = call.from_ms
        if from_ms is None:
            first_ms = await self._first_due(queue, stale=call.stale, deadline=deadline)
            if first_ms is None:
                return ScheduledCounts((), 0, 0, 0)
            from_ms = first_ms // interval_ms * interval_ms
            if 0 < call.until_ms <= from_ms:
                # Everything is due after the range, which has no bucket.
                from_ms = call.until_ms - 1
            _check_buckets(from_ms, call.until_ms, interval_ms)
        until_ms = call.until_ms or from_ms + limits.SCHEDULE_BUCKETS_MAX * interval_ms
        span = DueSpan(from_ms, until_ms, call.kind)
        buckets, before, after = await self._counted(
            queue, span, interval_ms, stale=call.stale, deadline=deadline
        )
        return ScheduledCounts(
            tuple((from_ms + number * interval_ms, buckets[number]) for number in sorted(buckets)),
            sum(buckets.values()),
            before,
            after,
        )

    async def _first_due(self, queue: Queue, *, stale: bool, deadline: float | None) -> int | None:
        """The first due time of any item; None: nothing is scheduled."""
        found: list[int] = []

        async def ask(group: GroupId) -> None:
            query = DueKeysQuery(group, DueSpan(), DuePlace(0, 0), 1, stale)
            none = DuePage((), None)
            page = await self._changes.asked(queue, group, none, self._keys(query, deadline))
            found.extend(key.due_ms for key in page.keys)

        await all_results([ask(group) for group in queue.groups])
        return min(found, default=None)

    async def _counted(
        self,
        queue: Queue,
        span: DueSpan,
        interval_ms: int,
        *,
        stale: bool,
        deadline: float | None,
    ) -> tuple[dict[int, int], int, int]:
        """Items by the number of their interval, before the span, and after it."""
        buckets: dict[int, int] = {}
        outside = [0, 0]

        async def count(group: GroupId) -> None:
            place: DuePlace | None = DuePlace(0, 0)
            while place is not None:
                query = DueCountsQuery(group, span, interval_ms, place, stale)
                counts = await self._changes.asked(
                    queue, group, None, self._reads.due(query, deadline=deadline)
                )
                if counts is None:
                    return
                for number, items in counts.buckets:
                    buckets[number] = buckets.get(number, 0) + items
                outside[0] += counts.before
                outside[1] += counts.later
                place = counts.next

        await all_results([count(group) for group in queue.groups])
        return buckets, outside[0], outside[1]

    # --- change ----------------------------------------------------------------------------

    async def reschedule(self, call: RescheduleCall) -> RescheduleReply:
        """Changes the items, each at most once. After an error some may be changed; call again."""
        deadline = deadline_after(call.timeout_ms)
        if (call.due is None) != bool(call.item_ids):
            raise invalid("item_ids", "or filter is required, and not both")
        if call.dry_run and call.due is None:
            raise invalid("dry_run", "needs a filter", value="true")
        span = _span(call.due or DueFilter(), path="filter.")
        check_between(call.due_at_ms, 0, _INSTANT_MS_MAX, field="due_at", unit="ms")
        ahead_ms = call.due_at_ms - self._clock.wall_ms()
        most = limits.SCHEDULE_AHEAD_MS_MAX
        if ahead_ms > most:
            raise over_limit("due_at", value=ahead_ms, limit=most, unit="ms ahead")
        named = by_partition(call.item_ids)
        queue = await self._changes.queue(
            call.namespace, call.queue, stale=False, deadline=deadline
        )
        if call.due is None:
            return RescheduleReply(
                *await self._changes.change_named(
                    queue, call.item_ids, named,
                    lambda ranges: Reschedule(ranges, call.due_at_ms, call.cancel), deadline,
                )
            )  # fmt: skip
        if call.dry_run:
            buckets, _, _ = await self._counted(queue, span, 0, stale=False, deadline=deadline)
            return RescheduleReply(sum(buckets.values()))
        slots = asyncio.Semaphore(CHANGES_MAX)

        async def change(group: GroupId) -> int:
            async with slots:
                return await self._change_chosen(queue, group, call, span, deadline)

        return RescheduleReply(sum(await all_results([change(group) for group in queue.groups])))

    async def _change_chosen(
        self,
        queue: Queue,
        group: GroupId,
        call: RescheduleCall,
        span: DueSpan,
        deadline: float | None,
    ) -> int:
        changed = 0
        place: DuePlace | None = DuePlace(0, 0)
        while place is not None:
            query = DueKeysQuery(group, span, place, limits.RESCHEDULE_ITEMS_MAX, False)
            none = DuePage((), None)
            page = await self._changes.asked(queue, group, none, self._keys(query, deadline))
            place = page.after
            seqs = [key.seq for key in page.keys if call.cancel or key.due_ms != call.due_at_ms]
            if not seqs:
                continue
            command = Reschedule(
                masks.merge_ranges((seq, 1) for seq in seqs),
                call.due_at_ms,
                call.cancel,
                span.from_ms,
                span.until_ms,
            )
            gone = ItemsChanged(0)
            result = await self._changes.asked(
                queue, group, gone, self._changes.propose(group, command, deadline)
            )
            changed += result.changed
        return changed

    # --- the queue -------------------------------------------------------------------------


def _after(place: _Place, partition: int) -> DuePlace:
    """Where a partition continues after a place in the order of all partitions."""
    due_ms, at, seq = place
    if partition == at:
        return DuePlace(due_ms, seq)
    return DuePlace(due_ms, _SEQ_MAX if partition < at else 0)


def _span(due: DueFilter, path: str = "") -> DueSpan:
    """Raises QueratorError for what is no span."""
    check_between(due.from_ms, 0, _INSTANT_MS_MAX, field=f"{path}due_from", unit="ms")
    check_between(due.until_ms, 0, _INSTANT_MS_MAX, field=f"{path}due_until", unit="ms")
    if 0 < due.until_ms <= due.from_ms:
        raise invalid(f"{path}due_until", f"must be after {path}due_from", value=due.until_ms)
    if len(due.kind) > limits.KIND_CHARS_MAX:
        raise over_limit(
            f"{path}kind", value=len(due.kind), limit=limits.KIND_CHARS_MAX, unit="characters"
        )
    return DueSpan(due.from_ms, due.until_ms, due.kind)


def _check_buckets(from_ms: int, until_ms: int, interval_ms: int) -> None:
    """Raises LIMIT_EXCEEDED when a range has too many intervals."""
    count = -(-(until_ms - from_ms) // interval_ms)
    most = limits.SCHEDULE_BUCKETS_MAX
    if until_ms and count > most:
        raise QueratorError(
            ErrorCode.LIMIT_EXCEEDED,
            f"interval is {interval_ms} ms: the range has {count} intervals of this length; the "
            f"limit is {most} intervals",
            field="interval",
            limit=f"{most} intervals",
            value=f"{count} intervals",
        )
