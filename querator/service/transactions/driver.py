"""Carries out the transactions that this node's partitions coordinate, whichever node began them.

The coordinator's tables define the next steps (`partition.txn_steps`), and each step may be
repeated any number of times. So the driver may stop at any point: the next leader of the
coordinator finds the open transactions and continues. Each open transaction has one task:

    PREPARING    all participants are asked to prepare ─► Decide
    COMMITTED    all are asked to publish, until nothing remains ─► Finish
    ABORTED      all are asked to discard ─► Finish

A participant that cannot be reached delays its transaction and no other one. A participant that is
gone for ever (its partition has closed) holds nothing of the transaction: it counts as refusing to
prepare, and as having discarded its stages.

The leader of a partition with stages asks the coordinator from time to time. Stages pinned for a
finished transaction are released. Stages of a committed batch are dropped, and the partition
remembers the batch: an attempt that continues after the commit occupies no space there, and learns
of the commit, also in a partition that no commit has named.
"""

import asyncio
from functools import partial
from typing import Any

from querator import telemetry
from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import STAGES_ASK_MS, STAGES_MAX
from querator.model.queues import QueueState
from querator.model.transactions import (
    Discard,
    DropStages,
    Finish,
    Prepare,
    Publish,
    TransactionState,
    TxnResult,
)
from querator.partition.txn_steps import (
    CommittedQuery,
    OpenTxn,
    TransactionQuery,
    TxnQuery,
    answer,
    open_batches,
    open_numbers,
    open_txn,
    pinned_txns,
    verdict,
)
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import as_answer, each
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.storage.environment import Environment

PAUSE_S_MIN = 0.02
PRODUCERS_ASKED_MAX = 500
"""Number of producers in one question about their batches."""
PAUSE_S_MAX = 5.0
"""Pause of a transaction after a failure, doubled each time."""

_log = telemetry.logger(__name__)


class TransactionDriver:
    """Drives the transactions of all partitions that this node leads. Used on the event loop."""

    def __init__(self, router: Router, directory: QueueDirectory, environment: Environment) -> None:
        self._router = router
        self._environment = environment
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._carried: dict[tuple[PartitionRoute, int], asyncio.Task[None]] = {}
        self._asking: dict[PartitionRoute, asyncio.Task[None]] = {}
        self._changes: dict[int, asyncio.Event] = {}
        """By group: set and removed when something may have been decided."""
        self._stopped = False

    def wake(self, route: PartitionRoute) -> None:
        """The partition has applied something, or this node has begun to lead it."""
        change = self._changes.pop(route.group, None)
        if change is not None:
            change.set()
        if self._stopped or not route.local:
            return
        if route.effects.stages and route not in self._asking:
            # Owned: it ends when no stages remain, or `stop` cancels it.
            self._asking[route] = self._loop.create_task(self._ask(route))
        if route.effects.txns and route.effects.txns > sum(
            1 for carried, _ in self._carried if carried is route
        ):
            self._begin(route)

    def _begin(self, route: PartitionRoute) -> None:
        with self._environment.snapshot() as txn:
            numbers = open_numbers(txn, route.group)
        for number in numbers:
            key = (route, number)
            if key not in self._carried:
                # Owned: it ends with the transaction or the leadership, or `stop` cancels it.
                task = self._loop.create_task(self._carry(route, number))
                self._carried[key] = task
                task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[PartitionRoute, int], task: "asyncio.Task[None]") -> None:
        del self._carried[key]
        if not task.cancelled():
            task.result()
            self.wake(key[0])

    async def stop(self) -> None:
        """Stops the driver; open transactions are left to the next leader."""
        self._stopped = True
        tasks = [*self._carried.values(), *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one transaction ---------------------------------------------------------------------

    async def _carry(self, route: PartitionRoute, number: int) -> None:
        pause_s = PAUSE_S_MIN
        while route.local and not self._gone(route.group):
            try:
                with self._environment.snapshot() as txn:
                    found = open_txn(txn, route.group, number)
                if found is None:
                    return
                await self._step(route, found)
                pause_s = PAUSE_S_MIN
            except Exception as defect:  # noqa: BLE001 - the top of the task: it is tried again
                error = as_answer(defect, "carrying out a transaction")
                if pause_s == PAUSE_S_MAX:
                    _log.warning("txns.stuck", group=route.group, txn=number, error=str(error))
                await route.pause(self._loop.time() + pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _step(self, route: PartitionRoute, txn: OpenTxn) -> None:
        """Performs one step. Raises QueratorError; the step is then repeated."""
        answers = await each([self._carry_out(GroupId(group), step) for group, step in txn.steps])
        refused = [one for one in answers if isinstance(one, Refusal)]
        for one in answers:
            if isinstance(one, QueratorError) and not refused:
                raise one
        if txn.state is TransactionState.PREPARING:
            decided = await self._router.call(route, verdict(txn.number, refused))
            assert isinstance(decided, TxnResult)
            _log.debug("txns.decided", group=route.group, txn=txn.number, state=decided.state.name)
        else:
            assert not refused, "a decided transaction is not refused"
            await self._router.call(route, Finish(txn.number))

    async def _carry_out(self, group: GroupId, step: Prepare | Publish | Discard) -> Done | Refusal:
        """Repeats the step until the participant has done all of it, or has refused it."""
        while True:
            try:
                result: Done | Refusal = await self._router.propose(group, step)
            except QueratorError:
                if await self._is_nowhere(group):
                    return _of_nobody(step)
                raise
            if isinstance(result, Refusal):
                if result.code is ErrorCode.UNAVAILABLE:
                    raise QueratorError(result.code, result.message)
                return result
            if isinstance(step, Prepare) or not result.changed:
                return result

    async def _is_nowhere(self, group: GroupId) -> bool:
        """Whether a group has left the map for ever. A map that is behind may not have the group
        yet.
        """
        if self._router.map.by_group(group) is not None or not await self._directory.catch_up():
            return False
        return self._router.map.by_group(group) is None

    def _gone(self, group: GroupId) -> bool:
        """Whether the group's queue has been deleted, or is being deleted."""
        owner = self._router.map.by_group(group)
        return owner is None or owner[0].state is QueueState.DELETING

    # --- staged items ------------------------------------------------------------------------

    async def _ask(self, route: PartitionRoute) -> None:
        try:
            while True:
                await route.pause(self._loop.time() + STAGES_ASK_MS / 1000)
                if not route.local or not route.effects.stages or self._gone(route.group):
                    return
                try:
                    await self._unpin(route)
                    await self._drop_committed(route)
                except Exception as defect:  # noqa: BLE001 - the top of the task: it asks again
                    error = as_answer(defect, "releasing and dropping stages")
                    _log.info("txns.cleanup_failed", group=route.group, error=str(error))
        finally:
            del self._asking[route]

    async def _unpin(self, route: PartitionRoute) -> None:
        """Releases stages that are pinned for finished transactions."""
        owner = self._router.map.by_group(route.group)
        if owner is None:
            return
        with self._environment.snapshot() as txn:
            pinned = pinned_txns(txn, route.group)
        for one in pinned:
            # The first partition of a queue never closes.
            coordinator = owner[0].groups[0]
            query = TxnQuery(coordinator, one.txn, one.producer, one.batch)
            if not (await self._router.read(coordinator, query)).txn:
                _log.info("txns.released", group=route.group, txn=one.txn)
                step = Discard(one.txn, producer=one.producer, batch=one.batch)
                await self._carry_out(route.group, step)

    async def _drop_committed(self, route: PartitionRoute) -> None:
        """Drops stages of committed batches."""
        owner = self._router.map.by_group(route.group)
        if owner is None:
            return
        with self._environment.snapshot() as txn:
            found = open_batches(txn, route.group, STAGES_MAX)
        coordinator = owner[0].groups[0]
        producers = sorted({one.producer for one in found})
        committed: dict[str, int] = {}
        for start in range(0, len(producers), PRODUCERS_ASKED_MAX):
            chunk = tuple(producers[start : start + PRODUCERS_ASKED_MAX])
            numbers = await self._router.read(coordinator, CommittedQuery(coordinator, chunk))
            committed.update(zip(chunk, numbers, strict=True))
        for one in found:
            last = committed[one.producer]
            if one.batch <= last:
                _log.info("txns.dropped", group=route.group, batch=one.batch)
                await self._drop(route, DropStages(one.producer, one.batch, last))

    async def _drop(self, route: PartitionRoute, command: DropStages) -> None:
        while True:
            result = await self._router.call(route, command)
            assert isinstance(result, Done)
            if not result.changed:
                return

    # --- questions ---------------------------------------------------------------------------

    async def answer(self, query: TransactionQuery) -> Any:
        """Answers a query at the leader, which has confirmed its leadership."""
        result = self._read(query)
        if not isinstance(query, TxnQuery) or not query.wait_ms:
            return result
        until_s = self._loop.time() + query.wait_ms / 1000
        try:
            async with asyncio.timeout_at(until_s):
                while query.waits(result):
                    change = self._changes.setdefault(query.group, asyncio.Event())
                    result = self._read(query)
                    if query.waits(result):
                        await change.wait()
        except TimeoutError:
            pass
        return result

    def _read(self, query: TransactionQuery) -> Any:
        with self._environment.snapshot() as txn:
            return answer(txn, query)


def _of_nobody(step: Prepare | Publish | Discard) -> Done | Refusal:
    """Answer on behalf of a partition that is gone."""
    if isinstance(step, Prepare):
        return Refusal(
            ErrorCode.TRANSACTION_ABORTED,
            "a partition with stages of the batch has closed",
            field="stages",
        )
    return Done()
