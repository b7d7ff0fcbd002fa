"""Repeats steps of transactions much too late."""

import random
from collections import deque
from struct import pack
from typing import Any
from zlib import crc32

from querator.model.ids import GroupId
from querator.model.transactions import Prepare, Publish, Stage, StageResult
from querator.partition.txn_steps import CommittedQuery, answer
from tests.simulation.asking import Asking
from tests.simulation.clients import Cluster
from tests.simulation.node import SimulatedNode
from tests.simulation.timeline import MS

SENT_MAX = 200
"""Commands of each kind that are remembered, and may be sent again."""


def committed(view: Any, coordinator: GroupId, producer: str) -> int:
    """The last committed batch of a producer."""
    found = answer(view, CommittedQuery(coordinator, (producer,)))
    assert isinstance(found, tuple)
    return int(found[0])


class Sent:
    """The last commands that were sent to participants."""

    def __init__(self) -> None:
        self.stages: deque[tuple[GroupId, Stage, bytes]] = deque(maxlen=SENT_MAX)
        self.prepares: deque[tuple[GroupId, Prepare]] = deque(maxlen=SENT_MAX)
        self.published: dict[tuple[GroupId, int], Publish] = {}
        self.batches: dict[str, int] = {}
        """Last batch of which something was staged, by producer. Earlier batches are committed."""

    def note(self, group: GroupId, command: Any, data: bytes = b"") -> None:
        if isinstance(command, Stage):
            self.stages.append((group, command, data))
            self.batches[command.producer] = command.batch
        elif isinstance(command, Prepare):
            self.prepares.append((group, command))
        elif isinstance(command, Publish):
            self.published[group, command.txn] = command


class Latecomer(Asking):
    """Sends again what others have sent: the stages that a transaction has claimed, its Prepare and
    its Publish, in this order or without some of them. It also sends a further request of an
    attempt at a committed batch, to any partition.
    """

    def __init__(
        self, cluster: Cluster, groups: list[GroupId], chance: random.Random, sent: Sent
    ) -> None:
        super().__init__(cluster, chance)
        self._groups = groups
        self._sent = sent
        self._further = 1 << 32
        self.stopped = False
        self.busy = False
        self.told = 0
        """Number of requests whose answer was that the batch is committed."""
        self._plan()

    def _plan(self) -> None:
        self.busy = False
        self.cluster.timeline.after(self.chance.randrange(100 * MS, 2000 * MS), self._come)

    def _come(self) -> None:
        if self.stopped:
            return
        self.busy = True
        if self._sent.prepares and self.chance.random() < 0.5:
            self._repeat(*self.chance.choice(self._sent.prepares))
            return
        former = [
            stage for _, stage, _ in self._sent.stages
            if stage.batch < self._sent.batches[stage.producer]
        ]  # fmt: skip
        if former:
            self._go_on(self.chance.choice(former))
        else:
            self._plan()

    def _go_on(self, stage: Stage) -> None:
        self._further += 1
        data = b"late." + str(self._further).encode() + b"\n"
        late = Stage(
            producer=stage.producer,
            batch=stage.batch,
            task=stage.task,
            attempt=stage.attempt,
            sequence=self._further,
            checksum=crc32(data),
            lengths=pack("<I", len(data)),
        )

        def answered(result: Any, _: SimulatedNode) -> None:
            self.told += isinstance(result, StageResult) and result.committed
            self._plan()

        self.tell(self.chance.choice(self._groups), late, answered, data)

    def _repeat(self, group: GroupId, prepare: Prepare) -> None:
        claimed = {(claim.task, claim.attempt) for claim in prepare.claims}
        steps: list[tuple[Any, bytes]] = [
            (stage, data)
            for there, stage, data in self._sent.stages
            if there == group
            and (stage.producer, stage.batch) == (prepare.producer, prepare.batch)
            and (stage.task, stage.attempt) in claimed
        ]
        steps.append((prepare, b""))
        publish = self._sent.published.get((group, prepare.txn))
        if publish is not None:
            steps.append((publish, b""))

        def go_on() -> None:
            while steps and self.chance.random() < 0.1:
                steps.pop(0)
            if not steps:
                self._plan()
                return
            command, data = steps.pop(0)
            self.tell(group, command, took, data)

        def took(result: Any, _: SimulatedNode) -> None:
            self.told += isinstance(result, StageResult) and result.committed
            go_on()

        go_on()
