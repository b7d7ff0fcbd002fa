"""LeaseStream: credit, deliveries, settling, and the leases at every way to end."""

import asyncio
from typing import Any

import grpc
import pytest

from querator.model import limits
from querator.model.errors import ErrorCode, QueratorError
from querator.server.grpc_server import QUEUE_SERVICE
from querator.v1 import errors_pb2, items_pb2, queue_service_pb2
from tests.unit.server.fake_service import (
    FakeService,
    FakeSubscription,
    RunningServer,
    delivery,
    running_server,
)

Frame = queue_service_pb2.LeaseStreamRequest
NAMED = [queue_service_pb2.LeaseItems(lease_id="a.0.1")]
CREDIT = Frame(credit=queue_service_pb2.Credit(items=10))


async def read(call: Any) -> queue_service_pb2.LeaseStreamResponse:
    async with asyncio.timeout(20):
        answer = await call.read()
    assert isinstance(answer, queue_service_pb2.LeaseStreamResponse), answer
    return answer


async def ended(call: Any) -> grpc.StatusCode:
    async with asyncio.timeout(20):
        code: grpc.StatusCode = await call.code()
    return code


async def subscribed(there: RunningServer, **fields: Any) -> tuple[Any, FakeSubscription]:
    call = there.stub.LeaseStream()
    subscribe = queue_service_pb2.Subscribe(queue="q", client_id="c", **fields)
    await call.write(Frame(request_number=8, subscribe=subscribe))
    answer = await read(call)
    assert answer.request_number == 8
    assert answer.subscribed.durable
    assert answer.subscribed.lease_timeout.ToMilliseconds() == 30_000
    return call, there.service.subscriptions[-1]


async def closed(subscription: FakeSubscription) -> list[bool]:
    await subscription.changes.until(lambda: bool(subscription.closed))
    return subscription.closed


def complete(number: int, **fields: Any) -> Frame:
    return Frame(
        request_number=number,
        complete=queue_service_pb2.CompleteRequest(leases=NAMED, **fields),
    )


async def test_credit_deliveries_and_settling() -> None:
    async with running_server() as there:
        call, subscription = await subscribed(there)
        await call.write(CREDIT)
        await subscription.replies.put(delivery(b"work"))
        leased = await read(call)
        assert leased.request_number == 0
        assert leased.leased.batches[0].items[0].payload == b"work"
        await call.write(complete(1))
        done = await read(call)
        assert (done.request_number, done.completed.outcomes[0].lease_id) == (1, "a.0.1")
        retry = queue_service_pb2.RetryRequest(leases=NAMED)
        await call.write(Frame(request_number=2, retry=retry))
        assert (await read(call)).retried.outcomes[0].lease_id == "a.0.1"
        extend = queue_service_pb2.ExtendRequest(lease_ids=["a.0.1"])
        await call.write(Frame(request_number=3, extend=extend))
        assert (await read(call)).extended.outcomes[0].deadline.ToMilliseconds() == 5_000
        assert subscription.credit == [(10, 0)]


async def test_the_end_of_deliveries_is_not_answered_and_settles_are() -> None:
    async with running_server() as there:
        call, subscription = await subscribed(there)
        await call.write(CREDIT)
        await call.write(Frame(request_number=1, end_deliveries=queue_service_pb2.EndDeliveries()))
        await call.write(complete(2))
        assert (await read(call)).request_number == 2
        assert not subscription.delivers


async def test_refused_frames_are_answered_and_the_stream_goes_on() -> None:
    async with running_server() as there:
        call, _ = await subscribed(there)
        await call.write(Frame(request_number=1, complete=queue_service_pb2.CompleteRequest()))
        empty = await read(call)
        assert (empty.request_number, empty.error.field) == (1, "leases")
        await call.write(Frame(request_number=2, subscribe=queue_service_pb2.Subscribe(queue="q")))
        again = await read(call)
        assert (again.request_number, again.error.field) == (2, "subscribe")
        await call.write(Frame(request_number=3, credit=queue_service_pb2.Credit(items=99)))
        credit = await read(call)
        assert (credit.request_number, credit.error.field) == (3, "credit.items")
        await call.write(complete(4, all_or_nothing=True))
        defect = await read(call)
        assert (defect.request_number, defect.error.code) == (4, errors_pb2.ERROR_CODE_INTERNAL)
        assert "secret" not in str(defect)
        await call.write(complete(5))
        assert (await read(call)).completed.outcomes


@pytest.mark.parametrize(
    "first",
    [
        complete(1),
        CREDIT,
        Frame(request_number=1),
        Frame(subscribe=queue_service_pb2.Subscribe(queue="q")),
        Frame(subscribe=queue_service_pb2.Subscribe(queue="a b", client_id="c")),
    ],
    ids=["complete", "credit", "nothing", "no client", "no name"],
)
async def test_a_first_frame_that_does_not_subscribe_ends_the_stream(first: Frame) -> None:
    async with running_server() as there:
        call = there.stub.LeaseStream()
        await call.write(first)
        assert await ended(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert not there.service.subscriptions


async def test_a_refused_subscription_ends_the_stream() -> None:
    async with running_server() as there:
        call = there.stub.LeaseStream()
        subscribe = queue_service_pb2.Subscribe(queue="full", client_id="c")
        await call.write(Frame(subscribe=subscribe))
        assert await ended(call) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_client_that_says_nothing_may_leave() -> None:
    async with running_server() as there:
        call = there.stub.LeaseStream()
        await call.done_writing()
        assert await ended(call) is grpc.StatusCode.OK


async def test_half_close_answers_what_was_asked_and_releases_the_rest() -> None:
    async with running_server() as there:
        call, subscription = await subscribed(there)
        subscription.settle_gate.clear()
        await call.write(complete(1))
        await call.done_writing()
        await subscription.changes.until(lambda: subscription.changes.counts["settling"] == 1)
        assert not subscription.closed
        subscription.settle_gate.set()
        assert (await read(call)).request_number == 1
        assert await ended(call) is grpc.StatusCode.OK
        assert await closed(subscription) == [True]


@pytest.mark.parametrize("release", [False, True])
async def test_a_vanished_client_keeps_its_leases_unless_it_said_otherwise(release: bool) -> None:
    async with running_server() as there:
        call, subscription = await subscribed(there, release_on_disconnect=release)
        call.cancel()
        assert await closed(subscription) == [release]


@pytest.mark.parametrize("release", [False, True])
async def test_a_broken_connection_while_something_is_settled(release: bool) -> None:
    async with running_server() as there:
        channel = grpc.aio.insecure_channel(there.address)
        call: Any = channel.stream_stream(f"/{QUEUE_SERVICE}/LeaseStream")()
        subscribe = queue_service_pb2.Subscribe(
            queue="q", client_id="c", release_on_disconnect=release
        )
        await call.write(Frame(subscribe=subscribe).SerializeToString())
        await there.service.changes.until(lambda: bool(there.service.subscriptions))
        subscription = there.service.subscriptions[0]
        subscription.settle_gate.clear()
        await call.write(complete(1).SerializeToString())
        await subscription.changes.until(lambda: subscription.changes.counts["settling"] == 1)
        await channel.close()
        assert await closed(subscription) == [release]


async def test_what_ends_the_subscription_ends_the_stream() -> None:
    async with running_server() as there:
        call, subscription = await subscribed(there)
        await subscription.replies.put(delivery(b"last"))
        await subscription.replies.put(QueratorError(ErrorCode.QUEUE_DELETING, "going"))
        assert (await read(call)).leased.batches[0].items[0].payload == b"last"
        assert await ended(call) is grpc.StatusCode.FAILED_PRECONDITION
        assert await closed(subscription) == [False]


async def test_a_defect_in_the_subscription_is_internal() -> None:
    async with running_server() as there:
        call, subscription = await subscribed(there)
        await subscription.replies.put(RuntimeError("secret of the inside"))
        assert await ended(call) is grpc.StatusCode.INTERNAL
        assert "secret" not in await call.details()
        assert await closed(subscription) == [False]


async def test_a_frame_without_a_number_ends_the_stream() -> None:
    async with running_server() as there:
        call: Any = there.channel.stream_stream(f"/{QUEUE_SERVICE}/LeaseStream")()
        subscribe = queue_service_pb2.Subscribe(queue="q", client_id="c")
        await call.write(Frame(subscribe=subscribe).SerializeToString())
        await call.read()
        await call.write(b"\xff\xff")
        assert await ended(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert await closed(there.service.subscriptions[0]) == [False]


async def test_a_slow_reader_gets_a_bounded_number_of_leases_and_holds_up_nobody() -> None:
    size = 256 * limits.KIB
    most = limits.STREAM_DELIVERIES_BYTES_MAX // size
    async with running_server() as there:
        options = [("grpc.http2.lookahead_bytes", 1_024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(there.address, options=options) as channel:
            slow: Any = channel.stream_stream(f"/{QUEUE_SERVICE}/LeaseStream")()
            subscribe = queue_service_pb2.Subscribe(queue="q", client_id="slow")
            await slow.write(Frame(subscribe=subscribe).SerializeToString())
            await there.service.changes.until(lambda: bool(there.service.subscriptions))
            subscription = there.service.subscriptions[0]
            for _ in range(10 * most):
                await subscription.replies.put(delivery(bytes(size)))
            await subscription.changes.until(
                lambda: subscription.changes.counts["delivered"] >= most
            )
            quick, other = await subscribed(there)
            for _ in range(50):
                await other.replies.put(delivery(b"work"))
                assert (await read(quick)).leased.batches
            # Most deliveries still wait. The others are in the outbox and in the transport.
            assert subscription.replies.qsize() > 5 * most
            slow.cancel()
            await closed(subscription)


async def test_an_answer_comes_also_while_deliveries_wait() -> None:
    size = 256 * limits.KIB
    async with running_server() as there:
        call, subscription = await subscribed(there)
        for _ in range(12):
            await subscription.replies.put(delivery(bytes(size)))
        await subscription.changes.until(lambda: subscription.changes.counts["delivered"] == 12)
        await call.write(complete(1))
        kinds = [(await read(call)).WhichOneof("frame") for _ in range(13)]
        assert (kinds.count("completed"), kinds.count("leased")) == (1, 12)


async def test_a_drain_answers_and_keeps_the_leases() -> None:
    async with running_server() as there:
        call, subscription = await subscribed(there)
        silent = there.stub.LeaseStream()
        await silent.write(
            Frame(subscribe=queue_service_pb2.Subscribe(queue="q", client_id="other"))
        )
        await read(silent)
        subscription.settle_gate.clear()
        await call.write(complete(1))
        await subscription.changes.until(lambda: subscription.changes.counts["settling"] == 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(there.server.stop(20))
            assert await ended(silent) is grpc.StatusCode.UNAVAILABLE
            subscription.settle_gate.set()
            assert (await read(call)).request_number == 1
            assert await ended(call) is grpc.StatusCode.UNAVAILABLE
        assert await closed(subscription) == [False]


async def test_a_stream_that_has_not_subscribed_is_drained_too() -> None:
    service = FakeService()
    async with running_server(service) as there:
        call: Any = there.stub.LeaseStream()
        await call.wait_for_connection()
        await there.stub.Produce(
            queue_service_pb2.ProduceRequest(queue="q", items=[items_pb2.Item()])
        )
        await there.server.stop(20)
        assert await ended(call) is grpc.StatusCode.UNAVAILABLE
