"""Partitions stopped by a defect or by damage: a queue with such a partition is not changed.

A change of a queue needs every partition. A partition without a leader soon gets one, and then
follows the change. A stopped partition follows only after an operator has repaired it. So all
partitions are asked before the change is decided. A change that one of them could not follow is
refused as a whole, and nothing of it is stored.

A stopped replica reports that it is stopped when it is asked. Replicas are asked when the partition
does not answer within LOOK_S: while the others are a majority, the partition works without the
stopped replica.
"""

import asyncio

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.nodes import node_name
from querator.model.queues import Queue
from querator.partition.dedup_export import ClosureQuery
from querator.service.reading.queries import NOT_OPEN
from querator.service.routing.outcomes import each
from querator.service.routing.router import Router

LOOK_S = 1.0
"""Maximum time for the answer of a partition, and then for that of its replicas."""

_STOPPED = (ErrorCode.INTERNAL, ErrorCode.STORAGE_FAILED)


async def check_running(router: Router, queue: Queue, *, deadline: float | None) -> None:
    """Raises STORAGE_FAILED when partitions of the queue are stopped; takes at most half of the
    time until the deadline.
    """
    answers = await each(
        [
            router.read(group, ClosureQuery(group), deadline=_latest(deadline))
            for group in queue.groups
        ]
    )
    silent = [number for number, answer in enumerate(answers) if isinstance(answer, QueratorError)]
    reasons = await each(
        [_why_stopped(router, queue.groups[number], _latest(deadline)) for number in silent]
    )
    stopped = {
        number: reason
        for number, reason in zip(silent, reasons, strict=True)
        if isinstance(reason, str) and reason
    }
    if stopped:
        raise _refusal(queue, stopped)


def _latest(deadline: float | None) -> float:
    now_s = asyncio.get_running_loop().time()
    return now_s + LOOK_S if deadline is None else min(now_s + LOOK_S, (now_s + deadline) / 2)


async def _why_stopped(router: Router, group: GroupId, latest: float) -> str:
    """Reports of the stopped replicas of a partition; empty: no replica reports that it
    is stopped.
    """
    nodes = [node_name(replica.node) for replica in router.map.replicas(group)]
    answers = await each([_ask(router, node, group, latest) for node in nodes])
    return "; ".join(
        f"node {node}: {answer.message}"
        for node, answer in zip(nodes, answers, strict=True)
        if isinstance(answer, QueratorError)
        and (answer.code in _STOPPED or answer.field == NOT_OPEN)
    )


async def _ask(router: Router, node: str, group: GroupId, latest: float) -> None:
    """Raises QueratorError."""
    query = ClosureQuery(group)
    try:
        async with asyncio.timeout_at(latest):
            await router.query(node, query)
    except TimeoutError:
        raise QueratorError(ErrorCode.UNAVAILABLE, f"node {node} does not answer") from None


def _refusal(queue: Queue, stopped: dict[int, str]) -> QueratorError:
    numbers = ", ".join(map(str, stopped))
    reasons = "; ".join(f"partition {number} ({reason})" for number, reason in stopped.items())
    return QueratorError(
        ErrorCode.STORAGE_FAILED,
        f"queue {queue.name} was not changed, because a partition of it is stopped and would not "
        f"apply the change: {reasons}. The log of that node has the details. Check its data with "
        "querator verify, replace it with querator node replace, and repeat the request",
        field="partition",
        value=numbers,
    )
