"""How a queue that is being deleted leaves the map: the nodes' reports, and what follows from them.

    its partitions are closed     no node can lead one of them any more
                                  (`placement.map.majorities`)
    it leaves the map             when they are closed, and no node of the map that should hold a
                                  replica of it has any data

Reports lead to this. Replacing or removing a node does too, because the map stops waiting for it.
"""

from collections.abc import Iterable

import msgspec

from querator.model.commands import Done
from querator.model.ids import QueueId
from querator.model.nodes import NodeKey
from querator.model.queues import Queue, QueueState
from querator.placement.map.commands import ReplicasClosed, ReplicasGone
from querator.placement.map.majorities import open_groups
from querator.placement.map.view import Change, View


def gone(view: View, command: ReplicasGone) -> Change:
    queue = view.map.get(command.queue_id)
    known = view.deleted_on.get(command.queue_id, ())
    if queue is None or queue.state is not QueueState.DELETING or command.node in known:
        return Change(Done())
    return _put(view, queue, deleted_on=(*known, command.node))


def closed(view: View, command: ReplicasClosed) -> Change:
    queue = view.map.get(command.queue_id)
    known = view.closed_on.get(command.queue_id, ())
    if queue is None or queue.state is not QueueState.DELETING or command.node in known:
        return Change(Done())
    return _put(view, queue, closed_on=(*known, command.node))


def _put(
    view: View,
    queue: Queue,
    *,
    deleted_on: tuple[NodeKey, ...] | None = None,
    closed_on: tuple[NodeKey, ...] | None = None,
) -> Change:
    return Change(
        Done(1),
        put=queue,
        configured=view.configured[queue.id],
        deleted_on=view.deleted_on.get(queue.id, ()) if deleted_on is None else deleted_on,
        closed_on=view.closed_on.get(queue.id, ()) if closed_on is None else closed_on,
    )


def concerned(view: View, change: Change) -> Iterable[QueueId]:
    """The queues with reports whose deletion a change may advance: the queue of the change, the
    queues of its groups, and all when nodes have changed. `view` includes the change.
    """
    reported = view.deleted_on.keys() | view.closed_on.keys()
    if change.nodes:
        return sorted(reported)
    owners = map(view.map.by_group, change.groups)
    found = {owner[0].id for owner in owners if owner is not None}
    if change.put is not None:
        found.add(change.put.id)
    return sorted(found & reported)


def next_end(view: View, queue_id: QueueId) -> Change | None:
    """The next change in the deletion of a queue with reports; None when there is none."""
    queue = view.map.get(queue_id)
    if queue is None:
        return None
    gone = view.deleted_on.get(queue_id, ())
    if not queue.closed:
        reported = {*gone, *view.closed_on.get(queue_id, ())}
        if open_groups(view.map, queue, reported):
            return None
        return _put(view, msgspec.structs.replace(queue, closed=True))
    alive = {node.key for node in view.map.nodes}
    if view.map.holders(queue) & alive <= {*gone}:
        return Change(Done(1), gone=queue_id)
    return None
