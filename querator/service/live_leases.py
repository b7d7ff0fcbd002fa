"""The live leases of a queue for operators: lists, and leases that are ended by hand.

A list goes partition by partition, in each from the oldest grant on. A release is the command by
which a consumer gives items back: whatever its consumer sends later is refused with LEASE_LOST.
"""

from querator.model.commands import LeaseItems, Retry, SettleResult
from querator.model.errors import invalid, over_limit
from querator.model.ids import (
    GroupId,
    LeaseNumber,
    PartitionNumber,
    format_lease_id,
    parse_lease_id,
)
from querator.model.lease_calls import (
    LeaseListPage,
    ListedLease,
    ListLeasesCall,
    ReleaseLeasesCall,
    ReleaseLeasesReply,
)
from querator.model.limits import REQUEST_LEASES_MAX
from querator.partition.lease_queries import LeaseSummaries
from querator.service.item_changes import ItemChanges
from querator.service.reading import paging
from querator.service.reading.queries import Queries, all_results
from querator.service.routing.forwarder import LeasesQuery
from querator.service.routing.router import Router, deadline_after
from querator.service.validate import page_items


class LiveLeases:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, router: Router, changes: ItemChanges, reads: Queries) -> None:
        self._router = router
        self._changes = changes
        self._reads = reads

    async def list_leases(self, call: ListLeasesCall) -> LeaseListPage:
        """A page of one partition's leases. It may be empty, and not the last one."""
        deadline = deadline_after(call.timeout_ms)
        limit = page_items(call.page_size)
        queue = await self._changes.queue(
            call.namespace, call.queue, stale=call.stale, deadline=deadline
        )
        scope = f"leases/{queue.id}/{call.client_id}"
        partition, after = 0, 0
        if call.page_token:
            partition, after = paging.decode_item(scope, call.page_token)
        if partition >= len(queue.groups):
            return LeaseListPage((), "")
        group = queue.groups[partition]
        query = LeasesQuery(
            group, call.client_id, call.older_than_ms, after, limit, stale=call.stale
        )
        none = LeaseSummaries((), 0)
        page = await self._changes.asked(
            queue, group, none, self._reads.leases(query, deadline=deadline)
        )
        found = tuple(
            ListedLease(
                lease_id=format_lease_id(group, PartitionNumber(partition), LeaseNumber(one.lease)),
                client_id=one.client_id,
                granted_at_ms=one.granted_at_ms,
                extended_at_ms=one.extended_at_ms,
                deadline_ms=one.deadline_ms,
                items=one.items,
            )
            for one in page.leases
        )
        if page.after_lease:
            return LeaseListPage(found, paging.encode_item(scope, partition, page.after_lease))
        if partition + 1 < len(queue.groups):
            return LeaseListPage(found, paging.encode_item(scope, partition + 1, 0))
        return LeaseListPage(found, "")

    async def release(self, call: ReleaseLeasesCall) -> ReleaseLeasesReply:
        """Ends leases. After an error some may have ended; call again."""
        deadline = deadline_after(call.timeout_ms)
        named = _by_group(call.lease_ids)
        queue = await self._changes.whole_queue(call.namespace, call.queue, deadline)
        # A partition that has left the queue had no live leases.
        there = {group: leases for group, leases in named.items() if group in queue.groups}

        async def release(group: GroupId, leases: dict[LeaseNumber, str]) -> SettleResult:
            command = Retry(
                tuple(LeaseItems(lease) for lease in leases), count_attempt=call.count_attempt
            )
            proposed = self._router.call(self._router.route(group), command, deadline=deadline)
            result = await self._changes.asked(queue, group, SettleResult(()), proposed)
            assert isinstance(result, SettleResult)
            return result

        results = await all_results([release(group, leases) for group, leases in there.items()])
        released = 0
        live: set[str] = set()
        for (_, leases), result in zip(there.items(), results, strict=True):
            for outcome in result.outcomes:
                if outcome.done:
                    released += sum(count for _, count in outcome.done)
                    live.add(leases[LeaseNumber(outcome.lease)])
        ended = tuple(one for one in dict.fromkeys(call.lease_ids) if one not in live)
        return ReleaseLeasesReply(released, ended)


def _by_group(lease_ids: tuple[str, ...]) -> dict[GroupId, dict[LeaseNumber, str]]:
    """The ids by group and number. Raises INVALID_ARGUMENT, LIMIT_EXCEEDED."""
    if not lease_ids:
        raise invalid("lease_ids", "must not be empty")
    if len(lease_ids) > REQUEST_LEASES_MAX:
        raise over_limit("lease_ids", value=len(lease_ids), limit=REQUEST_LEASES_MAX, unit="leases")
    found: dict[GroupId, dict[LeaseNumber, str]] = {}
    for position, lease_id in enumerate(dict.fromkeys(lease_ids)):
        group, _, lease = parse_lease_id(lease_id, field=f"lease_ids[{position}]")
        found.setdefault(group, {})[lease] = lease_id
    return found
