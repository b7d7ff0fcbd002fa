"""Metrics of one node of a cluster about the other nodes."""

import time
from typing import Any, cast

import msgspec

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.raft.clock import SimulatedClock
from querator.raft.group.snapshot_schedule import SnapshotStats
from querator.raft.stats import TurnGatherer, TurnStats
from querator.raft.status import GroupStatus, ReplicaStatus
from querator.raft.turn.liveness import Liveness
from querator.server.admin.admin_view import Observed
from querator.server.admin.health import Health
from querator.server.admin.metrics import Metrics
from querator.server.calls.call_counts import CallCounts
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.server.observed_node import IDENTITY, Exposition

ITSELF = IDENTITY.key
N2, N3 = NodeKey("n2/i2"), NodeKey("n3/i3")


def status(*followers: tuple[NodeKey, int], leader: NodeKey | None = ITSELF) -> GroupStatus:
    """Status of a group whose log ends at 100. Followers have it on disk up to their numbers."""
    return GroupStatus(
        term=3,
        leader=leader,
        leads=leader == ITSELF,
        commit_index=90,
        applied_index=80,
        log_first=1,
        log_last=100,
        log_bytes=5_000,
        now_ms=0,
        due_ms=None,
        quarantined=False,
        replica=1,
        replicas=(),
        replicas_index=0,
        followers=tuple(
            ReplicaStatus(number, node, voter=True, state="replicate", match=match, applied=match)
            for number, (node, match) in enumerate(followers, 2)
        ),
    )


class Host:
    """The part of a host that metrics read."""

    node = ITSELF
    skew_ms = -750
    loop_hangs = 2

    def __init__(self, statuses: dict[int, GroupStatus]) -> None:
        self.liveness = Liveness(SimulatedClock())
        self._statuses = statuses

    def groups(self) -> tuple[GroupId, ...]:
        return tuple(map(GroupId, self._statuses))

    def status(self, group: GroupId) -> GroupStatus | None:
        return self._statuses.get(group)

    def turn_stats(self) -> TurnStats:
        return TurnGatherer().stats()

    def snapshot_stats(self) -> SnapshotStats:
        return SnapshotStats(
            sending=2, sent=7, failed=1, installed=3, bytes_sent=4_000, bytes_received=500
        )


class Placement:
    pending = frozenset[int]()

    def __init__(self, placed: PlacementMap) -> None:
        self.map = placed


class Peers:
    def __init__(self, *connected: NodeKey) -> None:
        self._connected = connected

    def connected(self) -> dict[NodeKey, Any]:
        return dict.fromkeys(self._connected)

    def refused(self) -> dict[str, int]:
        return {"version": 3, "certificate": 1}


def seen(statuses: dict[int, GroupStatus], *, connected: tuple[NodeKey, ...]) -> Observed:
    nodes = [
        PlacedNode(name, "i", peer_address="", client_address="") for name in ("n1", "n2", "n3")
    ]
    parts: Any = Observed()
    parts.identity, parts.environment = IDENTITY, MemoryEnvironment()
    parts.host, parts.peers, parts.calls = Host(statuses), Peers(*connected), CallCounts()
    parts.placement = Placement(PlacementMap(4, nodes=nodes))
    return cast(Observed, parts)


async def scrape(parts: Observed) -> Exposition:
    text, _ = await Metrics(parts, Health(parts)).exposition()
    return Exposition(text.decode())


async def test_the_other_nodes_by_connection() -> None:
    said = await scrape(seen({0: status()}, connected=(N2,)))
    assert said.value("querator_cluster_nodes", state="connected") == 1
    assert said.value("querator_clock_skew_seconds") == -0.75
    assert said.value("querator_event_loop_hangs_total") == 2
    assert said.value("querator_time_ahead_seconds") == 0
    assert said.value("querator_cluster_nodes", state="unreachable") == 1
    said = await scrape(seen({0: status()}, connected=(N2, N3, NodeKey("stranger/i"))))
    assert said.value("querator_cluster_nodes", state="connected") == 2
    assert said.value("querator_cluster_nodes", state="unreachable") == 0


async def test_the_peers_that_were_refused() -> None:
    said = await scrape(seen({0: status()}, connected=()))
    assert said.value("querator_refused_connections_total", code="version") == 3
    assert said.value("querator_refused_connections_total", code="certificate") == 1


async def test_a_follower_lacks_what_it_lacks_in_its_worst_group() -> None:
    groups = {
        0: status((N2, 100), (N3, 99)),
        1: status((N2, 60), (N3, 100)),
        2: status(leader=N2),
    }
    said = await scrape(seen(groups, connected=(N2, N3)))
    assert said.value("querator_raft_follower_lag_entries", follower="n2") == 40
    assert said.value("querator_raft_follower_lag_entries", follower="n3") == 1
    assert said.value("querator_raft_groups", state="leader") == 2
    assert said.value("querator_raft_groups", state="follower") == 1


async def test_snapshots_by_what_became_of_them() -> None:
    said = await scrape(seen({}, connected=()))
    for outcome, count in (("sent", 7), ("failed", 1), ("installed", 3)):
        assert said.value("querator_raft_snapshots_total", outcome=outcome) == count
    assert said.value("querator_raft_sending_snapshots") == 2
    assert said.value("querator_raft_snapshot_bytes_total", direction="sent") == 4_000
    assert said.value("querator_raft_snapshot_bytes_total", direction="received") == 500


async def test_how_far_the_placement_group_is() -> None:
    said = await scrape(seen({PLACEMENT_GROUP: status(leader=None)}, connected=()))
    label = {"namespace": "", "queue": ""}
    assert said.value("querator_raft_uncommitted_entries", **label) == 10
    assert said.value("querator_raft_unapplied_entries", **label) == 10
    assert said.value("querator_raft_terms_total", **label) == 3
    assert said.value("querator_raft_log_bytes", **label) == 5_000
    assert said.value("querator_raft_groups", state="leaderless") == 1
    assert said.value("querator_node_unready_reasons") == 1


async def test_the_partition_whose_time_is_ahead_most() -> None:
    wall_ms = time.time_ns() // 1_000_000
    ahead = [
        msgspec.structs.replace(status(), now_ms=wall_ms + ahead_ms)
        for ahead_ms in (9_000_000, 3_600_000, 60_000)
    ]
    said = await scrape(seen(dict(enumerate(ahead)), connected=()))
    assert 3_500 < said.value("querator_time_ahead_seconds") <= 3_600
