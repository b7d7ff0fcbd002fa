"""Programs at a queue whose dedup keys count until their items are done, and whose items replace
each other. What they see goes to `uniques`, which has the rules.

The keys of a producer are used for a while, and then others: a key whose items have no known fate
is of no use to the checker.
"""

from collections.abc import Sequence
from typing import Any

from querator.model.calls import PeekedPage, ProducedBatch
from querator.model.commands import ItemSpecial
from querator.model.item_options import OnDuplicate
from querator.model.routing import slot_of_key
from querator.partition.rows import RowState
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS
from tests.simulation.whole.programs import (
    NAMESPACE,
    Consuming,
    Held,
    Producing,
    Program,
    references_in,
)
from tests.simulation.whole.uniques import QUEUE, Wish

KEYS = 4
REQUESTS_OF_A_KEY = 12
MOST_MS = 2_000
DELAYS_MS = (500, 1_500, 6_000)
PAGE_ITEMS = 30
_TAKING = (OnDuplicate.KEEP, OnDuplicate.REPLACE, OnDuplicate.BUMP, OnDuplicate.BUMP)


class Asking(Producing):
    """Produces items with few keys. Of half of the keys all items say KEEP."""

    counts = (1, 1, 2, 3)
    _requests = 0
    _wishes: tuple[Wish, ...] = ()

    def _specials(self, references: Sequence[str], at_ms: int) -> tuple[ItemSpecial, ...]:
        self._requests += 1
        turn = self._requests // REQUESTS_OF_A_KEY
        numbers = [self._chance.randrange(KEYS) for _ in references]
        self._wishes = tuple(
            Wish(
                f"{self.name}.{turn}.{number}",
                self._chance.choice(_TAKING) if number % 2 else OnDuplicate.KEEP,
                MOST_MS,
            )
            for number in numbers
        )
        now_us = self._ground.timeline.now_us
        self._ground.uniques.asking(self.name, references, self._wishes, now_us)
        now_ms = EPOCH_MS + now_us // MS
        return tuple(
            ItemSpecial(
                ordinal,
                now_ms + self._chance.choice(DELAYS_MS) if wish.what is OnDuplicate.BUMP else 0,
                dedup_key=wish.key.encode(),
                on_duplicate=wish.what,
                debounce_max_ms=MOST_MS if wish.what is OnDuplicate.BUMP else 0,
            )
            for ordinal, wish in enumerate(self._wishes)
        )

    def _slots(self, count: int) -> bytes:
        slots = [slot_of_key(wish.key.encode()) for wish in self._wishes]
        return b"".join(slot.to_bytes(2, "little") for slot in slots)

    def stored(
        self,
        references: Sequence[str],
        begun_us: int,
        at_ms: int,
        batches: Sequence[ProducedBatch],
    ) -> None:
        duplicates = [
            (index, (partition, seq))
            for batch in batches
            for index, partition, seq in batch.duplicates
        ]
        left_out = {index for index, _ in duplicates}
        self._ground.uniques.answered(
            self.name,
            self._ground.timeline.now_us,
            [
                (index, (batch.partition, batch.first_seq + n))
                for batch in batches
                for n, index in enumerate(batch.indexes or range(batch.count))
                if index not in left_out
            ],
            duplicates,
            [
                (index, (partition, seq))
                for batch in batches
                for index, partition, seq in batch.replaced
            ],
        )
        if any(batch.repeated for batch in batches) or left_out:
            # After a change of the number of partitions, a repeat names no replaced items. What was
            # stored by the first attempt is a duplicate then.
            for wish in self._wishes:
                if wish.what is not OnDuplicate.KEEP:
                    self._ground.uniques.doubt(wish.key)


class Working(Consuming):
    """Completes most of what it gets."""

    most = (1, 3, 8)

    async def complete(self, lease_id: str, held: Held) -> None:
        self._ground.uniques.completing(held.values(), self._ground.timeline.now_us)
        await super().complete(lease_id, held)


class Watching(Program):
    """Peeks at scheduled items."""

    async def act(self) -> None:
        ended = await self.call("peek", _peek_scheduled, again=True)
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("a peek", ended)
            return
        page: PeekedPage = ended.result
        for _, _, item in page.items:
            [reference] = references_in(item.item)
            if item.state == RowState.SCHEDULED:
                self._ground.uniques.scheduled(reference, item.due_at_ms)


def _peek_scheduled(core: Any) -> Any:
    return core.admin.peek_items(NAMESPACE, QUEUE, RowState.SCHEDULED, PAGE_ITEMS, "")
