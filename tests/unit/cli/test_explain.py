"""`querator queue explain` names each reason for which consumers get no items, and the remedy."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.cli import querator
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import cluster_service_pb2, items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster


def at(instant: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(instant)
    return stamp


DUE = at(datetime(2030, 1, 31, 12, tzinfo=UTC))
FULL = "The storage of node a is full. It refuses every change."


class Cluster:
    """One node with the queue `mail`, whose counts and settings a test gives."""

    def __init__(self, scripted: ScriptedCluster) -> None:
        self._scripted = scripted
        self.status = cluster_service_pb2.GetClusterStatusResponse(
            cluster_id="c",
            node="a",
            nodes=[cluster_service_pb2.ClusterNode(name="a", state="active")],
            groups=[group(0, leads=True), group(1, leads=True)],
        )
        scripted.answers = {"GetClusterStatus": lambda _: self.status}
        self.has()

    def has(self, settings: pb.QueueSettings | None = None, **counts: Any) -> None:
        total = pb.PartitionStats(**counts)
        queue = pb.Queue(
            namespace="default", name="mail", settings=settings or pb.QueueSettings(partitions=2)
        )
        self._scripted.answers["GetQueueStats"] = pb.GetQueueStatsResponse(
            queue=queue, total=total, partitions=[total]
        )

    def answers(self, method: str, message: Any) -> None:
        self._scripted.answers[method] = message

    def explained(self) -> tuple[int, dict[str, str]]:
        """The number of leasable items, and the text of each reason by its kind."""
        run = CliRunner().invoke(querator, [*self.command, "--output", "json"])
        assert run.exit_code == 0, run.output
        view = msgspec.json.decode(run.output)
        return view["leasable"], {one["kind"]: one["text"] for one in view["reasons"]}

    @property
    def command(self) -> list[str]:
        return ["queue", "explain", "mail", "--address", self._scripted.address]


def group(partition: int, *, leads: bool) -> cluster_service_pb2.ClusterGroup:
    return cluster_service_pb2.ClusterGroup(
        group=partition + 1,
        namespace="default",
        queue="mail",
        partition=partition,
        leads=leads,
        leader="a" if leads else "",
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with scripted_cluster() as scripted:
        yield Cluster(scripted)


def test_ready_items_without_a_consumer(cluster: Cluster) -> None:
    cluster.has(ready=12, oldest_ready_at=at(datetime.now(UTC) - timedelta(minutes=5, seconds=15)))
    leasable, reasons = cluster.explained()
    assert leasable == 12
    assert list(reasons) == ["ready"]
    assert reasons["ready"].startswith("Ready: 12 items, the oldest for 5m1")
    assert (
        "no consumer runs, or consumers use another address or namespace than default"
        in (reasons["ready"])
    )


def test_the_table_is_a_list_of_sentences(cluster: Cluster) -> None:
    cluster.has(pb.QueueSettings(partitions=2, lease_paused=True, produce_paused=True), ready=1)
    run = CliRunner().invoke(querator, cluster.command)
    assert (run.exit_code, run.output.splitlines()) == (
        0,
        [
            "Queue mail: consumers get no items at present.",
            "  - Leases are paused. Continue with: querator queue resume mail",
            "  - Producers are paused. Continue with: querator queue resume mail --producers",
        ],
    )


def test_leased_items_have_owners(cluster: Cluster) -> None:
    leases = [
        pb.LeaseInfo(lease_id=f"1-0-{number}", client_id=owner, items=items)
        for number, (owner, items) in enumerate(
            (("vm-7", 200), ("vm-7", 1_000), ("\x1b[2J", 3), ("c", 2), ("d", 1))
        )
    ]
    cluster.has(
        leased=1_206, oldest_lease_at=at(datetime.now(UTC) - timedelta(hours=3, seconds=15))
    )
    cluster.answers("ListLeases", pb.ListLeasesResponse(leases=leases))
    leasable, reasons = cluster.explained()
    assert leasable == 0
    text = reasons["leased"]
    assert text.startswith("Leased: 1,206 items by vm-7: 1,200, \\x1b[2J: 3, c: 2 and 1 more")
    assert "the oldest for 3h" in text
    assert "querator leases list mail" in text


def test_scheduled_items_have_a_due_time(cluster: Cluster) -> None:
    due = pb.PeekedItem(partition=0, seq=1, state=items_pb2.ITEM_STATE_SCHEDULED, due_at=DUE)
    cluster.has(scheduled=20)
    cluster.answers("ListScheduledItems", pb.ListScheduledItemsResponse(items=[due]))
    assert cluster.explained() == (
        0,
        {
            "scheduled": "Scheduled: 20 items, the first one due at 2030-01-31T12:00:00Z. See: "
            "querator schedule list mail"
        },
    )


def test_groups_at_their_limit_and_paused_groups(cluster: Cluster) -> None:
    cluster.has(pb.QueueSettings(kind=pb.QUEUE_KIND_FAIR), ready=40)
    cluster.answers(
        "ListGroups",
        pb.ListGroupsResponse(
            groups=[
                pb.GroupStats(group="", ready=40, leased=9, items=49, weight=1),
                pb.GroupStats(group="eu", ready=18, leased=2, leased_max=2, weight=1),
                pb.GroupStats(group="eu.de", ready=10, leased=2, leased_max=2, weight=1),
                pb.GroupStats(group="us", ready=15, leased=1, leased_max=9, weight=1),
                pb.GroupStats(group="zoo", ready=7, paused=True, weight=1),
            ]
        ),
    )
    leasable, reasons = cluster.explained()
    assert leasable == 15
    assert (
        "7 ready items (zoo). Continue with: querator group resume mail"
        in (reasons["group_paused"])
    )
    assert "18 ready items (eu: 2 of 2 leased)" in reasons["group_limit"]


def test_keys_with_a_leased_or_a_retried_item(cluster: Cluster) -> None:
    cluster.has(pb.QueueSettings(kind=pb.QUEUE_KIND_KEYED), ready=22)
    cluster.answers(
        "ListKeys",
        pb.ListKeysResponse(
            keys=[
                pb.KeyStats(key="ann", waiting=19, leased=1, head_item_id="0-2"),
                pb.KeyStats(key="ben", waiting=2, head_item_id="0-7", blocked_until=DUE),
                pb.KeyStats(key="cem", waiting=1, head_item_id="0-9", oldest_ready_at=DUE),
            ]
        ),
    )
    leasable, reasons = cluster.explained()
    assert leasable == 1
    assert "19 items (ann)" in reasons["key_leased"]
    assert "2 items (ben). See: querator key list mail --blocked" in reasons["key_blocked"]
    assert "ready" in reasons


def test_partitions_without_a_leader(cluster: Cluster) -> None:
    del cluster.status.groups[:]
    cluster.status.groups.extend([group(0, leads=True), group(1, leads=False)])
    cluster.has(ready=3)
    leasable, reasons = cluster.explained()
    assert (leasable, list(reasons)) == (3, ["no_leader", "ready"])
    assert "mail/1. The counts may be old. See: querator cluster status" in reasons["no_leader"]


def test_an_open_breaker_keeps_the_items_of_its_partition_back(cluster: Cluster) -> None:
    cluster.has(ready=3, breaker=pb.BreakerStats(state=pb.BREAKER_STATE_OPEN, since=DUE, until=DUE))
    leasable, reasons = cluster.explained()
    assert (leasable, list(reasons)) == (0, ["breaker"])
    assert reasons["breaker"] == (
        "The breaker is open in 1 of 1 partition, the first until 2030-01-31T12:00:00Z. Close it "
        "with querator queue breaker close mail."
    )


def test_limits_keep_items_back(cluster: Cluster) -> None:
    rate = pb.RateLimit(items=10, interval=Duration(seconds=1))
    settings = pb.QueueSettings(rate_limit=rate, lease_limit=4)
    waits = pb.LimitStats(burst=2, lease_limit=2, next_at=DUE)
    full = pb.LimitStats(tokens=2, burst=2, lease_limit=2)
    free = pb.LimitStats(tokens=1, burst=2, lease_limit=2)
    answer = pb.GetQueueStatsResponse(
        queue=pb.Queue(namespace="default", name="mail", settings=settings),
        total=pb.PartitionStats(ready=30),
        partitions=[
            pb.PartitionStats(partition=0, ready=10, limits=waits),
            pb.PartitionStats(partition=1, ready=10, leased=2, limits=full),
            pb.PartitionStats(partition=2, ready=10, leased=1, limits=free),
        ],
    )
    cluster.answers("GetQueueStats", answer)
    leasable, reasons = cluster.explained()
    assert leasable == 1
    assert reasons["rate_limit"].startswith(
        "Behind the rate limit of 10/s in 1 of 3 partitions: 10 ready items, the next ones from "
    )
    assert reasons["lease_limit"].startswith(
        "Behind the limit of 4 leased items in 1 of 3 partitions: 10 ready items. They wait until"
    )


def test_groups_and_keys_wait_for_their_rates(cluster: Cluster) -> None:
    cluster.has(pb.QueueSettings(kind=pb.QUEUE_KIND_FAIR), ready=9)
    groups = [pb.GroupStats(ready=9), pb.GroupStats(group="a", ready=7, next_at=DUE),
              pb.GroupStats(group="b", ready=2)]  # fmt: skip
    cluster.answers("ListGroups", pb.ListGroupsResponse(groups=groups))
    leasable, reasons = cluster.explained()
    assert leasable == 2
    assert reasons["group_rate"].startswith("In groups that wait for their rate: 7 ready items (a)")
    cluster.has(pb.QueueSettings(kind=pb.QUEUE_KIND_KEYED), ready=3)
    keys = [pb.KeyStats(key="a", waiting=2, next_at=DUE, oldest_ready_at=DUE),
            pb.KeyStats(key="b", waiting=1, oldest_ready_at=DUE)]  # fmt: skip
    cluster.answers("ListKeys", pb.ListKeysResponse(keys=keys))
    leasable, reasons = cluster.explained()
    assert leasable == 1
    assert reasons["key_rate"].startswith("Behind the rate of their keys: 2 items (a).")


def test_full_storage_keeps_leases_back(cluster: Cluster) -> None:
    cluster.status.conditions.add(kind="storage_full", about="a", sentence=FULL)
    cluster.has(ready=3)
    assert cluster.explained() == (0, {"storage_full": FULL})


def test_other_states(cluster: Cluster) -> None:
    cluster.has(
        pb.QueueSettings(dead_queue="lost"),
        reserved=1,
        moving=2,
        held=3,
        waits_for=[0, 4],
        staged=4,
        ready=5,
        damaged=5,
    )
    leasable, reasons = cluster.explained()
    assert (leasable, list(reasons)) == (0, ["reserved", "moving", "held", "staged", "damaged"])
    assert reasons["moving"].startswith("Moving: 2 items, to queue lost.")
    assert "behind earlier items of their keys in mail/0, mail/4" in reasons["held"]


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, "The queue is empty, and nothing has come into it: producers use another queue or"),
        (
            {"produced": 9, "completed": 6, "dead": 3},
            "The queue is empty. Since it was created, 9 items came: 6 completed, 3 dead.",
        ),
    ],
)
def test_an_empty_queue(cluster: Cluster, counts: dict[str, Any], text: str) -> None:
    cluster.has(**counts)
    leasable, reasons = cluster.explained()
    assert leasable == 0
    assert reasons["empty"].startswith(text)
