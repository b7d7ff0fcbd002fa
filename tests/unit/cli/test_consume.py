"""`querator consume` says why ready items do not come."""

import os
import signal
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from querator.cli import consume, querator
from querator.model.cluster import LEASES_CONTINUE
from querator.v1 import admin_service_pb2, cluster_service_pb2, queue_service_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

BIG = admin_service_pb2.Queue(
    name="big",
    state=admin_service_pb2.QUEUE_STATE_ACTIVE,
    settings=admin_service_pb2.QueueSettings(partitions=1),
)
FULL = "The storage of node a is full: 0.0 MiB on its disk are free."


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """A queue with ready items on a node with full storage: its lease streams deliver nothing."""
    with scripted_cluster() as cluster:
        cluster.streams = {
            "LeaseStream": [
                queue_service_pb2.LeaseStreamResponse(subscribed=queue_service_pb2.Subscribed())
            ]
        }
        cluster.answers = {
            "GetQueue": admin_service_pb2.GetQueueResponse(queue=BIG),
            "GetQueueStats": counted(24_691),
            "GetClusterStatus": cluster_service_pb2.GetClusterStatusResponse(
                cluster_id="c",
                node="a",
                nodes=[cluster_service_pb2.ClusterNode(name="a", state="active")],
                conditions=[
                    cluster_service_pb2.ClusterCondition(
                        kind="storage_full", about="a", sentence=FULL
                    )
                ],
            ),
        }
        yield cluster


def counted(ready: int) -> admin_service_pb2.GetQueueStatsResponse:
    total = admin_service_pb2.PartitionStats(ready=ready)
    return admin_service_pb2.GetQueueStatsResponse(queue=BIG, total=total, partitions=[total])


@pytest.mark.parametrize("how", [("--complete",), ("--exec", "cat")], ids=["print", "exec"])
def test_ready_items_that_full_storage_keeps_back_are_no_empty_queue(
    cluster: ScriptedCluster, how: tuple[str, ...]
) -> None:
    outcome = CliRunner().invoke(
        querator, ["consume", "big", *how, "--idle-exit", "10ms", "--address", cluster.address]
    )
    assert outcome.exit_code == 4
    assert f"Error: 24,691 items of big are ready. {FULL}" in outcome.stderr


def test_it_says_why_it_waits(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        if text.startswith("Waiting"):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(consume, "WAIT_CHECK_S", 0.0)
    monkeypatch.setattr(consume, "note", note)
    outcome = CliRunner().invoke(
        querator, ["consume", "big", "--complete", "--address", cluster.address]
    )
    assert outcome.exit_code == 0
    assert said == [
        f"Waiting: 24,691 items of big are ready. {FULL}",
        "0 items printed, 0 completed.",
    ]


def test_an_empty_queue_ends_well_on_full_storage(cluster: ScriptedCluster) -> None:
    cluster.answers["GetQueueStats"] = counted(0)
    outcome = CliRunner().invoke(
        querator,
        ["consume", "big", "--complete", "--idle-exit", "10ms", "--address", cluster.address],
    )
    assert (outcome.exit_code, outcome.stderr) == (0, "0 items printed, 0 completed.\n")


def test_storage_that_keeps_no_lease_back_does_not_count(cluster: ScriptedCluster) -> None:
    status = cluster.answers["GetClusterStatus"]
    assert isinstance(status, cluster_service_pb2.GetClusterStatusResponse)
    sentence = f"It refuses new items with STORAGE_FULL; {LEASES_CONTINUE}."
    status.conditions[0].sentence = sentence
    outcome = CliRunner().invoke(
        querator,
        ["consume", "big", "--complete", "--idle-exit", "10ms", "--address", cluster.address],
    )
    assert outcome.exit_code == 0
    assert FULL not in outcome.stderr
    assert (
        "No item came: Ready: 24,691 items. No item is leased: no consumer runs" in outcome.stderr
    )


def test_it_says_what_an_idle_queue_has(cluster: ScriptedCluster) -> None:
    status = cluster.answers["GetClusterStatus"]
    assert isinstance(status, cluster_service_pb2.GetClusterStatusResponse)
    del status.conditions[:]
    paused = admin_service_pb2.Queue(
        name="big", settings=admin_service_pb2.QueueSettings(partitions=1, lease_paused=True)
    )
    total = admin_service_pb2.PartitionStats(ready=5, staged=2)
    cluster.answers["GetQueueStats"] = admin_service_pb2.GetQueueStatsResponse(
        queue=paused, total=total, partitions=[total]
    )
    outcome = CliRunner().invoke(
        querator,
        ["consume", "big", "--complete", "--idle-exit", "10ms", "--address", cluster.address],
    )
    assert (outcome.exit_code, outcome.stderr.splitlines()) == (
        0,
        [
            "No item came: Leases are paused. Continue with: querator queue resume big",
            "No item came: Staged: 2 items, for transactions that are not committed. See: querator "
            "txn list big",
            "0 items printed, 0 completed.",
        ],
    )
