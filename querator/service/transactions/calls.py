"""Transactional produce, as clients call it: stage, commit, abort, list.

    Stage        cut like a produce, one part for each partition; any number of requests, tasks and
                 attempts at them
    CommitTxn    one call for a batch, with the attempts that count: Begin at the coordinator, the
                 first partition of the queue, then a wait for its decision
    AbortTxn     before that

A transaction is not carried out by the call that began it (`service.transactions.driver`). A call
that is repeated, after a crash or because its answer was lost, finds the transaction in its present
state.
"""

import asyncio
from zlib import crc32

from querator.model.calls import ProduceCall
from querator.model.commands import Done
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.limits import (
    COMMIT_WAIT_MS_MAX,
    TXN_CLAIMS_MAX,
    TXN_LIST_MAX,
)
from querator.model.queues import Queue
from querator.model.transactions import (
    AbortTxn,
    Begin,
    DropStages,
    Participant,
    ProducerTotals,
    Stage,
    StageClaim,
    StagedTotals,
    StageResult,
    TransactionState,
    TxnResult,
)
from querator.model.txn_calls import (
    AbortCall,
    AbortReply,
    CommitCall,
    CommitReply,
    StageCall,
    StagedPart,
    StageReply,
    TxnList,
)
from querator.partition.txn_steps import (
    CommittedQuery,
    ProducerQuery,
    StagedPage,
    StagedQuery,
    TxnQuery,
)
from querator.service.produce import split as parts
from querator.service.produce.calls import ProduceService
from querator.service.produce.flows import flows_of
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import each
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

DECISION_WAIT_MS = 2_000
"""Maximum wait of one query to the coordinator, which may lose its leadership meanwhile."""


class TransactionService:
    """Calls of transactions. Belongs to one event loop. Every method raises QueratorError;
    deadlines are by the loop's clock, None: there is none.
    """

    def __init__(
        self, router: Router, directory: QueueDirectory, producing: ProduceService, *, durable: bool
    ) -> None:
        self._router = router
        self._directory = directory
        self._producing = producing
        self._durable = durable
        self._loop = asyncio.get_running_loop()

    # --- stage -------------------------------------------------------------------------------

    async def stage(self, queue: Queue, call: StageCall, *, deadline: float | None) -> StageReply:
        """Stores the items of a request invisibly; a repeat changes nothing."""
        if call.sequence == 1 and call.batch <= await self._committed(queue, call, deadline):
            return StageReply((), self._durable, committed=True)
        until_s = self._producing.until_rerouted(deadline)
        while True:
            outcomes = await each(
                [self._store(queue, call, part, deadline) for part in self._cut(queue, call)]
            )
            stored = [one for one in outcomes if isinstance(one, StagedPart)]
            errors = [one for one in outcomes if isinstance(one, QueratorError)]
            if len(stored) + len(errors) < len(outcomes):
                return StageReply((), self._durable, committed=True)
            if not errors:
                return StageReply(tuple(stored), self._durable)
            other = [one for one in errors if not self._producing.was_rerouted(queue, one)]
            for error in other:
                if error.code is ErrorCode.TRANSACTION_ABORTED:
                    # The attempt is lost: a repeat of the request would not help.
                    raise error
            if other:
                raise parts.merged_error(other, stored=bool(stored))
            queue = await self._producing.rerouted(queue, call, until_s, *errors)

    def _cut(self, queue: Queue, call: StageCall) -> list[parts.Part]:
        """Cuts the request like a produce. A repeat goes to the same partitions, unless they have
        changed.
        """
        if call.partition is None:
            home = (crc32(call.attempt) + call.sequence) % queue.routed_partitions
        elif call.partition < queue.routed_partitions:
            home = call.partition
        else:
            raise invalid(
                "partition",
                f"is {call.partition}; queue {queue.name} has {queue.routed_partitions} partitions",
                value=call.partition,
            )
        whole = parts.whole(
            ProduceCall(
                call.namespace,
                call.queue,
                call.items,
                call.lengths,
                specials=call.specials,
                slots=call.slots,
            ),
            home,
            routing=queue.routing,
            flows=flows_of(queue, call),
        )
        if not call.slots:
            return [whole]
        return parts.cut(
            whole, home=home, partitions=queue.routed_partitions, routing=queue.routing
        )

    async def _store(
        self, queue: Queue, call: StageCall, part: parts.Part, deadline: float | None
    ) -> StagedPart | QueratorError | None:
        """None: the batch is committed."""
        checksum = crc32(part.items)
        command = Stage(
            producer=call.producer,
            batch=call.batch,
            task=call.task,
            attempt=call.attempt,
            sequence=call.sequence,
            checksum=checksum,
            lengths=part.command.lengths,
            specials=part.command.specials,
            routing=part.command.routing,
            slots=part.command.slots,
            flows=part.command.flows,
        )
        route = self._router.routes(queue)[part.partition]
        try:
            result = await self._router.call(
                route, command, part.items, deadline=deadline, budget=self._producing.budget
            )
        except QueratorError as error:
            return error
        assert isinstance(result, StageResult)
        if result.committed:
            return None
        count = len(part.command.lengths) >> 2
        return StagedPart(part.partition, count, checksum, result.repeated)

    async def _committed(
        self, queue: Queue, call: StageCall | CommitCall, deadline: float | None
    ) -> int:
        """The last committed batch of the producer; -1: none is known."""
        group = queue.groups[0]
        query = CommittedQuery(group, (call.producer,))
        [committed] = await self._router.read(group, query, deadline=deadline)
        return int(committed)

    # --- commit ------------------------------------------------------------------------------

    async def commit(
        self, queue: Queue, call: CommitCall, *, deadline: float | None
    ) -> CommitReply:
        """Answered when the decision is made; items then become visible partition by partition.

        Raises TRANSACTION_ABORTED when a stage is missing or differs from the call, and when the
        number of partitions has changed since; QUEUE_FULL; TOO_MANY_DEDUP_KEYS; OUTCOME_UNKNOWN
        when there is no decision in time: repeat the call.
        """
        try:
            begin = Begin(call.producer, call.batch, participants(queue, call))
        except QueratorError as error:
            gone = error.code is ErrorCode.TRANSACTION_ABORTED
            if gone and call.batch <= await self._committed(queue, call, deadline):
                return CommitReply(True, self._durable)
            raise
        route = self._router.routes(queue)[0]
        latest = self._loop.time() + COMMIT_WAIT_MS_MAX / 1000 if deadline is None else deadline
        while True:
            begun = await self._router.call(route, begin, deadline=latest)
            assert isinstance(begun, TxnResult)
            if begun.state is TransactionState.COMMITTED:
                return CommitReply(True, self._durable)
            decided = await self._decision(route, call, begun, latest)
            if decided.state is TransactionState.COMMITTED:
                return CommitReply(not begun.mine, self._durable)
            if begun.mine:
                raise _aborted(call, decided)

    async def _decision(
        self, route: PartitionRoute, call: CommitCall, begun: TxnResult, latest: float
    ) -> TxnResult:
        """Waits for the decision on the call's transaction, or for the end of another one."""
        while True:
            left_ms = int((latest - self._loop.time()) * 1000)
            query = TxnQuery(
                route.group,
                begun.txn,
                call.producer,
                call.batch,
                max(1, min(left_ms, DECISION_WAIT_MS)),
                finished=not begun.mine,
            )
            cause: QueratorError | None = None
            try:
                result: TxnResult = await self._router.read(route.group, query, deadline=latest)
            except QueratorError as error:
                cause = error
            else:
                if not query.waits(result):
                    return result
            if cause is not None or self._loop.time() >= latest:
                raise QueratorError(
                    ErrorCode.OUTCOME_UNKNOWN,
                    f"the commit of batch {call.batch} was accepted and is not decided; repeat it",
                    field="batch",
                    value=str(call.batch),
                ) from cause

    # --- abort and list ----------------------------------------------------------------------

    async def abort(self, queue: Queue, call: AbortCall, *, deadline: float | None) -> AbortReply:
        """Drops the stages of the batch, unless it is committed. Repeats are harmless."""
        route = self._router.routes(queue)[0]
        command = AbortTxn(call.producer, call.batch)
        result = await self._router.call(route, command, deadline=deadline)
        assert isinstance(result, TxnResult)
        if result.state is TransactionState.COMMITTED:
            return AbortReply(True, 0)
        routes = self._router.routes(queue)
        dropped = await each([self._drop(one, call, deadline) for one in routes])
        stages = 0
        for one, count in zip(routes, dropped, strict=True):
            if not isinstance(count, QueratorError):
                stages += count
            elif not self._directory.has_left(queue, one.group, count):
                raise count
        return AbortReply(False, stages)

    async def _drop(self, route: PartitionRoute, call: AbortCall, deadline: float | None) -> int:
        stages = 0
        while True:
            command = DropStages(call.producer, call.batch)
            result = await self._router.call(route, command, deadline=deadline)
            assert isinstance(result, Done)
            if not result.changed:
                return stages
            stages += result.changed

    async def staged(self, queue: Queue, *, deadline: float | None) -> TxnList:
        """Batches that are staged or being committed."""
        pages = await each(
            [
                self._router.read(group, StagedQuery(group, TXN_LIST_MAX), deadline=deadline)
                for group in queue.groups
            ]
        )
        batches: dict[tuple[str, int], StagedTotals] = {}
        more = False
        for group, page in zip(queue.groups, pages, strict=True):
            if isinstance(page, QueratorError):
                if self._directory.has_left(queue, group, page):
                    continue
                raise page
            assert isinstance(page, StagedPage)
            more = more or page.more
            for one in page.batches:
                key = (one.producer, one.batch)
                batches[key] = batches[key].joined(one) if key in batches else one
        ordered = sorted(batches.values(), key=lambda one: (one.begun_ms, one.producer, one.batch))
        return TxnList(tuple(ordered[:TXN_LIST_MAX]), more or len(ordered) > TXN_LIST_MAX)

    async def totals(
        self, queue: Queue, producer: str, *, deadline: float | None
    ) -> ProducerTotals:
        """Totals of a producer's batches in the queue."""
        group = queue.groups[0]
        query = ProducerQuery(group, producer)
        totals: ProducerTotals = await self._router.read(group, query, deadline=deadline)
        return totals


def last_partition(call: CommitCall) -> int:
    """Number of the last partition that a commit names; 0: it names none."""
    return max((part.partition for one in call.attempts for part in one.parts), default=0)


def participants(queue: Queue, call: CommitCall) -> tuple[Participant, ...]:
    """Participants ordered by partition. Raises QueratorError: INVALID_ARGUMENT, LIMIT_EXCEEDED,
    TRANSACTION_ABORTED.
    """
    claims: dict[int, list[StageClaim]] = {}
    tasks: set[int] = set()
    count = 0
    for position, attempt in enumerate(call.attempts):
        if attempt.task in tasks:
            raise invalid(
                f"stages[{position}].task",
                f"names task {attempt.task} again: one attempt at a task counts",
                value=attempt.task,
            )
        tasks.add(attempt.task)
        for part in attempt.parts:
            claims.setdefault(part.partition, []).append(
                StageClaim(attempt.task, attempt.attempt, part.count, part.checksum)
            )
            count += 1
    if count > TXN_CLAIMS_MAX:
        raise over_limit("stages", value=count, limit=TXN_CLAIMS_MAX, unit="stages")
    gone = [partition for partition in claims if partition >= len(queue.groups)]
    if gone:
        raise QueratorError(
            ErrorCode.TRANSACTION_ABORTED,
            f"batch {call.batch} was staged in partition {gone[0]}, which queue {queue.name} does "
            "not have; stage its tasks again",
            field="stages",
            value=str(gone[0]),
        )
    return tuple(
        Participant(partition, queue.groups[partition], tuple(claims[partition]))
        for partition in sorted(claims)
    )


def _aborted(call: CommitCall, decided: TxnResult) -> QueratorError:
    code = decided.code or ErrorCode.TRANSACTION_ABORTED
    reason = decided.message or "the reason is not remembered"
    message = f"batch {call.batch} of producer {call.producer} is not committed: {reason}"
    return QueratorError(code, message, field="stages", value=str(call.batch))
