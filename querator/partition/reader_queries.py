"""What others read of readers and their batches, from a snapshot.

As in `queries`: one committed state, nothing changes, the work of a call is bounded.
"""

from collections.abc import Iterator

import msgspec

from querator.model.commands import AdvanceReader, ReaderResult, Refusal
from querator.model.reader_calls import ReaderState
from querator.partition.readers import answer_of, batch_of, load_reader, refuses
from querator.partition.rows import (
    ReaderRow,
    State,
    decode_reader,
    decode_settings,
    decode_state,
)
from querator.partition.segments import LANE
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import READERS, READY, SETTINGS, STATE


class Outlook(msgspec.Struct, frozen=True):
    """What an `AdvanceReader` would come to: a refusal; or `result`, when nothing would change; or
    it would acknowledge the open batch, or reserve some of `ready` items, or both.
    """

    refusal: Refusal | None = None
    result: ReaderResult | None = None
    acknowledges: bool = False
    ready: int = 0


def readers(txn: ReadTransaction, group: int) -> tuple[ReaderState, ...]:
    """All readers of a partition, by name."""
    txn = generations.view(txn, group)
    state = _state(txn, group)
    found = [
        ReaderState(
            row.reader_id,
            row.epoch,
            row.opened_at_ms,
            row.advanced_at_ms,
            row.acked_seq,
            batch_of(row),
            state.ready,
            state.now_ms,
        )
        for row in _rows(txn, group)
    ]
    return tuple(sorted(found, key=lambda reader: reader.reader_id))


def outlook(txn: ReadTransaction, group: int, command: AdvanceReader) -> Outlook:
    txn = generations.view(txn, group)
    state = _state(txn, group)
    row = load_reader(txn, group, command.reader_id)
    raw = SETTINGS.get(txn, group)
    regrown = raw is not None and decode_settings(raw).settings.first_seq > 0
    refusal = refuses(row, command, regrown=regrown)
    if refusal is not None:
        return Outlook(refusal)
    assert row is not None
    open_seq = 0 if row.batch is None else row.batch.seq
    ready = _ready(txn, group, state, command.upto_position)
    acknowledges = command.ack_seq > row.acked_seq
    if command.ack_seq < open_seq or command.max_items <= 0:
        ready = 0
    if acknowledges or ready:
        return Outlook(acknowledges=acknowledges, ready=ready)
    return Outlook(result=answer_of(row, state))


def _ready(txn: ReadTransaction, group: int, state: State, upto_position: int) -> int:
    """Items that may be reserved: all or, beyond a place in line, none."""
    if state.ready and upto_position:
        for key, _ in READY.rows(txn, group, LANE):
            return state.ready if int.from_bytes(key[-9:-1], "big") <= upto_position else 0
    return state.ready


def oldest_batch_at(txn: ReadTransaction, group: int) -> int:
    """When the oldest open batch was given out (ms); 0: none is open. `txn` is a view."""
    return min((row.batch.opened_at_ms for row in _rows(txn, group) if row.batch), default=0)


def _rows(txn: ReadTransaction, group: int) -> Iterator[ReaderRow]:
    for _, raw in READERS.rows(txn, group):
        yield decode_reader(raw)


def _state(txn: ReadTransaction, group: int) -> State:
    raw = STATE.get(txn, group)
    return State() if raw is None else decode_state(raw)
