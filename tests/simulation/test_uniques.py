"""The checker of dedup keys that last: each of its rules finds what breaks it, and nothing else."""

from collections import Counter
from typing import Any

import pytest

from querator.model.item_options import OnDuplicate
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS
from tests.simulation.whole.ledger import Ledger
from tests.simulation.whole.uniques import Place, Uniques, Wish

KEEP, REPLACE, BUMP = OnDuplicate
MOST_MS = 2_000


class Story:
    """Requests and answers of one producer. Instants are in ms."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.uniques = Uniques(self.ledger)

    def asks(self, reference: str, what: OnDuplicate, at_ms: int, producer: str = "p") -> None:
        self.uniques.asking(producer, [reference], [Wish("k", what, MOST_MS)], at_ms * MS)
        self.ledger.produced([reference], known=True)

    def hears(
        self,
        at_ms: int,
        *,
        stored: int = 0,
        duplicate: int = 0,
        replaced: int = 0,
        producer: str = "p",
    ) -> None:
        self.uniques.answered(
            producer, at_ms * MS, _places(stored), _places(duplicate), _places(replaced)
        )

    def produces(self, reference: str, what: OnDuplicate, at_ms: int, **answer: Any) -> None:
        self.asks(reference, what, at_ms)
        self.hears(at_ms + 5, **answer)

    def completes(self, reference: str, at_ms: int) -> None:
        self.uniques.completing([reference], at_ms * MS)
        self.ledger.completed((at_ms + 5) * MS, [reference])

    def found(self, *there: str) -> list[str]:
        return [*self.uniques.judge(0), *self.ledger.judge(Counter(there))]


def _places(seq: int) -> list[tuple[int, Place]]:
    return [(0, (0, seq))] if seq else []


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_key_is_taken_by_one_item_at_a_time(story: Story):
    story.produces("a", KEEP, 10, stored=1)
    story.produces("b", KEEP, 20, duplicate=1)
    story.completes("a", 30)
    story.produces("c", KEEP, 40, stored=3)
    assert story.found("c") == []


def test_an_item_that_is_stored_beside_another_one_is_found(story: Story):
    story.produces("a", KEEP, 10, stored=1)
    story.produces("b", KEEP, 20, stored=2)
    assert story.found("a", "b") == ["b: stored, while a has key k"]


def test_an_item_may_be_stored_while_the_other_one_is_being_completed(story: Story):
    story.produces("a", KEEP, 10, stored=1)
    story.asks("b", KEEP, 20)
    story.completes("a", 22)
    story.hears(30, stored=2)
    assert story.found("b") == []


def test_an_item_may_be_stored_beside_one_that_was_asked_for_at_the_same_time(story: Story):
    story.asks("a", KEEP, 10)
    story.asks("b", KEEP, 11, producer="other")
    story.hears(20, stored=1)
    story.completes("a", 12)
    story.hears(30, stored=2, producer="other")
    assert story.found("b") == []


def test_an_answer_that_names_a_completed_item_is_found(story: Story):
    story.produces("a", KEEP, 10, stored=1)
    story.completes("a", 20)
    story.produces("b", KEEP, 30, duplicate=1)
    assert story.found() == ["b: not stored because of a, which was completed before"]


def test_an_answer_may_name_an_item_that_is_completed_meanwhile(story: Story):
    story.produces("a", KEEP, 10, stored=1)
    story.asks("b", KEEP, 20)
    story.completes("a", 22)
    story.hears(40, duplicate=1)
    assert story.found() == []


def test_a_replaced_item_is_gone(story: Story):
    story.produces("a", REPLACE, 10, stored=1)
    story.produces("b", REPLACE, 20, stored=2, replaced=1)
    assert story.found("b") == []


def test_a_replaced_item_that_is_delivered_is_found(story: Story):
    story.produces("a", REPLACE, 10, stored=1)
    story.produces("b", REPLACE, 20, stored=2, replaced=1)
    story.ledger.delivered(30 * MS, ["a"])
    assert story.found("b") == ["a: delivered after it was cancelled"]


def test_a_replaced_item_that_is_there_is_found(story: Story):
    story.produces("a", REPLACE, 10, stored=1)
    story.produces("b", REPLACE, 20, stored=2, replaced=1)
    assert story.found("a", "b") == ["a: is there after it was cancelled"]


def test_an_item_that_was_replaced_before_its_own_answer_came_is_gone(story: Story):
    story.asks("a", REPLACE, 10)
    story.asks("b", REPLACE, 11, producer="other")
    story.hears(20, stored=2, replaced=1, producer="other")
    story.hears(30, stored=1)
    assert story.found("b") == []
    assert story.found("a", "b") == ["a: is there after it was cancelled"]


def test_an_item_that_is_gone_and_was_not_named_is_found(story: Story):
    story.produces("a", REPLACE, 10, stored=1)
    story.produces("b", REPLACE, 20, stored=2)
    assert story.found("b") == ["a: acknowledged, but lost"]


def test_a_request_without_an_answer_may_have_replaced_items(story: Story):
    story.produces("a", REPLACE, 10, stored=1)
    story.uniques.asking("p", ["b"], [Wish("k", REPLACE)], 20 * MS)
    story.ledger.produced(["b"], known=False)
    story.produces("c", KEEP, 30, duplicate=2)
    assert story.found("b") == []


def test_items_that_replace_may_be_stored_beside_a_leased_one(story: Story):
    story.produces("a", REPLACE, 10, stored=1)
    story.produces("b", REPLACE, 20, stored=2)
    assert story.found("a", "b") == []


@pytest.mark.parametrize(("due_ms", "late"), [(2_015, 0), (2_016, 1), (60_000, 57_985)])
def test_a_bumped_item_is_not_scheduled_after_its_limit(story: Story, due_ms: int, late: int):
    story.produces("a", BUMP, 10, stored=1)
    for turn in range(2, 30):
        story.produces(str(turn), BUMP, 10 * turn, stored=turn, replaced=turn - 1)
    story.uniques.scheduled("29", EPOCH_MS + due_ms)
    expected = [f"29: scheduled {late} ms after its limit"] if late else []
    assert story.found("29") == expected


def test_the_limit_of_a_bumped_item_counts_again_after_a_complete(story: Story):
    story.produces("a", BUMP, 10, stored=1)
    story.completes("a", 3_000)
    story.produces("b", BUMP, 4_000, stored=2)
    story.uniques.scheduled("b", EPOCH_MS + 6_000)
    assert story.found("b") == []
