"""A partition on the memory environment, with a log that keeps its promises.

`PartitionLog` takes the place of the raft group: it packs commands, writes their attachments and
applies the entry. When the log is truncated, it releases the attachments that the machine has
dropped.
"""

from struct import pack
from typing import Any

from msgspec.structs import replace

from querator.model.commands import (
    Configure,
    DeadTarget,
    ItemSpecial,
    Lease,
    LeaseCaller,
    LeaseGrant,
    PartitionSettings,
    Produce,
)
from querator.model.entries import Proposal
from querator.model.limits import EVENTS_RETENTION_MS_MAX
from querator.partition import invariants
from querator.partition.machine import PartitionMachine
from querator.raft.log.disk_budget import size_bytes
from querator.storage import attachments
from querator.storage.environment import Environment
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import STATE
from tests.checkers.feed_fold import check_fold

GROUP = 7
START_MS = 1_700_000_000_000


def settings(**changes: Any) -> PartitionSettings:
    values: dict[str, Any] = {
        "namespace": "default",
        "queue": "work",
        "queue_id": 1,
        "partition": 0,
        "lease_timeout_ms": 30_000,
        "expire_timeout_ms": 0,
        "max_attempts": 0,
        "dedup_window_ms": 3_600_000,
        "items_max": 0,
        "dead_targets": (),
    }
    return PartitionSettings(**(values | changes))


def dead_to(group: int) -> tuple[DeadTarget, ...]:
    return (DeadTarget("dead", 0, group),)


def produce(
    items: list[bytes], *, specials: tuple[ItemSpecial, ...] = (), **changes: Any
) -> Proposal:
    lengths = pack(f"<{len(items)}I", *map(len, items))
    return Proposal(Produce(lengths, specials=specials, **changes), b"".join(items))


def caller(items: int = 100, **changes: Any) -> LeaseCaller:
    values: dict[str, Any] = {
        "client_id": "c", "request_id": "", "max_items": items, "max_bytes": 0,
    }  # fmt: skip
    return LeaseCaller(**(values | changes))


def lease_of(items: int = 100, **changes: Any) -> Lease:
    return Lease((caller(items, **changes),))


def _with_events(proposal: Proposal) -> Proposal:
    command = proposal.command
    if isinstance(command, Configure):
        asking = replace(command.settings, events_retention_ms=EVENTS_RETENTION_MS_MAX)
        return Proposal(replace(command, settings=asking))
    return proposal


def seqs(grant: LeaseGrant) -> list[int]:
    return [
        segment.first_seq + ordinal
        for segment in grant.segments
        for ordinal in range(256)
        if segment.mask >> ordinal & 1
    ]


class PartitionLog:
    """Applies commands to one partition; `checked` runs the full scan after every entry. With
    `all_events` the partition records its events from the beginning, and they are checked, too.
    """

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        group: int = GROUP,
        keep: int = 3,
        checked: bool = True,
        all_events: bool = False,
    ) -> None:
        self.environment = environment or MemoryEnvironment()
        self.group = group
        self.machine = PartitionMachine(group)
        self.keep = keep
        self.checked = checked
        self.all_events = all_events
        self.index = 0
        self.first = 1
        self.now_ms = START_MS
        self.entries: list[tuple[bytes, tuple[bytes, ...]]] = []
        self.applied: Any = None

    def configure(self, version: int = 1, **changes: Any) -> None:
        self.one(Configure(version, settings(**changes)))

    def one(self, command: Any, attachment: bytes = b"") -> Any:
        return self.entry(Proposal(command, attachment))[0]

    def produce(self, items: list[bytes] | int, **changes: Any) -> Any:
        if isinstance(items, int):
            items = [b"item %d" % number for number in range(items)]
        return self.entry(produce(items, **changes))[0]

    def entry(self, *proposals: Proposal) -> tuple[Any, ...]:
        """Applies an entry. Checks that it writes no more bytes than its commands announced as
        their need.
        """
        if self.all_events:
            proposals = tuple(map(_with_events, proposals))
        entry = self.machine.pack(proposals, self.now_ms)
        with self.environment.snapshot() as txn:
            needs = [self.machine.need(txn, proposal.command).bytes for proposal in proposals]
        bound = sum(needs) + size_bytes(entry, len(proposals))
        return self.replay(entry.command, entry.attachments, bound)

    def replay(
        self, command: bytes, parts: tuple[bytes, ...], bytes_max: int | None = None
    ) -> tuple[Any, ...]:
        self.index += 1
        self.entries.append((command, parts))
        txn = self.environment.begin()
        for part, data in enumerate(parts):
            attachments.write(txn, self.group, self.index, part, data)
        with txn.child() as child:
            self.applied = self.machine.apply(child, self.index, 1, command, log_first=self.first)
            written = child.added_bytes()
            assert bytes_max is None or written <= bytes_max, f"{written} bytes of {bytes_max}"
        while self.index - self.first >= self.keep:
            attachments.release(txn, self.group, self.first, len(self.entries[self.first - 1][1]))
            self.first += 1
        if self.checked:
            assert invariants.check(txn, self.group) == []
            if self.all_events and STATE.get(txn, self.group) is not None:
                check_fold(txn, self.group)
        txn.commit(sync=False)
        results: tuple[Any, ...] = self.applied.results
        return results

    def advance(self, milliseconds: int) -> None:
        """Lets time pass, and proposes the commands that become due."""
        self.now_ms += milliseconds
        for _ in range(100):
            due = self.machine.due_commands(self.now_ms)
            if not due:
                return
            self.entry(*(Proposal(command) for command in due))
        raise AssertionError("what is due must become done")
