"""What a test expects of a queue.

Effects of other threads and processes come when they come: each assertion waits for its counts, at
most `within`, and then fails with the counts that are there. All of them take a `SyncClient`. In an
async test, call them by `asyncio.to_thread`.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from querator.client import (
    Client,
    DeadReason,
    PartitionStats,
    PeekedItem,
    SyncClient,
    SyncLeasedItem,
)
from querator.client.typed import typed
from querator.worker import Handler, Worker, WorkerResult

WITHIN: Final = timedelta(seconds=10)
_PAUSE_S: Final = 0.01
_LEASED_AT_ONCE: Final = 100


@typed
def assert_completed(
    client: SyncClient, queue: str, count: int, *, within: timedelta = WITHIN
) -> None:
    """Asserts that exactly `count` items of the queue have been completed since it was made. Waits
    at most `within`, in real time. Raises AssertionError with all counts.
    """
    _assert(client, queue, _Expected(f"{count} completed", count, attrgetter("completed")), within)


@typed
def assert_empty(client: SyncClient, queue: str, *, within: timedelta = WITHIN) -> None:
    """Asserts that the queue holds no item: none is ready, leased, scheduled or on its way to a
    dead queue. Waits as `assert_completed`.
    """
    _assert(client, queue, _Expected("no item", 0, _present, falls=True), within)


@typed
def assert_dead(
    client: SyncClient,
    queue: str,
    count: int,
    *,
    reason: DeadReason | Literal["attempts", "expired", "rejected"] | None = None,
    within: timedelta = WITHIN,
) -> None:
    """Asserts that exactly `count` items of the queue have died, since it was made. With `reason`,
    asserts that `count` of its dead letters have this reason; then the queue needs a dead queue.
    Waits as `assert_completed`.
    """
    if reason is None:
        _assert(client, queue, _Expected(f"{count} dead", count, attrgetter("dead")), within)
        return
    reason = DeadReason[reason.upper()] if isinstance(reason, str) else reason
    until = time.monotonic() + within.total_seconds()
    while True:
        reasons = [
            item.dead_letter.reason
            for item in client.dead_letters(queue)
            if item.dead_letter is not None
        ]
        if reasons.count(reason) == count:
            return
        if reasons.count(reason) > count or time.monotonic() > until:
            raise AssertionError(
                f"queue {queue}: {count} dead letters with the reason {reason.name} expected; "
                f"there are: {', '.join(one.name for one in reasons) or 'none'}"
            )
        time.sleep(_PAUSE_S)


@typed
def dead_letters(client: SyncClient, queue: str) -> list[PeekedItem]:
    """Returns the dead letters of the queue, as items of its dead queue: those that have arrived
    there. Each has its origin and its reason in `dead_letter`.
    """
    return list(client.dead_letters(queue))


@typed
def drain(client: SyncClient, queue: str, *, limit: int | None = None) -> list[SyncLeasedItem]:
    """Leases and completes the items that are ready, at most `limit`, and returns them. Does not
    wait for further items. Scheduled items stay; move the clock before.
    """
    found: list[SyncLeasedItem] = []
    while limit is None or len(found) < limit:
        most = _LEASED_AT_ONCE if limit is None else min(_LEASED_AT_ONCE, limit - len(found))
        items = client.lease(queue, max_items=most)
        if not items:
            break
        client.complete(queue, *items)
        found += items
    return found


def work(client: SyncClient, queue: str, handler: Handler, **options: Any) -> WorkerResult:
    """Runs a worker until no item of the queue is ready, and returns its counts. `options` are
    those of `querator.Worker`. The worker has a connection and an event loop of its own, on a
    thread. Retried items are delayed: move the clock, and call it again. Raises the errors of
    `Worker`.
    """

    async def run() -> WorkerResult:
        async with Client(client.address, namespace=client.namespace) as own:
            return await Worker(own, queue, handler, **options).run(until_empty=True)

    with ThreadPoolExecutor(1, thread_name_prefix="querator-work") as thread:
        return thread.submit(asyncio.run, run()).result()


def _present(now: PartitionStats) -> int:
    return now.ready + now.leased + now.scheduled + now.moving + now.reserved + now.held


class _Expected(NamedTuple):
    """`wanted` is what `counted` should be. `falls`: whether it may become lower; totals do not."""

    words: str
    wanted: int
    counted: Callable[[PartitionStats], int]
    falls: bool = False


def _assert(client: SyncClient, queue: str, expected: _Expected, within: timedelta) -> None:
    until = time.monotonic() + within.total_seconds()
    while True:
        now = client.stats(queue).total
        counted = expected.counted(now)
        if counted == expected.wanted:
            return
        too_many = counted > expected.wanted and not expected.falls
        if too_many or time.monotonic() > until:
            raise AssertionError(
                f"queue {queue}: {expected.words} expected; it has completed {now.completed} of "
                f"{now.produced} items; ready {now.ready}, leased {now.leased}, scheduled "
                f"{now.scheduled}, dead {now.dead}"
            )
        time.sleep(_PAUSE_S)
