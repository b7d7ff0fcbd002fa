"""Layouts of the rows of executions, and their counts in the state row.

Layouts are msgpack arrays, to which fields are only added, at the end. A row of an execution does
not grow with its journal.
"""

from enum import IntEnum
from hashlib import blake2b
from typing import Final

import msgspec

from querator.model.executions import ExecutionState, JournalRecord, Note, RecordKind

HASH_BYTES: Final = 16
DEADLINE: Final = bytes(HASH_BYTES)
"""In the place of the hash of a path: the time is the deadline of the execution."""
ORPHANS: Final = bytes(HASH_BYTES - 1) + b"\x01"
"""In the place of the hash of a path: children of the execution are to be cancelled."""
DISCARDED: Final = b"\x01"
"""Of an execution that is removed: the value in RETAINED of one whose place another one takes. Its
children are cancelled, also those that are detached.
"""
CANCELS: Final = b""
"""The mark of an arrival that wakes an execution whatever it waits for."""


class ExecutionCounts(msgspec.Struct, array_like=True):
    """The executions of a partition in its state row. `next` is the number of the next one, and
    `head_ms` a lower bound of the next time at which something is due; 0: nothing is. `executions`
    counts those that have a row; of these, `parked`, `stuck` and `closed` are in such states.
    `records` and `bytes` count the records of those with a row. `fired` counts timers, and
    `removed` executions that were kept long enough. `notices` counts those that have ended, Records
    that have changed published values, and executions that were pinned. `pinned` counts those in
    that state, and `next_pin` is the position of the next one.
    """

    next: int = 1
    head_ms: int = 0
    executions: int = 0
    parked: int = 0
    stuck: int = 0
    closed: int = 0
    records: int = 0
    bytes: int = 0
    started: int = 0
    fired: int = 0
    removed: int = 0
    notices: int = 0
    pinned: int = 0
    next_pin: int = 1


class ExecutionRow(msgspec.Struct, array_like=True):
    """An execution. `arguments` is the hash of its arguments. `activation` is the sequence of its
    activation; 0: it has none.

    `next_index` is the index of its next record. `records` counts those that it has, and `size`
    their bytes. The last Record was `last_number` of `last_lease`, and `answers` are the first
    indexes of the last Records of that lease, that one at the end. `seen` and `after` are those of
    the last Record. `last_arrival` is the index of the last arrival, and `unseen` the number of
    arrivals behind `seen`, of which `unread` are signals. `cancelled` is the index of the
    cancellation.

    `timers` counts the timers that have not fired, `promises` the resolved ones, and `signals` the
    remembered message ids. `lapses` counts the leases in a row that have lapsed without a Record.
    `wake` holds the hashes of what a parked one waits for, one after the other; empty: any arrival.
    `wake_all`: all of them must come. `end_index` is the index of the last record of one that has
    ended, and `reason` says why one is stuck or was pinned.

    `pin` is the position of one that was pinned in this run; 0: any worker may lease it. `refused`
    are the versions of its function that do not fit, the last one at the end.

    `parent` is the execution that has started it, in its run `parent_run` and with the id
    `parent_id`; 0: none. `deep` counts its ancestors. `children` counts the operations that wait
    for children. `published` counts the published values, `published_bytes` the bytes of them and
    their keys, and `published_version` all changes of them.

    `requests` are those of the last starts and rewinds that have begun a run, one after the other,
    and `until_ms` is the time until which one that has ended is kept.

    `origin` is the run whose arguments are record 0: a rewind begins a run and leaves it. `cuts`
    are the records that rewinds have removed: runs of indexes (first, end). `parent_index` is the
    record of its start in the journal of the parent, and `parent_run` the `origin` of that.
    `former` are the executions whose place a child has taken: theirs are the children that it may
    start again.
    """

    id: str
    function: str
    version: str
    secret: bytes
    arguments: bytes
    created_ms: int
    run: int = 1
    state: int = ExecutionState.RUNNABLE
    activation: int = 0
    priority: int = 0
    next_index: int = 0
    records: int = 0
    size: int = 0
    last_lease: int = 0
    last_number: int = 0
    answers: list[int] = []
    seen: int = 0
    after: int = 0
    last_arrival: int = 0
    unseen: int = 0
    unread: int = 0
    cancelled: int = 0
    timers: int = 0
    promises: int = 0
    signals: int = 0
    lapses: int = 0
    wake: bytes = b""
    wake_all: bool = False
    deadline_ms: int = 0
    closed_ms: int = 0
    end_index: int = 0
    reason: str = ""
    parent: int = 0
    parent_run: int = 0
    parent_id: str = ""
    deep: int = 0
    children: int = 0
    published: int = 0
    published_bytes: int = 0
    published_version: int = 0
    requests: bytes = b""
    until_ms: int = 0
    pin: int = 0
    refused: list[str] = []
    origin: int = 1
    cuts: list[tuple[int, int]] = []
    parent_index: int = 0
    former: list[int] = []

    @property
    def closed(self) -> bool:
        return ExecutionState.COMPLETED <= self.state <= ExecutionState.TERMINATED


class RecordRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record. `index` 0: the payload is in the row; else it is the attachment (`index`, `part`)
    of `size` bytes. `since` is the first record that a fold has removed; 0: it is no fold, or has
    removed none.
    """

    kind: int
    path: bytes = b""
    name: str = ""
    site: str = ""
    after: int = 0
    at_ms: int = 0
    payload: bytes = b""
    index: int = 0
    part: int = 0
    size: int = 0
    since: int = 0

    @property
    def weight(self) -> int:
        """What the record counts for the limit of its journal."""
        return len(self.path) + len(self.name) + len(self.site) + len(self.payload) + self.size + 40

    def as_record(self, index: int, payload: bytes) -> JournalRecord:
        return JournalRecord(
            index,
            Note(
                kind=self.kind,
                path=self.path,
                name=self.name,
                site=self.site,
                after=self.after,
                at_ms=self.at_ms,
                payload=payload,
            ),
        )  # fmt: skip


class WaitRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What arrives once for a path. `kind` is that of the arrival: TIMER_FIRED for a timer, which
    is due at `due_ms`; RESOLVED or REJECTED for a promise; for a child how it has ended, and
    CHILD_DONE before that. `index` is that of the arrival; 0: it has not come, or came when the
    parent had ended. `child` is the number of the child.
    """

    path: bytes
    kind: int = RecordKind.TIMER_FIRED
    due_ms: int = 0
    index: int = 0
    child: int = 0


class ChildEnds(IntEnum):
    """When a child is cancelled for its parent."""

    NEVER = 0
    """It is detached, or was cancelled already."""
    WITH_END = 1
    """When the parent has ended."""
    WITH_CANCEL = 2
    """When the parent is cancelled, or has ended."""


class ChildRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A child that has not ended. Its result arrives for each of the `paths`. `ends` is of
    ChildEnds.
    """

    paths: tuple[bytes, ...]
    ends: int = ChildEnds.WITH_CANCEL


class PublishedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A published value. `version` is that of its last change."""

    key: str
    value: bytes
    version: int


class PinRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Executions of a function that have run with one version, and do not fit the same ones, which
    are `refused`, in the order of their texts. `count` is the number of those that wait.
    """

    function: str
    version: str
    refused: tuple[str, ...]
    count: int = 0


decode_pin = msgspec.msgpack.Decoder(PinRow).decode
decode_child = msgspec.msgpack.Decoder(ChildRow).decode
decode_execution = msgspec.msgpack.Decoder(ExecutionRow).decode
decode_record = msgspec.msgpack.Decoder(RecordRow).decode
decode_wait = msgspec.msgpack.Decoder(WaitRow).decode
decode_published = msgspec.msgpack.Decoder(PublishedRow).decode


def name_hash(text: str) -> bytes:
    """Of an id of an execution, of a message, or of the key of a published value."""
    return blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def path_mark(path: bytes) -> bytes:
    """Names an operation in keys of waits, and among what an execution waits for."""
    return blake2b(path, digest_size=HASH_BYTES, person=b"path").digest()


def signal_mark(name: str) -> bytes:
    """Names the signals of a name among what an execution waits for."""
    return blake2b(name.encode(), digest_size=HASH_BYTES, person=b"signal").digest()


def marks_of(wake: bytes) -> set[bytes]:
    return {wake[at : at + HASH_BYTES] for at in range(0, len(wake), HASH_BYTES)}
