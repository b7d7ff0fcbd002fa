"""Programs at a queue of which consumers choose items, by id, or by kind and attributes, and of
which some items are completed on delivery.

    a lease by id has only items that it names
    a lease by kind and attributes has only items of the kind with the attributes
    an item that was completed on delivery is never delivered again

What is lost with an answer is completed, or comes again: an item that a lost answer may have
completed on delivery may be gone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from querator.model.calls import ChosenItems, LeaseCall, LeasedRun, ProducedBatch
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PartitionNumber, Seq, format_item_id
from tests.simulation.whole.programs import (
    NAMESPACE,
    Consuming,
    Held,
    Producing,
    grant_of,
    wire_item,
)

QUEUE: Final = "chosen"
KINDS: Final = ("", "mail", "push")
SHADES: Final = ("dark", "light")
_SHADE: Final = "shade"
_KNOWN_MAX: Final = 200


@dataclass
class Choices:
    """Decides what a choice may deliver, and knows where items are stored."""

    found: list[str] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    """Acknowledged items that may be there, by id. The newest are last."""
    taken: int = 0
    """Items that choices have leased."""

    def delivered(self, chosen: ChosenItems, batches: Sequence[LeasedRun]) -> None:
        for batch in batches:
            for seq, reference in grant_of(batch).items:
                self.taken += 1
                place = _id(batch.partition, seq)
                if chosen.item_ids and place not in chosen.item_ids:
                    self.found.append(f"{place} came to a lease of {chosen.item_ids}")
                kind, shade = kind_of(reference), shade_of(reference)
                wrong_kind = chosen.kinds and kind not in chosen.kinds
                if wrong_kind or any(value != shade for _, value in chosen.attributes):
                    self.found.append(f"{reference}, a {shade} {kind}, came to a lease of {chosen}")


def _id(partition: int, seq: int) -> str:
    return format_item_id(PartitionNumber(partition), Seq(seq))


def kind_of(reference: str) -> str:
    return KINDS[int(reference.rpartition(".")[2]) % len(KINDS)]


def shade_of(reference: str) -> str:
    return SHADES[int(reference.rpartition(".")[2]) // len(KINDS) % len(SHADES)]


class Making(Producing):
    """Produces items of several kinds, with an attribute."""

    def _item(self, reference: str) -> bytes:
        padding = b" " * self._chance.randrange(self._item_bytes)
        return wire_item(
            reference.encode() + padding,
            kind=kind_of(reference).encode(),
            attribute=(_SHADE.encode(), shade_of(reference).encode()),
        )

    def stored(
        self,
        references: Sequence[str],
        begun_us: int,
        at_ms: int,
        batches: Sequence[ProducedBatch],
    ) -> None:
        known = self._ground.choices.stored
        for batch in batches:
            indexes = batch.indexes or range(batch.count)
            for number, index in enumerate(indexes):
                known[_id(batch.partition, batch.first_seq + number)] = references[index]
        while len(known) > _KNOWN_MAX:
            del known[next(iter(known))]


class Choosing(Consuming):
    """Chooses half of what it leases. Some of it is completed on delivery."""

    most = (1, 3, 10)
    later_ms = (0, 300)

    async def lease(self, most: int) -> dict[str, Held]:
        chosen = self._choice()
        completes = self._chance.random() < 0.2
        if chosen is None and not completes:
            return await super().lease(most)
        call = LeaseCall(
            NAMESPACE,
            self.queue,
            client_id=self.name,
            request_id="",
            max_items=most,
            max_bytes=0,
            lease_timeout_ms=self._chance.choice((1_000, 4_000)),
            wait_ms=0 if chosen else self._chance.choice(self.waits_ms),
            chosen=chosen,
            completes=completes,
        )
        asked_us = self._ground.timeline.now_us
        # A repeat would complete further items.
        ended = await self.call(
            "choice", lambda core: core.service.lease(call), again=not completes
        )
        if completes and (ended.result is None or ended.tries > 1):
            self._perhaps_completed(chosen)
        if ended.result is None:
            if ended.error is not None and not self._is_of_a_partition_that_is_gone(ended.error):
                self.unexpected("a choice", ended)
            return {}
        batches = ended.result.batches
        if chosen is not None:
            self._ground.choices.delivered(chosen, batches)
        leases = self.takes(asked_us, batches)
        if not completes:
            return leases
        now_us = self._ground.timeline.now_us
        for held in leases.values():
            self._ground.ledger.completed(now_us, held.values())
        return {}

    def _choice(self) -> ChosenItems | None:
        drawn = self._chance.random()
        known = self._ground.choices.stored
        if drawn < 0.3 and known:
            count = min(len(known), self._chance.randint(1, 4))
            return ChosenItems(item_ids=tuple(self._chance.sample(sorted(known), count)))
        if drawn < 0.6:
            kinds = tuple(self._chance.sample(KINDS, self._chance.randint(1, 2)))
            shades = tuple(self._chance.sample(SHADES, self._chance.randint(0, 1)))
            return ChosenItems(kinds=kinds, attributes=tuple((_SHADE, shade) for shade in shades))
        return None

    def _is_of_a_partition_that_is_gone(self, error: QueratorError) -> bool:
        queue = self._ground.queue(self.queue)
        return (
            error.code is ErrorCode.INVALID_ARGUMENT
            and queue is not None
            and int(error.value.partition("-")[0]) >= len(queue.groups)
        )

    def _perhaps_completed(self, chosen: ChosenItems | None) -> None:
        """Notes the items that a call without an answer may have completed."""
        ledger, known = self._ground.ledger, self._ground.choices.stored
        if chosen is not None and chosen.item_ids:
            ledger.perhaps_completed(known[place] for place in chosen.item_ids)
        else:
            ledger.perhaps_completed(one for one in ledger.possible if one.startswith(f"{QUEUE}."))


class Finishing(Choosing):
    """Completes all that it leases."""

    completes_all = True


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"choosing resized {seed}").random() < 0.5
