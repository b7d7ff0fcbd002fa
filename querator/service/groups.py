"""The groups of a fair queue for operators: their counts over all partitions.

Each partition lists its groups in the order of the hashes of their paths, which is the same in all
of them. A page takes the next ones of each partition and adds up those with the same path. What a
partition has listed reaches up to its last hash, so the page ends at the lowest of the last hashes
of the partitions that have more: beyond it a sum might lack a part. The next page continues there.
So a page may be shorter than was asked for, but is not empty unless it is the last one.
"""

from collections.abc import Mapping, Sequence

import msgspec

from querator.model.calls import FlowCounts
from querator.model.errors import invalid
from querator.model.flow_calls import GroupCounts, GroupPage, ListGroupsCall
from querator.model.ids import GroupId
from querator.model.queues import GroupSettings, Queue, QueueKind, QueueSettings
from querator.partition.flow_queries import FlowPage
from querator.partition.flows import name_hash
from querator.service.item_changes import ItemChanges
from querator.service.reading import paging
from querator.service.reading.queries import Queries, all_results
from querator.service.routing.forwarder import FlowsQuery
from querator.service.routing.router import deadline_after
from querator.service.validate import page_items

ROWS_MIN = 16
"""Groups that a page takes from each partition at least."""


class Groups:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, changes: ItemChanges, reads: Queries) -> None:
        self._changes = changes
        self._reads = reads

    async def list_groups(self, call: ListGroupsCall) -> GroupPage:
        """A page of groups that have items, each partition at a time of its own."""
        deadline = deadline_after(call.timeout_ms)
        limit = page_items(call.page_size)
        queue = await self._changes.queue(
            call.namespace, call.queue, stale=call.stale, deadline=deadline
        )
        if queue.settings.kind is not QueueKind.FAIR:
            kind = queue.settings.kind.name.lower()
            raise invalid("queue", f"is a {kind} queue; fair queues have groups", value=queue.name)
        scope = f"groups/{queue.id}"
        after = paging.decode(scope, call.page_token) if call.page_token else b""
        pages = await flow_pages(
            self._changes, self._reads, queue,
            after=after, limit=limit, stale=call.stale, deadline=deadline,
        )  # fmt: skip
        chosen, last = _merged(pages, limit)
        own = {group.path: group for group in queue.settings.groups}
        return GroupPage(
            tuple(_counts(one, queue.settings, own) for one in chosen),
            paging.encode(scope, last) if last else "",
        )


async def flow_pages(
    changes: ItemChanges,
    reads: Queries,
    queue: Queue,
    *,
    after: bytes,
    limit: int,
    stale: bool,
    deadline: float | None,
) -> list[FlowPage]:
    """The next flows of each partition, for a page of about `limit` of them."""
    rows = min(limit, max(ROWS_MIN, 2 * limit // len(queue.groups)))

    async def ask(group: GroupId) -> FlowPage:
        query = FlowsQuery(group, after, rows, stale)
        none = FlowPage((), b"")
        return await changes.asked(queue, group, none, reads.flows(query, deadline=deadline))

    return await all_results([ask(group) for group in queue.groups])


def _merged(pages: Sequence[FlowPage], limit: int) -> tuple[list[FlowCounts], bytes]:
    """The sums of the next groups, about `limit`, and the hash of the last one (empty: no group is
    left).
    """
    until = min((page.after for page in pages if page.after), default=b"")
    sums: dict[tuple[bytes, bytes], FlowCounts] = {}
    for page in pages:
        for flow in page.flows:
            place = name_hash(flow.name), flow.name
            if not until or place[0] <= until:
                there = sums.get(place)
                sums[place] = flow if there is None else _sum(there, flow)
    places = sorted(sums)
    if len(places) > limit:
        until = places[limit - 1][0]
    # Groups of one hash are on one page.
    chosen = [sums[place] for place in places if not until or place[0] <= until]
    return chosen, until


def _sum(one: FlowCounts, other: FlowCounts) -> FlowCounts:
    """The counts of a group in two partitions."""
    oldest = one.oldest_ready_at_ms, other.oldest_ready_at_ms
    coming = one.next_ms, other.next_ms
    return msgspec.structs.replace(
        one,
        items=one.items + other.items,
        ready=one.ready + other.ready,
        leased=one.leased + other.leased,
        oldest_ready_at_ms=min(oldest) or max(oldest),
        next_ms=min(coming) or max(coming),
    )


def _counts(
    flow: FlowCounts, settings: QueueSettings, groups: Mapping[str, GroupSettings]
) -> GroupCounts:
    path = flow.name.decode()
    own = groups.get(path, GroupSettings(path))
    return GroupCounts(
        path=path,
        weight=own.weight,
        # A partition has a part of the limit. All items together have none.
        leased_max=(own.leased_max or settings.group_leased_max) if path else 0,
        items=flow.items,
        ready=flow.ready,
        leased=flow.leased,
        oldest_ready_at_ms=flow.oldest_ready_at_ms,
        paused=own.paused,
        next_ms=flow.next_ms,
    )
