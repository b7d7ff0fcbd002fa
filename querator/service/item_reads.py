"""Items that an operator reads by id, in any state, without leasing them."""

from querator.model.calls import BrowsedItem, FoundItems, GetItemsCall
from querator.model.errors import invalid
from querator.model.ids import PartitionNumber, Seq, format_item_id
from querator.model.limits import REPLY_BYTES_DEFAULT
from querator.partition.queries import ItemPage, reply_bytes
from querator.service.item_changes import ItemChanges
from querator.service.item_ids import by_partition, check_partitions
from querator.service.reading.queries import Queries
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.forwarder import ItemsQuery
from querator.service.routing.router import deadline_after


class ItemReads:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, changes: ItemChanges, directory: QueueDirectory, reads: Queries) -> None:
        self._changes = changes
        self._directory = directory
        self._reads = reads

    async def get(self, call: GetItemsCall) -> FoundItems:
        """Partition by partition, each at a time of its own, until the reply is full."""
        deadline = deadline_after(call.timeout_ms)
        if not call.item_ids:
            raise invalid("item_ids", "must not be empty")
        named = by_partition(call.item_ids)
        queue = await self._changes.queue(
            call.namespace, call.queue, stale=call.stale, deadline=deadline
        )
        queue, known = await self._directory.reaching(queue, max(named), deadline=deadline)
        check_partitions(call.item_ids, queue, known=known)
        items: list[tuple[int, int, BrowsedItem]] = []
        missing: list[str] = []
        unread: list[str] = []
        left_bytes = REPLY_BYTES_DEFAULT
        for partition, seqs in sorted(named.items()):
            ids = {seq: format_item_id(PartitionNumber(partition), Seq(seq)) for seq in seqs}
            if left_bytes <= 0:
                unread += ids.values()
                continue
            group = queue.groups[partition]
            query = ItemsQuery(group, tuple(sorted(seqs)), left_bytes, call.stale)
            page = await self._changes.asked(
                queue, group, ItemPage((), 0), self._reads.page(query, deadline=deadline)
            )
            items += [(group, partition, item) for item in page.items]
            left_bytes -= sum(map(reply_bytes, page.items))
            there = {item.seq for item in page.items}
            for seq, text in ids.items():
                if page.after_seq and seq > page.after_seq:
                    left_bytes = 0
                    unread.append(text)
                elif seq not in there:
                    missing.append(text)
        return FoundItems(tuple(items), tuple(missing), tuple(unread))
