"""`querator stats` shows rates and the time to drain, where they are known."""

from datetime import timedelta

import msgspec
from click.testing import CliRunner
from google.protobuf.duration_pb2 import Duration

from querator.cli import querator
from querator.client import Client, Rates
from querator.v1 import admin_service_pb2 as pb
from tests.unit.cli.scripted_cluster import scripted_cluster

QUEUE = pb.Queue(namespace="default", name="mail", settings=pb.QueueSettings(partitions=1))
BUSY = pb.PartitionStats(
    ready=900,
    rates_1m=pb.Rates(came=0.25, completed=1_234.4, left=1_300),
    rates_5m=pb.Rates(came=2.5, completed=12, left=12),
    rates_15m=pb.Rates(came=3, completed=4, left=4),
    drain_time=Duration(seconds=94, nanos=600_000_000),
)


def shown(total: pb.PartitionStats, *options: str) -> str:
    with scripted_cluster() as cluster:
        cluster.answers["GetQueueStats"] = pb.GetQueueStatsResponse(
            queue=QUEUE, total=total, partitions=[total], durable=True
        )
        command = ["stats", "mail", *options, "--address", cluster.address]
        run = CliRunner().invoke(querator, command)
    assert run.exit_code == 0, run.output
    return run.output


def test_rates_are_a_table() -> None:
    lines = shown(BUSY).splitlines()
    [head] = [number for number, line in enumerate(lines) if line.startswith("per second")]
    assert lines[head + 2].split() == [
        "mail", "0.2", "2.5", "3.0", "1,234", "12", "4.0", "1m35s",
    ]  # fmt: skip


def test_without_rates_there_is_no_table() -> None:
    assert "per second" not in shown(pb.PartitionStats(ready=900))


def test_json_has_the_rates() -> None:
    total = msgspec.json.decode(shown(BUSY, "--output", "json"))["total"]
    assert total["rates_1m"] == {"came": 0.25, "completed": 1234.4, "left": 1300.0}
    assert total["drain_time"] == "PT94.6S"


async def test_the_client_has_them_as_values() -> None:
    with scripted_cluster() as cluster:
        cluster.answers["GetQueueStats"] = pb.GetQueueStatsResponse(queue=QUEUE, total=BUSY)
        async with Client(cluster.address) as client:
            total = (await client.stats("mail")).total
    assert total.rates_5m == Rates(2.5, 12, 12)
    assert total.drain_time == timedelta(seconds=94.6)
