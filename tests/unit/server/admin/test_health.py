"""Liveness and readiness are separate, and a negative answer has its reasons."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import Queue, QueueSettings, QueueState
from querator.raft.clock import SimulatedClock
from querator.raft.turn.liveness import STALLED_S_MAX, Liveness
from querator.server.admin.admin_view import Observed
from querator.server.admin.health import Health
from querator.storage.identity import DirectoryRefused
from tests.unit.server.observed_node import observed
from tests.unit.service.service_node import service_node


async def test_a_node_that_serves_is_alive_and_ready() -> None:
    async with service_node() as node:
        await node.create("q", partitions=3)
        health = Health(observed(node))
        assert health.dead() == []
        assert health.missing() == []


async def test_what_is_missing_while_a_node_starts() -> None:
    async with service_node() as node:
        there, seen = observed(node), Observed()
        health = Health(seen)
        assert health.missing() == ["the storage is not open"]
        seen.environment = there.environment
        assert health.missing() == ["the placement map is not known"]
        seen.host, seen.placement = there.host, there.placement
        seen.waits_for = "n2, n3"
        assert health.missing() == ["the start waits for n2, n3", "clients are not served yet"]
        seen.waits_for, seen.calls = "", there.calls
        assert health.missing() == []
        assert health.dead() == []


async def test_a_node_that_stops_is_alive_and_not_ready() -> None:
    async with service_node() as node:
        seen = observed(node)
        seen.stopping = True
        assert Health(seen).missing() == ["the node is stopping"]
        assert Health(seen).dead() == []


async def test_a_node_that_has_handed_off_is_not_ready_and_does_not_stop() -> None:
    async with service_node() as node:
        seen = observed(node)
        seen.handed_off = True
        reason = "the node has handed off: it leads nothing until it starts again"
        assert Health(seen).missing() == [reason]
        assert Health(seen).dead() == []
        seen.stopping = True
        assert Health(seen).missing() == ["the node is stopping"]


async def test_a_node_that_has_failed_is_neither() -> None:
    async with service_node() as node:
        seen = observed(node)
        seen.failure = OSError("the disk is gone")
        reason = "the node has failed: OSError('the disk is gone')"
        assert Health(seen).dead() == [reason]
        assert Health(seen).missing() == [reason]


async def test_a_node_whose_data_is_refused_says_why() -> None:
    async with service_node() as node:
        seen = observed(node)
        seen.failure = DirectoryRefused("Node n2 was removed from the cluster and ends.")
        assert Health(seen).dead() == ["Node n2 was removed from the cluster and ends."]


class Host:
    """The part of a host that health reads."""

    node = NodeKey("n1/i1")

    def __init__(self, clock: SimulatedClock, leaders: Mapping[int, NodeKey | None]) -> None:
        self.liveness = Liveness(clock)
        self.building: set[int] = set()
        """Groups in which the replica of this node does not vote yet."""
        self._leaders = leaders

    def groups(self) -> tuple[GroupId, ...]:
        return tuple(map(GroupId, self._leaders))

    def status(self, group: GroupId) -> "Status | None":
        if group not in self._leaders:
            return None
        return Status(self._leaders[group], Replica(1, self.node, group not in self.building))


class Status:
    def __init__(self, leader: NodeKey | None, own: Replica) -> None:
        self.leader = leader
        self.replica = own.id
        self.replicas = (own, Replica(2, NodeKey("n2/i2")))


def alone(host: Host) -> Observed:
    seen = Observed()
    parts = cast(Any, seen)
    parts.environment = parts.placement = parts.calls = cast(Any, Placement(PlacementMap()))
    parts.host = host
    return seen


class Placement:
    def __init__(self, placed: PlacementMap) -> None:
        self.map = placed


def test_a_turn_that_does_not_end_is_death() -> None:
    clock = SimulatedClock()
    host = Host(clock, {PLACEMENT_GROUP: NodeKey("n1/i1")})
    health = Health(alone(host))
    host.liveness.begin_turn()
    clock.advance(int(STALLED_S_MAX * 1000))
    assert health.dead() == []
    clock.advance(1_000)
    assert health.dead() == [
        "the raft thread has not ended its turn or wait for 31 s; the limit is 30 s"
    ]
    assert health.missing() == health.dead()
    host.liveness.begin_wait(None)
    assert health.dead() == health.missing() == []


@pytest.mark.parametrize(
    ("leaders", "missing"),
    [
        ({0: None, 1: None}, ["no group of this node knows a leader"]),
        ({0: None, 1: NodeKey("n2/i2")}, []),
    ],
)
def test_a_node_that_is_cut_off_is_alive_and_not_ready(
    leaders: Mapping[int, NodeKey | None], missing: list[str]
) -> None:
    health = Health(alone(Host(SimulatedClock(), leaders)))
    assert health.missing() == missing
    assert health.dead() == []


def queue(number: int, *groups: int, state: QueueState = QueueState.ACTIVE) -> Queue:
    ids = tuple(map(GroupId, groups))
    return Queue(
        namespace="default",
        name=f"q{number}",
        id=QueueId(number),
        state=state,
        settings=QueueSettings(),
        settings_version=1,
        created_at_ms=0,
        groups=ids,
    )


def placed(*queues: Queue, node: str) -> PlacementMap:
    replicas = (Replica(1, NodeKey(node)),)
    where = PlacedGroup(replicas, replicas, next_replica=2, preferred=1)
    groups = {group: where for each in queues for group in each.groups}
    return PlacementMap(1, ["default"], queues, groups=groups)


def test_partitions_of_this_node_open_before_it_is_ready() -> None:
    leader = NodeKey("n1/i1")
    leaders = {0: leader, 1: leader}
    seen = alone(Host(SimulatedClock(), leaders))
    health = Health(seen)
    being_made = queue(2, 100, state=QueueState.CREATING)
    placement = cast(Any, Placement(placed(queue(1, *range(1, 9)), being_made, node="n1/i1")))
    seen.placement = placement
    assert health.missing() == ["partitions are not open: q1/1, q1/2, q1/3, q1/4, q1/5 and 2 more"]
    leaders |= dict.fromkeys(range(2, 9), leader)
    assert health.missing() == []
    # A partition that is created or lost later does not make the node unready.
    del leaders[5]
    assert health.missing() == []


def test_replicas_are_built_before_a_node_that_starts_is_ready() -> None:
    """A node that replaces another one: a majority may not last without it."""
    leader = NodeKey("n2/i2")
    host = Host(SimulatedClock(), dict.fromkeys(range(9), leader))
    seen = alone(host)
    health = Health(seen)
    seen.placement = cast(Any, Placement(placed(queue(1, *range(1, 9)), node="n1/i1")))
    host.building = set(range(2, 9))
    assert health.missing() == ["replicas are being built: q1/1, q1/2, q1/3, q1/4, q1/5 and 2 more"]
    host.building = {8}
    assert health.missing() == ["replicas are being built: q1/7"]
    host.building = set()
    assert health.missing() == []
    # A replica that moves here later does not make the node unready.
    host.building = {3}
    assert health.missing() == []


def test_a_replica_that_is_not_to_vote_is_no_reason() -> None:
    leader = NodeKey("n2/i2")
    host = Host(SimulatedClock(), {0: leader, 1: leader})
    host.building = {1}
    seen = alone(host)
    replicas = (Replica(1, host.node, False), Replica(2, leader))
    where = PlacedGroup(replicas, replicas, next_replica=3, preferred=2)
    learning = PlacementMap(1, ["default"], (queue(1, 1),), groups={GroupId(1): where})
    seen.placement = cast(Any, Placement(learning))
    assert Health(seen).missing() == []


def test_partitions_of_other_nodes_are_no_reason() -> None:
    seen = alone(Host(SimulatedClock(), {0: NodeKey("n2/i2")}))
    seen.placement = cast(Any, Placement(placed(queue(1, 1, 2), node="n2/i2")))
    assert Health(seen).missing() == []
