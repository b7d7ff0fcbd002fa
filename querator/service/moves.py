"""Moves of items between partitions: dead letters to their dead queue, redriven letters home, and
follow-ups to their queues.

The source keeps the items to move in its outbox, numbered for each target. The target remembers the
number of the last move that it has accepted (`moved_upto`). So the mover may forget everything and
repeat anything:

    read a batch from the source's outbox ─► Move to the target ─► MoveDone to the source
                     ▲                                                    │
                     └────────────────────────────────────────────────────┘

One batch of a source is in flight at a time. Moves that a target refuses wait for a while, longer
each time, and the other targets of the source continue. A full target has accepted the items for
which it had space. It is tried again with one item, and with twice that number after each success:
at once when this node leads it and it has space, otherwise after a pause of at most
MOVE_PAUSE_MS_MAX. When the target's queue is gone for ever, the source takes its items back
(MoveReturn): they are ready there again, and may become dead letters again. A target that is
closing reports the moves that it has, and the source sends the others to the first partition of the
same queue (MoveElsewhere). If the queue uses the partition again, it takes moves again: it refuses
the first batch, and the source accepts that (ResumeMoves). A partition that is in use by the map
and says that it is closing is waited for. Either the map is behind, or the partition has not heard
yet that a change was undone. The first partition would send items of its keys back to it.

"Gone" is decided by the map, after it has caught up with the leader's: partitions get their
settings only after the map has them, and group ids are never reused. So such a map is newer than
the settings that named the target.
"""

import asyncio
from functools import partial

import msgspec

from querator import telemetry
from querator.model.commands import (
    NO_SLOT,
    Command,
    Move,
    Moved,
    MovedItem,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    ResumeMoves,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    LEADER_WAIT_MS_MAX,
    MOVE_BATCH_ITEMS_MAX,
    MOVE_PAUSE_MS_MAX,
    MOVE_PAUSE_MS_MIN,
)
from querator.model.queues import Queue, QueueState
from querator.partition.moves import MOVES_SINCE
from querator.partition.payloads import BlockDamaged
from querator.partition.queries import OutboxBatch, outbox_batch, outbox_targets
from querator.service.produce.distant_keys import holders_of, is_unsure
from querator.service.produce.flows import flows_of_moved, with_slots
from querator.service.repair.damage import DamagedBlocks
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import Accepted, as_answer
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.storage.environment import Environment

PAUSE_S_MIN = MOVE_PAUSE_MS_MIN / 1000
PAUSE_S_MAX = MOVE_PAUSE_MS_MAX / 1000

_log = telemetry.logger(__name__)


class _Pause(msgspec.Struct, frozen=True):
    length_s: float
    until_s: float


class RefusedMoves(msgspec.Struct, frozen=True):
    """Moves of a source that its target has refused since `since_s` by the loop's clock, or that
    could not be read; `error` is the first reason.
    """

    source: GroupId
    target: GroupId
    since_s: float
    error: QueratorError


class _Source:
    """A partition with moves to send."""

    __slots__ = ("active", "batch_max", "full", "pauses", "route", "timer", "waits")

    def __init__(self, route: PartitionRoute) -> None:
        self.route = route
        self.active = False
        """Whether a step is in progress."""
        self.pauses: dict[GroupId, _Pause] = {}
        self.batch_max: dict[GroupId, int] = {}
        """Number of items in the next batch, for targets that were full."""
        self.full: dict[GroupId, int] = {}
        """The item limits of targets that are full and led by this node."""
        self.timer: asyncio.TimerHandle | None = None
        self.waits: dict[GroupId, RefusedMoves] = {}
        """Targets for which no move has succeeded since the first failure."""


class Mover:
    """Carries the moves of all partitions that this node leads."""

    def __init__(
        self,
        router: Router,
        directory: QueueDirectory,
        environment: Environment,
        damage: DamagedBlocks,
    ) -> None:
        self._router = router
        self._directory = directory
        self._damage = damage
        self._asking: set[asyncio.Task[None]] = set()
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._sources: dict[PartitionRoute, _Source] = {}
        self.full: dict[GroupId, set[_Source]] = {}
        """Sources that wait for space in a target that this node leads."""
        self._stopped = False

    def wake(self, route: PartitionRoute) -> None:
        """The partition has moves to send, or may be able to send them."""
        if self._stopped or not route.effects.outbox or not route.local:
            return
        source = self._sources.get(route)
        if source is None:
            source = self._sources[route] = _Source(route)
        if not source.active and source.timer is None:
            source.active = True
            self._loop.call_soon(self._step, source)

    def on_items(self, group: GroupId, items: int) -> None:
        """One of the `full` targets holds `items` items that do not move."""
        for source in [source for source in self.full[group] if items < source.full[group]]:
            self._not_full(source, group)
            source.pauses.pop(group, None)
            if source.timer is not None:
                self._again(source)

    def on_map(self) -> None:
        """Targets may be gone: paused moves are tried again."""
        for source in list(self._sources.values()):
            if self._gone(source.route.group):
                self._forget(source)
            elif source.timer is not None:
                source.pauses.clear()
                self._again(source)

    def waiting(self) -> list[RefusedMoves]:
        """Waiting moves, by source and target."""
        return [one for source in self._sources.values() for one in source.waits.values()]

    def stop(self) -> None:
        """Begins no further batch; `Router.drained` waits for batches in flight."""
        self._stopped = True
        for source in list(self._sources.values()):
            self._forget(source)

    # --- one batch ---------------------------------------------------------------------------

    def _step(self, source: _Source) -> None:
        route = source.route
        source.active = False
        if self._stopped or not route.local or self._gone(route.group):
            self._forget(source)
            return
        now_s = self._loop.time()
        batch: OutboxBatch | None = None
        free: list[GroupId] = []
        try:
            with self._environment.snapshot() as txn:
                targets = [GroupId(target) for target in outbox_targets(txn, route.group)]
                free = [target for target in targets if not self._paused(source, target, now_s)]
                if free and not self._gone(free[0]):
                    most = source.batch_max.get(free[0], MOVE_BATCH_ITEMS_MAX)
                    batch = outbox_batch(txn, route.group, free[0], items_max=most)
        except BlockDamaged as damaged:
            self._failed(source, free[0], self._damage.refusal(damaged))
            return
        except Exception as error:  # noqa: BLE001 - the other targets continue
            failed = as_answer(error, "reading items that are to be moved")
            if free:
                self._failed(source, free[0], failed)
            else:
                source.timer = self._loop.call_later(PAUSE_S_MAX, self._again, source)
            return
        if not free:
            if targets:
                self._wait(source, now_s)
            else:
                self._forget(source)
        elif batch is not None:
            self._send(source, batch)
        else:
            source.active = True
            # Owned: it ends by itself, within the time that a map may take to catch up.
            task = self._loop.create_task(self._return(source, free[0]))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _return(self, source: _Source, target: GroupId) -> None:
        """Takes back the moves for a target that is gone, once that is certain."""
        try:
            known = await self._directory.catch_up()
        except Exception as defect:  # noqa: BLE001 - the top of the task: it is tried again
            self._failed(source, target, as_answer(defect, "asking for the map"))
            return
        if self._stopped or not known or not self._gone(target):
            error = QueratorError(ErrorCode.UNAVAILABLE, "the map was behind")
            self._failed(source, target, error)
            return
        then = partial(self._returned, source, target)
        self._router.post(source.route, MoveReturn(target), then=then)

    def _send(
        self,
        source: _Source,
        batch: OutboxBatch,
        holders: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        source.active = True
        target = GroupId(batch.target_group)
        owner = self._router.map.by_group(target)
        assert owner is not None, "moves for a group that is gone return"
        flows = flows_of_moved(owner[0], batch.attachment, batch.lengths)
        items = with_slots(owner[0], batch.items, flows)
        routing, homes = self._homes(target, items)
        self._router.post(
            self._router.route(target),
            Move(
                source_group=source.route.group,
                first_move=batch.first_move,
                lengths=batch.lengths,
                items=items,
                flows=flows,
                routing=routing,
                homes=homes,
                holders=holders,
                checkpoints=batch.checkpoints,
                since=batch.since,
            ),
            batch.attachment,
            then=partial(self._arrived, source, batch),
        )

    def _homes(self, target: GroupId, items: tuple[MovedItem, ...]) -> tuple[int, tuple[int, ...]]:
        """The routing of the target's queue, and the groups over which it distributes keys; empty
        when no item has a slot.
        """
        owner = self._router.map.by_group(target)
        fields = [item.follow_up for item in items if item.follow_up is not None]
        if owner is None or all(one.slot == NO_SLOT for one in fields):
            return 0, ()
        queue = owner[0]
        return queue.routing, tuple(queue.groups[: queue.routed_partitions])

    def _arrived(
        self, source: _Source, batch: OutboxBatch, outcome: Accepted | QueratorError
    ) -> None:
        target = GroupId(batch.target_group)
        if isinstance(outcome, QueratorError):
            owner = self._router.map.by_group(target)
            if is_unsure(outcome) and owner is not None:
                # Owned: it ends by itself, within the time that partitions may take to answer.
                task = self._loop.create_task(self._ask(source, batch, owner[0], outcome))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
                return
            if outcome.field == MOVES_SINCE:
                resume = ResumeMoves(target, int(outcome.limit))
                self._router.post(source.route, resume, then=partial(self._done, source, target))
                return
            closed = outcome.code is ErrorCode.ROUTING_CHANGED
            if not closed or owner is None or owner[1] < owner[0].routed_partitions:
                if outcome.code is ErrorCode.QUEUE_FULL and not self._is_full(
                    source, target, items_max=int(outcome.limit)
                ):
                    source.pauses.pop(target, None)
                    self._step(source)
                else:
                    self._failed(source, target, outcome)
                return
            # The first partition of a queue never closes.
            elsewhere = MoveElsewhere(
                target, int(outcome.limit), owner[0].groups[0], since=batch.since
            )
            self._router.post(source.route, elsewhere, then=partial(self._done, source, target))
            return
        assert isinstance(outcome, Moved)
        command: Command = MoveDone(target, outcome.upto_move)
        if outcome.upto_move < batch.first_move + len(batch.items) - 1:
            source.batch_max[target] = 1
        elif target in source.batch_max:
            source.batch_max[target] *= 2
            if source.batch_max[target] >= MOVE_BATCH_ITEMS_MAX:
                del source.batch_max[target]
        self._router.post(source.route, command, then=partial(self._done, source, target))

    async def _ask(
        self, source: _Source, batch: OutboxBatch, queue: Queue, refusal: QueratorError
    ) -> None:
        """Sends the batch again, with what the target has to know about dedup keys."""
        target = GroupId(batch.target_group)
        deadline = self._loop.time() + LEADER_WAIT_MS_MAX / 1000
        try:
            holders = await holders_of(self._router, queue, target, refusal, deadline)
        except Exception as error:  # noqa: BLE001 - the top of the task: it is tried again
            self._failed(source, target, as_answer(error, "asking about dedup keys"))
            return
        if self._stopped or not source.route.local:
            source.active = False
            self._forget(source)
            return
        self._send(source, batch, tuple((at, *place) for at, place in holders.items()))

    def _returned(
        self, source: _Source, target: GroupId, outcome: Accepted | QueratorError
    ) -> None:
        _log.info("moves.returned", group=source.route.group, target_group=target)
        self._done(source, target, outcome)

    def _done(self, source: _Source, target: GroupId, outcome: Accepted | QueratorError) -> None:
        if isinstance(outcome, QueratorError):
            self._failed(source, target, outcome)
            return
        self._succeeded(source, target)
        self._step(source)

    # --- failures ----------------------------------------------------------------------------

    def _is_full(self, source: _Source, target: GroupId, *, items_max: int) -> bool:
        """Records that a target has refused an item because it holds `items_max` items; False: it
        has lost some since. For a partition led here the known count is as new as its answers.
        """
        source.batch_max[target] = 1
        route = self._router.route(target)
        if route.local:
            if route.effects.staying < items_max:
                return False
            source.full[target] = items_max
            self.full.setdefault(target, set()).add(source)
        return True

    def _not_full(self, source: _Source, target: GroupId) -> None:
        source.full.pop(target, None)
        waiting = self.full.get(target)
        if waiting is not None:
            waiting.discard(source)
            if not waiting:
                del self.full[target]

    def _succeeded(self, source: _Source, target: GroupId) -> None:
        source.pauses.pop(target, None)
        source.waits.pop(target, None)

    def _failed(self, source: _Source, target: GroupId, error: QueratorError) -> None:
        if target not in source.waits:
            now_s = self._loop.time()
            source.waits[target] = RefusedMoves(source.route.group, target, now_s, error)
        before = source.pauses.get(target)
        length_s = PAUSE_S_MIN if before is None else min(before.length_s * 2, PAUSE_S_MAX)
        source.pauses[target] = _Pause(length_s, self._loop.time() + length_s)
        if length_s == PAUSE_S_MAX and before is not None and before.length_s < length_s:
            _log.warning(
                "moves.stuck", group=source.route.group, target_group=target, error=str(error)
            )
        self._step(source)

    def _paused(self, source: _Source, target: GroupId, now_s: float) -> bool:
        pause = source.pauses.get(target)
        return pause is not None and pause.until_s > now_s

    def _wait(self, source: _Source, now_s: float) -> None:
        until_s = min(pause.until_s for pause in source.pauses.values() if pause.until_s > now_s)
        source.timer = self._loop.call_at(until_s, self._again, source)

    def _again(self, source: _Source) -> None:
        if source.timer is not None:
            source.timer.cancel()
            source.timer = None
        source.active = True
        self._step(source)

    def _forget(self, source: _Source) -> None:
        if source.timer is not None:
            source.timer.cancel()
            source.timer = None
        for target in list(source.full):
            self._not_full(source, target)
        self._sources.pop(source.route, None)

    def _gone(self, group: GroupId) -> bool:
        """Whether the group's queue has been deleted, or is being deleted."""
        owner = self._router.map.by_group(group)
        return owner is None or owner[0].state is QueueState.DELETING
