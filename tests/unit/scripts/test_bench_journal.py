"""The partitions and the judgement of `make journal`."""

from pathlib import Path

from scripts.bench.journal import PARKED, RECORDS, Partition, Row, Work, results_of, works


def test_the_executions_record_and_the_others_are_parked(tmp_path: Path):
    partition = Partition(Work(300, 250), tmp_path / "data")
    try:
        assert partition.round(2) > 0
    finally:
        partition.close()


def rows(longest: float, most: float) -> list[Row]:
    costs = [10.0, 10.0, longest, 10.0, 10.0, most]
    return [
        Row(work.records, work.parked, cost) for work, cost in zip(works(1.0), costs, strict=True)
    ]


def test_the_works_are_those_of_the_limits():
    assert [(work.records, work.parked) for work in works(1.0)] == [
        *((records, 0) for records in RECORDS), *((RECORDS[0], parked) for parked in PARKED),
    ]  # fmt: skip


def test_a_cost_that_stays_meets_the_goals():
    found = results_of(rows(12.0, 8.0))
    assert (found.records_ratio, found.parked_ratio, found.problems) == (1.2, 0.8, [])


def test_a_cost_that_grows_is_named():
    records, parked = results_of(rows(13.0, 25.0)).problems
    assert records == "records: 1.3 times the cost, and the goal is 1.2"
    assert parked == "parked: 2.5 times the cost, and the goal is 1.2"
