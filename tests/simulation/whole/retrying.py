"""Programs at a queue whose items say how they are retried, whose retries leave attributes and
errors, and whose consumers save checkpoints and return results. What they see goes to `tries`,
`progress` and `answers`, which have the rules. The items die into a dead queue, whose consumers
change them as well, and are redriven.
"""

import random
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from querator.model.calls import (
    Checkpoint,
    CompleteCall,
    ExtendCall,
    PeekedPage,
    ProducedBatch,
    RetryCall,
    ReturnedResult,
    SettleReply,
)
from querator.model.commands import Attributes, ItemSpecial
from querator.model.errors import ErrorCode
from querator.model.limits import KEEP_RESULT_MS_MAX
from querator.model.queues import RetryBackoff, RetryWaits
from querator.model.result_calls import WaitResultsCall
from querator.node_core import NodeCore
from querator.partition.rows import RowState
from tests.checkers import history
from tests.simulation.whole.answers import Return
from tests.simulation.whole.programs import (
    NAMESPACE,
    Consuming,
    Ended,
    Held,
    Producing,
    Program,
    references_in,
)
from tests.simulation.whole.progress import Save
from tests.simulation.whole.tries import QUEUE, Change, Place, Wish
from tests.simulation.whole.winding import Streaming

MAX_ATTEMPTS = 3
RETRY_DELAY_MS = 400
"""Of the queue, without a random part."""
PAGE_ITEMS = 30
WAITED_FOR = 40
"""Items of one wait."""
LIMITS = (None, None, 1, 2, 5)
WAITS_MS = (None, None, 0, 1_500)
AGES_MS = (None, None, None, 2_500)


class Wishing(Producing):
    """Produces items of which some say how they are retried."""

    counts = (1, 3, 10)

    def _specials(self, references: Sequence[str], at_ms: int) -> tuple[ItemSpecial, ...]:
        wishes = [Wish(*map(self._chance.choice, (LIMITS, WAITS_MS, AGES_MS))) for _ in references]
        self._ground.tries.producing(references, wishes)
        asks = [self._chance.random() < 0.5 for _ in references]
        self._ground.answers.asking(one for one, ask in zip(references, asks, strict=True) if ask)
        return tuple(
            ItemSpecial(
                ordinal,
                enqueue_at_ms=at_ms,
                max_attempts=wish.max_attempts,
                expire_timeout_ms=wish.age_ms or 0,
                retry=None if wish.wait_ms is None else _fixed(wish.wait_ms),
                keep_result_ms=KEEP_RESULT_MS_MAX if asks[ordinal] else 0,
            )
            for ordinal, wish in enumerate(wishes)
            if at_ms or asks[ordinal] or wish != Wish(None, None)
        )

    def stored(
        self,
        references: Sequence[str],
        begun_us: int,
        at_ms: int,
        batches: Sequence[ProducedBatch],
    ) -> None:
        now_us, queue = self._ground.timeline.now_us, self._ground.queue(QUEUE)
        # The queue keeps its partitions.
        groups = () if queue is None else queue.groups
        for batch in batches:
            if batch.partition >= len(groups):
                # No node that is up knows the queue.
                continue
            for n, index in enumerate(batch.indexes or range(batch.count)):
                group = groups[batch.partition]
                seq, reference = batch.first_seq + n, references[index]
                self._ground.tries.stored(now_us, group, seq, reference)
                self._ground.answers.stored(group, batch.partition, seq, reference)


def _fixed(wait_ms: int) -> RetryWaits:
    return RetryWaits(wait_ms, max(100, wait_ms), RetryBackoff.FIXED, jitter=False)


class Failing(Consuming):
    """Most of its attempts fail. Many retries change the attributes, and have an error."""

    most = (1, 3, 10)
    rejects = 0.1
    _begun_us = 0
    _number = 0
    _returns: dict[int, Return]

    async def use(self, lease_id: str, held: Held) -> None:
        for _ in range(self._chance.choice((0, 0, 1, 2))):
            await self.save(lease_id, held)
        if self._chance.random() < 0.5:
            await self.retry(lease_id, held)
            if self._chance.random() < 0.2:
                # Its lease has ended, unless the retry was not executed.
                await self.save(lease_id, held)
        else:
            await super().use(lease_id, held)

    async def complete(self, lease_id: str, held: Held) -> None:
        """Returns a result for each item."""
        self._number += 1
        self._returns = {
            seq: self._ground.answers.returning(
                lease_id, seq, b"%s %d %d" % (self.name.encode(), self._number, seq)
            )
            for seq in held
        }
        await super().complete(lease_id, held)

    def completing(self, core: NodeCore, call: CompleteCall) -> Awaitable[SettleReply]:
        [lease] = call.leases
        results = tuple(
            ReturnedResult(lease.lease_id, seq, one.data) for seq, one in self._returns.items()
        )
        return core.service.complete(msgspec.structs.replace(call, results=results))

    def has_completed(self, ended: Ended) -> None:
        for each in () if ended.result is None else ended.result.outcomes:
            if each.error not in (None, ErrorCode.LEASE_LOST):
                continue
            for seq in (*history.spread(each.done), *history.spread(each.repeated)):
                self._returns[seq].executed = True
            for seq in history.spread(each.lost):
                self._returns[seq].executed = False

    async def save(self, lease_id: str, held: Held) -> None:
        """Saves a checkpoint with each item."""
        self._number += 1
        revision, progress = self._number, self._ground.progress
        saves: dict[int, Save] = {}
        for seq in held:
            empty = self._chance.random() < 0.1
            data = b"" if empty else b"%s %d" % (self.name.encode(), revision)
            saves[seq] = progress.saving(lease_id, seq, data, revision)
        call = ExtendCall(
            NAMESPACE,
            self.queue,
            (lease_id,),
            lease_timeout_ms=2_000,
            checkpoints=tuple(
                Checkpoint(lease_id, seq, save.data, revision) for seq, save in saves.items()
            ),
        )
        pending = self._begin(history.Extend((lease_id,), 2.0))
        ended = await self.call("save", lambda core: core.service.extend(call), again=True)
        if ended.result is None:
            self._not_answered("a save", ended, pending)
            return
        [outcome] = ended.result.outcomes
        pending.ended(history.Extended(((lease_id, bool(outcome.deadline_ms)),)))
        for seq in saves.keys() - set(outcome.lost_checkpoints):
            progress.saved(saves[seq])

    def made(self, call: RetryCall) -> RetryCall:
        self._number += 1
        attributes: Attributes | None = None
        if self._chance.random() < 0.5:
            attributes = (("try", f"{self.name} {self._number}"),)
        error = f"{self.name} {self._number}" if self._chance.random() < 0.7 else ""
        clear = self._chance.random() < 0.1
        return msgspec.structs.replace(
            call, attributes=attributes, error=error, clear_checkpoint=clear
        )

    def giving_back(self, call: RetryCall, held: Held) -> None:
        [lease] = call.leases
        self._begun_us = self._ground.timeline.now_us
        self._ground.answers.failing(lease.lease_id, held, call.error)
        changes = self._ground.tries.retrying(lease.lease_id, held, call.attributes, call.error)
        self._changes: dict[int, Change] = dict(zip(held, changes, strict=True))

    def gave_back(self, call: RetryCall, held: Held, ended: Ended) -> None:
        [lease] = call.leases
        self._settled_saves(call, held, ended)
        for each in () if ended.result is None else ended.result.outcomes:
            if each.error not in (None, ErrorCode.LEASE_LOST):
                continue
            for seq in (*history.spread(each.done), *history.spread(each.repeated)):
                self._changes[seq].executed = True
                if self.queue == QUEUE and call.count_attempt and not call.dead:
                    self._ground.tries.waits(lease.lease_id, seq, held[seq], self._begun_us)
            for seq in history.spread(each.lost):
                # The verb of the first attempt would make it a repeat.
                self._changes[seq].executed = False

    def _settled_saves(self, call: RetryCall, held: Held, ended: Ended) -> None:
        """Says for each item whether the retry was executed."""
        [lease] = call.leases
        executed: dict[int, bool] = {}
        for each in () if ended.result is None else ended.result.outcomes:
            if each.error in (None, ErrorCode.LEASE_LOST):
                executed |= dict.fromkeys(history.spread(each.done), True)
                executed |= dict.fromkeys(history.spread(each.repeated), True)
                executed |= dict.fromkeys(history.spread(each.lost), False)
        for seq in held:
            self._ground.progress.settled(
                lease.lease_id, seq, cleared=call.clear_checkpoint, executed=executed.get(seq)
            )


class FailingLetters(Failing):
    """At the dead queue, which drops what is rejected."""

    rejects = 0.0


class FailingStream(Failing, Streaming):
    credit_items = 8


class Waiting(Program):
    """Waits for the results of items, also of some that have answered."""

    async def act(self) -> None:
        known = list(self._ground.answers.asked)
        await self._wait(known[-WAITED_FOR:], wait_ms=self._chance.choice((0, 500, 3_000)))

    async def finish(self) -> None:
        """Returns when every item is answered. All have ended."""
        while places := self._ground.answers.open():
            await self._wait(places[:WAITED_FOR], wait_ms=1_000)

    async def _wait(self, places: Sequence[Place], *, wait_ms: int) -> None:
        if not places:
            return
        by_id = {self._ground.answers.asked[place]: place for place in places}
        call = WaitResultsCall(NAMESPACE, self.queue, tuple(by_id), wait_ms)
        ended = await self.call("wait", lambda core: core.service.wait_results(call), again=True)
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("a wait for results", ended)
            return
        for partition, item in ended.result.items:
            self._ground.answers.answered(by_id[partition, item.seq], item)


class Watching(Program):
    """Peeks at scheduled items."""

    async def act(self) -> None:
        ended = await self.call("peek", _scheduled(self.queue), again=True)
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("a peek", ended)
            return
        page: PeekedPage = ended.result
        for _, _, item in page.items:
            [reference] = references_in(item.item)
            is_scheduled = item.state == RowState.SCHEDULED
            self._ground.tries.peeked(reference, is_scheduled=is_scheduled)


def _scheduled(queue: str) -> Any:
    return lambda core: core.admin.peek_items(NAMESPACE, queue, RowState.SCHEDULED, PAGE_ITEMS, "")


def consumer(seed: int) -> type[Failing]:
    """The kind of consumer in this seed."""
    return random.Random(f"retried consumer {seed}").choice((Failing, FailingStream))
