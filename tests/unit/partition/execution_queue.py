"""A partition with executions, and workers that lease their activations."""

from struct import pack
from typing import Any, NamedTuple

from querator.model.commands import LeaseGrant, LeaseResult, Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_calls import ExecutionView, PublishedPage
from querator.model.execution_commands import (
    Arrive,
    Arrived,
    LeasePinned,
    PinnedLease,
    Recorded,
    RecordProgress,
    SentItems,
    Started,
    StartExecution,
    check_arrive,
    check_record,
    check_start,
)
from querator.model.executions import (
    ArriveKind,
    ChildStart,
    JournalRecord,
    Note,
    Park,
    RecordKind,
    encode_path,
    promise_mac,
)
from querator.model.item_options import FollowTarget, ItemSpecial
from querator.model.queues import ExecutionSettings
from querator.partition.execution_queries import (
    end_of,
    execution_at,
    execution_of,
    execution_view,
    journal_page,
    published_page,
)
from querator.partition.pins import fitting_pins
from tests.unit.partition.partition_log import GROUP, PartitionLog, lease_of, seqs

SECRET = b"0123456789abcdef"
RETENTION_MS = 3_600_000
LEASE_MS = 30_000


def path(*elements: int) -> bytes:
    return encode_path(elements)


def step(*elements: int, **changes: Any) -> Note:
    values: dict[str, Any] = {
        "kind": RecordKind.STEP_DONE, "path": path(*elements), "name": "charge", "payload": b"ok",
    }  # fmt: skip
    return Note(**(values | changes))


def call(*elements: int, **changes: Any) -> Note:
    return step(*elements, **({"kind": RecordKind.CALL_DONE} | changes))


def spawn(*elements: int, **changes: Any) -> ChildStart:
    values: dict[str, Any] = {
        "path": path(*elements), "id": "a/1", "function": "shop.ship", "version": "1",
        "arguments": b"c" * 16, "payload": b"child args",
    }  # fmt: skip
    return ChildStart(**(values | changes))


class Worker(NamedTuple):
    """A lease of an activation."""

    execution: int
    item: int
    lease: int


class ExecutionQueue:
    """Names executions by their ids, and counts the Records of each lease."""

    def __init__(
        self, *, log: PartitionLog | None = None, retention_ms: int = RETENTION_MS, **changes: Any
    ) -> None:
        self.log = log or PartitionLog()
        self.settings = ExecutionSettings(retention_ms)
        self.log.configure(executions=self.settings, **changes)
        self.numbers: dict[Worker, int] = {}

    def start(self, name: str = "a", *large: bytes, **changes: Any) -> Any:
        values: dict[str, Any] = {
            "function": "shop.checkout", "version": "1", "secret": SECRET, "arguments": b"h" * 16,
            "payload": b"" if large else b"args", "place": int(bool(large)),
        }  # fmt: skip
        command = StartExecution(name, lengths=_lengths(large), **(values | changes))
        check_start(command)
        return self.log.one(command, b"".join(large))

    def lease(self, items: int = 1) -> list[Worker]:
        result = self.log.one(lease_of(items))
        assert isinstance(result, LeaseResult)
        (grant,) = result.grants
        assert isinstance(grant, LeaseGrant)
        return [Worker(self.at(seq).number, seq, grant.lease) for seq in seqs(grant)]

    def lease_pinned(self, versions: dict[str, str], most: int = 1, **changes: Any) -> list[Worker]:
        """As a worker with these versions, by function, leases what is pinned."""
        with self.log.environment.snapshot() as txn:
            pins = fitting_pins(txn, GROUP, versions, 100)
        values: dict[str, Any] = {"client_id": "worker", "request_id": "", "most": most}
        result = self.log.one(LeasePinned(**(values | changes), pins=pins))
        assert isinstance(result, PinnedLease)
        return [Worker(self.at(seq).number, seq, result.lease) for seq, _ in result.activations]

    def worker(self, name: str = "a", **changes: Any) -> Worker:
        """Starts an execution, and leases its activation."""
        started = self.start(name, **changes)
        assert isinstance(started, Started)
        (worker,) = self.lease()
        assert worker.execution == started.execution
        return worker

    def record(self, worker: Worker, *records: Note, large: tuple[bytes, ...] = (),
               items: tuple[bytes, ...] = (), targets: tuple[FollowTarget, ...] = (),
               specials: tuple[ItemSpecial, ...] = (), slots: bytes = b"", number: int = 0,
               **changes: Any) -> Any:  # fmt: skip
        """The next Record of a worker, unless it has a number. `items` are produced."""
        sent = SentItems(_lengths(items), targets, specials, slots) if items else None
        command = RecordProgress(
            *worker, number or self.numbers.get(worker, 0) + 1, records=records,
            lengths=_lengths(large), sent=sent, **changes,
        )  # fmt: skip
        check_record(command)
        result = self.log.one(command, b"".join(large + items))
        if isinstance(result, Recorded):
            self.numbers[worker] = max(self.numbers.get(worker, 0), command.number)
        return result

    def park(self, worker: Worker, *records: Note, names: tuple[str, ...] = (),
             paths: tuple[bytes, ...] = (), **changes: Any) -> Any:  # fmt: skip
        return self.record(worker, *records, then=Park(paths, names), **changes)

    def arrive(self, kind: ArriveKind, name: str = "a", /, *large: bytes, **changes: Any) -> Any:
        values: dict[str, Any] = {"id": name, "place": int(bool(large))}
        command = Arrive(kind, lengths=_lengths(large), **(values | changes))
        check_arrive(command)
        return self.log.one(command, b"".join(large))

    def spawn(self, worker: Worker, *children: ChildStart, **changes: Any) -> Recorded:
        """A Record that starts children."""
        return recorded(self.record(worker, children=children, **changes))

    def leased(self, name: str) -> Worker:
        """Leases activations until that of this execution comes."""
        for _ in range(100):
            for worker in self.lease():
                if self.at(worker.item).id == name:
                    return worker
        raise AssertionError(f"{name} has no activation that is ready")

    def signal(self, signal: str = "go", name: str = "a", **changes: Any) -> Any:
        values = {"payload": b"now"} | changes
        return self.arrive(ArriveKind.SIGNAL, name, **{"name": signal, **values})

    def resolve(self, execution: int, where: bytes, value: bytes = b"yes", **changes: Any) -> Any:
        run = changes.pop("run", 1)
        with self.log.environment.snapshot() as txn:
            view = execution_view(txn, GROUP, execution)
        # A child has a secret of its own.
        secret = SECRET if view is None else view.secret
        mac = changes.pop("mac", promise_mac(secret, execution, run, where))
        kind = changes.pop("kind", ArriveKind.RESOLVE)
        return self.arrive(
            kind, "", execution=execution, run=run, path=where, mac=mac, payload=value, **changes
        )

    def at(self, seq: int) -> ExecutionView:
        with self.log.environment.snapshot() as txn:
            view = execution_at(txn, GROUP, seq)
        assert view is not None
        return view

    def find(self, name: str = "a") -> ExecutionView | None:
        with self.log.environment.snapshot() as txn:
            return execution_of(txn, GROUP, name)

    def view(self, name: str = "a") -> ExecutionView:
        view = self.find(name)
        assert view is not None
        return view

    def values(self, name: str = "a", *, key: str = "", after: int = 0) -> PublishedPage:
        with self.log.environment.snapshot() as txn:
            return published_page(txn, GROUP, name, key=key, after=after)

    def published(self, name: str = "a") -> dict[str, bytes]:
        return {one.key: one.value for one in self.values(name).values}

    def end(self, name: str = "a") -> JournalRecord:
        """The last record of one that has ended."""
        with self.log.environment.snapshot() as txn:
            end = end_of(txn, GROUP, self.view(name))
        assert end is not None
        return end

    def journal(self, name: str = "a") -> list[JournalRecord]:
        with self.log.environment.snapshot() as txn:
            page = journal_page(
                txn, GROUP, self.view(name).number, first=0, count_max=100_000, bytes_max=1 << 30
            )
        assert not page.next_index
        return list(page.records)

    def kinds(self, name: str = "a") -> list[str]:
        return [RecordKind(record.note.kind).name for record in self.journal(name)]


def _lengths(large: tuple[bytes, ...]) -> bytes:
    return pack(f"<{len(large)}I", *map(len, large))


def refused(result: object) -> tuple[ErrorCode, str]:
    """The code and field of a refusal."""
    assert isinstance(result, Refusal), result
    assert result.message
    return result.code, result.field


def recorded(result: object) -> Recorded:
    assert isinstance(result, Recorded), result
    return result


def arrived(result: object) -> Arrived:
    assert isinstance(result, Arrived), result
    return result
