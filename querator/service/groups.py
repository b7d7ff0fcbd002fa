"""The groups of a fair queue for operators: their counts over all partitions.

Each partition lists its groups in the order of the hashes of their paths, which is the same in all
of them. A page takes the next ones of each partition and adds up those with the same path. What a
partition has listed reaches up to its last hash, so the page ends at the lowest of the last hashes
of the partitions that have more: beyond it a sum might lack a part. The next page continues there.
A page may therefore be shorter than was asked for, but not empty unless it is the last one.
"""

from collections.abc import Mapping, Sequence

from querator.model.errors import invalid
from querator.model.flow_calls import GroupCounts, GroupPage, ListGroupsCall
from querator.model.ids import GroupId
from querator.model.queues import GroupSettings, QueueKind, QueueSettings
from querator.partition.flow_queries import FlowCounts, FlowPage
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
        rows = min(limit, max(ROWS_MIN, 2 * limit // len(queue.groups)))

        async def ask(group: GroupId) -> FlowPage:
            query = FlowsQuery(group, after, rows, call.stale)
            none = FlowPage((), 0, more=False)
            return await self._changes.asked(
                queue, group, none, self._reads.flows(query, deadline=deadline)
            )

        pages = await all_results([ask(group) for group in queue.groups])
        chosen, last = _merged(pages, limit)
        leased = sum(page.leased for page in pages)
        own = {group.path: group for group in queue.settings.groups}
        return GroupPage(
            tuple(_counts(one, queue.settings, own, leased) for one in chosen),
            paging.encode(scope, last) if last else "",
        )


def _merged(pages: Sequence[FlowPage], limit: int) -> tuple[list[FlowCounts], bytes]:
    """The sums of the next groups, at most `limit`, and the hash of the last one (empty: no group
    is left).
    """
    until = min((page.flows[-1].hashed for page in pages if page.more), default=None)
    sums: dict[bytes, FlowCounts] = {}
    for page in pages:
        for flow in page.flows:
            if until is None or flow.hashed <= until:
                there = sums.get(flow.name)
                sums[flow.name] = flow if there is None else there.plus(flow)
    ordered = sorted(sums.values(), key=lambda flow: (flow.hashed, flow.name))
    chosen = ordered[:limit]
    if len(chosen) < len(ordered) or until is not None:
        return chosen, chosen[-1].hashed
    return chosen, b""


def _counts(
    flow: FlowCounts, settings: QueueSettings, groups: Mapping[str, GroupSettings], leased: int
) -> GroupCounts:
    path = flow.name.decode()
    own = groups.get(path, GroupSettings(path))
    # Items without a group have no limit.
    limit = (own.leased_max or settings.group_leased_max) if path else 0
    return GroupCounts(
        path=path,
        weight=own.weight,
        leased_max=limit,
        items=flow.items,
        ready=flow.ready,
        leased=flow.leased,
        oldest_ready_at_ms=flow.oldest_ready_at_ms,
        leased_share=flow.leased / leased if leased else 0.0,
    )
