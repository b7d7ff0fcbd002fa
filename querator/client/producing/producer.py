"""A producer: many single calls become few requests, each stored once and acknowledged durably.

Items that are given at about the same time share a request (`client.producing.produce_stream`). By
default `linger` is about as long as answers take: one batch gathers while the one before it is
being stored, and the nodes have fewer batches to store.

A key determines the partition of its items, while an ordered producer uses one partition. So an
ordered producer has a second lane for its items with keys. This lane sends one request at a time,
so that no request can overtake another one. Items of one key are stored in the order in which they
were given.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import groupby, islice
from types import TracebackType
from typing import Self

from querator.client.checks import check
from querator.client.errors import RequestError
from querator.client.items import AnyItem, cut, has_key, keyed_by_content
from querator.client.producing.produce_stream import Lane
from querator.client.producing.sinks import FutureSink, collect
from querator.client.transport.nodes import Nodes
from querator.client.typed import wrong_type
from querator.client.values import Item, ProducedItem, ProducedItems
from querator.model import limits

BATCH_ITEMS_DEFAULT = limits.BLOCK_ITEMS_MAX
BATCH_BYTES_DEFAULT = limits.BLOCK_BYTES_MAX
BATCH_BYTES_MAX = limits.REQUEST_BYTES_MAX - limits.PAYLOAD_BYTES_MAX
IN_FLIGHT_DEFAULT = 32


class Producer:
    """Puts items into one queue. Made by `Client.producer`; used in an `async with` block.

    Leaving the block waits until all items are answered, and raises the first failure of a
    `submit`. Leaving it by an exception does not wait: the outcome of unanswered requests is then
    unknown.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        namespace: str,
        queue: str,
        batch_items: int = BATCH_ITEMS_DEFAULT,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        linger: timedelta | None = None,
        ordered: bool = True,
        max_in_flight: int = IN_FLIGHT_DEFAULT,
        dedup_by_content: bool = False,
    ) -> None:
        check("batch_items", batch_items, 1, limits.REQUEST_ITEMS_MAX)
        check("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX)
        check("max_in_flight", max_in_flight, 1, limits.STREAM_UNANSWERED_MAX)
        if linger is not None and linger < timedelta(0):
            raise ValueError(f"linger is {linger}; it must not be negative")
        self._nodes = nodes
        self._batch_items = batch_items
        self._batch_bytes = batch_bytes
        self._ordered = ordered
        self._by_content = dedup_by_content
        self._make_lane = partial(
            Lane,
            nodes,
            namespace=namespace,
            queue=queue,
            batch_items=batch_items,
            batch_bytes=batch_bytes,
            linger=None if linger is None else linger.total_seconds(),
        )
        self._lane = self._make_lane(ordered=ordered, max_in_flight=max_in_flight)
        self._keyed: Lane | None = None
        """Lane of an ordered producer for items with keys; None before the first such item."""
        self._submit_failures: list[RequestError] = []

    async def __aenter__(self) -> Self:
        self._nodes.check_open()
        self._lane.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def produce(self, item: AnyItem) -> ProducedItem:
        """Stores one item; returns when it is durable. Calls at about the same time share requests.

        Raises `RequestError` when the item is refused, without effect on other items, and
        `OutcomeUnknown` when it may be stored.
        """
        item = self._keyed_item(item)
        lane = self._lane_of(item)
        return await (lane.add(item) if lane.has_room else await lane.join(item))

    async def submit(self, item: AnyItem) -> "asyncio.Future[ProducedItem]":
        """Returns when the item is in a batch, with a future that is done when it is durable.

        Waits while the window is full, which is the back-pressure. `flush` raises the first
        failure, whether or not the futures are awaited.
        """
        item = self._keyed_item(item)
        lane = self._lane_of(item)
        future = lane.add(item) if lane.has_room else await lane.join(item)
        future.add_done_callback(self._note_failure)
        if not lane.gathers:
            # A batch is full: let it leave, because a loop of submits alone would never wait.
            await asyncio.sleep(0)
        return future

    async def produce_many(self, items: Iterable[AnyItem]) -> ProducedItems:
        """Stores items; returns when all are durable. The cheapest way: the cost is per batch.

        Items are taken as space becomes free, so they may come from a generator of any length. When
        a request fails, the other requests are still completed, and the first failure is raised. A
        note on it names its items; the other items may be stored.
        """
        if isinstance(items, str | bytes | Item | Mapping):
            raise wrong_type("items", items, "a list or another iterable of items")
        sinks: list[tuple[int, FutureSink]] = []
        source = map(self._keyed_item, items)
        loop = asyncio.get_running_loop()
        while chunk := list(islice(source, self._batch_items)):
            for lane, items_there in groupby(chunk, self._lane_of):
                for pieces, size, number in cut(list(items_there), self._batch_bytes):
                    await lane.slot()
                    sink = FutureSink(loop)
                    sinks.append((number, sink))
                    lane.send(pieces, size, number, sink)
        return await collect(sinks)

    async def flush(self) -> None:
        """Returns when all items given so far are answered. Raises the first failure of a `submit`
        since the last flush.
        """
        for lane, last in [(lane, lane.push()) for lane in self._lanes]:
            await lane.wait_answered(last)
        if self._submit_failures:
            failures, self._submit_failures = self._submit_failures, []
            if len(failures) > 1:
                failures[0].add_note(f"{len(failures)} submitted items failed; this is the first")
            raise failures[0]

    async def close(self) -> None:
        """Ends the streams. Unanswered requests fail, with `OutcomeUnknown` if they were sent."""
        for lane in reversed(self._lanes):
            await lane.close()

    @property
    def _lanes(self) -> tuple[Lane, ...]:
        return (self._lane,) if self._keyed is None else (self._lane, self._keyed)

    def _keyed_item(self, item: AnyItem) -> AnyItem:
        return keyed_by_content(item) if self._by_content else item

    def _lane_of(self, item: AnyItem) -> Lane:
        """The lane that sends the item."""
        if not self._ordered or not has_key(item):
            return self._lane
        if self._keyed is None:
            self._lane.check_usable()
            self._keyed = self._make_lane(ordered=False, max_in_flight=1)
            self._keyed.start()
        return self._keyed

    def _note_failure(self, future: "asyncio.Future[ProducedItem]") -> None:
        if not future.cancelled():
            error = future.exception()
            if isinstance(error, RequestError):
                self._submit_failures.append(error)
