"""Code is deployed back and forth under load; `make deployments` does it with 1,000 executions."""

from datetime import timedelta
from pathlib import Path

from querator import Client
from querator.durable import Executions
from scripts.bench.deployments import rolling
from tests.integration.processes import server

COUNT = 24
LEASE = timedelta(seconds=3)


async def test_nothing_is_lost_doubled_or_failed_by_deployments(tmp_path: Path):
    async with (
        server(tmp_path / "data") as node,
        Client(node.address, request_timeout=timedelta(seconds=20)) as client,
    ):
        await client.create_queue("shop", kind="executions", partitions=2, lease_timeout=LEASE)
        summary = await rolling(client, Executions(client, "shop"), COUNT)
    assert (summary.executions, summary.pinned) == (COUNT, COUNT // 2)
    # Three or four effects of each, and one of each of the others.
    assert summary.effects >= 2 * COUNT + summary.beside
    assert summary.beside > 0
