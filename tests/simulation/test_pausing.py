"""The checker of pauses finds what it is there for, and nothing else."""

import pytest

from tests.simulation.whole.pausing import Pauses


def paused(*, leases: bool = True, producers: bool = True) -> Pauses:
    pauses = Pauses()
    pauses.changing("q")
    pauses.changed("q", 100, leases=leases, producers=producers)
    return pauses


def test_a_lease_in_a_pause_is_found():
    pauses = paused()
    pauses.leased("q", 101, 2)
    assert pauses.found == ["q: 2 items were leased in a pause"]


def test_a_produce_in_a_pause_is_found():
    pauses = paused()
    pauses.produced("q", 101, 2)
    assert pauses.found == ["q: 2 items were stored in a pause"]


@pytest.mark.parametrize(("leases", "producers"), [(True, False), (False, True), (False, False)])
def test_what_is_not_paused_may_be_served(leases: bool, producers: bool):
    pauses = paused(leases=leases, producers=producers)
    pauses.leased("q", 101, 0 if leases else 2)
    pauses.produced("q", 101, 0 if producers else 2)
    assert pauses.found == []


def test_calls_that_began_before_the_answer_may_be_served():
    pauses = paused()
    pauses.leased("q", 100, 2)
    pauses.produced("q", 99, 2)
    assert pauses.found == []


def test_nothing_is_certain_while_another_change_is_under_way():
    pauses = paused()
    pauses.changing("q")
    pauses.leased("q", 101, 2)
    pauses.produced("q", 101, 2)
    assert pauses.found == []


def test_other_queues_are_served():
    pauses = paused()
    pauses.leased("other", 101, 2)
    pauses.produced("other", 101, 2)
    assert pauses.found == []


def test_calls_that_get_nothing_are_right():
    pauses = paused()
    pauses.leased("q", 101, 0)
    pauses.produced("q", 101, 0)
    assert pauses.found == []
