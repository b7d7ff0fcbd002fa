"""Programs at a queue whose items have priorities: an operator changes them, and so do retries.

What they see goes to `ranks`, which has the rules. The items die into a dead queue and are redriven
with the priorities that they had.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from querator.model.calls import (
    LeasedRun,
    PeekedPage,
    PrioritizeCall,
    PrioritizeReply,
    ProducedBatch,
    RetryCall,
)
from querator.model.commands import ItemSpecial, LeaseResult
from querator.model.errors import ErrorCode
from querator.node_core import NodeCore
from querator.partition.rows import RowState
from tests.checkers import history
from tests.simulation.checks import CheckedMachine, Checks
from tests.simulation.timeline import Timeline
from tests.simulation.whole.programs import (
    NAMESPACE,
    Consuming,
    Ended,
    Ground,
    Held,
    Producing,
    Program,
    references_in,
)
from tests.simulation.whole.ranks import Change, Ranks
from tests.simulation.whole.winding import Streaming

QUEUE = "ranked"
DEAD = "ranked.dead"
PRIORITIES = (-7, 0, 3)
MAX_ATTEMPTS = 3
PAGE_ITEMS = 20


class RankedChecks(Checks):
    """Also tells `ranks` which leases the log grants."""

    def __init__(self, timeline: Timeline, ranks: Ranks) -> None:
        super().__init__(timeline)
        self._ranks = ranks

    def leased(self, machine: CheckedMachine, result: LeaseResult) -> None:
        super().leased(machine, result)
        self._ranks.granted(self._timeline.now_us, machine.group, result)


def groups_of(ground: Ground) -> tuple[int, ...]:
    queue = ground.queue(QUEUE)
    return () if queue is None else queue.groups


class Ranking(Producing):
    """Produces items of mixed priorities, or of one."""

    counts = (1, 3, 10)
    _groups: tuple[int, ...] = ()
    _has_keys = False

    def _specials(self, references: Sequence[str], at_ms: int) -> tuple[ItemSpecial, ...]:
        priorities = [self._chance.choice(PRIORITIES) for _ in references]
        if self._chance.random() < 0.5:
            priorities = priorities[:1] * len(priorities)
        self._has_keys = self._chance.random() < 0.2
        self._groups = groups_of(self._ground)
        now_us = self._ground.timeline.now_us
        self._ground.ranks.producing(references, priorities, now_us, keyed=self._has_keys)
        return tuple(
            ItemSpecial(ordinal, enqueue_at_ms=at_ms, priority=priority)
            for ordinal, priority in enumerate(priorities)
            if at_ms or priority
        )

    def _slots(self, count: int) -> bytes:
        return super()._slots(count) if self._has_keys else b""

    def stored(
        self,
        references: Sequence[str],
        begun_us: int,
        at_ms: int,
        batches: Sequence[ProducedBatch],
    ) -> None:
        if at_ms:
            return
        groups = groups_of(self._ground)
        for batch in batches:
            there = groups[batch.partition : batch.partition + 1]
            # Another group may have the number of a partition that has left the queue.
            if not there or there != self._groups[batch.partition : batch.partition + 1]:
                continue
            for n, index in enumerate(batch.indexes or range(batch.count)):
                self._ground.ranks.stored(there[0], batch.first_seq + n, references[index])


class Serving(Consuming):
    """Takes few items at a time, so that others wait. Some retries give another priority."""

    most = (1, 2, 5)
    rejects = 0.1
    later_ms = (0, 0, 500)
    priorities = PRIORITIES
    _change: Change | None = None

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._attempts: dict[str, int] = {}
        """The highest attempt of the items of each lease."""

    def takes(self, asked_us: int, batches: Sequence[LeasedRun]) -> dict[str, Held]:
        for batch in batches:
            attempt = max(batch.attempt, self._attempts.get(batch.lease_id, 0))
            self._attempts[batch.lease_id] = attempt
        return super().takes(asked_us, batches)

    def giving_back(self, call: RetryCall, held: Held) -> None:
        self._change = None
        if call.priority is not None:
            now_us, ranks = self._ground.timeline.now_us, self._ground.ranks
            self._change = ranks.changing(now_us, held.values(), call.priority)

    def gave_back(self, call: RetryCall, held: Held, ended: Ended) -> None:
        now_us, ranks = self._ground.timeline.now_us, self._ground.ranks
        outcomes = () if ended.result is None else ended.result.outcomes
        done, undone = [], []
        for each in outcomes:
            done += [*history.spread(each.done), *history.spread(each.repeated)]
            if each.error in (None, ErrorCode.LEASE_LOST) and ended.tries == 1:
                undone += history.spread(each.lost)
        if self._change is not None:
            ranks.changed(
                now_us, self._change, [held[seq] for seq in done], [held[seq] for seq in undone]
            )
        [lease] = call.leases
        dies = call.count_attempt and self._attempts[lease.lease_id] >= MAX_ATTEMPTS
        if not (call.dead or call.retry_at_ms or dies):
            for seq in done:
                ranks.returned(lease.lease_id, seq, held[seq])


class ServingStream(Serving, Streaming):
    credit_items = 4


class _Peeked(NamedTuple):
    group: int
    partition: int
    seq: int

    @property
    def id(self) -> str:
        return f"{self.partition}-{self.seq}"


class Prioritizing(Program):
    """The operator. `resized`: whether the queue gets other numbers of partitions."""

    def __init__(
        self,
        ground: Ground,
        name: str,
        queue: str,
        chance: random.Random,
        *,
        pause_us: int,
        resized: bool,
    ) -> None:
        super().__init__(ground, name, queue, chance, pause_us=pause_us)
        self._resized = resized

    async def act(self) -> None:
        begun_us = self._ground.timeline.now_us
        state = self._chance.choice((0, RowState.READY, RowState.READY, RowState.SCHEDULED))
        ended = await self.call("peek", partial(_peek, self.queue, state), again=True)
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("a peek", ended)
            return
        page: PeekedPage = ended.result
        found: dict[str, _Peeked] = {}
        for group, partition, item in page.items:
            [reference] = references_in(item.item)
            now_us = self._ground.timeline.now_us
            self._ground.ranks.peeked(begun_us, now_us, reference, item.priority)
            found[reference] = _Peeked(group, partition, item.seq)
        if found:
            most = min(len(found), self._chance.choice((1, 3, 8)))
            chosen = self._chance.sample(list(found), most)
            await self._change({reference: found[reference] for reference in chosen})

    async def _change(self, chosen: dict[str, _Peeked]) -> None:
        ground, priority = self._ground, self._chance.choice(PRIORITIES)
        ids = tuple(item.id for item in chosen.values())
        call = PrioritizeCall(NAMESPACE, self.queue, ids, priority)
        waits = {one: ground.ranks.wait(item.group, item.seq) for one, item in chosen.items()}
        change = ground.ranks.changing(ground.timeline.now_us, chosen, priority)
        ended = await self.call(
            "prioritize", lambda core: core.admin.changes.prioritize(call), again=True
        )
        now_us, groups = ground.timeline.now_us, groups_of(ground)
        # The number of a partition that has left the queue may be that of another one.
        same = all(
            groups[item.partition : item.partition + 1] == (item.group,) for item in chosen.values()
        )
        if ended.result is None or ended.tries > 1 or not same:
            ground.ranks.changed(now_us, change, (), ())
            if self._resized:
                ground.ranks.astray(priority)
        else:
            reply: PrioritizeReply = ended.result
            missing = set(reply.not_waiting)
            undone = [one for one, item in chosen.items() if item.id in missing]
            done = [one for one in chosen if one not in undone]
            for one in undone:
                ground.ranks.refused(chosen[one].group, chosen[one].seq, one, waits[one])
            # A node repeats the command when an answer is lost: the first attempt may have changed
            # what the second one no longer finds.
            ground.ranks.changed(now_us, change, done, ())
        if ended.error is not None and ended.error.code is not ErrorCode.INVALID_ARGUMENT:
            self.unexpected("a change of priorities", ended)


async def _peek(queue: str, state: int, core: NodeCore) -> PeekedPage:
    return await core.admin.peek_items(NAMESPACE, queue, state, PAGE_ITEMS, "")


def consumer(seed: int) -> type[Serving]:
    """The kind of consumer in this seed."""
    return random.Random(f"ranked consumer {seed}").choice((Serving, ServingStream))


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"ranked resized {seed}").random() < 0.3
