"""Transactions with events in any order: stages, commits, carriers that die and repeat steps,
aborts, time, changes of partitions. The invariants are scanned after every entry. At the end each
batch is visible as one commit has named it, or not at all.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from querator.model.commands import Refusal, Route
from querator.model.item_options import ItemSpecial
from querator.model.transactions import (
    AbortTxn,
    Decide,
    Discard,
    DropStages,
    StageClaim,
    StageResult,
    TransactionState,
)
from querator.partition.txn_steps import TxnQuery, answer, pinned_txns
from tests.unit.partition.transaction_queue import TransactionQueue, attempt, stage_of

PARTITIONS = 2
COORDINATOR = 11

producers = st.sampled_from(["p", "q"])
batches = st.integers(0, 2)
partitions = st.integers(0, PARTITIONS - 1)
rarely = st.sampled_from([False] * 9 + [True])
Named = frozenset[tuple[int, bytes]]


class Attempt:
    """One attempt at a task of a batch, and what it has staged: (count, checksum) by partition."""

    def __init__(self, producer: str, batch: int, task: int, number: int) -> None:
        self.producer, self.batch, self.task, self.number = producer, batch, task, number
        self.sequence = 0
        self.sums: dict[int, tuple[int, int]] = {}
        self.items: set[tuple[int, bytes]] = set()


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = TransactionQueue(PARTITIONS, all_events=True)
        self.attempts: list[Attempt] = []
        self.named: dict[int, tuple[str, int, Named]] = {}
        """The batch and the items that a commit named, by transaction."""
        self.routing = 0

    @rule(
        producer=producers,
        batch=batches,
        task=st.integers(0, 1),
        requests=st.lists(st.tuples(partitions, st.integers(1, 3), st.booleans()), max_size=4),
    )
    def attempt_stages(
        self, producer: str, batch: int, task: int, requests: list[tuple[int, int, bool]]
    ) -> None:
        one = Attempt(producer, batch, task, len(self.attempts) + 1)
        self.attempts.append(one)
        for partition, count, twice in requests:
            self._stage(one, partition, count, twice=twice)

    @rule(data=st.data(), partition=partitions)
    def former_attempt_goes_on(self, data: st.DataObject, partition: int) -> None:
        if self.attempts:
            self._stage(data.draw(st.sampled_from(self.attempts)), partition, 1, twice=False)

    def _stage(self, one: Attempt, partition: int, count: int, *, twice: bool) -> None:
        one.sequence += 1
        items = [b"%d.%d.%d" % (one.number, one.sequence, n) for n in range(count)]
        command, attachment = stage_of(
            items,
            producer=one.producer,
            batch=one.batch,
            task=one.task,
            attempt_number=one.number,
            sequence=one.sequence,
            specials=(ItemSpecial(0, dedup_key=items[0]),),
            routing=self.routing,
        )
        result = self.queue.logs[partition].one(command, attachment)
        if not isinstance(result, StageResult) or result.committed:
            return
        if twice:
            assert self.queue.logs[partition].one(command, attachment).repeated
        before, checksum = one.sums.get(partition, (0, 0))
        one.sums[partition] = before + count, (checksum + command.checksum) % 2**32
        one.items |= {(partition, item) for item in items}

    @rule(producer=producers, batch=batches, lies=rarely)
    def commits(self, producer: str, batch: int, lies: bool) -> None:
        """Commits the last attempt at each task."""
        last = {
            one.task: one
            for one in self.attempts
            if (one.producer, one.batch) == (producer, batch) and one.sums
        }
        claims: dict[int, list[StageClaim]] = {}
        named: set[tuple[int, bytes]] = set()
        for one in last.values():
            named |= one.items
            for partition, (count, checksum) in one.sums.items():
                claim = StageClaim(one.task, attempt(one.number), count + lies, checksum)
                claims.setdefault(partition, []).append(claim)
        begun = self.queue.begin(claims, batch=batch, producer=producer)
        if not isinstance(begun, Refusal) and begun.txn and begun.mine:
            self.named.setdefault(begun.txn, (producer, batch, frozenset(named)))

    @rule(steps=st.integers(0, 12))
    def carrier_lives_for(self, steps: int) -> None:
        self.queue.carry(steps)

    @rule(data=st.data())
    def something_arrives_once_more(self, data: st.DataObject) -> None:
        if self.queue.sent:
            group, command, _ = data.draw(st.sampled_from(self.queue.sent))
            self.queue.logs[group - 11].one(command)

    @rule(producer=producers, batch=batches, comes=rarely)
    def aborts(self, producer: str, batch: int, comes: bool) -> None:
        if not comes:
            return
        result = self.queue.logs[0].one(AbortTxn(producer, batch))
        if result.state is not TransactionState.COMMITTED:
            for log in self.queue.logs:
                log.one(DropStages(producer, batch))

    @rule(hours=st.sampled_from([0] * 8 + [1, 30]))
    def time_passes(self, hours: int) -> None:
        for log in self.queue.logs:
            log.advance(hours * 3_600_000)

    @rule(comes=rarely)
    def partitions_change(self, comes: bool) -> None:
        if not comes:
            return
        self.routing += 1
        for log in self.queue.logs:
            log.one(Route(self.routing, PARTITIONS, open=True))

    @rule()
    def what_is_finished_is_let_go(self) -> None:
        with self.queue.environment.snapshot() as txn:
            for log in self.queue.logs:
                for one in pinned_txns(txn, log.group):
                    query = TxnQuery(COORDINATOR, one.txn, one.producer, one.batch)
                    known = answer(txn, query)
                    if not known.txn:  # type: ignore[union-attr]
                        log.one(Discard(one.txn))

    def teardown(self) -> None:
        assert self.queue.carry()
        self.what_is_finished_is_let_go()
        assert self.queue.carry()
        committed: set[int] = set()
        for _, command, result in self.queue.sent:
            if isinstance(command, Decide) and result.state is TransactionState.COMMITTED:
                committed.add(command.txn)
        expected: Counter[tuple[int, bytes]] = Counter()
        seen: set[tuple[str, int]] = set()
        for txn in sorted(committed):
            producer, batch, named = self.named[txn]
            assert (producer, batch) not in seen, "a batch is committed once"
            seen.add((producer, batch))
            expected.update(named)
        visible = Counter(
            (partition, item)
            for partition in range(PARTITIONS)
            for item in self.queue.visible(partition)
        )
        assert visible == expected
        for log in self.queue.logs:
            with self.queue.environment.snapshot() as snapshot:
                assert not pinned_txns(snapshot, log.group)


Transactions.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestTransactions = Transactions.TestCase
