"""Properties of the machine as a whole: replicas, recovery, bounds, refusals."""

from querator.model.commands import (
    Activate,
    Complete,
    Configure,
    Done,
    Expire,
    ItemSpecial,
    Lease,
    LeaseItems,
    Produce,
    Refusal,
    Retry,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import queries
from querator.partition.machine import PartitionMachine
from querator.partition.rows import RowState
from querator.partition.states import TRANSITIONS, table_markdown
from querator.raft.machine import Machine
from querator.storage import attachments
from querator.storage.lmdb_environment import LmdbEnvironment
from querator.storage.tables import ATTACHMENTS, PARTITION_TABLES
from tests.unit.partition.partition_log import (
    GROUP,
    START_MS,
    PartitionLog,
    caller,
    dead_to,
    lease_of,
    produce,
    seqs,
    settings,
)


def busy(log: PartitionLog) -> None:
    """Runs commands of most kinds."""
    log.configure(max_attempts=2, dead_targets=dead_to(9), expire_timeout_ms=20_000)
    producer_id = START_MS.to_bytes(6, "big") + bytes(10)
    for round_number in range(1, 6):
        log.entry(
            produce([b"x" * 50] * 40),
            produce([b"y"] * 3, producer_id=producer_id, sequence=round_number),
            Proposal(Lease((caller(20, request_id=f"r{round_number}"), caller(7)))),
        )
        log.one(Complete((LeaseItems(2 * round_number - 1),)))
        log.one(Retry((LeaseItems(2 * round_number),), error="slow", dead=round_number == 3))
        log.one(lease_of(5))
        epoch = log.one(OpenReader("lake")).epoch
        log.one(AdvanceReader("lake", epoch, max(0, round_number - 2), 11, 300))
        log.one(ReleaseReader("lake", 4))
        log.advance(9_000)


def digest(log: PartitionLog) -> bytes:
    with log.environment.snapshot() as txn:
        return log.machine.digest(txn)


def test_replicas_that_apply_the_same_entries_agree():
    """Their logs may keep different tails, and one replica restarts before every entry."""
    first = PartitionLog(keep=2)
    busy(first)
    second = PartitionLog(keep=1000)
    third = PartitionLog(keep=5, checked=False)
    for command, parts in first.entries:
        second.replay(command, parts)
        third.machine = PartitionMachine(GROUP)
        third.replay(command, parts)
    assert digest(first) == digest(second) == digest(third)
    assert first.applied == second.applied == third.applied


def test_both_back_ends_hold_the_same_bytes(tmp_path):
    memory = PartitionLog()
    busy(memory)
    environment = LmdbEnvironment(tmp_path)
    try:
        lmdb = PartitionLog(environment)
        for command, parts in memory.entries:
            lmdb.replay(command, parts)
        assert digest(lmdb) == digest(memory)
    finally:
        environment.close()


def test_raft_can_replicate_it():
    """The type checker compares the whole protocol; raft and partition cannot import each other."""
    machine: Machine = PartitionMachine(GROUP)
    assert machine.due_commands(START_MS) == []


def test_the_digest_sees_every_table():
    log = PartitionLog()
    busy(log)
    before = digest(log)
    for table in PARTITION_TABLES:
        txn = log.environment.begin()
        parts = bytes(table.key(GROUP, *table.parts(_some_key(table))))
        txn.put(parts, b"changed")
        assert log.machine.digest(txn) != before, table.name
        txn.abort()


def _some_key(table):
    start, _ = table.bounds(GROUP)
    whole = table._key.size
    return start + bytes(whole - len(start))


def test_recovery_knows_what_apply_knew():
    log = PartitionLog()
    busy(log)
    fresh = PartitionMachine(GROUP)
    with log.environment.snapshot() as txn:
        recovered = fresh.recover(txn)
    assert recovered.results == ()
    assert (recovered.effects, recovered.due_ms) == (log.applied.effects, log.applied.due_ms)
    later = START_MS + 10**9
    assert fresh.due_commands(later) == log.machine.due_commands(later)


def test_an_empty_partition_recovers():
    log = PartitionLog()
    with log.environment.snapshot() as txn:
        recovered = log.machine.recover(txn)
    assert (recovered.effects.ready, recovered.due_ms) == (0, None)
    assert log.machine.due_commands(START_MS) == []


def test_due_commands_are_those_that_are_due():
    log = PartitionLog()
    log.configure()
    log.produce(2)
    log.one(lease_of(1))
    assert log.applied.due_ms == START_MS + 30_000
    log.one(lease_of(1))
    log.one(Retry((LeaseItems(2),), START_MS + 10_000))
    assert log.applied.due_ms == START_MS + 10_000
    assert log.machine.due_commands(START_MS + 9_999) == []
    assert log.machine.due_commands(START_MS + 10_000) == [Activate()]
    assert log.machine.due_commands(START_MS + 30_000) == [Expire(), Activate()]


def test_state_time_never_goes_back():
    log = PartitionLog()
    log.configure()
    log.produce(1)
    log.now_ms += 50_000
    log.one(Expire())
    log.now_ms -= 60_000
    grant = log.one(lease_of(1)).grants[0]
    assert grant.deadline_ms == START_MS + 50_000 + 30_000


def test_one_bad_command_refuses_only_itself():
    log = PartitionLog()
    log.configure(items_max=3)
    results = log.entry(
        produce([b"a", b"b"]),
        produce([b"c", b"d"]),
        Proposal(Produce(b"")),
        produce([b"e"], producer_id=b"short", sequence=1),
        produce([b"f"]),
        Proposal(Complete((LeaseItems(-1),))),
        Proposal(lease_of(9)),
    )
    assert results[0].first_seq == 1
    assert results[1].code is ErrorCode.QUEUE_FULL
    assert (results[2].code, results[2].field) == (ErrorCode.INVALID_ARGUMENT, "items")
    assert (results[3].code, results[3].field) == (ErrorCode.INVALID_ARGUMENT, "producer_id")
    assert results[4].first_seq == 6
    assert results[5].outcomes[0].unknown
    assert seqs(results[6].grants[0]) == [1, 2, 6]


def test_settings_come_first_in_an_entry():
    log = PartitionLog()
    results = log.entry(produce([b"a"]), Proposal(Configure(1, settings())))
    assert results[0].count == 1
    assert results[1] == Done(1)


def test_attachments_go_with_their_blocks():
    """An attachment without living items is dropped at once, others with their last item."""
    log = PartitionLog(keep=1)
    log.configure(items_max=2)
    refused = log.produce(3)
    assert isinstance(refused, Refusal)
    log.produce(2)
    grant = log.one(lease_of(9)).grants[0]
    log.one(Complete((LeaseItems(grant.lease, ((seqs(grant)[0], 1),)),)))
    with log.environment.snapshot() as txn:
        assert attachments.read(txn, GROUP, 3, 0) == b"item 0item 1"
        assert len(list(ATTACHMENTS.rows(txn, GROUP))) == 1
    log.one(Complete((LeaseItems(grant.lease),)))
    log.one(Expire())
    log.one(Expire())
    with log.environment.snapshot() as txn:
        assert list(ATTACHMENTS.rows(txn, GROUP)) == []


def scattered(log: PartitionLog, count: int) -> None:
    """Leases items one by one, so that each item is a segment."""
    log.checked = False
    while count > 0:
        log.produce(250)
        log.entry(*[Proposal(lease_of(1))] * 250)
        count -= 250


def test_a_long_lapse_goes_on_in_further_entries():
    log = PartitionLog()
    log.configure()
    scattered(log, APPLY_SEGMENTS_MAX + 500)
    log.checked = True
    log.now_ms += 30_000
    assert log.one(Expire()) == Done(APPLY_SEGMENTS_MAX)
    assert log.applied.effects.ready == APPLY_SEGMENTS_MAX
    assert log.machine.due_commands(log.now_ms) == [Expire()]
    assert log.one(Expire()) == Done(500)
    assert log.machine.due_commands(log.now_ms) == []


def test_in_the_grace_of_a_leader_only_leases_wait():
    log = PartitionLog()
    log.configure(lease_timeout_ms=1_000)
    log.produce(1)
    log.one(lease_of())
    log.produce(1, specials=(ItemSpecial(0, expire_timeout_ms=2_000),))
    log.produce(1, specials=(ItemSpecial(0, enqueue_at_ms=START_MS + 300),))
    assert (log.applied.due_ms, log.applied.prompt_ms) == (START_MS + 300, START_MS + 300)
    log.now_ms = START_MS + 3_000
    commands = log.machine.due_commands(log.now_ms, prompt=True)
    assert commands == [Expire(lapses=False), Activate()]
    for command in commands:
        log.one(command)
    with log.environment.snapshot() as snapshot:
        stats = queries.stats(snapshot, log.group)
    assert (stats.leases, stats.expired, stats.scheduled, stats.ready) == (1, 1, 0, 1)
    assert log.machine.due_commands(log.now_ms, prompt=True) == []
    assert log.machine.due_commands(log.now_ms) == [Expire()]


def test_a_long_activation_goes_on_in_further_entries():
    log = PartitionLog()
    log.configure()
    scattered(log, APPLY_SEGMENTS_MAX + 250)
    for lease in range(1, APPLY_SEGMENTS_MAX + 251):
        log.one(Retry((LeaseItems(lease),), START_MS + 1000 + lease))
    log.checked = True
    log.now_ms += 20_000
    assert log.one(Activate()) == Done(APPLY_SEGMENTS_MAX)
    assert log.machine.due_commands(log.now_ms) == [Activate()]
    assert log.one(Activate()) == Done(250)
    assert log.machine.due_commands(log.now_ms) == []
    assert log.applied.effects.ready == APPLY_SEGMENTS_MAX + 250


def test_a_long_expiry_goes_on_in_further_entries():
    log = PartitionLog()
    log.configure(expire_timeout_ms=1000)
    log.checked = False
    for _ in range(APPLY_SEGMENTS_MAX // 2 + 10):
        log.produce(1)
    log.checked = True
    log.now_ms += 2000
    while log.machine.due_commands(log.now_ms):
        log.one(Expire())
    assert log.applied.effects.ready == 0


def test_the_table_of_states_can_be_read():
    text = table_markdown()
    assert text.count("\n") == len(TRANSITIONS) + 2
    assert "| LEASED | completed | gone |" in text
    assert {state for state, _ in TRANSITIONS} == {None, *RowState}


def test_a_lease_passes_over_the_blocks_that_are_set_aside():
    log = PartitionLog()
    log.configure()
    blocks = [log.produce(2).first_seq for _ in range(4)]
    aside = (blocks[0], blocks[2])
    result = log.one(Lease((caller(100),), aside))
    assert [segment.first_seq for segment in result.grants[0].segments] == [blocks[1], blocks[3]]
    assert log.applied.effects.ready == 4
    result = log.one(Lease((caller(100),), aside))
    assert result.grants[0].segments == ()
    result = log.one(Lease((caller(100),)))
    assert [segment.first_seq for segment in result.grants[0].segments] == list(aside)
