"""Executions: their states, their activations, and how an arrival wakes one.

An execution is a row, a journal and, while it can continue, one item: its *activation*. The worker
that leases the activation runs the code. A parked execution has no item, and costs nothing but its
rows.

    state and event                                         state after it
    -----------------------------------------------------   --------------------------------------
    (none)       start                                      RUNNABLE, with an activation
    RUNNABLE     park: the worker waits for arrivals        PARKED
    RUNNABLE     complete, fail, cancel: the code ended     COMPLETED, FAILED, CANCELLED
    RUNNABLE     stick: a person must help                  STUCK
    RUNNABLE     pin: only some workers can run it          PINNED
    RUNNABLE     renew: a new run begins                    RUNNABLE, with another activation
    ended        restart: a new run begins                  RUNNABLE, with an activation
    any          rewind: a new run continues                RUNNABLE, with another activation
    PARKED       wake: what it waits for has arrived        RUNNABLE, with an activation
    PINNED       take: a worker whose version may fit       RUNNABLE, with an activation
    STUCK        retry                                      RUNNABLE, with an activation
    PINNED       retry                                      RUNNABLE, with an activation
    not ended    terminate                                  TERMINATED
    ended        forget: it was kept long enough            (none)

What is absent is refused (`TRANSITIONS`). RUNNABLE has exactly one activation, every other state
has none. What was pinned once in a run is pinned again each time that it could continue, until it
is retried (`pins`).

Activations have no payload: their blocks have no attachment (`Block.index` 0). Those that commands
of an entry make one after the other share blocks, as produced items do (`place_activations`).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from querator.model.commands import Complete, LeaseItems, Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import sizes_of
from querator.model.executions import ExecutionState, RecordKind
from querator.model.item_options import ItemSpecial
from querator.model.limits import BLOCK_ITEMS_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.execution_rows import (
    CANCELS,
    DEADLINE,
    ExecutionCounts,
    ExecutionRow,
    RecordRow,
    decode_execution,
    marks_of,
    name_hash,
    path_mark,
    signal_mark,
)
from querator.partition.overlays import drop_data
from querator.partition.pins import add_pin, remove_pin
from querator.partition.produce import place_block
from querator.partition.removals import remove_parts
from querator.partition.rows import RowState, encode
from querator.partition.segments import find_item
from querator.partition.settle import complete
from querator.storage.tables import (
    ACTIVATIONS,
    ARRIVALS,
    EXECUTION_NAMES,
    EXECUTION_TIMES,
    EXECUTIONS,
    RECORDS,
    RETAINED,
)


class ExecutionEvent(IntEnum):
    """What happens to an execution."""

    START = 1
    PARK = 2
    COMPLETE = 3
    FAIL = 4
    CANCEL = 5
    STICK = 6
    WAKE = 7
    RETRY = 8
    TERMINATE = 9
    RENEW = 10
    RESTART = 11
    PIN = 12
    TAKE = 13
    REWIND = 14


_State = ExecutionState
TRANSITIONS: Final[dict[tuple[ExecutionState | None, ExecutionEvent], ExecutionState]] = {
    (None, ExecutionEvent.START): _State.RUNNABLE,
    (_State.RUNNABLE, ExecutionEvent.PARK): _State.PARKED,
    (_State.RUNNABLE, ExecutionEvent.COMPLETE): _State.COMPLETED,
    (_State.RUNNABLE, ExecutionEvent.FAIL): _State.FAILED,
    (_State.RUNNABLE, ExecutionEvent.CANCEL): _State.CANCELLED,
    (_State.RUNNABLE, ExecutionEvent.STICK): _State.STUCK,
    (_State.RUNNABLE, ExecutionEvent.RENEW): _State.RUNNABLE,
    (_State.PARKED, ExecutionEvent.WAKE): _State.RUNNABLE,
    (_State.STUCK, ExecutionEvent.RETRY): _State.RUNNABLE,
    (_State.RUNNABLE, ExecutionEvent.PIN): _State.PINNED,
    (_State.PINNED, ExecutionEvent.TAKE): _State.RUNNABLE,
    (_State.PINNED, ExecutionEvent.RETRY): _State.RUNNABLE,
    (_State.PINNED, ExecutionEvent.TERMINATE): _State.TERMINATED,
    (_State.RUNNABLE, ExecutionEvent.TERMINATE): _State.TERMINATED,
    (_State.PARKED, ExecutionEvent.TERMINATE): _State.TERMINATED,
    (_State.STUCK, ExecutionEvent.TERMINATE): _State.TERMINATED,
    (_State.COMPLETED, ExecutionEvent.RESTART): _State.RUNNABLE,
    (_State.FAILED, ExecutionEvent.RESTART): _State.RUNNABLE,
    (_State.CANCELLED, ExecutionEvent.RESTART): _State.RUNNABLE,
    (_State.TERMINATED, ExecutionEvent.RESTART): _State.RUNNABLE,
    **{(state, ExecutionEvent.REWIND): _State.RUNNABLE for state in _State},
}

Part = tuple[int, int]
"""An attachment of the command: its number in the entry, and its size."""


def counts_of(context: ApplyContext) -> ExecutionCounts:
    """The counts of a partition that has executions, or may have."""
    counts = context.state.executions
    if counts is None:
        counts = context.state.executions = ExecutionCounts()
    return counts


def load_execution(context: ApplyContext, number: int) -> ExecutionRow | None:
    raw = EXECUTIONS.get(context.txn, context.group, number) if number > 0 else None
    return None if raw is None else decode_execution(raw)


def put_execution(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    EXECUTIONS.put(context.txn, context.group, number, value=encode(row))


def of_another_run(run: int, row: ExecutionRow) -> Refusal | None:
    """The refusal of a command that names a run which is not the last one; 0: it names none."""
    if run in (0, row.run):
        return None
    return Refusal(
        ErrorCode.EXECUTION_CLOSED,
        f"run {run} of execution {row.id} is not the last one, {row.run}",
        field="run",
        limit=str(row.run),
        value=str(run),
    )


def find_execution(context: ApplyContext, execution_id: str) -> tuple[int, ExecutionRow] | None:
    raw = EXECUTION_NAMES.get(context.txn, context.group, name_hash(execution_id))
    if raw is None:
        return None
    number = int.from_bytes(raw, "big")
    row = load_execution(context, number)
    assert row is not None, "a name has an execution"
    return (number, row) if row.id == execution_id else None


def create(
    context: ApplyContext,
    row: ExecutionRow,
    arguments: tuple[bytes, int, int, int],
    *,
    due_ms: int,
) -> int:
    """Makes an execution whose id is free, and returns its number. `arguments` are as `stored`
    returns them.
    """
    counts = counts_of(context)
    number = counts.next
    counts.next += 1
    counts.executions += 1
    counts.started += 1
    EXECUTION_NAMES.put(
        context.txn, context.group, name_hash(row.id), value=number.to_bytes(8, "big")
    )
    started = RecordRow(
        RecordKind.STARTED, b"", row.function, "", 0, context.now_ms, *arguments
    )  # fmt: skip
    append(context, number, row, started)
    if row.deadline_ms:
        put_time(context, number, row.deadline_ms, DEADLINE)
    check(None, ExecutionEvent.START)
    activate(context, number, row, due_ms=due_ms)
    put_execution(context, number, row)
    return number


def stored(
    context: ApplyContext, place: int, parts: Sequence[Part], payload: bytes
) -> tuple[bytes, int, int, int]:
    """The last four fields of a record: its payload, or where it is."""
    if not place:
        return payload, 0, 0, 0
    part, size = parts[place - 1]
    return b"", context.index, part, size


def parts_of(lengths: bytes, parts: Sequence[Part]) -> list[Part]:
    """The attachments of a command with their sizes. `parts` are (attachment, 1)."""
    sizes = sizes_of(lengths)
    return [(part, size) for (part, _), size in zip(parts, sizes, strict=True)]


def drop_parts(context: ApplyContext, parts: Sequence[Part]) -> None:
    """The command was refused, or repeats another one."""
    for part, _ in parts:
        drop_data(context, context.index, part)


def append(context: ApplyContext, number: int, row: ExecutionRow, record: RecordRow) -> int:
    """Appends a record, and returns its index. The caller writes the row."""
    index = row.next_index
    RECORDS.put(context.txn, context.group, number, index, value=encode(record))
    row.next_index = index + 1
    count(context, row, 1, record.weight)
    return index


def count(context: ApplyContext, row: ExecutionRow, records: int, size: int) -> None:
    """Counts records that came to a journal, or left it (negative numbers)."""
    counts = counts_of(context)
    row.records += records
    row.size += size
    counts.records += records
    counts.bytes += size


def arrive(context: ApplyContext, number: int, row: ExecutionRow, record: RecordRow) -> int:
    """Appends an arrival, and wakes a parked execution that waits for it. Returns its index. The
    caller writes the row.
    """
    index = append(context, number, row, record)
    row.last_arrival = index
    row.unseen += 1
    row.unread += record.kind == RecordKind.SIGNAL
    mark = mark_of(record)
    ARRIVALS.put(context.txn, context.group, number, index, value=bytes((record.kind,)) + mark)
    if row.state == ExecutionState.PARKED and _wakes(row, mark):
        move(context, row, ExecutionEvent.WAKE)
        if row.pin:
            pin(context, number, row)
        else:
            activate(context, number, row)
    elif row.activation:
        notify(context, number)
    return index


def notify(context: ApplyContext, number: int) -> None:
    """Something has happened to an execution that a worker may have at work."""
    counts_of(context).notices += 1
    context.arrived_numbers.append(number)


def mark_of(record: RecordRow) -> bytes:
    """What a parked execution that waits for this arrival has in its wake set."""
    if record.kind == RecordKind.SIGNAL:
        return signal_mark(record.name)
    return path_mark(record.path) if record.path else CANCELS


def _wakes(row: ExecutionRow, mark: bytes) -> bool:
    """Whether an arrival wakes a parked execution. Of several that must all come, it is ticked
    off.
    """
    if mark == CANCELS or not row.wake:
        return True
    waits = marks_of(row.wake)
    if mark not in waits:
        return False
    if row.wake_all and len(waits) > 1:
        row.wake = b"".join(sorted(waits - {mark}))
        return False
    return True


def check(state: ExecutionState | None, event: ExecutionEvent) -> ExecutionState:
    """The state after an event. The transition must be in the table."""
    after = TRANSITIONS.get((state, event))
    assert after is not None, f"{event.name} does not happen in state {state}"
    return after


def move(context: ApplyContext, row: ExecutionRow, event: ExecutionEvent) -> None:
    """Changes the state, and what depends on it but for the activation."""
    counts = counts_of(context)
    before = ExecutionState(row.state)
    after = check(before, event)
    for state, change in ((before, -1), (after, 1)):
        if state is ExecutionState.PARKED:
            counts.parked += change
        elif state is ExecutionState.STUCK:
            counts.stuck += change
        elif state is ExecutionState.PINNED:
            counts.pinned += change
        elif state.closed:
            counts.closed += change
    row.state = after
    if after is not ExecutionState.PARKED:
        row.wake, row.wake_all = b"", False
    if after is not ExecutionState.STUCK and not row.pin:
        row.reason = ""


def close(context: ApplyContext, number: int, row: ExecutionRow, event: ExecutionEvent) -> None:
    """The execution has ended, and its last record is appended. It is kept for the retention of the
    queue.
    """
    assert context.queue.executions is not None
    if row.activation:
        drop_activation(context, row)
    if row.state == ExecutionState.PINNED:
        remove_pin(context.txn, context.group, row)
    move(context, row, event)
    row.closed_ms = context.now_ms
    row.end_index = row.next_index - 1
    until_ms = row.until_ms = context.now_ms + context.queue.executions.retention_ms
    RETAINED.put(context.txn, context.group, until_ms, number, value=b"")
    counts = counts_of(context)
    counts.head_ms = earlier(counts.head_ms, until_ms)
    counts.notices += 1
    context.ended_ids.append(row.id)


def stick(context: ApplyContext, row: ExecutionRow, reason: str) -> None:
    """The execution has no activation until it is retried. The caller writes the row."""
    drop_activation(context, row)
    move(context, row, ExecutionEvent.STICK)
    row.reason = reason


def pin(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    """The execution has no activation until a worker comes that may run it. The caller writes the
    row.
    """
    if row.activation:
        drop_activation(context, row)
    counts = counts_of(context)
    row.pin = counts.next_pin
    counts.next_pin += 1
    move(context, row, ExecutionEvent.PIN)
    add_pin(context.txn, context.group, number, row)
    counts.notices += 1
    context.pinned_functions.append(row.function)


def unpin(context: ApplyContext, row: ExecutionRow, event: ExecutionEvent) -> None:
    """A pinned execution is runnable: the caller makes its activation, and writes the row."""
    remove_pin(context.txn, context.group, row)
    move(context, row, event)


def free(row: ExecutionRow) -> None:
    """From now on any worker may lease the execution, and each version is tried."""
    row.pin, row.refused = 0, []


def put_time(context: ApplyContext, number: int, due_ms: int, mark: bytes) -> None:
    EXECUTION_TIMES.put(context.txn, context.group, due_ms, number, mark, value=b"")
    counts = counts_of(context)
    counts.head_ms = earlier(counts.head_ms, due_ms)


def activate(context: ApplyContext, number: int, row: ExecutionRow, *, due_ms: int = 0) -> None:
    """Gives an execution its activation, which is placed before another command needs it. The
    caller writes the row.
    """
    assert not row.activation
    assert context.activations is not None
    seq = row.activation = context.state.next_seq
    context.state.next_seq += 1
    ACTIVATIONS.put(context.txn, context.group, seq, value=number.to_bytes(8, "big"))
    context.activations.append((seq, row.priority, due_ms))


def place_activations(context: ApplyContext) -> None:
    """Places the activations that were made since the last call, as blocks of items."""
    made = context.activations
    if not made:
        return
    context.activations = []
    for begin in range(0, len(made), BLOCK_ITEMS_MAX):
        block = made[begin : begin + BLOCK_ITEMS_MAX]
        specials = [
            ItemSpecial(ordinal, due_ms, priority=priority)
            for ordinal, (_, priority, due_ms) in enumerate(block)
            if priority or due_ms
        ]
        place_block(
            context=context,
            attachment=(0, 0),
            first_seq=block[0][0],
            lengths=bytes(4 * len(block)),
            alive=masks.full(len(block)),
            specials=specials,
            held={},
            flow_of=(),
        )
    context.state.produced += len(made)


def drop_activation(context: ApplyContext, row: ExecutionRow) -> None:
    """Removes the activation, in whatever state it is: the execution cannot continue, or a Record
    has used it. The caller writes the row.
    """
    place_activations(context)
    seq, row.activation = row.activation, 0
    found = find_item(context.txn, context.group, seq)
    assert found is not None, "a runnable execution has an item"
    first_seq, segment = found
    if segment.state == RowState.LEASED:
        complete(context, Complete((LeaseItems(segment.locator, ((seq, 1),)),)))
    else:
        remove_parts(context, first_seq, [(segment, 1 << (seq - first_seq))])
    ACTIVATIONS.delete(context.txn, context.group, seq)


def activations_lapsed(context: ApplyContext, seqs: list[int], lapses_max: int) -> None:
    """Leases of activations have lapsed. An execution for which it happens again and again, without
    a record in between, is stuck: its worker dies of it.
    """
    for seq in seqs:
        raw = ACTIVATIONS.get(context.txn, context.group, seq)
        assert raw is not None, "each item of the queue is an activation"
        number = int.from_bytes(raw, "big")
        row = load_execution(context, number)
        assert row is not None
        row.lapses += 1
        if row.lapses >= lapses_max:
            stick(context, row, f"{row.lapses} leases in a row have lapsed without a record")
            row.lapses = 0
        elif row.pin:
            pin(context, number, row)
        put_execution(context, number, row)


def drop_record(context: ApplyContext, number: int, index: int, record: RecordRow) -> None:
    """Deletes a record with its payload. The caller counts it."""
    RECORDS.delete(context.txn, context.group, number, index)
    if record.index:
        drop_data(context, record.index, record.part)
