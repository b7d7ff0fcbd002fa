"""Programs at queues that produce follow-ups for each other. What they see goes to `chains`, which
has the rules.

    chained ──► chained (the same partition, or another by a key)
       │ ▲
       ▼ │ one follow-up for each item
    chained.next       small in some seeds: what comes for it waits in the outbox of `chained`
    chained.going      comes and goes; its follow-ups die into chained.dead, and are redriven

Consumers complete and retry with follow-ups. They send some calls twice, and some when their lease
has lapsed, or when they have given the items back.
"""

import asyncio
import random
from collections.abc import Sequence
from struct import pack
from typing import Any

import msgspec

from querator.model.calls import CompleteCall, FollowUpItems, LeasedRanges, RetryCall, SettleReply
from querator.model.commands import NO_SLOT, ItemSpecial
from querator.model.errors import ErrorCode
from querator.model.queues import QueueSettings
from querator.model.routing import slot_of_key
from querator.node_core import NodeCore
from tests.checkers import history
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS
from tests.simulation.whole import winding
from tests.simulation.whole.programs import NAMESPACE, Consuming, Ended, Held, Program, wire_item

QUEUE = "chained"
NEXT = "chained.next"
GOING = "chained.going"
DEAD = "chained.dead"
QUEUES = (QUEUE, NEXT, GOING, DEAD)
MAX_ATTEMPTS = 3
LINKS_MAX = 3
"""An item has follow-ups if it is at most the number LINKS_MAX of its chain."""
SMALL = 6
KEYS = (b"", b"", b"k1", b"k2", b"k3")
LAPSED_S = 1.5

_GONE = frozenset({ErrorCode.QUEUE_NOT_FOUND, ErrorCode.QUEUE_DELETING})
_REFUSALS = _GONE | {ErrorCode.QUEUE_FULL}
"""Each of them says that nothing was settled."""


def settings_of_next(seed: int) -> dict[str, Any]:
    """The settings of the second queue in this seed."""
    small = random.Random(f"chained small {seed}").random() < 0.5
    return {"partition_items_max": SMALL} if small else {}


def changes_partitions(seed: int, name: str) -> bool:
    return random.Random(f"{name} resized {seed}").random() < 0.35


def link_of(reference: str) -> int:
    """The number of an item in its chain; the first is 0."""
    _, _, link = reference.partition("~")
    return int(link or "0")


class Chaining(Consuming):
    """Settles most items with follow-ups."""

    most = (1, 1, 3, 8)
    rejects = 0.1
    _number = 0

    async def use(self, lease_id: str, held: Held) -> None:
        kind = self._chance.random()
        if kind < 0.06:
            await asyncio.sleep(LAPSED_S)
        elif kind < 0.2:
            # The items are held no more: nothing may come of the call.
            await self.retry(lease_id, held)
        if kind < 0.5:
            await self._follow(lease_id, held)
        elif kind < 0.65 and len(held) > 1:
            items = list(held.items())
            await self._follow(lease_id, dict(items[::2]))
            await self._follow(lease_id, dict(items[1::2]))
        elif kind < 0.8:
            await self._follow(lease_id, held, retry=True)
        else:
            await super().use(lease_id, held)

    async def complete(self, lease_id: str, held: Held) -> None:
        self._ground.chains.completes_otherwise(held.values())
        await super().complete(lease_id, held)

    async def _follow(self, lease_id: str, held: Held, *, retry: bool = False) -> None:
        link = max(map(link_of, held.values()))
        if link >= LINKS_MAX:
            await self.complete(lease_id, held)
            return
        self._number += 1
        name = f"{self.name}#{self._number}"
        # A chain that goes in a circle must not grow.
        count = self._chance.randint(1, len(held) if self.queue != QUEUE or retry else 3)
        references = [f"{name}.{n}~{link + 1}" for n in range(count)]
        targets = [self._target() for _ in references]
        self._ground.chains.settling(
            name,
            held.values(),
            references,
            completes=not retry,
            passing=[one for one, to in zip(references, targets, strict=True) if to == GOING],
        )
        groups = tuple(
            self._items(
                [one for one, to in zip(references, targets, strict=True) if to == queue], queue
            )
            for queue in dict.fromkeys(targets)
        )
        call = self._call_of(lease_id, held, groups, retry=retry)
        ended = await self.call("follow-ups", lambda core: self._send(core, call), again=True)
        self._ended(name, held, ended, retry=retry)
        if self._chance.random() < 0.3 and ended.result is not None:
            # As if the answer had been lost.
            again = await self.call("again", lambda core: self._send(core, call), again=True)
            self._ended(name, held, again, retry=retry, repeats=True)

    def _target(self) -> str:
        others = (QUEUE,) if self.queue != QUEUE else (QUEUE, NEXT, NEXT, GOING)
        return self._chance.choice(others)

    def _items(self, references: Sequence[str], queue: str) -> FollowUpItems:
        keys = [self._chance.choice(KEYS) for _ in references]
        items = [
            wire_item(one.encode(), key=key) for one, key in zip(references, keys, strict=True)
        ]
        now_ms = EPOCH_MS + self._ground.timeline.now_us // MS
        specials = []
        for n, reference in enumerate(references):
            at_ms = now_ms + 400 if self._chance.random() < 0.15 else 0
            dedup = reference.encode() if self._chance.random() < 0.3 else b""
            priority = self._chance.choice((0, 0, 0, -3, 2))
            if at_ms or dedup or priority:
                specials.append(
                    ItemSpecial(n, enqueue_at_ms=at_ms, dedup_key=dedup, priority=priority)
                )
        by_dedup = {special.ordinal: special.dedup_key for special in specials}
        slots = [
            slot_of_key(key or by_dedup.get(n, b"")) if key or by_dedup.get(n) else NO_SLOT
            for n, key in enumerate(keys)
        ]
        return FollowUpItems(
            queue,
            b"".join(items),
            pack(f"<{len(items)}I", *map(len, items)),
            tuple(specials),
            pack(f"<{len(slots)}H", *slots) if any(one != NO_SLOT for one in slots) else b"",
        )

    def _call_of(
        self, lease_id: str, held: Held, groups: tuple[FollowUpItems, ...], *, retry: bool
    ) -> CompleteCall | RetryCall:
        leases = (LeasedRanges(lease_id, history.ranges(list(held))),)
        if not retry:
            return CompleteCall(
                NAMESPACE, self.queue, leases, all_or_nothing=True, follow_ups=groups
            )
        call = RetryCall(NAMESPACE, self.queue, leases, all_or_nothing=True, follow_ups=groups)
        return msgspec.structs.replace(call, dead=self._chance.random() < self.rejects)

    async def _send(self, core: NodeCore, call: CompleteCall | RetryCall) -> SettleReply:
        if isinstance(call, RetryCall):
            return await core.service.retry(call)
        return await self.completing(core, call)

    def _ended(
        self, name: str, held: Held, ended: Ended, *, retry: bool, repeats: bool = False
    ) -> None:
        chains, ledger = self._ground.chains, self._ground.ledger
        if ended.result is not None and ended.result.outcomes[0].error in _KNOWN:
            [outcome] = ended.result.outcomes
            done = history.spread(outcome.done)
            repeated = history.spread(outcome.repeated)
            if repeats:
                if done:
                    self._ground.found(f"{name}: was executed twice")
                return
            chains.settled(name, items=len([*done, *repeated]))
            if not retry:
                now_us = self._ground.timeline.now_us
                ledger.completed(now_us, [held[seq] for seq in (*done, *repeated)])
        elif not repeats and ended.error is not None and not ended.unknown:
            if ended.error.code not in _REFUSALS:
                self.unexpected("follow-ups", ended)
            chains.settled(name, items=0)
        elif not repeats and not retry:
            ledger.perhaps_completed(held.values())


_KNOWN = (None, ErrorCode.LEASE_LOST)


class ChainingNext(Chaining):
    """At the queue without a dead queue, which drops what is rejected."""

    rejects = 0.0


class Passed(Consuming):
    """Consumes a queue that comes and goes."""

    def unexpected(self, what: str, ended: Ended) -> None:
        if ended.error is None or ended.error.code not in _GONE:
            super().unexpected(what, ended)


class Redriving(winding.Redriving):
    """Redrives letters, also for a queue that comes and goes."""

    def unexpected(self, what: str, ended: Ended) -> None:
        if ended.error is None or ended.error.code not in _GONE:
            super().unexpected(what, ended)


class Going(Program):
    """Makes and deletes the queue."""

    _there = False

    async def act(self) -> None:
        if self._there:
            await self.finish()
            return
        settings = QueueSettings(partitions=self._chance.choice((1, 2)), dead_queue=DEAD)
        ended = await self.call(
            "create",
            lambda core: core.admin.create_queue(NAMESPACE, self.queue, settings),
            again=True,
        )
        self._there = True
        if ended.error is not None and ended.error.code is not ErrorCode.QUEUE_DELETING:
            self.unexpected("a create", ended)

    async def finish(self) -> None:
        """Deletes the queue, which may be there."""
        ended = await self.call(
            "delete", lambda core: core.admin.delete_queue(NAMESPACE, self.queue), again=True
        )
        self._there = ended.gave_up
        if ended.error is not None and ended.error.code not in _GONE:
            self.unexpected("a delete", ended)
