"""Lists of live leases."""

from typing import Any

import pytest

from querator.model.commands import Complete, Extend, LeaseItems, RepairTime, Retry
from querator.model.lease_calls import LeaseSummary
from querator.partition import lease_queries
from querator.partition.lease_queries import LeaseSummaries, lease_summaries
from tests.unit.partition.partition_log import GROUP, START_MS, PartitionLog, lease_of

TIMEOUT_MS = 30_000


@pytest.fixture
def log() -> PartitionLog:
    """Three leases, a second apart: of ann, ben and ann, with 2, 3 and 1 items."""
    log = PartitionLog()
    log.configure()
    log.produce(10)
    for client, items in (("ann", 2), ("ben", 3), ("ann", 1)):
        log.one(lease_of(items, client_id=client))
        log.advance(1_000)
    return log


def listed(log: PartitionLog, **chosen: Any) -> LeaseSummaries:
    given: dict[str, Any] = {
        "client_id": "", "older_than_ms": 0, "after_lease": 0, "limit": 100,
    }  # fmt: skip
    with log.environment.snapshot() as txn:
        return lease_summaries(txn, GROUP, **(given | chosen))


def shown(log: PartitionLog, **chosen: Any) -> list[tuple[str, int]]:
    return [(one.client_id, one.items) for one in listed(log, **chosen).leases]


def test_live_leases_are_listed_from_the_oldest_on(log: PartitionLog):
    found = listed(log)
    assert found.after_lease == 0
    assert [one.client_id for one in found.leases] == ["ann", "ben", "ann"]
    first = found.leases[0]
    assert first == LeaseSummary(
        lease=first.lease,
        client_id="ann",
        granted_at_ms=START_MS,
        extended_at_ms=START_MS,
        deadline_ms=START_MS + TIMEOUT_MS,
        items=2,
    )


def test_an_extended_lease_keeps_its_age(log: PartitionLog):
    first = listed(log).leases[0]
    log.one(Extend((LeaseItems(first.lease).lease,), "", 60_000))
    again = listed(log).leases[0]
    assert again.granted_at_ms == first.granted_at_ms
    assert again.extended_at_ms == log.now_ms
    assert again.deadline_ms == log.now_ms + 60_000


def test_only_held_items_count_and_ended_leases_are_gone(log: PartitionLog):
    leases = listed(log).leases
    log.one(Complete((LeaseItems(leases[0].lease, ((1, 1),)), LeaseItems(leases[2].lease))))
    assert shown(log) == [("ann", 1), ("ben", 3)]
    log.one(Retry((LeaseItems(leases[0].lease),), count_attempt=False))
    assert shown(log) == [("ben", 3)]


def test_by_client(log: PartitionLog):
    assert shown(log, client_id="ann") == [("ann", 2), ("ann", 1)]
    assert shown(log, client_id="eve") == []


@pytest.mark.parametrize(
    ("older_than_ms", "expected"),
    [(2_000, [("ann", 2)]), (1_000, [("ann", 2), ("ben", 3)]), (2_001, []), (10**12, [])],
)
def test_by_age(log: PartitionLog, older_than_ms: int, expected: list[tuple[str, int]]):
    # The time of the last entry, which granted the third lease, is that of the partition.
    assert shown(log, older_than_ms=older_than_ms) == expected
    assert shown(log, older_than_ms=older_than_ms, client_id="ben") == [
        one for one in expected if one[0] == "ben"
    ]


def test_leases_of_a_later_time_are_listed_after_a_repair_of_time(log: PartitionLog):
    log.now_ms -= 10_000
    log.one(RepairTime(log.now_ms))
    assert shown(log) == [("ann", 2), ("ben", 3), ("ann", 1)]


@pytest.mark.parametrize("client_id", ["", "ann"])
def test_pages_continue_where_the_last_one_ended(log: PartitionLog, client_id: str):
    found: list[LeaseSummary] = []
    after = 0
    for _ in range(5):
        page = listed(log, client_id=client_id, after_lease=after, limit=1)
        found += page.leases
        after = page.after_lease
        if not after:
            break
    assert tuple(found) == listed(log, client_id=client_id).leases


def test_a_page_reads_a_bounded_number_of_leases(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease_queries, "SCAN_ROWS_MAX", 2)
    page = listed(log, older_than_ms=10**12)
    assert page.leases == ()
    assert page.after_lease > 0
    assert listed(log, older_than_ms=10**12, after_lease=page.after_lease) == LeaseSummaries((), 0)
