"""The checker of retries: each of its rules finds what breaks it, and nothing else."""

import pytest

from querator.model.calls import DeadOrigin, LaterAttributes, LeasedRun, LoadedItems
from querator.model.commands import Attributes
from querator.partition.rows import DeadCause
from tests.simulation.timeline import MS
from tests.simulation.whole.tries import DEAD, QUEUE, Tries, Wish

GROUP, DEAD_GROUP = 5, 6
ONE: Attributes = (("try", "1"),)
TWO: Attributes = (("try", "2"),)
PLAIN = Wish(None, None)


@pytest.fixture
def tries() -> Tries:
    """Item a with sequence 1."""
    found = Tries(max_attempts=3)
    found.producing(["a"], [PLAIN])
    found.stored(50 * MS, GROUP, 1, "a")
    return found


def lease_id(lease: int, group: int = GROUP) -> str:
    return f"{group:x}.0.{lease:x}"


def retried(
    tries: Tries,
    lease: int,
    attributes: Attributes | None = None,
    *,
    error: str = "",
    group: int = GROUP,
    seq: int = 1,
    executed: bool | None = True,
) -> None:
    [change] = tries.retrying(lease_id(lease, group), {seq: "a"}, attributes, error)
    change.executed = executed


def delivers(
    tries: Tries,
    lease: int,
    attributes: Attributes | None = None,
    *,
    errors: tuple[str, ...] = (),
    group: int = GROUP,
    seq: int = 1,
    attempt: int = 1,
    letter: DeadOrigin | None = None,
    asked_us: int = 0,
    now_us: int = 0,
) -> None:
    overlay = LaterAttributes(0, letter, errors, attributes)
    loaded = LoadedItems(
        first_seq=seq, count=1, ordinals=(), produced_at_ms=0, items=b"", overlays=(overlay,)
    )
    run = LeasedRun(
        lease_id=lease_id(lease, group), queue=QUEUE if group == GROUP else DEAD, partition=0,
        attempt=attempt, deadline_ms=0, remaining_ms=1_000, repeated=False, loaded=loaded,
        priority=0,
    )  # fmt: skip
    tries.delivered(asked_us, now_us, run, {seq: "a"}, (GROUP,))


def dead(attempts: int = 3, reason: int = DeadCause.ATTEMPTS, *, age_ms: int = 0) -> DeadOrigin:
    return DeadOrigin(
        origin_queue=QUEUE, origin_partition=0, origin_seq=1, attempts=attempts, reason=reason,
        errors=(), produced_at_ms=1_000, died_at_ms=1_000 + age_ms,
    )  # fmt: skip


def found(tries: Tries) -> list[str]:
    return list(tries.judge(0))


# --- attributes -------------------------------------------------------------------------------


def test_an_item_has_none_before_a_retry(tries):
    delivers(tries, 1)
    assert found(tries) == []
    delivers(tries, 2, ONE)
    assert found(tries) == [f"a: delivered with attributes {ONE}, has [None]"]


def test_those_of_the_last_retry_before_the_lease_count(tries):
    retried(tries, 1, ONE)
    retried(tries, 3, TWO)
    delivers(tries, 2, ONE)
    delivers(tries, 4, TWO)
    assert found(tries) == []
    delivers(tries, 5, ONE)
    assert found(tries) == [f"a: delivered with attributes {ONE}, has [{TWO}]"]


def test_a_retry_without_any_leaves_them(tries):
    retried(tries, 1, ONE)
    retried(tries, 2)
    delivers(tries, 3)
    assert found(tries) == [f"a: delivered with attributes None, has [{ONE}]"]


@pytest.mark.parametrize("seen", [None, ONE])
def test_a_retry_without_an_answer_may_have_been_executed(tries, seen):
    retried(tries, 1, ONE, executed=None)
    delivers(tries, 2, seen)
    assert found(tries) == []


def test_a_refused_retry_changes_nothing(tries):
    retried(tries, 1, ONE, executed=False)
    delivers(tries, 2, ONE)
    assert found(tries) == [f"a: delivered with attributes {ONE}, has [None]"]


def test_a_dead_letter_keeps_them(tries):
    delivers(tries, 1)
    retried(tries, 1, ONE)
    delivers(tries, 1, ONE, group=DEAD_GROUP, seq=9, letter=dead())
    assert found(tries) == []
    delivers(tries, 2, group=DEAD_GROUP, seq=9, letter=dead())
    assert found(tries) == [f"a: delivered with attributes None, has [{ONE}]"]


def test_a_redriven_item_has_those_of_one_of_its_places(tries):
    delivers(tries, 1)
    retried(tries, 1, ONE)
    delivers(tries, 1, ONE, group=DEAD_GROUP, seq=9, letter=dead())
    retried(tries, 1, TWO, group=DEAD_GROUP, seq=9)
    delivers(tries, 7, TWO, seq=4)
    assert found(tries) == []
    delivers(tries, 8, seq=4)
    assert found(tries) == [f"a: delivered with attributes None, has [{ONE}, {TWO}]"]


# --- errors -----------------------------------------------------------------------------------


def test_errors_are_in_the_order_of_the_retries_at_most_five(tries):
    for lease in range(1, 8):
        retried(tries, lease, error=f"e{lease}")
    delivers(tries, 3, errors=("e1", "e2"))
    delivers(tries, 8, errors=("e3", "e4", "e5", "e6", "e7"))
    assert found(tries) == []
    delivers(tries, 9, errors=("e7",))
    assert len(found(tries)) == 1


def test_errors_are_not_judged_beside_a_retry_without_an_answer(tries):
    retried(tries, 1, error="e1", executed=None)
    delivers(tries, 2, errors=("e1",))
    delivers(tries, 3)
    assert found(tries) == []


# --- what items say ---------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "most"), [(None, 3), (1, 1), (5, 5), (0, 99)])
def test_no_attempt_is_beyond_the_limit(tries, limit, most):
    tries.producing(["a"], [Wish(limit, None)])
    delivers(tries, 1, attempt=most)
    assert found(tries) == []
    delivers(tries, 2, attempt=most + 1)
    assert found(tries) == ([] if limit == 0 else [f"a: attempt {most + 1} of {most}"])


def test_no_item_dies_of_other_attempts_than_its_limit(tries):
    tries.producing(["a"], [Wish(2, None)])
    delivers(tries, 1, group=DEAD_GROUP, seq=9, letter=dead(2))
    delivers(tries, 2, group=DEAD_GROUP, seq=9, letter=dead(1, DeadCause.REJECTED))
    assert found(tries) == []
    delivers(tries, 3, group=DEAD_GROUP, seq=9, letter=dead(3))
    assert found(tries) == ["a: died of 3 attempts, and has 2"]


def test_no_item_comes_back_before_its_wait(tries):
    tries.producing(["a"], [Wish(None, 1_500)])
    tries.waits(lease_id(1), 1, "a", 100 * MS)
    # A late delivery of the lease itself, and one in time.
    delivers(tries, 1, now_us=200 * MS)
    delivers(tries, 2, now_us=1_600 * MS)
    assert found(tries) == []
    delivers(tries, 3, now_us=1_000 * MS)
    assert list(tries.judge(700)) == []
    assert found(tries) == ["a: came back before its time, by 600 ms"]


def test_an_item_that_asks_for_no_wait_is_not_scheduled(tries):
    tries.peeked("a", is_scheduled=True)
    tries.producing(["a"], [Wish(None, 0)])
    tries.peeked("a", is_scheduled=False)
    assert found(tries) == []
    tries.peeked("a", is_scheduled=True)
    assert found(tries) == ["a: is scheduled, and asks for no wait"]


def test_no_item_dies_of_its_age_before_it_has_it(tries):
    tries.producing(["a"], [Wish(None, None, 2_500)])
    expired = DeadCause.EXPIRED
    delivers(tries, 1, group=DEAD_GROUP, seq=9, letter=dead(1, expired, age_ms=2_500))
    assert found(tries) == []
    delivers(tries, 2, group=DEAD_GROUP, seq=9, letter=dead(1, expired, age_ms=2_499))
    assert found(tries) == ["a: died at 2499 ms, and lives 2500"]


def test_no_item_is_leased_after_its_age(tries):
    tries.producing(["a"], [Wish(None, None, 2_500)])
    delivers(tries, 1, asked_us=3_550 * MS)
    # Another place: it has been redriven, and its age counts from then.
    delivers(tries, 2, seq=4, asked_us=9_000 * MS)
    assert found(tries) == []
    delivers(tries, 3, asked_us=3_600 * MS)
    assert list(tries.judge(50)) == []
    assert found(tries) == ["a: leased after its age, by 50 ms"]
