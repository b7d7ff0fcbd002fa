"""Leases that have ended, on real nodes."""

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from querator import Client
from querator.client.errors import LeaseLost
from tests.integration.members import members

pytestmark = pytest.mark.timeout(180)


async def test_what_was_only_released_is_neither_rejected_nor_completed(tmp_path: Path):
    async with members(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q")
        async with Client(cluster["b"].address) as client:
            later = partial(client.retry, delay=timedelta(hours=1))
            for settle in (partial(client.retry, dead=True), later, client.complete):
                await client.produce("q", b"x")
                items = await client.lease("q", wait=timedelta(seconds=10))
                await client.retry("q", *items, count_attempt=False)
                with pytest.raises(LeaseLost):
                    await settle("q", *items)
            total = (await client.stats("q")).total
            assert (total.ready, total.dead, total.scheduled, total.completed) == (3, 0, 0, 0)
