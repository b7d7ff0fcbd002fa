"""The groups that a node deletes because they have moved away, and those that it must keep."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from querator.model.commands import FlowSettings
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.nodes import Replica, Replicas, node_key
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import (
    Fairness,
    GroupSettings,
    Queue,
    QueueKind,
    QueueSettings,
    QueueState,
)
from querator.placement.bootstrap import learning
from querator.placement.map.map_follower import MapFollower
from querator.placement.tasks.reconcile import Reconciler, partition_settings
from querator.raft.log.rows import mark_deleting, member_row, put_member
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import MEMBERS

A, B, C = (node_key(name, "1") for name in "abc")
G = GroupId(1)
FOUNDING: Replicas = (Replica(1, A), Replica(2, B))
QUEUE = Queue(
    namespace="n",
    name="q",
    id=QueueId(1),
    state=QueueState.ACTIVE,
    settings=QueueSettings(),
    settings_version=1,
    created_at_ms=0,
    groups=(G,),
)


class Host:
    """Records its groups, with the id and the first configuration of each replica."""

    def __init__(self) -> None:
        self.replicas: dict[GroupId, int] = {}
        self.begun: dict[GroupId, Replicas] = {}
        self.opening: asyncio.Future[None] | None = None
        self.deletion: asyncio.Future[None] | None = None
        """The deletion of a group. Without these futures both opening and deletion end at once."""

    async def create_group(self, group: GroupId, machine: Any, replicas: Replicas) -> None:
        self.begun[group] = replicas
        if group not in self.replicas:
            self.replicas[group] = next(one.id for one in replicas if one.node == A)
        if self.opening is not None:
            await self.opening

    async def delete_group(self, group: GroupId) -> None:
        self.replicas.pop(group, None)
        if self.deletion is not None:
            await self.deletion

    def status(self, group: GroupId) -> Any:
        own = self.replicas.get(group)
        return None if own is None else SimpleNamespace(replica=own)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def reconciler(host: Any) -> Reconciler:
    async def propose(group: GroupId, command: Any) -> Any:
        raise AssertionError("nothing is said to the map")

    return Reconciler(host, lambda group: group, node=A, propose=propose)  # type: ignore[arg-type,return-value]


def placed(*target: Replica, moving: bool = False) -> PlacementMap:
    group = PlacedGroup(FOUNDING, target, 10, target[0].id, moving)
    groups = {G: group, PLACEMENT_GROUP: group}
    return PlacementMap(1, ["n"], [QUEUE], groups=groups, next_group=GroupId(8))


async def test_what_is_wanted_stays(host: Host, reconciler: Reconciler):
    here = placed(*FOUNDING)
    await reconciler.open(here, QUEUE)
    reconciler.begin({PLACEMENT_GROUP: False, G: False})
    assert reconciler.surplus(here) == []
    # The map is ahead of the group: a majority may still count on this replica.
    assert reconciler.surplus(placed(Replica(2, B), moving=True)) == []


async def test_what_has_moved_away_goes(host: Host, reconciler: Reconciler):
    await reconciler.open(placed(*FOUNDING), QUEUE)
    elsewhere = placed(Replica(2, B), Replica(3, C))
    assert reconciler.surplus(elsewhere) == [G]
    await reconciler.clear(G)
    assert host.replicas == {}
    assert reconciler.surplus(elsewhere) == []
    assert reconciler.missing(elsewhere, QUEUE) == []


async def test_what_a_start_finds_goes_too(reconciler: Reconciler):
    reconciler.begin({PLACEMENT_GROUP: False, G: False, GroupId(7): False})
    assert reconciler.surplus(placed(Replica(2, B))) == [G, 7], "7 is of a queue that is gone"


async def test_what_no_map_has_named_yet_stays(reconciler: Reconciler):
    reconciler.begin({PLACEMENT_GROUP: False, GroupId(7): False, GroupId(8): False})
    assert reconciler.surplus(placed(*FOUNDING)) == [7], "8 is of a queue that is still to come"


async def test_what_a_start_finds_is_opened_while_the_group_moves_away(
    host: Host, reconciler: Reconciler
):
    """A majority may still count on the replica, and it alone may have data that is damaged
    elsewhere.
    """
    host.replicas[G] = 1
    moving = placed(Replica(2, B), Replica(3, C), moving=True)
    assert reconciler.missing(moving, QUEUE) == [], "there is nothing of it here"
    reconciler.begin({G: False})
    assert reconciler.missing(moving, QUEUE) == [G]
    await reconciler.open(moving, QUEUE)
    assert host.begun[G] == ()
    assert reconciler.missing(moving, QUEUE) == []
    assert reconciler.surplus(moving) == []
    moved = placed(Replica(2, B), Replica(3, C))
    assert reconciler.surplus(moved) == [G]
    await reconciler.clear(G)
    assert reconciler.missing(moving, QUEUE) == [], "it has moved away"


async def test_what_a_start_finds_half_deleted_is_not_opened(reconciler: Reconciler):
    reconciler.begin({G: True})
    assert reconciler.missing(placed(Replica(2, B), moving=True), QUEUE) == []


async def test_who_comes_back_begins_anew_and_learns(host: Host, reconciler: Reconciler):
    await reconciler.open(placed(*FOUNDING), QUEUE)
    back = placed(Replica(2, B), Replica(5, A), moving=True)
    assert reconciler.surplus(back) == [G], "nobody counts on the first replica any more"
    await reconciler.clear(G)
    assert reconciler.missing(back, QUEUE) == [G]
    await reconciler.open(back, QUEUE)
    assert host.replicas == {G: 5}
    assert host.begun[G] == learning(back.replicas(G), A)
    assert reconciler.surplus(back) == []


async def test_what_is_opened_while_its_predecessor_is_deleted_is_remembered(
    host: Host, reconciler: Reconciler
):
    reconciler.begin({G: False})
    host.deletion = asyncio.get_running_loop().create_future()
    back = placed(Replica(2, B), Replica(5, A), moving=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reconciler.clear(G))
        await asyncio.sleep(0)
        await reconciler.open(back, QUEUE)
        host.deletion.set_result(None)
    assert reconciler.missing(back, QUEUE) == []
    assert reconciler.surplus(placed(Replica(2, B))) == [G]


async def test_what_is_deleted_while_it_is_opened_is_opened_anew(
    host: Host, reconciler: Reconciler
):
    """The stored replica had another id than the one in the map at its opening."""
    host.replicas[G] = 1
    reconciler.begin({G: False})
    host.opening = asyncio.get_running_loop().create_future()
    back = placed(Replica(2, B), Replica(5, A), moving=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reconciler.open(back, QUEUE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reconciler.surplus(back) == [G]
        await reconciler.clear(G)
        host.opening.set_result(None)
    assert reconciler.missing(back, QUEUE) == [G]


async def test_a_deletion_that_fails_is_tried_again(host: Host, reconciler: Reconciler):
    reconciler.begin({G: False})
    host.deletion = asyncio.get_running_loop().create_future()
    host.deletion.set_exception(QueratorError(ErrorCode.UNAVAILABLE, "the node is shutting down"))
    with pytest.raises(QueratorError):
        await reconciler.clear(G)
    assert reconciler.surplus(placed(Replica(2, B))) == [G]


async def test_a_deletion_that_was_broken_off_goes_on_when_the_group_has_come_back(
    reconciler: Reconciler,
):
    reconciler.begin({G: True})
    back = placed(Replica(2, B), Replica(5, A), moving=True)
    assert reconciler.surplus(back) == [G]
    await reconciler.clear(G)
    assert reconciler.surplus(back) == []
    await reconciler.open(back, QUEUE)
    assert reconciler.surplus(back) == []


async def test_a_start_finds_what_is_half_deleted():
    environment = MemoryEnvironment()
    txn = environment.begin()
    whole = member_row(term=1, vote=None, base=(0, 0, 0, 0), runs=(), replica=1, configurations=())
    put_member(txn, G, whole)
    mark_deleting(txn, GroupId(2))
    MEMBERS.put(txn, 3, value=b"damaged")
    txn.commit(sync=True)
    follower = MapFollower(None, environment, lambda _: None)  # type: ignore[arg-type]
    assert await follower.stored_groups() == {1: False, 2: True, 3: False}


def flows_of(settings: QueueSettings, partitions: int) -> list[FlowSettings | None]:
    queue = msgspec.structs.replace(
        QUEUE, settings=settings, groups=tuple(GroupId(n + 1) for n in range(partitions))
    )
    placed = PlacementMap(1, ["n"], [queue])
    return [partition_settings(placed, queue, number).flows for number in range(partitions)]


def test_partitions_of_a_plain_queue_know_nothing_of_flows():
    assert flows_of(QueueSettings(), 2) == [None, None]


@pytest.mark.parametrize(
    ("limit", "parts"),
    [(0, [0, 0, 0]), (1, [1, 1, 1]), (3, [1, 1, 1]), (10, [4, 3, 3]), (11, [4, 4, 3])],
)
def test_the_partitions_of_a_fair_queue_share_its_limits(limit: int, parts: list[int]):
    groups = (GroupSettings("eu", 3, limit), GroupSettings("us", 2))
    settings = QueueSettings(
        partitions=3,
        kind=QueueKind.FAIR,
        fairness=Fairness.TURNS,
        group_leased_max=limit,
        groups=groups,
    )
    assert flows_of(settings, 3) == [
        FlowSettings(
            QueueKind.FAIR,
            Fairness.TURNS,
            group_leased_max=part,
            groups=(GroupSettings("eu", 3, part), GroupSettings("us", 2)),
        )
        for part in parts
    ]


def test_closing_partitions_have_their_part_of_the_limits_as_well():
    settings = QueueSettings(partitions=1, kind=QueueKind.FAIR, group_leased_max=8)
    assert [flows and flows.group_leased_max for flows in flows_of(settings, 4)] == [2, 2, 2, 2]


def test_the_settings_of_keys_reach_each_partition():
    settings = QueueSettings(kind=QueueKind.KEYED, key_leased_max=5, key_retry_blocks=False)
    expected = FlowSettings(QueueKind.KEYED, key_leased_max=5, key_retry_blocks=False)
    assert flows_of(settings, 2) == [expected, expected]
