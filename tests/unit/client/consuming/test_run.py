"""`Consumer.run`: logs, and the end by `stop` and by signals, against `FakeNode`."""

import asyncio
import logging
import re
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from querator import Node
from querator.client import Client, Item, LeasedItem, Reject, Retry, SyncClient, SyncLeasedItem
from querator.v1 import errors_pb2
from tests.unit.client.fake_node import FakeNode, until

IDLE = timedelta(milliseconds=200)
FOREVER = timedelta(days=1)
WAIT_SECONDS = 20


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    async with FakeNode.running() as node, asyncio.timeout(WAIT_SECONDS):
        yield node


@pytest.fixture
async def client(node: FakeNode) -> AsyncIterator[Client]:
    async with Client(node.address) as client:
        yield client


class Held:
    """A handler that reports its first item, and waits until the test lets it continue."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.handled: list[bytes] = []

    async def __call__(self, item: LeasedItem) -> None:
        self.began.set()
        await self.goes_on.wait()
        self.handled.append(item.payload)


def _completed(node: FakeNode) -> set[int]:
    return {
        run.first_seq + n
        for frame in node.settles
        for lease in frame.complete.leases
        for run in lease.ranges
        for n in range(run.count)
    }


def _released(node: FakeNode) -> set[int]:
    return {
        run.first_seq + n
        for frame in node.settles
        if frame.HasField("retry") and not frame.retry.count_attempt
        for lease in frame.retry.leases
        for run in lease.ranges
        for n in range(run.count)
    }


async def test_an_exception_of_the_handler_is_logged_with_its_traceback(node, client, caplog):
    await node.make_ready([b"a"])

    async def handler(item: LeasedItem) -> None:
        raise ValueError("no such address")

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler)
    (record,) = caplog.records
    assert record.name == "querator.client.handlers"
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("Item 0-1 of q, attempt 1, failed and is retried in ")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no such address"
    assert record.exc_info[2] is not None


async def test_a_lost_lease_and_a_failed_settle_are_logged_and_do_not_end_run(node, client, caplog):
    await node.make_ready([b"a"], [b"b"], [b"c"])
    node.lost = {1}

    async def handler(item: LeasedItem) -> None:
        if item.payload == b"b":
            node.unsettled.append(errors_pb2.ERROR_CODE_STORAGE_FAILED)

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, concurrency=1)
        assert consumer.lost == 1
    assert _completed(node) == {1, 2, 3}
    lost, failed = [record.getMessage() for record in caplog.records]
    assert lost == (
        "Item 0-1 of q, attempt 1, was not settled, as its lease is lost: another consumer may "
        "have the item"
    )
    assert failed.startswith("Item 0-2 of q, attempt 1, may not be settled: STORAGE_FAILED: ")


async def test_stop_gives_waiting_items_back_while_a_handler_still_works(node, client):
    await node.make_ready([b"a", b"b", b"c"], [b"d"])
    handler = Held()
    async with client.consumer("q", prefetch_items=10) as consumer:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(consumer.run(handler, concurrency=1))
            await handler.began.wait()
            consumer.stop()
            await consumer.flush()
            assert _released(node) >= {2, 3}
            assert not running.done()
            handler.goes_on.set()
        assert consumer.held == 0
    assert handler.handled == [b"a"]
    assert _completed(node) == {1}
    assert _released(node) == {2, 3, 4}


async def test_a_delivery_after_stop_goes_back_at_once(node, client):
    await node.make_ready([b"a"])
    handler = Held()
    async with client.consumer("q", prefetch_items=10) as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(handler, concurrency=1))
            await handler.began.wait()
            consumer.stop()
            await node.make_ready([b"late"])
            await until(lambda: _released(node) == {2})
            handler.goes_on.set()
    assert handler.handled == [b"a"]


async def test_handlers_are_cancelled_when_their_grace_is_over(node, client, caplog):
    await node.make_ready([b"a"])
    handler = Held()
    async with client.consumer("q") as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(handler, grace=timedelta(0)))
            await handler.began.wait()
            consumer.stop()
        assert consumer.held == 0
    assert (handler.handled, _released(node)) == ([], {1})
    assert "1 handler did not end in time: its item goes back: 0-1 of q" in caplog.text


def _handler_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "querator.client.handlers"
    ]


async def test_the_last_attempt_is_logged_as_the_death_of_its_item(caplog):
    async with Node(memory=True) as real, real.client() as client:
        await client.create_queue("q", max_attempts=2)
        await client.produce("q", b"a")

        async def handler(item: LeasedItem) -> None:
            raise ValueError("no address")

        async with client.consumer("q", idle_timeout=IDLE) as consumer:
            await consumer.run(handler, retry_first=timedelta(0))
    first, last = _handler_lines(caplog)
    assert first == "Item 0-1 of q, attempt 1, failed and is retried in 0.0 s"
    assert last == "Item 0-1 of q, attempt 2, failed and dies: its 2 attempts are used up"


async def test_the_last_attempt_that_an_item_allows_is_logged_as_its_death(caplog):
    async with Node(memory=True) as real, real.client() as client:
        await client.create_queue("dead", max_attempts=2)
        await client.create_queue("q", max_attempts=5)
        await client.produce("q", Item(b"a", max_attempts=1))

        async def handler(item: LeasedItem) -> None:
            raise ValueError("no address")

        for queue in ("q", "dead"):
            async with client.consumer(queue, idle_timeout=IDLE) as consumer:
                await consumer.run(handler, retry_first=timedelta(0))
    assert [line.partition(" failed and ")[2] for line in _handler_lines(caplog)] == [
        "dies: its only attempt is used up",
        # In a dead queue, its settings hold.
        "is retried in 0.0 s",
        "dies: its 2 attempts are used up",
    ]


async def test_the_last_attempt_of_a_plain_function_is_logged_as_a_death(caplog):
    async with Node(memory=True) as real, real.client() as client:
        await client.create_queue("q", max_attempts=1)
        await client.produce("q", b"a")

        def handler(item: SyncLeasedItem) -> None:
            raise Retry("busy")

        def consume() -> None:
            with (
                SyncClient(real.address) as sync,
                sync.consumer("q", idle_timeout=IDLE) as consumer,
            ):
                consumer.run(handler)

        with caplog.at_level(logging.INFO, "querator.client.handlers"):
            await asyncio.to_thread(consume)
    assert _handler_lines(caplog) == [
        "Item 0-1 of q, attempt 1, dies: its only attempt is used up: busy"
    ]


async def test_handlers_that_do_not_end_are_counted_and_some_items_named(node, client, caplog):
    await node.make_ready(*([b"a"] for _ in range(12)))
    began: list[LeasedItem] = []

    async def handler(item: LeasedItem) -> None:
        began.append(item)
        await asyncio.Event().wait()

    async with client.consumer("q") as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(handler, concurrency=12, grace=timedelta(0)))
            await until(lambda: len(began) == 12)
            consumer.stop()
    [line] = _handler_lines(caplog)
    assert line.startswith("12 handlers did not end in time: their items go back: 0-1, 0-2, ")
    assert line.endswith(", 0-10 and 2 more of q")


async def test_a_second_stop_sets_another_grace(node, client):
    await node.make_ready([b"a"])
    handler = Held()
    async with client.consumer("q") as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(handler, grace=None))
            await handler.began.wait()
            consumer.stop(grace=FOREVER)
            await consumer.flush()
            consumer.stop(grace=timedelta(0))
    assert (handler.handled, _released(node)) == ([], {1})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_run(node, client, number):
    await node.make_ready([b"a"])
    handler = Held()
    before = signal.getsignal(number)
    async with client.consumer("q") as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(handler))
            await handler.began.wait()
            signal.raise_signal(number)
            handler.goes_on.set()
    assert signal.getsignal(number) == before
    assert (handler.handled, _completed(node)) == ([b"a"], {1})


async def test_a_second_signal_ends_the_handlers(node, client):
    await node.make_ready([b"a"])
    handler = Held()
    async with client.consumer("q") as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(handler, grace=None))
            await handler.began.wait()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
    assert (handler.handled, _released(node)) == ([], {1})


async def test_a_signal_handler_of_the_program_stays(node, client):
    await node.make_ready([b"a"])
    handler = Held()
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        async with client.consumer("q") as consumer:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(consumer.run(handler))
                await handler.began.wait()
                signal.raise_signal(signal.SIGTERM)
                assert received == [signal.SIGTERM]
                consumer.stop()
                handler.goes_on.set()
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_handler_may_ask_for_a_retry_or_a_rejection(
    node: FakeNode, client: Client, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "querator.client.handlers")
    some_day = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    asked = {
        b"0": Retry("busy", delay=timedelta(hours=1), count_attempt=False),
        b"1": Retry(at=some_day),
        b"2": Retry("again"),
        b"3": Reject("no address"),
    }

    async def handle(item: LeasedItem) -> None:
        raise asked[item.payload]

    await node.make_ready([*asked])
    async with client.consumer("q", prefetch_items=10, idle_timeout=IDLE) as consumer:
        await consumer.run(handle, concurrency=1, retry_first=timedelta(0))
    busy, at, again, rejected = (frame.retry for frame in node.settles)
    assert (busy.error, busy.count_attempt, busy.HasField("retry_at")) == ("busy", False, True)
    assert at.retry_at.ToDatetime(UTC) == some_day
    assert (again.error, again.count_attempt, again.HasField("retry_at")) == ("again", True, False)
    assert (rejected.error, rejected.dead) == ("no address", True)
    assert "Item 0-1 of q, attempt 1, is retried in 3600.0 s: busy" in caplog.messages
    assert "Item 0-4 of q, attempt 1, is rejected: no address" in caplog.messages
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("waiting", [False, True], ids=["raised", "settled"])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"retry_at": datetime(2040, 1, 1)}, "retry_at is .*; it must have a time zone"),  # noqa: DTZ001
        ({"retry_at": datetime.max.replace(tzinfo=UTC)}, "retry_at is .* ahead; at most 3650 days"),
        ({"delay": timedelta.max}, "delay is .*; at most 3650 days"),
    ],
    ids=["naive", "far", "long"],
)
async def test_a_bad_retry_is_the_failure_of_its_item(node, client, caplog, bad, words, waiting):
    await node.make_ready([b"bad"], [b"good"])

    async def handler(item: LeasedItem) -> None:
        if item.payload == b"bad":
            settled = item.retry(**bad)
            if waiting:
                await settled

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, concurrency=1)
    assert _completed(node) == {2}
    (retry,) = [frame.retry for frame in node.settles if frame.HasField("retry")]
    assert re.match(f"ValueError: {words}", retry.error)


async def test_a_retry_that_was_changed_afterwards_is_the_failure_of_its_item(node, client, caplog):
    await node.make_ready([b"bad"], [b"good"])

    async def handler(item: LeasedItem) -> None:
        if item.payload == b"bad":
            retry = Retry("later")
            retry.at = datetime(2040, 1, 1)  # noqa: DTZ001 - that is the point
            raise retry

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, concurrency=1)
    assert _completed(node) == {2}
    (retry,) = [frame.retry for frame in node.settles if frame.HasField("retry")]
    assert retry.error.startswith("ValueError: retry_at is ")


async def test_an_error_text_that_is_not_unicode_does_not_end_the_consumer(node, client, caplog):
    # The runner of the tests does not carry such a text.
    caplog.set_level(logging.CRITICAL, "querator.client.handlers")
    await node.make_ready([b"bad"], [b"good"])

    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def handler(item: LeasedItem) -> None:
        raise OSError("no file \udcff") if item.payload == b"bad" else Silent

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, concurrency=1)
    errors = [frame.retry.error for frame in node.settles]
    assert errors == ["OSError: no file ?", "Silent"]


async def test_an_exception_of_on_error_does_not_end_the_consumer(node, client, caplog):
    await node.make_ready([b"a"], [b"b"])

    async def handler(item: LeasedItem) -> None:
        raise ValueError(item.payload)

    def on_error(item: LeasedItem, error: Exception) -> None:
        raise LookupError("no such channel")

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, on_error=on_error)
    assert [frame.retry.error for frame in node.settles] == [
        "ValueError: b'a'",
        "ValueError: b'b'",
    ]
    assert "on_error failed for item 0-1 of q, attempt 1" in caplog.messages


async def test_a_cancellation_inside_a_handler_fails_its_item_alone(node, client):
    await node.make_ready([b"a"], [b"b"])

    async def handler(item: LeasedItem) -> None:
        if item.payload == b"a":
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, concurrency=1)
    assert _completed(node) == {2}
    (retry,) = [frame.retry for frame in node.settles if frame.HasField("retry")]
    assert (retry.error, retry.count_attempt) == ("CancelledError", True)


async def test_delays_of_days_double_up_to_their_limit(node, client):
    await node.make_ready([b"a"])
    node.attempt = 1_000

    async def handler(item: LeasedItem) -> None:
        raise ValueError

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        days = timedelta(days=400)
        await consumer.run(handler, retry_first=days, retry_most=2 * days)
    (frame,) = node.settles
    assert frame.retry.HasField("retry_at")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry_first": -IDLE}, "retry_first is -1 day, .*; it must not be negative"),
        ({"retry_most": timedelta(0)}, "retry_most is 0:00:00, less than retry_first 0:00:01"),
        ({"retry_most": timedelta.max}, "retry_most is .*; at most 3650 days"),
        ({"retry_first": timedelta.max}, "retry_first is .*; at most 3650 days"),
        ({"grace": -IDLE}, "grace is .*; it must not be negative"),
        ({"handler_timeout": timedelta(0)}, "handler_timeout is 0:00:00; it must be above zero"),
        ({"retry_on": [OSError], "reject_on": [OSError]}, "in retry_on and in reject_on"),
    ],
)
async def test_wrong_times_of_run_are_refused(client, options, words):
    async def handler(item: LeasedItem) -> None: ...

    async with client.consumer("q") as consumer:
        with pytest.raises(ValueError, match=words):
            await consumer.run(handler, **options)


SHORT = timedelta(milliseconds=10)


async def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_item_retried(
    node, client, caplog
):
    await node.make_ready([b"slow"], [b"quick"])
    handler = Held()
    cancelled = []

    async def handle(item: LeasedItem) -> None:
        if item.payload == b"slow":
            try:
                await handler(item)
            except asyncio.CancelledError:
                cancelled.append(item.payload)
                raise

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handle, concurrency=1, handler_timeout=SHORT)
    assert (cancelled, _completed(node)) == ([b"slow"], {2})
    (retry,) = [frame.retry for frame in node.settles if frame.HasField("retry")]
    assert (retry.error, retry.count_attempt) == ("handler did not end within 0.01 s", True)
    assert any(
        line.startswith("Item 0-1 of q, attempt 1, failed and is") for line in caplog.messages
    )


async def test_a_timeout_of_the_handlers_own_is_not_that_of_run(node, client):
    await node.make_ready([b"a"])

    async def handle(item: LeasedItem) -> None:
        raise TimeoutError("the mail server")

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handle, handler_timeout=FOREVER, reject_on=[TimeoutError])
    (frame,) = node.settles
    assert (frame.retry.error, frame.retry.dead) == ("TimeoutError: the mail server", True)


async def test_exceptions_retry_and_reject_by_their_type(node, client):
    await node.make_ready([b"0", b"1", b"2"])
    errors = {b"0": FileNotFoundError("x"), b"1": OSError("y"), b"2": KeyError("z")}

    async def handle(item: LeasedItem) -> None:
        raise errors[item.payload]

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handle, retry_on=[OSError], reject_on=[FileNotFoundError])
    assert {frame.retry.error: frame.retry.dead for frame in node.settles} == {
        "FileNotFoundError: x": True,
        "OSError: y": False,
        "KeyError: 'z'": True,
    }


async def test_a_handler_is_cancelled_when_the_lease_of_its_item_is_lost(node, client, caplog):
    """It worked on although another consumer could have the item."""
    await node.make_ready([b"a", b"b"])
    node.lost = {1, 2}
    waits, ended = asyncio.Event(), []

    async def handler(item: LeasedItem) -> None:
        if item.payload == b"a":
            await waits.wait()
            return
        waits.set()
        assert not item.lost
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append((item.payload, item.lost))

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, concurrency=2, cancel_lost=True)
        assert consumer.lost == 2
    assert ended == [(b"b", True)]
    assert any("Item 0-2 of q, attempt 1, is given up, as its lease is lost" in one for one in
               caplog.messages)  # fmt: skip


async def test_a_handler_may_wait_for_the_loss_of_its_lease(node, client):
    await node.make_ready([b"a", b"b"])
    node.lost = {1, 2}
    both, told = asyncio.Event(), []

    async def handler(item: LeasedItem) -> None:
        if item.payload == b"a":
            await both.wait()
            return
        both.set()
        await item.until_lost()
        await item.until_lost()
        told.append(item.lost)

    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        await consumer.run(handler, concurrency=2)
        assert consumer.lost == 2
    assert told == [True]


@pytest.mark.parametrize(
    ("concurrency", "chosen", "held"), [(2, None, 2), (None, None, 8), (2, 5, 5)]
)
async def test_run_leases_as_many_items_as_it_handles(
    node, client, concurrency: int | None, chosen: int | None, held: int
):
    """It leased 200 ahead, so that other consumers were idle."""
    await node.make_ready(*([b"%d" % n] for n in range(12)))
    handler = Held()
    async with client.consumer("q", prefetch_items=chosen) as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(handler, concurrency=concurrency))
            await until(lambda: consumer.held == held)
            assert len(node.ready) == 12 - held
            consumer.stop()
            handler.goes_on.set()
