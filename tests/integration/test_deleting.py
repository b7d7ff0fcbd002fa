"""A queue is deleted through one node while others accept items for it: real processes."""

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client
from querator.client.errors import OutcomeUnknown, QueratorError, QueueDeleting, QueueNotFound
from tests.integration.process_cluster import process_cluster

pytestmark = pytest.mark.timeout(180)

ROUNDS = 15
NOT_ACKNOWLEDGED = (QueueDeleting, QueueNotFound, OutcomeUnknown)
"""`OutcomeUnknown`: a leader that had not closed its replica yet took the item, and could not
commit it, because a majority had.
"""


async def produced(client: Client, queue: str) -> BaseException | None:
    """The error of an item that was not acknowledged; None: it was."""
    try:
        await client.produce(queue, b"late")
    except QueratorError as error:
        return error
    return None


async def test_no_node_acknowledges_an_item_after_a_deletion_was_answered(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Client(cluster[name].address)) for name in "abc"
            ]
            for number in range(ROUNDS):
                queue = f"q{number}"
                await clients[0].create_queue(queue, partitions=3, max_attempts=0, dead_queue="")
                await asyncio.gather(*(client.produce(queue, b"x") for client in clients))
                await clients[number % 3].delete_queue(queue)
                late = await asyncio.gather(*(produced(client, queue) for client in clients))
                assert all(isinstance(one, NOT_ACKNOWLEDGED) for one in late), (
                    f"round {number}: {late}"
                )
            # Without one node, the others are still a majority.
            await clients[0].create_queue(
                "two-of-three", partitions=3, max_attempts=0, dead_queue=""
            )
            await cluster["c"].kill()
            await clients[0].delete_queue("two-of-three")
            late = await asyncio.gather(*(produced(one, "two-of-three") for one in clients[:2]))
            assert all(isinstance(one, NOT_ACKNOWLEDGED) for one in late), late


async def test_a_deletion_says_that_the_only_copy_is_away_and_ends_when_it_is_back(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address, request_timeout=timedelta(seconds=7)) as client:
            await client.create_queue("q", partitions=3, replicas=1, max_attempts=0, dead_queue="")
            await cluster["c"].kill()
            with pytest.raises(OutcomeUnknown) as caught:
                await client.delete_queue("q")
            assert "1 of its 3 partitions" in str(caught.value)
            assert "has not answered: c" in str(caught.value)
            said, _ = await cluster.querator("cluster", "status", code=1)
            assert "Queue q is being deleted; waiting for c." in said
            await cluster["c"].start()
            with contextlib.suppress(QueueNotFound):
                await client.delete_queue("q")
            await cluster.until_well()
