"""Wrong histories, one per test: the checkers find the error. Beside most of them is a correct
history that differs only in the relevant point.
"""

import pytest

from tests.checkers.history import Aside, Complete, DeadItem, Named, Outcome, Settled
from tests.unit.checkers.history_builder import QUEUE, HistoryBuilder


def started(items: int = 2, **rules: int) -> HistoryBuilder:
    story = HistoryBuilder(**rules)
    story.produce(0, 1, 1, items)
    return story


def assert_right(story: HistoryBuilder) -> None:
    assert story.broken == set()
    assert story.linearizable


def assert_wrong(story: HistoryBuilder, *rules: str) -> None:
    """Asserts that the history is not linearizable, and breaks at least these rules."""
    assert not story.linearizable
    assert set(rules) <= story.broken


def test_a_whole_life() -> None:
    story = started(3)
    story.lease(2, 3, "l1", [1, 2, 3])
    story.complete(4, 5, "l1", [1])
    story.retry(4, 5, "l1", [2])
    story.complete(6, 7, "l1", repeated=[1], lost=[2])
    story.lease(8, 9, "l2", [2], 2)
    story.extend(9, 9.5, "l1")
    story.complete(9.5, 9.7, "l2", [2])
    story.lease(20, 21, "l3", [3], 2)
    story.complete(22, 23, "l3", [3])
    story.count(23.5, 24, 3, 3)
    story.look(24.5, [])
    assert_right(story)


# Loss.


def test_lost() -> None:
    story = started()
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", [1])
    story.look(6, [])
    assert_wrong(story, "nothing lost")


def test_lost_though_its_complete_is_unknown_to_another_item() -> None:
    story = started()
    story.lease(2, 3, "l1", [1, 2])
    story.complete(4, 5, "l1", unknown=[1])
    story.look(20, [])
    assert_wrong(story, "nothing lost")


def test_completed_by_a_call_of_unknown_outcome() -> None:
    story = started()
    story.lease(2, 3, "l1", [1, 2])
    story.complete(4, 5, "l1", unknown=[1, 2])
    story.look(6, [])
    assert_right(story)


def test_an_acknowledged_item_that_nobody_can_lease() -> None:
    story = started(1)
    story.produce(2, 3, 2)
    story.lease(4, 5, "l1", [2])
    story.complete(6, 7, "l1", [2])
    story.look(8, [1])
    assert not story.linearizable


def test_a_produce_without_an_answer_may_be_missing_or_there() -> None:
    for present in ([1], [1, 2]):
        story = started(1)
        story.produce(2, 3, 2, known=False)
        story.look(4, present)
        assert_right(story)


def test_half_of_a_request_is_stored() -> None:
    story = started(1)
    story.produce(2, 3, 2, 2, known=False)
    story.lease(4, 5, "l1", [1, 2])
    story.complete(6, 7, "l1", [1, 2])
    story.look(8, [])
    assert not story.linearizable


# Where items are stored.


def test_delivered_but_never_produced() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1, 2])
    assert_wrong(story, "stored once")


def test_leased_before_it_was_produced() -> None:
    story = HistoryBuilder()
    story.lease(0, 1, "l1", [1])
    story.produce(2, 3, 1)
    assert_wrong(story, "delivered after produced")


def test_leased_while_it_is_produced() -> None:
    story = HistoryBuilder()
    story.lease(0, 2, "l1", [1])
    story.produce(1, 3, 1)
    assert_right(story)


def test_another_item_at_the_place() -> None:
    story = started(2)
    story.lease(2, 3, "l1", [1, 2], references=("i2", "i1"))
    assert "stored once" in story.broken


def test_two_items_at_one_place() -> None:
    story = started(1)
    story.produce(2, 3, 1, references=("other",))
    assert_wrong(story, "stored once")


def test_sequences_against_real_time() -> None:
    story = HistoryBuilder()
    story.produce(0, 1, 2)
    story.produce(2, 3, 1)
    assert_wrong(story, "produced in order")


def test_an_ordered_producer_overtakes_itself() -> None:
    for ordered in (False, True):
        story = HistoryBuilder()
        story.produce(0, 5, 2, identity=("p", 1), ordered=ordered)
        story.produce(1, 5, 1, identity=("p", 2), ordered=ordered)
        assert story.broken == ({"produced in order"} if ordered else set())


# Repeats.


def test_a_repeat_with_two_effects() -> None:
    story = HistoryBuilder()
    story.produce(0, 1, 1, known=False, identity=("p", 1), references=("a",))
    story.produce(2, 3, 1, identity=("p", 1), references=("a",))
    story.produce(4, 5, 2, identity=("p", 1), references=("a",))
    assert "one effect of produces" in story.broken


def test_a_repeat_that_was_stored_twice_without_saying_so() -> None:
    story = HistoryBuilder()
    story.produce(0, 1, 1, identity=("p", 1), references=("a",))
    story.lease(2, 3, "l1", [1, 2], references=("a", "a"))
    assert_wrong(story, "stored once")


def test_two_first_answers_to_one_request() -> None:
    story = HistoryBuilder()
    story.produce(0, 1, 1, identity=("p", 1))
    story.produce(2, 3, 1, identity=("p", 1))
    assert "one effect of produces" in story.broken


def test_a_repeat_with_the_first_answer() -> None:
    story = HistoryBuilder()
    story.produce(0, 1, 1, identity=("p", 1), known=False)
    story.produce(2, 3, 1, identity=("p", 1))
    story.produce(4, 5, 1, identity=("p", 1), repeated=True)
    assert_right(story)


def test_two_leases_for_one_request() -> None:
    story = started(2)
    story.lease(2, 3, "l1", [1], request_id="r1")
    story.lease(4, 5, "l2", [2], request_id="r1")
    assert "one effect of leases" in story.broken


def test_a_repeated_lease_request() -> None:
    story = started(2)
    story.lost_lease(2, 3, request_id="r1")
    story.lease(4, 5, "l1", [1, 2], request_id="r1", repeated=True)
    story.complete(6, 7, "l1", [1])
    story.lease(8, 8.5, "l1", [2], request_id="r1", repeated=True)
    assert_right(story)


def test_a_repeated_lease_request_shows_what_was_completed() -> None:
    story = started(2)
    story.lease(2, 3, "l1", [1, 2], request_id="r1")
    story.complete(6, 7, "l1", [1])
    story.lease(8, 8.5, "l1", [1, 2], request_id="r1", repeated=True)
    assert_wrong(story, "completed is final")


# Leases.


def test_double_lease() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.lease(4, 5, "l2", [1], 2)
    assert_wrong(story, "one lease at a time")


def test_the_second_lease_after_the_first_may_have_lapsed() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.lease(11, 12, "l2", [1], 2)
    assert_right(story)


def test_the_second_lease_just_too_early() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.lease(11, 11.9, "l2", [1], 2)
    assert_wrong(story, "one lease at a time")


def test_clocks_that_differ_end_a_lease_earlier() -> None:
    story = started(1)
    story.history.clock_uncertainty_s = 0.5
    story.lease(2, 3, "l1", [1])
    story.lease(11, 11.9, "l2", [1], 2)
    assert_right(story)


def test_an_extended_lease_does_not_lapse() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.extend(8, 9, "l1")
    story.lease(14, 15, "l2", [1], 2)
    assert_wrong(story, "one lease at a time")


def test_an_extend_of_unknown_outcome_promises_nothing() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.extend(8, 9, "l1", live=None)
    story.lease(14, 15, "l2", [1], 2)
    assert_right(story)


def test_the_same_attempt_under_two_leases() -> None:
    story = started(1)
    story.lease(2, 9, "l1", [1])
    story.lease(2, 9, "l2", [1])
    assert_wrong(story, "one lease at a time")


def test_the_same_attempt_again_after_a_release() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", [1], count_attempt=False)
    story.lease(6, 7, "l2", [1])
    assert_right(story)


def test_an_ended_lease_is_extended() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", [1])
    story.extend(6, 7, "l1")
    assert not story.linearizable


def test_a_live_lease_is_called_lost() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.extend(4, 5, "l1", live=False)
    assert not story.linearizable


def test_an_ended_lease_is_obeyed() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.lease(13, 14, "l2", [1], 2)
    story.complete(15, 16, "l1", [1])
    assert_wrong(story, "ended leases are refused")


def test_half_a_lease_lapses() -> None:
    story = started(2)
    story.lease(2, 3, "l1", [1, 2])
    story.lease(13, 14, "l2", [1], 2)
    story.complete(15, 16, "l1", [2])
    assert not story.linearizable


# Completes.


def test_two_leases_complete_one_item() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 20, "l1", [1])
    story.lease(13, 14, "l2", [1], 2)
    story.complete(15, 16, "l2", [1])
    assert_wrong(story, "completed is final")


def test_completed_twice_by_one_lease() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", [1])
    story.complete(6, 7, "l1", [1])
    assert_wrong(story, "completed is final", "one effect of settles")


def test_a_completed_item_comes_back() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", [1])
    story.lease(13, 14, "l2", [1], 2)
    assert_wrong(story, "completed is final")


def test_stale_look() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", [1])
    story.look(6, [1])
    assert_wrong(story, "completed is final")


@pytest.mark.parametrize(("produced", "completed"), [(1, 1), (2, 0), (3, 1)])
def test_stale_or_wrong_counts(produced: int, completed: int) -> None:
    story = started(2)
    story.lease(2, 3, "l1", [1, 2])
    story.complete(4, 5, "l1", [1])
    story.count(6, 7, produced, completed)
    assert not story.linearizable


def test_counts_go_back() -> None:
    story = started(1)
    story.produce(2, 9, 2)
    story.count(3, 4, 2, 0)
    story.count(5, 6, 1, 0)
    assert not story.linearizable


def test_a_repeat_of_what_nobody_did() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", repeated=[1])
    assert_wrong(story, "completed is final")


def test_a_repeat_of_a_call_of_unknown_outcome() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", unknown=[1])
    story.complete(6, 7, "l1", repeated=[1])
    assert_right(story)


def test_a_call_repeats_itself() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", repeated=[1], again=True)
    assert_right(story)


def test_the_other_verb_repeats() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", [1])
    story.complete(6, 7, "l1", repeated=[1])
    assert not story.linearizable


@pytest.mark.parametrize("verb", ["reject", "retry", "later"])
def test_a_release_is_repeated_by_another_verb(verb: str) -> None:
    dead, delay_s = verb == "reject", 5.0 if verb == "later" else 0.0
    for wrong in (True, False):
        story = started(1)
        story.lease(2, 3, "l1", [1])
        story.retry(4, 5, "l1", [1], count_attempt=False)
        repeated, lost = ([1], None) if wrong else (None, [1])
        story.retry(6, 7, "l1", repeated=repeated, lost=lost, dead=dead, delay_s=delay_s)
        story.retry(8, 9, "l1", repeated=[1], count_attempt=False)
        story.look(10, [1])
        if wrong:
            assert_wrong(story, "repeats have a first")
        else:
            assert_right(story)


def test_a_release_of_unknown_outcome_explains_a_lost_reject() -> None:
    for wrong in (True, False):
        story = started(1)
        story.lease(2, 3, "l1", [1])
        story.retry(4, 5, "l1", unknown=[1], count_attempt=False)
        repeated, lost = ([1], None) if wrong else (None, [1])
        story.retry(6, 7, "l1", repeated=repeated, lost=lost, dead=True)
        if wrong:
            assert_wrong(story, "repeats have a first")
        else:
            assert_right(story)


def test_a_held_item_is_called_lost() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", lost=[1])
    assert not story.linearizable


def test_an_answer_that_leaves_an_item_out() -> None:
    story = started(2)
    story.lease(2, 3, "l1", [1, 2])
    asked = Complete((Named("l1", ((1, 2),)),))
    story.add(4, 5, asked, Settled((Outcome("l1", ((1, 1),)),)))
    assert "every item is answered" in story.broken


# Attempts and dead letters.


def test_attempts_go_back() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.lease(13, 14, "l2", [1], 2)
    story.retry(15, 16, "l2", [1])
    story.lease(17, 18, "l3", [1], 1)
    assert_wrong(story, "attempts")


def test_an_attempt_is_skipped() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1], 2)
    assert not story.linearizable


def test_an_attempt_that_nobody_saw() -> None:
    story = started(1)
    story.lost_lease(2, 3)
    story.lease(13, 14, "l1", [1], 2)
    assert_right(story)


def test_an_attempt_that_nobody_saw_takes_its_time() -> None:
    story = started(1)
    story.lost_lease(2, 3)
    story.lease(8, 9, "l1", [1], 2)
    assert not story.linearizable


def test_more_attempts_than_allowed() -> None:
    story = started(1, max_attempts=1)
    story.lease(2, 3, "l1", [1])
    story.lease(13, 14, "l2", [1], 2)
    assert_wrong(story, "attempts")


def test_dead_when_its_attempts_are_used_up() -> None:
    story = started(1, max_attempts=1)
    story.lease(2, 3, "l1", [1])
    story.look(13, [], (DeadItem(0, 1, "i1", 1, "ATTEMPTS"),))
    assert_right(story)


def test_dead_before_its_attempts_are_used_up() -> None:
    story = started(1, max_attempts=2)
    story.lease(2, 3, "l1", [1])
    story.look(13, [], (DeadItem(0, 1, "i1", 1, "ATTEMPTS"),))
    assert_wrong(story, "dead letters")


def test_two_dead_letters_of_one_item() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", [1], dead=True)
    letter = DeadItem(0, 1, "i1", 1, "REJECTED")
    story.look(6, [], (letter,))
    assert_right(story)
    story.look(7, [], (letter, letter))
    assert "dead letters" in story.broken


def test_rejected_and_leased_again() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", [1], dead=True)
    story.lease(6, 7, "l2", [1], 2)
    assert not story.linearizable


def test_dead_but_completed() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", [1])
    story.look(6, [], (DeadItem(0, 1, "i1", 1, "REJECTED"),))
    assert_wrong(story, "completed is final", "dead letters")


# Order.


def test_order_swapped() -> None:
    story = started(2)
    story.lease(2, 3, "l1", [2])
    story.lease(4, 5, "l2", [1])
    assert_wrong(story, "first in, first out")


def test_overlapping_leases_may_be_in_either_order() -> None:
    story = started(2)
    story.lease(2, 4, "l1", [2])
    story.lease(3, 5, "l2", [1])
    assert_right(story)


def test_an_item_is_skipped_by_one_lease() -> None:
    story = started(3)
    story.lease(2, 3, "l1", [1, 3])
    assert not story.linearizable


def test_an_item_may_be_held_back_for_a_call_that_never_saw_it() -> None:
    story = started(3)
    story.lost_lease(1.5, 2, most=1)
    story.lease(2, 3, "l1", [2])
    story.lease(4, 5, "l2", [1, 3])
    assert_right(story)


def test_no_more_items_are_held_back_than_were_asked_for() -> None:
    story = started(3)
    story.lost_lease(1.5, 2, most=1)
    story.lease(2, 3, "l1", [3])
    story.lease(4, 5, "l2", [1, 2])
    assert_wrong(story, "first in, first out")


@pytest.mark.parametrize(("asides", "right"), [([], False), ([Aside(QUEUE, 2.5, 2)], True)])
def test_items_of_a_damaged_block_are_passed_over(asides: list[Aside], right: bool) -> None:
    """Seed 111370 of whole nodes: the block was mended before the end of the call that passed over
    it, so no lease waited for the mend.
    """
    story = started(3)
    story.history.asides += asides
    story.lease(2, 3, "l1", [3])
    story.lease(4, 5, "l2", [1, 2])
    assert (story.broken == set()) is right
    assert story.linearizable is right


def test_no_more_items_are_passed_over_than_their_block_has() -> None:
    story = started(4)
    story.history.asides.append(Aside(QUEUE, 2.5, 2))
    story.lease(2, 3, "l1", [4])
    story.lease(4, 5, "l2", [1, 2, 3])
    assert_wrong(story, "first in, first out")


def test_a_block_is_not_passed_over_before_it_is_damaged() -> None:
    story = started(2)
    story.history.asides.append(Aside(QUEUE, 3.5, 1))
    story.lease(2, 3, "l1", [2])
    story.lease(4, 5, "l2", [1])
    assert not story.linearizable


def test_nothing_is_held_back_for_ever() -> None:
    story = started(2)
    story.history.hold_s = 5
    story.lost_lease(1.5, 2)
    story.lease(8, 9, "l1", [2])
    story.lease(10, 11, "l2", [1])
    assert_wrong(story, "first in, first out")


def test_a_retried_item_need_not_come_first() -> None:
    story = started(3)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", [1])
    story.lease(6, 7, "l2", [2, 3])
    story.lease(8, 9, "l3", [1], 2)
    assert_right(story)


def test_a_released_item_keeps_its_place() -> None:
    story = started(2)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", [1], count_attempt=False)
    story.lease(6, 7, "l2", [2])
    assert not story.linearizable


# Unknown outcomes.


def test_a_call_takes_effect_long_after_it_was_given_up() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", unknown=[1])
    story.complete(6, 6.5, "l1", lost=[1])
    story.lease(7, 8, "l2", [1], 2)
    assert_right(story)


def test_a_call_does_not_take_effect_before_it_was_made() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(6, 6.5, "l1", lost=[1])
    story.retry(7, 8, "l1", unknown=[1])
    assert not story.linearizable


def test_a_call_takes_effect_once() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.retry(4, 5, "l1", unknown=[1])
    story.lease(6, 7, "l2", [1], 2)
    story.lease(8, 9, "l3", [1], 3)
    assert not story.linearizable


def test_an_unknown_complete_does_not_explain_another_lease() -> None:
    story = started(1)
    story.lease(2, 3, "l1", [1])
    story.complete(4, 5, "l1", unknown=[1])
    story.lease(6, 7, "l2", [1], 2)
    assert not story.linearizable
