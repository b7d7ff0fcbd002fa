"""Pipelines: they write batches into queues of several partitions by transactions, and die.

A pipeline's queue has its own groups, and no consumer takes its items: at the end all of them are
checked. The record of a pipeline has the attempts that it named in each commit, and the answers.
The carrier plays `service.transactions.driver`: it reads open transactions from any node, also from
one that is behind, and repeats calls that were not answered. `Latecomer` sends again, much later,
what any of them has sent.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import pack
from typing import Any
from zlib import crc32

from querator.model.commands import Done
from querator.model.ids import GroupId
from querator.model.item_options import ItemSpecial
from querator.model.transactions import (
    AbortTxn,
    Begin,
    Discard,
    DropStages,
    Finish,
    Participant,
    Prepare,
    Stage,
    StageClaim,
    StageResult,
    TransactionState,
    TxnResult,
)
from querator.partition.txn_steps import (
    OpenBatchName,
    OpenTxn,
    open_batches,
    open_txns,
    pinned_txns,
    verdict,
)
from tests.simulation.asking import Asking
from tests.simulation.clients import Cluster
from tests.simulation.latecomer import Latecomer, Sent, committed
from tests.simulation.node import SimulatedNode
from tests.simulation.timeline import MS


class Carrier(Asking):
    """Carries out open transactions, one at a time."""

    def __init__(
        self, cluster: Cluster, groups: list[GroupId], chance: random.Random, sent: Sent
    ) -> None:
        super().__init__(cluster, chance)
        self._groups = groups
        self._sent = sent
        self.stopped = False
        self._plan()

    def _plan(self) -> None:
        if not self.stopped:
            life = self.life
            delay_us = self.chance.randrange(20 * MS, 400 * MS)
            self.cluster.timeline.after(
                delay_us, lambda: self._work() if life == self.life else None
            )

    def _work(self) -> None:
        """Sometimes it dies, with everything that it has in hand."""
        if self.chance.random() < 0.05:
            self.life += 1
            self._plan()
            return
        nodes = self.cluster.alive()
        if not nodes:
            self._plan()
            return
        node = self.chance.choice(nodes)
        group = self.chance.choice(self._groups)
        assert node.turns is not None
        if node.turns.status(group) is None:
            self._plan()
            return
        with node.view(group) as view:
            found = open_txns(view, group) if group == self._groups[0] else ()
            pinned = pinned_txns(view, group)
            staged = open_batches(view, group, 100)
        if found:
            self._carry(self.chance.choice(found))
        elif pinned:
            txn = self.chance.choice(pinned).txn
            self.read(self._groups[0], lambda _, node: self._let_go(group, txn, node))
        elif staged:
            batch = self.chance.choice(staged)
            self.read(self._groups[0], lambda _, node: self._drop_committed(group, batch, node))
        else:
            self._plan()

    def _carry(self, txn: OpenTxn) -> None:
        answers: list[Any] = []

        def next_step() -> None:
            if len(answers) < len(txn.steps):
                group, step = txn.steps[len(answers)]
                self._sent.note(GroupId(group), step)
                self.tell(GroupId(group), step, lambda result, _: took(result, step))
                return
            last = (
                verdict(txn.number, answers)
                if txn.state is TransactionState.PREPARING
                else Finish(txn.number)
            )
            self.tell(self._groups[0], last, lambda _, __: self._plan())

        def took(result: Any, step: Any) -> None:
            more = isinstance(result, Done) and result.changed and not isinstance(step, Prepare)
            if not more:
                answers.append(result)
            next_step()

        next_step()

    def _let_go(self, group: GroupId, txn: int, node: SimulatedNode) -> None:
        with node.view(self._groups[0]) as view:
            known = {one.number for one in open_txns(view, self._groups[0])}
        if txn in known:
            self._plan()
        else:
            self.tell(group, Discard(txn), lambda _, __: self._plan())

    def _drop_committed(self, group: GroupId, batch: OpenBatchName, node: SimulatedNode) -> None:
        with node.view(self._groups[0]) as view:
            last = committed(view, self._groups[0], batch.producer)
        if batch.batch > last:
            self._plan()
        else:
            command = DropStages(batch.producer, batch.batch, last)
            self.tell(group, command, lambda _, __: self._plan())


@dataclass
class Written:
    """A batch: what was named in commits, and the answers that the pipeline received."""

    named: list[frozenset[tuple[int, str]]] = field(default_factory=list)
    """Items of each commit, with the group that they were staged in."""
    aborted: list[frozenset[tuple[int, str]]] = field(default_factory=list)
    """Items of the commits that were answered as not committed."""
    committed: bool = False


class Pipeline(Asking):
    """Writes one batch after the other. It dies with the batch in hand, and comes back with it."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        groups: list[GroupId],
        chance: random.Random,
        sent: Sent,
    ) -> None:
        super().__init__(cluster, chance)
        self._sent = sent
        self.name = name
        self.batch = 0
        self.batches: dict[int, Written] = {}
        self.stopped = False
        self.busy = False
        self._groups = groups
        self._attempts = 0
        self._plan()

    def _plan(self) -> None:
        self.busy = False
        life = self.life
        self.cluster.timeline.after(
            self.chance.randrange(50 * MS, 500 * MS),
            lambda: self._write() if life == self.life else None,
        )

    def _dies(self) -> bool:
        """Whether it dies here. Open calls are then not waited for."""
        if self.chance.random() >= 0.04:
            return False
        self.life += 1
        self._plan()
        return True

    def _write(self) -> None:
        if self.stopped:
            return
        self.busy = True
        claims: dict[GroupId, list[StageClaim]] = {}
        named: set[tuple[int, str]] = set()
        wanted = self.chance.randrange(1, 4)
        todo = [
            (task, counts)
            for task in range(wanted)
            for counts in ([False, True] if self.chance.random() < 0.3 else [True])
        ]

        def next_task() -> None:
            if self._dies():
                return
            if todo:
                task, counts = todo.pop(0)
                self._task(task, next_task, claims if counts else {}, named if counts else set())
            elif self.chance.random() < 0.1:
                self._abort()
            else:
                self._commit(claims, named)

        next_task()

    def _task(
        self,
        task: int,
        then: Callable[[], None],
        claims: dict[GroupId, list[StageClaim]],
        named: set[tuple[int, str]],
    ) -> None:
        """One attempt: some requests to some partitions."""
        self._attempts += 1
        attempt = self._attempts.to_bytes(16, "big")
        sums: dict[GroupId, tuple[int, int]] = {}
        requests = [self.chance.choice(self._groups) for _ in range(self.chance.randrange(1, 4))]
        left = list(enumerate(requests, start=1))

        def next_request() -> None:
            if not left:
                for group, (count, checksum) in sums.items():
                    claims.setdefault(group, []).append(StageClaim(task, attempt, count, checksum))
                then()
                return
            sequence, group = left.pop(0)
            items = [
                f"{self.name}.{self.batch}.{self._attempts}.{sequence}.{number}"
                for number in range(self.chance.choice((1, 3, 20)))
            ]
            encoded = [item.encode() + b"\n" for item in items]
            data = b"".join(encoded)
            count, checksum = sums.get(group, (0, 0))
            sums[group] = count + len(items), (checksum + crc32(data)) % 2**32
            named.update((group, item) for item in items)
            command = Stage(
                producer=self.name,
                batch=self.batch,
                task=task,
                attempt=attempt,
                sequence=sequence,
                checksum=crc32(data),
                lengths=pack(f"<{len(encoded)}I", *map(len, encoded)),
                specials=(ItemSpecial(0, dedup_key=encoded[0]),),
            )
            self._sent.note(group, command, data)
            self.tell(group, command, staged, data)

        def staged(result: Any, _: SimulatedNode) -> None:
            if not isinstance(result, StageResult):
                self.cluster.found(f"{self.name}: a stage was refused: {result}")
            elif result.committed:
                self._committed()
            elif not self._dies():
                next_request()

        next_request()

    def _written(self) -> Written:
        return self.batches.setdefault(self.batch, Written())

    def _committed(self) -> None:
        self._written().committed = True
        self.batch += 1
        self._plan()

    def _commit(self, claims: dict[GroupId, list[StageClaim]], named: set[tuple[int, str]]) -> None:
        self._written().named.append(frozenset(named))
        participants = tuple(
            Participant(number, group, tuple(claims[group]))
            for number, group in enumerate(self._groups)
            if group in claims
        )
        self._begin(Begin(self.name, self.batch, participants))

    def _begin(self, begin: Begin) -> None:
        def begun(result: Any, _: SimulatedNode) -> None:
            if not isinstance(result, TxnResult):
                self.cluster.found(f"{self.name}: a commit was refused: {result}")
            elif result.state is TransactionState.COMMITTED:
                self._committed()
            elif not self._dies():
                self._wait(begin, result)

        self.tell(self._groups[0], begin, begun)

    def _wait(self, begin: Begin, begun: TxnResult) -> None:
        """Checks until the begun transaction is decided. The transaction of another batch must also
        be over.
        """

        def looked(_: Any, node: SimulatedNode) -> None:
            with node.view(self._groups[0]) as view:
                found = [one for one in open_txns(view, self._groups[0]) if one.number == begun.txn]
            state = found[0].state if found else TransactionState.NONE
            if state is TransactionState.PREPARING or (
                state is TransactionState.ABORTED and not begun.mine
            ):
                life = self.life
                self.cluster.timeline.after(
                    100 * MS, lambda: self._wait(begin, begun) if life == self.life else None
                )
            elif state is TransactionState.ABORTED:
                written = self._written()
                written.aborted.append(written.named[-1])
                self._plan()
            else:
                # Begin is sent again to learn its fate: it is committed, or begins again.
                self._begin(begin)

        self.read(self._groups[0], looked)

    def _abort(self) -> None:
        def aborted(result: Any, _: SimulatedNode) -> None:
            if isinstance(result, TxnResult) and result.state is TransactionState.COMMITTED:
                self._committed()
                return
            drop(list(self._groups))

        def drop(groups: list[GroupId]) -> None:
            if not groups:
                self._plan()
                return
            command = DropStages(self.name, self.batch)
            self.tell(
                groups[0],
                command,
                lambda result, _: drop(
                    groups if isinstance(result, Done) and result.changed else groups[1:]
                ),
            )

        self.tell(self._groups[0], AbortTxn(self.name, self.batch), aborted)


class Pipelines:
    """All pipelines of a run with their carriers; `groups` are the partitions of their queue."""

    def __init__(self, cluster: Cluster, groups: list[GroupId], count: int, seed: int) -> None:
        def chance(name: str) -> random.Random:
            return random.Random(f"{name} {seed}")

        self.groups = groups
        sent = Sent()
        self.pipelines = [
            Pipeline(cluster, f"p{n}", groups, chance(f"pipeline {n}"), sent) for n in range(count)
        ]
        self.carriers = [Carrier(cluster, groups, chance(f"carrier {n}"), sent) for n in range(2)]
        self.latecomer = Latecomer(cluster, groups, chance("latecomer"), sent)

    @property
    def batches(self) -> int:
        return sum(pipeline.batch for pipeline in self.pipelines)

    def stop(self) -> None:
        """Begins no further batch, and sends nothing late any more."""
        for pipeline in self.pipelines:
            pipeline.stopped = True
        self.latecomer.stopped = True

    def carried_out(self, leader: Callable[[GroupId], tuple[SimulatedNode, Any] | None]) -> bool:
        """Whether no transaction is open, nothing is pinned for one, and nothing is staged for a
        committed batch. The carriers stop then.
        """
        if self.latecomer.busy or any(pipeline.busy for pipeline in self.pipelines):
            return False
        staged: set[OpenBatchName] = set()
        for group in reversed(self.groups):
            found = leader(group)
            if found is None:
                return False
            with found[0].view(group) as view:
                if open_txns(view, group) or pinned_txns(view, group):
                    return False
                staged.update(open_batches(view, group, 1_000))
                if group == self.groups[0] and any(
                    one.batch <= committed(view, group, one.producer) for one in staged
                ):
                    return False
        for carrier in self.carriers:
            carrier.stopped = True
        return True


def judge(pipelines: list[Pipeline], visible: Counter[tuple[int, str]]) -> list[str]:
    """Returns the errors in what is visible (by group and item), as sentences."""
    wrong = [f"{item} is visible {count} times" for item, count in visible.items() if count > 1]
    left = set(visible)
    for pipeline in pipelines:
        for number, batch in pipeline.batches.items():
            prefix = f"{pipeline.name}.{number}."
            seen = {one for one in left if one[1].startswith(prefix)}
            left -= seen
            name = f"batch {number} of {pipeline.name}"
            if seen and seen not in batch.named:
                wrong.append(f"{name}: what is visible was not committed together: {len(seen)}")
            if batch.committed and not seen:
                wrong.append(f"{name}: it is committed and not visible")
            if seen in batch.aborted:
                wrong.append(f"{name}: it was aborted and is visible")
    wrong += [
        f"{item} is visible and was never in a commit"
        for item in left
        if not item[1].startswith("probe")
    ]
    return wrong
