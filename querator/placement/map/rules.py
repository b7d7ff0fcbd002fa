"""The rules for placement commands: pure functions from a view to a change.

The rules about nodes are in `placement.map.node_rules`, those about replicas in
`placement.map.group_rules`, those about the end of a queue in `placement.map.deletion_rules`.

Invariants that hold after every sequence of commands:

* ids of queues and groups come from counters and are never reused;
* a dead queue is another queue of the same namespace that is not being deleted; it has no dead
  queue itself, so dead letters never travel in chains;
* the number of partitions of a queue changes in one step at a time: the next change begins only
  when requests are distributed by the number of the last one;
* each partition has a place on known nodes;
* a queue is created only if all queues together have at most `NODE_PARTITIONS_MAX` replicas for
  each node that takes any; queues being deleted count, because their data still exists.

Longer than 500 lines: the rules about queues are checked against the same invariants.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import NODE_PARTITIONS_MAX, PARTITIONS_MAX
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import (
    DEAD_QUEUE_DEFAULT,
    Queue,
    QueueKind,
    QueueSettings,
    QueueState,
)
from querator.placement.assign import assign, replicas_wanted
from querator.placement.map import deletion_rules, group_rules, node_rules
from querator.placement.map.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    DrainNode,
    FormCluster,
    GiveUpTarget,
    GroupSettled,
    HandOffNode,
    JoinNode,
    NodeGone,
    PartitionsEmpty,
    PlaceGroups,
    QueueConfigured,
    QueueCreated,
    QueueDeleted,
    QueueRouted,
    QueueUpdated,
    ReadmitNode,
    RegisterNode,
    RemoveNode,
    ReplaceNode,
    ReplicasClosed,
    ReplicasGone,
    UndoRouting,
    UpdateQueue,
)
from querator.placement.map.view import Change, View

SETTINGS_FIELDS = QueueSettings.__struct_fields__


def decide(view: View, command: Command) -> Change:
    """Returns the change of a command. Nothing that a client sent raises: a refusal is a result."""
    return _RULES[type(command)](view, command)


def _create(view: View, command: CreateQueue) -> Change:
    existing = view.map.find(command.namespace, command.name)
    if existing is not None:
        return Change(_repeat_of_create(existing, command))
    partitions = command.settings.partitions
    refusal = (
        _refuse_unformed(view.map)
        or _refuse_replicas(view.map, command.settings.replicas)
        or _refuse_partitions(view.map, partitions, partitions, command.settings.replicas)
        or _refuse_lease_limit(command.settings)
        or _refuse_dead_queue(
            view.map, command.namespace, command.name, command.settings.dead_queue
        )
    )
    if refusal is not None:
        return Change(refusal)
    queue = Queue(
        namespace=command.namespace,
        name=command.name,
        id=view.next_queue_id,
        state=QueueState.CREATING,
        settings=command.settings,
        settings_version=1,
        created_at_ms=view.now_ms,
        groups=tuple(GroupId(view.map.next_group + p) for p in range(partitions)),
        routed=partitions,
    )
    groups = _placed(view.map, queue.groups, command.settings.replicas)
    return Change(QueueCreated(queue, created=True), put=queue, groups=groups)


def _placed(
    placed: PlacementMap, groups: Iterable[GroupId], replicas: int
) -> dict[GroupId, PlacedGroup]:
    """The first places of new groups' replicas."""
    nodes = [node for node in placed.nodes if node.takes_replicas]
    wanted = replicas_wanted(len(nodes), replicas)
    return {group: assign(nodes, group, replicas=wanted) for group in groups}


def _repeat_of_create(existing: Queue, command: CreateQueue) -> Refusal | QueueCreated:
    if existing.state is QueueState.DELETING:
        return _deleting(existing.name, "queue")
    given = SETTINGS_FIELDS if command.given is None else command.given
    differing = [
        _difference(field, there, wanted)
        for field in given
        if (there := getattr(existing.settings, field))
        != (wanted := getattr(command.settings, field))
    ]
    if not differing:
        return QueueCreated(existing, created=False)
    return Refusal(
        ErrorCode.QUEUE_EXISTS,
        f"queue {existing.name} exists with other settings: {'; '.join(differing)}",
        field="queue",
        value=existing.name,
    )


def _difference(field: str, there: Any, wanted: Any) -> str:
    if isinstance(there, Enum):
        return f"{field} is {there.name.lower()}, not {wanted.name.lower()}"
    if isinstance(there, tuple):
        return f"{field} differ"
    if isinstance(there, str):
        return (
            f"{field} differs"
            if field == "description"
            else f"{field} is {there!r}, not {wanted!r}"
        )
    name = field.removesuffix("_ms")
    unit = " ms" if name != field else ""
    return f"{name} is {there}{unit}, not {wanted}{unit}"


def _refuse_unformed(placed: PlacementMap) -> Refusal | None:
    if placed.nodes:
        return None
    return Refusal(ErrorCode.UNAVAILABLE, "the cluster is being formed; try again")


def _refuse_lease_limit(settings: QueueSettings) -> Refusal | None:
    """Each partition must be able to lease an item, or those in it would stay for ever."""
    if not 0 < settings.lease_limit < settings.partitions:
        return None
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"settings.lease_limit is {settings.lease_limit}, and the queue has {settings.partitions} "
        "partitions, which share it; it must be at least the number of partitions, or 0",
        field="settings.lease_limit",
        limit=str(settings.partitions),
        value=str(settings.lease_limit),
    )


def _refuse_partitions(
    placed: PlacementMap, partitions: int, more: int, replicas: int
) -> Refusal | None:
    """`more` is the number of partitions beyond those that the queue has."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        return Refusal(
            ErrorCode.LIMIT_EXCEEDED,
            f"settings.partitions is {partitions}; it must be 1 to {PARTITIONS_MAX}",
            field="settings.partitions",
            limit=str(PARTITIONS_MAX),
            value=str(partitions),
        )
    nodes = sum(node.takes_replicas for node in placed.nodes)
    there = sum(
        len(known.target) for group, known in placed.groups.items() if group != PLACEMENT_GROUP
    )
    wanted = there + more * replicas_wanted(nodes, replicas)
    most = NODE_PARTITIONS_MAX * nodes
    if more > 0 and wanted > most:
        return Refusal(
            ErrorCode.LIMIT_EXCEEDED,
            f"settings.partitions is {partitions}; the nodes have {there} replicas of partitions "
            f"and would have {wanted}; the limit is {most}: {NODE_PARTITIONS_MAX} for each node",
            field="settings.partitions",
            limit=str(most),
            value=str(wanted),
        )
    return None


def _refuse_replicas(placed: PlacementMap, replicas: int) -> Refusal | None:
    nodes = sum(node.takes_replicas for node in placed.nodes)
    if replicas <= nodes:
        return None
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"settings.replicas is {replicas}; the cluster has {nodes} nodes that take replicas: add "
        "nodes first",
        field="settings.replicas",
        limit=str(nodes),
        value=str(replicas),
    )


def _refuse_dead_queue(
    placed: PlacementMap, namespace: str, name: str, dead_queue: str
) -> Refusal | None:
    """Why the queue `name` may not have this dead queue; None when it may.

    A dead queue has no dead queue itself, with one exception: the default one, which has none.
    """
    field = "settings.dead_queue"
    if not dead_queue:
        return None
    if dead_queue == name:
        return _bad_dead_queue(f"{field}: a queue cannot be its own dead queue", dead_queue)
    if name == DEAD_QUEUE_DEFAULT:
        message = f"{field}: the queue {name} has no dead queue; there are no chains"
        return _bad_dead_queue(message, dead_queue)
    target = placed.find(namespace, dead_queue)
    if target is None:
        message = f"{field}: there is no queue {dead_queue} in namespace {namespace}; create it"
        return Refusal(ErrorCode.QUEUE_NOT_FOUND, message, field=field, value=dead_queue)
    if target.state is QueueState.DELETING:
        return _deleting(dead_queue, field)
    if target.state is QueueState.CREATING:
        message = f"{field}: queue {dead_queue} is still being created; try again"
        return Refusal(ErrorCode.UNAVAILABLE, message, field=field, value=dead_queue)
    if target.settings.kind is QueueKind.EXECUTIONS:
        message = f"{field}: queue {dead_queue} has executions, and takes no items"
        return _bad_dead_queue(message, dead_queue)
    if target.settings.dead_queue not in ("", DEAD_QUEUE_DEFAULT):
        message = f"{field}: queue {dead_queue} has a dead queue itself; there are no chains"
        return _bad_dead_queue(message, dead_queue)
    if dead_queue == DEAD_QUEUE_DEFAULT:
        return None
    users = _users_of(placed, namespace, name)
    if users:
        message = f"{field}: {name} is the dead queue of {users[0]}; there are no chains"
        return _bad_dead_queue(message, dead_queue)
    return None


def _bad_dead_queue(message: str, dead_queue: str) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_ARGUMENT, message, field="settings.dead_queue", value=dead_queue
    )


def _users_of(placed: PlacementMap, namespace: str, name: str) -> list[str]:
    """Names of the queues whose dead queue is `name`, without those being deleted."""
    return sorted(
        queue.name
        for queue in placed
        if queue.settings.dead_queue == name
        and queue.namespace == namespace
        and queue.state is not QueueState.DELETING
    )


def _find(view: View, namespace: str, name: str) -> Queue | Refusal:
    queue = view.map.find(namespace, name)
    if queue is not None:
        return queue
    if not view.map.has_namespace(namespace):
        message = f"there is no namespace {namespace}"
        return Refusal(ErrorCode.NAMESPACE_NOT_FOUND, message, field="namespace", value=namespace)
    message = f"there is no queue {name} in namespace {namespace}"
    return Refusal(ErrorCode.QUEUE_NOT_FOUND, message, field="queue", value=name)


def _deleting(name: str, field: str) -> Refusal:
    message = f"queue {name} is being deleted; its name is free again when its data is gone"
    return Refusal(ErrorCode.QUEUE_DELETING, message, field=field, value=name)


def _update(view: View, command: UpdateQueue) -> Change:
    queue = _find(view, command.namespace, command.name)
    if isinstance(queue, Refusal):
        return Change(queue)
    if queue.state is QueueState.DELETING:
        return Change(_deleting(queue.name, "queue"))
    if command.expected_version not in (0, queue.settings_version):
        return Change(
            Refusal(
                ErrorCode.VERSION_CONFLICT,
                f"the settings of queue {queue.name} are at version {queue.settings_version}, "
                f"not {command.expected_version}; read them again",
                field="expected_version",
                value=str(command.expected_version),
            )
        )
    settings = _masked(queue.settings, command)
    if isinstance(settings, Refusal):
        return Change(settings)
    if settings == queue.settings:
        return Change(QueueUpdated(queue))
    if settings.kind is not queue.settings.kind:
        return Change(_kind_is_fixed(queue, settings.kind))
    refusal = _partitions_are_fixed(queue, settings) or _refuse_settings(view.map, queue, settings)
    if refusal is not None:
        return Change(refusal)
    updated = msgspec.structs.replace(
        queue, settings=settings, settings_version=queue.settings_version + 1
    )
    configured = view.configured[queue.id]
    if settings.partitions == queue.settings.partitions:
        return Change(QueueUpdated(updated), put=updated, configured=configured)
    return _with_other_number(view, queue, updated)


def _refuse_settings(placed: PlacementMap, queue: Queue, settings: QueueSettings) -> Refusal | None:
    refusal = None
    if settings.dead_queue != queue.settings.dead_queue:
        refusal = _refuse_dead_queue(placed, queue.namespace, queue.name, settings.dead_queue)
    if refusal is None and settings.replicas != queue.settings.replicas:
        refusal = _refuse_replicas(placed, settings.replicas)
    return refusal or _refuse_lease_limit(settings)


def _partitions_are_fixed(queue: Queue, wanted: QueueSettings) -> Refusal | None:
    """Why the number of partitions cannot change: an execution stays where its id has put it."""
    there = queue.settings.partitions
    if queue.settings.kind is not QueueKind.EXECUTIONS or wanted.partitions == there:
        return None
    return Refusal(
        ErrorCode.QUEUE_KIND,
        f"settings.partitions: queue {queue.name} has executions, and keeps its {there} partitions",
        field="settings.partitions",
        limit=str(there),
        value=str(wanted.partitions),
    )


def _kind_is_fixed(queue: Queue, wanted: QueueKind) -> Refusal:
    there = queue.settings.kind.name.lower()
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"settings.kind: queue {queue.name} was created as {there}, and its kind is fixed; create "
        "another queue",
        field="settings.kind",
        limit=there,
        value=wanted.name.lower(),
    )


def _with_other_number(view: View, queue: Queue, updated: Queue) -> Change:
    """The change for `updated`, which has another number of partitions than the queue."""
    settings, configured = updated.settings, view.configured[queue.id]
    also = _with_other_targets(view.map, queue)
    if queue.state is QueueState.ACTIVE and settings.partitions == queue.routed_partitions:
        # The current change is given up.
        undone = _reopening(updated)
        return Change(QueueUpdated(undone), put=undone, configured=configured, also=also)
    more = settings.partitions - len(queue.groups)
    refusal = _refuse_while_changing(queue) or _refuse_partitions(
        view.map, settings.partitions, more, settings.replicas
    )
    if refusal is not None:
        return Change(refusal)
    new = tuple(GroupId(view.map.next_group + step) for step in range(more))
    updated = msgspec.structs.replace(
        updated, groups=(*queue.groups, *new), routed=queue.routed_partitions
    )
    return Change(
        QueueUpdated(updated),
        put=updated,
        configured=configured,
        groups=_placed(view.map, new, settings.replicas),
        also=also,
    )


def _reopening(queue: Queue) -> Queue:
    """The queue, to be reopened. The partitions may have received the next version; the version
    after that overrides it.
    """
    return msgspec.structs.replace(queue, reopening=queue.reopening or queue.routing + 2)


def _refuse_while_changing(queue: Queue) -> Refusal | None:
    if queue.state is QueueState.ACTIVE and not queue.is_changing:
        return None
    doing = (
        f"its partitions are being changed from {queue.routed_partitions} to "
        f"{queue.settings.partitions}; partitions={queue.routed_partitions} undoes that"
    )
    if queue.reopening:
        doing = "a change of its partitions is being undone; wait"
    if queue.state is QueueState.CREATING:
        doing = "it is being created; wait"
    return Refusal(
        ErrorCode.UNAVAILABLE,
        f"queue {queue.name}: {doing}; or try again in a moment",
        field="settings.partitions",
        value=str(queue.settings.partitions),
    )


def _with_other_targets(placed: PlacementMap, queue: Queue) -> tuple[Queue, ...]:
    """The queues whose partitions must learn that their dead queue has other partitions."""
    return tuple(
        msgspec.structs.replace(user, settings_version=user.settings_version + 1)
        for user in sorted(placed, key=lambda user: user.id)
        if user.settings.dead_queue == queue.name
        and user.namespace == queue.namespace
        and user.state is not QueueState.DELETING
    )


def _masked(current: QueueSettings, command: UpdateQueue) -> QueueSettings | Refusal:
    """The settings, with the fields that the mask names replaced."""
    unknown = sorted(set(command.mask).difference(SETTINGS_FIELDS))
    if unknown:
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"update_mask: there is no setting {unknown[0][:128]}",
            field="update_mask",
            value=unknown[0][:128],
        )
    if not command.mask:
        message = "update_mask is empty; name the settings to change"
        return Refusal(ErrorCode.INVALID_ARGUMENT, message, field="update_mask")
    return msgspec.structs.replace(
        current, **{field: getattr(command.settings, field) for field in command.mask}
    )


def _delete(view: View, command: DeleteQueue) -> Change:
    queue = _find(view, command.namespace, command.name)
    if isinstance(queue, Refusal):
        return Change(queue)
    if queue.state is QueueState.DELETING:
        return Change(QueueDeleted(queue, changed=False))
    users = _users_of(view.map, queue.namespace, queue.name)
    if users:
        return Change(
            Refusal(
                ErrorCode.QUEUE_IN_USE,
                f"queue {queue.name} is the dead queue of {', '.join(users[:5])}"
                f"{' and others' if len(users) > 5 else ''}; give them another one first; to empty "
                f"it: querator queue purge {queue.name}",
                field="queue",
                value=queue.name,
            )
        )
    deleting = msgspec.structs.replace(queue, state=QueueState.DELETING)
    result = QueueDeleted(deleting, changed=True)
    return Change(result, put=deleting, configured=view.configured[queue.id])


def _configured(view: View, command: QueueConfigured) -> Change:
    queue = view.map.get(command.queue_id)
    if queue is None or queue.state is QueueState.DELETING:
        return Change(Done())
    if view.configured[queue.id] >= command.settings_version:
        return Change(Done())
    active = msgspec.structs.replace(queue, state=QueueState.ACTIVE)
    return Change(Done(1), put=active, configured=command.settings_version)


def _routed(view: View, command: QueueRouted) -> Change:
    queue = view.map.get(command.queue_id)
    if queue is None or queue.state is not QueueState.ACTIVE or not queue.is_changing:
        return Change(Done())
    expected = (queue.routing + 1, queue.settings.partitions)
    if queue.reopening:
        expected = (queue.reopening, queue.routed_partitions)
    if (command.routing, command.partitions) != expected:
        return Change(Done())
    routed = msgspec.structs.replace(
        queue, routing=command.routing, routed=command.partitions, reopening=0
    )
    return Change(Done(1), put=routed, configured=view.configured[queue.id])


def _undo_routing(view: View, command: UndoRouting) -> Change:
    queue = view.map.get(command.queue_id)
    if queue is None or queue.state is not QueueState.ACTIVE or not queue.is_changing:
        return Change(Done())
    if queue.reopening or command.routing != queue.routing + 1:
        return Change(Done())
    undone = _reopening(queue)
    return Change(Done(1), put=undone, configured=view.configured[queue.id])


def _partitions_empty(view: View, command: PartitionsEmpty) -> Change:
    queue = view.map.get(command.queue_id)
    if queue is None or queue.state is not QueueState.ACTIVE or queue.is_changing:
        return Change(Done())
    left, ends = command.left, command.left + len(command.first_seqs)
    if command.routing != queue.routing or ends != len(queue.groups):
        return Change(Done())
    if not queue.settings.partitions <= left < ends:
        return Change(Done())
    known = [queue.first_seq(partition) for partition in range(len(queue.first_seqs))]
    known += [0] * (ends - len(known))
    known[left:ends] = command.first_seqs
    smaller = msgspec.structs.replace(queue, groups=queue.groups[:left], first_seqs=tuple(known))
    if queue.settings.kind is QueueKind.FAIR or queue.settings.has_limits:
        # The other partitions share the limits of groups and of the queue.
        smaller = msgspec.structs.replace(smaller, settings_version=queue.settings_version + 1)
    return Change(Done(ends - left), put=smaller, configured=view.configured[queue.id])


_RULES: Final[Mapping[type[Command], Callable[[View, Any], Change]]] = {
    CreateQueue: _create,
    UpdateQueue: _update,
    DeleteQueue: _delete,
    QueueConfigured: _configured,
    ReplicasGone: deletion_rules.gone,
    ReplicasClosed: deletion_rules.closed,
    FormCluster: node_rules.form,
    RegisterNode: node_rules.register,
    ReplaceNode: node_rules.replace,
    HandOffNode: node_rules.hand_off,
    JoinNode: node_rules.join,
    DrainNode: node_rules.drain,
    RemoveNode: node_rules.remove,
    NodeGone: node_rules.gone,
    ReadmitNode: node_rules.readmit,
    PlaceGroups: group_rules.place,
    GroupSettled: group_rules.settled,
    GiveUpTarget: group_rules.give_up,
    QueueRouted: _routed,
    UndoRouting: _undo_routing,
    PartitionsEmpty: _partitions_empty,
}
