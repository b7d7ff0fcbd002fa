"""Priorities: the order of leases, what keeps a priority, and what gives another one."""

from struct import pack
from typing import Any

import msgspec
import pytest

from querator.model.commands import (
    Activate,
    ItemsChanged,
    ItemSpecial,
    LeaseItems,
    Move,
    Prioritize,
    Produce,
    RepairTime,
    Retry,
    Route,
    Unhold,
)
from querator.model.entries import Tier
from querator.model.errors import ErrorCode
from querator.model.limits import BLOCK_ITEMS_MAX, PRIORITIZE_ITEMS_MAX, PRIORITY_MAX, PRIORITY_MIN
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import queries, reader_queries, segments
from querator.partition.needs import need
from querator.partition.rows import RowState, Segment, decode_segment, encode_segment
from querator.partition.segments import segments_of
from querator.storage.tables import READY, SCHEDULED, SEGMENTS
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to, lease_of, seqs
from tests.unit.partition.scenario_language import run

SCENARIOS = {
    "the lowest priority first, and of one priority the first to become ready": """
        configure
        produce 6 priorities=5,-1,0,5,-1,0 -> 1-6
        produce 2 priorities=-1,-2 -> 7-8
        lease 3 -> 8 2 5
        lease 3 -> 7 3 6
        lease 3 -> 1 4
    """,
    "callers share in the order of leasing": """
        configure
        produce 4 priorities=1,0,1,0 -> 1-4
        lease 2 2 -> 2 4 | 1 3
    """,
    "the lowest and the highest of 32 bits": """
        configure
        produce 3 priorities=2147483647,0,-2147483648 -> 1-3
        lease 3 -> 3 2 1
    """,
    "a retried item keeps its priority, and is last of it": """
        configure
        produce 4 priorities=3,0,0,3 -> 1-4
        lease 2 -> 2-3
        retry L1 2 -> done 2
        retry L1 3 -> done 3
        lease 9 -> 2x2 3x2 1 4
    """,
    "a released item is first of its priority again": """
        configure
        produce 4 priorities=3,-1,-1,3 -> 1-4
        lease 1 -> 2
        retry L1 free -> done 2
        lease 9 -> 2 3 1 4
    """,
    "a lapsed item keeps its priority": """
        configure
        produce 3 priorities=3,-1,-1 -> 1-3
        lease 1 timeout=1000 -> 2
        wait 1000
        lease 9 -> 3 2x2 1
    """,
    "a retry gives another priority": """
        configure
        produce 3 priorities=1,1,0 -> 1-3
        lease 1 -> 3
        retry L1 priority=2 -> done 3
        lease 9 -> 1-2 3x2
    """,
    "a retry for later gives another priority": """
        configure
        produce 3 priorities=1,1,0 -> 1-3
        lease 1 -> 3
        retry L1 in=1000 priority=2 -> done 3
        wait 1000
        lease 9 -> 1-2 3x2
    """,
    "a release with another priority is last of it": """
        configure
        produce 3 priorities=0,1,1 -> 1-3
        lease 1 -> 1
        retry L1 free priority=1 -> done 1
        lease 9 -> 2-3 1
    """,
    "scheduled items keep their priorities, and come due by time": """
        configure
        produce 3 in=1000 priorities=2,-2,0 -> 1-3
        produce 1 in=2000 priorities=-5 -> 4
        wait 1000
        lease 9 -> 2 3 1
        wait 1000
        lease 9 -> 4
    """,
    "waiting and scheduled items change their priority": """
        configure
        produce 4 -> 1-4
        produce 1 in=1000 -> 5
        prioritize 3-5 to=-1 -> 3
        prioritize 3-5 to=-1 -> 0
        prioritize 3 to=1 -> 1
        wait 1000
        lease 9 -> 4 5 1-2 3
    """,
    "items that are leased, gone or unknown do not": """
        configure
        produce 3 -> 1-3
        lease 2 -> 1-2
        complete L1 1 -> done 1
        prioritize 1-4 to=7 -> 1 missing 1-2 4
        retry L1 2 -> done 2
        lease 9 -> 2x2 3
    """,
    "a changed item is last of its new priority": """
        configure
        produce 3 -> 1-3
        prioritize 2 to=1 -> 1
        prioritize 2 to=0 -> 1
        lease 9 -> 1 3 2
    """,
    "items with other attempts change together, and are in the order of their sequences": """
        configure
        produce 4 -> 1-4
        lease 3 -> 1-3
        retry L1 2 free -> done 2
        retry L1 1 3 -> done 1 3
        prioritize 1-4 to=-1 -> 4
        lease 9 -> 1x2 2 3x2 4
    """,
    "a rescheduled item keeps its priority": """
        configure
        produce 3 in=5000 priorities=1,0,1 -> 1-3
        move 1-2 in=9000 -> 2
        run 1-3 -> 3
        lease 9 -> 2 3 1
    """,
    "attempts that are used up end an item of any priority": """
        configure max_attempts=1
        produce 2 priorities=-3,3 -> 1-2
        lease 9 -> 1 2
        retry L1 priority=5 -> done 1-2
        stats dead dropped ready -> 2 2 0
    """,
    "expired items of all priorities die": """
        configure
        produce 3 expire=1000 priorities=-3,0,3 -> 1-3
        wait 1000
        stats expired ready -> 3 0
    """,
    "a waiting item gains one step in each interval": """
        configure priority_aging_ms=1000
        produce 1 priorities=2 -> 1
        wait 1000
        produce 1 priorities=0 -> 2
        wait 1000
        produce 2 priorities=0,-1 -> 3-4
        lease 9 -> 2 4 1 3
    """,
    "an item of the highest number is leased at last": """
        configure priority_aging_ms=1000
        produce 1 priorities=5 -> 1
        wait 5000
        produce 1 priorities=-1 -> 2
        lease 1 -> 2
        produce 1 -> 3
        lease 1 -> 1
    """,
    "a released item keeps what it has gained, a retried item begins again": """
        configure priority_aging_ms=1000
        produce 2 priorities=2,2 -> 1-2
        wait 2000
        lease 2 -> 1-2
        retry L1 1 free -> done 1
        retry L1 2 -> done 2
        produce 1 priorities=1 -> 3
        lease 9 -> 1 3 2x2
    """,
    "what items have gained stays when the interval changes": """
        configure priority_aging_ms=1000
        produce 1 priorities=3 -> 1
        wait 3000
        configure
        produce 2 priorities=0,-1 -> 2-3
        wait 9000
        produce 1 priorities=-1 -> 4
        lease 9 -> 3 4 1 2
    """,
    "a longer interval lets no later item pass": """
        configure priority_aging_ms=1000
        wait 9000
        produce 1 priorities=1 -> 1
        configure priority_aging_ms=60000
        wait 60000
        produce 1 priorities=0 -> 2
        lease 9 -> 1 2
    """,
    "a queue without aging, and with aging later": """
        configure
        produce 1 priorities=9 -> 1
        wait 100000
        configure priority_aging_ms=1000
        wait 8000
        produce 1 priorities=0 -> 2
        wait 1000
        produce 1 priorities=0 -> 3
        lease 9 -> 2 1 3
    """,
    "scheduled items gain nothing before they are ready": """
        configure priority_aging_ms=1000
        produce 1 in=5000 priorities=1 -> 1
        wait 5000
        produce 1 priorities=0 -> 2
        lease 9 -> 2 1
    """,
    "readers take the lowest priority first, and give items back to it": """
        configure
        produce 4 priorities=2,-2,2,-2 -> 1-4
        open lake -> 1
        advance lake 1 0 3 -> 1: 2 4 1
        release lake 1 -> 3
        lease 9 -> 2x2 4x2 1x2 3
    """,
    "a released batch keeps what its items have gained": """
        configure priority_aging_ms=1000
        produce 1 priorities=2 -> 1
        open lake -> 1
        advance lake 1 0 3 -> 1: 1
        wait 3000
        produce 1 -> 2
        release lake 1 -> 1
        lease 9 -> 1x2 2
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str):
    run(SCENARIOS[name])


def special(*priorities: int, **more: Any) -> tuple[ItemSpecial, ...]:
    return tuple(ItemSpecial(n, priority=one, **more) for n, one in enumerate(priorities))


def new_log(**settings: Any) -> PartitionLog:
    log = PartitionLog()
    log.configure(**settings)
    return log


def test_a_lease_says_the_priority_of_its_items():
    log = new_log()
    log.produce(3, specials=special(PRIORITY_MIN, 0, PRIORITY_MAX))
    grant = log.one(lease_of(9)).grants[0]
    assert [segment.priority for segment in grant.segments] == [PRIORITY_MIN, 0, PRIORITY_MAX]


def test_a_repeated_lease_has_the_items_in_the_same_order():
    """Items with lease timeouts of their own are under several leases."""
    log = new_log()
    specials = special(3, -3, 0, lease_timeout_ms=5_000)
    log.produce(4, specials=(*specials, ItemSpecial(3)))
    asked = lease_of(9, request_id="r")
    first, again = log.one(asked).grants[0], log.one(asked).grants[0]
    assert again.repeated
    assert seqs(first) == seqs(again) == [2, 3, 4, 1]
    assert [one.priority for one in first.segments] == [one.priority for one in again.segments]


def test_a_dead_letter_keeps_its_priority():
    log = new_log(dead_targets=dead_to(9))
    log.produce(2, specials=special(4, -4))
    lease = log.one(lease_of(9)).grants[0].lease
    log.one(Retry((LeaseItems(lease),), dead=True, priority=None))
    with log.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, GROUP)
    assert batch is not None
    assert [(item.origin_seq, item.priority) for item in batch.items] == [(2, -4), (1, 4)]
    other = PartitionLog(group=9)
    other.configure(queue="dead")
    other.one(Move(GROUP, 1, batch.lengths, batch.items), batch.attachment)
    other.produce(1)
    assert [one.priority for one in other.one(lease_of(9)).grants[0].segments] == [-4, 0, 4]


def test_items_of_a_command_are_bounded():
    log = new_log()
    log.produce(3)
    refused = log.one(Prioritize(((1, PRIORITIZE_ITEMS_MAX + 1),), 1))
    assert (refused.code, refused.field) == (ErrorCode.LIMIT_EXCEEDED, "item_ids")
    assert (refused.limit, refused.value) == ("1000 items", "1001 items")
    most = log.one(Prioritize(((1, PRIORITIZE_ITEMS_MAX),), 1))
    assert most == ItemsChanged(3, ((4, PRIORITIZE_ITEMS_MAX - 3),))


def test_a_change_needs_space_like_a_lease():
    log = new_log()
    with log.environment.snapshot() as txn:
        assert need(txn, GROUP, Prioritize(((1, 1),), 5)).tier is Tier.LEASES


def test_every_item_of_many_blocks_writes_no_more_than_was_announced():
    """Each item has a priority of its own, and then all get the same one, and back."""
    log = new_log()
    log.checked = False
    log.produce(1_000, specials=special(*range(-500, 500)))
    assert log.one(Prioritize(((1, 1_000),), 7)).changed == 999
    with log.environment.snapshot() as txn:
        assert len(list(READY.rows(txn, GROUP))) == 4 + 1
    for n in range(0, 1_000, 2):
        log.one(Prioritize(((n + 1, 1),), -7))
    log.checked = True
    assert log.one(Prioritize(((1, 1_000),), -7)).changed == 500
    log.one(lease_of(1_000))


def test_scheduled_items_that_are_changed_one_by_one_are_joined():
    """Those of one time. The other ones stay apart, and so do those with other attempts."""
    log = new_log()
    log.checked = False
    due = [(log.now_ms + 1_000, log.now_ms + 2_000)[n >= 200] for n in range(BLOCK_ITEMS_MAX)]
    specials = tuple(ItemSpecial(n, due_ms) for n, due_ms in enumerate(due))
    log.produce(BLOCK_ITEMS_MAX, specials=specials)
    for seq in range(BLOCK_ITEMS_MAX, 0, -1):
        assert log.one(Prioritize(((seq, 1),), 5)) == ItemsChanged(1)
    with log.environment.snapshot() as txn:
        found = [
            (one.locator, one.mask.bit_count(), one.priority) for one in segments_of(txn, GROUP, 1)
        ]
        indexed = len(list(SCHEDULED.rows(txn, GROUP)))
    assert found == [(due[0], 200, 5), (due[-1], BLOCK_ITEMS_MAX - 200, 5)]
    assert indexed == 2
    log.checked = True
    log.now_ms = due[-1]
    log.one(Activate())
    assert seqs(log.one(lease_of(1_000)).grants[0]) == list(range(1, BLOCK_ITEMS_MAX + 1))


def test_items_of_a_moved_key_keep_their_priority_while_they_are_held():
    """Two of four partitions: items of slots that came from partition 0 wait for it."""
    log = new_log(partition=2)
    log.one(Route(1, 2, open=True))
    log.one(Route(2, 4, open=True, before=2))
    slots = pack("<4H", 2, 2, 2, 0xFFFF)
    command = Produce(
        pack("<4I", 1, 1, 1, 1), specials=special(5, -5, 0, 0), slots=slots, routing=2
    )
    log.one(command, b"wxyz")
    assert log.one(Prioritize(((3, 2),), 9)).changed == 2
    with log.environment.snapshot() as txn:
        found = {(one.priority, one.state) for one in segments_of(txn, GROUP, 1)}
    assert found == {
        (5, RowState.HELD), (-5, RowState.HELD), (9, RowState.HELD), (9, RowState.READY),
    }  # fmt: skip
    log.one(Unhold(2, b"\x01"))
    assert seqs(log.one(lease_of(9)).grants[0]) == [2, 1, 3, 4]


def test_a_held_item_keeps_its_age_also_when_its_priority_changes():
    log = new_log(partition=1, priority_aging_ms=1_000)
    log.one(Route(1, 1, open=True))
    log.one(Route(2, 2, open=True, before=1))
    held = Produce(pack("<2I", 1, 1), specials=special(2, 9), slots=pack("<2H", 1, 1), routing=2)
    log.one(held, b"ab")
    log.now_ms += 3_000
    log.produce(1, slots=pack("<H", 0xFFFF), routing=2)
    assert log.one(Prioritize(((2, 1),), 1)).changed == 1
    with log.environment.snapshot() as txn:
        assert {one.state for one in segments_of(txn, GROUP, 1)} == {RowState.HELD}
    log.one(Unhold(2, b"\x01"))
    assert seqs(log.one(lease_of(9)).grants[0]) == [2, 1, 3]


def test_the_age_goes_on_when_state_time_goes_back():
    log = new_log(priority_aging_ms=1_000)
    log.now_ms += 9_000
    log.produce(1, specials=special(1))
    log.now_ms -= 5_000
    log.one(RepairTime(log.now_ms))
    log.produce(1)
    log.now_ms += 1_000
    log.produce(1)
    assert seqs(log.one(lease_of(9)).grants[0]) == [2, 1, 3]


def test_a_reader_takes_up_to_a_position_of_every_priority():
    log = new_log()
    for priority in (0, 3, -3):
        log.produce(1, specials=special(priority))
    position = log.one(OpenReader("lake")).position
    for priority in (0, 3, -3, -9, 9):
        log.produce(1, specials=special(priority))
    asked = AdvanceReader("lake", 1, 0, 9, 10**6, upto_position=position)
    with log.environment.snapshot() as txn:
        assert reader_queries.outlook(txn, GROUP, asked).ready == 8
    assert log.one(asked).batch.count == 3
    done = AdvanceReader("lake", 1, 1, 9, 10**6, upto_position=position)
    assert log.one(done).batch is None
    with log.environment.snapshot() as txn:
        assert reader_queries.outlook(txn, GROUP, done).ready == 0
    assert seqs(log.one(lease_of(9)).grants[0]) == [7, 6, 4, 5, 8]


def test_a_reader_passes_over_a_bounded_number_of_lanes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segments, "LANES_PASSED_MAX", 3)
    log = new_log()
    for priority in (2, 9):
        log.produce(1, specials=special(priority))
    position = log.one(OpenReader("lake")).position
    for priority in range(9):
        log.produce(1, specials=special(priority))
    taken = log.one(AdvanceReader("lake", 1, 0, 9, 10**6, upto_position=position)).batch
    assert taken.count == 1
    rest = AdvanceReader("lake", 1, 1, 9, 10**6, upto_position=position)
    assert log.one(rest).batch is None
    with log.environment.snapshot() as txn:
        assert reader_queries.outlook(txn, GROUP, rest).ready == 0


def test_the_oldest_ready_item_is_the_oldest_of_all_priorities():
    log = new_log()
    log.produce(1, specials=special(9))
    old_ms = log.now_ms
    log.now_ms += 5_000
    log.produce(2, specials=special(-9))
    with log.environment.snapshot() as txn:
        assert queries.stats(txn, GROUP).oldest_ready_at_ms == old_ms


def test_peek_and_scans_show_the_priority():
    log = new_log()
    log.produce(3, specials=special(4, 0, 0))
    log.one(Prioritize(((2, 1),), -4))
    with log.environment.snapshot() as txn:
        page = queries.peek(txn, GROUP, None, after_seq=0, limit=9, bytes_max=10**6)
    assert [item.priority for item in page.items] == [4, -4, 0]


def test_a_segment_of_priority_0_has_the_bytes_that_it_always_had():
    plain = Segment(state=2, attempt=3, releases=4, position=5, locator=6, mask=0b1011)
    row = bytes.fromhex("020000000304000000000000000500000000000000060b")
    assert encode_segment(plain) == row
    assert decode_segment(row) == plain
    for priority in (PRIORITY_MIN, -1, 0, 1, PRIORITY_MAX):
        for age in (0, 1, 2**64 - 1):
            other = msgspec.structs.replace(plain, priority=priority, age=age)
            assert decode_segment(encode_segment(other)) == other


def test_the_flow_and_place_of_a_segment_stand_before_its_mask():
    plain = Segment(state=3, attempt=3, releases=4, position=5, locator=6, mask=0b1011)
    keyed = msgspec.structs.replace(plain, flow=7, place=8)
    row = "43000000030400000000000000050000000000000006000000000000000700000000000000080b"
    assert encode_segment(keyed).hex() == row
    assert decode_segment(bytes.fromhex(row)) == keyed
    both = msgspec.structs.replace(keyed, priority=-1, age=2)
    assert decode_segment(encode_segment(both)) == both


def test_a_plain_block_stays_one_segment():
    log = new_log()
    log.produce(BLOCK_ITEMS_MAX)
    with log.environment.snapshot() as txn:
        assert len(list(SEGMENTS.rows(txn, GROUP))) == 1
