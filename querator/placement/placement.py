"""The placement of this node: the current map, changes to it, and the work that follows from them.

A change is an entry of group 0. The node sends it through `propose` to the leader of group 0, on
any node. A change is answered when the groups of the queue have applied it and the map of this node
shows it. A deletion is answered when no node can lead a partition of the queue any more. The work
continues even if the caller stops waiting.

Every node does the work for its own replicas. Work for the whole cluster, such as forming it and
configuring partitions, is done by the leader of group 0.

Longer than 500 lines: a change and the wait for its effect are read together.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from querator import telemetry
from querator.model.commands import PartitionEffects, Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.limits import CHANGE_WAIT_MS_MAX
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.model.queues import Queue, QueueSettings, QueueState
from querator.placement.bootstrap import Ask, ClusterBootstrap, Propose
from querator.placement.map.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    FormCluster,
    UpdateQueue,
)
from querator.placement.map.machine import PlacementEffects, PlacementMachine
from querator.placement.map.map_follower import MapFollower
from querator.placement.map_waiters import MapWaiters, not_closed, not_decided, not_followed
from querator.placement.tasks.leader_tasks import (
    ANNOUNCE_S,
    Connected,
    HandoffOutcome,
    LeaderTasks,
    Newcomers,
)
from querator.placement.tasks.partition_calls import here
from querator.placement.tasks.reconcile import MachineFactory, Reconciler, ReconcileStep
from querator.placement.tasks.repartitioning import Repartitioner
from querator.raft.host import Host
from querator.storage.environment import Environment

SETTLING_MAX = 16
"""Queues that are worked on at once, so that opening and deleting groups does not crowd out items.
"""

AGAIN_AFTER_S_MIN = 0.02
AGAIN_AFTER_S_MAX = 2.0
"""Pause after a failed attempt, doubled each time: a full disk or a stopped group lasts for a
while.
"""

SURPLUS_S = 1.0
"""Pause between two checks for replicas that have moved away."""

SHOWN_WITHIN_S = 1.0
"""A step that the map does not show within this time is repeated."""

_log = telemetry.logger(__name__)

Watcher = Callable[[PlacementMap], None]


class Placement:
    """Belongs to one event loop. `start` and `stop` are called once each. The owner of the host
    passes on the events of group 0.
    """

    def __init__(
        self,
        host: Host,
        machine_for: MachineFactory,
        *,
        environment: Environment,
        bootstrap: ClusterBootstrap,
        on_failure: Callable[[BaseException], None],
        propose: Propose | None = None,
        ask: Ask | None = None,
        connected: Connected = dict,
        newcomers: Newcomers = tuple,
    ) -> None:
        """`machine_for` makes the machine of a partition's group. `on_failure` gets a defect that
        stopped the background work. `propose` and `ask` default to the host's own, for a node that
        leads all groups. `connected` returns the other nodes with open connections, `newcomers` the
        nodes that want to join.
        """
        self._host = host
        self._connected = connected
        self._bootstrap = bootstrap
        self._description = bootstrap.node
        self._propose: Propose = propose or host.propose
        self._reconciler = Reconciler(host, machine_for, node=bootstrap.key, propose=self._propose)
        self._repartitioner = Repartitioner(
            propose=self._propose, ask=ask or here(host, environment)
        )
        self._leader_tasks = LeaderTasks(
            host,
            lambda: self.map,
            node=bootstrap.key,
            propose=self._propose,
            connected=connected,
            said=lambda: self._description,
            newcomers=newcomers,
        )
        self._follower = MapFollower(host, environment, self._on_heard)
        self._on_failure = on_failure
        self._effects = _NOTHING
        self._known = asyncio.Event()
        self._moved = asyncio.Event()
        """Set, and replaced, whenever effects arrive."""
        self._watchers: list[Watcher] = []
        self._settling: dict[QueueId, asyncio.Task[None]] = {}
        self._failed: dict[QueueId, str] = {}
        self._forming: asyncio.Task[None] | None = None
        self._always: tuple[asyncio.Task[None], ...] = ()
        self._slots = asyncio.Semaphore(SETTLING_MAX)
        self._waiting = MapWaiters()
        self._running = False

    # --- the map -----------------------------------------------------------------

    @property
    def map(self) -> PlacementMap:
        """The newest version that this node knows; empty before `start`."""
        return self._effects.map

    @property
    def pending(self) -> frozenset[QueueId]:
        """Queues with pending work, on this node or elsewhere."""
        return self._effects.pending

    @property
    def deleted_on(self) -> Mapping[QueueId, tuple[NodeKey, ...]]:
        """For each queue that is being deleted, the nodes that hold none of its data any more."""
        return self._effects.deleted_on

    def missing(self, queue: QueueId) -> tuple[int, ...]:
        """Numbers of the partitions that a pending change of the queue waits for. Only the leader
        of group 0 knows them; empty on other nodes.
        """
        if queue not in self.pending or not self._host.leads(PLACEMENT_GROUP):
            return ()
        there = {*self._reconciler.unconfigured.get(queue, ()), *self._repartitioner.missing(queue)}
        return tuple(sorted(there))

    def last_error(self, queue: QueueId) -> str:
        """Why the last attempt at the queue's pending work failed on this node; empty if it did not
        fail.
        """
        return self._failed.get(queue, "")

    def watch(self, callback: Watcher) -> Callable[[], None]:
        """Calls `callback` with each new map, on the event loop. The returned function unsubscribes
        it.
        """
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def on_effects(self, effects: PlacementEffects) -> None:
        """Takes over the map that an entry of group 0, or its recovery, produced."""
        before = self._effects.map
        newer = effects.map.epoch > before.epoch or not self._known.is_set()
        self._effects = effects
        self._known.set()
        self._wake()
        if newer:
            for watcher in tuple(self._watchers):
                watcher(effects.map)
        self._work(since=before)
        self._waiting.check(effects)

    def on_partition(self, group: GroupId, effects: PartitionEffects) -> None:
        """Takes over the effects of an apply on a partition with a replica here."""
        self._repartitioner.on_drained(group, effects.drained)

    def _on_heard(self, effects: PlacementEffects) -> None:
        if effects.map.epoch > self.map.epoch or not self._known.is_set():
            self.on_effects(effects)

    # --- life --------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers the map and opens the groups of its queues. Other work continues in the
        background.

        If a group does not open, only its partition is down, and the failure is logged.
        """
        loop = asyncio.get_running_loop()
        replicas = self._bootstrap.replicas
        machine = PlacementMachine(self._follower.listener(loop))
        await self._host.create_group(PLACEMENT_GROUP, machine, replicas)
        if len(replicas) > 1:
            await self._follower.refresh()
        await self._known.wait()
        self._reconciler.begin(await self._follower.stored_groups())
        self._running = True
        live = [queue for queue in self.map if queue.state is not QueueState.DELETING]
        await asyncio.gather(*(self._open(queue) for queue in live))
        self._work()
        # Owned: `_always` keeps them, and `stop` waits for them.
        self._always = (
            loop.create_task(self._run(self._leader_tasks.run)),
            loop.create_task(self._run(self._follower.run)),
            loop.create_task(self._run(self._clear_surplus)),
            loop.create_task(self._run(self._remove_closing)),
        )
        if len(replicas) == 1 and self._forming is not None:
            await asyncio.wait((self._forming,))

    async def until_formed(self) -> None:
        """Returns when the map lists this node with its incarnation: the node is usable from then
        on.
        """
        own = self._bootstrap.node
        while (known := self.map.node(own.name)) is None or known.key != own.key:
            await self._moved.wait()

    async def _open(self, queue: Queue) -> None:
        try:
            await self._reconciler.open(self.map, queue)
        except QueratorError as error:
            _log.error(
                "placement.open_failed", queue=queue.name, queue_id=queue.id, error=str(error)
            )

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the top of the task: the node must know
            _log.exception("placement.failed")
            self._on_failure(error)

    def end(self) -> None:
        """Accepts no more work, cancels running work, and fails waiting callers. Called when the
        host has failed, or before `stop`.
        """
        self._running = False
        for task in self._tasks():
            task.cancel()
        message = (
            "the node stopped before all partitions had applied the change; the change is stored"
        )
        self._waiting.end(QueratorError(ErrorCode.OUTCOME_UNKNOWN, message))

    async def stop(self) -> None:
        """Stops the background work; the next start continues it."""
        self.end()
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        forming = [] if self._forming is None else [self._forming]
        return [*self._settling.values(), *forming, *self._always]

    # --- changes -----------------------------------------------------------------

    async def create_queue(
        self,
        namespace: str,
        name: str,
        settings: QueueSettings,
        given: tuple[str, ...] | None = None,
        *,
        timeout_ms: int = 0,
    ) -> tuple[Queue, bool]:
        """Returns the queue, ready for use, and whether this call created it. `given`: the settings
        that an existing queue must have, None for all. `timeout_ms` bounds the whole call, as does
        CHANGE_WAIT_MS_MAX; after that, OUTCOME_UNKNOWN. Raises QueratorError:

        QUEUE_EXISTS if given settings differ, QUEUE_DELETING, LIMIT_EXCEEDED for partitions, and
        for the dead queue INVALID_ARGUMENT, QUEUE_NOT_FOUND or UNAVAILABLE.
        """
        deadline = _deadline(timeout_ms)
        result = await self._decided(CreateQueue(namespace, name, settings, given), deadline)
        return await self._followed(result.queue, deadline, routed=True), result.created

    async def update_queue(
        self,
        namespace: str,
        name: str,
        settings: QueueSettings,
        mask: tuple[str, ...],
        expected_version: int = 0,
        *,
        timeout_ms: int = 0,
    ) -> Queue:
        """Returns the queue when all partitions have the settings. A change of their number that
        is under way is waited for only if `mask` names it. `mask` names fields of `QueueSettings`;
        `timeout_ms` is as for `create_queue`.

        Raises QueratorError: QUEUE_NOT_FOUND, NAMESPACE_NOT_FOUND, QUEUE_DELETING,
        VERSION_CONFLICT, INVALID_ARGUMENT, and the errors of `create_queue` for the dead queue.
        """
        command = UpdateQueue(namespace, name, settings, mask, expected_version)
        deadline = _deadline(timeout_ms)
        result = await self._decided(command, deadline)
        return await self._followed(result.queue, deadline, routed="partitions" in mask)

    async def delete_queue(
        self, namespace: str, name: str, *, deadline: float | None = None
    ) -> None:
        """Returns when no node can lead a partition of the queue any more. From then on no node
        stores anything in the queue or leases from it. Its data is deleted in the background.

        Raises QueratorError: QUEUE_NOT_FOUND, NAMESPACE_NOT_FOUND, QUEUE_IN_USE; OUTCOME_UNKNOWN
        when that is not certain before the deadline (a time of the loop's clock).
        """
        result = await self._decided(DeleteQueue(namespace, name), deadline)
        try:
            async with asyncio.timeout_at(deadline):
                await self._waiting.until_closed(result.queue.id, self._effects)
        except TimeoutError:
            raise not_closed(result.queue, self._effects) from None

    # --- nodes -------------------------------------------------------------------

    @property
    def description(self) -> PlacedNode:
        """This node's own description."""
        return self._description

    def say(self, node: PlacedNode) -> None:
        """Replaces this node's own description. The map receives it shortly afterwards."""
        assert node.key == self._bootstrap.key
        self._description = node

    @property
    def hands_off(self) -> bool:
        """Whether this node has handed off since its start, or is doing it. The map says so later,
        and only once the node reaches a majority.
        """
        return self._leader_tasks.handing

    async def hand_over(self, timeout_s: float) -> HandoffOutcome:
        """Transfers all leaderships of this node to others within the time. The node takes none
        again until it restarts, as far as the other nodes can be informed.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        if self._connected():
            try:
                await self._leader_tasks.report_handoff()
            except TimeoutError:
                _log.info(
                    "placement.handoff_not_reported", error=f"no answer in {ANNOUNCE_S:.0f} s"
                )
        return await self._leader_tasks.hand_over(until_s - asyncio.get_running_loop().time())

    async def change(self, command: Command) -> Any:
        """Proposes a command about nodes and returns its result. Raises QueratorError, also for a
        refusal.
        """
        return await self._decided(command)

    async def _decided(self, command: Command, deadline: float | None = None) -> Any:
        try:
            async with asyncio.timeout_at(deadline):
                result = await self._propose(PLACEMENT_GROUP, command)
        except TimeoutError:
            raise not_decided() from None
        if isinstance(result, Refusal):
            raise result.as_error()
        return result

    async def _followed(self, queue: Queue, deadline: float, *, routed: bool) -> Queue:
        """Returns the queue once the map of this node shows the change as complete."""
        if not self._running:
            raise QueratorError(ErrorCode.OUTCOME_UNKNOWN, "the node is stopping")
        try:
            async with asyncio.timeout_at(deadline):
                await self._waiting.until_settled(queue, self._effects, routed=routed)
        except TimeoutError:
            raise not_followed(queue, self.map, self.missing(queue.id)) from None
        settled = self.map.get(queue.id)
        if settled is None or settled.state is QueueState.DELETING:
            message = f"queue {queue.name} was deleted meanwhile"
            raise QueratorError(ErrorCode.QUEUE_DELETING, message, field="queue", value=queue.name)
        return settled

    # --- the work behind the map -------------------------------------------------

    def _work(self, *, since: PlacementMap | None = None) -> None:
        """Starts a task for every queue with pending work on this node.

        `since` is the map before this one. Checked are the queues that are pending, and those whose
        replicas have changed.
        """
        if not self._running:
            return
        loop = asyncio.get_running_loop()
        looked_at = set(self.pending)
        if since is not None:
            looked_at |= {
                queue.id
                for queue in self.map
                if any(since.groups.get(one) != self.map.groups.get(one) for one in queue.groups)
            }
        self._look_at(looked_at)
        if self._forming is None and not self.map.nodes and self._host.leads(PLACEMENT_GROUP):
            # Owned: `_forming` keeps it, and `stop` waits for it.
            self._forming = loop.create_task(self._form())

    def _wake(self) -> None:
        """Wakes the tasks that wait for the map, or for the replicas of this node."""
        self._moved.set()
        self._moved = asyncio.Event()

    def _look_at(self, queues: Iterable[QueueId]) -> None:
        loop = asyncio.get_running_loop()
        for queue_id in queues:
            if queue_id not in self._settling and self._step_for(queue_id) is not None:
                # Owned: `_settling` keeps it, it ends itself there, and `stop` waits for it.
                self._settling[queue_id] = loop.create_task(self._settle(queue_id))

    async def _clear_surplus(self) -> None:
        """Deletes replicas that have moved away from this node, periodically."""
        looked_at: tuple[PlacementMap, int] | None = None
        while True:
            await asyncio.sleep(SURPLUS_S)
            seen = (self.map, self._reconciler.opened)
            if seen == looked_at:
                continue
            looked_at = seen
            for group in self._reconciler.surplus(self.map):
                if not self._reconciler.is_surplus(self.map, group):
                    # Deleting the others took a while, and the map has changed.
                    continue
                try:
                    await self._reconciler.clear(group)
                except QueratorError as error:
                    _log.warning("placement.group_removal_failed", group=group, error=str(error))
                    looked_at = None
                    continue
                _log.info("placement.group_removed", group=group)
                owner = self.map.by_group(group)
                if owner is not None:
                    # The replica may have come back meanwhile.
                    self._look_at((owner[0].id,))
                    self._wake()

    async def _remove_closing(self) -> None:
        """Removes closing partitions, while this node leads the map."""

        def led() -> PlacementMap:
            return self.map if self._host.leads(PLACEMENT_GROUP) else _NOTHING.map

        await self._repartitioner.run(led, lambda: self.pending)

    def _step_for(self, queue_id: QueueId) -> ReconcileStep | None:
        """The next step of this node for the queue."""
        placed = self.map
        queue = placed.get(queue_id)
        if queue is None:
            return None
        if queue.state is QueueState.DELETING:
            deleted = self._bootstrap.key in self.deleted_on.get(queue_id, ())
            return None if deleted else ReconcileStep.DELETE
        if self._reconciler.missing(placed, queue):
            return ReconcileStep.OPEN
        if queue_id in self.pending and self._host.leads(PLACEMENT_GROUP):
            return ReconcileStep.CONFIGURE
        return None

    async def _take_step(self, step: ReconcileStep, queue_id: QueueId) -> None:
        placed = self.map
        queue = placed.get(queue_id)
        if queue is None:
            return
        match step:
            case ReconcileStep.OPEN:
                await self._reconciler.open(placed, queue)
            case ReconcileStep.CONFIGURE:
                async with self._opening_meanwhile(queue_id):
                    await self._configure(placed, queue)
            case ReconcileStep.DELETE:
                await self._reconciler.delete(queue)

    async def _configure(self, placed: PlacementMap, queue: Queue) -> None:
        if queue.is_changing and await self._repartitioner.recover(queue):
            return
        await self._reconciler.configure(placed, queue)
        if queue.is_changing:
            await self._repartitioner.change(queue)

    @contextlib.asynccontextmanager
    async def _opening_meanwhile(self, queue_id: QueueId) -> AsyncIterator[None]:
        """Opens new replicas during a step that may wait long for other nodes, or for replicas that
        move to this node.
        """
        # Owned: ended below.
        opening = asyncio.get_running_loop().create_task(self._open_what_comes(queue_id))
        try:
            yield
        finally:
            opening.cancel()
            await asyncio.wait((opening,))
            if not opening.cancelled():
                opening.result()

    async def _open_what_comes(self, queue_id: QueueId) -> None:
        while True:
            moved, placed = self._moved, self.map
            queue = placed.get(queue_id)
            if queue is None or queue.state is QueueState.DELETING:
                return
            if self._reconciler.missing(placed, queue):
                # If a group does not open, this is retried and logged after the current step.
                with contextlib.suppress(QueratorError):
                    await self._reconciler.open(placed, queue)
            await moved.wait()

    async def _settle(self, queue_id: QueueId) -> None:
        pause_s = AGAIN_AFTER_S_MIN
        try:
            while (step := self._step_for(queue_id)) is not None:
                moved, known = self._moved, self.map.get(queue_id)
                try:
                    async with self._slots:
                        await self._take_step(step, queue_id)
                except QueratorError as error:
                    self._failed[queue_id] = str(error)
                    _log.warning(
                        "placement.step_failed",
                        step=step.value,
                        queue_id=queue_id,
                        error=str(error),
                        pause_s=pause_s,
                    )
                    pause_ms = max(1000 * pause_s, error.retry_delay_ms or 0)
                    await self._rest(queue_id, known, pause_ms / 1000)
                    pause_s = min(pause_s * 2, AGAIN_AFTER_S_MAX)
                    continue
                self._failed.pop(queue_id, None)
                if self._step_for(queue_id) is step:
                    # The map of this node may be behind the one that the step has changed.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(SHOWN_WITHIN_S):
                            await moved.wait()
        except Exception as error:  # noqa: BLE001 - the top of the task: the node must know
            _log.exception("placement.failed", queue_id=queue_id)
            self._on_failure(error)
        finally:
            self._failed.pop(queue_id, None)
            del self._settling[queue_id]

    async def _rest(self, queue_id: QueueId, known: Queue | None, pause_s: float) -> None:
        """Returns when the time is over, or the queue is not as it was `known` when the step began:
        it may have changed while the step waited for partitions.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while self._step_for(queue_id) is not None and self.map.get(queue_id) == known:
                    await self._moved.wait()

    async def _form(self) -> None:
        """Proposes the first nodes to the map, while this node leads and the map has none."""
        pause_s = AGAIN_AFTER_S_MIN
        command = FormCluster(self._bootstrap.cluster_id, self._bootstrap.founders)
        try:
            while not self.map.nodes and self._host.leads(PLACEMENT_GROUP):
                try:
                    await self._decided(command)
                    return
                except QueratorError as error:
                    _log.warning("placement.formation_retried", error=str(error), pause_s=pause_s)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, AGAIN_AFTER_S_MAX)
        except Exception as error:  # noqa: BLE001 - the top of the task: the node must know
            _log.exception("placement.formation_failed")
            self._on_failure(error)
        finally:
            self._forming = None


def _deadline(timeout_ms: int) -> float:
    wait_ms = min(timeout_ms or CHANGE_WAIT_MS_MAX, CHANGE_WAIT_MS_MAX)
    return asyncio.get_running_loop().time() + wait_ms / 1000


_NOTHING = PlacementEffects(PlacementMap(), frozenset(), {}, QueueId(0))
"""The effects before any were received."""
