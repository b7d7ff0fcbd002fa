"""The checker of priorities: each of its rules finds what breaks it, and nothing else."""

import pytest

from querator.model.calls import LeasedRun, LoadedItems
from querator.model.commands import LeasedSegment, LeaseGrant, LeaseResult, Refusal
from querator.model.errors import ErrorCode
from tests.simulation.whole.ranks import Ranks

GROUP = 5
URGENT, PLAIN = -7, 0


def produced(ranks: Ranks, *priorities: int, keyed: bool = False) -> None:
    """Items a, b, … with sequences 1, 2, …; produced at 10 µs and acknowledged."""
    names = "abcdef"[: len(priorities)]
    ranks.producing(names, priorities, 10, keyed=keyed)
    for seq, name in enumerate(names, 1):
        ranks.stored(GROUP, seq, name)


def leases(
    ranks: Ranks,
    now_us: int,
    seq: int,
    priority: int,
    *,
    lease: int = 1,
    repeated: bool = False,
) -> None:
    """The partition grants a lease of one item."""
    segment = LeasedSegment(seq, 1, 1, 1, 10, priority=priority)
    grant = LeaseGrant(lease, 1_000, (segment,), repeated)
    ranks.granted(now_us, GROUP, LeaseResult((grant,), 0))


def delivers(ranks: Ranks, name: str, priority: int, *, lease: int = 1) -> None:
    loaded = LoadedItems(
        first_seq=1, count=1, ordinals=(), produced_at_ms=0, items=b"", overlays=()
    )
    run = LeasedRun(
        lease_id=f"{GROUP:x}.0.{lease:x}", queue="ranked", partition=0, attempt=1,
        deadline_ms=0, remaining_ms=1_000, repeated=False, loaded=loaded, priority=priority,
    )  # fmt: skip
    ranks.delivered(run, (name,))


def found(ranks: Ranks) -> list[str]:
    return list(ranks.judge())


# --- an item is delivered with the priority that it had when it was leased --------------------


def test_another_priority_than_the_produced_one_is_found():
    ranks = Ranks()
    produced(ranks, URGENT)
    leases(ranks, 20, 1, URGENT)
    delivers(ranks, "a", PLAIN)
    assert found(ranks) == ["a: delivered with priority 0, has [-7]"]


def test_the_produced_priority_is_right_even_before_the_answer():
    ranks = Ranks()
    ranks.producing(("a",), (URGENT,), 10, keyed=False)
    leases(ranks, 20, 1, URGENT)
    delivers(ranks, "a", URGENT)
    assert found(ranks) == []


@pytest.mark.parametrize("priority", [URGENT, 3])
def test_while_a_change_is_open_the_old_and_the_new_priority_are_right(priority: int):
    ranks = Ranks()
    produced(ranks, URGENT)
    ranks.changing(20, ("a",), 3)
    leases(ranks, 30, 1, priority)
    delivers(ranks, "a", priority)
    assert found(ranks) == []


def test_the_old_priority_after_an_answered_change_is_found():
    ranks = Ranks()
    produced(ranks, URGENT)
    ranks.changed(30, ranks.changing(20, ("a",), 3), ("a",), ())
    leases(ranks, 40, 1, URGENT)
    delivers(ranks, "a", URGENT)
    assert found(ranks) == ["a: delivered with priority -7, has [3]"]


def test_a_lease_of_before_the_answer_is_judged_by_its_time():
    ranks = Ranks()
    produced(ranks, URGENT)
    change = ranks.changing(20, ("a",), 3)
    leases(ranks, 30, 1, URGENT)
    ranks.changed(40, change, ("a",), ())
    delivers(ranks, "a", URGENT)
    assert found(ranks) == []


def test_the_new_priority_of_an_item_that_was_not_changed_is_found():
    ranks = Ranks()
    produced(ranks, URGENT)
    ranks.changed(30, ranks.changing(20, ("a",), 3), (), ("a",))
    leases(ranks, 40, 1, 3)
    delivers(ranks, "a", 3)
    assert found(ranks) == ["a: delivered with priority 3, has [-7]"]


@pytest.mark.parametrize("priority", [URGENT, 3])
def test_after_a_change_without_an_answer_both_priorities_stay_right(priority: int):
    ranks = Ranks()
    produced(ranks, URGENT)
    ranks.changed(30, ranks.changing(20, ("a",), 3), (), ())
    leases(ranks, 40, 1, priority)
    delivers(ranks, "a", priority)
    assert found(ranks) == []


def test_a_change_without_an_answer_may_be_executed_after_an_answered_one():
    ranks = Ranks()
    produced(ranks, URGENT)
    ranks.changed(30, ranks.changing(20, ("a",), 3), (), ())
    ranks.changed(50, ranks.changing(40, ("a",), PLAIN), ("a",), ())
    for lease, priority in enumerate((PLAIN, 3, URGENT), 1):
        leases(ranks, 60, 1, priority, lease=lease)
        delivers(ranks, "a", priority, lease=lease)
    assert found(ranks) == ["a: delivered with priority -7, has [0, 3]"]


def test_nothing_is_known_of_the_order_of_two_changes_at_the_same_time():
    ranks = Ranks()
    produced(ranks, URGENT)
    first = ranks.changing(20, ("a",), 3)
    second = ranks.changing(30, ("a",), PLAIN)
    ranks.changed(40, first, ("a",), ())
    ranks.changed(50, second, ("a",), ())
    leases(ranks, 60, 1, 3)
    delivers(ranks, "a", 3)
    assert found(ranks) == []


def test_a_change_that_may_have_met_other_items_makes_its_priority_right_everywhere():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN)
    leases(ranks, 20, 2, PLAIN)
    delivers(ranks, "b", 3)
    assert len(found(ranks)) == 2
    ranks.astray(3)
    assert found(ranks) == []


# --- a page of a peek shows the priority that an item has -------------------------------------


def test_a_peek_that_shows_another_priority_is_found():
    ranks = Ranks()
    produced(ranks, URGENT)
    ranks.changed(30, ranks.changing(20, ("a",), 3), ("a",), ())
    ranks.peeked(25, 40, "a", URGENT)
    ranks.peeked(30, 40, "a", 3)
    assert found(ranks) == []
    ranks.peeked(31, 40, "a", URGENT)
    assert found(ranks) == ["a: peeked with priority -7, has [3]"]


# --- a change is not refused to an item that waits --------------------------------------------


def test_a_change_that_is_refused_to_a_waiting_item_is_found():
    ranks = Ranks()
    produced(ranks, URGENT)
    ranks.refused(GROUP, 1, "a", ranks.wait(GROUP, 1))
    assert found(ranks) == ["a: waits at 1 of group 5, and was not changed"]


def test_a_change_may_be_refused_to_an_item_that_was_leased_meanwhile():
    ranks = Ranks()
    produced(ranks, URGENT)
    wait = ranks.wait(GROUP, 1)
    leases(ranks, 20, 1, URGENT)
    ranks.refused(GROUP, 1, "a", wait)
    ranks.returned("5.0.1", 1, "a")
    ranks.refused(GROUP, 1, "a", wait)
    assert found(ranks) == []


def test_a_change_may_be_refused_to_an_item_that_was_leased_before():
    ranks = Ranks()
    produced(ranks, URGENT)
    leases(ranks, 20, 1, URGENT)
    wait = ranks.wait(GROUP, 1)
    ranks.returned("5.0.1", 1, "a")
    ranks.refused(GROUP, 1, "a", wait)
    assert found(ranks) == []


# --- no overtaking ----------------------------------------------------------------------------

OVERTAKEN = ["a: waits at 1 of group 5 with priority -7, and one of 0 was leased"]


def test_a_lease_that_passes_over_a_more_urgent_item_is_found():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN)
    leases(ranks, 20, 2, PLAIN)
    assert found(ranks) == OVERTAKEN


def test_a_lease_in_the_order_of_priorities_is_not():
    ranks = Ranks()
    produced(ranks, PLAIN, URGENT)
    leases(ranks, 20, 2, URGENT)
    leases(ranks, 30, 1, PLAIN, lease=2)
    assert found(ranks) == []
    assert ranks.compared == 1


def test_an_item_that_was_leased_before_the_answer_to_its_produce_is_not_said_to_wait():
    ranks = Ranks()
    ranks.producing(("a", "b"), (URGENT, PLAIN), 10, keyed=False)
    leases(ranks, 20, 1, URGENT)
    ranks.stored(GROUP, 1, "a")
    leases(ranks, 30, 2, PLAIN, lease=2)
    assert found(ranks) == []


def test_an_item_that_was_retried_waits_again():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN)
    leases(ranks, 20, 1, URGENT)
    ranks.returned("5.0.1", 1, "a")
    leases(ranks, 30, 2, PLAIN, lease=2)
    assert found(ranks) == OVERTAKEN


def test_an_item_that_was_leased_again_before_the_answer_to_its_retry_does_not_wait():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN)
    leases(ranks, 20, 1, URGENT)
    leases(ranks, 30, 1, URGENT, lease=2)
    ranks.returned("5.0.1", 1, "a")
    leases(ranks, 40, 2, PLAIN, lease=3)
    assert found(ranks) == []


def test_an_item_with_a_lower_priority_by_a_change_may_be_passed_over_from_the_call_on():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN)
    ranks.changing(20, ("a",), 3)
    leases(ranks, 30, 2, PLAIN)
    assert found(ranks) == []


def test_an_item_that_has_become_more_urgent_may_not():
    ranks = Ranks()
    produced(ranks, 3, PLAIN)
    ranks.changed(30, ranks.changing(20, ("a",), URGENT), ("a",), ())
    leases(ranks, 40, 2, PLAIN)
    assert found(ranks) == OVERTAKEN


def test_a_repeated_grant_overtakes_nothing():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN)
    leases(ranks, 20, 2, PLAIN, repeated=True)
    assert found(ranks) == []


def test_a_lease_that_takes_nothing_overtakes_nothing():
    ranks = Ranks()
    produced(ranks, URGENT)
    refusal = Refusal(ErrorCode.ITEM_TOO_LARGE, "the next item has 10 bytes; max_bytes is 1")
    ranks.granted(20, GROUP, LeaseResult((LeaseGrant(0, 0, ()), refusal), 0))
    assert found(ranks) == []


def test_items_of_other_partitions_are_not_compared():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN)
    segment = LeasedSegment(2, 1, 1, 1, 10, priority=PLAIN)
    ranks.granted(20, GROUP + 1, LeaseResult((LeaseGrant(1, 1_000, (segment,)),), 0))
    assert found(ranks) == []


def test_nothing_is_claimed_of_items_with_a_key():
    ranks = Ranks()
    produced(ranks, URGENT, PLAIN, keyed=True)
    leases(ranks, 20, 2, PLAIN)
    assert found(ranks) == []


def test_nothing_is_claimed_of_the_order_where_payloads_are_damaged():
    ranks = Ranks(trusts_order=False)
    produced(ranks, URGENT, PLAIN)
    leases(ranks, 20, 2, PLAIN)
    assert found(ranks) == []
