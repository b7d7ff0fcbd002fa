"""Complete, retry and extend: a call is split by partition, and its answers are merged by lease.

A lease id names its group, which is never reused. A lease of another queue, or of an earlier queue
of the same name, is answered LEASE_LOST like any ended lease, without asking a partition. One
exception: a group that is younger than those of the queue may not be known to this node yet.

A call with follow-ups has one lease, so it goes to one partition as a whole, with its follow-ups
(`service.follow_ups`). When the partitions have changed meanwhile, it is refused and not executed,
and sent again with other targets.

A partition that fails affects only its own leases: their outcomes carry the reason (for example
OUTCOME_UNKNOWN: repeat them), the other outcomes are exact. When all leases of a call fail, the
call fails.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from querator.model.calls import (
    Checkpoint,
    CompleteCall,
    ExtendCall,
    ExtendReply,
    LeasedRanges,
    LeaseExtension,
    LeaseOutcome,
    RetryCall,
    ReturnedResult,
    SettleReply,
)
from querator.model.commands import (
    Command,
    Complete,
    Extend,
    ExtendResult,
    LeaseItems,
    Retry,
    SettledLease,
    SettleResult,
)
from querator.model.errors import ErrorCode, QueratorError, invalid
from querator.model.ids import (
    GroupId,
    LeaseNumber,
    PartitionNumber,
    format_lease_id,
    parse_lease_id,
)
from querator.model.limits import OVERLOADED_RETRY_MS
from querator.model.queues import Queue
from querator.service.admission import ConnectionBudget, PartitionBudget
from querator.service.checkpoints import all_lost, with_checkpoints
from querator.service.follow_ups import FollowUpPlan, plan_follow_ups
from querator.service.produce import distant_keys
from querator.service.produce.calls import ProduceService
from querator.service.produce.split import merged_error
from querator.service.results.returned import with_results
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import Accepted, each
from querator.service.routing.router import Router, deadline_after
from querator.service.validate import check_leases

if TYPE_CHECKING:
    from querator.raft.clock import Clock

Settle = Callable[[tuple[LeaseItems, ...]], Command]
"""Makes the command for the leases of one partition."""


class Share(msgspec.Struct):
    """Part of a call for one partition: `leases[i]` is number `positions[i]` of the call."""

    partition: int
    leases: list[LeaseItems]
    positions: list[int]


def command_of(call: CompleteCall | RetryCall) -> Settle:
    if isinstance(call, CompleteCall):
        return lambda leases: Complete(leases, call.all_or_nothing, call.on_delivery)
    return lambda leases: Retry(
        leases=leases,
        retry_at_ms=call.retry_at_ms,
        dead=call.dead,
        error=call.error,
        count_attempt=call.count_attempt,
        all_or_nothing=call.all_or_nothing,
        priority=call.priority,
        attributes=call.attributes,
        clear_checkpoint=call.clear_checkpoint,
    )


def share_out(queue: Queue, leases: Sequence[LeasedRanges], *, field: str) -> list[Share]:
    """Splits leases by partition. Leases that cannot belong to this queue are in no share: they are
    lost.

    Raises INVALID_ARGUMENT naming the malformed id.
    """
    shares: dict[int, Share] = {}
    groups = queue.groups
    for position, ref in enumerate(leases):
        group, partition, lease = parse_lease_id(ref.lease_id, field=field.format(position))
        if partition >= len(groups) or groups[partition] != group:
            continue
        share = shares.get(partition)
        if share is None:
            share = shares[partition] = Share(partition, [], [])
        share.leases.append(LeaseItems(lease, ref.ranges))
        share.positions.append(position)
    return list(shares.values())


async def _shares(
    directory: QueueDirectory,
    queue: Queue,
    leases: Sequence[LeasedRanges],
    *,
    field: str,
    deadline: float | None,
) -> tuple[Queue, list[Share], frozenset[int]]:
    """As `share_out`, for the present partitions of the queue. The positions returned are those of
    leases that may not be lost, because the map could not catch up.
    """
    shares = share_out(queue, leases, field=field)
    if sum(len(share.positions) for share in shares) == len(leases):
        return queue, shares, frozenset()
    newest = max(queue.groups)
    groups = [parse_lease_id(ref.lease_id, field=field)[0] for ref in leases]
    if all(group <= newest for group in groups):
        return queue, shares, frozenset()
    queue, known = await directory.reaching(queue, len(queue.groups), deadline=deadline)
    shares = share_out(queue, leases, field=field)
    if known:
        return queue, shares, frozenset()
    newest = max(queue.groups)
    return queue, shares, frozenset(at for at, group in enumerate(groups) if group > newest)


def _unheard(ref: LeasedRanges) -> QueratorError:
    return QueratorError(
        ErrorCode.UNAVAILABLE,
        f"this node does not know the partition of lease {ref.lease_id}, and its map may be old; "
        "not executed",
        field="lease_id",
        value=ref.lease_id,
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )


def lost(ref: LeasedRanges) -> LeaseOutcome:
    return LeaseOutcome(ref.lease_id, (), (), ref.ranges, ErrorCode.LEASE_LOST)


def failed(ref: LeasedRanges, error: QueratorError) -> LeaseOutcome:
    """Outcome of a lease that is neither done nor lost, as far as this node knows."""
    return LeaseOutcome(ref.lease_id, (), (), (), error.code)


def outcome_of(ref: LeasedRanges, outcome: SettledLease) -> LeaseOutcome:
    error = ErrorCode.LEASE_LOST if outcome.unknown or outcome.lost else None
    return LeaseOutcome(ref.lease_id, outcome.done, outcome.repeated, outcome.lost, error)


def extended(
    queue: Queue, partition: int, result: ExtendResult, *, elapsed_ms: int
) -> list[LeaseExtension]:
    """A partition's answer, in its order. `elapsed_ms`: time since the command was made."""
    group = queue.groups[partition]
    return [
        LeaseExtension(
            format_lease_id(GroupId(group), PartitionNumber(partition), LeaseNumber(lease)),
            deadline_ms,
            max(0, deadline_ms - result.now_ms - elapsed_ms) if deadline_ms else 0,
            tuple(seq for of, seq in result.lost if of == lease) if result.lost else (),
        )
        for lease, deadline_ms in result.outcomes
    ]


async def settle(
    router: Router,
    directory: QueueDirectory,
    queue: Queue,
    call: CompleteCall | RetryCall,
    *,
    budget: PartitionBudget,
    deadline: float | None,
) -> SettleReply:
    """One outcome per lease, in order; `budget` as in `Router.call`. Raises QueratorError when all
    leases fail.
    """
    queue, shares, unheard = await _shares(
        directory, queue, call.leases, field="leases[{}].lease_id", deadline=deadline
    )
    answers = await _ask(
        router=router,
        queue=queue,
        shares=shares,
        command=command_of(call),
        budget=budget,
        deadline=deadline,
        results=call.results if isinstance(call, CompleteCall) else (),
    )
    outcomes: list[LeaseOutcome | None] = [None] * len(call.leases)
    errors = [answer for answer in answers if isinstance(answer, QueratorError)]
    named = sum(len(share.positions) for share in shares) + len(unheard)
    for position in unheard:
        error = _unheard(call.leases[position])
        outcomes[position] = failed(call.leases[position], error)
        errors.append(error)
    if errors and len(errors) == len(shares) + len(unheard) and named == len(outcomes):
        raise merged_error(errors, stored=False)
    for share, answer in zip(shares, answers, strict=True):
        if isinstance(answer, QueratorError):
            for position in share.positions:
                outcomes[position] = failed(call.leases[position], answer)
            continue
        assert isinstance(answer, SettleResult)
        for position, outcome in zip(share.positions, answer.outcomes, strict=True):
            outcomes[position] = outcome_of(call.leases[position], outcome)
    return SettleReply(
        tuple(
            lost(ref) if outcome is None else outcome
            for ref, outcome in zip(call.leases, outcomes, strict=True)
        )
    )


async def extend(
    router: Router,
    directory: QueueDirectory,
    queue: Queue,
    call: ExtendCall,
    *,
    clock: "Clock",
    budget: PartitionBudget,
    deadline: float | None,
) -> ExtendReply:
    """One outcome per lease in order, or for a client by partition and lease. Raises QueratorError
    when a partition fails.
    """
    if call.lease_ids:
        refs = [LeasedRanges(lease_id) for lease_id in call.lease_ids]
        queue, shares, unheard = await _shares(
            directory, queue, refs, field="lease_ids[{}]", deadline=deadline
        )
        if unheard:
            raise _unheard(refs[min(unheard)])
    else:
        shares = _of_all(queue, 0)

    def command(leases: tuple[LeaseItems, ...]) -> Command:
        numbers = tuple(items.lease for items in leases)
        return Extend(numbers, call.client_id, call.lease_timeout_ms)

    asked_s = clock.monotonic_s()
    if call.lease_ids:
        answers = await _ask(
            router=router,
            queue=queue,
            shares=shares,
            command=command,
            budget=budget,
            deadline=deadline,
            checkpoints=call.checkpoints,
        )
    else:
        # Leases in known partitions do not wait for unknown partitions.
        async with asyncio.TaskGroup() as group:
            catching_up = group.create_task(directory.whole(queue, deadline=deadline))
            known = await _ask(
                router=router,
                queue=queue,
                shares=shares,
                command=command,
                budget=budget,
                deadline=deadline,
            )
        newest = catching_up.result()
        same = _in_common(queue.groups, newest.groups)
        more = _of_all(newest, same)
        queue, shares = newest, [*shares[:same], *more]
        answers = [
            *known[:same],
            *await _ask(
                router=router,
                queue=queue,
                shares=more,
                command=command,
                budget=budget,
                deadline=deadline,
            ),
        ]
    elapsed_ms = int((clock.monotonic_s() - asked_s) * 1000)
    merged: list[LeaseExtension] = []
    named = [
        LeaseExtension(lease_id, 0, 0, all_lost(call.checkpoints, lease_id))
        for lease_id in call.lease_ids
    ]
    for share, answer in zip(shares, answers, strict=True):
        if isinstance(answer, QueratorError):
            raise answer
        assert isinstance(answer, ExtendResult)
        outcomes = extended(queue, share.partition, answer, elapsed_ms=elapsed_ms)
        merged += outcomes
        if call.lease_ids:
            for position, outcome in zip(share.positions, outcomes, strict=True):
                named[position] = outcome
    return ExtendReply(tuple(named if call.lease_ids else merged))


def _of_all(queue: Queue, first: int) -> list[Share]:
    """Empty shares of each partition from number `first` on."""
    return [Share(partition, [], []) for partition in range(first, len(queue.groups))]


def _in_common(one: Sequence[GroupId], other: Sequence[GroupId]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    differs = (at for at, (group, its) in pairs if group != its)
    return next(differs, min(len(one), len(other)))


async def _ask(
    router: Router,
    queue: Queue,
    shares: Sequence[Share],
    command: Settle,
    budget: PartitionBudget,
    deadline: float | None,
    checkpoints: Sequence[Checkpoint] = (),
    results: Sequence[ReturnedResult] = (),
) -> Sequence[object]:
    """The answer of each partition, or its error. `checkpoints` are those of an extend, `results`
    those of a complete.
    """
    routes = router.routes(queue)
    calls = []
    for share in shares:
        asked, data = command(tuple(share.leases)), b""
        if checkpoints:
            assert isinstance(asked, Extend)
            asked, data = with_checkpoints(asked, queue.groups[share.partition], checkpoints)
        elif results:
            assert isinstance(asked, Complete)
            asked, data = with_results(asked, queue.groups[share.partition], results)
        calls.append(
            router.call(routes[share.partition], asked, data, deadline=deadline, budget=budget)
        )
    return await each(calls)


class SettleService:
    """Complete, retry and extend, each within the limit of work that this node accepts."""

    def __init__(
        self,
        router: Router,
        directory: QueueDirectory,
        *,
        clock: "Clock",
        calls: ConnectionBudget,
        budget: PartitionBudget,
        producing: ProduceService,
        produces: ConnectionBudget,
    ) -> None:
        """`calls` counts unanswered calls, `budget` their commands. Follow-ups, checkpoints and
        results count as produces: as `produces`, and in the budget of `producing`.
        """
        self._producing = producing
        self._produces = produces
        self._router = router
        self._directory = directory
        self._clock = clock
        self._calls = calls
        self._budget = budget

    async def settle(self, call: CompleteCall | RetryCall) -> SettleReply:
        """One outcome per lease, in order. Raises QueratorError."""
        queue = await self._directory.find(call.namespace, call.queue)
        check_leases(call.leases)
        if call.follow_ups:
            size = sum(len(part.items) for part in call.follow_ups)
            with self._calls.held(), self._produces.held(size):
                return await self._settle_followed(queue, call, deadline_after(call.timeout_ms))
        with ExitStack() as held:
            held.enter_context(self._calls.held())
            budget = self._budget
            if isinstance(call, CompleteCall) and call.results:
                size = sum(len(one.data) for one in call.results)
                held.enter_context(self._produces.held(size))
                budget = self._producing.budget
            return await settle(
                self._router,
                self._directory,
                queue,
                call,
                budget=budget,
                deadline=deadline_after(call.timeout_ms),
            )

    async def _settle_followed(
        self, queue: Queue, call: CompleteCall | RetryCall, deadline: float | None
    ) -> SettleReply:
        """Settles items of one lease, with follow-ups. Raises QueratorError."""
        until_s = self._producing.until_rerouted(deadline)
        (ref,) = call.leases
        while True:
            queue, shares, unheard = await _shares(
                self._directory, queue, call.leases, field="leases[{}].lease_id", deadline=deadline
            )
            if unheard:
                raise _unheard(ref)
            if not shares:
                return SettleReply((lost(ref),))
            partition, leases = shares[0].partition, tuple(shares[0].leases)
            settle_items = command_of(call)(leases)
            assert isinstance(settle_items, Complete | Retry)
            plan = await plan_follow_ups(
                self._directory, self._producing, queue, partition, call.follow_ups
            )
            try:
                result = await self._sent(queue, partition, plan, settle_items, deadline)
            except QueratorError as error:
                if error.code is not ErrorCode.ROUTING_CHANGED:
                    raise
                queue = await self._producing.rerouted(queue, call, until_s, error)
                continue
            assert isinstance(result, SettleResult)
            return SettleReply((outcome_of(ref, result.outcomes[0]),))

    async def _sent(
        self,
        queue: Queue,
        partition: int,
        plan: FollowUpPlan,
        settle_items: Complete | Retry,
        deadline: float | None,
    ) -> Accepted:
        """The partition's answer. Raises QueratorError."""
        route = self._router.routes(queue)[partition]
        while True:
            try:
                return await self._router.call(
                    route,
                    plan.command(settle_items),
                    plan.items,
                    deadline=deadline,
                    budget=self._producing.budget,
                )
            except QueratorError as error:
                if not distant_keys.is_unsure(error):
                    raise
                holders = await distant_keys.holders_of(
                    self._router, queue, route.group, error, deadline
                )
                specials = distant_keys.with_holders(plan.specials, holders)
                plan = msgspec.structs.replace(plan, specials=specials)

    async def extend(self, call: ExtendCall) -> ExtendReply:
        """One outcome per lease in order, or for a client by partition and lease.

        Fails as a whole when a partition fails, because repeating it is harmless.
        """
        queue = await self._directory.find(call.namespace, call.queue)
        if not call.lease_ids and not call.client_id:
            raise invalid("client_id", "must not be empty without lease_ids")
        with ExitStack() as held:
            held.enter_context(self._calls.held())
            budget = self._budget
            if call.checkpoints:
                size = sum(len(one.data) for one in call.checkpoints)
                held.enter_context(self._produces.held(size))
                budget = self._producing.budget
            return await extend(
                self._router,
                self._directory,
                queue,
                call,
                clock=self._clock,
                budget=budget,
                deadline=deadline_after(call.timeout_ms),
            )
