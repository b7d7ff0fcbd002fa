"""Assignment of produce requests to partitions.

    producer_id, ordered      one partition by hash(producer_id): it sees every sequence, so that
                              "only the last one + 1" (SEQUENCE_GAP) holds for the whole queue
    producer_id, unordered    (hash(producer_id) + sequence) mod n: all partitions in turn
    neither                   any partition (`chooser`)
    dedup_key, key            the partition of the key's slot, whatever the producer; of an item
                              with both the slot of `key`

A request whose items belong to several partitions is cut into one part per partition. A part is a
sequence of byte slices; no item is parsed. Every part inherits the request's identity. Each
partition remembers its own part; a repeat is cut in the same way and receives the first answers.
(When the partitions have changed meanwhile, the repeat determines for each item whether it is
stored: `partition.request_places`.) Items without a key go to the partition that the request would
take without keys. An ordered producer cannot be served in this way: a partition that gets no part
of one request would see a gap. Such a request is refused unless the queue has one partition.

Each part is accepted or refused by itself. When one part is refused and another is stored, the call
fails, and its error says so: a repeat with the same identity (or the same dedup keys) stores the
missing items, and nothing twice.
"""

import struct
from collections.abc import Sequence

import msgspec

from querator.model.calls import ProduceCall, ProducedBatch
from querator.model.commands import NO_SLOT, FlowNames, ItemSpecial, Produce, ProduceResult
from querator.model.errors import ErrorCode, QueratorError, invalid
from querator.model.item_options import NO_FLOW
from querator.model.routing import partition_of_producer


class Part(msgspec.Struct, frozen=True):
    """The part for one partition. `indexes` are positions in the request; empty: all of it."""

    partition: int
    indexes: tuple[int, ...]
    command: Produce
    items: bytes


def identified_partition(call: ProduceCall, partitions: int) -> int | None:
    """The partition of a request by its producer; None: any partition."""
    if not call.producer_id:
        return None
    if partitions == 1:
        return 0
    return partition_of_producer(
        call.producer_id, call.sequence, ordered=call.ordered, partitions=partitions
    )


def whole(
    call: ProduceCall, partition: int, *, routing: int, flows: FlowNames | None = None
) -> Part:
    """The part with all items; `flows` as in `Produce`."""
    command = Produce(
        lengths=call.lengths,
        producer_id=call.producer_id,
        sequence=call.sequence,
        ordered=call.ordered,
        specials=call.specials,
        routing=routing,
        slots=call.slots,
        flows=flows,
    )
    return Part(partition, (), command, call.items)


def cut(part: Part, *, home: int, partitions: int, routing: int) -> list[Part]:
    """Cuts a request with keys, or a part of one that was routed otherwise, by partition; `home`
    takes the items without a key.
    """
    command = part.command
    if partitions == 1:
        return [_routed(part, 0, routing)]
    if command.ordered:
        raise invalid(
            "ordered",
            f"cannot be combined with keys in a queue of {partitions} partitions: keys decide the "
            "partition, and order is kept in one partition; use ordered=false",
        )
    count = len(command.lengths) >> 2
    lengths = struct.unpack(f"<{count}I", command.lengths)
    slots = struct.unpack(f"<{count}H", command.slots)
    placed = [home if slot == NO_SLOT else slot % partitions for slot in slots]
    targets = sorted(set(placed))
    if len(targets) == 1:
        return [_routed(part, targets[0], routing)]
    members: dict[int, list[int]] = {target: [] for target in targets}
    for position, target in enumerate(placed):
        members[target].append(position)
    stops = _stops(lengths)
    specials = {special.ordinal: special for special in command.specials}
    whole_part = _routed(part, 0, routing)
    return [
        _part(
            whole_part=whole_part,
            partition=target,
            positions=positions,
            lengths=lengths,
            stops=stops,
            specials=specials,
        )
        for target, positions in members.items()
    ]


def _routed(part: Part, partition: int, routing: int) -> Part:
    command = msgspec.structs.replace(part.command, routing=routing)
    return Part(partition, part.indexes, command, part.items)


def _stops(lengths: tuple[int, ...]) -> list[int]:
    stops = []
    total = 0
    for length in lengths:
        total += length
        stops.append(total)
    return stops


def _part(
    whole_part: Part,
    partition: int,
    positions: list[int],
    lengths: tuple[int, ...],
    stops: list[int],
    specials: dict[int, ItemSpecial],
) -> Part:
    command = whole_part.command
    items = b"".join(whole_part.items[stops[p] - lengths[p] : stops[p]] for p in positions)
    indexes = whole_part.indexes
    return Part(
        partition,
        tuple(indexes[position] for position in positions) if indexes else tuple(positions),
        msgspec.structs.replace(
            command,
            lengths=struct.pack(f"<{len(positions)}I", *(lengths[p] for p in positions)),
            specials=tuple(
                msgspec.structs.replace(specials[position], ordinal=ordinal)
                for ordinal, position in enumerate(positions)
                if position in specials
            ),
            slots=b"".join(command.slots[2 * p : 2 * p + 2] for p in positions),
            flows=None if command.flows is None else _flows_of(command.flows, positions),
        ),
        items,
    )


def _flows_of(flows: FlowNames, positions: list[int]) -> FlowNames | None:
    """The names of the items at `positions`; None: none of them has one."""
    items = struct.unpack(f"<{len(flows.items) >> 1}H", flows.items)
    numbers: dict[int, int] = {NO_FLOW: NO_FLOW}
    for position in positions:
        numbers.setdefault(items[position], len(numbers) - 1)
    if len(numbers) == 1:
        return None
    names = tuple(flows.names[number] for number in numbers if number != NO_FLOW)
    chosen = [numbers[items[position]] for position in positions]
    return FlowNames(names, struct.pack(f"<{len(chosen)}H", *chosen))


def batch_of(part: Part, result: ProduceResult) -> ProducedBatch:
    """The partition's answer, with positions of the request."""
    partition = part.partition if result.partition < 0 else result.partition
    duplicates = tuple(
        (part.indexes[position] if part.indexes else position, *_place(twin, partition))
        for position, *twin in result.duplicates
    )
    return ProducedBatch(
        partition=partition,
        first_seq=result.first_seq,
        count=result.count,
        indexes=part.indexes,
        repeated=result.repeated,
        duplicates=duplicates,
        replaced=tuple(
            (part.indexes[position] if part.indexes else position, partition, seq)
            for position, seq in result.replaced
        ),
    )


def _place(twin: Sequence[int], partition: int) -> tuple[int, int]:
    """Partition and sequence of an item; without a partition of its own it is in `partition`."""
    return (twin[1] if len(twin) > 1 else partition), twin[0]


def merged_error(errors: list[QueratorError], *, stored: bool) -> QueratorError:
    """The one error of a request with failed parts; `stored`: another part was stored.

    The conclusions of a client must hold for the whole request. So an unknown outcome takes
    precedence over every other error, and after an error that permits a repeat, nothing of the
    request is stored: without an identity, a repeat would store the stored items once more.
    """
    for error in errors:
        if error.code is ErrorCode.OUTCOME_UNKNOWN:
            return error
    error = errors[0]
    if not stored:
        return error
    code = ErrorCode.OUTCOME_UNKNOWN if error.retriable else error.code
    return QueratorError(
        code,
        f"{error.message} (other items of the request are stored: repeat it as it is)",
        field=error.field,
        limit=error.limit,
        value=error.value,
        retry_delay_ms=error.retry_delay_ms,
    )
