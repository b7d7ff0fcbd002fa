"""The state machine of the placement group, identical on every replica of the map.

Implements `raft.machine.Machine`. Deterministic: no clock, no randomness, no I/O except the
transaction; the time comes with the entry. The rules are in `placement.map.rules`, the rows in
`placement.map.rows`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from querator.model.entries import Applied, Entry, Need, Proposal, Tier
from querator.model.ids import QueueId
from querator.model.limits import KIB, PARTITIONS_MAX
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.placement.map import entry, rows
from querator.placement.map.commands import Command
from querator.placement.map.deletion_rules import concerned, next_end
from querator.placement.map.rules import decide
from querator.placement.map.view import View
from querator.storage.environment import ReadTransaction, WriteTransaction


class PlacementEffects(msgspec.Struct, frozen=True):
    """The complete state, so that missed effects do no harm: the map, the queues with pending work,
    and for queues being deleted the nodes that have deleted their data. A queue is pending while it
    is being created or deleted, while its settings are not in all partitions, or while its number
    of partitions is being changed. Queues with ids below `next_queue_id` are, or have been, in the
    map.
    """

    map: PlacementMap
    pending: frozenset[QueueId]
    deleted_on: Mapping[QueueId, tuple[NodeKey, ...]]
    next_queue_id: QueueId
    closed_on: Mapping[QueueId, tuple[NodeKey, ...]] = {}
    """For queues being deleted, the nodes whose replicas are closed."""
    unconfigured: frozenset[QueueId] = frozenset()
    """Of `pending`, those whose settings are not in all partitions."""

    def has_settled(self, asked: Queue, *, routed: bool) -> bool:
        """Whether the change with which a caller asked for the queue is complete; `routed`: also a
        change of its number of partitions. This map may be older than the map in which the change
        was decided.
        """
        if asked.id >= self.next_queue_id:
            return False
        queue = self.map.get(asked.id)
        if queue is None or queue.state is QueueState.DELETING:
            return True
        incomplete = self.pending if routed else self.unconfigured
        return queue.settings_version >= asked.settings_version and asked.id not in incomplete

    def has_closed(self, queue_id: QueueId) -> bool:
        """Whether the queue, which is being deleted, is closed or gone in this map."""
        queue = self.map.get(queue_id)
        return queue_id < self.next_queue_id if queue is None else queue.closed


class PlacementMachine:
    """Caches the last view in memory, and uses it only while its epoch is the stored one."""

    def __init__(self, told: Callable[[PlacementEffects], None] | None = None) -> None:
        """`told` receives the effects of each entry, on the raft thread, also on followers. They
        are committed in the group, though this node may not have synced them.
        """
        self._view: View | None = None
        self._told = told

    def pack(self, proposals: Sequence[Proposal], now_ms: int) -> Entry:
        return Entry(entry.encode(now_ms, [proposal.command for proposal in proposals]))

    def need(self, txn: ReadTransaction, command: Any) -> Need:
        """Space for a queue with the maximum of partitions, and their places."""
        return Need(Tier.FREES, PARTITIONS_MAX * KIB)

    def apply(
        self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int
    ) -> Applied:
        batch = entry.decode(command)
        stored = self._load(txn)
        view = msgspec.structs.replace(stored, now_ms=max(stored.now_ms, batch.now_ms))
        results = []
        for one in batch.commands:
            change = decide(view, one)
            view = rows.store(txn, view, change)
            results.append(change.result)
            for queue_id in concerned(view, change):
                while (end := next_end(view, queue_id)) is not None:
                    view = rows.store(txn, view, end)
        # Time moves only with changes: a restarted replica must not know less of it.
        self._view = stored if view.map is stored.map else view
        effects = _effects(self._view)
        if self._told is not None:
            self._told(effects)
        return Applied(tuple(results), effects, None)

    def tells_early(self, result: object) -> bool:
        return False

    def recover(self, txn: ReadTransaction) -> Applied:
        return Applied((), _effects(self._load(txn)), None)

    def due_commands(self, now_ms: int, *, prompt: bool = False) -> Sequence[Command]:
        return ()

    def digest(self, txn: ReadTransaction) -> bytes:
        return rows.digest(txn)

    def _load(self, txn: ReadTransaction) -> View:
        if self._view is None or self._view.map.epoch != rows.epoch(txn):
            return rows.load(txn)
        return self._view


def stored_effects(txn: ReadTransaction) -> PlacementEffects:
    """The effects that the rows of a snapshot yield; costs a full scan."""
    return _effects(rows.load(txn))


def _effects(view: View) -> PlacementEffects:
    unconfigured = frozenset(
        queue.id
        for queue in view.map
        if queue.state is not QueueState.ACTIVE
        or view.configured[queue.id] < queue.settings_version
    )
    changing = frozenset(queue.id for queue in view.map if queue.is_changing)
    return PlacementEffects(
        map=view.map,
        pending=unconfigured | changing,
        deleted_on=view.deleted_on,
        next_queue_id=view.next_queue_id,
        closed_on=view.closed_on,
        unconfigured=unconfigured,
    )
