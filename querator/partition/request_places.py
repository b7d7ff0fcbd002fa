"""Which items of a keyed request are stored where.

A keyed request is cut: each partition gets the items of its slots as one part, under the identity
of the whole request. When the number of partitions changes, the cut changes, too. A repeat may then
bring items together of which some are stored, here or in another partition. Items of one slot
always go together, so a partition remembers a part by slot: (slot, partition, sequence) for each
item. The n-th item of a slot in a repeat is the n-th stored item of that slot.
"""

from collections import defaultdict
from collections.abc import Iterable
from struct import unpack

from querator.model.commands import KeyedPlace, Produce, ProduceResult
from querator.partition.apply_context import ApplyContext
from querator.partition.rows import ProduceMode, ProducerOutcome, decode_outcome
from querator.storage.tables import PRODUCER_OUTCOMES


def slots_of(slots: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(slots) >> 1}H", slots)


def slot_at(slots: bytes, ordinal: int) -> int:
    return int.from_bytes(slots[ordinal * 2 : ordinal * 2 + 2], "little")


def places_of(outcome: ProducerOutcome, own: int) -> tuple[KeyedPlace, ...]:
    """The places of all items of a request that the partition with the number `own` remembers. The
    items of each slot are in their order.
    """
    twins = {twin[0]: twin[1:] for twin in outcome.duplicates}
    here = []
    for ordinal, slot in enumerate(slots_of(outcome.slots)):
        seq, *partition = twins.get(ordinal, (outcome.first_seq + ordinal,))
        here.append(KeyedPlace(slot, partition[0] if partition else own, seq))
    return (*here, *outcome.elsewhere)


def merged(places: Iterable[KeyedPlace], more: Iterable[KeyedPlace]) -> tuple[KeyedPlace, ...]:
    """`places`, and those of `more` whose slots are not among them."""
    first = tuple(places)
    slots = {place.slot for place in first}
    return first + tuple(place for place in more if place.slot not in slots)


def repeated(outcome: ProducerOutcome, command: Produce, own: int) -> ProduceResult | None:
    """The answer to a repeat. None if not all of its items are stored."""
    if outcome.slots == command.slots:
        return ProduceResult(
            outcome.first_seq,
            outcome.count,
            True,
            outcome.duplicates,
            replaced=outcome.replaced,
        )
    twins = _twins(outcome, command.slots, own)
    count = len(command.lengths) >> 2
    return ProduceResult(0, count, True, twins) if len(twins) == count else None


def stored(context: ApplyContext, command: Produce) -> tuple[tuple[int, ...], ...]:
    """The items of a command that are already stored under its identity, as duplicates."""
    known = PRODUCER_OUTCOMES.get(context.txn, context.group, command.producer_id, command.sequence)
    if known is None:
        return ()
    return _twins(decode_outcome(known), command.slots, context.queue.partition)


def _twins(outcome: ProducerOutcome, slots: bytes, own: int) -> tuple[tuple[int, ...], ...]:
    if outcome.mode != ProduceMode.KEYED:
        return ()
    by_slot: dict[int, list[KeyedPlace]] = defaultdict(list)
    for place in places_of(outcome, own):
        by_slot[place.slot].append(place)
    seen: dict[int, int] = defaultdict(int)
    twins: list[tuple[int, ...]] = []
    for ordinal, slot in enumerate(slots_of(slots)):
        there = by_slot.get(slot)
        if there is None:
            continue
        # A repeat with more items of a slot than are stored gets the last one for the surplus.
        place = there[min(seen[slot], len(there) - 1)]
        seen[slot] += 1
        twin = (ordinal, place.seq)
        twins.append(twin if place.partition == own else (*twin, place.partition))
    return tuple(twins)
