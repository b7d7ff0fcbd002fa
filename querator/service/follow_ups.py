"""Follow-ups of a settle, and items that an execution produces: where each of them goes.

Items without a key stay in the partition of the settled items when they are for the same queue: the
partition stores both in one entry, and nothing has to be moved. Those for another queue go to the
partition that a produced item would go to. A key or dedup key decides as it does for produced
items. A partition that is about to be closed takes no items, so its follow-ups go to others.

The queues are looked up before anything is settled or recorded: a queue that does not exist is an
error of the request. What happens when a queue is deleted later is said in `partition.follow_ups`
and `partition.execution_items`.
"""

from collections.abc import Sequence

import msgspec

from querator.model.calls import FollowUpItems, ProduceCall
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
    groups: Sequence[FollowUpItems],
    *,
    field: str = "follow_ups",
    undone: str = "nothing was settled",
) -> FollowUpPlan:
    """The plan for a call of `partition` of `queue` with items for other queues. Raises
    QueratorError when one of these is not there: `field` has them, and `undone` says what the
    refusal means.
    """
    parts: list[tuple[Queue, split.Part]] = []
    for place, group in enumerate(groups):
        try:
            target = queue
            if group.queue != queue.name:
                target = await directory.find(queue.namespace, group.queue)
            if target.settings.kind is QueueKind.EXECUTIONS:
                raise not_of_items(target)
        except QueratorError as error:
            raise _of_target(f"{field}[{place}].queue", error, undone) from error
        home = partition if target.id == queue.id else -1
        parts += [(target, part) for part in _parts(producing, target, home, group)]
    return _joined(queue, partition, parts)


def _of_target(path: str, error: QueratorError, undone: str) -> QueratorError:
    return QueratorError(
        error.code,
        f"{path}: {error.message}; {undone}",
        field=path,
        limit=error.limit,
        value=error.value,
        retry_delay_ms=error.retry_delay_ms,
    )


def _parts(
    producing: ProduceService,
    target: Queue,
    home: int,
    group: FollowUpItems,
) -> list[split.Part]:
    """The follow-ups by partition. `home` takes those without a key; -1: any partition."""
    produce = ProduceCall(
        namespace=target.namespace,
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
