"""The keys of a keyed queue for operators: their counts, and the item that keeps a key back.

Pages are those of groups (`service.groups`): by the hashes of keys. A key may have items in two
partitions while the number of partitions changes. Those in its next partition are held, and have no
head. So one partition has the head of a key.
"""

from collections.abc import Sequence

from querator.model.commands import Cancel
from querator.model.errors import invalid
from querator.model.flow_calls import KeyCounts, KeyPage, ListKeysCall, SkipKeyCall
from querator.model.ids import PartitionNumber, Seq, format_item_id
from querator.model.queues import Queue, QueueKind
from querator.partition.flow_queries import FlowPage
from querator.partition.flows import name_hash
from querator.service.groups import flow_pages
from querator.service.item_changes import ItemChanges
from querator.service.item_ids import by_partition
from querator.service.reading import paging
from querator.service.reading.queries import Queries
from querator.service.routing.router import deadline_after
from querator.service.validate import page_items


class Keys:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, changes: ItemChanges, reads: Queries) -> None:
        self._changes = changes
        self._reads = reads

    async def list_keys(self, call: ListKeysCall) -> KeyPage:
        """A page of keys that have items, each partition at a time of its own."""
        deadline = deadline_after(call.timeout_ms)
        limit = page_items(call.page_size)
        queue = await self._queue(call.namespace, call.queue, stale=call.stale, deadline=deadline)
        if call.key:
            found = await self._one(queue, call.key, stale=call.stale, deadline=deadline)
            return KeyPage(tuple(one for one in found if _is_wanted(one, call)), "")
        scope = f"keys/{queue.id}"
        after = paging.decode(scope, call.page_token) if call.page_token else b""
        pages = await flow_pages(
            self._changes, self._reads, queue,
            after=after, limit=limit, stale=call.stale, deadline=deadline,
        )  # fmt: skip
        keys, last = _merged(pages, limit)
        token = paging.encode(scope, last) if last else ""
        return KeyPage(tuple(one for one in keys if _is_wanted(one, call)), token)

    async def skip(self, call: SkipKeyCall) -> bool:
        """Whether this call has taken the item out of the queue."""
        deadline = deadline_after(call.timeout_ms)
        named = by_partition((call.item_id,))
        queue = await self._queue(call.namespace, call.queue, stale=False, deadline=deadline)
        if call.dead and not queue.settings.dead_queue:
            raise invalid("dead", f"queue {queue.name} has no dead queue", value="true")
        found = await self._one(queue, call.key, stale=False, deadline=deadline)
        if not found or found[0].head_item_id != call.item_id:
            return False
        changed, _ = await self._changes.change_named(
            queue, (call.item_id,), named, lambda ranges: Cancel(ranges, call.dead), deadline
        )
        return changed > 0

    async def _queue(
        self, namespace: str, name: str, *, stale: bool, deadline: float | None
    ) -> Queue:
        queue = await self._changes.queue(namespace, name, stale=stale, deadline=deadline)
        if queue.settings.kind is not QueueKind.KEYED:
            kind = queue.settings.kind.name.lower()
            raise invalid("queue", f"is a {kind} queue; keyed queues have keys", value=queue.name)
        return queue

    async def _one(
        self, queue: Queue, key: str, *, stale: bool, deadline: float | None
    ) -> list[KeyCounts]:
        """The counts of a key; empty: it has no items."""
        before = int.from_bytes(name_hash(key.encode()), "big") - 1
        pages = await flow_pages(
            self._changes, self._reads, queue,
            after=before.to_bytes(16, "big") if before >= 0 else b"",
            limit=1, stale=stale, deadline=deadline,
        )  # fmt: skip
        return [one for one in _merged(pages, 1)[0] if one.key == key]


def _is_wanted(key: KeyCounts, call: ListKeysCall) -> bool:
    if call.blocked and not key.blocked_until_ms:
        return False
    return key.head_attempts >= call.head_attempts_min


def _merged(pages: Sequence[FlowPage], limit: int) -> tuple[list[KeyCounts], bytes]:
    """The sums of the next keys, about `limit`, and the hash of the last one (empty: no key is
    left).
    """
    until = min((page.after for page in pages if page.after), default=b"")
    sums: dict[tuple[bytes, bytes], KeyCounts] = {}
    for partition, page in enumerate(pages):
        for flow in page.flows:
            place = name_hash(flow.name), flow.name
            if not flow.name or (until and place[0] > until):
                continue
            head = ""
            if flow.head_seq:
                head = format_item_id(PartitionNumber(partition), Seq(flow.head_seq))
            there = sums.get(place)
            more = there is not None and not head
            sums[place] = KeyCounts(
                key=flow.name.decode(),
                waiting=flow.items - flow.leased + (there.waiting if there else 0),
                leased=flow.leased + (there.leased if there else 0),
                head_item_id=there.head_item_id if there and more else head,
                head_attempts=there.head_attempts if there and more else flow.head_attempt,
                oldest_ready_at_ms=(
                    there.oldest_ready_at_ms if there and more else flow.oldest_ready_at_ms
                ),
                blocked_until_ms=(
                    there.blocked_until_ms if there and more else flow.blocked_until_ms
                ),
                next_ms=flow.next_ms or (there.next_ms if there else 0),
            )
    places = sorted(sums)
    if len(places) > limit:
        until = places[limit - 1][0]
    return [sums[place] for place in places if not until or place[0] <= until], until
