"""The judgement of `make replies`."""

import pytest

from querator.client import ItemId
from querator.client.replies import ItemResult
from querator.client.values import PartitionStats
from scripts.bench.replies import (
    REFUSAL,
    Outcome,
    Reply,
    answer_of,
    found_problems,
    is_refused,
    is_right,
)

ID = ItemId(0, 1)


def test_a_refusal_is_right_where_the_worker_refuses():
    assert is_refused(107)
    assert is_right(107, ItemResult(ID, "dead", error=REFUSAL))
    assert not is_right(107, ItemResult(ID, "completed", answer_of(107)))
    assert not is_right(107, ItemResult(ID, "dead", error="another"))


def test_an_answer_is_right_elsewhere():
    assert not is_refused(108)
    assert is_right(108, ItemResult(ID, "completed", b"11664"))
    assert not is_right(108, ItemResult(ID, "completed", b"11665"))
    assert not is_right(108, ItemResult(ID, "dead", error=REFUSAL))
    assert not is_right(108, ItemResult(ID, "none"))


def replies(**counts: int) -> list[Reply]:
    outcomes: list[Outcome] = ["answered", "refused", "wrong", "unknown"]
    return [Reply(0, one, 0.1, ID) for one in outcomes for _ in range(counts.get(one, 0))]


def total(**counts: int) -> PartitionStats:
    given = dict.fromkeys(PartitionStats.__struct_fields__, 0) | counts
    return PartitionStats(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "queue"),
    [
        ({"answered": 9, "refused": 1}, {"completed": 9, "dead": 1}),
        ({"answered": 9, "unknown": 1}, {"completed": 9}),
        ({"answered": 8, "refused": 1, "unknown": 1}, {"completed": 9, "dead": 1}),
        ({"answered": 9, "unknown": 1}, {"completed": 9, "ready": 1}),
    ],
)
def test_counts_that_balance(counts: dict[str, int], queue: dict[str, int]):
    assert found_problems(replies(**counts), 0, total(**queue)) == []


@pytest.mark.parametrize(
    "queue",
    [
        {"completed": 8},
        {"completed": 10},
        {"completed": 9, "dead": 1},
        {"completed": 9, "leased": 1},
    ],
)
def test_counts_that_do_not_balance(queue: dict[str, int]):
    [problem] = found_problems(replies(answered=9), 0, total(**queue))
    assert "9 requests were answered" in problem


def test_wrong_and_changed_answers_are_problems():
    assert found_problems(replies(answered=1, wrong=2), 3, total(completed=1))[:2] == [
        "2 requests have a wrong answer",
        "3 results were other ones at the second reading",
    ]
