"""A worker against a node in memory."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from querator import Client, Node, Reject, Retry, Worker
from querator.client import DeadReason, ItemState, LeasedItem, SyncLeasedItem
from querator.client.errors import (
    ErrorCode,
    LeaseLost,
    NamespaceNotFound,
    QueueDeleting,
    QueueNotFound,
)
from querator.client.sync import handler_threads
from querator.worker import WorkerResult
from querator.worker import worker as worker_module
from querator.worker.loading import LoadError
from querator.worker.metrics import WorkerMetrics
from querator.worker.outcomes import ItemOutcome
from tests.unit.client.fake_node import until

NOW = timedelta(0)
BOUND_S = 30


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Node(memory=True) as node, node.client() as client:
        await client.create_queue("q", max_attempts=3)
        yield client


async def done(client: Client, handler: Any, **options: Any) -> WorkerResult:
    """Handles what is ready."""
    async with asyncio.timeout(BOUND_S):
        return await Worker(client, "q", handler, **options).run(until_empty=True)


async def test_an_async_handler_gets_leased_items_on_the_loop(client: Client):
    await client.produce("q", *(b"%d" % n for n in range(100)))
    seen: list[bytes] = []
    loop = asyncio.get_running_loop()

    async def handle(item: LeasedItem) -> None:
        assert asyncio.get_running_loop() is loop
        seen.append(item.payload)

    assert await done(client, handle, concurrency=7) == WorkerResult(completed=100)
    assert sorted(seen) == sorted(b"%d" % n for n in range(100))
    assert (await client.stats("q")).total.completed == 100


@pytest.mark.parametrize("option", ["idle_timeout", "lease_timeout", "name", "retry_on"])
async def test_an_option_of_a_wrong_type_is_named(client: Client, option: str):
    options: dict[str, Any] = {option: 3}
    with pytest.raises(TypeError, match=f"^{option} is 3; it must be a"):
        Worker(client, "q", as_async(lambda item: None), **options)


async def test_another_handler_gets_waiting_items_on_threads(client: Client):
    await client.produce("q", b"a", b"b")
    together = threading.Barrier(2)
    threads: set[str] = set()

    def handle(item: SyncLeasedItem) -> None:
        together.wait(BOUND_S)
        threads.add(threading.current_thread().name)
        item.extend(timedelta(minutes=5))
        assert item.remaining > timedelta(minutes=4)

    assert await done(client, handle) == WorkerResult(completed=2)
    assert len(threads) == 2
    assert threading.current_thread().name not in threads


async def test_what_a_plain_function_returns_is_awaited(client: Client):
    await client.produce("q", b"a")
    seen: list[bytes] = []

    async def work(payload: bytes) -> None:
        seen.append(payload)

    assert await done(client, lambda item: work(item.payload)) == WorkerResult(completed=1)
    assert seen == [b"a"]


async def test_what_a_plain_function_returns_does_not_block_the_loop_by_its_item(client: Client):
    await client.produce("q", b"a")

    async def work(item: SyncLeasedItem) -> None:
        item.complete()

    result = await done(client, lambda item: work(item), retry_first=timedelta(minutes=1))
    assert result == WorkerResult(retried=1)
    [item] = [item async for item in client.peek("q")]
    assert "make the handler async" in item.errors[0]


async def test_a_delivery_may_take_longer_than_a_look_at_an_empty_queue(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    """A consumer was opened and closed again and again, and no item arrived in time; or the worker
    ended while an item was on its way.
    """
    monkeypatch.setattr("querator.worker.worker._EMPTY_S", 0.0002)
    for _ in range(10):
        await client.produce("q", b"a")
        assert await done(client, as_async(lambda item: None)) == WorkerResult(completed=1)


async def test_an_error_while_it_looks_ends_the_worker(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    async def fails(name: str) -> None:
        raise QueueNotFound(ErrorCode.QUEUE_NOT_FOUND, "there is no queue q")

    monkeypatch.setattr(client, "stats", fails)
    with pytest.raises(QueueNotFound):
        await done(client, as_async(lambda item: None))


async def test_a_stopped_worker_does_not_ask_for_counts(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    """The counts may not come while a partition has no leader."""
    asked: list[str] = []
    stats = client.stats

    async def counted(name: str) -> Any:
        asked.append(name)
        return await stats(name)

    monkeypatch.setattr(client, "stats", counted)
    await client.produce("q", b"a")

    async def handle(item: LeasedItem) -> None:
        asked.clear()
        worker.stop()

    worker = Worker(client, "q", handle)
    async with asyncio.timeout(BOUND_S):
        assert await worker.run(until_empty=True) == WorkerResult(completed=1)
    assert asked == []


async def test_a_plain_handler_that_raises_stop_iteration_has_failed(client: Client):
    """No future of asyncio carries it: the call did not end."""
    await client.produce("q", b"a")
    result = await done(client, lambda item: next(iter(())), retry_first=timedelta(minutes=1))
    assert result == WorkerResult(retried=1)
    [item] = [item async for item in client.peek("q")]
    assert "the handler raised StopIteration()" in item.errors[0]


async def test_handlers_that_have_ended_are_not_left_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handler_threads, "HANDLERS_LEFT_MAX", 1)
    threads, let, ended = handler_threads.HandlerThreads(), threading.Event(), threading.Event()

    def handle(_: object) -> None:
        assert let.wait(BOUND_S)
        ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads.run(handle, None)
    let.set()
    assert ended.wait(BOUND_S)
    await until(lambda: all(call.done() for call in threads._left))
    await threads.room()
    threads.end()
    assert not caplog.records


def as_async(function: Callable[[LeasedItem], object]) -> Callable[[LeasedItem], Any]:
    async def handle(item: LeasedItem) -> None:
        function(item)

    return handle


def raising(error: BaseException) -> list[Callable[[Any], Any]]:
    """Handlers of both kinds that raise the exception."""

    def handle(item: SyncLeasedItem) -> None:
        raise error

    async def handle_async(item: LeasedItem) -> None:
        raise error

    return [handle, handle_async]


@pytest.mark.parametrize("kind", [0, 1], ids=["threads", "async"])
async def test_an_exception_retries_the_item_and_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture, kind: int
):
    await client.produce("q", b"a")
    handler = raising(ValueError("no address"))[kind]
    result = await done(client, handler, retry_first=timedelta(minutes=1))
    assert result == WorkerResult(retried=1)
    [item] = [item async for item in client.peek("q")]
    assert (item.state, item.errors) == (ItemState.SCHEDULED, ("ValueError: no address",))
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert (record.name, record.exc_info is not None) == ("querator.worker", True)
    message = record.getMessage()
    assert message.startswith("Item 0-1 of q, attempt 1, failed (ValueError) and is retried in ")
    # The traceback begins in the handler.
    assert "_caller.call" not in caplog.text
    assert "raise error" in caplog.text


@pytest.mark.parametrize("kind", [0, 1], ids=["threads", "async"])
async def test_system_exit_of_a_handler_fails_its_item_alone(client: Client, kind: int):
    await client.produce("q", b"a")
    handler = raising(SystemExit(3))[kind]
    assert await done(client, handler, retry_first=timedelta(minutes=1)) == WorkerResult(retried=1)


async def test_a_cancellation_inside_a_handler_fails_its_item_alone(client: Client):
    await client.produce("q", b"a", b"b")

    async def handle(item: LeasedItem) -> None:
        if item.payload == b"a":
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

    result = await done(client, handle, retry_first=timedelta(minutes=1))
    assert result == WorkerResult(completed=1, retried=1)


async def test_a_late_async_handler_is_cancelled_and_its_item_retried(client: Client):
    await client.produce("q", b"a")

    async def handle(item: LeasedItem) -> None:
        await asyncio.Event().wait()

    short = timedelta(milliseconds=10)
    result = await done(client, handle, handler_timeout=short, retry_first=timedelta(minutes=1))
    assert result == WorkerResult(retried=1)
    [item] = [item async for item in client.peek("q")]
    assert item.errors == ("handler did not end within 0.01 s",)


async def test_handlers_that_run_long_are_logged(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise nothing would show that an item has been leased for hours."""
    monkeypatch.setattr(worker_module, "LONG_S", 0.02)
    await client.produce("q", b"a", b"b")
    let = asyncio.Event()

    async def handle(item: LeasedItem) -> None:
        await let.wait()

    def logged() -> list[str]:
        return [one for one in caplog.messages if "has been handled for" in one]

    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(done(client, handle))
        await until(lambda: len(logged()) >= 4)
        let.set()
    assert working.result().completed == 2
    assert logged()[0].startswith("Item 0-")
    assert logged()[0].endswith(" of q, attempt 1, has been handled for 0 s; its lease is extended")


async def test_outcomes_have_the_meaning_of_the_counts_of_the_queue(client: Client):
    """`retried` and `released` of a worker were said to count otherwise than those of stats."""
    await client.produce("q", b"retry", b"reject", b"fine", b"stay")
    worker: list[Worker] = []

    async def handle(item: LeasedItem) -> None:
        if item.payload == b"retry":
            raise Retry("later", delay=timedelta(hours=1))
        if item.payload == b"reject":
            raise Reject("bad")
        if item.payload == b"stay":
            worker[0].stop(grace=timedelta(0))
            await asyncio.Event().wait()

    worker.append(Worker(client, "q", handle, concurrency=1))
    async with asyncio.timeout(BOUND_S):
        result = await worker[0].run()
    assert result == WorkerResult(completed=1, retried=1, rejected=1, released=1)
    total = (await client.stats("q")).total
    assert total.retried == result.retried + result.rejected + result.died
    assert total.released == result.released


async def test_a_handler_whose_lease_is_lost_is_cancelled_if_that_is_wanted(client: Client):
    await client.produce("q", b"a")
    ended: list[bool] = []

    async def extend(item: LeasedItem) -> None:
        with pytest.raises(LeaseLost):
            await item.extend()

    async def handle(item: LeasedItem) -> None:
        # Another process ends the lease.
        await client.complete("q", item.lease_id)
        learns = asyncio.get_running_loop().create_task(extend(item))
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item.lost)
            await learns

    assert await done(client, handle, cancel_lost=True) == WorkerResult(lost=1)
    assert ended == [True]


async def test_a_late_handler_on_a_thread_continues_and_holds_up_no_other(client: Client):
    await client.produce("q", b"slow", b"quick")
    let, seen = threading.Event(), list[bytes]()

    def handle(item: SyncLeasedItem) -> None:
        if item.payload == b"slow":
            assert let.wait(BOUND_S)
            with pytest.raises(RuntimeError, match="settled already"):
                item.complete()
        seen.append(item.payload)

    short = timedelta(milliseconds=50)
    try:
        result = await done(
            client,
            handle,
            concurrency=1,
            handler_timeout=short,
            retry_first=timedelta(minutes=1),
        )
    finally:
        let.set()
    assert (result.completed, result.retried) == (1, 1)
    await until(lambda: seen == [b"quick", b"slow"])


async def test_handlers_that_are_left_behind_are_bounded(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handler_threads, "HANDLERS_LEFT_MAX", 2)
    await client.produce("q", *(b"%d" % n for n in range(3)))
    let, running = threading.Event(), list[bytes]()

    def handle(item: SyncLeasedItem) -> None:
        running.append(item.payload)
        assert let.wait(BOUND_S)

    short = timedelta(milliseconds=10)
    worker = Worker(
        client,
        "q",
        handle,
        concurrency=1,
        handler_timeout=short,
        retry_first=timedelta(minutes=1),
    )
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(worker.run(until_empty=True))
        try:
            await until(lambda: any("no further handler is called" in m for m in caplog.messages))
            assert len(running) == 2
        finally:
            let.set()
    assert task.result().retried >= 2
    assert len(running) == 3


async def test_the_last_attempt_of_an_item_is_its_death(
    client: Client, caplog: pytest.LogCaptureFixture
):
    await client.update_queue("q", max_attempts=2)
    await client.produce("q", b"a")
    handler = raising(KeyError("x"))[1]
    assert await done(client, handler, retry_first=timedelta(0)) == WorkerResult(retried=1, died=1)
    assert "Item 0-1 of q, attempt 2, failed (KeyError) and dies: its 2 attempts are used up" in (
        caplog.messages
    )
    [dead] = await dead_letters(client)
    assert (dead.reason, dead.attempts) == (DeadReason.ATTEMPTS, 2)


async def test_exceptions_reject_by_their_type(client: Client):
    await client.produce("q", b"a")
    result = await done(client, raising(KeyError("x"))[1], reject_on=[LookupError])
    assert result == WorkerResult(rejected=1)
    assert [dead.errors for dead in await dead_letters(client)] == [("KeyError: 'x'",)]


async def dead_letters(client: Client) -> list[Any]:
    """The origins of the dead letters, as soon as there are any."""
    async with asyncio.timeout(BOUND_S):
        while True:
            found = [item.dead_letter async for item in client.dead_letters("q")]
            if found:
                return found


async def test_handlers_ask_by_exceptions(client: Client, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "querator.worker")
    await client.produce("q", b"retry", b"reject")

    async def handle(item: LeasedItem) -> None:
        if item.payload == b"retry":
            raise Retry("busy", delay=timedelta(hours=1), count_attempt=False)
        raise Reject("no address")

    assert await done(client, handle) == WorkerResult(retried=1, rejected=1)
    [dead] = await dead_letters(client)
    assert (dead.reason, dead.errors) == (DeadReason.REJECTED, ("no address",))
    [item] = [item async for item in client.peek("q")]
    assert (item.state, item.attempt, item.errors) == (ItemState.SCHEDULED, 0, ("busy",))
    assert "Item 0-1 of q, attempt 1, is retried in 3600.0 s: busy" in caplog.messages
    assert "Item 0-2 of q, attempt 1, is rejected: no address" in caplog.messages
    assert "Traceback" not in caplog.text


async def test_an_undecodable_payload_is_a_dead_letter_when_asked(client: Client):
    await client.produce("q", b"{", b'{"n": 1}')
    seen: list[Any] = []

    async def handle(item: LeasedItem) -> None:
        seen.append(item.json())

    result = await done(client, handle, on_undecodable="reject")
    assert result == WorkerResult(completed=1, rejected=1)
    assert seen == [{"n": 1}]
    [dead] = await dead_letters(client)
    assert "the payload of item 0-1 (1 bytes) is not JSON" in dead.errors[0]


async def test_attempts_are_used_up(client: Client):
    await client.produce("q", b"a")
    result = await done(client, raising(ValueError("x"))[1], retry_first=NOW, retry_most=NOW)
    assert result == WorkerResult(retried=2, died=1)
    [dead] = await dead_letters(client)
    assert (dead.reason, dead.attempts) == (DeadReason.ATTEMPTS, 3)


async def test_a_handler_may_settle_its_item(client: Client, caplog: pytest.LogCaptureFixture):
    await client.produce("q", b"complete", b"retry")

    async def handle(item: LeasedItem) -> None:
        if item.payload == b"complete":
            await item.complete()
            raise ValueError("afterwards")
        await item.retry(delay=timedelta(hours=1))

    assert await done(client, handle) == WorkerResult(settled=2)
    total = (await client.stats("q")).total
    assert (total.completed, total.scheduled) == (1, 1)
    assert "failed after it was settled" in caplog.text


async def test_a_lost_lease_is_counted_and_logged(client: Client, caplog: pytest.LogCaptureFixture):
    await client.produce("q", b"a")

    async def handle(item: LeasedItem) -> None:
        await client.complete("q", item.lease_id)

    assert await done(client, handle) == WorkerResult(completed=1)
    await client.produce("q", b"b")

    async def handle_late(item: LeasedItem) -> None:
        await client.retry("q", item.lease_id, delay=timedelta(hours=1))

    assert await done(client, handle_late) == WorkerResult(lost=1)
    assert "lost its lease: another consumer may have the item" in caplog.text


class Busy:
    """Handlers that run until they are let go, and know when they have begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.free = asyncio.Event()
        self.thread_free = threading.Event()
        self._loop = asyncio.get_running_loop()

    async def handle(self, item: LeasedItem) -> None:
        self.begun.set()
        await self.free.wait()

    def handle_on_thread(self, item: SyncLeasedItem) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        self.thread_free.wait(BOUND_S)


async def test_a_stop_waits_for_handlers_and_begins_no_further_item(client: Client):
    await client.produce("q", b"a", b"b")
    busy = Busy()
    worker = Worker(client, "q", busy.handle, concurrency=1)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        await busy.begun.wait()
        worker.stop()
        busy.free.set()
        assert await running == WorkerResult(completed=1)
    total = (await client.stats("q")).total
    assert (total.ready, total.completed, total.leased) == (1, 1, 0)


@pytest.mark.parametrize("kind", ["handle", "handle_on_thread"])
async def test_when_the_grace_is_over_items_go_back(client: Client, kind: str):
    await client.produce("q", b"a")
    busy = Busy()
    worker = Worker(client, "q", getattr(busy, kind), grace=timedelta(milliseconds=50))
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        await busy.begun.wait()
        worker.stop()
        assert await running == WorkerResult(released=1)
    busy.thread_free.set()
    [item] = [item async for item in client.peek("q")]
    assert (item.state, item.attempt) == (ItemState.READY, 0)


async def test_signals_stop_it_and_a_second_one_gives_no_time(client: Client):
    await client.produce("q", b"a")
    busy = Busy()
    worker = Worker(client, "q", busy.handle, grace=timedelta(hours=1))
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run(stop_on_signals=True))
        await busy.begun.wait()
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: worker.stopping)
        assert not worker.cut_short
        signal.raise_signal(signal.SIGINT)
        assert await running == WorkerResult(released=1)
    assert worker.cut_short
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_it_ends_when_nothing_comes(client: Client):
    await client.produce("q", b"a")
    busy = Busy()
    busy.free.set()
    worker = Worker(client, "q", busy.handle, idle_timeout=timedelta(seconds=1))
    async with asyncio.timeout(BOUND_S):
        assert await worker.run() == WorkerResult(completed=1)


async def test_an_item_of_its_own_lease_is_extended_while_its_handler_runs(client: Client):
    await client.create_queue("short", lease_timeout=timedelta(seconds=1))
    await client.produce("short", b"a")

    async def handle(item: LeasedItem) -> None:
        # Longer than two leases: another consumer would get the item.
        assert await client.lease("short", wait=timedelta(seconds=2.5)) == []

    result = await Worker(client, "short", handle).run(until_empty=True)
    assert result == WorkerResult(completed=1)


async def test_a_queue_that_does_not_exist(client: Client):
    async def handle(item: LeasedItem) -> None: ...

    with pytest.raises(QueueNotFound):
        await Worker(client, "none", handle).run(until_empty=True)
    assert await Worker(client, "none", handle, create=True).run(until_empty=True) == WorkerResult()
    assert (await client.get_queue("none")).name == "none"
    async with Client(client.address, namespace="nowhere") as other:
        with pytest.raises(NamespaceNotFound):
            await Worker(other, "none", handle).run(until_empty=True)
        await Worker(other, "none", handle, create=True).run(until_empty=True)


async def test_a_queue_that_is_deleted_ends_it_with_the_reason(client: Client):
    async def handle(item: LeasedItem) -> None: ...

    begun = asyncio.Event()
    worker = Worker(client, "q", handle)

    async def delete() -> None:
        await begun.wait()
        await client.delete_queue("q")

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(delete())
        with pytest.raises((QueueDeleting, QueueNotFound), match="queue q"):
            await worker.run(on_begin=begun.set)


async def test_a_stop_before_the_queue_is_found_ends_it():
    async def handle(item: LeasedItem) -> None: ...

    # Nothing answers at this address; the client tries for an hour.
    async with Client(
        "127.0.0.1:1", connect_timeout=timedelta(hours=1), request_timeout=timedelta(minutes=15)
    ) as client:
        worker = Worker(client, "q", handle)
        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            await asyncio.sleep(0)
            worker.stop()
            assert await running == WorkerResult()


@pytest.mark.parametrize("begins", [False, True], ids=["before run", "while it connects"])
@pytest.mark.parametrize("times", [1, 2])
async def test_early_stops_end_it(begins: bool, times: int):
    async def handle(item: LeasedItem) -> None: ...

    # Nothing answers at this address; the client tries for an hour.
    async with Client(
        "127.0.0.1:1", connect_timeout=timedelta(hours=1), request_timeout=timedelta(minutes=15)
    ) as client:
        worker = Worker(client, "q", handle)
        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            if begins:
                await asyncio.sleep(0)
            for grace in [None, NOW][:times]:
                worker.stop(grace=grace)
            assert await running == WorkerResult()
    assert worker.cut_short == (times == 2)


async def test_dropped_rejections_are_announced(client: Client, caplog: pytest.LogCaptureFixture):
    async def handle(item: LeasedItem) -> None: ...

    await client.create_queue("bare", dead_queue="")
    await Worker(client, "bare", handle, reject_on=[ValueError]).run(until_empty=True)
    assert "Queue bare has no dead queue: it drops rejected items." in caplog.text
    caplog.clear()
    await Worker(client, "bare", handle).run(until_empty=True)
    await Worker(client, "q", handle, reject_on=[ValueError]).run(until_empty=True)
    assert "no dead queue" not in caplog.text


async def test_its_log_says_what_it_does(client: Client, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "querator.worker")
    await client.produce("q", b"a")

    async def handle(item: LeasedItem) -> None: ...

    await done(client, handle, name="mailer", concurrency=3)
    assert caplog.messages == [
        f"Worker mailer of q begins: async handler, concurrency 3, at {client.address}",
        "Worker mailer of q ended: 1 completed, 0 retried, 0 rejected",
    ]


async def test_a_worker_runs_once_at_a_time(client: Client):
    async def handle(item: LeasedItem) -> None: ...

    worker = Worker(client, "q", handle)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run(until_empty=True))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="runs already"):
            await worker.run()
        await running
    await worker.run(until_empty=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 4, "prefetch_items": 3}, "prefetch_items"),
        ({"grace": timedelta(seconds=-1)}, "grace is -1 day"),
    ],
)
async def test_wrong_options_are_refused(client: Client, options: dict[str, Any], words: str):
    async def handle(item: LeasedItem) -> None: ...

    with pytest.raises(ValueError, match=words):
        Worker(client, "q", handle, **options)


async def test_what_cannot_be_called_with_an_item_is_refused(client: Client):
    with pytest.raises(LoadError, match=r"\(item, database\) cannot be called"):
        Worker(client, "q", lambda item, database: None)  # type: ignore[arg-type]


async def test_its_metrics_count_outcomes_and_handlers_in_progress(client: Client):
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    await client.produce("q", b"good", b"bad")
    in_progress: list[float | None] = []

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"querator_worker_{name}", {"queue": "q", **labels})

    async def handle(item: LeasedItem) -> None:
        in_progress.append(value("items_in_progress"))
        if item.payload == b"bad":
            raise Reject

    await done(client, handle, metrics=metrics, concurrency=1)
    assert in_progress == [1, 1]
    assert value("items_in_progress") == 0
    assert value("handler_seconds_count") == 2
    counts = {one.value: value("items_total", outcome=one) for one in ItemOutcome}
    assert {name for name, count in counts.items() if count == 1} == {"completed", "rejected"}
    assert sum(count or 0 for count in counts.values()) == 2
