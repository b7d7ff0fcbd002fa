"""The groups or keys by which a queue schedules its items: those that its kind needs."""

from struct import unpack

import msgspec

from querator.model.calls import ProduceCall
from querator.model.commands import MovedItem
from querator.model.group_paths import check_group_path, is_group_path
from querator.model.item_options import NO_FLOW, FlowNames, FollowUpFields
from querator.model.queues import Queue, QueueKind
from querator.model.routing import slot_of_key
from querator.model.txn_calls import StageCall
from querator.partition.rows import DeadCause
from querator.wire.flow_names import stored_groups, stored_keys


def flows_of(queue: Queue, call: ProduceCall | StageCall) -> FlowNames | None:
    """The names for the queue's partitions; None: no item has one, or the queue is plain. Raises
    INVALID_ARGUMENT or LIMIT_EXCEEDED for the path of a group.
    """
    kind = queue.settings.kind
    if kind in (QueueKind.PLAIN, QueueKind.EXECUTIONS):
        return None
    if kind is QueueKind.KEYED:
        return call.keys
    if call.groups is not None:
        for number, name in enumerate(call.groups.names):
            path = name.decode()
            if not is_group_path(path):
                first = _positions(call.groups.items).index(number)
                check_group_path(path, field=f"items[{first}].group")
    return call.groups


def _positions(items: bytes) -> tuple[int, ...]:
    return unpack(f"<{len(items) >> 1}H", items)


def flows_of_moved(queue: Queue, items: bytes, lengths: bytes) -> FlowNames | None:
    """As `flows_of`, for items that move to the queue. An item with a group that is no path has
    none: it was produced to a queue that takes any text.
    """
    kind = queue.settings.kind
    if kind in (QueueKind.PLAIN, QueueKind.EXECUTIONS):
        return None
    sizes = unpack(f"<{len(lengths) >> 2}I", lengths)
    if kind is QueueKind.KEYED:
        return stored_keys(items, sizes)
    return stored_groups(items, sizes, is_group_path)


def with_slots(
    queue: Queue, items: tuple[MovedItem, ...], names: FlowNames | None
) -> tuple[MovedItem, ...]:
    """Items that move to the queue. Redriven ones of a keyed queue, and those that go to the
    partition of their key, get the slots of their keys, as follow-ups have them: the number of
    partitions may have changed since they died or left.
    """
    if names is None or queue.settings.kind is not QueueKind.KEYED:
        return items
    slots = [slot_of_key(name) for name in names.names]
    return tuple(
        item
        if item.reason not in (DeadCause.NONE, DeadCause.HOME) or position == NO_FLOW
        else msgspec.structs.replace(item, follow_up=FollowUpFields(0, slot=slots[position]))
        for item, position in zip(items, _positions(names.items), strict=True)
    )
