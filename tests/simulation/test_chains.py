"""The checker of follow-ups: each of its rules finds what breaks it, and nothing else."""

from collections import Counter

import pytest

from tests.simulation.whole.chains import Chains
from tests.simulation.whole.ledger import Ledger


class Story:
    """Items `a` and `b`, calls that settle them, and what is seen afterwards."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.chains = Chains(self.ledger)
        self.ledger.produced(["a", "b"], known=True)

    def call(
        self,
        name: str,
        *,
        parents: str = "a",
        executed: bool | None = True,
        completes: bool = True,
        passing: bool = False,
    ) -> None:
        """A call with the follow-ups `name`.0 and `name`.1."""
        follow_ups = [f"{name}.0", f"{name}.1"]
        self.chains.settling(
            name,
            parents,
            follow_ups,
            completes=completes,
            passing=follow_ups if passing else (),
        )
        if executed is not None:
            self.chains.settled(name, items=len(parents) if executed else 0)
        if executed and completes:
            self.ledger.completed(0, parents)
        elif executed is None and completes:
            self.ledger.perhaps_completed(parents)

    def see(self, *references: str) -> None:
        self.chains.delivered(references)
        self.ledger.completed(1, references)

    def found(self, *there: str) -> list[str]:
        present = Counter([*there, *(one for one in "ab" if one not in self.gone)])
        return [*self.ledger.judge(present), *self.chains.judge(present)]

    @property
    def gone(self) -> set[str]:
        return {
            parent
            for call in self.chains._calls.values()
            for parent in call.parents
            if call.completes and call.executed is not False
        }


def test_each_follow_up_once_is_right():
    story = Story()
    story.call("c", parents="ab")
    story.see("c.0")
    assert story.found("c.1") == []
    assert story.chains.compared == 1


def test_a_lost_follow_up_is_found():
    story = Story()
    story.call("c")
    story.see("c.0")
    assert story.found() == ["c.1: acknowledged, but lost", "c: its follow-up c.1 never came"]


def test_follow_ups_that_are_all_lost_are_found():
    story = Story()
    story.call("c")
    assert "c: its follow-up c.0 never came" in story.found()


def test_a_follow_up_that_is_there_twice_is_found():
    story = Story()
    story.call("c")
    story.see("c.0")
    assert story.found("c.1", "c.1") == ["c.1: is there 2 times"]


def test_a_follow_up_that_is_completed_twice_is_found():
    story = Story()
    story.call("c")
    story.see("c.0", "c.1")
    story.see("c.1")
    assert story.found() == ["c.1: two completes were accepted"]


@pytest.mark.parametrize("completes", [True, False])
def test_a_follow_up_of_a_call_that_was_refused_is_found(completes: bool):
    story = Story()
    story.call("c", executed=False, completes=completes)
    story.see("c.0")
    assert "c: was not executed, and its follow-up c.0 is there" in story.found()


def test_a_call_without_a_known_outcome_has_all_or_none():
    story = Story()
    story.call("r", executed=None, completes=False)
    assert story.found() == []
    story.see("r.0")
    assert story.found() == ["r: its follow-up r.1 never came"]
    assert story.found("r.1") == []


def test_an_item_that_goes_without_its_follow_ups_is_found():
    story = Story()
    story.call("c", executed=None)
    assert story.found() == ["a: is gone, and none of ['c'] has follow-ups"]
    story.chains.completes_otherwise("a")
    assert story.found() == []


def test_an_item_that_stays_beside_its_follow_ups_is_found():
    story = Story()
    story.call("c", executed=None)
    story.see("c.0", "c.1")
    assert story.found() == []
    assert story.found("a") == ["a: is there, and the follow-ups of c are there too"]


def test_two_completes_of_an_item_are_found():
    story = Story()
    story.call("c", executed=None)
    story.call("d", executed=None)
    story.see("c.0", "c.1", "d.0", "d.1")
    assert story.found() == ["a: ['c', 'd'] have all completed it"]


def test_a_complete_without_follow_ups_beside_some_is_found():
    story = Story()
    story.call("c", executed=None)
    story.chains.completes_otherwise("a")
    story.see("c.0", "c.1")
    assert story.found() == []
    story.ledger.completed(2, "a")
    assert story.found() == ["a: completed without follow-ups, and those of c are there"]


def test_a_part_of_the_items_is_found():
    story = Story()
    story.chains.settling("c", "ab", ["c.0"], completes=False)
    story.chains.settled("c", items=1)
    story.see("c.0")
    assert story.found() == ["c: 1 of 2 items are settled"]


def test_follow_ups_of_a_deleted_queue_may_go_with_it_but_not_double():
    story = Story()
    story.call("c", passing=True)
    assert story.found() == []
    assert story.found("c.0", "c.0") == ["c.0: is there 2 times"]
    story.call("d", parents="b", executed=None, passing=True)
    assert story.found() == []


def test_retries_may_have_follow_ups_several_times():
    story = Story()
    for name in ("r", "s"):
        story.call(name, completes=False)
        story.see(f"{name}.0", f"{name}.1")
    assert story.found() == []
