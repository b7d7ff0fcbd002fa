"""Scheduled items: list them by due time, count them, move, run and cancel them.

A scheduled item waits for its `enqueue_at`, or for the time of a retry. The calls that change items
name an instant, never a distance, so that a call may be repeated when its answer was lost.
"""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta

import msgspec

from querator.client.items import duration, id_texts, instant, timestamp
from querator.client.pages import item_pages
from querator.client.transport.nodes import Nodes
from querator.client.typed import typed
from querator.client.values import ItemId, PeekedItem
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb

INTERVAL_DEFAULT = timedelta(milliseconds=limits.SCHEDULE_INTERVAL_MS_DEFAULT)


class ScheduledBucket(msgspec.Struct, frozen=True):
    """Number of items that are due within one interval, which begins at `starts_at`."""

    starts_at: datetime
    items: int


class ScheduleDensity(msgspec.Struct, frozen=True):
    """Scheduled items of a queue by due time. `buckets`: the intervals with items, by time.
    `total`: number of items in the range. `before` and `after`: numbers of items that are due
    before the range and after it.
    """

    interval: timedelta
    buckets: tuple[ScheduledBucket, ...]
    total: int
    before: int
    after: int


class Rescheduled(msgspec.Struct, frozen=True):
    """Result of a change of scheduled items. `changed`: number of items that the call has changed,
    or would change. `not_scheduled`: those of the given ids that name no scheduled item, because it
    is ready, leased or gone.

    If an answer was lost and the client has repeated the call, items that the first attempt changed
    do not count as changed again; of the given ids they are `not_scheduled` if they ran or were
    cancelled.
    """

    changed: int
    not_scheduled: tuple[ItemId, ...] = ()


class ScheduledItems:
    """Calls about the scheduled items of one client's namespace.

    `due_from` (inclusive), `due_until` (exclusive) and `kind` choose items by due time and kind;
    those that are left out choose all. `move`, `run_now` and `cancel` take either these, or
    `item_ids` (1,000 at most), or `all_items=True`, and raise ValueError for none or several of
    them. With `dry_run` they only count what the filter chooses. Instants are aware: a naive one
    raises ValueError. Every method may raise `RequestError`.
    """

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes = nodes
        self._namespace = namespace

    @typed
    def list(
        self,
        queue: str,
        *,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        kind: str = "",
        limit: int | None = None,
        stale: bool = False,
    ) -> AsyncIterator[PeekedItem]:
        """Yields scheduled items, at most `limit`, ordered by due time over all partitions, then by
        partition and sequence. `stale` as in `Client.stats`.

        Each page is read at a moment of its own: an item that is moved meanwhile may come twice, or
        be missing.
        """
        request = pb.ListScheduledItemsRequest(
            namespace=self._namespace, queue=queue, kind=kind, stale=stale
        )
        _set_range(request, due_from, due_until)
        return item_pages(
            self._nodes, lambda node: node.admin.ListScheduledItems, request, limit=limit
        )

    @typed
    async def count(
        self,
        queue: str,
        *,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        kind: str = "",
        interval: timedelta = INTERVAL_DEFAULT,
        stale: bool = False,
    ) -> ScheduleDensity:
        """Counts scheduled items by due time, in intervals of equal length from `due_from` on.

        `interval`: 1 s to 10 years. `due_from` None: the first due time of items of any kind,
        rounded down to a multiple of the interval. `due_until`: at most 1,000 intervals later;
        None: 1,000 intervals later. `stale` as in `Client.stats`.
        """
        request = pb.CountScheduledItemsRequest(
            namespace=self._namespace,
            queue=queue,
            kind=kind,
            interval=duration(interval, "interval"),
            stale=stale,
        )
        _set_range(request, due_from, due_until)
        response = await self._nodes.call(
            lambda node, left: node.admin.CountScheduledItems(request, timeout=left), changes=False
        )
        return ScheduleDensity(
            interval=interval,
            buckets=tuple(
                ScheduledBucket(instant(bucket.starts_at), bucket.items)
                for bucket in response.buckets
            ),
            total=response.total,
            before=response.before,
            after=response.after,
        )

    @typed
    async def move(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str] | None = None,
        *,
        to: datetime | None = None,
        by: timedelta | None = None,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        kind: str = "",
        all_items: bool = False,
        dry_run: bool = False,
    ) -> Rescheduled:
        """Makes scheduled items due at the instant `to`: at most 10 years ahead. If it has passed,
        or is less than 100 ms ahead, they are ready at once. An item's expiry moves with its due
        time.

        `by` instead of `to`: each item is due that much later than it was, or earlier if `by` is
        negative. The call lists the items first, and names an instant for each due time. So a lost
        answer does no harm. But a call that ended with an error may have moved some of the items,
        and to call again moves them once more. Raises ValueError for none or both of `to` and `by`.
        """
        if (to is None) == (by is None):
            raise ValueError("name the new due time by one of: to; by")
        request = self._request(
            queue, item_ids, due_from, due_until, kind, all_items=all_items, dry_run=dry_run
        )
        if by is not None and not dry_run:
            chosen = self.list(queue, due_from=due_from, due_until=due_until, kind=kind)
            return await self._move_by(request, by, chosen)
        if to is None:
            request.run_now = True
        else:
            request.due_at.CopyFrom(timestamp(to, name="to"))
        return await self._reschedule(request)

    async def _move_by(
        self,
        request: pb.RescheduleItemsRequest,
        by: timedelta,
        chosen: AsyncIterator[PeekedItem],
    ) -> Rescheduled:
        """Moves the chosen items, or those of them that the request names. All are listed before
        any is moved, so that no item is moved into the rest of the list.
        """
        named = dict.fromkeys(request.item_ids)
        by_due: dict[datetime, list[str]] = {}
        async for item in chosen:
            if item.due_at is not None and (not named or str(item.id) in named):
                by_due.setdefault(item.due_at, []).append(str(item.id))
        changed = 0
        missing = named.keys() - {item_id for ids in by_due.values() for item_id in ids}
        for due_at, ids in by_due.items():
            for first in range(0, len(ids), limits.REQUEST_ITEMS_MAX):
                part = pb.RescheduleItemsRequest(
                    namespace=request.namespace,
                    queue=request.queue,
                    item_ids=ids[first : first + limits.REQUEST_ITEMS_MAX],
                )
                part.due_at.CopyFrom(timestamp(due_at + by, name="by"))
                done = await self._reschedule(part)
                changed += done.changed
                missing |= named.keys() & {str(one) for one in done.not_scheduled}
        listed = tuple(ItemId.parse(item_id) for item_id in named if item_id in missing)
        return Rescheduled(changed, listed)

    @typed
    async def run_now(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str] | None = None,
        *,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        kind: str = "",
        all_items: bool = False,
        dry_run: bool = False,
    ) -> Rescheduled:
        """Makes scheduled items ready at once."""
        request = self._request(
            queue, item_ids, due_from, due_until, kind, all_items=all_items, dry_run=dry_run
        )
        request.run_now = True
        return await self._reschedule(request)

    @typed
    async def cancel(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str] | None = None,
        *,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        kind: str = "",
        all_items: bool = False,
        dry_run: bool = False,
    ) -> Rescheduled:
        """Drops scheduled items and counts them (`PartitionStats.cancelled`). They are not dead
        letters, and cannot be restored. Once the call has returned, no consumer gets them.
        """
        request = self._request(
            queue, item_ids, due_from, due_until, kind, all_items=all_items, dry_run=dry_run
        )
        request.cancel = True
        return await self._reschedule(request)

    def _request(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str] | None,
        due_from: datetime | None,
        due_until: datetime | None,
        kind: str,
        *,
        all_items: bool,
        dry_run: bool,
    ) -> pb.RescheduleItemsRequest:
        """The request without its action. An empty filter would choose all items, so that a slip
        must not make one: `all_items` says that it is meant.
        """
        filtered = due_from is not None or due_until is not None or kind != ""
        if (item_ids is not None) + filtered + all_items != 1:
            raise ValueError(
                "choose the items by one of: item_ids; due_from, due_until and kind; all_items=True"
            )
        request = pb.RescheduleItemsRequest(namespace=self._namespace, queue=queue, dry_run=dry_run)
        if item_ids is not None:
            request.item_ids.extend(id_texts(item_ids))
            return request
        request.filter.SetInParent()
        request.filter.kind = kind
        _set_range(request.filter, due_from, due_until)
        return request

    async def _reschedule(self, request: pb.RescheduleItemsRequest) -> Rescheduled:
        if not request.item_ids and not request.HasField("filter"):
            return Rescheduled(0)
        response = await self._nodes.call(
            lambda node, left: node.admin.RescheduleItems(request, timeout=left)
        )
        return Rescheduled(
            response.changed, tuple(ItemId.parse(text) for text in response.not_scheduled)
        )


def _set_range(
    message: pb.ListScheduledItemsRequest | pb.CountScheduledItemsRequest | pb.ScheduledFilter,
    due_from: datetime | None,
    due_until: datetime | None,
) -> None:
    if due_from is not None:
        message.due_from.CopyFrom(timestamp(due_from, name="due_from"))
    if due_until is not None:
        message.due_until.CopyFrom(timestamp(due_until, name="due_until"))
