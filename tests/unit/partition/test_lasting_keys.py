"""Dedup keys that count until their item is done."""

from typing import Any

import pytest

from querator.model.commands import (
    Adopt,
    Cancel,
    Complete,
    Configure,
    FreeKeys,
    ItemSpecial,
    LeaseItems,
    MoveReturn,
    Purge,
    RepairTime,
    Retry,
    Route,
)
from querator.model.errors import ErrorCode
from querator.model.limits import DAY_MS
from querator.model.queues import DedupUntil
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import dedup, dedup_export, dedup_rows
from querator.partition.dedup_export import AwayKeysQuery, ClosureQuery, FactsQuery, KeptKeysQuery
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import DEDUP_LASTING
from tests.unit.partition.partition_log import PartitionLog, dead_to, lease_of, settings

DONE = DedupUntil.DONE
# Slot 1 belongs to partition 0 of one and of three, and to partition 1 of two.
SLOT = b"\x01\x00"


def log_of(**changes: Any) -> PartitionLog:
    log = PartitionLog()
    log.configure(dedup_until=DONE, **changes)
    return log


def put(log: PartitionLog, *keys: str, **changes: Any) -> Any:
    specials = tuple(
        ItemSpecial(ordinal, dedup_key=key.encode()) for ordinal, key in enumerate(keys)
    )
    return log.produce(len(keys), specials=specials, **changes)


def first_of(result: Any) -> int | None:
    """The sequence of the item that has the key of the only item; None: it is stored."""
    return result.duplicates[0][1] if result.duplicates else None


def test_a_key_counts_until_its_item_is_completed():
    log = log_of(dedup_window_ms=1_000)
    put(log, "a", "b")
    log.advance(DAY_MS)
    assert first_of(put(log, "a")) == 1
    grant = log.one(lease_of(1)).grants[0]
    assert first_of(put(log, "a")) == 1, "a leased item is not done"
    log.one(Retry((LeaseItems(grant.lease),), retry_at_ms=log.now_ms + 5_000))
    assert first_of(put(log, "a")) == 1, "nor is one that returns later"
    log.advance(5_000)
    grant = log.one(lease_of(2)).grants[0]
    log.one(Complete((LeaseItems(grant.lease, ((1, 1),)),)))
    assert first_of(put(log, "a")) is None
    assert first_of(put(log, "b")) == 2


def test_a_key_counts_without_a_window():
    log = log_of(dedup_window_ms=0)
    put(log, "a")
    assert first_of(put(log, "a")) == 1


def test_one_request_repeats_a_key_of_its_own():
    log = log_of()
    assert put(log, "a", "b", "a").duplicates == ((2, 1),)


@pytest.mark.parametrize("dead", [(), dead_to(9)], ids=["dropped", "moved"])
@pytest.mark.parametrize(
    "how", ["expired", "attempts", "rejected", "lapsed", "cancelled", "purged"]
)
def test_an_item_that_dies_or_is_removed_frees_its_key(dead: Any, how: str):
    log = log_of(
        dead_targets=dead, max_attempts=1, expire_timeout_ms=0 if how != "expired" else 9_000
    )
    put(log, "a", "b")
    if how == "expired":
        log.advance(10_000)
    elif how == "cancelled":
        log.one(Cancel(((1, 2),)))
    elif how == "purged":
        log.one(Purge(0, 2, scheduled=True))
    else:
        grant = log.one(lease_of()).grants[0]
        if how == "lapsed":
            log.advance(40_000)
        else:
            log.one(Retry((LeaseItems(grant.lease),), dead=how == "rejected"))
    assert put(log, "a", "b").duplicates == ()


def test_an_item_that_returns_from_its_dead_queue_has_no_key():
    log = log_of(dead_targets=dead_to(9), max_attempts=1)
    put(log, "a")
    grant = log.one(lease_of()).grants[0]
    log.one(Retry((LeaseItems(grant.lease),)))
    log.one(MoveReturn(9))
    assert first_of(put(log, "a")) is None
    assert first_of(put(log, "a")) == 2


def test_readers_keep_and_free_keys():
    log = log_of()
    put(log, "a")
    log.one(OpenReader("lake"))
    log.one(AdvanceReader("lake", 1, 0, 5, 10**6))
    assert first_of(put(log, "a")) == 1
    log.one(ReleaseReader("lake", 1))
    assert first_of(put(log, "a")) == 1
    log.one(AdvanceReader("lake", 1, 0, 5, 10**6, skip_released=True))
    log.one(AdvanceReader("lake", 1, 2, 0, 10**6))
    assert first_of(put(log, "a")) is None


def test_a_change_of_the_setting_holds_for_later_keys():
    log = log_of(dedup_window_ms=1_000)
    put(log, "lasts")
    log.one(Configure(2, settings(dedup_window_ms=0)))
    assert first_of(put(log, "lasts")) == 1
    log.one(Configure(3, settings(dedup_window_ms=5_000)))
    put(log, "window")
    log.one(Configure(4, settings(dedup_window_ms=5_000, dedup_until=DONE)))
    assert first_of(put(log, "window")) == 3
    grant = log.one(lease_of()).grants[0]
    log.one(Complete((LeaseItems(grant.lease),)))
    assert first_of(put(log, "window")) == 3, "it was remembered for the window"
    assert first_of(put(log, "lasts")) is None
    log.advance(100_000)
    assert first_of(put(log, "window")) is None
    assert first_of(put(log, "window")) == 7


def test_keys_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dedup, "DEDUP_KEYS_MAX", 2)
    log = log_of()
    put(log, "a", "b")
    refusal = put(log, "c")
    assert (refusal.code, refusal.field) == (ErrorCode.TOO_MANY_DEDUP_KEYS, "dedup_key")
    assert (refusal.limit, refusal.value) == ("2", "3")
    assert "when its item completes or dies" in refusal.message
    log.one(Cancel(((1, 1),)))
    assert first_of(put(log, "c")) is None


def test_a_purge_counts_the_keys_that_it_frees(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("querator.partition.removals.APPLY_SEGMENTS_MAX", 5)
    log = log_of()
    for start in (0, 4, 8):
        put(log, *(f"k{number}" for number in range(start, start + 4)))
    result = log.one(Purge(0, 12, scheduled=True))
    assert (result.removed, result.next_seq) == (4, 5)


def test_keys_that_are_dated_ahead_are_redated():
    log = log_of()
    log.now_ms += DAY_MS
    put(log, "a")
    log.now_ms -= DAY_MS
    log.one(RepairTime(log.now_ms))
    log.advance(60_000)
    assert first_of(put(log, "a")) == 1
    with log.environment.snapshot() as txn:
        [(key, _)] = DEDUP_LASTING.rows(txn, log.group)
    at_ms, _ = DEDUP_LASTING.parts(key)
    assert isinstance(at_ms, int)
    assert at_ms <= log.now_ms


# --- another number of partitions ----------------------------------------------------------------


def pair() -> tuple[PartitionLog, PartitionLog]:
    environment = MemoryEnvironment()
    old, new = PartitionLog(environment), PartitionLog(environment, group=8)
    old.configure(dedup_until=DONE)
    new.configure(dedup_until=DONE, partition=1, first_seq=500)
    return old, new


def pages(log: PartitionLog, query: FactsQuery) -> tuple[dict[int, list[Any]], list[Any]]:
    """All facts by target, and the keys of all."""
    found: dict[int, list[Any]] = {}
    keys: list[Any] = []
    while True:
        with log.environment.snapshot() as txn:
            page = dedup_export.facts(txn, query)
        for target, facts in page.facts:
            found.setdefault(target, []).append(facts)
            keys += facts.keys
        if not page.after:
            return found, keys
        query = FactsQuery(query.group, query.before, query.partitions, page.after, query.since_ms)


def hand_over(logs: list[PartitionLog], before: int, partitions: int, version: int) -> None:
    for log in logs:
        log.one(Route(version, partitions, open=False, before=before))
    for log in logs[:before]:
        for target, found in pages(log, FactsQuery(log.group, before, partitions))[0].items():
            for facts in found:
                logs[target].one(Adopt(facts))
    for log in logs:
        log.one(Route(version, partitions, open=True, before=before))


def ask(log: PartitionLog, query: Any) -> Any:
    with log.environment.snapshot() as txn:
        return dedup_export.answer(txn, query)


def test_the_new_partition_of_a_key_asks_before_it_decides():
    old, new = pair()
    put(old, "a", slots=SLOT)
    hand_over([old, new], 1, 2, 1)
    refusal = put(new, "a", slots=SLOT, routing=1)
    assert (refusal.code, refusal.field) == (ErrorCode.ROUTING_CHANGED, dedup.UNSURE)
    assert refusal.value == "0:0:1"
    assert ask(old, KeptKeysQuery(old.group, (1, 2))) == (1,)
    special = (ItemSpecial(0, dedup_key=b"a", holder=(0, 1)),)
    assert new.produce(1, specials=special, slots=SLOT, routing=1).duplicates == ((0, 1, 0),)
    grant = old.one(lease_of()).grants[0]
    old.one(Complete((LeaseItems(grant.lease),)))
    assert ask(old, KeptKeysQuery(old.group, (1,))) == ()
    assert ask(new, AwayKeysQuery(new.group)) == ((0, 1),)
    assert ask(new, ClosureQuery(new.group)).away_keys == 1
    assert new.one(FreeKeys(((0, 1), (0, 2)))).changed == 1
    assert new.one(FreeKeys(((0, 1),))).changed == 0
    again = put(new, "a", slots=SLOT, routing=1)
    assert first_of(again) is None
    assert first_of(put(new, "a", slots=SLOT, routing=1)) == again.first_seq


def test_an_answer_about_another_item_decides_nothing():
    old, new = pair()
    put(old, "a", slots=SLOT)
    hand_over([old, new], 1, 2, 1)
    special = (ItemSpecial(0, dedup_key=b"a", holder=(0, 7)),)
    refusal = new.produce(1, specials=special, slots=SLOT, routing=1)
    assert refusal.code is ErrorCode.ROUTING_CHANGED


def test_a_repeat_gets_its_first_answer_without_a_question():
    old, new = pair()
    producer = (old.now_ms - 1_000).to_bytes(6, "big") + bytes(10)
    identity = {"producer_id": producer, "sequence": 1, "slots": SLOT}
    put(old, "a", **identity)
    hand_over([old, new], 1, 2, 1)
    again = put(new, "a", routing=1, **identity)
    assert (again.repeated, again.duplicates) == (True, ((0, 1, 0),))


def test_a_key_comes_back_to_the_partition_of_its_item():
    old, new = pair()
    put(old, "a", slots=SLOT)
    hand_over([old, new], 1, 2, 1)
    hand_over([old, new], 2, 1, 2)
    assert first_of(put(old, "a", slots=SLOT, routing=2)) == 1
    old.one(Cancel(((1, 1),)))
    assert first_of(put(old, "a", slots=SLOT, routing=2)) is None


def test_a_partition_that_had_a_key_does_not_bring_it_back():
    """The second partition learns of the item, and not that it is done. It hands nothing over, as
    the key belongs to another partition.
    """
    environment = MemoryEnvironment()
    logs = [PartitionLog(environment, group=7 + number) for number in range(3)]
    for number, log in enumerate(logs):
        log.configure(dedup_until=DONE, partition=number)
    put(logs[0], "a", slots=SLOT)
    hand_over(logs[:2], 1, 2, 1)
    hand_over(logs[:2], 2, 1, 2)
    logs[0].one(Cancel(((1, 1),)))
    _, keys = pages(logs[1], FactsQuery(logs[1].group, 1, 3))
    assert keys == []
    hand_over(logs[:2], 1, 2, 3)
    assert ask(logs[1], AwayKeysQuery(logs[1].group)) == ((0, 1),), "it is freed when it is asked"


def test_a_later_item_is_kept_when_facts_come_late():
    old, new = pair()
    put(old, "a", slots=SLOT)
    late = pages(old, FactsQuery(old.group, 1, 2))[0][1][0]
    hand_over([old, new], 1, 2, 1)
    old.one(Cancel(((1, 1),)))
    new.one(FreeKeys(((0, 1),)))
    new.now_ms += 1
    later = put(new, "a", slots=SLOT, routing=1)
    new.one(Adopt(late))
    assert first_of(put(new, "a", slots=SLOT, routing=1)) == later.first_seq


def test_items_elsewhere_are_listed_in_pages():
    old, new = pair()
    put(old, *"abcde", slots=SLOT * 5)
    hand_over([old, new], 1, 2, 1)
    with new.environment.snapshot() as txn:
        first = dedup_rows.away_items(txn, new.group, (0, 0), 3)
        assert first == ((0, 1), (0, 2), (0, 3))
        assert dedup_rows.away_items(txn, new.group, first[-1], 3) == ((0, 4), (0, 5))


def test_keys_that_came_while_facts_were_read_are_read_later():
    old, _ = pair()
    put(old, "a", slots=SLOT)
    since_ms = old.now_ms + 1
    old.now_ms = since_ms
    put(old, "b", slots=SLOT)
    assert [key.key for key in pages(old, FactsQuery(old.group, 1, 2, b"", since_ms))[1]] == [b"b"]
