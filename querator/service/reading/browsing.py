"""Scans of partitions, page by page, made by the leader's node in separate threads.

    stream ──page──► router ──► leader's node: ReadIndex ──► scan thread ──► columns

A page is read from a snapshot that ends with the page. So a scan pins no pages of the storage,
however slowly it is read. The thread may wait for the disk; the event loop and the raft thread do
not.
"""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from querator.model.calls import BrowseCall, BrowsedItem, BrowsedPage
from querator.model.commands import Refusal
from querator.model.limits import BATCH_READS_MAX, BROWSES_MAX, SCANS_CONNECTION_MAX
from querator.model.reader_calls import BatchPage
from querator.partition.browse import Span, browse
from querator.partition.look_ahead import look_ahead
from querator.partition.reader_queries import Outlook, batch_part, outlook
from querator.partition.schedule_queries import (
    DueCounts,
    DuePage,
    due_counts,
    due_items,
    due_keys,
)
from querator.service.admission import Slots
from querator.service.routing.forwarder import (
    AdvanceQuery,
    AheadQuery,
    BatchQuery,
    BrowseQuery,
    DueCountsQuery,
    DueItemsQuery,
    DueKeysQuery,
    DueQuery,
)
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router, deadline_after
from querator.storage.environment import Environment
from querator.wire.columns import encode_columns


def scan_slots() -> Slots:
    return Slots("scans", most=BROWSES_MAX, most_of_one=SCANS_CONNECTION_MAX)


def batch_slots() -> Slots:
    return Slots("reads of batches", most=BATCH_READS_MAX, most_of_one=SCANS_CONNECTION_MAX)


class Scans:
    """Makes pages of scans and of batches, each kind in a thread of its own, so that neither waits
    for the other. Pages of schedules and look-aheads are scans, and outlooks of readers with a last
    position are made where batches are. Used on the event loop.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._browses = ThreadPoolExecutor(1, thread_name_prefix="browse")
        self._batches = ThreadPoolExecutor(1, thread_name_prefix="batch")
        self._closed = False

    async def page(self, query: BrowseQuery) -> BrowsedPage:
        """Raises UNAVAILABLE when the scans are closed."""
        if self._closed:
            raise stopping_error()
        return await asyncio.get_running_loop().run_in_executor(self._browses, self._page, query)

    async def batch(self, query: BatchQuery) -> BatchPage:
        """Raises QueratorError: BATCH_RELEASED, BATCH_NOT_FOUND, READER_NOT_FOUND, …."""
        if self._closed:
            raise stopping_error()
        loop = asyncio.get_running_loop()
        page = await loop.run_in_executor(self._batches, self._batch, query)
        if isinstance(page, Refusal):
            raise page.as_error()
        return page

    async def outlook(self, query: AdvanceQuery) -> Outlook:
        """Raises UNAVAILABLE when the scans are closed."""
        if not query.command.upto_position:
            # A few rows.
            return self._outlook(query)
        # A position may cost LANES_PASSED_MAX seeks.
        if self._closed:
            raise stopping_error()
        return await asyncio.get_running_loop().run_in_executor(self._batches, self._outlook, query)

    async def due(self, query: DueQuery) -> DuePage | DueCounts | tuple[BrowsedItem, ...]:
        """Raises UNAVAILABLE when the scans are closed."""
        if self._closed:
            raise stopping_error()
        return await asyncio.get_running_loop().run_in_executor(self._browses, self._due, query)

    async def ahead(self, query: AheadQuery, aside: Collection[int]) -> tuple[int, ...]:
        """Raises UNAVAILABLE when the scans are closed."""
        if self._closed:
            raise stopping_error()
        blocks = frozenset(aside)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._browses, self._ahead, query, blocks)

    async def close(self) -> None:
        """Returns when no thread reads the storage, and none will. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for thread in (self._browses, self._batches):
            # Earlier work of the thread has ended when this call has its turn.
            await asyncio.get_running_loop().run_in_executor(thread, int)
            thread.shutdown(wait=False)

    def _page(self, query: BrowseQuery) -> BrowsedPage:
        span = Span(
            query.from_seq,
            query.upto_seq,
            query.states,
            query.produced_from_ms,
            query.produced_before_ms,
        )
        with self._environment.snapshot() as txn:
            scanned = browse(txn, query.group, span)
        columns = encode_columns(
            query.partition,
            scanned.runs,
            with_value=query.with_value,
            kinds=frozenset(query.kinds),
        )
        return BrowsedPage(columns.data, scanned.next_seq, scanned.upto_seq)

    def _ahead(self, query: AheadQuery, aside: Collection[int]) -> tuple[int, ...]:
        with self._environment.snapshot() as txn:
            return look_ahead(txn, query.group, query.sought, limit=query.limit, aside=aside)

    def _due(self, query: DueQuery) -> DuePage | DueCounts | tuple[BrowsedItem, ...]:
        with self._environment.snapshot() as txn:
            match query:
                case DueKeysQuery():
                    return due_keys(
                        txn, query.group, query.span, after=query.after, limit=query.limit
                    )
                case DueItemsQuery():
                    return due_items(txn, query.group, query.places)
                case DueCountsQuery():
                    return due_counts(
                        txn,
                        query.group,
                        query.span,
                        interval_ms=query.interval_ms,
                        after=query.after,
                    )

    def _outlook(self, query: AdvanceQuery) -> Outlook:
        with self._environment.snapshot() as txn:
            return outlook(txn, query.group, query.command)

    def _batch(self, query: BatchQuery) -> BatchPage | Refusal:
        with self._environment.snapshot() as txn:
            part = batch_part(
                txn,
                query.group,
                query.reader_id,
                query.batch_seq,
                from_index=query.from_index,
                upto_index=query.upto_index,
            )
        if isinstance(part, Refusal):
            return part
        columns = encode_columns(query.partition, part.runs, with_value=query.with_value)
        return BatchPage(columns.data, part.next_index, part.upto_index)


class Browsing:
    """One scan of a partition. Its owner closes it once."""

    def __init__(
        self, call: BrowseCall, route: PartitionRoute, *, router: Router, left: Callable[[], None]
    ) -> None:
        self._call = call
        self._route = route
        self._router = router
        self._upto_seq = call.upto_seq
        self._deadline = deadline_after(call.timeout_ms)
        self.close = left

    async def page(self, from_seq: int) -> BrowsedPage:
        """The page that begins at `from_seq`. The first page fixes the end of the scan. Raises
        QueratorError.
        """
        call = self._call
        query = BrowseQuery(
            group=self._route.group,
            partition=call.partition,
            from_seq=from_seq,
            upto_seq=self._upto_seq,
            states=call.states,
            kinds=call.kinds,
            produced_from_ms=call.produced_from_ms,
            produced_before_ms=call.produced_before_ms,
            with_value=call.with_value,
        )
        group = self._route.group
        page: BrowsedPage = await self._router.read(group, query, deadline=self._deadline)
        self._upto_seq = page.upto_seq
        return page
