"""Follow-ups of a settle: where each of them goes.

Items without a key stay in the partition of the settled items when they are for the same queue: the
partition stores both in one entry, and nothing has to be moved. Those for another queue go to the
partition that a produced item would go to. A key or dedup key decides as it does for produced
items. A partition that is about to be closed takes no items, so its follow-ups go to others.

The queues are looked up before anything is settled: a queue that does not exist is an error of the
request. What happens when a queue is deleted later is said in `partition.follow_ups`.
"""

from collections.abc import Sequence

import msgspec

from querator.model.calls import CompleteCall, FollowUpItems, ProduceCall, RetryCall
from querator.model.commands import NO_SLOT, Complete, Follow, FollowTarget, ItemSpecial, Retry
from querator.model.errors import QueratorError
from querator.model.queues import Queue, QueueKind
from querator.service.produce import split
from querator.service.produce.calls import ProduceService
from querator.service.routing.directory import QueueDirectory
from querator.service.validate import not_of_items

_NO_SLOT = NO_SLOT.to_bytes(2, "little")


class FollowUpPlan(msgspec.Struct, frozen=True):
    """What `Follow` says of the follow-ups, and its attachment."""

    lengths: bytes
    targets: tuple[FollowTarget, ...]
    specials: tuple[ItemSpecial, ...]
    slots: bytes
    routing: int
    items: bytes

    def command(self, settle: Complete | Retry) -> Follow:
        return Follow(
            settle=settle,
            lengths=self.lengths,
            targets=self.targets,
            specials=self.specials,
            routing=self.routing,
            slots=self.slots,
        )


async def plan_follow_ups(
    directory: QueueDirectory,
    producing: ProduceService,
    queue: Queue,
    partition: int,
    call: CompleteCall | RetryCall,
) -> FollowUpPlan:
    """The plan for a call that settles items in `partition` of `queue`. Raises QueratorError when
    a queue of the follow-ups is not there.
    """
    parts: list[tuple[Queue, split.Part]] = []
    for place, group in enumerate(call.follow_ups):
        target = queue
        if group.queue != queue.name:
            try:
                target = await directory.find(call.namespace, group.queue)
            except QueratorError as error:
                raise _of_target(place, error) from error
            if target.settings.kind is QueueKind.EXECUTIONS:
                raise _of_target(place, not_of_items(target))
        home = partition if target.id == queue.id else -1
        parts += [(target, part) for part in _parts(producing, target, home, call, group)]
    return _joined(queue, partition, parts)


def _of_target(place: int, error: QueratorError) -> QueratorError:
    """The error of a queue, as one of the follow-ups number `place`."""
    path = f"follow_ups[{place}].queue"
    return QueratorError(
        error.code,
        f"{path}: {error.message}; nothing was settled",
        field=path,
        limit=error.limit,
        value=error.value,
        retry_delay_ms=error.retry_delay_ms,
    )


def _parts(
    producing: ProduceService,
    target: Queue,
    home: int,
    call: CompleteCall | RetryCall,
    group: FollowUpItems,
) -> list[split.Part]:
    """The follow-ups by partition. `home` takes those without a key; -1: any partition."""
    produce = ProduceCall(
        namespace=call.namespace,
        queue=target.name,
        items=group.items,
        lengths=group.lengths,
        specials=group.specials,
        slots=group.slots,
    )
    if not 0 <= home < target.producing_partitions:
        home = producing.home(target, produce)
    whole = split.whole(produce, home, routing=target.routing)
    if not group.slots:
        return [whole]
    return split.cut(whole, home=home, partitions=target.routed_partitions, routing=target.routing)


def _joined(
    queue: Queue, partition: int, parts: Sequence[tuple[Queue, split.Part]]
) -> FollowUpPlan:
    targets: list[FollowTarget] = []
    specials: list[ItemSpecial] = []
    slots: list[bytes] = []
    start = 0
    for target, part in parts:
        command, count = part.command, len(part.command.lengths) >> 2
        here = target.id == queue.id and part.partition == partition
        group = 0 if here else target.groups[part.partition]
        targets.append(FollowTarget(target.name, part.partition, group, count))
        specials += [
            msgspec.structs.replace(special, ordinal=special.ordinal + start)
            for special in command.specials
        ]
        slots.append(command.slots or _NO_SLOT * count)
        start += count
    return FollowUpPlan(
        lengths=b"".join(part.command.lengths for _, part in parts),
        targets=tuple(targets),
        specials=tuple(specials),
        slots=b"".join(slots) if any(part.command.slots for _, part in parts) else b"",
        routing=queue.routing,
        items=b"".join(part.items for _, part in parts),
    )
