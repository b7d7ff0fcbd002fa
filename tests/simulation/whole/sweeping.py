"""Programs at a queue that an operator purges. It also cancels items, and drops dead letters.

    an item that was acknowledged before a purge began is not delivered after the purge, and is not
    there at the end (in seeds without consumers, because leased items stay)
    an item whose produce began after the first answer of a purge is not removed by its later steps
    a cancelled item, or a dropped letter, is not delivered after the answer
    a filter of dead letters chooses no letter of another reason

Some items expire, and become dead letters. A purge makes one step at a time here, so that others
produce between its steps.
"""

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from querator.model.calls import (
    CancelCall,
    CancelReply,
    PeekedPage,
    ProducedBatch,
    PurgeCall,
    PurgeReply,
)
from querator.model.commands import ItemSpecial, LetterFilter
from querator.model.errors import ErrorCode
from querator.node_core import NodeCore
from querator.partition.rows import DeadCause
from tests.simulation.whole.ledger import Ledger
from tests.simulation.whole.programs import NAMESPACE, Ended, Producing, Program, references_in

QUEUE = "swept"
DEAD = "swept.dead"
EXPIRE_MS = 1_000
PAGE_ITEMS = 20
CHOSEN = (1, 3, 8)
PAUSES_S = (0.0, 0.1, 0.6)
EXPIRED = LetterFilter((DeadCause.EXPIRED,))
REJECTED = LetterFilter((DeadCause.REJECTED,))
"""No letter of the queue has this reason."""


class _Purge(NamedTuple):
    began_us: int
    answered_us: int | None
    """When its first call was answered; None: it is not, or an attempt at it may be executed late.
    """


class Sweeps:
    """Decides which items a purge must have removed, and which ones it may have."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.consumed = False
        """Whether the queue has a consumer. Then no item is certain to wait."""
        self._stored: dict[str, tuple[int, int]] = {}
        """Reference to (begin of its produce, instant of the answer)."""
        self._dying: set[str] = set()
        """Items that expire: they may be on their way when a purge begins."""
        self._purges: list[_Purge] = []

    def stored(self, references: Sequence[str], begun_us: int, now_us: int) -> None:
        self._stored.update(dict.fromkeys(references, (begun_us, now_us)))
        if any(self._may_reach(purge, begun_us) for purge in self._purges):
            self._ledger.perhaps_cancelled(references)

    def expires(self, references: Sequence[str]) -> None:
        """The operator may drop these items when they are dead letters."""
        self._dying.update(references)
        self._ledger.perhaps_cancelled(references)

    def _may_reach(self, purge: _Purge, begun_us: int) -> bool:
        return purge.answered_us is None or begun_us <= purge.answered_us

    def purging(self, now_us: int) -> None:
        """A purge begins. Until its first call is answered, it may remove what is produced."""
        self._purges.append(_Purge(now_us, None))
        self._ledger.perhaps_cancelled(self._stored)

    def answered(self, now_us: int, *, certain: bool) -> None:
        """Its first call is answered; `certain`: no other attempt can be executed later."""
        began_us, _ = self._purges.pop()
        self._purges.append(_Purge(began_us, now_us if certain else None))

    def purged(self, now_us: int) -> None:
        """All is done."""
        began_us, _ = self._purges[-1]
        if not self.consumed:
            self._ledger.cancelled(
                now_us,
                (
                    reference
                    for reference, (_, stored_us) in self._stored.items()
                    if stored_us < began_us and reference not in self._dying
                ),
            )


class Placing(Producing):
    """Produces items that are ready, that are scheduled, and that expire."""

    delays_ms = (300, 1_500, 3_000)

    def _delays_now(self) -> bool:
        return self._chance.random() < 0.3

    def _specials(self, references: Sequence[str], at_ms: int) -> tuple[ItemSpecial, ...]:
        if at_ms or self._chance.random() < 0.7:
            return super()._specials(references, at_ms)
        self._ground.sweeps.expires(references)
        return tuple(ItemSpecial(n, expire_timeout_ms=EXPIRE_MS) for n in range(len(references)))

    def stored(
        self,
        references: Sequence[str],
        begun_us: int,
        at_ms: int,
        batches: Sequence[ProducedBatch],
    ) -> None:
        self._ground.sweeps.stored(references, begun_us, self._ground.timeline.now_us)


class Sweeping(Program):
    """The operator."""

    async def act(self) -> None:
        kind = self._chance.random()
        if kind < 0.35:
            await self._purge(QUEUE)
        elif kind < 0.65:
            await self._cancel()
        elif kind < 0.8:
            await self._drop_some()
        elif kind < 0.9:
            await self._drop_chosen()
        elif kind < 0.95:
            await self._redrive()
        else:
            await self._purge(DEAD)

    async def _purge(self, queue: str) -> None:
        ground = self._ground
        if queue == QUEUE:
            ground.sweeps.purging(ground.timeline.now_us)
        token, first = "", True
        while first or token:
            ended = await self.call(
                "purge", partial(_purge_step, PurgeCall(NAMESPACE, queue, page_token=token)),
                again=True,
            )  # fmt: skip
            if ended.result is None:
                self._refused("a purge", ended)
                return
            reply: PurgeReply = ended.result
            token = reply.next_page_token
            if first and queue == QUEUE:
                ground.sweeps.answered(ground.timeline.now_us, certain=ended.tries == 1)
            first = False
            # Others produce between the steps.
            await asyncio.sleep(self._chance.choice(PAUSES_S))
        if queue == QUEUE:
            ground.sweeps.purged(ground.timeline.now_us)

    async def _cancel(self) -> None:
        ended = await self.call(
            "peek",
            lambda core: core.admin.peek_items(NAMESPACE, QUEUE, 0, PAGE_ITEMS, ""),
            again=True,
        )
        chosen = self._chosen(ended)
        if not chosen:
            return
        call = CancelCall(NAMESPACE, QUEUE, tuple(chosen))
        ended = await self.call("cancel", lambda core: core.admin.changes.cancel(call), again=True)
        reply: CancelReply | None = ended.result
        ledger = self._ground.ledger
        if reply is None or ended.tries > 1:
            ledger.perhaps_cancelled(chosen.values())
        if reply is None:
            self._refused("a cancel", ended)
            return
        # A node repeats the command when the answer of another one is lost.
        ledger.perhaps_cancelled(chosen[item_id] for item_id in reply.not_waiting)
        gone = [chosen[item_id] for item_id in chosen if item_id not in reply.not_waiting]
        ledger.cancelled(self._ground.timeline.now_us, gone)

    async def _drop_some(self) -> None:
        ended = await self.call(
            "list letters",
            lambda core: core.admin.list_dead_letters(NAMESPACE, QUEUE, PAGE_ITEMS, ""),
            again=True,
        )
        chosen = self._chosen(ended)
        if not chosen:
            return
        self._ground.ledger.perhaps_cancelled(chosen.values())
        ended = await self.call(
            "drop",
            lambda core: core.admin.drop_dead_letters(NAMESPACE, QUEUE, tuple(chosen)),
            again=True,
        )
        if ended.result == len(chosen):
            self._ground.ledger.cancelled(self._ground.timeline.now_us, chosen.values())
        self._refused("a drop", ended)

    async def _drop_chosen(self) -> None:
        wrong = self._chance.random() < 0.5
        dry_run = self._chance.random() < 0.3
        chosen = REJECTED if wrong else EXPIRED
        ended = await self.call(
            "drop by a filter",
            lambda core: core.admin.drop_dead_letters(
                NAMESPACE, QUEUE, (), chosen, dry_run=dry_run
            ),
            again=True,
        )
        self._refused("a drop by a filter", ended)
        if wrong and ended.result:
            self._ground.found(f"{self.name}: {ended.result} letters of another reason are dropped")

    async def _redrive(self) -> None:
        chosen = self._chance.choice((EXPIRED, REJECTED))
        ended = await self.call(
            "redrive",
            lambda core: core.admin.redrive_dead_letters(NAMESPACE, QUEUE, (), chosen),
            again=True,
        )
        self._refused("a redrive", ended)
        if chosen is REJECTED and ended.result:
            self._ground.found(
                f"{self.name}: {ended.result} letters of another reason are redriven"
            )

    def _chosen(self, ended: Ended) -> dict[str, str]:
        """Some items of a page: id to reference."""
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("a list", ended)
            return {}
        page: PeekedPage = ended.result
        found = {
            f"{partition}-{item.seq}": references_in(item.item)[0]
            for _, partition, item in page.items
        }
        most = min(len(found), self._chance.choice(CHOSEN))
        return {item_id: found[item_id] for item_id in self._chance.sample(sorted(found), most)}

    def _refused(self, what: str, ended: Ended) -> None:
        """A partition may have left the queue since the list."""
        if ended.error is not None and ended.error.code is not ErrorCode.INVALID_ARGUMENT:
            self.unexpected(what, ended)


async def _purge_step(call: PurgeCall, core: NodeCore) -> PurgeReply:
    core.admin.purging.commands_max = 1
    return await core.admin.purging.purge(call)


def has_consumer(seed: int) -> bool:
    """Whether the queue has a consumer while there are faults."""
    return random.Random(f"sweeping consumed {seed}").random() < 0.4


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"sweeping resized {seed}").random() < 0.3
