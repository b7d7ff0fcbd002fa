"""Commands that change executions of a partition, and their results. `executions` has their parts.

Payloads up to JOURNAL_INLINE_BYTES_MAX are in the command. Larger ones travel beside it, as the
proposal's attachments: `lengths` holds one little-endian u32 for each, and a `place` names one,
counted from 1 (0: none). Each becomes an attachment of its own, which the execution owns.

The checks raise for what is malformed in itself. Nodes call them where a request comes in, and a
partition trusts them; it judges what depends on its state, and refuses with values.
"""

from collections.abc import Iterator
from struct import unpack
from typing import Protocol

import msgspec

from querator.model.errors import invalid, over_limit
from querator.model.executions import (
    ArriveKind,
    ChildStart,
    Close,
    ExecutionState,
    Fold,
    GoOn,
    KeyPolicy,
    NewRun,
    Note,
    Published,
    RecordKind,
    Then,
    Timer,
    check_child,
    check_fold,
    check_note,
    check_path,
    check_text,
    check_then,
    check_time,
)
from querator.model.item_options import FollowTarget, ItemSpecial
from querator.model.limits import (
    ERROR_CHARS_MAX,
    EXECUTION_ID_BYTES_MAX,
    EXECUTION_SECRET_BYTES,
    EXECUTION_VALUE_BYTES_CAP,
    EXECUTION_VERSION_BYTES_MAX,
    JOURNAL_INLINE_BYTES_MAX,
    LEASE_TIMEOUT_MS_MAX,
    MESSAGE_ID_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    PROMISE_MAC_BYTES,
    PUBLISHED_BYTES_MAX,
    PUBLISHED_KEYS_MAX,
    RECORD_BYTES_MAX,
    RECORD_CHILDREN_MAX,
    RECORD_FOLDS_MAX,
    RECORD_NOTES_MAX,
    RECORD_TIMERS_MAX,
    START_REQUEST_BYTES,
)


class StartExecution(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=60):
    """Makes the execution `id`, unless the queue has it. What is done then is the `policy`, of
    KeyPolicy. A command with the `request` of one that has begun a run repeats it.

    The arguments are `payload`, or the attachment `place`. `arguments` is a hash of them. `secret`
    is chosen by chance. The execution begins at `start_at_ms` (0: at once), and is cancelled at
    `deadline_ms` (0: never).
    """

    id: str
    function: str
    version: str
    secret: bytes
    arguments: bytes
    payload: bytes = b""
    place: int = 0
    lengths: bytes = b""
    policy: int = KeyPolicy.ATTACH
    priority: int = 0
    start_at_ms: int = 0
    deadline_ms: int = 0
    request: bytes = b""


class SentItems(msgspec.Struct, frozen=True, array_like=True):
    """Items for other partitions. The fields are as in Follow."""

    lengths: bytes
    targets: tuple[FollowTarget, ...]
    specials: tuple[ItemSpecial, ...] = ()
    slots: bytes = b""


class RecordProgress(msgspec.Struct, frozen=True, array_like=True, tag=61):
    """Appends `records` to the journal of `execution`, under the `lease` that holds its activation,
    the item `item`; carries out the folds and timers; and continues with `then`.

    `number` counts the Records of a lease for an execution from 1. A repeat gets the first answer.
    `seen` is the index of the last arrival that the code has been given (0: none; of a worker that
    only gives back, as before). `extend_ms` is
    as in Extend; 0: the lease keeps its deadline.

    `children` are started, and those that the operations `cancels` have started are cancelled,
    unless they have ended. A Record that starts children keeps the activation. `published` has the
    new values of some keys. `version` is that of the function with which the execution continues;
    empty: as before.

    The items that the execution produces (`sent`) travel beside the command, behind the attachments
    of `lengths`.
    """

    execution: int
    item: int
    lease: int
    number: int
    seen: int = 0
    records: tuple[Note, ...] = ()
    folds: tuple[Fold, ...] = ()
    timers: tuple[Timer, ...] = ()
    then: Then = GoOn()
    extend_ms: int = 0
    lengths: bytes = b""
    children: tuple[ChildStart, ...] = ()
    cancels: tuple[bytes, ...] = ()
    published: tuple[Published, ...] = ()
    version: str = ""
    sent: SentItems | None = None

    @property
    def items(self) -> int:
        """How many items it produces."""
        return 0 if self.sent is None else len(self.sent.lengths) >> 2


class Arrive(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=62):
    """What a client sends to an execution, which `id` names, or for a promise `execution`.

    `run` 0: the last one. `name` is that of a signal. A signal with the `message_id` of an earlier
    one repeats it; empty: it repeats none. `path` and `mac` are those of a promise. `payload` and
    `place` are the value, or the reason of a cancellation.
    """

    kind: int
    id: str = ""
    execution: int = 0
    run: int = 0
    name: str = ""
    message_id: str = ""
    path: bytes = b""
    mac: bytes = b""
    payload: bytes = b""
    place: int = 0
    lengths: bytes = b""


class FireTimers(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=63):
    """Fires the timers and deadlines of executions that are due, and removes executions that were
    kept long enough, within the apply bound.
    """


class LeasePinned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=46):
    """Leases up to `most` pinned executions to a client whose versions of their functions fit:
    those that wait under these pins (`partition.pins`), one pin after the other. The other fields
    are as in LeaseCaller.
    """

    client_id: str
    request_id: str
    most: int
    pins: tuple[bytes, ...]
    lease_timeout_ms: int = 0


class RewindExecution(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=48):
    """The execution `id` continues from its record `record` in its next run. `run` is the one that
    the caller means; 0: the last one. A command with the `request` of an earlier one repeats it.
    With `keep_children`, children that were started behind the record go on.
    """

    id: str
    record: int
    run: int = 0
    request: bytes = b""
    keep_children: bool = False


ExecutionCommand = (
    StartExecution | RecordProgress | Arrive | FireTimers | LeasePinned | RewindExecution
)


class Started(msgspec.Struct, frozen=True, gc=False):
    """The result of StartExecution. `attached`: the run was there, and this request has not begun
    it.
    """

    execution: int
    run: int
    state: ExecutionState
    attached: bool = False


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """The result of Record: the records have the indexes from `first_index` on. `now_ms` is the
    state time of the apply. `deadline_ms` is that of the lease if it was extended, else 0.
    """

    number: int
    first_index: int
    repeated: bool = False
    deadline_ms: int = 0
    now_ms: int = 0


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """The result of Arrive. `index` is the place of the arrival in the journal; 0: it has none. A
    repeat has that of the first one, and so has the resolution of a promise that was resolved
    before: `kind` says how, as a `RecordKind`.
    """

    execution: int
    run: int
    index: int
    kind: int
    repeated: bool = False


class PinnedLease(msgspec.Struct, frozen=True, gc=False):
    """The result of LeasePinned: activations with the numbers of their attempts, under one lease,
    which ends at `deadline_ms`. `lease` 0: nothing was leased. `now_ms` is the state time of the
    apply.
    """

    lease: int
    deadline_ms: int
    now_ms: int
    activations: tuple[tuple[int, int], ...] = ()


class Rewound(msgspec.Struct, frozen=True, gc=False):
    """The result of RewindExecution: how many records were removed, and children cancelled."""

    execution: int
    run: int
    records: int = 0
    children: int = 0
    repeated: bool = False


ExecutionResult = Started | Recorded | Arrived | PinnedLease | Rewound


class _Placed(Protocol):
    """What has a payload, in it or beside its command."""

    @property
    def payload(self) -> bytes: ...
    @property
    def place(self) -> int: ...


def sizes_of(lengths: bytes) -> tuple[int, ...]:
    """The sizes of the attachments of a command."""
    return unpack(f"<{len(lengths) >> 2}I", lengths)


def payloads_of(
    command: RecordProgress,
) -> Iterator[tuple[str, Note | Close | ChildStart | NewRun]]:
    """All parts of a Record that have a payload, with their fields."""
    for nth, note in enumerate(command.records):
        yield f"records[{nth}]", note
    for nth, fold in enumerate(command.folds):
        yield f"folds[{nth}].record", fold.note
    for nth, child in enumerate(command.children):
        yield f"children[{nth}].arguments", child
    if isinstance(command.then, Close):
        yield "close", command.then
    elif isinstance(command.then, NewRun):
        yield "new_run.arguments", command.then


def check_start(command: StartExecution) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for a malformed command."""
    check_text(command.id, field="id", bytes_max=EXECUTION_ID_BYTES_MAX)
    check_text(command.function, field="function")
    check_text(command.version, field="version", bytes_max=EXECUTION_VERSION_BYTES_MAX)
    assert len(command.secret) == EXECUTION_SECRET_BYTES
    assert len(command.request) in (0, START_REQUEST_BYTES)
    if not PRIORITY_MIN <= command.priority <= PRIORITY_MAX:
        raise over_limit("priority", value=command.priority, limit=PRIORITY_MAX)
    if command.policy not in KeyPolicy.__members__.values():
        raise invalid("key_policy", "is unknown", value=command.policy)
    check_time(command.start_at_ms, field="start_at")
    check_time(command.deadline_ms, field="deadline")
    _check_places([("arguments", command)], command.lengths)


def check_rewind(command: RewindExecution) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for a malformed command."""
    check_text(command.id, field="id", bytes_max=EXECUTION_ID_BYTES_MAX)
    for field, number in (("record", command.record), ("run", command.run)):
        if not 0 <= number < 1 << 63:
            raise invalid(field, "must not be negative", value=number)
    assert len(command.request) in (0, START_REQUEST_BYTES)


def check_record(command: RecordProgress) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for a malformed command."""
    for field, named, most in (
        ("records", command.records, RECORD_NOTES_MAX),
        ("folds", command.folds, RECORD_FOLDS_MAX),
        ("timers", command.timers, RECORD_TIMERS_MAX),
        ("children", command.children, RECORD_CHILDREN_MAX),
        ("cancels", command.cancels, RECORD_CHILDREN_MAX),
        ("published", command.published, PUBLISHED_KEYS_MAX),
    ):
        if len(named) > most:
            raise over_limit(field, value=len(named), limit=most)
    for field, number, least in (
        ("execution", command.execution, 1),
        ("item", command.item, 1),
        ("lease", command.lease, 1),
        ("number", command.number, 1),
        ("seen", command.seen, 0),
    ):
        if not least <= number < 1 << 63:
            raise invalid(field, f"must be {least} or more", value=number)
    if not 0 <= command.extend_ms <= LEASE_TIMEOUT_MS_MAX:
        raise over_limit("extend", value=command.extend_ms, limit=LEASE_TIMEOUT_MS_MAX, unit="ms")
    for nth, note in enumerate(command.records):
        check_note(note, field=f"records[{nth}]")
    for nth, fold in enumerate(command.folds):
        check_fold(fold, field=f"folds[{nth}]")
        if not fold.index:
            _check_sent(command, fold, field=f"folds[{nth}]")
    for nth, timer in enumerate(command.timers):
        check_path(timer.path, field=f"timers[{nth}].path")
        check_time(timer.due_ms, field=f"timers[{nth}].due_ms")
    if command.version:
        check_text(command.version, field="version", bytes_max=EXECUTION_VERSION_BYTES_MAX)
    _check_children(command)
    _check_published(command.published)
    check_then(command.then)
    _check_places(list(payloads_of(command)), command.lengths)


def _check_children(command: RecordProgress) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for malformed starts and cancellations."""
    paths: set[bytes] = set()
    for nth, child in enumerate(command.children):
        check_child(child, field=f"children[{nth}]")
        if child.path in paths:
            raise invalid(f"children[{nth}].path", "starts another child, too",
                          value=child.path.hex())  # fmt: skip
        paths.add(child.path)
    if command.children and not isinstance(command.then, GoOn):
        raise invalid("children", "must be empty in a request that ends the lease")
    for nth, path in enumerate(command.cancels):
        check_path(path, field=f"cancels[{nth}]")


def _check_published(published: tuple[Published, ...]) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for values that no execution may publish."""
    size = 0
    keys: set[str] = set()
    for nth, one in enumerate(published):
        check_text(one.key, field=f"published[{nth}].key")
        if one.key in keys:
            raise invalid(f"published[{nth}].key", "is there twice", value=one.key)
        keys.add(one.key)
        size += len(one.key.encode()) + len(one.value)
    if size > PUBLISHED_BYTES_MAX:
        raise over_limit("published", value=size, limit=PUBLISHED_BYTES_MAX, unit="bytes")


def _check_sent(command: RecordProgress, fold: Fold, *, field: str) -> None:
    """Raises INVALID_ARGUMENT if the result of a fold is not among the records."""
    kinds = (RecordKind.CALL_DONE, RecordKind.CALL_FAILED)
    if not any(note.path == fold.note.path and note.kind in kinds for note in command.records):
        raise invalid(f"{field}.index", "is 0, and no record of the command ends the call",
                      value=fold.note.path.hex())  # fmt: skip


def check_arrive(command: Arrive) -> None:
    """Raises INVALID_ARGUMENT or LIMIT_EXCEEDED for a malformed command."""
    if command.kind not in ArriveKind.__members__.values():
        raise invalid("kind", "is unknown", value=command.kind)
    if not 0 <= command.run < 1 << 63:
        raise invalid("run", "must not be negative", value=command.run)
    if command.kind in (ArriveKind.RESOLVE, ArriveKind.REJECT):
        check_path(command.path, field="path")
        if len(command.mac) != PROMISE_MAC_BYTES or not 0 < command.execution < 1 << 63:
            raise invalid("proof", "is not the proof of a promise")
    else:
        check_text(command.id, field="id", bytes_max=EXECUTION_ID_BYTES_MAX)
    if command.kind == ArriveKind.SIGNAL:
        check_text(command.name, field="name")
        if command.message_id:
            check_text(command.message_id, field="message_id", bytes_max=MESSAGE_ID_BYTES_MAX)
    elif command.kind in (ArriveKind.CANCEL, ArriveKind.TERMINATE):
        if len(command.payload) > 4 * ERROR_CHARS_MAX:
            raise over_limit("reason", value=len(command.payload), limit=4 * ERROR_CHARS_MAX,
                             unit="bytes")  # fmt: skip
    _check_places([("payload", command)], command.lengths)


def _check_places(placed: list[tuple[str, _Placed]], lengths: bytes) -> None:
    """Each attachment is named once, and each payload is where its size demands."""
    sizes = sizes_of(lengths)
    if sum(sizes) > RECORD_BYTES_MAX:
        raise over_limit("payloads", value=sum(sizes), limit=RECORD_BYTES_MAX, unit="bytes")
    named = []
    for field, one in placed:
        if len(one.payload) > JOURNAL_INLINE_BYTES_MAX:
            raise over_limit(field, value=len(one.payload), limit=JOURNAL_INLINE_BYTES_MAX,
                             unit="bytes")  # fmt: skip
        if not one.place:
            continue
        if one.payload or not 0 < one.place <= len(sizes):
            raise invalid(field, "names no attachment", value=one.place)
        if sizes[one.place - 1] > EXECUTION_VALUE_BYTES_CAP:
            raise over_limit(field, value=sizes[one.place - 1], limit=EXECUTION_VALUE_BYTES_CAP,
                             unit="bytes")  # fmt: skip
        named.append(one.place)
    if sorted(named) != list(range(1, len(sizes) + 1)):
        raise invalid("payloads", "must be named once each")
