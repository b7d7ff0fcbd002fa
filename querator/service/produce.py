"""Produce requests and the partitions that take them.

    producer_id, ordered      one partition by hash(producer_id): it sees every sequence, so that
                              "only the last one + 1" (SEQUENCE_GAP) holds for the whole queue
    producer_id, unordered    (hash(producer_id) + sequence) mod n: all partitions in turn
    neither                   any partition (`spread`)
    dedup_key                 the partition of the key's slot, whoever produces it

A request whose items belong to several partitions is cut into one part for each; a part is a run of
byte slices, no item is parsed. Every part inherits the request's identity: each partition
remembers its own part, and a repeat is cut in the same way and meets the first answers. Items
without a key go where the request would go without keys. An ordered producer cannot be served so:
a partition that gets no part of one request would see a gap, hence such a request is refused unless
the queue has one partition.

Parts are taken or refused each for itself. When one is refused and another stored, the call fails,
and says so: a repeat with the same identity (or the same dedup keys) stores what is missing and
nothing twice.
"""

import struct

import msgspec

from querator.model.calls import ProduceCall, ProducedBatch
from querator.model.commands import ItemSpecial, Produce, ProduceResult
from querator.model.errors import ErrorCode, QueratorError, invalid
from querator.model.routing import partition_of_key, partition_of_producer


class Part(msgspec.Struct, frozen=True):
    """What one partition gets. `indexes` are positions in the request; empty: all of it."""

    partition: int
    indexes: tuple[int, ...]
    command: Produce
    items: bytes


def identified_partition(call: ProduceCall, partitions: int) -> int | None:
    """Where a request goes by its producer; None: anywhere."""
    if not call.producer_id:
        return None
    if partitions == 1:
        return 0
    return partition_of_producer(
        call.producer_id, call.sequence, ordered=call.ordered, partitions=partitions
    )


def is_keyed(call: ProduceCall) -> bool:
    return any(special.dedup_key for special in call.specials)


def whole(call: ProduceCall, partition: int) -> Part:
    command = Produce(call.lengths, call.producer_id, call.sequence, call.ordered, call.specials)
    return Part(partition, (), command, call.items)


def cut(call: ProduceCall, *, home: int, partitions: int) -> list[Part]:
    """The parts of a request with dedup keys, by partition; `home` takes the items without."""
    if partitions == 1:
        return [whole(call, 0)]
    if call.ordered:
        raise invalid(
            "ordered",
            f"cannot be combined with dedup_key in a queue of {partitions} partitions: keys decide "
            "on the partition, and order is kept in one partition; use ordered=false",
        )
    lengths = struct.unpack(f"<{len(call.lengths) // 4}I", call.lengths)
    placed = [home] * len(lengths)
    for special in call.specials:
        if special.dedup_key:
            placed[special.ordinal] = partition_of_key(special.dedup_key, partitions)
    targets = sorted(set(placed))
    if len(targets) == 1:
        return [whole(call, targets[0])]
    members: dict[int, list[int]] = {target: [] for target in targets}
    for position, target in enumerate(placed):
        members[target].append(position)
    stops = _stops(lengths)
    specials = {special.ordinal: special for special in call.specials}
    return [
        _part(call, target, positions, lengths, stops, specials)
        for target, positions in members.items()
    ]


def _stops(lengths: tuple[int, ...]) -> list[int]:
    stops = []
    total = 0
    for length in lengths:
        total += length
        stops.append(total)
    return stops


def _part(
    call: ProduceCall,
    partition: int,
    positions: list[int],
    lengths: tuple[int, ...],
    stops: list[int],
    specials: dict[int, ItemSpecial],
) -> Part:
    items = b"".join(call.items[stops[p] - lengths[p] : stops[p]] for p in positions)
    command = Produce(
        struct.pack(f"<{len(positions)}I", *(lengths[position] for position in positions)),
        call.producer_id,
        call.sequence,
        call.ordered,
        tuple(
            msgspec.structs.replace(specials[position], ordinal=ordinal)
            for ordinal, position in enumerate(positions)
            if position in specials
        ),
    )
    return Part(partition, tuple(positions), command, items)


def batch_of(part: Part, result: ProduceResult) -> ProducedBatch:
    """The partition's answer in terms of the request."""
    if not result.duplicates:
        return ProducedBatch(
            part.partition, result.first_seq, result.count, part.indexes, result.repeated
        )
    duplicates = tuple(
        (part.indexes[position] if part.indexes else position, part.partition, seq)
        for position, seq in result.duplicates
    )
    return ProducedBatch(
        part.partition, result.first_seq, result.count, part.indexes, result.repeated, duplicates
    )


_NOT_EXECUTED = frozenset(
    {
        ErrorCode.NOT_LEADER,
        ErrorCode.UNAVAILABLE,
        ErrorCode.OVERLOADED,
        ErrorCode.DEADLINE_EXCEEDED,
    }
)


def merged_error(errors: list[QueratorError], *, stored: bool) -> QueratorError:
    """The one error of a request of which parts failed; `stored`: another part was stored.

    What a client may conclude must hold for the whole request: "not executed" is said only when no
    part was stored, an unknown outcome wins over everything.
    """
    for error in errors:
        if error.code is ErrorCode.OUTCOME_UNKNOWN:
            return error
    error = errors[0]
    if not stored:
        return error
    code = ErrorCode.OUTCOME_UNKNOWN if error.code in _NOT_EXECUTED else error.code
    return QueratorError(
        code,
        f"{error.message} (other items of the request are stored: repeat it as it is)",
        field=error.field,
        limit=error.limit,
        value=error.value,
        retry_delay_ms=error.retry_delay_ms,
    )
