"""The partitions and the judgement of `make worst`."""

from pathlib import Path

import pytest

from scripts.bench import worst_case
from scripts.bench.worst_case import BATCH, OUTSTANDING, Partition, Row, Work, results_of


@pytest.mark.parametrize(
    ("work", "waiting"),
    [
        (Work("plain", 10_000, 0), 10_000),
        (Work("groups", 10_000, 50), 10_000),
        (Work("worst", 10_000, 50), 10_000 - OUTSTANDING * BATCH),
    ],
    ids=["plain", "groups", "worst"],
)
def test_the_backlog_stays_while_it_works(tmp_path: Path, work: Work, waiting: int):
    partition = Partition(work, tmp_path / "data")
    try:
        assert partition.waiting() == waiting
        costs = partition.round(3)
        retried = partition.waiting() - waiting
        assert (0 < retried < BATCH) if work.is_worst else retried == 0
        assert min(costs) > 0
    finally:
        partition.close()


def test_a_lease_that_gets_less_ends_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    partition = Partition(Work("plain", 1_000, 0), tmp_path / "data")
    try:
        monkeypatch.setattr(worst_case, "BATCH", 1_001)
        with pytest.raises(RuntimeError, match="got 1000 of 1001 items"):
            partition.lease()
    finally:
        partition.close()


def row(kind: str, backlog: int, groups: int, *, lease: float = 1.0, whole: float = 10.0) -> Row:
    return Row(kind, backlog, groups, produce=1.0, lease=lease, settle=1.0, whole=whole)


def rows(worst: float, plain: float, lease: float) -> list[Row]:
    return [
        row("plain", 10, 0), row("plain", 1000, 0, whole=plain),
        row("worst", 10, 1000), row("worst", 1000, 1000, whole=worst),
        row("groups", 1000, 1, lease=0.1), row("groups", 1000, 1000),
        row("groups", 1000, 100_000, lease=lease),
    ]  # fmt: skip


def test_costs_that_stay_meet_the_goals():
    assert results_of(rows(12.0, 9.0, 1.2)).problems == []


def test_each_cost_that_grows_is_a_missed_goal():
    found = results_of(rows(12.1, 13.0, 1.3))
    assert (found.worst_ratio, found.plain_ratio, found.groups_ratio) == (1.21, 1.3, 1.3)
    assert found.problems == [
        "worst: 1.21 times the cost, and the goal is 1.2",
        "plain: 1.3 times the cost, and the goal is 1.2",
        "groups: 1.3 times the cost, and the goal is 1.2",
    ]
