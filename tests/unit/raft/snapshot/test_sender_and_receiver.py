"""Snapshots between a sender and a receiver, without a group around them."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from querator.model.commands import Complete, LeaseItems
from querator.model.entries import Proposal
from querator.raft.messages import SnapshotChunk, SnapshotOffer, SnapshotReply
from querator.raft.snapshot import sender
from querator.raft.snapshot.protocol import (
    CHUNK_BYTES,
    WINDOW_BYTES,
    Listed,
    Piece,
    Rows,
    Verdict,
    chain,
    encode,
    state_tables,
)
from querator.raft.snapshot.receiver import STAGED_KEPT_S
from querator.storage import attachments, generations
from querator.storage.environment import Environment
from querator.storage.keys import ALL
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import (
    ATTACHMENTS,
    BLOCKS,
    GENERATIONS,
    INCOMING,
    RAFT_TABLES,
    SEGMENTS,
)
from tests.unit.partition import partition_log
from tests.unit.raft.snapshot.queue_workload import QueueWorkload
from tests.unit.raft.snapshot.snapshot_transfer import GROUP, SnapshotReplica, SnapshotTransfer


def pair(load: QueueWorkload, behind: int = 0, **options: Any) -> SnapshotTransfer:
    """A leader that has applied all entries, and a follower that has stopped at entry `behind`."""
    leader = SnapshotReplica(MemoryEnvironment(), load.entries, **options)
    leader.apply()
    follower = SnapshotReplica(MemoryEnvironment(), load.entries)
    if behind:
        follower.apply(behind)
    return SnapshotTransfer(leader, follower)


def filled(seed: int, *, blocks: int = 60, work: int = 40, behind: int = 0) -> SnapshotTransfer:
    """A leader whose state has rows of all kinds."""
    load = QueueWorkload(seed)
    for _ in range(blocks):
        load.produce()
    sending = pair(load, min(behind, blocks))
    load.work(sending.leader, work)
    return sending


def chunks(sending: SnapshotTransfer) -> list[SnapshotChunk]:
    """The chunks on the link."""
    return [message for message in sending.link.there if isinstance(message, SnapshotChunk)]


def until_the_end_is_sent(sending: SnapshotTransfer) -> None:
    """Runs turns until the end of the snapshot is on the link."""
    sending.leader_turn()
    while sending.sender.end is None:
        sending.follower_turn()
        sending.leader_turn()


def goes_on(sending: SnapshotTransfer) -> None:
    """The follower works with the installed state, and with the log."""
    sending.clean_up()
    assert len(sending.follower.generations_stored()) == 1
    sending.follower.apply()
    assert sending.follower.digest() == sending.leader.digest()
    assert sending.follower.held() == sending.leader.held()
    assert sending.follower.wrong() == []


@pytest.mark.parametrize("generation", [0, 3])
def test_an_empty_replica_gets_everything_while_the_leader_works_on(generation):
    load = QueueWorkload(1)
    for _ in range(400):
        load.produce()
    sending = pair(load, generation=generation)
    for turn in itertools.count():
        sending.leader_turn()
        sending.follower_turn()
        if sending.sender.over:
            break
        assert turn < 1_000
        load.work(sending.leader, 3)
    end = sending.sender.end
    assert sending.sender.failed is None
    assert end is not None
    assert sending.sender.done == end.index == sending.follower.index > 400
    assert end.replicas[1].node == "b/1"
    assert sending.sender.wait_s(sending.now_s) is None
    goes_on(sending)


def test_from_disk_to_disk(tmp_path: Path):
    load = QueueWorkload(2, item_bytes=1_000)
    for _ in range(100):
        load.produce()
    leader = SnapshotReplica(open_lmdb(tmp_path / "leader"), load.entries)
    leader.apply()
    follower = SnapshotReplica(open_lmdb(tmp_path / "follower"), load.entries)
    sending = SnapshotTransfer(leader, follower)
    while not sending.sender.over:
        sending.leader_turn()
        sending.follower_turn()
        load.work(leader)
    assert sending.sender.failed is None
    goes_on(sending)
    leader.environment.close()
    follower.environment.close()


def test_a_replica_gets_only_the_attachments_that_it_does_not_have():
    sending = filled(3, behind=60)
    old = sending.follower.held()
    sending.run()
    assert sending.sender.failed is None
    payload = sum(map(len, sending.follower.held().values()))
    shared = sum(len(data) for name, data in sending.follower.held().items() if name in old)
    assert 0 < shared < payload
    assert sending.sender.bytes_sent < payload
    assert sending.follower.receiver.bytes_received == sending.sender.bytes_sent
    goes_on(sending)


def test_an_attempt_of_another_leader_takes_over_the_attachments_of_the_last_one():
    load = QueueWorkload(4, item_bytes=10_000)
    for _ in range(40):
        load.produce()
    sending = pair(load)
    sending.link.room_bytes = 1
    for _ in range(60):
        sending.leader_turn()
        sending.follower_turn()
        load.work(sending.leader)
    assert not sending.sender.over
    sent_before = sending.sender.bytes_sent
    assert sent_before > 5_000_000
    sending.term += 1
    sending.begin()
    sending.run()
    assert sending.sender.failed is None
    everything = sum(map(len, sending.follower.held().values()))
    assert sending.sender.bytes_sent < everything - sent_before // 2
    goes_on(sending)


def test_what_an_earlier_attempt_has_staged_and_is_dead_is_not_taken_over():
    load = QueueWorkload(26, item_bytes=10_000)
    for _ in range(20):
        load.produce(10)
    sending = pair(load)
    sending.link.room_bytes = 1
    for _ in range(5):
        sending.leader_turn()
        sending.follower_turn()
    assert not sending.sender.over
    assert sending.follower.receiver.staged
    load.entries.append(Proposal(partition_log.lease_of(1_000)))
    load.entries.append(Proposal(Complete((LeaseItems(1),))))
    sending.leader.apply()
    assert sending.leader.held() == {}
    sending.begin()
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


def test_rows_of_an_earlier_attempt_that_are_gone_are_not_taken_over(monkeypatch):
    monkeypatch.setattr(sender, "STEP_ROWS_MAX", 40)
    load = QueueWorkload(27)
    for _ in range(60):
        load.produce(2)
    sending = pair(load)
    for _ in range(5):
        sending.leader_turn()
        sending.follower_turn()
    assert not sending.sender.over
    load.entries.append(Proposal(partition_log.lease_of(1_000)))
    load.entries.append(Proposal(Complete((LeaseItems(1),))))
    sending.leader.apply()
    sending.begin()
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


def test_a_crash_in_the_middle_of_a_long_value():
    load = QueueWorkload(28, item_bytes=4 * CHUNK_BYTES)
    load.produce(1)
    sending = pair(load)
    sending.link.room_bytes = 1 << 30
    for most in (1, 4):
        sending.leader_turn()
        sending.follower_turn(most)
    sending.disconnect()
    sending.follower.recover()
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


def test_values_of_every_size_come_through_small_windows():
    load = QueueWorkload(5)
    sending = pair(load)
    for size in (0, 1, CHUNK_BYTES - 600, CHUNK_BYTES, WINDOW_BYTES + 5, 2 * WINDOW_BYTES):
        load._item_bytes = size
        load.produce(1)
        sending.leader.apply()
    sending.link.room_bytes = 1
    while not sending.sender.over:
        sending.leader_turn()
        assert all(len(chunk.content) <= CHUNK_BYTES for chunk in chunks(sending))
        sending.follower_turn(most=1)
    assert sending.sender.failed is None
    goes_on(sending)


def test_what_a_log_alone_holds_is_not_copied():
    load = QueueWorkload(6)
    for _ in range(10):
        load.produce(1)
    sending = pair(load, keep=100)
    for _ in range(6):
        load.work(sending.leader)
    # An entry that may never be committed, and is replaced by another one.
    sending.leader.append_unapplied([b"never"])
    sending.leader_turn()
    sending.follower_turn()
    sending.leader_turn()
    sending.leader.discard_unapplied()
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)
    # The follower keeps no attachments of its own log.
    with sending.follower.environment.snapshot() as view:
        rows = list(ATTACHMENTS.rows(sending.follower.view(view), GROUP))
    assert len(rows) == len(sending.follower.held())


def test_the_window_bounds_what_is_on_its_way():
    load = QueueWorkload(7, item_bytes=50_000)
    for _ in range(10):
        load.produce(30)
    sending = pair(load)
    sending.link.room_bytes = 1 << 30
    sending.leader_turn()
    sending.follower_turn()
    for _ in range(100):
        sending.leader_turn()
    flying = sum(len(chunk.content) for chunk in chunks(sending))
    assert WINDOW_BYTES <= flying < WINDOW_BYTES + 2 * CHUNK_BYTES
    assert sending.sender.wait_s(sending.now_s) == pytest.approx(sender.RETRY_S)
    sending.run()
    assert sending.sender.failed is None


def test_without_room_nothing_is_sent_and_nothing_read():
    sending = filled(8)
    sending.link.room_bytes = 0
    sending.leader_turn()
    assert sending.link.there == []
    sending.link.room_bytes = 1
    sending.leader_turn()
    assert sending.link.there == [SnapshotOffer(3, 1)]


def test_the_end_comes_late_while_more_changes_than_a_step_takes():
    sending = filled(9, blocks=30)
    sending.link.room_bytes = 100
    load = QueueWorkload(9)
    load.entries = sending.leader.entries
    for _ in range(300):
        sending.leader_turn()
        sending.follower_turn()
        if sending.sender.over:
            break
        load.work(sending.leader, 2)
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


# --- losses, damage and refusals --------------------------------------------------------


def test_what_is_lost_on_the_way_is_sent_again():
    load = QueueWorkload(10, item_bytes=1_000)
    for _ in range(100):
        load.produce()
    sending = pair(load)
    sending.link.room_bytes = 1
    cut = 0
    for turn in range(2_000):
        sending.leader_turn()
        if turn % 7 == 4:
            sending.disconnect()
            cut += 1
        sending.follower_turn()
        if turn % 11 == 6:
            sending.disconnect()
        sending.now_s += 0.01
        if sending.sender.over:
            break
    assert cut > 3
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


def test_a_sender_that_hears_nothing_asks_and_at_last_gives_up():
    sending = filled(11)
    sending.leader_turn()
    sending.follower_turn()
    sending.leader_turn()
    sending.link.cut()
    sending.now_s += sender.RETRY_S + 0.1
    sending.leader_turn()
    assert sending.link.there == [SnapshotOffer(3, 1)]
    assert sending.sender.wait_s(sending.now_s) == sender.RETRY_S
    sending.link.cut()
    for _ in range(40):
        sending.now_s += sender.RETRY_S
        sending.leader_turn()
    assert sending.sender.failed == "no progress for 60 s"


def test_a_damaged_chunk_is_not_taken_and_comes_again():
    sending = filled(12)
    sending.leader_turn()
    sending.follower_turn()
    sending.leader_turn()
    first = sending.link.there[0]
    assert isinstance(first, SnapshotChunk)
    damaged = msgspec.structs.replace(first, content=first.content[:-1] + b"?")
    sending.link.there[0] = damaged
    sending.follower_turn()
    assert sending.link.back == []
    sending.now_s += sender.RETRY_S + 0.1
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


def answers(sending: SnapshotTransfer, *contents: Any) -> list[SnapshotReply]:
    """The follower's replies to contents that replace the leader's."""
    sending.leader_turn()
    sending.follower_turn()
    crc = 0
    for number, content in enumerate(contents, 1):
        body = content if isinstance(content, bytes) else encode(content)
        crc = chain(crc, body)
        sending.link.there.append(SnapshotChunk(3, 1, number, crc, body))
    sending.link.back.clear()
    sending.follower_turn()
    return sending.link.back


BLOCK = BLOCKS.letter + bytes(8)


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ((b"\xc1",), "chunk 1 is of another release"),
        ((encode((9, 1)),), "chunk 1 is of another release"),
        ((Rows(((b"", b""),)),), "the key  is of no table of this release"),
        ((Rows(((BLOCK + b"1", b""),)),), "is of no table of this release"),
        ((Rows(((b"L" + bytes(8), b""),)),), "is of no table of this release"),
        ((Rows(((b"x", b""),)),), "is of no table of this release"),
        ((Rows(((ATTACHMENTS.letter + bytes(12), b"1234?"),)),), "wrong checksum"),
        ((Piece(BLOCK, 1 << 40, b"1"),), "a value of 1099511627776 bytes"),
        ((Piece(BLOCK, 3, b"1"), Piece(BLOCK, 4, b"1")), "do not fit together"),
        ((Piece(BLOCK, 3, b"1"), Piece(BLOCK, 3, b"123")), "do not fit together"),
        ((Piece(BLOCK, 3, b""),), "do not fit together"),
        ((Piece(BLOCK, 3, b"1"), Rows(())), "a value ends in its middle"),
        ((Listed(b"", b"\xff", (bytes(12),)),), "attachment of entry 0 in group 7: missing"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(contents, reason):
    sending = filled(13)
    (reply,) = answers(sending, *contents)
    assert reply.verdict == Verdict.REFUSED
    assert reason in reply.reason
    sending.sender.on_reply(reply, sending.now_s)
    assert sending.sender.failed == reply.reason
    sending.clean_up()
    assert sending.follower.generations_stored() <= {0}
    sending.begin()
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


SMALL_ROWS = 500
OWN_ROWS_BYTES = 1_000
"""Bytes that the progress rows may need; the node's reserve covers them."""


@pytest.mark.parametrize(
    ("left", "taken"), [(20_000, False), (60_000, False), (75_000, False), (80_000, True)]
)
def test_many_small_rows_are_taken_when_they_fit_with_what_each_of_them_needs(
    left: int, taken: bool
):
    sending = filled(31)
    answers(sending)
    keys = [SEGMENTS.letter + bytes(6) + number.to_bytes(3, "big") for number in range(SMALL_ROWS)]
    content = encode(Rows(tuple((key, b"small") for key in keys)))
    environment = sending.follower.environment
    assert isinstance(environment, MemoryEnvironment)
    environment._quota_bytes = environment.usage().used_bytes + left + OWN_ROWS_BYTES
    chunk = SnapshotChunk(3, 1, 1, chain(0, content), content)
    (reply,) = sending.follower.receive([chunk], sending.now_s, space_bytes=left)
    assert reply.verdict == (Verdict.RECEIVED if taken else Verdict.REFUSED)
    assert reply.reason == ("" if taken else f"{left} bytes may be used for the snapshot")


def test_what_does_not_fit_with_the_rest_of_a_turn_waits_for_the_next():
    sending = filled(32)
    answers(sending)
    rows = [Rows(((BLOCK[:8] + bytes([number]), bytes(10_000)),)) for number in range(3)]
    crc, chunks = 0, []
    for number, content in enumerate(map(encode, rows), 1):
        crc = chain(crc, content)
        chunks.append(SnapshotChunk(3, 1, number, crc, content))
    told = sending.follower.receive(chunks, sending.now_s, space_bytes=45_000)
    assert [(reply.verdict, reply.sequence) for reply in told] == [(Verdict.RECEIVED, 2)]
    told = sending.follower.receive([], sending.now_s, space_bytes=45_000)
    assert [(reply.verdict, reply.sequence) for reply in told] == [(Verdict.RECEIVED, 3)]


@pytest.mark.parametrize("left", [0, 100])
def test_without_space_it_is_refused_and_what_was_staged_goes(left: int):
    sending = filled(14)
    sending.leader_turn()
    sending.follower_turn()
    sending.leader_turn()
    replies = sending.follower.receive(sending.link.there, sending.now_s, space_bytes=left)
    assert [reply.reason for reply in replies] == [f"{left} bytes may be used for the snapshot"]
    sending.link.cut()
    sending.clean_up()
    assert sending.follower.generations_stored() == set()
    assert not sending.follower.receiver.staged


def test_a_stranger_row_in_the_staging_generation_is_found_at_the_end():
    sending = filled(15)
    until_the_end_is_sent(sending)
    staged = generations.GENERATIONS_MAX
    with sending.follower.environment.snapshot() as view:
        row = generations.read(view, GROUP)
        staged = -1 if row.staged is None else row.staged
    txn = sending.follower.environment.begin()
    BLOCKS.put(generations.write_view(txn, GROUP, staged), GROUP, 1 << 60, value=b"?")
    txn.commit(sync=True)
    sending.run()
    assert sending.sender.failed is not None
    assert "they differ" in sending.sender.failed
    sending.begin()
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


def test_a_damaged_attachment_of_the_old_state_is_fetched_instead():
    sending = filled(16, behind=60, work=0)
    index, part = max(sending.follower.held())
    txn = sending.follower.environment.begin()
    ATTACHMENTS.put(txn, GROUP, index, part, value=b"damage")
    txn.commit(sync=True)
    sending.run()
    assert sending.sender.failed is not None
    assert "wrong checksum" in sending.sender.failed
    sending.begin()
    sending.run()
    assert sending.sender.failed is None
    goes_on(sending)


def test_a_damaged_attachment_of_the_leader_fails_the_snapshot_alone():
    sending = filled(17)
    index, part = max(sending.leader.held())
    txn = sending.leader.environment.begin()
    ATTACHMENTS.put(txn, GROUP, index, part, value=b"damage")
    sending.leader.commit(txn)
    sending.run()
    assert sending.sender.failed is not None
    where = f"attachment {part} of entry {index} in group 7: wrong checksum"
    assert where in sending.sender.failed
    damaged = sending.sender.damaged
    assert damaged is not None
    assert (damaged.group, damaged.index, damaged.part) == (7, index, part)


# --- leftovers, repeats, restarts -------------------------------------------------------


def test_what_nobody_goes_on_with_is_deleted_after_a_while_also_by_another_process():
    sending = filled(18)
    sending.link.room_bytes = 1
    for _ in range(3):
        sending.leader_turn()
        sending.follower_turn()
    follower = sending.follower
    assert follower.receiver.staged
    follower.recover()
    assert follower.receiver.staged
    follower.receive([], 5.0)
    follower.receive([], 5.0 + STAGED_KEPT_S)
    assert follower.receiver.staged
    follower.receive([], 5.1 + STAGED_KEPT_S)
    assert not follower.receiver.staged
    follower.recover()
    sending.clean_up()
    assert follower.generations_stored() == set()
    with follower.environment.snapshot() as view:
        assert GENERATIONS.get(view, GROUP) is None


def test_the_old_generation_goes_also_after_a_crash():
    sending = filled(19, behind=60)
    while not sending.follower.generation:
        sending.leader_turn()
        sending.follower_turn()
    assert sending.follower.receiver.busy
    assert len(sending.follower.generations_stored()) == 2
    assert isinstance(sending.follower.environment, MemoryEnvironment)
    sending.follower.environment = sending.follower.environment.crash()
    sending.follower.recover()
    goes_on(sending)


def test_an_offer_of_a_snapshot_that_is_installed_is_answered_so():
    sending = filled(20)
    while not sending.follower.generation:
        sending.leader_turn()
        sending.follower_turn()
    # The reply is lost, and then the follower's memory of it.
    sending.disconnect()
    sending.follower.recover()
    sending.run()
    assert sending.sender.end is not None
    assert sending.sender.done == sending.sender.end.index


def test_a_follower_that_has_caught_up_meanwhile_does_not_install():
    sending = filled(21, behind=60)
    until_the_end_is_sent(sending)
    sending.follower.apply()
    sending.run()
    assert sending.sender.done == sending.follower.index
    sending.clean_up()
    assert sending.follower.generations_stored() == {0}


def test_offers_and_chunks_of_older_attempts_are_ignored():
    sending = filled(22)
    sending.number = 5
    sending.begin()
    sending.leader_turn()
    sending.follower_turn()
    sending.link.back.clear()
    replies = sending.follower.receive(
        [SnapshotOffer(3, 5), SnapshotOffer(2, 9), SnapshotChunk(3, 4, 1, chain(0, b"?"), b"?")],
        0.0,
    )
    assert replies == []
    for stale in (SnapshotReply(2, 6, Verdict.INSTALLED, index=9), SnapshotReply(3, 5, 4)):
        sending.sender.on_reply(stale, 0.0)
    assert not sending.sender.over


def test_a_follower_that_has_lost_what_it_acknowledged_fails_the_attempt():
    sending = filled(23, blocks=200)
    while sending.sender._stream.acknowledged == 0:
        sending.leader_turn()
        sending.follower_turn()
    sending.follower = SnapshotReplica(MemoryEnvironment(), sending.leader.entries)
    sending.disconnect()
    sending.run()
    assert sending.sender.failed is not None
    assert "had acknowledged" in sending.sender.failed


def test_more_changes_than_memory_should_hold_fail_the_attempt(monkeypatch):
    monkeypatch.setattr(sender, "CHANGES_MAX", 50)
    monkeypatch.setattr(sender, "STEP_ROWS_MAX", 5)
    sending = filled(24)
    sending.link.room_bytes = 1
    load = QueueWorkload(24)
    load.entries = sending.leader.entries
    while not sending.sender.over:
        sending.leader_turn()
        sending.follower_turn(most=1)
        load.work(sending.leader, 10)
    assert sending.sender.failed == "more than 50 rows have changed since they were copied"


def test_everything_a_machine_keeps_is_copied_and_nothing_of_raft_or_the_node():
    copied = {table.letter for table in state_tables()}
    assert copied >= {table.letter for table in ALL.values()} - {
        *(table.letter for table in RAFT_TABLES),
        *(table.letter for table in ALL.values() if not table.in_generations),
    }
    assert not copied & {table.letter for table in (*RAFT_TABLES, GENERATIONS, INCOMING)}


def environment_of(sending: SnapshotTransfer) -> Environment:
    return sending.follower.environment


def test_reading_by_others_goes_on_in_the_old_generation_until_the_switch():
    sending = filled(25, behind=60)
    before = (sending.follower.digest(), sending.follower.held())
    while not sending.follower.generation:
        assert (sending.follower.digest(), sending.follower.held()) == before
        with environment_of(sending).snapshot() as view:
            index, part = max(before[1])
            assert attachments.read(sending.follower.view(view), GROUP, index, part) is not None
        sending.leader_turn()
        sending.follower_turn()
    assert sending.follower.digest() != before[0]
