"""Changes of replicas and leaderships, one step at a time: a group that follows the steps, refuses
some of them and keeps all its rules.
"""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.errors import QueratorError
from querator.model.limits import UNAPPLIED_ENTRIES_MAX
from querator.model.nodes import NodeKey, Replica, Replicas, node_key
from querator.model.placement_map import PlacedGroup
from querator.placement.assign import replaced
from querator.placement.tasks.leader_tasks import differs
from querator.placement.tasks.steps import (
    SETTLED_S,
    LeadershipTransfer,
    has_settled,
    is_out_of_reach,
    may_take_over,
    moves_home,
    next_step,
    transfer_target,
)
from querator.raft.configuration import AddLearner, Promote, RemoveReplica, changed, voters
from querator.raft.status import GroupStatus, ReplicaStatus
from tests.unit.placement.conftest import node

A, B, C, B2 = NodeKey("a/1"), NodeKey("b/1"), NodeKey("c/1"), NodeKey("b/2")
THREE: Replicas = (Replica(1, A), Replica(2, B), Replica(3, C))
TARGET: Replicas = (Replica(1, A), Replica(3, C), Replica(4, B2))


def status(
    *, replicas: Replicas = THREE, log_last: int = 5_000, unapplied: int = 0, **matches: int
) -> GroupStatus:
    """Status of a group that is led on node a; `matches` are the followers' matches by name. Each
    follower has yet to apply `unapplied` entries.
    """
    followers = tuple(
        ReplicaStatus(one.id, one.node, one.voter, "replicate", match, match - unapplied)
        for one in replicas
        if one.node != A
        for match in (matches.get(one.node[0], log_last),)
    )
    return GroupStatus(
        term=1,
        leader=A,
        leads=True,
        commit_index=log_last,
        applied_index=log_last,
        log_first=1,
        log_last=log_last,
        log_bytes=0,
        now_ms=0,
        due_ms=None,
        quarantined=False,
        replica=1,
        replicas=replicas,
        replicas_index=log_last,
        followers=followers,
    )


def placed(target: Replicas, next_replica: int = 5) -> PlacedGroup:
    return PlacedGroup(THREE, target, next_replica, preferred=1)


def test_the_steps_of_a_replacement():
    current = THREE
    steps = []
    while (step := next_step(current, placed(TARGET), own=1)) is not None:
        assert not isinstance(step, LeadershipTransfer)
        steps.append(step)
        current = changed(current, step)
    assert steps == [AddLearner(4, B2), Promote(4), RemoveReplica(2)]
    assert set(current) == set(TARGET)
    assert next_step(THREE, placed(THREE), own=2) is None


def test_who_is_lost_votes_no_more_when_who_takes_the_place_begins_to():
    """With four voters, one of them lost, each acknowledgement would need the newest voter."""
    current = THREE
    steps = []
    while step := next_step(current, placed(TARGET), own=1, lost=lambda node: node == B):
        assert not isinstance(step, LeadershipTransfer)
        steps.append(step)
        current = changed(current, step)
    assert steps == [AddLearner(4, B2), RemoveReplica(2), Promote(4)]
    assert set(current) == set(TARGET)
    # A replica that the map still wants there is not removed because its node is lost.
    assert next_step(THREE, placed(THREE), own=1, lost=lambda node: node == B) is None


LEARNING: Replicas = (*THREE, Replica(4, B2, voter=False))
VOTING: Replicas = (*THREE, Replica(4, B2))


@pytest.mark.parametrize(
    ("current", "lost", "next_added", "expected"),
    [
        (LEARNING, "", 0, False),
        (LEARNING, B2, 0, True),
        # It has not been added yet.
        (THREE, B2, 0, False),
        # It votes, and b/1 works: the group would be left with a voter less.
        (VOTING, B2, 0, True),
        (VOTING, A, 0, True),
        # Both are lost; there is nothing better than the target.
        (TARGET, B2, 0, False),
        # The replica has left the group.
        (THREE, "", 5, True),
    ],
)
def test_targets_that_are_out_of_reach(
    current: Replicas, lost: str, next_added: int, expected: bool
):
    moving = msgspec.structs.replace(placed(TARGET), moving=True, next_added=next_added)
    assert is_out_of_reach(current, moving, lost=lambda node: node == lost) is expected
    if expected:
        assert next_step(current, moving, own=1, lost=lambda node: node == lost) is None
    settled = msgspec.structs.replace(moving, moving=False)
    assert not is_out_of_reach(current, settled, lost=lambda node: node == lost)


def test_a_voter_that_should_learn_is_out_of_reach():
    target = (*THREE[:2], Replica(3, C, voter=False), Replica(4, B2, voter=False))
    moving = msgspec.structs.replace(placed(target), moving=True)
    assert is_out_of_reach(LEARNING, moving, lost=lambda node: False)


def test_a_group_has_settled_when_its_configuration_is_committed():
    moving = msgspec.structs.replace(placed(TARGET), moving=True)
    arrived = status(replicas=TARGET)
    assert has_settled(arrived, moving)
    assert not has_settled(arrived, placed(TARGET)), "it was said before"
    assert not has_settled(status(), moving)
    # Another leader may still replace the entry that removes b/1.
    assert not has_settled(msgspec.structs.replace(arrived, commit_index=4_999), moving)


def test_a_map_that_is_behind_changes_nothing():
    learning = (*THREE, Replica(4, B2, voter=False))
    assert next_step(learning, placed(THREE, next_replica=4), own=1) is None
    assert next_step(TARGET, placed(THREE, next_replica=4), own=1) is None
    assert next_step(learning, placed(THREE), own=1) == RemoveReplica(4)


def test_the_leader_that_is_to_go_hands_over_first():
    target = (Replica(2, B), Replica(3, C))
    assert next_step(THREE, placed(target), own=1) == LeadershipTransfer(B)
    assert next_step(THREE, placed(target), own=2) == RemoveReplica(1)


def test_an_heir_that_did_not_take_the_leadership_is_asked_again_after_the_others():
    target = (Replica(2, B), Replica(3, C))
    asked = Counter[NodeKey]()
    for one in (B, C, B, C):
        assert next_step(THREE, placed(target), own=1, declined=asked) == LeadershipTransfer(one)
        asked[one] += 1


NODES = st.sampled_from("abcdef")


@given(
    st.lists(st.tuples(NODES, st.integers(1, 3)), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=60, max_size=60),
    st.randoms(use_true_random=False),
)
def test_any_targets_are_reached_in_safe_steps(moves, refusals, chance):
    """The targets are those of replacements. The group refuses steps and changes its leader."""
    where = placed(THREE, next_replica=4)
    current, asked = THREE, iter(refusals)
    for number, (name, _) in enumerate(moves):
        lost = next((one.node for one in where.target if one.node[0] == name), None)
        if lost is None:
            continue
        where = replaced(where, lost, node_key(name, f"{number + 2}"))
        for _ in range(chance.randint(0, 4)):
            current = taken(current, where, chance, next(asked, False))
    leader = min(voters(current))
    while (step := next_step(current, where, own=leader)) is not None:
        if isinstance(step, LeadershipTransfer):
            leader = next(one.id for one in current if one.node == step.to)
        else:
            current = changed(current, step)
    assert set(current) == set(where.target)


def taken(current: Replicas, where: PlacedGroup, chance, refused: bool) -> Replicas:
    leader = chance.choice(sorted(voters(current)))
    step = next_step(current, where, own=leader)
    if step is None or refused:
        return current
    if isinstance(step, LeadershipTransfer):
        assert any(one.node == step.to for one in where.target)
        return current
    try:
        after = changed(current, step)
    except QueratorError as error:
        raise AssertionError(f"a step that no group takes: {step}") from error
    assert len(voters(after) ^ voters(current)) <= 1, "majorities overlap"
    assert len(voters(after)) >= 3
    return after


def test_who_could_take_over():
    behind = status(b=4_999 - UNAPPLIED_ENTRIES_MAX, c=5_000 - UNAPPLIED_ENTRIES_MAX)
    assert [one.node for one in may_take_over(behind, {B, C})] == [C]
    assert may_take_over(behind, {B}) == []
    learning = status(replicas=(*THREE[:2], msgspec.structs.replace(THREE[2], voter=False)))
    assert [one.node for one in may_take_over(learning, {B, C})] == [B]


def test_leaderships_go_home_when_all_is_as_it_should_be():
    def moves(
        to: NodeKey | None, seen: GroupStatus, *able: NodeKey, led_s: float = SETTLED_S
    ) -> bool:
        return moves_home(seen, THREE, to, able, led_s=led_s)

    assert moves(B, status(), B, C)
    assert not moves(B, status(), C), "the node is not there"
    assert not moves(B, status(b=0), B, C), "it is behind"
    assert not moves(B, status(replicas=TARGET), B, C), "the replicas are being changed"
    assert not moves(A, status(), B, C), "it is at home"
    assert not moves(None, status(), B, C)
    assert not moves(B, status(), B, C, led_s=SETTLED_S / 2), "it may have come from there just now"
    assert not moves(B, status(unapplied=UNAPPLIED_ENTRIES_MAX + 1), B, C), "it could not serve"
    assert moves(B, status(unapplied=UNAPPLIED_ENTRIES_MAX), B, C)


def test_heirs():
    assert transfer_target(status(), B, {B, C}, {}) == B
    assert transfer_target(status(), A, {B, C}, {B: 2, C: 1}) == C
    assert transfer_target(status(b=0), B, {B, C}, {C: 9}) == C
    assert transfer_target(status(), B, set(), {}) is None
    assert transfer_target(status(), B, {B, C}, {C: 9}, {B: 1}) == C
    assert transfer_target(status(), B, {B, C}, {C: 9}, {B: 1, C: 1}) == B


def test_what_the_map_learns_of_a_node():
    known = node("a", boots=3, handoff_boots=3)
    assert not differs(node("a", boots=3), known)
    assert differs(node("a", boots=4), known)
    assert differs(node("a", boots=3, zone="z"), known)
    assert not differs(node("a", boots=2, zone="z"), known)
    assert not differs(node("a", "2", boots=9), known)
