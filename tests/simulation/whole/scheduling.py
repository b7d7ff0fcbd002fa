"""Programs at a queue whose items are scheduled: an operator lists, moves, runs and cancels them.

a cancelled item is not delivered after the answer (the ledger), and no other one is lost
a moved item is not delivered before its time, and lists show it (`plans`)
the pages of a list go forward in the order of (due time, partition, sequence)
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from querator.model.calls import LeasedRun, PeekedPage, ProducedBatch
from querator.model.errors import ErrorCode
from querator.model.schedule_calls import (
    CountScheduledCall,
    DueFilter,
    ListScheduledCall,
    RescheduleCall,
)
from querator.node_core import NodeCore
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS
from tests.simulation.whole.programs import (
    NAMESPACE,
    Consuming,
    Ended,
    Held,
    Producing,
    Program,
    references_in,
)

QUEUE = "due"
PAGE_ITEMS = 4
PAGES_MAX = 500
"""More pages mean a list that does not go forward."""
MOVES_MS = (300, 1_000, 2_500)


class Planning(Producing):
    """Produces items for later."""

    delays_ms = (300, 1_500, 3_000)

    def _delays_now(self) -> bool:
        return True

    def stored(
        self,
        references: Sequence[str],
        begun_us: int,
        at_ms: int,
        batches: Sequence[ProducedBatch],
    ) -> None:
        now_us = self._ground.timeline.now_us
        self._ground.plans.produced(references, begun_us, now_us, at_ms)


class Working(Consuming):
    """Consumes, and retries some items for later."""

    later_ms = (500, 1_500)

    def takes(self, asked_us: int, batches: Sequence[LeasedRun]) -> dict[str, Held]:
        leases = super().takes(asked_us, batches)
        for held in leases.values():
            now_us = self._ground.timeline.now_us
            self._ground.plans.delivered(asked_us, now_us, held.values())
        return leases


class _Listed(NamedTuple):
    due_ms: int
    partition: int
    seq: int
    reference: str

    @property
    def id(self) -> str:
        return f"{self.partition}-{self.seq}"


class Rescheduling(Program):
    """The operator."""

    async def act(self) -> None:
        listed = await self._list()
        if listed is None:
            return
        kind = self._chance.random()
        if kind < 0.1:
            await self._count()
        elif not listed:
            return
        elif kind < 0.3:
            await self._change_span(listed)
        else:
            most = min(len(listed), self._chance.choice((1, 3, 8)))
            await self._change_some(self._chance.sample(listed, most))

    def _now_ms(self) -> int:
        return EPOCH_MS + self._ground.timeline.now_us // MS

    async def _list(self) -> list[_Listed] | None:
        """The scheduled items; None when no whole list was answered."""
        begun_us = self._ground.timeline.now_us
        listed: list[_Listed] = []
        token = ""
        for _ in range(PAGES_MAX):
            call = ListScheduledCall(NAMESPACE, self.queue, page_size=PAGE_ITEMS, page_token=token)
            ended = await self.call("list", partial(_page, call), again=True)
            if ended.result is None:
                if ended.error is not None:
                    self.unexpected("a list", ended)
                return None
            page: PeekedPage = ended.result
            for _, partition, item in page.items:
                [reference] = references_in(item.item)
                one = _Listed(item.due_at_ms, partition, item.seq, reference)
                if listed and one[:3] <= listed[-1][:3]:
                    self._ground.found(f"{self.name}: {one} is listed after {listed[-1]}")
                listed.append(one)
            token = page.next_page_token
            if not token:
                found = {one.reference: one.due_ms for one in listed}
                self._ground.plans.listed(begun_us, self._ground.timeline.now_us, found)
                return listed
        self._ground.found(f"{self.name}: a list has no end")
        return None

    async def _count(self) -> None:
        call = CountScheduledCall(NAMESPACE, self.queue, interval_ms=1_000)
        ended = await self.call(
            "count", lambda core: core.admin.schedules.count_items(call), again=True
        )
        if ended.error is not None:
            self.unexpected("a count", ended)

    async def _change_some(self, chosen: list[_Listed]) -> None:
        kind = self._chance.choice(("move", "move", "run", "cancel"))
        due_ms = self._now_ms() + self._chance.choice(MOVES_MS) if kind == "move" else 0
        call = RescheduleCall(
            NAMESPACE,
            self.queue,
            item_ids=tuple(one.id for one in chosen),
            due_at_ms=due_ms,
            cancel=kind == "cancel",
        )
        references = {one.id: one.reference for one in chosen}
        ground = self._ground
        ground.plans.touching(references.values())
        ended = await self.call(
            kind, lambda core: core.admin.schedules.reschedule(call), again=True
        )
        if kind == "cancel" and (ended.result is None or ended.tries > 1):
            ground.ledger.perhaps_cancelled(references.values())
        if ended.result is None:
            self._refused(ended)
            return
        missing = ended.result.not_scheduled
        if kind == "cancel":
            # A node repeats the command when the answer of another one is lost. The first attempt
            # may have cancelled what the second one no longer finds.
            ground.ledger.perhaps_cancelled(references[item_id] for item_id in missing)
        done = [reference for item_id, reference in references.items() if item_id not in missing]
        now_us = ground.timeline.now_us
        if kind == "cancel":
            ground.ledger.cancelled(now_us, done)
        elif kind == "move" and ended.tries == 1:
            ground.plans.moved(done, now_us, due_ms)

    async def _change_span(self, listed: list[_Listed]) -> None:
        first, last = sorted(self._chance.choices(listed, k=2))
        due = DueFilter(first.due_ms, last.due_ms + 1)
        due_ms = self._now_ms() + self._chance.choice(MOVES_MS)
        if self._chance.random() < 0.5:
            due_ms = 0
        call = RescheduleCall(NAMESPACE, self.queue, due=due, due_at_ms=due_ms)
        plans = self._ground.plans
        plans.filtering(self._ground.timeline.now_us, due.from_ms, due.until_ms)
        ended = await self.call(
            "change a span", lambda core: core.admin.schedules.reschedule(call), again=True
        )
        certain = ended.result is not None and ended.tries == 1
        plans.filtered(self._ground.timeline.now_us, certain=certain)
        if ended.result is None:
            self._refused(ended)

    def _refused(self, ended: Ended) -> None:
        """A partition may have left the queue since the list."""
        if ended.error is not None and ended.error.code is not ErrorCode.INVALID_ARGUMENT:
            self.unexpected("a change", ended)


async def _page(call: ListScheduledCall, core: NodeCore) -> PeekedPage:
    return await core.admin.schedules.list_items(call)


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"schedules resized {seed}").random() < 0.3
