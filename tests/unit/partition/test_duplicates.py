"""Items that replace a waiting item of their dedup key, or move its start."""

from typing import Any

import pytest

from querator.model.commands import (
    Complete,
    ItemSpecial,
    LeaseItems,
    Retry,
)
from querator.model.errors import ErrorCode
from querator.model.item_options import OnDuplicate
from querator.model.queues import DedupUntil
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import queries
from querator.partition.rows import RowState
from tests.unit.partition.partition_log import PartitionLog, lease_of, produce, seqs

KEEP, REPLACE, BUMP = OnDuplicate
HOUR_MS = 3_600_000


def log_of(**changes: Any) -> PartitionLog:
    log = PartitionLog()
    log.configure(dedup_until=DedupUntil.DONE, **changes)
    return log


def special(
    log: PartitionLog,
    ordinal: int = 0,
    key: str = "k",
    what: OnDuplicate = REPLACE,
    delay_ms: int = 0,
    most_ms: int = HOUR_MS,
    **more: Any,
) -> ItemSpecial:
    return ItemSpecial(
        ordinal,
        log.now_ms + delay_ms if delay_ms else 0,
        dedup_key=key.encode(),
        on_duplicate=what,
        debounce_max_ms=most_ms if what is BUMP else 0,
        **more,
    )


def put(log: PartitionLog, payload: str, **more: Any) -> Any:
    return log.produce([payload.encode()], specials=(special(log, **more),))


def waiting(log: PartitionLog) -> dict[int, tuple[str, int]]:
    """State, and the ms until it is due, of each item."""
    with log.environment.snapshot() as txn:
        page = queries.peek(txn, log.group, None, after_seq=0, limit=1000, bytes_max=10**9)
    return {
        item.seq: (RowState(item.state).name, item.due_at_ms - log.now_ms if item.due_at_ms else 0)
        for item in page.items
    }


def leased(log: PartitionLog, items: int = 100) -> list[int]:
    return seqs(log.one(lease_of(items)).grants[0])


def counted(log: PartitionLog, *names: str) -> list[int]:
    with log.environment.snapshot() as txn:
        stats = queries.stats(txn, log.group)
    return [getattr(stats, name) for name in names]


def test_a_waiting_item_is_replaced_and_both_are_named():
    log = log_of()
    first = put(log, "old", what=KEEP)
    second = put(log, "new")
    assert (second.first_seq, second.duplicates, second.replaced) == (2, (), ((0, 1),))
    assert first.replaced == ()
    assert waiting(log) == {2: ("READY", 0)}
    third = put(log, "newest", what=KEEP)
    assert (third.duplicates, third.replaced) == (((0, 2),), ())
    assert counted(log, "produced", "replaced", "duplicates") == [2, 1, 1]


def test_the_place_of_a_replaced_item_is_kept():
    log = log_of()
    put(log, "a")
    log.produce(3)
    for _ in range(5):
        put(log, "a")
    assert leased(log, 2) == [9, 2], "it has not lost its turn"


def test_an_item_that_shares_its_place_is_replaced_at_the_tail_once():
    log = log_of()
    log.produce(3, specials=(ItemSpecial(1, dedup_key=b"k"),))
    put(log, "new")
    log.produce(1)
    put(log, "newer")
    assert leased(log) == [1, 3, 6, 5]


def test_items_of_a_request_keep_their_order_around_one_that_may_be_replaced():
    log = log_of()
    log.produce(4, specials=(special(log, 1), special(log, 2, "l")))
    assert leased(log) == [1, 2, 3, 4]


def test_another_priority_is_another_place():
    log = log_of()
    put(log, "a")
    log.produce(1)
    put(log, "a", priority=-1)
    put(log, "b", key="b")
    put(log, "a", priority=0)
    assert leased(log) == [2, 4, 5]


def test_a_released_item_comes_back_to_its_place_and_is_replaced_there():
    log = log_of()
    put(log, "a")
    log.produce(2)
    grant = log.one(lease_of(1)).grants[0]
    log.one(Retry((LeaseItems(grant.lease),), count_attempt=False))
    put(log, "b")
    assert leased(log) == [4, 2, 3]


def test_an_item_that_has_failed_is_replaced_with_all_its_attempts():
    log = log_of(max_attempts=2)
    put(log, "a")
    grant = log.one(lease_of(1)).grants[0]
    log.one(Retry((LeaseItems(grant.lease),), retry_at_ms=log.now_ms + 5_000, error="it fails"))
    put(log, "b")
    assert waiting(log) == {2: ("SCHEDULED", 5_000)}, "the wait of the retry stays"
    log.advance(5_000)
    grant = log.one(lease_of(1)).grants[0]
    assert grant.segments[0].attempt == 1


def test_a_replaced_item_leaves_its_due_time():
    log = log_of()
    put(log, "a", delay_ms=60_000)
    log.advance(20_000)
    put(log, "b", delay_ms=1)
    assert waiting(log) == {2: ("SCHEDULED", 40_000)}


@pytest.mark.parametrize("reader", [False, True])
def test_an_item_at_work_stays_and_the_new_one_has_the_key(reader: bool):
    log = log_of()
    put(log, "a")
    log.one(OpenReader("lake"))
    lease = 0
    if reader:
        log.one(AdvanceReader("lake", 1, 0, 5, 10**6))
    else:
        lease = log.one(lease_of(1)).grants[0].lease
    second = put(log, "b")
    assert (second.duplicates, second.replaced) == ((), ())
    assert put(log, "c", what=KEEP).duplicates == ((0, 2),)
    if reader:
        log.one(AdvanceReader("lake", 1, 1, 0, 10**6))
    else:
        log.one(Complete((LeaseItems(lease),)))
    assert put(log, "c", what=KEEP).duplicates == ((0, 2),), "its end frees no other key"
    assert put(log, "d").replaced == ((0, 2),)


def test_a_bumped_item_starts_later_up_to_its_limit():
    log = log_of()
    for turn in range(12):
        put(log, str(turn), what=BUMP, delay_ms=10_000, most_ms=30_000)
        [(state, due_ms)] = waiting(log).values()
        assert state == "SCHEDULED"
        assert due_ms == min(10_000, 30_000 - 4_000 * turn)
        log.now_ms += 4_000
        if 4_000 * (turn + 1) >= 28_000:
            break
    log.advance(2_000)
    assert waiting(log) == {7: ("READY", 0)}
    put(log, "after the limit", what=BUMP, delay_ms=10_000, most_ms=30_000)
    assert waiting(log) == {8: ("READY", 0)}, "the newest payload, at once"
    grant = log.one(lease_of(1)).grants[0]
    put(log, "again", what=BUMP, delay_ms=10_000, most_ms=30_000)
    assert waiting(log) == {8: ("LEASED", 0), 9: ("SCHEDULED", 10_000)}, "a time of its own"
    log.one(Complete((LeaseItems(grant.lease),)))


def test_a_ready_item_is_bumped_to_a_later_time():
    log = log_of()
    put(log, "a")
    put(log, "b", what=BUMP, delay_ms=5_000)
    assert waiting(log) == {2: ("SCHEDULED", 5_000)}
    put(log, "c", what=BUMP, delay_ms=1)
    assert waiting(log) == {3: ("READY", 0)}


def test_the_first_item_of_a_key_has_the_limit_too():
    log = log_of()
    put(log, "a", what=BUMP, delay_ms=50_000, most_ms=20_000)
    assert waiting(log) == {1: ("SCHEDULED", 20_000)}


def test_the_time_of_the_first_produce_stays_with_replaced_items():
    log = log_of()
    put(log, "a", what=KEEP, delay_ms=60_000)
    log.advance(10_000)
    put(log, "b")
    log.advance(10_000)
    put(log, "c", what=BUMP, delay_ms=30_000, most_ms=25_000)
    assert waiting(log) == {3: ("SCHEDULED", 5_000)}


def test_items_of_one_request_replace_each_other():
    log = log_of()
    result = log.produce(
        4,
        specials=(
            special(log, 0, what=KEEP),
            special(log, 1),
            special(log, 2, what=KEEP),
            special(log, 3, what=BUMP, delay_ms=7_000),
        ),
    )
    assert (result.duplicates, result.replaced) == (((2, 2),), ((1, 1), (3, 2)))
    assert waiting(log) == {4: ("SCHEDULED", 7_000)}
    assert counted(log, "produced", "replaced", "duplicates") == [3, 2, 1]


def test_requests_of_one_entry_replace_each_other():
    log = log_of()
    put(log, "a")
    log.produce(1)
    results = log.entry(
        *(produce([b"x"], specials=(special(log),)) for _ in range(3)),
        produce([b"y"], specials=(special(log, what=KEEP, key="l", delay_ms=9_000),)),
        produce([b"z"], specials=(special(log, key="l"),)),
    )
    assert [result.replaced for result in results] == [
        ((0, 1),), ((0, 3),), ((0, 4),), (), ((0, 6),),
    ]  # fmt: skip
    assert waiting(log) == {2: ("READY", 0), 5: ("READY", 0), 7: ("SCHEDULED", 9_000)}
    assert leased(log) == [5, 2], "the place passes from one to the next"


def test_a_repeated_request_names_the_replaced_item_again():
    log = log_of()
    put(log, "a")
    identity = {
        "producer_id": (log.now_ms - 1_000).to_bytes(6, "big") + bytes(10), "sequence": 1,
    }  # fmt: skip
    first = log.produce([b"b"], specials=(special(log),), **identity)
    again = log.produce([b"b"], specials=(special(log),), **identity)
    assert (again.repeated, again.first_seq, again.replaced) == (True, 2, first.replaced)
    assert waiting(log) == {2: ("READY", 0)}


def test_a_full_partition_takes_what_replaces():
    log = log_of(items_max=2)
    put(log, "a")
    log.produce(1)
    assert put(log, "b").replaced == ((0, 1),)
    assert put(log, "c", key="l").code is ErrorCode.QUEUE_FULL
    assert waiting(log) == {2: ("READY", 0), 3: ("READY", 0)}
    two = (special(log), special(log, 1, "l"))
    assert log.produce(2, specials=two).code is ErrorCode.QUEUE_FULL
    assert counted(log, "replaced") == [1], "a refused request replaces nothing"


def test_a_replaced_item_that_expires_is_gone():
    log = log_of(expire_timeout_ms=5_000)
    put(log, "a")
    log.advance(4_000)
    put(log, "b")
    log.advance(3_000)
    assert waiting(log) == {2: ("READY", 0)}
    log.advance(10_000)
    assert waiting(log) == {}
    assert put(log, "c", what=KEEP).duplicates == ()


def test_a_window_takes_nothing_over():
    log = PartitionLog()
    log.configure()
    put(log, "a")
    second = put(log, "b")
    assert (second.duplicates, second.replaced) == (((0, 1),), ())


def test_a_block_replaces_items_of_another_one():
    log = log_of()
    log.produce(100, specials=tuple(special(log, n, f"k{n}", KEEP) for n in range(100)))
    result = log.produce(33, specials=tuple(special(log, n, f"k{3 * n + 1}") for n in range(33)))
    assert result.replaced == tuple((n, 3 * n + 2) for n in range(33))
    assert counted(log, "produced", "replaced", "ready") == [133, 33, 100]
