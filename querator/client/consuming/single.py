"""Unary calls that lease, settle and extend, without a stream.

`SingleHolder` sends the settles of items leased by `Client.lease`. Settles of one round of the
event loop share a call.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import uuid_utils

from querator.client.checks import check_result
from querator.client.consuming.leases import LeasedBatch, LeasedItem, LeaseState
from querator.client.consuming.settling import (
    AGAIN_SECONDS,
    NO_RESULTS,
    SettleFrame,
    Settler,
    is_unsettled,
    unsettled_error,
)
from querator.client.consuming.verbs import Verb, requests
from querator.client.errors import ErrorCode, LeaseEnded, RequestError, make_error
from querator.client.items import duration, timestamp
from querator.client.results import extend_outcome, lease_lost, settle_outcome
from querator.client.transport.backoff import Backoff
from querator.client.transport.channel import Connection
from querator.client.transport.nodes import ATTEMPT_SECONDS, Nodes
from querator.client.typed import check_fields, check_unsigned, wrong_type
from querator.client.values import ExtendOutcome, ItemId, LeaseRef, SettleOutcome
from querator.model import limits
from querator.v1 import errors_pb2, items_pb2, queue_service_pb2


def lease_filter(
    kinds: Iterable[str] | None, attributes: Mapping[str, str] | None
) -> queue_service_pb2.LeaseFilter | None:
    """None: nothing is chosen."""
    if kinds is None and attributes is None:
        return None
    if isinstance(kinds, str):
        raise wrong_type("kinds", kinds, "a list or another iterable of texts")
    return queue_service_pb2.LeaseFilter(kinds=kinds or (), attributes=attributes or {})


Held = LeasedItem | LeasedBatch | LeaseRef | str
"""Items of a lease: as they were leased, by reference, or by lease id (all its items)."""


class SingleHolder:
    """`leases.Holder` over unary calls, for one queue."""

    def __init__(self, nodes: Nodes, *, namespace: str, queue: str) -> None:
        self._nodes = nodes
        self._namespace, self._queue = namespace, queue
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._settler = Settler(self._send)
        self._tasks: set[asyncio.Task[None]] = set()

    async def lease(
        self,
        *,
        client_id: str,
        max_items: int,
        max_bytes: int,
        wait: timedelta | None,
        lease_timeout: timedelta | None,
        item_ids: Sequence[str] = (),
        chosen: queue_service_pb2.LeaseFilter | None = None,
        completes: bool = False,
    ) -> list[LeasedBatch]:
        """`completes`: the items are completed before they are sent."""
        _check_number("max_items", max_items, 1, limits.REQUEST_ITEMS_MAX)
        _check_number("max_bytes", max_bytes, 0, limits.REPLY_BYTES_MAX)
        if wait is not None and not timedelta(0) <= wait <= _WAIT_MOST:
            raise _outside("wait", wait, timedelta(0), _WAIT_MOST)
        request = queue_service_pb2.LeaseRequest(
            namespace=self._namespace,
            queue=self._queue,
            client_id=client_id,
            max_items=max_items,
            max_bytes=max_bytes,
            lease_timeout=None
            if lease_timeout is None
            else duration(lease_timeout, "lease_timeout"),
            item_ids=item_ids,
            filter=chosen,
            complete_on_delivery=completes,
        )
        seconds = wait.total_seconds() if wait else 0.0
        until = self._loop.time() + seconds
        while True:
            request.request_id = str(uuid_utils.uuid7())
            try:
                response = await self._nodes.call(
                    lambda node, left: self._ask(node, request, until, left),
                    seconds=seconds + self._nodes.request_timeout,
                    patience=seconds + ATTEMPT_SECONDS,
                    telling=(LeaseEnded,),
                )
            except LeaseEnded:
                # The lease of an unanswered attempt has ended: its items are free again, or lost if
                # they were completed on delivery.
                continue
            batches = self._batches(response)
            for batch in batches if completes else ():
                batch.settled_elsewhere(batch.left)
            return batches

    async def _ask(
        self,
        node: Connection,
        request: queue_service_pb2.LeaseRequest,
        until: float,
        left: float,
    ) -> queue_service_pb2.LeaseResponse:
        waiting = max(0.0, until - self._loop.time())
        if waiting:
            request.wait_timeout.FromMilliseconds(int(waiting * 1000))
        else:
            request.ClearField("wait_timeout")
        response: queue_service_pb2.LeaseResponse = await node.queues.Lease(request, timeout=left)
        return response

    def _batches(self, response: queue_service_pb2.LeaseResponse) -> list[LeasedBatch]:
        now = self._loop.time()
        leases: dict[str, LeaseState] = {}
        batches: list[LeasedBatch] = []
        for message in response.batches:
            lease = leases.setdefault(
                message.lease_id, LeaseState(message, now=now, kept=False, stream=0)
            )
            batches.append(LeasedBatch(message, self, lease))
        return batches

    def settle(
        self, verb: Verb, batch: LeasedBatch, mask: int, results: Mapping[int, bytes] = NO_RESULTS
    ) -> "asyncio.Future[None]":
        self._nodes.check_open()
        return self._settler.settle(verb, batch, mask, results)

    def settled_elsewhere(self, batch: LeasedBatch, mask: int) -> None:
        """Does nothing: single calls do not count held items."""

    def not_settled(self, batch: LeasedBatch, mask: int) -> None:
        """Does nothing, for the same reason."""

    async def extend(
        self,
        lease: LeaseState,
        lease_timeout: timedelta | None,
        checkpoint: queue_service_pb2.ItemCheckpoint | None = None,
    ) -> None:
        outcomes = await extend(
            self._nodes,
            self._namespace,
            self._queue,
            [lease.id],
            lease_timeout,
            checkpoints=() if checkpoint is None else (checkpoint,),
        )
        if not outcomes[0].remaining:
            raise lease_lost(lease.id)
        lease.extended(outcomes[0], now=self._loop.time())
        if outcomes[0].lost_checkpoints:
            raise lease_lost(lease.id)

    def _send(self, frame: SettleFrame) -> None:
        # Owned: `close` awaits it, and its errors go to the frame's waiters.
        task = self._loop.create_task(self._call(frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, frame: SettleFrame) -> None:
        try:
            reason = frame.resolve(
                await settle(
                    self._nodes,
                    self._namespace,
                    self._queue,
                    frame.verb,
                    frame.leases(),
                    results=frame.results(),
                )
            )
            if reason is not None:
                frame.fail(reason)
        except RequestError as error:
            frame.fail(error)
        except Exception as defect:  # noqa: BLE001  a task's top: its waiters get the error
            frame.fail(make_error(ErrorCode.INTERNAL, f"the client failed: {defect!r}"))
        except asyncio.CancelledError:
            frame.fail(make_error(ErrorCode.OUTCOME_UNKNOWN, "the client was closed"))
            raise

    async def close(self, *, patience: float) -> None:
        """Waits for unanswered settles, at most `patience` seconds."""
        self._settler.flush()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


_WAIT_MOST = timedelta(milliseconds=limits.REQUEST_TIMEOUT_MS_MAX)


def _check_number(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _outside(name, value, least, most)


def _outside(name: str, value: object, least: object, most: object) -> RequestError:
    return make_error(
        ErrorCode.LIMIT_EXCEEDED,
        f"{name} is {value}; it must be from {least} to {most}",
        field=name,
        limit=f"{least} to {most}",
        value=str(value),
    )


async def settle(
    nodes: Nodes,
    namespace: str,
    queue: str,
    verb: Verb,
    leases: list[queue_service_pb2.LeaseItems],
    results: Sequence[queue_service_pb2.ItemResult] = (),
) -> list[queue_service_pb2.LeaseOutcome]:
    """Completes or retries; returns one outcome for each lease, in their order. Asks again for
    leases whose partition could not answer, within the client's request timeout. `results` are
    those of a complete.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + nodes.request_timeout
    outcomes = await _settle_once(nodes, namespace, queue, verb, leases, results=results)
    backoff = Backoff(first=AGAIN_SECONDS)
    while True:
        again = [
            place
            for place, outcome in enumerate(outcomes)
            if is_unsettled(outcome) and unsettled_error(outcome).retriable
        ]
        waiting = backoff.next()
        if not again or loop.time() + waiting >= until:
            return outcomes
        await asyncio.sleep(waiting)
        part = [leases[place] for place in again]
        refused = False
        try:
            ids = {lease.lease_id for lease in part}
            theirs = [one for one in results if one.lease_id in ids]
            answers = await _settle_once(nodes, namespace, queue, verb, part, results=theirs)
        except RequestError as error:
            # The known outcomes of the other leases stay.
            answers = [_outcome_of(lease, error) for lease in part]
            refused = not error.retriable
        for place, outcome in zip(again, answers, strict=True):
            if not (_is_unknown(outcomes[place]) and is_unsettled(outcome)):
                outcomes[place] = outcome
        if refused:
            return outcomes


async def _settle_once(
    nodes: Nodes,
    namespace: str,
    queue: str,
    verb: Verb,
    leases: list[queue_service_pb2.LeaseItems],
    results: Sequence[queue_service_pb2.ItemResult],
) -> list[queue_service_pb2.LeaseOutcome]:
    if verb.completes:
        complete = queue_service_pb2.CompleteRequest(
            namespace=namespace,
            queue=queue,
            leases=leases,
            follow_ups=verb.follow_up_messages,
            results=results,
        )
        completed = await nodes.call(
            lambda node, left: node.queues.Complete(complete, timeout=left),
            patience=ATTEMPT_SECONDS,
        )
        return list(completed.outcomes)
    retry = queue_service_pb2.RetryRequest(
        namespace=namespace,
        queue=queue,
        leases=leases,
        retry_at=None if verb.retry_at is None else timestamp(verb.retry_at, "retry_at"),
        dead=verb.dead,
        error=verb.error,
        count_attempt=verb.count_attempt,
        priority=verb.priority,
        attributes=verb.attributes_message,
        clear_checkpoint=verb.clear_checkpoint,
        follow_ups=verb.follow_up_messages,
    )
    retried = await nodes.call(
        lambda node, left: node.queues.Retry(retry, timeout=left), patience=ATTEMPT_SECONDS
    )
    return list(retried.outcomes)


async def settle_held(
    nodes: Nodes,
    namespace: str,
    queue: str,
    verb: Verb,
    held: Iterable[Held],
    result: bytes | None = None,
) -> list[SettleOutcome]:
    """Returns one outcome for each of `held`. Lost items do not raise; the outcomes have them.
    `result` is that of a single item.
    """
    named = list(held)
    results = [] if result is None else [_result_of(named, result)]
    if verb.follow_ups is not None and len(named) != 1:
        raise make_error(
            ErrorCode.LIMIT_EXCEEDED,
            f"held is {len(named)} leases; with follow_ups it must be 1: settle each by itself",
            field="held",
            limit="1",
            value=str(len(named)),
        )
    outcomes: list[queue_service_pb2.LeaseOutcome] = []
    for part in requests(verb, named, _items_of):
        leases = [_lease_items(thing) for thing in part]
        try:
            outcomes += await settle(nodes, namespace, queue, verb, leases, results=results)
        except RequestError as error:
            if not outcomes:
                raise
            # The parts before are settled; their outcomes are returned.
            outcomes += [_outcome_of(lease, error) for lease in leases]
            continue
        for thing in part:
            if isinstance(thing, LeasedItem):
                thing.batch.settled_elsewhere(1 << thing.index)
            elif isinstance(thing, LeasedBatch):
                thing.settled_elsewhere(thing.left)
    return [settle_outcome(outcome) for outcome in outcomes]


def _result_of(named: list[Held], result: bytes) -> queue_service_pb2.ItemResult:
    """Raises `LimitExceeded` unless one item is named."""
    leases = [_lease_items(thing) for thing in named]
    count = sum(run.count for lease in leases for run in lease.ranges)
    if len(leases) != 1 or count != 1:
        raise make_error(
            ErrorCode.LIMIT_EXCEEDED,
            f"held names {count} items of {len(leases)} leases; with result it must be 1 item: "
            "complete each by itself",
            field="held",
            limit="1",
            value=str(count),
        )
    check_result("result", result)
    return queue_service_pb2.ItemResult(
        lease_id=leases[0].lease_id, seq=leases[0].ranges[0].first_seq, data=result
    )


def _items_of(held: Held) -> int:
    """The number of items, or the most that it may be."""
    ranges = _lease_items(held).ranges
    return sum(run.count for run in ranges) if ranges else limits.REQUEST_ITEMS_MAX


def _outcome_of(
    lease: queue_service_pb2.LeaseItems, error: RequestError
) -> queue_service_pb2.LeaseOutcome:
    code = errors_pb2.ErrorCode.ValueType(error.code)
    return queue_service_pb2.LeaseOutcome(lease_id=lease.lease_id, error=code)


def _is_unknown(outcome: queue_service_pb2.LeaseOutcome) -> bool:
    """Whether an attempt may have settled the lease; the refusal of a repeat does not change it."""
    return outcome.error == errors_pb2.ERROR_CODE_OUTCOME_UNKNOWN


def raise_lost(outcomes: list[SettleOutcome]) -> None:
    """Raises `LeaseLost` for the first outcome that has lost items, whose lease is not known, or
    that has no settled items (the lease was ended in another way before). Raises the outcome's own
    error if it is another one.
    """
    for outcome in outcomes:
        if outcome.error not in (None, ErrorCode.LEASE_LOST):
            raise make_error(
                outcome.error,
                f"the partition of lease {outcome.lease_id} could not settle it",
                field="lease_id",
                value=outcome.lease_id,
            )
        if outcome.error is not None or not (outcome.done or outcome.repeated):
            error = lease_lost(outcome.lease_id)
            if outcome.lost:
                error.add_note(f"lost sequences: {', '.join(map(str, outcome.lost[:20]))}")
            raise error


def _lease_items(held: Held) -> queue_service_pb2.LeaseItems:
    if isinstance(held, str):
        return queue_service_pb2.LeaseItems(lease_id=held)
    if isinstance(held, LeasedItem):
        ranges = held.batch.ranges(1 << held.index)
        return queue_service_pb2.LeaseItems(lease_id=held.lease_id, ranges=ranges)
    if isinstance(held, LeasedBatch):
        # No ranges would mean the whole lease, which may have more batches than this one.
        ranges = held.ranges(held.left or (1 << held.count) - 1)
        return queue_service_pb2.LeaseItems(lease_id=held.lease_id, ranges=ranges)
    check_fields(held, "held")
    seqs = sorted({_seq(index, item) for index, item in enumerate(held.items)})
    runs: list[items_pb2.SeqRange] = []
    for seq in seqs:
        if runs and runs[-1].first_seq + runs[-1].count == seq:
            runs[-1].count += 1
        else:
            runs.append(items_pb2.SeqRange(first_seq=seq, count=1))
    return queue_service_pb2.LeaseItems(lease_id=held.lease_id, ranges=runs)


def _seq(index: int, item: ItemId | str | int) -> int:
    name = f"held.items[{index}]"
    if isinstance(item, str):
        item = ItemId.parse(item, field=name)
    seq = item.seq if isinstance(item, ItemId) else item
    if isinstance(seq, bool) or not isinstance(seq, int):
        raise wrong_type(name, item, "an ItemId, a text such as '0-17', or a sequence")
    check_unsigned(name, seq, 64)
    return seq


async def extend(
    nodes: Nodes,
    namespace: str,
    queue: str,
    lease_ids: list[str],
    lease_timeout: timedelta | None,
    *,
    client_id: str = "",
    checkpoints: Sequence[queue_service_pb2.ItemCheckpoint] = (),
) -> list[ExtendOutcome]:
    """Returns one outcome for each lease; `remaining` is zero for a lost lease."""
    request = queue_service_pb2.ExtendRequest(
        namespace=namespace,
        queue=queue,
        lease_ids=lease_ids,
        client_id=client_id,
        lease_timeout=None if lease_timeout is None else duration(lease_timeout, "lease_timeout"),
        checkpoints=checkpoints,
    )
    response = await nodes.call(
        lambda node, left: node.queues.Extend(request, timeout=left), patience=ATTEMPT_SECONDS
    )
    return [extend_outcome(outcome) for outcome in response.outcomes]
