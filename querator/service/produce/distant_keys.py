"""Dedup keys of items that are in other partitions than their keys.

After a change of the number of partitions, a partition may know a key of an item that has stayed
elsewhere. Where keys last until their item is done, the partition refuses to decide about the key
(`partition.dedup.unsure`), and nothing is executed. The partitions of such items are asked, and the
command is sent again: with the places of the items that still have their keys, and after the keys
of the others were freed. So a producer is never answered with an item that was done before it
asked.
"""

from collections.abc import Mapping, Sequence

import msgspec

from querator.model.commands import FreeKeys, Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.item_options import ItemSpecial
from querator.model.limits import OVERLOADED_RETRY_MS
from querator.model.queues import Queue
from querator.partition.dedup import UNSURE
from querator.partition.dedup_export import KeptKeysQuery
from querator.service.produce.split import Part
from querator.service.routing.router import Router


def is_unsure(error: QueratorError) -> bool:
    return error.code is ErrorCode.ROUTING_CHANGED and error.field == UNSURE


async def resolved(
    router: Router, queue: Queue, part: Part, refusal: QueratorError, deadline: float | None
) -> Part:
    """The part with what the refusal asks for. Raises QueratorError when a partition cannot be
    asked.
    """
    group = queue.groups[part.partition]
    holders = await holders_of(router, queue, group, refusal, deadline)
    command = msgspec.structs.replace(
        part.command, specials=with_holders(part.command.specials, holders)
    )
    return msgspec.structs.replace(part, command=command)


def with_holders(
    specials: Sequence[ItemSpecial], holders: Mapping[int, tuple[int, int]]
) -> tuple[ItemSpecial, ...]:
    return tuple(
        msgspec.structs.replace(special, holder=holders[special.ordinal])
        if special.ordinal in holders
        else special
        for special in specials
    )


async def holders_of(
    router: Router, queue: Queue, group: GroupId, refusal: QueratorError, deadline: float | None
) -> dict[int, tuple[int, int]]:
    """The places of the items that still have their keys, by ordinal of the command that `group`
    has refused. The keys of the others are freed there. Raises as `resolved`.
    """
    asked: list[tuple[int, tuple[int, int]]] = []
    by_partition: dict[int, list[int]] = {}
    for one in refusal.value.split(","):
        ordinal, partition, seq = map(int, one.split(":"))
        asked.append((ordinal, (partition, seq)))
        by_partition.setdefault(partition, []).append(seq)
    kept: set[tuple[int, int]] = set()
    for partition, seqs in by_partition.items():
        found = await _kept(router, queue, partition, tuple(dict.fromkeys(seqs)), deadline)
        kept.update((partition, seq) for seq in found)
    done = sorted({place for _, place in asked} - kept)
    if done:
        result = await router.propose(group, FreeKeys(tuple(done)), deadline=deadline)
        if isinstance(result, Refusal):
            raise result.as_error()
    return {ordinal: place for ordinal, place in asked if place in kept}


async def _kept(
    router: Router, queue: Queue, partition: int, seqs: tuple[int, ...], deadline: float | None
) -> Sequence[int]:
    if partition >= len(queue.groups):
        # A partition leaves the map when it is empty.
        return ()
    group = queue.groups[partition]
    try:
        kept: Sequence[int] = await router.read(
            group, KeptKeysQuery(group, seqs), deadline=deadline
        )
    except QueratorError as error:
        raise QueratorError(
            ErrorCode.UNAVAILABLE,
            f"an item in partition {partition} of queue {queue.name} may have the dedup key, and "
            f"the partition does not answer ({error.message}); not executed",
            field="dedup_key",
            retry_delay_ms=OVERLOADED_RETRY_MS,
        ) from error
    return kept
