"""Client calls about executions, and their replies. Names are checked; payloads are where their
commands want them.
"""

import msgspec

from querator.model.calls import FollowUpItems
from querator.model.execution_commands import (
    Arrive,
    RecordProgress,
    RewindExecution,
    Started,
    StartExecution,
)
from querator.model.executions import ExecutionState, JournalRecord
from querator.model.ids import GroupId, PartitionNumber


class StartCall(msgspec.Struct, frozen=True):
    """`command` has no secret yet, and no request if the caller has not named it."""

    namespace: str
    queue: str
    command: StartExecution
    attachment: bytes
    timeout_ms: int


class RewindCall(msgspec.Struct, frozen=True):
    """`command` has no request if the caller has not named it."""

    namespace: str
    queue: str
    command: RewindExecution
    timeout_ms: int


class ProgressCall(msgspec.Struct, frozen=True):
    """`command` has the lease of `lease_id`, which also names the partition. `produced` are items
    that the service adds to it.
    """

    namespace: str
    queue: str
    lease_id: str
    command: RecordProgress
    attachment: bytes
    timeout_ms: int
    produced: tuple[FollowUpItems, ...] = ()


class ArriveCall(msgspec.Struct, frozen=True):
    """`partition` -1: the id decides."""

    namespace: str
    queue: str
    partition: int
    command: Arrive
    attachment: bytes
    timeout_ms: int


class ListExecutionsCall(msgspec.Struct, frozen=True):
    """`function` empty and `state` None: any."""

    namespace: str
    queue: str
    function: str
    state: ExecutionState | None
    page_size: int
    page_token: str
    timeout_ms: int


class JournalCall(msgspec.Struct, frozen=True):
    namespace: str
    queue: str
    id: str
    first: int
    records_max: int
    timeout_ms: int


class WaitExecutionsCall(msgspec.Struct, frozen=True):
    """`ids` are at least one, each once. `wait_ms` 0: does not wait."""

    namespace: str
    queue: str
    ids: tuple[str, ...]
    wait_ms: int


class PublishedCall(msgspec.Struct, frozen=True):
    """Values of versions above `after`: of a key (empty: of any). `wait_ms` as above."""

    namespace: str
    queue: str
    id: str
    key: str
    after: int
    wait_ms: int


class StartReply(msgspec.Struct, frozen=True):
    partition: int
    started: Started


class ExecutionView(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An execution as others see it. `secret` is for its worker alone. `timer_paths`, of the timers
    that have not fired, and `origin`, the run in which the journal has begun, are for replays; a
    page of executions has no paths.
    """

    number: int
    id: str
    function: str
    version: str
    run: int
    state: ExecutionState
    created_ms: int
    closed_ms: int
    deadline_ms: int
    records: int
    size: int
    next_index: int
    seen: int
    unread: int
    timers: int
    lapses: int
    cancelled: bool
    reason: str
    end_index: int
    secret: bytes
    activation: int
    parent_id: str = ""
    children: int = 0
    timer_paths: tuple[bytes, ...] = ()
    refused: tuple[str, ...] = ()
    origin: int = 1


class ExecutionPage(msgspec.Struct, frozen=True, array_like=True):
    """Executions by number. `after`: where the next page begins; 0: this one is the last."""

    executions: tuple[ExecutionView, ...]
    after: int = 0


class EndedExecution(msgspec.Struct, frozen=True, array_like=True):
    """An execution that has ended, with its last record. Both None: there is none with this id."""

    id: str
    view: ExecutionView | None = None
    end: JournalRecord | None = None


class EndedPage(msgspec.Struct, frozen=True, array_like=True):
    """Those of some executions that have ended. Empty: all are waited for."""

    executions: tuple[EndedExecution, ...]


class ReadValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A published value. `version` is that of its last change."""

    key: str
    value: bytes
    version: int


class PublishedPage(msgspec.Struct, frozen=True, array_like=True):
    """Published values of an execution, by version. `version` counts all its changes. `found`:
    whether the execution exists; `closed`: whether it has ended.
    """

    values: tuple[ReadValue, ...] = ()
    version: int = 0
    found: bool = False
    closed: bool = False

    @property
    def is_final(self) -> bool:
        """Whether it says more than that there is nothing yet."""
        return bool(self.values) or self.closed or not self.found


class JournalPage(msgspec.Struct, frozen=True, array_like=True):
    """Records in the order of their indexes. `next_index`: where the next page begins; 0: this one
    is the last.
    """

    records: tuple[JournalRecord, ...]
    next_index: int = 0


class PinsPage(msgspec.Struct, frozen=True, array_like=True):
    """Pins that a worker may run. Empty: there are none."""

    pins: tuple[bytes, ...] = ()


class KnownJournal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An execution whose activation, the item `item`, a worker has under a lease, and the last
    index of the journal that the worker knows.
    """

    execution: int
    item: int
    lease: int
    index: int


class NewsPage(msgspec.Struct, frozen=True, array_like=True):
    """Executions for which something has arrived, and those whose leases hold them no more, by
    their places in the question. One may be there under several leases.
    """

    arrived: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


class NewsCall(msgspec.Struct, frozen=True):
    """`known` are by partition. `wait_ms` 0: does not wait."""

    namespace: str
    queue: str
    known: dict[tuple[GroupId, PartitionNumber], tuple[KnownJournal, ...]]
    wait_ms: int


class News(msgspec.Struct, frozen=True):
    """Executions as (lease, item), each of `NewsPage`."""

    arrived: tuple[tuple[str, int], ...] = ()
    lost: tuple[tuple[str, int], ...] = ()


class ReadActivation(msgspec.Struct, frozen=True, array_like=True):
    """An execution with an activation, and the beginning of its journal. `now_ms` is the state time
    of the read: the lease was granted by then.
    """

    view: ExecutionView
    journal: JournalPage
    now_ms: int


class ShownExecution(msgspec.Struct, frozen=True):
    """`end` is the last record of one that has ended."""

    partition: int
    view: ExecutionView
    end: JournalRecord | None = None


class EndedReply(msgspec.Struct, frozen=True):
    """The executions that have ended, each with its partition; empty: none has in time."""

    executions: tuple[tuple[int, EndedExecution], ...]


class ShownExecutions(msgspec.Struct, frozen=True):
    executions: tuple[ShownExecution, ...]
    next_page_token: str


class LeasedActivation(msgspec.Struct, frozen=True):
    """An execution under a lease, with the beginning of its journal."""

    lease_id: str
    item: int
    partition: int
    attempt: int
    remaining_ms: int
    now_ms: int
    """The partition's time: it was over when the answer was written."""
    view: ExecutionView
    journal: JournalPage
