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

    __slots__ = ("_by_group", "_by_id", "_by_namespace", "epoch", "namespaces")

    def __init__(
        self, epoch: int = 0, namespaces: Iterable[str] = (), queues: Iterable[Queue] = ()
    ) -> None:
        """Costs O(queues × partitions). Names, ids and groups must be unique (asserted)."""
        self.epoch = epoch
        self.namespaces: tuple[str, ...] = tuple(sorted(namespaces))
        self._by_id: dict[QueueId, Queue] = {}
        self._by_group: dict[GroupId, tuple[Queue, int]] = {}
        self._by_namespace: dict[str, dict[str, Queue]] = {name: {} for name in self.namespaces}
        count = 0
        partitions = 0
        for queue in sorted(queues, key=lambda queue: queue.name):
            self._by_id[queue.id] = queue
            self._by_namespace[queue.namespace][queue.name] = queue
            for partition, group in enumerate(queue.groups):
                self._by_group[group] = (queue, partition)
            count += 1
            partitions += len(queue.groups)
        assert len(self._by_id) == count, "a queue id is there twice"
        assert sum(map(len, self._by_namespace.values())) == count, "a name is there twice"
        assert len(self._by_group) == partitions, "a group is there twice"

    def find(self, namespace: str, name: str) -> Queue | None:
        """The queue of this name, in whatever state."""
        queues = self._by_namespace.get(namespace)
        return None if queues is None else queues.get(name)

    def get(self, queue_id: QueueId) -> Queue | None:
        return self._by_id.get(queue_id)

    def by_group(self, group: GroupId) -> tuple[Queue, int] | None:
        """The queue that the group belongs to, and the number of the partition it holds."""
        return self._by_group.get(group)

    def queues(self, namespace: str) -> tuple[Queue, ...]:
        """By name; empty when the namespace is not known (see `namespaces`)."""
        return tuple(self._by_namespace.get(namespace, {}).values())

    def __iter__(self) -> Iterator[Queue]:
        """All queues; by namespace, then by name."""
        for queues in self._by_namespace.values():
            yield from queues.values()

    def __len__(self) -> int:
        """Number of queues."""
        return len(self._by_id)

    @property
    def partitions(self) -> int:
        """Number of partitions of all queues."""
        return len(self._by_group)
