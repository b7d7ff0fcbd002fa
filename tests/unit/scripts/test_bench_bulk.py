"""The judgement of `make bulk`."""

from collections import Counter

import pytest

from querator.client.values import PartitionStats
from scripts.bench.bulk import found_problems, unbalanced


def total(**counts: int) -> PartitionStats:
    given = dict.fromkeys(PartitionStats.__struct_fields__, 0) | counts
    return PartitionStats(**given)  # type: ignore[arg-type]


def test_each_expected_item_once_and_permitted_ones_are_right():
    assert (
        found_problems(
            "q", Counter([b"a", b"b"]), expected=[b"a"], permitted=[b"b"], counts={"are left": 0}
        )
        == []
    )


@pytest.mark.parametrize(
    ("taken", "problem"),
    [
        ({b"a": 1}, "q: 1 items are missing"),
        ({b"a": 1, b"b": 2}, "q: 1 items came twice"),
        ({b"a": 1, b"b": 1, b"c": 1}, "q: 1 items came that should be gone"),
    ],
)
def test_other_items_are_problems(taken: dict[bytes, int], problem: str):
    assert found_problems("q", Counter(taken), expected=[b"a", b"b"], counts={}) == [problem]


def test_counts_that_are_not_zero_are_problems():
    assert found_problems("q", Counter(), expected=[], counts={"are left": 3, "x": 0}) == [
        "q: 3 are left"
    ]


@pytest.mark.parametrize(
    ("counts", "wrong"),
    [
        ({}, []),
        ({"completed": 4, "produced": 11}, ["more or fewer were completed than came"]),
        ({"leased": 1}, ["are left"]),
        ({"produced": 11}, ["are not accounted for"]),
    ],
)
def test_counts_of_a_purged_queue(counts: dict[str, int], wrong: list[str]):
    stats = total(**{"produced": 10, "completed": 3, "cancelled": 7, **counts})
    found = unbalanced(stats, completed=3)
    assert [name for name, number in found.items() if number] == wrong
