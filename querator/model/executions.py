"""What an execution has seen, and how it continues: the values that a worker and a partition share.

An *execution* is a durable function at work. Its *journal* is the list of its *records*, numbered
from 0. A *worker* appends records under the lease of the execution's activation. Other records are
*arrivals*: they came from elsewhere, and the partition appends them.

    kind of a record          appended by         what it says
    STARTED                   the partition       record 0: the arguments
    below ARRIVAL             a worker            results of steps, timers and calls; the end
    from ARRIVAL on           the partition       a signal, a resolution, a timer, a cancellation

**Order of delivery.** A record of a worker says `after`: the index of the last arrival that its
code had been given before it (0: none). The code is given, live and in each replay: for each record
of a worker in the order of the indexes, first the arrivals up to its `after`, then the record
itself; at last the other arrivals. `delivery_order` is that rule. `after` never falls from one
record of a worker to the next.

**Paths.** A path names an operation by its place in the tree of tasks and calls. To a partition
it is bytes: each element is a number from 0 to 2**32 - 1 as an unsigned LEB128 varint of the
shortest form, one after the other. A varint says where it ends, so that a path that begins with the
bytes of another one begins with its elements: it is *below* the other one. The main function has
the empty path. What the numbers mean is the worker's matter; no two operations of a run share a
path, and all that a called function does is below the path of its call.

**Folds.** When a called durable function has returned, its records may go. A fold overwrites the
record of the last event below the call's path with the result of the call, and removes the others,
with the arrivals that the call consumed. A call none of whose records has been sent needs no fold:
the worker sends its result in the place of its last event. The result keeps the index, the `after`
and the time of the record that it overwrites. If that was an arrival, the result is delivered where
the arrival was (kinds CALL_DONE_LATER and CALL_FAILED_LATER, which the partition chooses).

**Children.** A child is an execution that another one has started, its parent. The operation that
starts it has a path, and its result arrives for the path that has one element more
(`child_result_path`). The partition says in an arrival that the child is there, or why it is not.

Times are ms since the epoch, sizes bytes. The structs are parts of the log's format: fields are
only added, at the end.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b

import msgspec

from querator.model.errors import invalid, over_limit
from querator.model.limits import (
    ERROR_CHARS_MAX,
    EXECUTION_ID_BYTES_MAX,
    EXECUTION_NAME_BYTES_MAX,
    EXECUTION_PATH_BYTES_MAX,
    EXECUTION_SECRET_BYTES,
    EXECUTION_VERSION_BYTES_MAX,
    EXECUTION_WAKES_MAX,
    JOURNAL_RECORDS_MAX,
    PROMISE_MAC_BYTES,
)

ARRIVAL = 64
"""The kinds from here on are those of arrivals."""
NO_PATH = b""
"""The path of the main function, and of records that belong to no operation."""
TIME_MS_END = 253_402_300_800_000
"""The first instant of the year 10,000: no record and no timer is of it, or later."""
PATH_ELEMENT_END = 1 << 32
UNVERSIONED = "-"
"""The version of an execution that was started without its code: any version may run it."""
_INDEX_END = 1 << 62


class RecordKind(IntEnum):
    """What a record says. Numbers are those of the log and of the wire."""

    STARTED = 1
    """The arguments. Only record 0."""
    STEP_DONE = 2
    """The result of a step."""
    STEP_FAILED = 3
    """The exception with which a step has ended."""
    ATTEMPT_FAILED = 4
    """The exception of an attempt that is followed by another one."""
    STEP_BEGUN = 5
    """An attempt of a step that runs at most once begins."""
    TIMER_DONE = 6
    """A timer that the partition does not have is over."""
    CALL_DONE = 7
    """The result of a called durable function whose records are gone."""
    CALL_FAILED = 8
    """The exception of a called durable function whose records are gone."""
    PATCHED = 9
    """An answer to the code, which is no event: that it takes the newer way, by the name of the
    patch; or that its journal is over half of a limit.
    """
    COMPLETED = 10
    """The last record of a run: the result of the function."""
    FAILED = 11
    """The last record of a run: the exception that has left the function."""
    CANCELLED = 12
    """The last record of a run: the function has ended because it was cancelled."""
    PRODUCED = 13
    """The code has produced items, which were stored with this record; the name is their queue."""

    SIGNAL = 64
    """A message from outside; the name is that of the signal."""
    RESOLVED = 65
    """The value of a promise."""
    REJECTED = 66
    """The exception of a promise."""
    TIMER_FIRED = 67
    """The partition has fired a timer."""
    CANCEL = 68
    """The execution is to end. The name is `cancel`, `deadline`, or `parent` if the parent has
    cancelled it, or has ended; the payload is the reason.
    """
    TERMINATED = 69
    """The last record of a run: it was ended from outside, and its code runs no more."""
    CALL_DONE_LATER = 71
    """As CALL_DONE, in the place of an arrival."""
    CALL_FAILED_LATER = 72
    """As CALL_FAILED, in the place of an arrival."""
    CHILD_STARTED = 73
    """A child is there. The name of this and the next ones is that of its function."""
    CHILD_REFUSED = 74
    """A child was not started; the payload is a `ChildRefusal`."""
    CHILD_DONE = 75
    """The result of a child."""
    CHILD_FAILED = 76
    """The exception of a child."""
    CHILD_CANCELLED = 77
    """A child has ended because it was cancelled."""
    CHILD_TERMINATED = 78
    """A child was ended from outside; the payload is the reason."""
    CHILD_LOST = 79
    """A child has ended, and its result has no room in the journal."""


WORKER_KINDS = frozenset(
    (
        RecordKind.STEP_DONE, RecordKind.STEP_FAILED, RecordKind.ATTEMPT_FAILED,
        RecordKind.STEP_BEGUN, RecordKind.TIMER_DONE, RecordKind.CALL_DONE, RecordKind.CALL_FAILED,
        RecordKind.PATCHED, RecordKind.PRODUCED,
    )
)  # fmt: skip
"""Kinds of the records that a worker appends."""
FOLD_KINDS = frozenset((RecordKind.CALL_DONE, RecordKind.CALL_FAILED))
"""Kinds of the records of folds, as a worker names them."""
CHILD_RESULTS = frozenset(
    (
        RecordKind.CHILD_DONE, RecordKind.CHILD_FAILED, RecordKind.CHILD_CANCELLED,
        RecordKind.CHILD_TERMINATED, RecordKind.CHILD_LOST,
    )
)  # fmt: skip
"""Kinds of the arrivals that say how a child has ended."""
assert RecordKind.CALL_DONE_LATER == RecordKind.CALL_DONE + ARRIVAL
assert RecordKind.CALL_FAILED_LATER == RecordKind.CALL_FAILED + ARRIVAL


class ArriveKind(IntEnum):
    """What a client sends to an execution. Numbers are those of the log and of the wire."""

    SIGNAL = 1
    RESOLVE = 2
    REJECT = 3
    CANCEL = 4
    TERMINATE = 5
    RETRY = 6
    """A stuck or pinned execution is tried again, by any worker. It leaves no record."""


class KeyPolicy(IntEnum):
    """What a start does when there is an execution with its id. Numbers are those of the log and of
    the wire.
    """

    ATTACH = 1
    """One with the same function and arguments is the one that was asked for."""
    FAIL = 2
    """It is an error."""
    RESTART_CLOSED = 3
    """One that has ended begins again; to another one it attaches."""


class ExecutionState(IntEnum):
    """The state of an execution. Numbers are those of the log and of the wire."""

    RUNNABLE = 1
    """It has an activation, which is ready, leased or scheduled."""
    PARKED = 2
    """It waits for an arrival."""
    STUCK = 3
    """It waits for a person."""
    COMPLETED = 4
    FAILED = 5
    CANCELLED = 6
    TERMINATED = 7
    PINNED = 8
    """It can continue, with a worker whose version of its function fits."""

    @property
    def closed(self) -> bool:
        return ExecutionState.COMPLETED <= self <= ExecutionState.TERMINATED


class Note(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of a record. `site` is the place in the code (file:line), for people. `place` 0:
    the payload is in the note; n: it is the n-th of the command's attachments, counted from 1, and
    `payload` is empty. A worker gives it in the note; the service moves a large one.
    """

    kind: int
    path: bytes = NO_PATH
    name: str = ""
    site: str = ""
    after: int = 0
    at_ms: int = 0
    payload: bytes = b""
    place: int = 0


class JournalRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record with its place in the journal. `note.place` is 0."""

    index: int
    note: Note

    @property
    def is_arrival(self) -> bool:
        return self.note.kind >= ARRIVAL


class Fold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Overwrites record `index` with `note`, and removes the records of `removed`: runs of indexes
    (first, count) that ascend, do not overlap and are below `index`. `index` 0: the result is one
    of the records of the same command, with the path of `note`, because the last event of the call
    is sent with it; then the fold only removes.

    `note` is of a FOLD_KINDS kind and has the path of the call; the partition ignores its `after`
    and `at_ms`. The overwritten record is below that path. A removed one is below it, too, or is a
    signal; removed arrivals are not behind the `seen` of the command.
    """

    index: int
    note: Note
    removed: tuple[tuple[int, int], ...] = ()


class Timer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From now on the partition has the timer of an operation, and fires it at `due_ms`. 0: the
    operation does not wait any more; a timer that has fired stays in the journal.
    """

    path: bytes
    due_ms: int


class ChildStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Starts a child for the operation `path`. `arguments` is a hash of the arguments, which are
    `payload`, or the attachment `place`. A child is cancelled with its parent, with `shielded` only
    when the parent ends, and if it is `detached` not at all. `site` is as in Note.
    """

    path: bytes
    id: str
    function: str
    version: str
    arguments: bytes
    payload: bytes = b""
    place: int = 0
    detached: bool = False
    shielded: bool = False
    site: str = ""


class ChildRefusal(msgspec.Struct, frozen=True):
    """Why a child was not started: the name of an `ErrorCode`, and a text. JSON in a journal."""

    code: str
    message: str


class GoOn(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """The worker keeps the activation."""


class Park(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The execution waits, without activation, for an arrival with one of the `paths`, or for a
    signal with one of the `names`. `all_of`: for one with each of the paths. `anything`: for any
    arrival; there are neither paths nor names then, because there would be too many. A cancellation
    wakes it always. Refused (UNSEEN) if what it waits for has arrived behind the `seen` of the
    command.
    """

    paths: tuple[bytes, ...] = ()
    names: tuple[str, ...] = ()
    all_of: bool = False
    anything: bool = False


class Published(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value that the code of an execution lets readers outside see, by its key."""

    key: str
    value: bytes


class Close(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """The run has ended. `outcome`: COMPLETED, FAILED or CANCELLED of `RecordKind`. `payload` and
    `place` are as in Note. `drain`: refused (UNSEEN) while there are signals behind the `seen` of
    the command. Without it, those stay unread in the journal.
    """

    outcome: int
    payload: bytes = b""
    place: int = 0
    drain: bool = False


class GiveBack(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """The worker gives the activation back: to others at once, or with `stuck` to a person, to whom
    the `reason` is shown.

    `pinned`: from now on only workers get it that have a version of its function which is not known
    not to fit. `refused` is the version of this worker, which does not; empty: the worker does not
    have the function.
    """

    stuck: bool = False
    reason: str = ""
    pinned: bool = False
    refused: str = ""


class NewRun(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The execution continues as its next run: with new arguments and an empty journal. `payload`
    and `place` are the arguments, as in ChildStart. Signals that the code has not been given come
    along; so do those of `unread`, which it was given and has not received: runs of indexes (first,
    count) that ascend and do not overlap.
    """

    payload: bytes = b""
    place: int = 0
    unread: tuple[tuple[int, int], ...] = ()


Then = GoOn | Park | Close | GiveBack | NewRun
"""How the execution continues after a Record."""

OUTCOMES = frozenset((RecordKind.COMPLETED, RecordKind.FAILED, RecordKind.CANCELLED))


def delivery_order(journal: Iterable[JournalRecord]) -> list[JournalRecord]:
    """The records of a journal, given by index, in the order in which the code is given them."""
    journal = list(journal)
    arrivals = [record for record in journal if record.is_arrival]
    delivered: list[JournalRecord] = []
    given = 0
    for record in journal:
        if record.is_arrival:
            continue
        while given < len(arrivals) and arrivals[given].index <= record.note.after:
            delivered.append(arrivals[given])
            given += 1
        delivered.append(record)
    return delivered + arrivals[given:]


def encode_path(elements: Sequence[int]) -> bytes:
    """The path of these elements."""
    path = bytearray()
    for element in elements:
        assert 0 <= element < PATH_ELEMENT_END
        while element >= 0x80:
            path.append(element & 0x7F | 0x80)
            element >>= 7
        path.append(element)
    return bytes(path)


def decode_path(path: bytes, *, field: str = "path") -> tuple[int, ...]:
    """The elements of a path. Raises INVALID_ARGUMENT for bytes that are not a path."""
    elements: list[int] = []
    element = shift = 0
    for byte in path:
        element |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            continue
        if (shift and not byte) or element >= PATH_ELEMENT_END:
            raise invalid(field, "has an element that is not a shortest varint of 32 bits",
                          value=path.hex())  # fmt: skip
        elements.append(element)
        element = shift = 0
    if shift:
        raise invalid(field, "ends within an element", value=path.hex())
    return tuple(elements)


def child_result_path(path: bytes) -> bytes:
    """The path for which the result of a child arrives, of the operation that starts it."""
    return path + b"\x01"


def is_below(path: bytes, other: bytes) -> bool:
    """Whether an operation belongs to the call with the path `other`."""
    return len(path) > len(other) and path.startswith(other)


def check_path(path: bytes, *, field: str, empty: bool = False) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for what is no path of an operation."""
    if len(path) > EXECUTION_PATH_BYTES_MAX:
        raise over_limit(field, value=len(path), limit=EXECUTION_PATH_BYTES_MAX, unit="bytes")
    if not path and not empty:
        raise invalid(field, "must not be empty")
    decode_path(path, field=field)


def check_text(text: str, *, field: str, bytes_max: int = EXECUTION_NAME_BYTES_MAX) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for what is no name of an execution, a function, a
    step or a signal: those have 1 to `bytes_max` bytes of UTF-8 without control characters.
    """
    if not text:
        raise invalid(field, "must not be empty")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        raise over_limit(field, value=size, limit=bytes_max, unit="bytes")
    if not text.isprintable():
        raise invalid(field, "has a character that cannot be printed", value=ascii(text))


def check_note(note: Note, *, field: str, kinds: frozenset[RecordKind] = WORKER_KINDS) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for what a worker may not record: a kind that is
    not in `kinds`, a malformed path, name or site, a time outside of the calendar.
    """
    if note.kind not in kinds:
        allowed = ", ".join(kind.name for kind in sorted(kinds))
        raise invalid(f"{field}.kind", f"is {note.kind}; it must be one of {allowed}",
                      value=note.kind)  # fmt: skip
    check_path(note.path, field=f"{field}.path")
    if note.name:
        check_text(note.name, field=f"{field}.name")
    if note.site:
        check_text(note.site, field=f"{field}.site")
    if note.after < 0:
        raise invalid(f"{field}.after", "must not be negative", value=note.after)
    check_time(note.at_ms, field=f"{field}.at_ms")


def check_time(at_ms: int, *, field: str) -> None:
    if not 0 <= at_ms < TIME_MS_END:
        raise invalid(field, f"is {at_ms}; it must be from 0 up to before {TIME_MS_END}",
                      value=at_ms)  # fmt: skip


def check_child(child: ChildStart, *, field: str) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for a malformed start of a child."""
    check_path(child.path, field=f"{field}.path")
    check_path(child_result_path(child.path), field=f"{field}.path")
    check_text(child.id, field=f"{field}.id", bytes_max=EXECUTION_ID_BYTES_MAX)
    check_text(child.function, field=f"{field}.function")
    check_text(child.version, field=f"{field}.version", bytes_max=EXECUTION_VERSION_BYTES_MAX)
    if child.site:
        check_text(child.site, field=f"{field}.site")


def check_fold(fold: Fold, *, field: str) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for a fold that is malformed in itself. What it
    does to the journal is for the partition to judge.
    """
    check_note(fold.note, field=f"{field}.record", kinds=FOLD_KINDS)
    if not 0 <= fold.index < _INDEX_END:
        raise invalid(f"{field}.index", "is outside of every journal", value=fold.index)
    end = _check_runs(fold.removed, field=f"{field}.removed")
    if end > fold.index > 0 and fold.removed:
        raise invalid(f"{field}.removed", f"must be below record {fold.index}", value=end - 1)


def _check_runs(runs: tuple[tuple[int, int], ...], *, field: str) -> int:
    """Raises INVALID_ARGUMENT for what is no runs of indexes. Returns where they end."""
    end = 1
    for nth, (first, count) in enumerate(runs):
        if first < end or count < 1:
            raise invalid(f"{field}[{nth}]", "must be behind the run before it, and not empty",
                          value=(first, count))  # fmt: skip
        end = first + count
    if end > _INDEX_END:
        raise invalid(field, "is outside of every journal", value=end)
    return end


def check_then(then: Then) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for a malformed end of a Record."""
    if isinstance(then, Park):
        _check_park(then)
    elif isinstance(then, Close):
        if then.outcome not in OUTCOMES:
            raise invalid("close.outcome", "must be COMPLETED, FAILED or CANCELLED",
                          value=then.outcome)  # fmt: skip
    elif isinstance(then, NewRun):
        if len(then.unread) > JOURNAL_RECORDS_MAX:
            raise over_limit("new_run.unread", value=len(then.unread), limit=JOURNAL_RECORDS_MAX)
        _check_runs(then.unread, field="new_run.unread")
    elif isinstance(then, GiveBack):
        if len(then.reason) > ERROR_CHARS_MAX:
            raise over_limit("give_back.reason", value=len(then.reason), limit=ERROR_CHARS_MAX,
                             unit="characters")  # fmt: skip
        if (then.stuck or then.pinned) and not then.reason:
            raise invalid("give_back.reason", "must say why the execution is stuck or pinned")
        if then.stuck and then.pinned:
            raise invalid("give_back.pinned", "must not be set together with stuck")
        if then.refused and not then.pinned:
            raise invalid("give_back.refused_version", "is for what is pinned",
                          value=then.refused)  # fmt: skip
        if then.refused:
            check_text(then.refused, field="give_back.refused_version",
                       bytes_max=EXECUTION_VERSION_BYTES_MAX)  # fmt: skip


def _check_park(then: Park) -> None:
    waits = len(then.paths) + len(then.names)
    if waits > EXECUTION_WAKES_MAX:
        raise over_limit("park", value=waits, limit=EXECUTION_WAKES_MAX, unit="waits")
    if bool(waits) == then.anything:
        raise invalid("park", "must wait for something, and for nothing else if for anything")
    if then.all_of and then.names:
        raise invalid("park.names", "must be empty when all of the paths are waited for")
    for nth, path in enumerate(then.paths):
        check_path(path, field=f"park.paths[{nth}]")
    for nth, name in enumerate(then.names):
        check_text(name, field=f"park.names[{nth}]")


def promise_mac(secret: bytes, execution: int, run: int, path: bytes) -> bytes:
    """What proves that a promise was made by the execution with this number and secret."""
    named = execution.to_bytes(8, "big") + run.to_bytes(8, "big") + path
    return blake2b(named, key=secret, digest_size=PROMISE_MAC_BYTES).digest()


def chance_key(secret: bytes) -> bytes:
    """What the random numbers of an execution follow from. The secret does not follow from it, so
    it opens no promise: a proof is a hash of longer bytes.
    """
    return blake2b(b"chance", key=secret, digest_size=EXECUTION_SECRET_BYTES).digest()


def child_secret(secret: bytes, execution: int, run: int, path: bytes) -> bytes:
    """The secret of a child: it follows from that of its parent."""
    named = execution.to_bytes(8, "big") + run.to_bytes(8, "big") + path
    size = EXECUTION_SECRET_BYTES
    return blake2b(named, key=secret, digest_size=size, person=b"child").digest()
