"""Results of items: what `Client.produce_and_wait` and its kin return, and how they wait."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from querator.client.errors import (
    ErrorCode,
    ItemDied,
    ItemRemoved,
    OutcomeUnknown,
    RequestError,
    ResultNotKept,
    ResultTimeout,
    Unavailable,
    make_error,
)
from querator.client.items import AnyItem, id_texts, instant
from querator.client.transport.channel import Connection
from querator.client.transport.nodes import ATTEMPT_SECONDS, Nodes
from querator.client.values import DeadReason, Item, ItemId
from querator.model import limits
from querator.v1 import queue_service_pb2

KEEP_RESULT_DEFAULT = timedelta(minutes=10)
"""Of items whose producer waits: after a `ResultTimeout` it can ask again."""
_FEW = 16
_GATHER_SECONDS = 0.01
_MARGIN_SECONDS = 2.0
"""How much longer than its wait a request may take: to reach a node, and to be answered."""

ResultOutcome = Literal["completed", "dead", "removed", "none", "waiting"]
"""How an item has ended. "none": it has no result to wait for. "waiting": it has not ended."""
RESULT_OUTCOMES: tuple[ResultOutcome, ...] = ("completed", "dead", "removed", "none", "waiting")


class ItemResult(msgspec.Struct, frozen=True):
    """The end of an item that was produced with `keep_result`. `data`: what its consumer has
    returned; empty, when that is nothing. `reason`, `error` (the last words of a consumer) and
    `attempts` are those of a dead item. `error` of an item without a result says why it has none.
    """

    id: ItemId
    outcome: ResultOutcome
    data: bytes = b""
    reason: DeadReason | None = None
    error: str = ""
    attempts: int = 0
    ended_at: datetime | None = None

    def value(self) -> bytes:
        """What the consumer has returned. Raises `ItemDied`, `ItemRemoved`, `ResultNotKept`, and
        `ResultTimeout` if the item has not ended.
        """
        match self.outcome:
            case "completed":
                return self.data
            case "dead":
                assert self.reason is not None
                raise ItemDied(
                    self.id, reason=self.reason, error=self.error, attempts=self.attempts
                )
            case "removed":
                raise ItemRemoved(self.id)
            case "none":
                raise ResultNotKept(self.id, self.error)
            case "waiting":
                raise ResultTimeout(self.id)


def asking(item: AnyItem) -> Item:
    """The item, which asks for its result to be kept."""
    item = item if isinstance(item, Item) else Item(item)
    return item if item.keep_result is not None else replace(item, keep_result=KEEP_RESULT_DEFAULT)


async def wait_all(
    nodes: Nodes, namespace: str, queue: str, item_ids: Iterable[ItemId | str], most: timedelta
) -> list[ItemResult]:
    """The results of items, in their order, as soon as all have ended, or after `most`. Raises
    `RequestError`.
    """
    texts = id_texts(item_ids)
    _check(texts, most)
    waiting = _Waiting(nodes, namespace, queue, most)
    while left := waiting.left(texts):
        if not await waiting.ask(left):
            break
        if len(left) > _FEW:
            # More of them end meanwhile: an answer costs a look at each.
            await asyncio.sleep(_GATHER_SECONDS)
    return [waiting.result(text) for text in texts]


class _Waiting:
    """The calls that wait for the results of one or more items."""

    def __init__(self, nodes: Nodes, namespace: str, queue: str, timeout: timedelta) -> None:
        self._nodes = nodes
        self._namespace, self._queue = namespace, queue
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + timeout.total_seconds()
        self._found: dict[str, ItemResult] = {}

    def left(self, texts: Sequence[str]) -> list[str]:
        return [text for text in dict.fromkeys(texts) if text not in self._found]

    def result(self, text: str) -> ItemResult:
        known = self._found.get(text)
        return ItemResult(ItemId.parse(text), "waiting") if known is None else known

    async def ask(self, texts: list[str]) -> bool:
        """Waits for the first of the items to end. False: none has until the timeout."""
        request = queue_service_pb2.WaitResultsRequest(
            namespace=self._namespace, queue=self._queue, item_ids=texts
        )
        seconds = max(0.0, self._until - self._loop.time())
        try:
            response = await self._nodes.call(
                lambda node, left: self._send(node, request, left),
                seconds=seconds + _MARGIN_SECONDS if seconds else None,
                patience=seconds + ATTEMPT_SECONDS,
                changes=False,
            )
        except (Unavailable, OutcomeUnknown):
            if seconds and self._loop.time() >= self._until:
                return False
            raise
        for item in response.items:
            self._found[item.item_id] = _result(item)
        return bool(response.items) or self._loop.time() < self._until

    async def _send(
        self, node: Connection, request: queue_service_pb2.WaitResultsRequest, left: float
    ) -> queue_service_pb2.WaitResultsResponse:
        waits_ms = int(max(0.0, self._until - self._loop.time()) * 1000)
        request.wait_timeout.FromMilliseconds(min(waits_ms, limits.REQUEST_TIMEOUT_MS_MAX))
        response: queue_service_pb2.WaitResultsResponse = await node.queues.WaitResults(
            request, timeout=left
        )
        return response


def _result(item: queue_service_pb2.EndedItem) -> ItemResult:
    return ItemResult(
        id=ItemId.parse(item.item_id),
        outcome=RESULT_OUTCOMES[item.outcome - 1],
        data=item.data,
        reason=DeadReason(item.reason) if item.reason else None,
        error=item.error,
        attempts=item.attempts,
        ended_at=instant(item.ended_at) if item.HasField("ended_at") else None,
    )


def _check(texts: list[str], timeout: timedelta) -> None:
    if not texts:
        raise make_error(ErrorCode.INVALID_ARGUMENT, "item_ids must not be empty", field="item_ids")
    most = limits.REQUEST_ITEMS_MAX
    if len(texts) > most:
        raise _outside("item_ids", f"{len(texts)} items", f"{most} items")
    longest = timedelta(milliseconds=limits.REQUEST_TIMEOUT_MS_MAX)
    if not timedelta(0) <= timeout <= longest:
        raise _outside("timeout", str(timeout), f"0 to {longest}")


def _outside(name: str, value: str, limit: str) -> RequestError:
    return make_error(
        ErrorCode.LIMIT_EXCEEDED,
        f"{name} is {value}; the limit is {limit}",
        field=name,
        limit=limit,
        value=value,
    )
