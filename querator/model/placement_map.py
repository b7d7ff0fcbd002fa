"""The placement map: which queues there are, and which Raft group holds each of their partitions.

A map is one version (`epoch`) of the truth that the placement group keeps. It is never changed:
a later version is another object, so a reader holds one consistent map as long as it likes. At any
time a name belongs to at most one queue, in whatever state: the name of a queue that is being
deleted is free again only when the queue has left the map.
"""

from collections.abc import Iterable, Iterator

from querator.model.ids import GroupId, QueueId
from querator.model.queues import Queue


class PlacementMap:
    """One version of the map. Lookups cost O(1) and know nothing of queue states: callers decide
    what a CREATING or DELETING queue means to them.
    """

    __slots__ = ("_by_group", "_by_id", "_by_name", "_namespaces", "epoch")

    def __init__(
        self, epoch: int = 0, namespaces: Iterable[str] = (), queues: Iterable[Queue] = ()
    ) -> None:
        """Costs O(queues × partitions). Names, ids and groups must be unique (asserted)."""
        self.epoch = epoch
        self._namespaces: frozenset[str] = frozenset(namespaces)
        self._by_id: dict[QueueId, Queue] = {}
        self._by_name: dict[tuple[str, str], Queue] = {}
        self._by_group: dict[GroupId, tuple[Queue, int]] = {}
        for queue in queues:
            self._put(queue)

    def _put(self, queue: Queue) -> None:
        assert queue.namespace in self._namespaces
        named = self._by_name.get((queue.namespace, queue.name))
        assert named is None or named.id == queue.id, "a name belongs to one queue"
        self._by_id[queue.id] = queue
        self._by_name[queue.namespace, queue.name] = queue
        for partition, group in enumerate(queue.groups):
            other = self._by_group.get(group)
            assert other is None or other[0].id == queue.id, "a group belongs to one queue"
            self._by_group[group] = (queue, partition)

    def evolve(self, epoch: int, *, put: Queue | None, gone: QueueId | None) -> "PlacementMap":
        """The map of the next epoch: one queue added or replaced (with its namespace), one left
        out. Costs three copies of dictionaries: about 10 µs for 1,000 partitions.
        """
        assert epoch > self.epoch
        after = PlacementMap(epoch, self._namespaces)
        after._by_id = self._by_id.copy()
        after._by_name = self._by_name.copy()
        after._by_group = self._by_group.copy()
        if gone is not None:
            queue = after._by_id.pop(gone)
            del after._by_name[queue.namespace, queue.name]
            for group in queue.groups:
                del after._by_group[group]
        if put is not None:
            after._namespaces |= {put.namespace}
            after._put(put)
        return after

    def find(self, namespace: str, name: str) -> Queue | None:
        """The queue of this name, in whatever state."""
        return self._by_name.get((namespace, name))

    def get(self, queue_id: QueueId) -> Queue | None:
        return self._by_id.get(queue_id)

    def by_group(self, group: GroupId) -> tuple[Queue, int] | None:
        """The queue that the group belongs to, and the number of the partition it holds."""
        return self._by_group.get(group)

    def has_namespace(self, namespace: str) -> bool:
        return namespace in self._namespaces

    @property
    def namespaces(self) -> tuple[str, ...]:
        """By name."""
        return tuple(sorted(self._namespaces))

    def queues(self, namespace: str) -> tuple[Queue, ...]:
        """By name; empty when the namespace is not known. Costs a look at every queue."""
        found = [queue for queue in self._by_id.values() if queue.namespace == namespace]
        return tuple(sorted(found, key=lambda queue: queue.name))

    def __iter__(self) -> Iterator[Queue]:
        """All queues, in no order that matters."""
        return iter(self._by_id.values())

    def __len__(self) -> int:
        """Number of queues."""
        return len(self._by_id)

    @property
    def partitions(self) -> int:
        """Number of partitions of all queues."""
        return len(self._by_group)
