"""The checker of recurrences finds each kind of wrong run."""

from querator.model.recurrences import RunsRow
from tests.simulation.whole.runs import Runs, reference_of

GROUP = 0
CREATED_MS = 10_500


def fired(*due_ms: int, **changes: int) -> Runs:
    """A recurrence of each second with these items, which was deleted when all were decided."""
    runs = Runs()
    runs.made("r", 1_000, CREATED_MS)
    for number, due in enumerate(due_ms, 1):
        runs.delivered(GROUP, [(number, reference_of("r", number, due))])
    after_ms = changes.pop("after_ms", due_ms[-1] if due_ms else CREATED_MS)
    row = RunsRow(after_ms, fired=changes.pop("fired", len(due_ms)), **changes)  # type: ignore[arg-type]
    runs.deleted("r", after_ms)
    runs.ended("r", after_ms, row)
    return runs


def found(runs: Runs, apart_ms: int = 0) -> list[str]:
    return list(runs.judge(apart_ms))


def test_one_item_for_each_due_time_is_right():
    runs = fired(11_000, 12_000, 13_000)
    # A lease may lapse, and the item comes again.
    runs.delivered(GROUP, [(2, reference_of("r", 2, 12_000))])
    assert found(runs) == []
    assert runs.compared == 1


def test_a_recurrence_without_any_item_is_judged():
    assert found(fired()) == []
    assert found(fired(after_ms=14_000)) == ["r: 4 due times have passed, and 0 are decided"]


def test_two_items_for_one_due_time_are_found():
    runs = fired(11_000, 12_000)
    runs.delivered(GROUP, [(9, reference_of("r", 2, 12_000))])
    assert found(runs) == ["r/2/12000: has 2 items"]


def test_items_of_a_key_that_come_in_another_order_are_found():
    for home, wrong in ((None, []), (GROUP, ["r: its items came in the order [2, 1]"])):
        runs = Runs()
        runs.made("r", 1_000, CREATED_MS, home=home)
        for number, due_ms in ((2, 12_000), (1, 11_000), (2, 12_000)):
            runs.delivered(GROUP, [(number, reference_of("r", number, due_ms))])
        assert found(runs) == wrong


def test_an_item_in_another_partition_than_its_key_is_found():
    runs = Runs()
    runs.made("r", 1_000, CREATED_MS, home=GROUP + 1)
    runs.delivered(GROUP, [(1, reference_of("r", 1, 11_000))])
    assert found(runs) == ["r: its items are in the partitions [0], its key in 1"]


def test_a_due_time_with_two_numbers_is_found():
    assert "r: its due times are not in the order of its numbers" in found(
        fired(11_000, 11_000, after_ms=12_000)
    )


def test_due_times_out_of_order_are_found():
    assert "r: its due times are not in the order of its numbers" in found(
        fired(12_000, 11_000, after_ms=12_000)
    )


def test_a_lost_number_is_found():
    runs = Runs()
    runs.made("r", 1_000, CREATED_MS)
    for number in (1, 3):
        runs.delivered(GROUP, [(number, reference_of("r", number, 10_000 + number * 1_000))])
    assert found(runs) == ["r: its items have the numbers [1, 3]"]


def test_a_lost_due_time_is_found_unless_it_is_counted():
    assert found(fired(11_000, 13_000)) == ["r: 3 due times have passed, and 2 are decided"]
    assert found(fired(11_000, 13_000, skipped=1)) == []
    assert found(fired(11_000, 13_000, missed=1)) == []


def test_a_lost_item_is_found():
    assert found(fired(11_000, 12_000, fired=3, after_ms=13_000)) == [
        "r: it has 2 items, and says 3"
    ]


def test_an_instant_that_is_no_due_time_is_found():
    assert "r: 11500 is no due time of it" in found(fired(11_500, after_ms=11_900))
    assert "r: 10000 is no due time of it" in found(fired(10_000, after_ms=10_900))


def test_a_changed_recurrence_may_lose_due_times():
    runs = fired(11_000, 13_000)
    runs.changed("r")
    assert found(runs) == []
    assert runs.compared == 0


def test_a_run_while_it_is_paused_is_found():
    runs = fired(11_000, 12_000, 13_000)
    runs.changed("r")
    runs.rested("r", 11_500, 12_500)
    assert found(runs) == ["r: 12000 has an item, it was paused from 11500"]
    assert found(runs, apart_ms=600) == []


def test_a_run_after_the_deletion_is_found():
    runs = fired(11_000, 12_000, 13_000)
    runs.deleted("r", 12_500)
    assert found(runs) == ["r: 13000 has an item, it was deleted at 12500"]
    assert found(runs, apart_ms=600) == []


def test_a_decision_that_comes_too_late_is_found():
    runs = fired(11_000, 12_000)
    runs.ended("r", 17_000, RunsRow(12_000, fired=2))
    assert found(runs) == ["r: at 17000 it is decided up to 12000 only"]
