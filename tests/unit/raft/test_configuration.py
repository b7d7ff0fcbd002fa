"""Configurations of a group: which one may follow which, and what is refused."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.errors import ErrorCode, QueratorError
from querator.model.nodes import Replica, Replicas, node_key
from querator.raft.configuration import (
    AddLearner,
    Change,
    Promote,
    RemoveReplica,
    changed,
    decode,
    encode,
    voters,
)

NODES = [node_key(name, "1") for name in "abcdef"]
A, B, C, D, *_ = NODES
THREE = (Replica(1, A), Replica(2, B), Replica(3, C))
WITH_LEARNER = (*THREE, Replica(4, D, voter=False))


def test_a_learner_counts_for_nothing_until_it_is_promoted():
    added = changed(THREE, AddLearner(4, D))
    assert added == WITH_LEARNER
    assert voters(added) == {1, 2, 3}
    assert voters(changed(added, Promote(4))) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "change", [AddLearner(4, D), AddLearner(2, B), Promote(2), RemoveReplica(9), RemoveReplica(5)]
)
def test_a_change_that_is_made_already_changes_nothing(change):
    assert changed(WITH_LEARNER, change) == WITH_LEARNER


@pytest.mark.parametrize(
    ("replicas", "change", "why"),
    [
        (THREE, AddLearner(3, D), "ids up to 3 are taken"),
        (THREE, AddLearner(2, D), "ids up to 3 are taken"),
        (THREE, AddLearner(4, B), "b/1 has a replica"),
        (THREE, Promote(4), "no such replica"),
        (THREE[:1], RemoveReplica(1), "the last voter"),
        ((THREE[0], WITH_LEARNER[3]), RemoveReplica(1), "the last voter"),
    ],
)
def test_what_makes_no_sense_is_refused(replicas, change, why):
    with pytest.raises(QueratorError, match=why) as caught:
        changed(replicas, change)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert caught.value.field == "replica"
    assert caught.value.value == str(change.id)


CHANGES = st.one_of(
    st.builds(AddLearner, st.integers(1, 8), st.sampled_from(NODES)),
    st.builds(Promote, st.integers(1, 8)),
    st.builds(RemoveReplica, st.integers(1, 8)),
)


@given(st.integers(1, 3), st.lists(CHANGES, max_size=20))
def test_majorities_of_configurations_that_follow_each_other_have_a_voter_in_common(first, changes):
    replicas: Replicas = THREE[:first]
    for change in changes:
        after = _after(replicas, change)
        assert _overlap(voters(replicas), voters(after))
        assert len({replica.id for replica in after}) == len(after)
        assert len({replica.node for replica in after}) == len(after)
        assert [replica.id for replica in after] == sorted(replica.id for replica in after)
        assert decode(encode(after)) == after
        replicas = after


def _after(replicas: Replicas, change: Change) -> Replicas:
    try:
        return changed(replicas, change)
    except QueratorError:
        return replicas


def _overlap(one: frozenset[int], other: frozenset[int]) -> bool:
    return all(
        set(mine) & set(its)
        for mine in combinations(one, len(one) // 2 + 1)
        for its in combinations(other, len(other) // 2 + 1)
    )
