"""What a node deletes because it has moved away, and what it must keep."""

from types import SimpleNamespace
from typing import Any

import pytest

from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.nodes import Replica, Replicas, node_key
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import Queue, QueueSettings, QueueState
from querator.placement.reconcile import Reconciler
from querator.placement.standing import learning

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
    """Remembers which groups it has, with the id and the first configuration of its replica."""

    def __init__(self) -> None:
        self.replicas: dict[GroupId, int] = {}
        self.begun: dict[GroupId, Replicas] = {}

    async def create_group(self, group: GroupId, machine: Any, replicas: Replicas) -> None:
        self.begun[group] = replicas
        self.replicas.setdefault(group, next(one.id for one in replicas if one.node == A))

    async def delete_group(self, group: GroupId) -> None:
        self.replicas.pop(group, None)

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
    return PlacementMap(1, ["n"], [QUEUE], groups={G: group, PLACEMENT_GROUP: group})


async def test_what_is_wanted_stays(host: Host, reconciler: Reconciler):
    here = placed(*FOUNDING)
    await reconciler.open(here, QUEUE)
    reconciler.begin([PLACEMENT_GROUP, G])
    assert reconciler.surplus(here) == []
    # The map is ahead of the group: a majority may still count on what is here.
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
    reconciler.begin([PLACEMENT_GROUP, G, GroupId(7)])
    assert reconciler.surplus(placed(Replica(2, B))) == [G, 7], "7 is of a queue that is gone"


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
