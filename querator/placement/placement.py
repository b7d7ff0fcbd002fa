"""The placement of this node: the map as it is now, changes to it, and the work that follows.

Changes are entries of group 0. A change is answered when the groups of the queue have followed it
(a deletion: when it can no longer be undone); the work goes on whether or not its caller waits.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from querator import telemetry
from querator.model.commands import Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, QueueId
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueSettings, QueueState
from querator.placement.commands import CreateQueue, DeleteQueue, UpdateQueue
from querator.placement.machine import PlacementEffects, PlacementMachine
from querator.placement.reconcile import MachineFactory, Reconciler
from querator.raft.host import Host

SETTLING_MAX = 16
"""Queues that are worked on at once: opening and deleting groups must not crowd out items."""

AGAIN_AFTER_S_MIN = 0.02
AGAIN_AFTER_S_MAX = 2.0
"""Pause after a failed attempt, doubled each time: a full disk or a stopped group stays a while."""

_log = telemetry.logger(__name__)

Watcher = Callable[[PlacementMap], None]


class Placement:
    """Belongs to one event loop. `start` and `stop` once each; the owner of the host passes on its
    events of group 0.
    """

    def __init__(
        self,
        host: Host,
        machine_for: MachineFactory,
        *,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`machine_for` makes the machine of a partition's group. `on_failure` is told of a defect
        that stopped the work behind the map.
        """
        self._host = host
        self._reconciler = Reconciler(host, machine_for)
        self._on_failure = on_failure
        self._map = PlacementMap()
        self._pending: frozenset[QueueId] = frozenset()
        self._known: asyncio.Event = asyncio.Event()
        self._watchers: list[Watcher] = []
        self._settling: dict[QueueId, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(SETTLING_MAX)
        self._waiting: dict[QueueId, list[asyncio.Future[None]]] = {}
        self._running = False

    # --- the map -----------------------------------------------------------------

    @property
    def map(self) -> PlacementMap:
        """The last version that this node knows; empty before `start`."""
        return self._map

    @property
    def pending(self) -> frozenset[QueueId]:
        """Queues for which there is something left to do."""
        return self._pending

    def watch(self, callback: Watcher) -> Callable[[], None]:
        """`callback` gets each new map, on the event loop; the returned function ends that."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def on_effects(self, effects: PlacementEffects) -> None:
        """What an entry of group 0, or its recovery, made of the map."""
        newer = effects.map.epoch > self._map.epoch or not self._known.is_set()
        self._map = effects.map
        self._pending = effects.pending
        self._known.set()
        if newer:
            for watcher in tuple(self._watchers):
                watcher(self._map)
        self._work()
        for queue_id in tuple(self._waiting):
            if self._settled(queue_id):
                self._release(queue_id, None)

    # --- life --------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers the map and opens the groups of its queues; the rest of the work goes on behind.

        A group that does not open takes only its partition down: it is logged.
        """
        await self._host.create_group(PLACEMENT_GROUP, PlacementMachine())
        await self._known.wait()
        self._running = True
        live = [queue for queue in self._map if queue.state is not QueueState.DELETING]
        await asyncio.gather(*(self._open(queue) for queue in live))
        self._work()

    async def _open(self, queue: Queue) -> None:
        try:
            await self._reconciler.open(queue)
        except QueratorError as error:
            _log.error(
                "placement.open_failed", queue=queue.name, queue_id=queue.id, error=str(error)
            )

    def end(self) -> None:
        """Takes no more work on, gives up what is under way, and ends those who wait for it: when
        the host has failed, or before `stop`.
        """
        self._running = False
        for task in self._settling.values():
            task.cancel()
        message = "the node stopped before all partitions had followed; the change is kept"
        for queue_id in tuple(self._waiting):
            self._release(queue_id, QueratorError(ErrorCode.OUTCOME_UNKNOWN, message))

    async def stop(self) -> None:
        """Ends the work behind the map where it is; it goes on at the next start."""
        self.end()
        await asyncio.gather(*self._settling.values(), return_exceptions=True)

    # --- changes -----------------------------------------------------------------

    async def create_queue(
        self, namespace: str, name: str, settings: QueueSettings
    ) -> tuple[Queue, bool]:
        """The queue, usable, and whether this call made it. Raises QueratorError:

        QUEUE_EXISTS with other settings, QUEUE_DELETING, LIMIT_EXCEEDED for partitions, and what is
        wrong with the dead queue (INVALID_ARGUMENT, QUEUE_NOT_FOUND, UNAVAILABLE).
        """
        result = await self._propose(CreateQueue(namespace, name, settings))
        return await self._followed(result.queue), result.created

    async def update_queue(
        self,
        namespace: str,
        name: str,
        settings: QueueSettings,
        mask: tuple[str, ...],
        expected_version: int = 0,
    ) -> Queue:
        """The queue, when all partitions have the settings. `mask` names fields of `QueueSettings`.

        Raises QueratorError: QUEUE_NOT_FOUND, NAMESPACE_NOT_FOUND, QUEUE_DELETING,
        VERSION_CONFLICT, INVALID_ARGUMENT, and as `create_queue` for the dead queue.
        """
        command = UpdateQueue(namespace, name, settings, mask, expected_version)
        result = await self._propose(command)
        return await self._followed(result.queue)

    async def delete_queue(self, namespace: str, name: str) -> None:
        """Returns when the deletion is durable; the data goes in the background.

        Raises QueratorError: QUEUE_NOT_FOUND, NAMESPACE_NOT_FOUND, QUEUE_IN_USE.
        """
        await self._propose(DeleteQueue(namespace, name))

    async def _propose(self, command: CreateQueue | UpdateQueue | DeleteQueue) -> Any:
        result = await self._host.propose(PLACEMENT_GROUP, command)
        if isinstance(result, Refusal):
            raise QueratorError(
                result.code,
                result.message,
                field=result.field,
                limit=result.limit,
                value=result.value,
            )
        return result

    async def _followed(self, queue: Queue) -> Queue:
        """The queue as it is when nothing is left to do for it."""
        if not self._running:
            raise QueratorError(ErrorCode.OUTCOME_UNKNOWN, "the node is stopping")
        if not self._settled(queue.id):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(queue.id, []).append(waiter)
            await waiter
        settled = self._map.get(queue.id)
        if settled is None or settled.state is QueueState.DELETING:
            message = f"queue {queue.name} was deleted meanwhile"
            raise QueratorError(ErrorCode.QUEUE_DELETING, message, field="queue", value=queue.name)
        return settled

    def _settled(self, queue_id: QueueId) -> bool:
        """Whether nothing that a caller waits for is left to do."""
        queue = self._map.get(queue_id)
        if queue is None or queue.state is QueueState.DELETING:
            return True
        return queue_id not in self._pending

    def _release(self, queue_id: QueueId, error: QueratorError | None) -> None:
        for waiter in self._waiting.pop(queue_id, ()):
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    # --- the work behind the map -------------------------------------------------

    def _work(self) -> None:
        """Sees to it that every queue with something left to do has a task that does it."""
        if not self._running:
            return
        for queue_id in self._pending.difference(self._settling):
            # Owned: `_settling` keeps it, it ends itself there, and `stop` waits for it.
            task = asyncio.get_running_loop().create_task(self._settle(queue_id))
            self._settling[queue_id] = task

    async def _settle(self, queue_id: QueueId) -> None:
        pause_s = AGAIN_AFTER_S_MIN
        try:
            while queue_id in self._pending:
                queue = self._map.get(queue_id)
                assert queue is not None
                try:
                    async with self._slots:
                        await self._reconciler.settle(self._map, queue)
                except QueratorError as error:
                    _log.warning(
                        "placement.again",
                        queue=queue.name,
                        queue_id=queue_id,
                        state=queue.state.name,
                        error=str(error),
                        pause_s=pause_s,
                    )
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, AGAIN_AFTER_S_MAX)
        except Exception as error:  # noqa: BLE001 - the top of the task: the node must know
            _log.exception("placement.failed", queue_id=queue_id)
            self._on_failure(error)
        finally:
            del self._settling[queue_id]
