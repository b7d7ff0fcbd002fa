"""Items of a key are leased in order, whatever the number of partitions was, is and will be.

Partitions are tested alone, without raft and without a node. Items are routed by their keys. The
test asks partitions for their closures and lets them release held items, as placement does.
Meanwhile items come, are leased, settled and lapse.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from querator.model.commands import (
    NO_SLOT,
    Complete,
    FlowSettings,
    ItemSpecial,
    LeaseItems,
    ProduceResult,
    Refusal,
    Retry,
    Route,
    Unhold,
)
from querator.model.queues import QueueKind
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import dedup_export, held_keys, masks
from querator.partition.dedup_export import Closure, ClosureQuery
from querator.partition.rows import RowState, decode_segment, decode_settings
from querator.partition.segments import IN_PLACE
from querator.placement.tasks.repartitioning import passed
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import SEGMENTS, SETTINGS
from tests.unit.partition.flow_queue import names_of
from tests.unit.partition.partition_log import PartitionLog, lease_of, seqs

PARTITIONS_MAX = 6
SLOTS = (*range(12), NO_SLOT)
LEASE_MS = 30_000


class Item:
    """`in_order` holds until the item is retried or lapses; false for an item with a delay."""

    def __init__(
        self, number: int, slot: int, log: PartitionLog, seq: int, *, in_order: bool
    ) -> None:
        self.number = number
        self.slot = slot
        self.log = log
        self.seq = seq
        self.in_order = in_order
        self.leased = False


class KeyOrder(RuleBasedStateMachine):
    """`n` partitions as of `version`. While `closed`, a change to `next` partitions is open."""

    keyed = False
    """Whether the queue is keyed: an item that comes back keeps its place, and nothing of its key
    is leased meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.environment = MemoryEnvironment()
        self.logs: list[PartitionLog] = []
        self.groups = self.version = self.n = self.next = self.numbers = 0
        self.rows = 0
        """Approximate number of rows that one command makes ready."""
        self.closed = False
        self.behind: set[int] = set()
        """Groups that were away when a change was undone, and have not learned of it."""
        self.items: dict[tuple[int, int], Item] = {}
        """The items that are not completed, by group and sequence."""
        self.leases: list[tuple[PartitionLog, int, list[int]]] = []

    @initialize(n=st.integers(1, PARTITIONS_MAX), rows=st.sampled_from([1, 2_000]))
    def begin(self, n: int, rows: int) -> None:
        self.n, self.rows = n, rows
        self.add(n)

    def add(self, upto: int) -> None:
        while len(self.logs) < upto:
            self.groups += 1
            log = PartitionLog(self.environment, group=self.groups)
            log.now_ms += max((other.now_ms - log.now_ms for other in self.logs), default=0)
            log.configure(
                partition=len(self.logs),
                lease_timeout_ms=LEASE_MS,
                flows=FlowSettings(QueueKind.KEYED) if self.keyed else None,
            )
            self.logs.append(log)

    # --- items -----------------------------------------------------------------------------------

    @rule(
        slots=st.lists(st.sampled_from(SLOTS), min_size=1, max_size=8),
        delay=st.sampled_from([0, 0, 0, 3_000]),
        expire=st.sampled_from([0, 0, 0, 5_000]),
    )
    def produce(self, slots: list[int], delay: int, expire: int) -> None:
        for partition in range(self.n):
            mine = [slot for slot in slots if slot % NO_SLOT % self.n == partition]
            if not mine:
                continue
            log = self.logs[partition]
            specials = tuple(
                ItemSpecial(at, log.now_ms + delay if delay else 0, expire)
                for at in range(0, len(mine), 2)
                if delay or expire
            )
            packed = struct.pack(f"<{len(mine)}H", *mine)
            names = names_of(["" if slot == NO_SLOT else f"key {slot}" for slot in mine])
            result = log.produce(
                len(mine),
                slots=packed,
                specials=specials,
                routing=self.version,
                flows=names if self.keyed else None,
            )
            if self.closed or (log.group in self.behind and isinstance(result, Refusal)):
                assert isinstance(result, Refusal)
                continue
            assert isinstance(result, ProduceResult)
            for at, slot in enumerate(mine):
                self.numbers += 1
                item = Item(
                    self.numbers, slot, log, result.first_seq + at, in_order=not delay or at % 2 > 0
                )
                self.items[log.group, item.seq] = item
                if slot == NO_SLOT:
                    assert self.states(log).get(item.seq) is not RowState.HELD

    def states(self, log: PartitionLog) -> dict[int, RowState]:
        with self.environment.snapshot() as txn:
            return {
                int.from_bytes(key[-9:-1], "big") + ordinal: RowState(segment.state)
                for key, row in SEGMENTS.rows(txn, log.group)
                for segment in [decode_segment(row)]
                for ordinal in masks.ordinals(segment.mask)
            }

    @rule(partition=st.integers(0, PARTITIONS_MAX), count=st.sampled_from([1, 2, 5, 100]))
    def lease(self, partition: int, count: int) -> None:
        log = self.logs[partition % len(self.logs)]
        before = {other.group: self.states(other) for other in self.logs}
        grant = log.one(lease_of(count)).grants[0]
        if grant.lease:
            found = seqs(grant)
            self.leases.append((log, grant.lease, found))
            for seq in found:
                self.check_first(self.items[log.group, seq], before)
                self.items[log.group, seq].leased = True

    def check_first(self, item: Item, states: dict[int, dict[int, RowState]]) -> None:
        """Checks the items that became ready before this one: none is in place, except items that
        the same partition leased earlier.
        """
        if not item.in_order or item.slot == NO_SLOT:
            return
        for other in self.items.values():
            if other.slot == item.slot and other.number < item.number and other.in_order:
                state = states.get(other.log.group, {}).get(other.seq)
                if state in IN_PLACE or (self.keyed and state is not None):
                    assert other.log is item.log, (other.number, item.number)
                    assert other.leased, (other.number, item.number)
                    # Of a key, only those that the same reader's batch has taken with it.
                    assert not self.keyed or state is RowState.READY

    @precondition(lambda self: self.leases)
    @rule(
        number=st.integers(0, 1_000),
        verb=st.sampled_from(["complete", "complete", "release", "retry", "later"]),
        some=st.booleans(),
    )
    def settle(self, number: int, verb: str, some: bool) -> None:
        log, lease, found = self.leases.pop(number % len(self.leases))
        named = found[: len(found) // 2 + 1] if some else found
        if named != found:
            self.leases.append((log, lease, found[len(named) :]))
        items = (LeaseItems(lease, masks.merge_ranges((seq, 1) for seq in named)),)
        if verb == "complete":
            result = log.one(Complete(items))
        elif verb == "release":
            result = log.one(Retry(items, count_attempt=False))
        else:
            result = log.one(Retry(items, log.now_ms + 2_000 if verb == "later" else 0))
        for first, count in result.outcomes[0].done:
            for seq in range(first, first + count):
                self.items[log.group, seq].leased = False
                if verb == "complete":
                    del self.items[log.group, seq]
                elif verb != "release" and not self.keyed:
                    self.items[log.group, seq].in_order = False

    @rule(
        partition=st.integers(0, PARTITIONS_MAX),
        count=st.sampled_from([1, 3]),
        give_back=st.booleans(),
    )
    def read(self, partition: int, count: int, give_back: bool) -> None:
        """Ends the reader's open batch, or gets one."""
        log = self.logs[partition % len(self.logs)]
        known = log.one(OpenReader("r"))
        before = {other.group: self.states(other) for other in self.logs}
        own = before[log.group]
        if known.batch is None:
            log.one(AdvanceReader("r", known.epoch, known.acked_seq, count, 1_000))
            for seq, state in sorted(self.states(log).items()):
                if state is RowState.RESERVED:
                    self.check_first(self.items[log.group, seq], before)
                    self.items[log.group, seq].leased = True
            return
        if give_back:
            log.one(ReleaseReader("r", known.batch.seq))
        else:
            log.one(AdvanceReader("r", known.epoch, known.batch.seq, 0, 0))
        for seq in [seq for seq, state in own.items() if state is RowState.RESERVED]:
            self.items[log.group, seq].leased = False
            if not give_back:
                del self.items[log.group, seq]

    @rule(milliseconds=st.sampled_from([500, 3_000, LEASE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        for log in self.logs:
            leased = [seq for seq, state in self.states(log).items() if state is RowState.LEASED]
            log.advance(milliseconds)
            states = self.states(log)
            for seq in leased:
                if states.get(seq) is not RowState.LEASED:
                    self.items[log.group, seq].in_order &= self.keyed
                    self.items[log.group, seq].leased = False
        self.leases = [
            (log, lease, found)
            for log, lease, found in self.leases
            if any(self.states(log).get(seq) is RowState.LEASED for seq in found)
        ]

    # --- changes of the number of partitions -----------------------------------------------------

    @precondition(lambda self: not self.closed)
    @rule(n=st.integers(1, PARTITIONS_MAX))
    def begin_change(self, n: int) -> None:
        if n != self.n:
            self.next = n
            self.add(n)
            self.tell(open_=False)
            self.closed = True

    @precondition(lambda self: self.closed)
    @rule(late=st.booleans())
    def end_change(self, late: bool) -> None:
        """`late`: another node, which began earlier, still carries out the same change."""
        self.tell(open_=True)
        if late:
            self.tell(open_=False)
        self.n, self.closed = self.next, False
        self.version += 1
        self.behind.clear()

    @precondition(lambda self: self.closed)
    @rule(
        opened=st.integers(0, PARTITIONS_MAX),
        reached=st.lists(st.booleans(), min_size=PARTITIONS_MAX, max_size=PARTITIONS_MAX),
        for_good=st.booleans(),
    )
    def undo_change(self, opened: int, reached: list[bool], for_good: bool) -> None:
        """Some partitions have been opened already. Some cannot be reached to be reopened."""
        for log in self.logs[:opened]:
            log.one(Route(self.version + 1, self.next, open=True, before=self.n))
        self.version += 2
        self.closed = False
        for number, (log, there) in enumerate(zip(self.logs, reached, strict=False)):
            if number >= self.n and not for_good:
                continue
            if there:
                log.one(Route(self.version, self.n, open=True))
                self.behind.discard(log.group)
            else:
                self.behind.add(log.group)

    @rule()
    def reach_all(self) -> None:
        for log in self.logs:
            if log.group in self.behind and not self.closed:
                log.one(Route(self.version, self.n, open=True))
                self.behind.discard(log.group)

    def tell(self, *, open_: bool) -> None:
        for log in self.logs:
            log.one(Route(self.version + 1, self.next, open=open_, before=self.n))

    @rule(reached=st.lists(st.booleans(), min_size=PARTITIONS_MAX, max_size=PARTITIONS_MAX))
    def let_follow(self, reached: list[bool]) -> None:
        """Only some partitions can be reached."""
        seen = [
            self.closure(log) if there else None
            for log, there in zip(self.logs, reached, strict=False)
        ]
        for log, one in zip(self.logs, seen, strict=False):
            for version, _, _ in () if one is None else one.changes:
                if version <= self.version:
                    self.unhold(log, Unhold(version, masks.to_bytes(passed(seen, version))))

    def unhold(self, log: PartitionLog, command: Unhold) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(held_keys, "APPLY_SEGMENTS_MAX", self.rows)
            log.one(command)

    def closure(self, log: PartitionLog) -> Closure:
        with self.environment.snapshot() as txn:
            return dedup_export.closure(txn, ClosureQuery(log.group))

    @precondition(lambda self: not self.closed)
    @rule()
    def let_go(self) -> None:
        while len(self.logs) > self.n and self.closure(self.logs[-1]).is_empty:
            self.logs.pop()

    # --- the end of a run ------------------------------------------------------------------------

    def teardown(self) -> None:
        """All held items become ready, whatever happened, and no items or changes are left."""
        if self.logs:
            if self.closed:
                self.end_change(late=False)
            for _ in range(200):
                if not any(self.states(log) for log in self.logs) and not self.left():
                    return
                self.reach_all()
                self.let_follow([True] * PARTITIONS_MAX)
                self.let_go()
                for partition in reversed(range(len(self.logs))):
                    self.lease(partition, 1_000)
                    self.read(partition, 1, False)
                while self.leases:
                    self.settle(0, "complete", some=False)
                self.time_passes(3_000)
            raise AssertionError(f"items are left, or changes: {self.left()}")

    def left(self) -> list[object]:
        with self.environment.snapshot() as txn:
            rows = [SETTINGS.get(txn, log.group) for log in self.logs]
        return [change for row in rows if row for change in decode_settings(row).changes]


@hypothesis_settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["KeyOrder", "KeyedOrder"]),
    n=st.integers(1, 4),
    stages=st.lists(
        st.tuples(st.integers(1, 4), st.booleans(), st.sampled_from([0, 0, 1, 9]), st.booleans()),
        min_size=2,
        max_size=5,
    ),
)
def test_slots_go_from_one_to_the_next_and_back(
    kind: str, n: int, stages: list[tuple[int, bool, int, bool]]
) -> None:
    """Several changes, while items wait for the first ones."""
    queue = KeyedOrder() if kind == "KeyedOrder" else KeyOrder()
    queue.begin(n, 2_000)
    for after, produces, leases, asks in stages:
        if produces:
            queue.produce(list(range(12)), 0, 0)
        for partition in range(len(queue.logs) if leases else 0):
            queue.lease(partition, leases)
        if asks:
            if queue.leases:
                queue.settle(0, "complete", some=False)
            queue.let_follow([True] * PARTITIONS_MAX)
            queue.let_go()
        queue.begin_change(after)
        if queue.closed:
            queue.end_change(late=False)
    queue.produce(list(range(12)), 0, 0)
    queue.teardown()


class KeyedOrder(KeyOrder):
    keyed = True


TestKeyOrder = KeyOrder.TestCase
TestKeyOrder.settings = hypothesis_settings(max_examples=40, stateful_step_count=40, deadline=None)
TestKeyedOrder = KeyedOrder.TestCase
TestKeyedOrder.settings = TestKeyOrder.settings
