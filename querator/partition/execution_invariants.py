"""The invariants of executions, checked by a full scan."""

from collections import Counter
from collections.abc import Iterator

from querator.model.executions import ARRIVAL, CHILD_RESULTS, ExecutionState, RecordKind
from querator.model.limits import PUBLISHED_BYTES_MAX, PUBLISHED_KEYS_MAX
from querator.partition.execution_children import is_cut
from querator.partition.execution_rows import (
    CANCELS,
    DEADLINE,
    ORPHANS,
    ChildEnds,
    ChildRow,
    ExecutionCounts,
    ExecutionRow,
    RecordRow,
    WaitRow,
    decode_child,
    decode_execution,
    decode_pin,
    decode_published,
    decode_record,
    decode_wait,
    marks_of,
    name_hash,
    path_mark,
)
from querator.partition.executions import mark_of
from querator.partition.pins import PIN_BYTES, pin_key, pin_of
from querator.partition.rows import PartitionState
from querator.storage import attachments
from querator.storage.environment import ReadTransaction, StorageCorrupt
from querator.storage.tables import (
    ACTIVATIONS,
    ARRIVALS,
    CHILDREN,
    EXECUTION_NAMES,
    EXECUTION_TIMES,
    EXECUTIONS,
    PINNED_EXECUTIONS,
    PINS,
    PUBLISHED,
    RECORDS,
    RETAINED,
    SIGNAL_ORDER,
    SIGNALS_SEEN,
    WAITS,
)

Journal = dict[int, RecordRow]
_FOLDED = (RecordKind.CALL_DONE_LATER, RecordKind.CALL_FAILED_LATER)
"""What stands in the place of a folded arrival."""
_PROMISES = frozenset((RecordKind.RESOLVED, RecordKind.REJECTED))


def check_executions(
    txn: ReadTransaction, group: int, state: PartitionState, items: set[int], *, checksums: bool
) -> Iterator[str]:
    """All violations. `items` are the sequences of the items of the partition that do not
    move away.
    """
    counts = state.executions
    if counts is None:
        for table in (EXECUTIONS, ACTIVATIONS, RECORDS, EXECUTION_TIMES, PINS):
            if any(True for _ in table.rows(txn, group)):
                yield f"there are rows in {table.name}, and the partition has no executions"
        return
    rows = {
        int.from_bytes(key[-8:], "big"): decode_execution(raw)
        for key, raw in EXECUTIONS.rows(txn, group)
    }
    journals: dict[int, Journal] = {number: {} for number in rows}
    forgotten: set[int] = set()
    for key, raw in RECORDS.rows(txn, group):
        number, index = int.from_bytes(key[-16:-8], "big"), int.from_bytes(key[-8:], "big")
        if number in rows:
            journals[number][index] = decode_record(raw)
        else:
            forgotten.add(number)
    yield from _activations(txn, group, rows, items)
    yield from _pins(txn, group, rows, counts)
    yield from _kept(txn, group, rows, forgotten)
    yield from _counts(counts, rows)
    for number, row in rows.items():
        name = f"execution {number}"
        for wrong in (
            *_journal(row, journals[number]),
            *_arrivals(txn, group, number, row, journals[number]),
            *_waits(txn, group, number, row, journals[number]),
            *_signals(txn, group, number, row),
            *_published(txn, group, number, row),
        ):
            yield f"{name}: {wrong}"
    children = _children_of(txn, group)
    yield from _children(txn, group, rows, journals, children)
    yield from _payloads(txn, group, journals, checksums=checksums)
    yield from _times(txn, group, rows, counts, children)


def _activations(
    txn: ReadTransaction, group: int, rows: dict[int, ExecutionRow], items: set[int]
) -> Iterator[str]:
    found = {
        int.from_bytes(key[-8:], "big"): int.from_bytes(raw, "big")
        for key, raw in ACTIVATIONS.rows(txn, group)
    }
    expected = {row.activation: number for number, row in rows.items() if row.activation}
    if found != expected:
        yield f"the activations are {found}, and the executions have {expected}"
    if set(found) != items:
        yield f"the items are {sorted(items)}, and the activations {sorted(found)}"
    for number, row in rows.items():
        if (row.state == ExecutionState.RUNNABLE) != (row.activation > 0):
            yield f"execution {number} is {row.state} and has activation {row.activation}"


def _pins(
    txn: ReadTransaction, group: int, rows: dict[int, ExecutionRow], counts: ExecutionCounts
) -> Iterator[str]:
    """What is pinned waits under its pin, alone of all executions, and pins count what waits."""
    waiting = {
        (bytes(key[-PIN_BYTES - 8 : -8]), int.from_bytes(key[-8:], "big")): (
            int.from_bytes(raw, "big")
        )
        for key, raw in PINNED_EXECUTIONS.rows(txn, group)
    }
    pinned = {
        (pin_key(pin_of(row)), row.pin): number
        for number, row in rows.items()
        if row.state == ExecutionState.PINNED
    }
    if waiting != pinned:
        numbers, found_numbers = sorted(pinned.values()), sorted(waiting.values())
        yield f"executions {numbers} are pinned, and {found_numbers} wait"
    found = {bytes(key[-PIN_BYTES:]): decode_pin(raw) for key, raw in PINS.rows(txn, group)}
    if any(pin_key(pin) != key for key, pin in found.items()):
        yield "a pin is under another key"
    expected = Counter(key for key, _ in pinned)
    if {key: pin.count for key, pin in found.items()} != expected:
        yield "the pins do not count what waits under them"
    for number, row in rows.items():
        if row.pin >= counts.next_pin:
            yield f"execution {number} has the position {row.pin}, which is to come"
        if row.refused and not row.pin:
            yield f"execution {number} has refused versions, and was not pinned"


def _kept(
    txn: ReadTransaction, group: int, rows: dict[int, ExecutionRow], forgotten: set[int]
) -> Iterator[str]:
    names = {
        bytes(key[-16:]): int.from_bytes(raw, "big")
        for key, raw in EXECUTION_NAMES.rows(txn, group)
    }
    if names != {name_hash(row.id): number for number, row in rows.items()}:
        yield "the names of executions are not those of their rows"
    retained = [int.from_bytes(key[-8:], "big") for key, _ in RETAINED.rows(txn, group)]
    closed = {number for number, row in rows.items() if row.closed}
    if closed - set(retained) or (set(retained) - closed) & set(rows):
        yield f"executions {sorted(closed)} have ended, and {sorted(retained)} are kept for a time"
    if len(set(retained)) != len(retained):
        yield "an execution is kept for two times"
    if forgotten - set(retained):
        yield f"records of executions {sorted(forgotten - set(retained))} are left"


def _counts(counts: ExecutionCounts, rows: dict[int, ExecutionRow]) -> Iterator[str]:
    states = [row.state for row in rows.values()]
    for name, counted, found in (
        ("executions", counts.executions, len(rows)),
        ("parked", counts.parked, states.count(ExecutionState.PARKED)),
        ("stuck", counts.stuck, states.count(ExecutionState.STUCK)),
        ("pinned", counts.pinned, states.count(ExecutionState.PINNED)),
        ("closed", counts.closed, sum(row.closed for row in rows.values())),
        ("records", counts.records, sum(row.records for row in rows.values())),
        ("bytes", counts.bytes, sum(row.size for row in rows.values())),
        ("started", counts.started, counts.removed + len(rows)),
    ):
        if counted != found:
            yield f"{name} of executions are counted as {counted}, and are {found}"
    if rows and max(rows) >= counts.next:
        yield f"the next execution {counts.next} is there"


def _journal(row: ExecutionRow, journal: Journal) -> Iterator[str]:
    if len(journal) != row.records or sum(one.weight for one in journal.values()) != row.size:
        yield "its records are not counted as they are"
    if 0 not in journal or journal[0].kind != RecordKind.STARTED:
        yield "its journal does not begin with its arguments"
    if journal and max(journal) >= row.next_index:
        yield f"record {row.next_index} is to come, and it is there"
    after = 0
    for index, one in sorted(journal.items()):
        if one.kind >= ARRIVAL or one.kind in (RecordKind.STARTED,):
            continue
        if not after <= one.after < max(index, 1):
            yield f"record {index} says that it comes after {one.after}"
        after = one.after
    if row.closed and row.end_index not in journal:
        yield "it has ended, and has no last record"
    if row.after > row.seen or row.seen >= row.next_index:
        yield f"it has seen {row.seen} and comes after {row.after}"
    if row.cancelled and journal.get(row.cancelled, RecordRow(0)).kind != RecordKind.CANCEL:
        yield f"its cancellation {row.cancelled} is not there"


def _arrivals(
    txn: ReadTransaction, group: int, number: int, row: ExecutionRow, journal: Journal
) -> Iterator[str]:
    """What the code has not been given is indexed, and nothing parked waits for it."""
    found = {
        int.from_bytes(key[-8:], "big"): bytes(raw)
        for key, raw in ARRIVALS.rows(txn, group, number)
    }
    expected = {
        index: bytes((one.kind,)) + mark_of(one)
        for index, one in journal.items()
        if one.kind >= ARRIVAL and index > row.seen and one.kind != RecordKind.TERMINATED
    }
    if found != expected:
        yield f"the arrivals that it has not seen are {sorted(found)}, not {sorted(expected)}"
    unread = sum(mark[0] == RecordKind.SIGNAL for mark in expected.values())
    if (row.unseen, row.unread) != (len(expected), unread):
        yield f"it counts {row.unseen} arrivals and {row.unread} signals that it has not seen"
    if row.state != ExecutionState.PARKED:
        if row.wake or row.wake_all:
            yield "it waits, and is not parked"
        return
    waits = marks_of(row.wake)
    for index, mark in expected.items():
        if mark[1:] == CANCELS or not waits or mark[1:] in waits:
            yield f"it is parked, and arrival {index} has come"


def _waits(
    txn: ReadTransaction, group: int, number: int, row: ExecutionRow, journal: Journal
) -> Iterator[str]:
    waits = _waits_of(txn, group, number)
    for mark, wait in waits.items():
        if mark != path_mark(wait.path):
            yield f"a wait for {wait.path.hex()} is under another path"
        one = journal.get(wait.index)
        folded = one is None or one.kind in _FOLDED
        if (
            one is not None
            and wait.index
            and not folded
            and (one.kind, one.path) != (wait.kind, wait.path)
        ):
            yield f"record {wait.index} is not what arrived for {wait.path.hex()}"
        if wait.index and folded and wait.kind not in _PROMISES:
            yield f"{wait.path.hex()} has arrived, and its record is folded"
    open_kinds = [wait.kind for wait in waits.values() if not wait.index]
    timers = open_kinds.count(RecordKind.TIMER_FIRED)
    children = open_kinds.count(RecordKind.CHILD_DONE)
    promises = sum(wait.kind in _PROMISES for wait in waits.values())
    counted = (row.timers, row.promises, row.children)
    if counted != (timers, promises, children):
        yield f"it has {timers} timers, {promises} promises, {children} children, not {counted}"
    for index, one in journal.items():
        if one.kind == RecordKind.TIMER_FIRED or one.kind in _PROMISES | CHILD_RESULTS:
            of_path = waits.get(path_mark(one.path))
            if of_path is None or of_path.index != index:
                yield f"arrival {index} has come twice, or for nothing"


def _children_of(txn: ReadTransaction, group: int) -> dict[tuple[int, int], ChildRow]:
    """The rows of children, by the numbers of parent and child."""
    return {
        (int.from_bytes(key[-16:-8], "big"), int.from_bytes(key[-8:], "big")): decode_child(raw)
        for key, raw in CHILDREN.rows(txn, group)
    }


def _children(
    txn: ReadTransaction,
    group: int,
    rows: dict[int, ExecutionRow],
    journals: dict[int, Journal],
    children: dict[tuple[int, int], ChildRow],
) -> Iterator[str]:
    """Each child that has not ended, and whose parent is there, is one that the parent waits for,
    and the reverse.
    """
    for (number, child), known in children.items():
        row = rows.get(child)
        if row is None or row.closed or row.parent != number:
            yield f"execution {number} waits for child {child}, which has ended or is of another"
        parent = rows.get(number)
        if parent is None:
            continue
        waits = _waits_of(txn, group, number)
        mine = {wait.path for wait in waits.values() if wait.child == child and not wait.index}
        if mine != set(known.paths):
            yield f"execution {number} waits for child {child} by other paths"
        started = {
            one.path for one in journals[number].values() if one.kind == RecordKind.CHILD_STARTED
        }
        if any(path[:-1] not in started for path in known.paths):
            yield f"execution {number} has not started child {child}"
    for number, row in rows.items():
        parent = rows.get(row.parent)
        cut = parent is not None and is_cut(row.parent, parent, row)
        if parent is None or parent.origin != row.parent_run or cut:
            # A later run of the parent does not know it, and may not be a child any more itself.
            continue
        if not row.closed and (row.parent, number) not in children:
            yield f"execution {number} has a parent that does not wait for it"
        if row.deep != parent.deep + 1:
            yield f"execution {number} is {row.deep} deep"


def _waits_of(txn: ReadTransaction, group: int, number: int) -> dict[bytes, WaitRow]:
    return {
        bytes(key[-len(DEADLINE) :]): decode_wait(raw)
        for key, raw in WAITS.rows(txn, group, number)
    }


def _signals(txn: ReadTransaction, group: int, number: int, row: ExecutionRow) -> Iterator[str]:
    seen = {
        (bytes(key[-16:]), int.from_bytes(raw, "big"))
        for key, raw in SIGNALS_SEEN.rows(txn, group, number)
    }
    order = {
        (bytes(raw), int.from_bytes(key[-8:], "big"))
        for key, raw in SIGNAL_ORDER.rows(txn, group, number)
    }
    if seen != order or len(seen) != row.signals:
        yield "the message ids of its signals are not remembered as they are counted"


def _published(txn: ReadTransaction, group: int, number: int, row: ExecutionRow) -> Iterator[str]:
    values = {
        bytes(key[-16:]): decode_published(raw) for key, raw in PUBLISHED.rows(txn, group, number)
    }
    size = sum(len(one.key.encode()) + len(one.value) for one in values.values())
    if (len(values), size) != (row.published, row.published_bytes):
        yield f"it has published {len(values)} values of {size} bytes, and counts others"
    if len(values) > PUBLISHED_KEYS_MAX or size > PUBLISHED_BYTES_MAX:
        yield f"it has published {len(values)} values of {size} bytes, more than it may"
    if any(mark != name_hash(one.key) for mark, one in values.items()):
        yield "a published value is under another key"
    versions = sorted(one.version for one in values.values())
    if len(set(versions)) != len(versions) or versions[-1:] > [row.published_version]:
        yield f"its published values have versions {versions}, of {row.published_version}"


def _payloads(
    txn: ReadTransaction, group: int, journals: dict[int, Journal], *, checksums: bool
) -> Iterator[str]:
    """Each large payload has an attachment of its size, which no other one has."""
    owners: set[tuple[int, int]] = set()
    for number, journal in journals.items():
        for index, one in journal.items():
            name = f"the payload of record {index} of execution {number}"
            if not one.index:
                continue
            place = (one.index, one.part)
            if place in owners:
                yield f"{name} belongs to another record, too"
            owners.add(place)
            try:
                data = attachments.read(txn, group, *place)
            except StorageCorrupt as error:
                if checksums:
                    yield f"{name} is damaged: {error}"
                continue
            if data is None or len(data) != one.size:
                yield f"{name} is not there in its size"


def _times(
    txn: ReadTransaction,
    group: int,
    rows: dict[int, ExecutionRow],
    counts: ExecutionCounts,
    children: dict[tuple[int, int], ChildRow],
) -> Iterator[str]:
    """Each timer and deadline of an execution that has not ended fires, children are cancelled, and
    the head is not behind the first one.
    """
    found: set[tuple[int, int, bytes]] = set()
    forsaken: set[int] = set()
    heads: list[int] = []
    for key, _ in EXECUTION_TIMES.rows(txn, group):
        due_ms, number, mark = EXECUTION_TIMES.parts(key)
        assert isinstance(due_ms, int)
        assert isinstance(number, int)
        assert isinstance(mark, bytes)
        heads.append(due_ms)
        if mark == ORPHANS:
            forsaken.add(number)
        else:
            found.add((due_ms, number, mark))
    for key, _ in RETAINED.rows(txn, group):
        heads.append(int.from_bytes(key[9:17], "big"))
    expected: set[tuple[int, int, bytes]] = set()
    closed: set[tuple[int, int, bytes]] = set()
    for number, row in rows.items():
        times = {
            (wait.due_ms, number, mark)
            for mark, wait in _waits_of(txn, group, number).items()
            if wait.due_ms and not wait.index
        }
        deadline = {(row.deadline_ms, number, DEADLINE)} if row.deadline_ms else set()
        if row.closed:
            closed |= times | deadline
        else:
            expected |= times
            # A deadline that has come leaves no time.
            closed |= deadline if row.cancelled else set()
            expected |= set() if row.cancelled else deadline
    if not expected <= found:
        yield f"timers do not fire: {sorted(expected - found)}"
    retained = {int.from_bytes(key[-8:], "big") for key, _ in RETAINED.rows(txn, group)}
    stray = {time for time in found - expected - closed if time[1] not in retained}
    if stray:
        yield f"times have no timer: {sorted(stray)}"
    for (number, child), known in children.items():
        parent = rows.get(number)
        if parent is None or number in forsaken:
            continue
        least = ChildEnds.WITH_END if parent.closed else ChildEnds.WITH_CANCEL
        if (parent.closed or parent.cancelled) and known.ends >= least:
            yield f"child {child} is not cancelled with its parent {number}"
    if heads and not 0 < counts.head_ms <= min(heads):
        yield f"the head {counts.head_ms} of executions is behind {min(heads)}"
