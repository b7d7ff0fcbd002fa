"""The groups of a node that it considers unfinished, and how many leaderships move at once."""

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.placement_map import PlacementMap
from querator.model.queues import QueueSettings
from querator.placement.map.commands import CreateQueue, ReplaceNode
from querator.placement.tasks.group_worklist import (
    AGAIN_S,
    AT_ONCE_MAX,
    QUEUE_MIN,
    QUEUE_PART,
    GroupWorklist,
    some_at_once,
)
from tests.unit.placement.conftest import Group, node

G, H, K = GroupId(1), GroupId(2), GroupId(3)


def three(partitions: int = 3) -> Group:
    group = Group(nodes="abc")
    group.propose(CreateQueue("n", "q", QueueSettings(partitions=partitions)))
    return group


def test_a_group_is_looked_at_until_it_is_done_and_again_when_it_is_led_anew():
    led, placed = GroupWorklist(), three().map
    led.refresh({G, H}, placed, 0.0)
    led.refresh({G, H}, placed, 1.0)
    assert list(led.left) == [G, H]
    led.done(G)
    led.refresh({G, H, K}, placed, 2.0)
    assert list(led.left) == [H, K]
    assert (led.led_s(G, 3.0), led.led_s(K, 3.0)) == (3.0, 1.0)
    led.refresh({H, K}, placed, 3.0)
    led.refresh({G, H, K}, placed, 4.0)
    assert list(led.left) == [H, K, G]
    assert led.led_s(G, 4.0) == 0.0


def test_a_group_is_looked_at_again_when_the_map_says_something_else_of_it():
    group, led = three(), GroupWorklist()
    led.refresh({G, H}, group.map, 0.0)
    led.done(G)
    led.done(H)
    group.propose(CreateQueue("n", "other", QueueSettings(partitions=3)))
    led.refresh({G, H}, group.map, 1.0)
    assert not led.left
    group.propose(ReplaceNode(node("a", incarnation="2"), "1"))
    led.refresh({G, H}, group.map, 2.0)
    assert list(led.left) == [G, H]


def test_all_are_looked_at_again_after_a_while():
    led, placed = GroupWorklist(), three().map
    led.refresh({G, H}, placed, 0.0)
    led.done(G)
    led.done(H)
    led.refresh({G, H}, placed, AGAIN_S - 0.1)
    assert not led.left
    led.refresh({G, H}, placed, AGAIN_S)
    assert list(led.left) == [G, H]


def test_few_partitions_of_a_small_queue_go_at_once_and_more_of_a_large_one():
    group = three(partitions=6)
    group.propose(CreateQueue("n", "large", QueueSettings(partitions=4 * QUEUE_PART)))
    group.propose(CreateQueue("n", "huge", QueueSettings(partitions=40 * QUEUE_PART)))
    groups = [PLACEMENT_GROUP, *sorted(one for queue in group.map for one in queue.groups)]
    chosen = some_at_once(groups, group.map)
    assert chosen[0] == PLACEMENT_GROUP
    owners = [owner[0].name for one in chosen[1:] if (owner := group.map.by_group(one))]
    assert owners.count("q") == QUEUE_MIN
    assert owners.count("large") == 4
    assert len(chosen) == AT_ONCE_MAX


def test_the_placement_group_comes_first():
    led = GroupWorklist()
    led.refresh({GroupId(2), GroupId(3)}, PlacementMap(), 0.0)
    led.refresh({GroupId(2), GroupId(3), PLACEMENT_GROUP}, PlacementMap(), 1.0)
    assert led.left == (PLACEMENT_GROUP, GroupId(2), GroupId(3))


def test_what_was_tried_comes_behind_the_others():
    led = GroupWorklist()
    led.refresh({PLACEMENT_GROUP, G, H, K}, PlacementMap(), 0.0)
    for group in (PLACEMENT_GROUP, G):
        led.tried(group)
    assert list(led.left) == [PLACEMENT_GROUP, H, K, G]
    led.done(H)
    led.tried(H)
    assert list(led.left) == [PLACEMENT_GROUP, K, G]
