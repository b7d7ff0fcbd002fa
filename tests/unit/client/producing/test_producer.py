"""The producer against `FakeNode`."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from querator.client import Client, Item
from querator.client.errors import (
    ConnectionFailed,
    ErrorCode,
    InvalidArgument,
    LimitExceeded,
    OutcomeUnknown,
    ProducerExpired,
    QueueFull,
    QueueNotFound,
    RequestError,
    Unavailable,
    make_error,
)
from querator.client.items import keyed_by_content
from querator.client.producing.produce_stream import Lane
from querator.v1 import errors_pb2, queue_service_pb2
from tests.unit.client.fake_node import FakeNode, refusal

SHORT = timedelta(milliseconds=200)


async def test_calls_at_the_same_time_share_requests_and_keep_their_order():
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q", batch_items=50) as producer:
            stored = await asyncio.gather(*(producer.produce(b"%d" % n) for n in range(200)))
    assert node.stored == [b"%d" % n for n in range(200)]
    assert [item.seq for item in stored] == list(range(1, 201))
    assert len(node.requests) < 20
    assert [request.sequence for request in node.requests] == list(range(1, len(node.requests) + 1))


async def test_bulk_submits_and_single_calls_of_one_task_stay_in_order():
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q", batch_items=10, max_in_flight=3) as producer:
            await producer.submit(b"0")
            stored = await producer.produce_many(b"%d" % n for n in range(1, 95))
            for n in range(95, 130):
                await producer.submit(b"%d" % n)
            last = await producer.produce(b"130")
    assert node.stored == [b"%d" % n for n in range(131)]
    assert [item.seq for item in stored] == list(range(2, 96))
    assert last.seq == 131


@pytest.mark.parametrize("ordered", [True, False])
async def test_items_are_keyed_by_their_content(ordered: bool):
    own = Item("one", dedup_key="own")
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q", ordered=ordered, dedup_by_content=True) as producer:
            await producer.produce(b"one")
            await producer.submit("two")
            await producer.produce_many([b"one", Item("three", kind="k"), own])
        await client.produce("q", b"one", own, dedup_by_content=True)
        await client.produce("q", b"one")
    sent = [item for request in node.requests for item in request.items]
    expected = [
        keyed_by_content(item).dedup_key
        for item in (b"one", b"two", b"one", Item("three", kind="k"), own, b"one", own)
    ]
    assert [item.dedup_key for item in sent] == [*expected, ""]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_first_refusal_for_lack_of_a_leader_is_logged(
    stream: bool, caplog: pytest.LogCaptureFixture
):
    refused = refusal("UNAVAILABLE")
    refused.message = "partition 0 of queue q has no leader (b, c unreachable); not executed"
    async with FakeNode.running() as node, Client(node.address) as client:
        answers = [refused, refused, None]
        node.decide = lambda request: answers.pop(0) if answers else None
        if stream:
            async with client.producer("q") as producer:
                await producer.produce(b"x")
        else:
            await client.produce("q", b"x")
    waited = [
        one.getMessage() for one in caplog.records if one.name == "querator.client.connection"
    ]
    assert waited == [
        "Waiting: partition 0 of queue q has no leader (b, c unreachable); not executed",
        "Requests are executed again",
    ]


async def test_large_items_are_cut_into_requests_by_bytes():
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q", batch_bytes=1000) as producer:
            await producer.produce_many([b"x" * 400] * 5 + [b"y" * 3000])
    assert [len(request.items) for request in node.requests] == [1, 2, 1, 1, 1]
    assert len(node.stored) == 6


async def test_an_answer_lost_with_its_connection_is_asked_for_again():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.cut_answers = 3
        async with client.producer("q", batch_items=5) as producer:
            stored = await producer.produce_many(b"%d" % n for n in range(50))
    assert node.stored == [b"%d" % n for n in range(50)]
    assert [item.seq for item in stored] == list(range(1, 51))
    assert any(item.repeated for item in stored)


async def test_a_single_call_is_idempotent_as_well():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.cut_answers = 2
        stored = await client.produce("q", b"a", b"b")
    assert node.stored == [b"a", b"b"]
    assert [item.seq for item in stored] == [1, 2]
    assert len({request.sequence for request in node.requests}) == 1


async def test_after_single_calls_were_forgotten_the_next_one_has_a_new_identity():
    async with FakeNode.running() as node, Client(node.address) as client:
        await client.produce("q", b"a")
        forgotten = node.requests[-1].producer_id

        def decide(request):
            return refusal("PRODUCER_EXPIRED") if request.producer_id == forgotten else None

        node.decide = decide
        with pytest.raises(ProducerExpired):
            await client.produce("q", b"b")
        await client.produce("q", b"c")
    assert node.stored == [b"a", b"c"]


async def test_a_refusal_for_the_time_being_keeps_the_order():
    async with FakeNode.running() as node, Client(node.address) as client:
        refused: list[int] = []

        def decide(request):
            if request.sequence == 3 and len(refused) < 2:
                refused.append(request.sequence)
                return refusal("OVERLOADED")
            return None

        node.decide = decide
        async with client.producer("q", batch_items=2) as producer:
            await producer.produce_many(b"%d" % n for n in range(20))
    assert node.stored == [b"%d" % n for n in range(20)]
    assert refused == [3, 3]


async def test_a_bad_item_among_gathered_ones_fails_alone():
    async with FakeNode.running() as node, Client(node.address) as client:

        def decide(request):
            for index, item in enumerate(request.items):
                if item.payload == b"bad":
                    return refusal("LIMIT_EXCEEDED", field=f"items[{index}].payload", limit="1 B")
            return None

        node.decide = decide
        async with client.producer("q") as producer:
            results = await asyncio.gather(
                *(producer.produce(payload) for payload in (b"a", b"bad", b"b", b"bad", b"c")),
                return_exceptions=True,
            )
            assert (await producer.produce(b"d")).seq == 4
    assert node.stored == [b"a", b"b", b"c", b"d"]
    errors = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in errors] == [LimitExceeded, LimitExceeded]
    assert isinstance(errors[0], LimitExceeded)
    assert errors[0].field == "payload"


async def test_bulk_names_the_item_by_its_place_in_the_call_and_sees_the_rest_through():
    async with FakeNode.running() as node, Client(node.address) as client:

        def decide(request):
            payloads = [item.payload for item in request.items]
            if b"17" in payloads:
                field = f"items[{payloads.index(b'17')}].kind"
                return refusal("INVALID_ARGUMENT", field=field)
            return None

        node.decide = decide
        async with client.producer("q", batch_items=5) as producer:
            with pytest.raises(InvalidArgument) as caught:
                await producer.produce_many(b"%d" % n for n in range(30))
    assert caught.value.field == "items[17].kind"
    assert "15 to 19" in caught.value.__notes__[0]
    kept = [n for n in range(30) if not 15 <= n < 20]
    assert node.stored == [b"%d" % n for n in kept]


async def test_flush_and_the_end_of_the_block_raise_what_nobody_asked_for():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.decide = lambda request: refusal("QUEUE_NOT_FOUND")
        with pytest.raises(QueueNotFound):
            async with client.producer("q") as producer:
                await producer.submit(b"x")
        async with client.producer("q") as producer:
            future = await producer.submit(b"x")
            with pytest.raises(QueueNotFound):
                await producer.flush()
            with pytest.raises(QueueNotFound):
                await future


async def test_full_for_too_long_says_full():
    async with FakeNode.running() as node, Client(node.address, request_timeout=SHORT) as c:
        node.decide = lambda request: refusal("QUEUE_FULL")
        async with c.producer("q") as producer:
            with pytest.raises(QueueFull):
                await producer.produce(b"x")
        with pytest.raises(QueueFull):
            await c.produce("q", b"x")


async def test_a_repeat_that_is_refused_leaves_the_outcome_of_the_first_attempt_unknown():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.cut_answers = 1
        forgotten: list[bytes] = []

        def decide(request: queue_service_pb2.ProduceRequest) -> Any:
            forgotten.append(request.producer_id)
            expired = len(forgotten) > 1 and request.producer_id == forgotten[0]
            return refusal("PRODUCER_EXPIRED") if expired else None

        node.decide = decide
        with pytest.raises(OutcomeUnknown, match="PRODUCER_EXPIRED"):
            await client.produce("q", b"x")
        assert node.stored == [b"x"], "it is stored: nobody may be told that it was refused"
        await client.produce("q", b"y")
        assert node.stored == [b"x", b"y"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_stream_that_breaks_leaves_the_outcome_unknown_when_the_repeat_is_refused(ordered):
    async with FakeNode.running() as node, Client(node.address) as client:
        asked: list[int] = []

        def decide(request: queue_service_pb2.ProduceRequest) -> Any:
            asked.append(request.sequence)
            return refusal("QUEUE_NOT_FOUND") if len(asked) > 1 else None

        node.decide = decide
        node.cut_answers = 1
        async with client.producer("q", ordered=ordered) as producer:
            with pytest.raises(OutcomeUnknown, match="QUEUE_NOT_FOUND"):
                await producer.produce(b"x")
        assert node.stored == [b"x"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unknown_outcome_says_what_is_not_known_and_why(stream):
    leaderless = errors_pb2.Error(
        code=errors_pb2.ERROR_CODE_NOT_LEADER,
        message="partition 2 of queue mail has no leader (n2, n3 unreachable); not executed",
    )
    second = timedelta(seconds=1)
    async with FakeNode.running() as node, Client(node.address, request_timeout=second) as client:
        node.decide = lambda _: leaderless if node.stored else None
        node.cut_answers = 1
        async with client.producer("mail") as producer:
            with pytest.raises(OutcomeUnknown) as caught:
                await (producer.produce(b"x") if stream else client.produce("mail", b"x"))
    assert caught.value.message == (
        "outcome unknown: this item may or may not be stored. Partition 2 of queue mail has no "
        "leader (n2, n3 unreachable)"
    )


async def test_no_answer_in_time_leaves_the_outcome_unknown():
    async with FakeNode.running() as node, Client(node.address, request_timeout=SHORT) as c:
        node.silent = True
        async with c.producer("q") as producer:
            with pytest.raises(OutcomeUnknown, match="unknown: these 2 items may or may not be"):
                await producer.produce_many([b"x", b"y"])
            node.silent = False
            assert (await producer.produce(b"z")).seq == 3


async def test_a_full_window_holds_callers_back():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.silent = True
        producer = client.producer("q", batch_items=2, max_in_flight=3)
        given: list[int] = []

        async def give() -> None:
            for n in range(100):
                await producer.submit(b"%d" % n)
                given.append(n)

        async def bulk() -> None:
            await producer.produce_many(b"%d" % n for n in range(100))

        async def flood() -> None:
            async with asyncio.timeout(0.3), producer, asyncio.TaskGroup() as tasks:
                tasks.create_task(give())
                tasks.create_task(bulk())

        with pytest.raises(TimeoutError):
            await flood()
    assert len(given) <= 8
    assert len(node.requests) == 3


async def test_leaving_by_an_exception_does_not_wait_and_leaves_nothing_behind():
    before = asyncio.all_tasks()
    async with FakeNode.running() as node:
        node.silent = True
        async with Client(node.address) as client:
            producer = client.producer("q")
            futures = []

            async def submit_and_fail() -> None:
                async with producer:
                    futures.extend([await producer.submit(b"x") for _ in range(3)])
                    raise KeyError

            with pytest.raises(KeyError):
                await submit_and_fail()
            for future in futures:
                with pytest.raises((OutcomeUnknown, Unavailable)):
                    await future
            with pytest.raises(Unavailable, match="closed"):
                await producer.produce(b"y")
    assert asyncio.all_tasks() == before


async def test_a_cancelled_caller_disturbs_nobody():
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q", batch_items=4, max_in_flight=1) as producer:
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(producer.produce(b"%d" % n)) for n in range(40)]
                await asyncio.sleep(0)
                for call in calls[::2]:
                    call.cancel()
            assert all(call.done() for call in calls)
    assert {b"%d" % n for n in range(1, 40, 2)} <= set(node.stored)


async def test_nobody_listening_is_an_error_that_says_so():
    async with Client("127.0.0.1:1", connect_timeout=timedelta(0)) as client:
        with pytest.raises(ConnectionFailed, match=r"refused at 127\.0\.0\.1:1\. Nothing listens"):
            await client.produce("q", b"x")
        async with client.producer("q") as producer:
            with pytest.raises(ConnectionFailed):
                await producer.produce(b"x")
        async with client.consumer("q") as consumer:
            with pytest.raises(ConnectionFailed):
                await anext(consumer)


async def test_a_closed_client_says_so():
    async with FakeNode.running() as node:
        client = Client(node.address)
        await client.produce("q", b"x")
        producer = client.producer("q")
        async with producer:
            node.silent = True
            future = await producer.submit(b"y")
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await future
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await producer.flush()
    with pytest.raises(Unavailable, match="closed"):
        await client.produce("q", b"x")


async def test_an_idle_producer_waits_for_nothing_when_its_stream_breaks(
    monkeypatch: pytest.MonkeyPatch,
):
    broken = asyncio.Event()
    on_broken = Lane.on_broken

    def noted(lane: Lane, error: RequestError) -> bool:
        again = on_broken(lane, make_error(ErrorCode.OUTCOME_UNKNOWN, "the stream was cut"))
        broken.set()
        return again

    monkeypatch.setattr(Lane, "on_broken", noted)
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q") as producer:
            await producer.produce(b"x")
            await node.stop()
            await broken.wait()
            assert client.waits_for(0) is None
