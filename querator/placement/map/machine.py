"""The state machine of the placement group: what every replica of the map does alike.

Implements `raft.machine.Machine`. Deterministic: no clock, no chance, no I/O but the transaction;
time comes with the entry. The rules are in `placement.map.rules`, the rows in `placement.map.rows`.
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
    """The whole truth, so that none of it can be missed: the map, the queues for which there is
    something left to do (being created or deleted, with settings not yet in all partitions, or
    with a number of partitions that is being changed), and of those being deleted the nodes that
    have done so. Queues with ids below `next_queue_id` are in the map, or have been.
    """

    map: PlacementMap
    pending: frozenset[QueueId]
    deleted_on: Mapping[QueueId, tuple[NodeKey, ...]]
    next_queue_id: QueueId
    closed_on: Mapping[QueueId, tuple[NodeKey, ...]] = {}
    """Of queues being deleted: the nodes whose replicas take part in nothing any more."""

    def has_settled(self, asked: Queue) -> bool:
        """Whether nothing that a caller waits for is left to do, who asked for the queue to be so.
        This map may be behind the one in which that was decided.
        """
        if asked.id >= self.next_queue_id:
            return False
        queue = self.map.get(asked.id)
        if queue is None or queue.state is QueueState.DELETING:
            return True
        return queue.settings_version >= asked.settings_version and asked.id not in self.pending

    def has_closed(self, queue_id: QueueId) -> bool:
        """Whether the queue, which is being deleted, is closed or gone by this map."""
        queue = self.map.get(queue_id)
        return queue_id < self.next_queue_id if queue is None else queue.closed


class PlacementMachine:
    """Keeps the last view in memory, and uses it only while it is of the epoch that is stored."""

    def __init__(self, told: Callable[[PlacementEffects], None] | None = None) -> None:
        """`told` gets the effects of each entry, on the raft thread, on followers too: what is
        committed in the group, though this node has not synced it yet.
        """
        self._view: View | None = None
        self._told = told

    def pack(self, proposals: Sequence[Proposal], now_ms: int) -> Entry:
        return Entry(entry.encode(now_ms, [proposal.command for proposal in proposals]))

    def need(self, txn: ReadTransaction, command: Any) -> Need:
        """A queue with as many partitions as it may have, and where they are."""
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
        # Time moves with changes only: a replica that restarts must not know less of it.
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
    """What the rows of a snapshot amount to; costs a full scan."""
    return _effects(rows.load(txn))


def _effects(view: View) -> PlacementEffects:
    pending = frozenset(
        queue.id
        for queue in view.map
        if queue.state is not QueueState.ACTIVE
        or queue.is_changing
        or view.configured[queue.id] < queue.settings_version
    )
    return PlacementEffects(view.map, pending, view.deleted_on, view.next_queue_id, view.closed_on)
