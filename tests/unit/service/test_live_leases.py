"""The live leases of a queue for operators: lists, and leases that are ended by hand."""

from typing import Any

from querator.model.errors import ErrorCode
from querator.model.lease_calls import ListedLease, ListLeasesCall, ReleaseLeasesCall
from tests.unit.service.service_node import ServiceNode, code, refusal, service_node, whole


async def listed(node: ServiceNode, **options: Any) -> list[ListedLease]:
    found: list[ListedLease] = []
    token = ""
    while True:
        page = await node.admin.live_leases.list_leases(
            ListLeasesCall("default", "q", page_token=token, **options)
        )
        found += page.leases
        token = page.next_page_token
        if not token:
            return found


async def release(
    node: ServiceNode, *lease_ids: str, **options: Any
) -> tuple[int, tuple[str, ...]]:
    reply = await node.admin.live_leases.release(
        ReleaseLeasesCall("default", "q", lease_ids, **options)
    )
    return reply.released, reply.ended


async def with_leases(node: ServiceNode, partitions: int = 1) -> None:
    """Ann and ben have a lease of two items of each partition."""
    await node.create(partitions=partitions)
    keys = [b"key %d" % number for number in range(30 * partitions)]
    await node.produce(*[b"x"] * len(keys), keyed=keys)
    for partition in range(partitions):
        for client in ("ann", "ben"):
            await node.lease(2, client_id=client, partition=partition)


async def test_leases_of_all_partitions_are_listed_in_pages():
    async with service_node() as node:
        await with_leases(node, partitions=3)
        found = await listed(node)
        assert [(one.client_id, one.items) for one in found] == [("ann", 2), ("ben", 2)] * 3
        assert [one.lease_id.split(".")[1] for one in found] == ["0", "0", "1", "1", "2", "2"]
        assert await listed(node, page_size=1) == found
        of_ben = await listed(node, client_id="ben", stale=True)
        assert of_ben == [one for one in found if one.client_id == "ben"]
        assert await listed(node, older_than_ms=3_600_000) == []


async def test_a_released_lease_is_lost_and_its_items_are_ready():
    async with service_node() as node:
        await with_leases(node, partitions=2)
        first, other, *_ = await listed(node)
        assert await release(node, first.lease_id) == (2, ())
        assert other in await listed(node)
        total = await node.total()
        assert (total.ready, total.leased, total.released, total.retried) == (54, 6, 2, 0)
        batches = (await node.lease(2, partition=0)).batches
        assert {batch.attempt for batch in batches} == {1}
        assert await release(node, first.lease_id) == (0, (first.lease_id,))


async def test_the_attempts_of_released_leases_may_count():
    async with service_node() as node:
        await with_leases(node)
        found = await listed(node)
        ids = [one.lease_id for one in found]
        assert await release(node, *ids, *ids, count_attempt=True) == (4, ())
        total = await node.total()
        assert (total.ready, total.released, total.retried) == (30, 0, 4)
        batches = (await node.lease(30)).batches
        assert sum(batch.loaded.count for batch in batches if batch.attempt == 2) == 4


async def test_a_consumer_whose_lease_was_ended_completes_nothing():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a")
        [batch] = (await node.lease(1)).batches
        assert await release(node, batch.lease_id) == (1, ())
        [outcome] = (await node.complete(whole(batch))).outcomes
        assert (outcome.done, bool(outcome.lost)) == ((), True)


async def test_bad_calls_are_refused():
    async with service_node() as node:
        await with_leases(node)
        call = ListLeasesCall("default", "q", page_token="x")
        assert await code(node.admin.live_leases.list_leases(call)) is ErrorCode.INVALID_ARGUMENT
        error = await refusal(release(node))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "lease_ids")
        error = await refusal(release(node, *["1.0.2"] * 1_001))
        assert (error.code, error.field, error.limit) == (
            ErrorCode.LIMIT_EXCEEDED, "lease_ids", "1000 leases",
        )  # fmt: skip
        # A lease of another queue, or of a partition that is gone, has ended.
        assert await release(node, "ffff.0.1") == (0, ("ffff.0.1",))
        assert len(await listed(node)) == 2
