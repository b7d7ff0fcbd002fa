"""Invariants of stages and transactions. `partition.invariants` includes them."""

from querator.model.transactions import TransactionState
from querator.partition.dedup import keys_of
from querator.partition.rows import PartitionState
from querator.partition.staging_rows import (
    StagedPiece,
    StageRow,
    decode_piece,
    decode_stage,
    decode_txn,
    decode_txn_producer,
    producer_hash,
)
from querator.storage import attachments
from querator.storage.environment import ReadTransaction, StorageCorrupt
from querator.storage.tables import (
    PINNED,
    STAGE_CHECKS,
    STAGE_NAMES,
    STAGED,
    STAGES,
    TXN_PRODUCER_CHECKS,
    TXN_PRODUCERS,
    TXNS,
)


def check_staging(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    """All violations, as sentences."""
    stages = {
        int.from_bytes(key[-8:], "big"): decode_stage(row) for key, row in STAGES.rows(txn, group)
    }
    return [
        *_pieces(txn, group, stages),
        *_indexes(txn, group, stages),
        *_counts(state, stages),
        *_transactions(txn, group, state),
        *_checks(txn, group, state),
    ]


def _pieces(txn: ReadTransaction, group: int, stages: dict[int, StageRow]) -> list[str]:
    wrong: list[str] = []
    counts = dict.fromkeys(stages, 0)
    sizes = dict.fromkeys(stages, 0)
    keys = dict.fromkeys(stages, 0)
    for key, raw in STAGED.rows(txn, group):
        number, _, _ = STAGED.parts(key)
        assert isinstance(number, int)
        piece = decode_piece(raw)
        if number not in stages:
            wrong.append(f"items are staged in stage {number}, which is gone")
            continue
        counts[number] += len(piece.lengths) >> 2
        sizes[number] += piece.size
        keys[number] += keys_of(piece.specials)
        wrong += _payload(txn, group, number, piece)
    for number, row in stages.items():
        if (row.count, row.size) != (counts[number], sizes[number]):
            wrong.append(
                f"stage {number} counts {row.count} items of {row.size} bytes; a scan finds "
                f"{counts[number]} of {sizes[number]}"
            )
        # Rows of versions that did not count keys have a lower count.
        if row.keys > keys[number]:
            wrong.append(f"stage {number} counts {row.keys} keys; a scan finds {keys[number]}")
    return wrong


def _payload(txn: ReadTransaction, group: int, number: int, piece: StagedPiece) -> list[str]:
    try:
        data = attachments.read(txn, group, piece.index, piece.part)
    except StorageCorrupt as error:
        return [f"a payload of stage {number} is damaged: {error}"]
    if data is None or len(data) != piece.size:
        return [f"stage {number} has lost a payload of {piece.size} bytes"]
    return []


def _indexes(txn: ReadTransaction, group: int, stages: dict[int, StageRow]) -> list[str]:
    names = {
        (STAGE_NAMES.parts(key), int.from_bytes(row, "big"))
        for key, row in STAGE_NAMES.rows(txn, group)
    }
    pinned = {PINNED.parts(key) for key, _ in PINNED.rows(txn, group)}
    checks = {STAGE_CHECKS.parts(key) for key, _ in STAGE_CHECKS.rows(txn, group)}
    wrong: list[str] = []
    if names != {
        ((producer_hash(row.producer), row.batch, row.task, row.attempt), number)
        for number, row in stages.items()
        if not row.doomed
    }:
        wrong.append("stages and their names disagree")
    if pinned != {(row.txn, row.task, number) for number, row in stages.items() if row.txn}:
        wrong.append("stages and the index of pinned stages disagree")
    if checks != {(row.check_at_ms, number) for number, row in stages.items() if row.check_at_ms}:
        wrong.append("stages and their checks disagree")
    wrong += [
        f"stage {number} is pinned and may expire, or is not pinned and never expires"
        for number, row in stages.items()
        if bool(row.txn) == bool(row.check_at_ms) or (row.txn and row.doomed)
    ]
    return wrong


def _counts(state: PartitionState, stages: dict[int, StageRow]) -> list[str]:
    rows = stages.values()
    wrong = [
        f"{name} counts {count}; a scan finds {found}"
        for name, count, found in (
            ("stages", state.stages, len(stages)),
            ("staged", state.staged, sum(row.count for row in rows)),
            ("staged_bytes", state.staged_bytes, sum(row.size for row in rows)),
            ("pinned", state.pinned, sum(row.count for row in rows if row.txn)),
            ("pinned_keys", state.pinned_keys, sum(row.keys for row in rows if row.txn)),
        )
        if count != found
    ]
    if stages and max(stages) >= state.next_stage:
        wrong.append(f"the next stage {state.next_stage} is in use")
    return wrong


def _transactions(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    wrong: list[str] = []
    txns = {int.from_bytes(key[-8:], "big"): decode_txn(row) for key, row in TXNS.rows(txn, group)}
    producers = {
        TXN_PRODUCERS.parts(key)[0]: decode_txn_producer(row)
        for key, row in TXN_PRODUCERS.rows(txn, group)
    }
    if (state.txns, state.txn_producers) != (len(txns), len(producers)):
        wrong.append(
            f"there are {len(txns)} transactions and {len(producers)} producers; counted are "
            f"{state.txns} and {state.txn_producers}"
        )
    if txns and max(txns) >= state.next_txn:
        wrong.append(f"the next transaction {state.next_txn} is in use")
    for number, row in txns.items():
        producer = producers.get(producer_hash(row.producer))
        if producer is None:
            wrong.append(f"transaction {number} has no producer")
        elif row.state == TransactionState.COMMITTED and row.batch > producer.committed:
            wrong.append(f"transaction {number} is committed and its producer does not record it")
        elif row.state != TransactionState.COMMITTED and producer.open != number:
            wrong.append(f"transaction {number} is open and its producer does not record it")
        elif row.state == TransactionState.PREPARING and row.batch <= producer.committed:
            wrong.append(f"transaction {number} is for a batch that is committed")
    wrong += [
        f"a producer is busy with transaction {row.open}, which is gone"
        for row in producers.values()
        if row.open and row.open not in txns
    ]
    checks = {TXN_PRODUCER_CHECKS.parts(key) for key, _ in TXN_PRODUCER_CHECKS.rows(txn, group)}
    if checks != {(row.check_at_ms, hashed) for hashed, row in producers.items()}:
        wrong.append("producers of transactions and their checks disagree")
    return wrong


def _checks(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    return [
        f"{table.name} would never be checked"
        for table in (STAGE_CHECKS, TXN_PRODUCER_CHECKS)
        if not state.cleanup_head_ms and any(True for _ in table.rows(txn, group))
    ]
