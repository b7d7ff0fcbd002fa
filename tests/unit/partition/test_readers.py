"""Readers: named batches, epochs, and the fate of a batch's items."""

from typing import Any

import pytest

from querator.model.commands import LeaseItems, Refusal, Retry
from querator.model.errors import ErrorCode
from querator.model.limits import READERS_MAX
from querator.model.readers import AdvanceReader, NumberedBatch, OpenReader, ReleaseReader
from querator.partition import reader_queries
from querator.partition.readers import oldest_batch_at
from tests.unit.partition.partition_log import GROUP, START_MS, PartitionLog, lease_of
from tests.unit.partition.scenario_language import run

SCENARIOS = {
    "a batch is the same until it is acknowledged; then its items are gone": """
        configure
        produce 5 -> 1-5
        open lake -> 1
        advance lake 1 0 3 -> 1: 1-3
        advance lake 1 0 9 -> 1: 1-3
        advance lake 1 1 9 -> 2: 4-5
        advance lake 1 1 9 -> 2: 4-5
        advance lake 1 2 9 -> none
        advance lake 1 2 9 -> none
        stats ready reserved acknowledged completed bytes -> 0 0 5 0 0
    """,
    "consumers get what is not reserved": """
        configure
        produce 4 -> 1-4
        open lake -> 1
        advance lake 1 0 2 -> 1: 1-2
        lease 9 -> 3-4
        complete L1 1-2 -> lost 1-2
        advance lake 1 1 9 -> none
        retry L1 3 -> done 3
        advance lake 1 1 9 -> 2: 3x2
        stats leased reserved acknowledged delivered -> 1 1 2 2
    """,
    "acknowledging only reserves nothing": """
        configure
        produce 2 -> 1-2
        open lake -> 1
        advance lake 1 0 1 -> 1: 1
        advance lake 1 1 0 -> none
        stats ready reserved -> 1 0
    """,
    "a later epoch fences the earlier ones, and finds the batch": """
        configure
        produce 2 -> 1-2
        open lake -> 1
        advance lake 1 0 1 -> 1: 1
        open lake -> 2 1: 1 r1
        advance lake 1 1 1 -> READER_FENCED
        advance lake 2 0 1 -> 1: 1 r1
        open lake epoch=2 -> 2 1: 1 r1
        open lake epoch=1 -> READER_FENCED
        open lake epoch=7 -> 7 1: 1 r2
        advance lake 7 1 1 -> 2: 2
    """,
    "an epoch that was never opened is unknown": """
        configure
        produce 2 -> 1-2
        advance lake 1 0 1 -> READER_NOT_FOUND
        open lake -> 1
        advance lake 2 0 1 -> READER_NOT_FOUND
        release other 1 -> READER_NOT_FOUND
    """,
    "an acknowledgement must be of what was given out, and not behind": """
        configure
        produce 3 -> 1-3
        open lake -> 1
        advance lake 1 1 1 -> ACK_MISMATCH
        advance lake 1 0 1 -> 1: 1
        advance lake 1 2 1 -> ACK_MISMATCH
        advance lake 1 1 1 -> 2: 2
        advance lake 1 0 1 -> ACK_MISMATCH
        stats reserved acknowledged -> 1 1
    """,
    "a partition that has come back accepts what it cannot know": """
        configure first_seq=300
        produce 2 -> 300-301
        open lake -> 1
        advance lake 1 9 1 -> 10: 300
        advance lake 1 10 1 -> 11: 301
        advance lake 1 12 1 -> ACK_MISMATCH
    """,
    "released items are ready at their places, their attempt counted": """
        configure
        produce 4 -> 1-4
        open lake -> 1
        advance lake 1 0 3 -> 1: 1-3
        release lake 2 -> 0
        release lake 1 -> 3
        release lake 1 -> 0
        advance lake 1 1 9 -> BATCH_RELEASED
        lease 2 -> 1-2x2
        advance lake 1 0 9 -> 2: 3x2 4
        advance lake 1 1 9 -> BATCH_RELEASED
        advance lake 1 1 9 skip -> 2: 3x2 4
        advance lake 1 2 9 -> none
    """,
    "a released batch is skipped when told so": """
        configure
        produce 2 -> 1-2
        open lake -> 1
        advance lake 1 0 2 -> 1: 1-2
        release lake 1 -> 2
        advance lake 1 1 1 skip -> 2: 1x2
        stats ready reserved acknowledged -> 1 1 0
    """,
    "no time runs for what is reserved; it is judged when it is released": """
        configure expire_timeout_ms=10000 dead=9
        produce 3 -> 1-3
        open lake -> 1
        advance lake 1 0 2 -> 1: 1-2
        wait 60000
        stats ready reserved dead expired -> 0 2 1 1
        advance lake 1 0 2 -> 1: 1-2
        release lake 1 -> 2
        stats ready reserved dead expired moving -> 0 0 3 3 3
        outbox 9 -> from 1: 3/2x0 1/2x1 2/2x1
    """,
    "the items of a batch that is given up die, and the reader goes on behind it": """
        configure expire_timeout_ms=10000 dead=9
        produce 5 -> 1-5
        open lake -> 1
        advance lake 1 0 2 -> 1: 1-2
        release lake 2 dead -> 0
        release lake 1 dead -> 2
        release lake 1 dead -> 0
        release lake 1 -> 0
        outbox 9 -> from 1: 1/3x1 2/3x1
        advance lake 1 1 2 -> 2: 3-4
        stats ready reserved dead acknowledged moving -> 1 2 2 0 2
    """,
    "a batch that was given up may be passed over, or acknowledged late": """
        configure
        produce 5 -> 1-5
        open lake -> 1
        advance lake 1 0 1 -> 1: 1
        release lake 1 dead -> 1
        advance lake 1 0 1 -> 2: 2
        advance lake 1 1 1 -> 2: 2
        advance lake 1 0 1 -> ACK_MISMATCH
        release lake 2 dead -> 1
        advance lake 1 1 1 -> 3: 3
        advance lake 1 2 1 -> 3: 3
        release lake 3 -> 1
        advance lake 1 3 1 -> BATCH_RELEASED
        advance lake 1 2 1 -> 4: 3x2
        advance lake 1 4 9 -> 5: 4-5
        stats dead dropped acknowledged -> 2 2 1
    """,
    "what was released comes again though the batch after it was given up": """
        configure
        produce 2 -> 1-2
        open lake -> 1
        advance lake 1 0 1 -> 1: 1
        release lake 1 -> 1
        advance lake 1 0 1 -> 2: 1x2
        release lake 2 dead -> 1
        advance lake 1 1 1 -> BATCH_RELEASED
        advance lake 1 2 1 -> 3: 2
    """,
    "a release that uses up the attempts makes dead letters": """
        configure max_attempts=1
        produce 1 -> 1
        open lake -> 1
        advance lake 1 0 2 -> 1: 1
        release lake 1 -> 1
        stats ready dead dropped -> 0 1 1
    """,
    "what is dead is not reserved": """
        configure max_attempts=2 expire_timeout_ms=5000
        produce 1 -> 1
        lease 1 -> 1
        retry L1 -> done 1
        produce 1 -> 2
        configure max_attempts=1
        open lake -> 1
        advance lake 1 0 9 -> 1: 2
        stats dead expired -> 1 0
    """,
    "scheduled items come when they are due": """
        configure
        produce 2 in=5000 -> 1-2
        open lake -> 1
        advance lake 1 0 9 -> none
        wait 5000
        advance lake 1 0 9 -> 1: 1-2
    """,
    "bytes bound a batch, and one item always fits": """
        configure
        produce 5 -> 1-5
        open lake -> 1
        advance lake 1 0 9 bytes=3 -> 1: 1-3
        advance lake 1 1 9 bytes=0 -> 2: 4
        advance lake 1 2 9 bytes=1 -> 3: 5
    """,
    "a place in line bounds a batch": """
        configure
        produce 2 -> 1-2
        lease 1 -> 1
        retry L1 -> done 1
        produce 1 -> 3
        open lake -> 1
        advance lake 1 0 9 upto=1 -> 1: 2
        advance lake 1 1 9 upto=1 -> none
        advance lake 1 1 9 upto=2 -> 2: 1x2
        advance lake 1 2 9 -> 3: 3
    """,
    "readers share a queue like consumers do": """
        configure
        produce 4 -> 1-4
        open lake -> 1
        open pond -> 1
        advance lake 1 0 2 -> 1: 1-2
        advance pond 1 0 1 -> 1: 3
        advance lake 1 1 9 -> 2: 4
        advance pond 1 1 9 -> none
        release lake 2 -> 1
        advance pond 1 1 9 -> 2: 4x2
    """,
    "a removed reader gives its batch back and is unknown": """
        configure
        produce 2 -> 1-2
        open lake -> 1
        advance lake 1 0 1 -> 1: 1
        release lake 0 remove -> ACK_MISMATCH
        release lake 1 remove -> 1
        release lake 1 remove -> 0
        advance lake 1 1 1 -> READER_NOT_FOUND
        open lake -> 2
        advance lake 2 1 1 -> ACK_MISMATCH
        advance lake 2 0 9 -> 1: 1x2 2
    """,
    "what is left of a removed reader acknowledges nothing of one that was made anew": """
        configure
        produce 3 -> 1-3
        open lake -> 1
        advance lake 1 0 1 -> 1: 1
        release lake 1 remove -> 1
        open lake -> 2
        advance lake 2 0 9 -> 1: 1x2 2-3
        advance lake 1 1 9 -> READER_FENCED
        stats reserved acknowledged -> 3 0
        release lake 1 remove -> 3
        open pond -> 3
        open lake -> 3
        open lake epoch=2 -> READER_FENCED
    """,
    "a batch takes parts of blocks, and gives them back in order": """
        configure
        produce 6 -> 1-6
        lease 6 -> 1-6
        retry L1 2 4 free -> done 2 4
        open lake -> 1
        advance lake 1 0 9 -> 1: 2 4
        retry L1 1 3 5 free -> done 1 3 5
        release lake 1 -> 2
        lease 9 -> 1 2x2 3 4x2 5
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    run(SCENARIOS[name])


def batched(result: Any) -> NumberedBatch:
    batch: NumberedBatch = result.batch
    return batch


def advance(log: PartitionLog, ack: int, items: int = 1_000_000, size: int = 1 << 30) -> Any:
    return log.one(AdvanceReader("lake", 1, ack, items, size))


def test_a_batch_says_what_it_is():
    log = PartitionLog()
    log.configure()
    log.produce([b"abc", b"de"])
    log.now_ms += 500
    log.one(OpenReader("lake"))
    result = advance(log, 0)
    assert batched(result) == NumberedBatch(1, 2, 5, START_MS + 500, 0)
    assert (result.position, result.now_ms) == (1, START_MS + 500)
    log.now_ms += 700
    log.one(OpenReader("lake"))
    with log.environment.snapshot() as txn:
        [state] = reader_queries.readers(txn, GROUP)
        assert oldest_batch_at(txn, GROUP) == START_MS + 500
    assert (state.reader_id, state.epoch, state.acked_seq) == ("lake", 2, 0)
    assert (state.opened_at_ms, state.advanced_at_ms) == (START_MS + 1200, START_MS + 500)
    assert state.batch == NumberedBatch(1, 2, 5, START_MS + 500, 1)


def test_a_batch_is_bounded_by_segments(monkeypatch):
    monkeypatch.setattr("querator.partition.readers.BATCH_SEGMENTS_MAX", 3)
    log = PartitionLog()
    log.configure()
    for _ in range(4):
        log.produce(2)
    log.one(OpenReader("lake"))
    assert batched(advance(log, 0)).count == 6
    assert batched(advance(log, 1)).count == 2


def test_there_are_only_so_many_readers():
    log = PartitionLog(checked=False)
    log.configure()
    for number in range(READERS_MAX):
        assert not isinstance(log.one(OpenReader(f"r{number}")), Refusal)
    refused = log.one(OpenReader("lake"))
    assert (refused.code, refused.limit) == (ErrorCode.TOO_MANY_READERS, "100 readers")
    assert log.one(OpenReader("r7")).epoch == 2
    log.one(ReleaseReader("r7", 0, remove=True))
    log.checked = True
    assert log.one(OpenReader("lake")).epoch == 3


def test_a_mismatch_names_the_ways_out():
    log = PartitionLog()
    log.configure()
    log.produce(2)
    log.one(OpenReader("lake"))
    advance(log, 0, 1)
    advance(log, 1, 1)
    behind = advance(log, 0)
    assert isinstance(behind, Refusal)
    assert (behind.field, behind.limit, behind.value) == ("ack_seq", "1 to 2", "0")
    assert "adopt" in behind.message
    assert "another reader id" in behind.message


@pytest.mark.parametrize(
    ("ack", "items", "changes"),
    [(0, 9, False), (1, 9, True), (1, 0, True)],
)
def test_what_would_change_nothing_is_known_before(ack, items, changes):
    log = PartitionLog()
    log.configure()
    log.produce(5)
    log.one(OpenReader("lake"))
    with log.environment.snapshot() as txn:
        command = AdvanceReader("lake", 1, 0, 3, 1000)
        assert reader_queries.outlook(txn, GROUP, command).ready == 5
    advance(log, 0, 3)
    command = AdvanceReader("lake", 1, ack, items, 1000)
    with log.environment.snapshot() as txn:
        outlook = reader_queries.outlook(txn, GROUP, command)
    if changes:
        assert (outlook.result, outlook.ready) == (None, 2 if items else 0)
    else:
        assert outlook.result == log.one(command)


def test_an_empty_queue_needs_no_entry():
    log = PartitionLog()
    log.configure()
    log.one(OpenReader("lake"))
    for command in (
        AdvanceReader("lake", 1, 0, 9, 1000),
        AdvanceReader("lake", 1, 0, 9, 1000, upto_position=1),
    ):
        with log.environment.snapshot() as txn:
            outlook = reader_queries.outlook(txn, GROUP, command)
        assert outlook.result is not None
        assert (outlook.result.batch, outlook.ready) == (None, 0)
    log.produce(1)
    log.produce(1)
    beyond = AdvanceReader("lake", 1, 0, 9, 1000, upto_position=1)
    assert batched(log.one(beyond)).count == 1
    after = AdvanceReader("lake", 1, 1, 9, 1000, upto_position=1)
    assert log.one(after).batch is None
    with log.environment.snapshot() as txn:
        assert reader_queries.outlook(txn, GROUP, after).result is not None


def test_a_refusal_is_known_before():
    log = PartitionLog()
    log.configure()
    with log.environment.snapshot() as txn:
        refusal = reader_queries.outlook(txn, GROUP, AdvanceReader("x", 1, 0, 1, 1)).refusal
    assert refusal is not None
    assert refusal.code is ErrorCode.READER_NOT_FOUND


def part(log: PartitionLog, seq: int, **window: Any) -> Any:
    window = {"from_index": 0, "upto_index": 0, **window}
    with log.environment.snapshot() as txn:
        return reader_queries.batch_part(txn, GROUP, "lake", seq, **window)


def mixed() -> PartitionLog:
    """A partition whose batch 1 is 2 4 of one block, then 7-9 of another, then 1 3 of the first
    block.
    """
    log = PartitionLog()
    log.configure()
    log.produce([b"1", b"2", b"3", b"4", b"5", b"6"])
    log.produce([b"7", b"8", b"9"])
    held = log.one(lease_of(6)).grants[0].lease
    ranges = ((1, 1), (3, 1))
    log.one(Retry((LeaseItems(held, ranges),), error="slow"))
    log.one(Retry((LeaseItems(held, ((2, 1), (4, 1))),), count_attempt=False))
    log.one(OpenReader("lake"))
    advance(log, 0)
    return log


def test_a_batch_is_read_in_its_order():
    whole = part(mixed(), 1)
    assert [list(run.seqs) for run in whole.runs] == [[2, 4], [7, 8, 9], [1, 3]]
    assert b"".join(run.items for run in whole.runs) == b"2478913"
    assert [run.states for run in whole.runs] == [b"\5" * 2, b"\5" * 3, b"\5" * 2]
    assert [list(run.attempts) for run in whole.runs] == [[0, 0], [0, 0, 0], [1, 1]]
    assert [len(run.overlays) for run in whole.runs] == [0, 0, 2]
    assert (whole.next_index, whole.upto_index) == (7, 7)


def test_every_part_of_a_batch_is_what_it_is_in_the_whole():
    log = mixed()
    seqs = [2, 4, 7, 8, 9, 1, 3]
    for low in range(7):
        for high in range(low + 1, 8):
            found = part(log, 1, from_index=low, upto_index=high)
            assert [seq for run in found.runs for seq in run.seqs] == seqs[low:high]
            assert found.next_index == high


def test_a_batch_is_read_page_by_page():
    log = mixed()
    for bounds in ({"items_max": 1}, {"bytes_max": 1}):
        seqs: list[int] = []
        at = pages = 0
        while at < 7:
            page = part(log, 1, from_index=at, **bounds)
            seqs += [seq for run in page.runs for seq in run.seqs]
            at, pages = page.next_index, pages + 1
        assert (seqs, pages) == ([2, 4, 7, 8, 9, 1, 3], 3)


def test_what_is_not_open_says_why():
    log = mixed()
    assert part(log, 2).code is ErrorCode.BATCH_NOT_FOUND
    assert part(log, 1, from_index=7).field == "from_index"
    assert part(log, 1, upto_index=8).field == "upto_index"
    log.one(ReleaseReader("lake", 1))
    assert part(log, 1).code is ErrorCode.BATCH_RELEASED
    log.one(AdvanceReader("lake", 1, 0, 2, 1000))
    log.one(AdvanceReader("lake", 1, 2, 2, 1000))
    assert part(log, 1).code is ErrorCode.BATCH_NOT_FOUND
    assert "acknowledged" in part(log, 2).message
    log.one(ReleaseReader("lake", 3, dead=True))
    assert part(log, 3).code is ErrorCode.BATCH_RELEASED
    assert "became dead letters" in part(log, 3).message
    log.one(ReleaseReader("lake", 0, remove=True))
    assert part(log, 3).code is ErrorCode.READER_NOT_FOUND
