"""Streams: credit, deliveries, and what becomes of the leases of a stream that ends."""

import asyncio
from typing import Any

import grpc
import pytest

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S, Refused
from tests.conformance.make import Make
from tests.conformance.queues import (
    DONE,
    LOST,
    Leased,
    Queue,
    leased_items,
    refusal,
    span,
    texts,
    under_leases,
    words,
)
from tests.conformance.stubs import refusal as refusal_of
from tests.conformance.stubs import refusal_of_frame

pytestmark = pytest.mark.doors("streams")

Frame = pb.LeaseStreamRequest


class Stream:
    """A lease stream, frame by frame."""

    def __init__(self, make: Make, queue: Queue) -> None:
        self.call: Any = make.nodes[0].queue.LeaseStream()
        self._queue = queue
        self._number = 0

    async def open(self, credit: int = 0, credit_bytes: int = 0, **fields: Any) -> pb.Subscribed:
        given = {"queue": self._queue.name, "client_id": "c", **fields}
        subscribed: pb.Subscribed = (await self.ask(subscribe=pb.Subscribe(**given))).subscribed
        if credit:
            await self.tell(credit=pb.Credit(items=credit, bytes=credit_bytes))
        return subscribed

    async def tell(self, **frame: Any) -> None:
        self._number += 1
        await self.call.write(Frame(request_number=self._number, **frame))

    async def read(self) -> pb.LeaseStreamResponse:
        """The next frame. Raises `Refused` if the server has ended the stream so."""
        async with asyncio.timeout(CALL_S):
            try:
                frame = await self.call.read()
            except grpc.aio.AioRpcError as error:
                raise refusal_of(error) from error
        assert frame is not grpc.aio.EOF
        said: pb.LeaseStreamResponse = frame
        return said

    async def ask(self, **frame: Any) -> pb.LeaseStreamResponse:
        """The answer to a frame, when no delivery is on its way. Raises `Refused`."""
        await self.tell(**frame)
        said = await self.read()
        assert said.request_number == self._number, said
        if said.HasField("error"):
            raise refusal_of_frame(said.error)
        return said

    async def take(self, number: int) -> list[Leased]:
        """Exactly this number of items, from as many deliveries as it takes."""
        items: list[Leased] = []
        while len(items) < number:
            said = await self.read()
            assert said.HasField("leased"), said
            assert said.leased.durable
            items += leased_items(said.leased.batches)
        assert len(items) == number
        return items

    async def close(self) -> None:
        """Ends the stream politely; returns when the server has ended it too."""
        await self.call.done_writing()
        async with asyncio.timeout(CALL_S):
            assert await self.call.code() is grpc.StatusCode.OK

    def cut(self) -> None:
        self.call.cancel()


async def test_a_stream_delivers_as_many_items_as_there_is_credit_for(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce(*"abcde")
    await stream.open(credit=3)
    assert texts(await stream.take(3)) == ["a", "b", "c"]
    assert await queue.counts() == {"ready": 2, "leased": 3}


async def test_credit_adds_up(make: Make):
    queue, stream = await a_queue(make)
    await stream.open(credit=1)
    await stream.tell(credit=pb.Credit(items=2))
    await queue.produce(*"abcde")
    assert sorted(texts(await stream.take(3))) == ["a", "b", "c"]
    assert await queue.counts() == {"ready": 2, "leased": 3}


async def test_without_credit_a_stream_takes_nothing(make: Make):
    queue, stream = await a_queue(make)
    await stream.open()
    await queue.produce("a")
    assert texts(await queue.lease(1, client="other")) == ["a"]


async def test_items_that_are_produced_later_are_delivered_at_once(make: Make):
    queue, stream = await a_queue(make)
    await stream.open(credit=10)
    for text in "abc":
        await queue.produce(text)
        assert texts(await stream.take(1)) == [text]


async def test_a_delivery_has_no_more_items_than_the_subscription_says(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce(*map(str, range(10)))
    await stream.open(credit=10, max_items=4)
    sizes: list[int] = []
    while sum(sizes) < 10:
        leased = (await stream.read()).leased
        sizes.append(sum(len(batch.items) for batch in leased.batches))
    assert max(sizes) <= 4


async def test_credit_of_bytes_bounds_what_is_delivered(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce(*[Item(payload=bytes(1_000))] * 10)
    await stream.open(credit=10, credit_bytes=3_500)
    await stream.take(3)
    await queue.until(leased=3)
    await stream.tell(credit=pb.Credit(items=1, bytes=1_000_000))
    await stream.take(7)
    assert await queue.counts() == {"leased": 10}


async def test_the_subscription_says_how_long_its_leases_last(make: Make):
    _, stream = await a_queue(make)
    subscribed = await stream.open(lease_timeout=span(90))
    assert (subscribed.lease_timeout.seconds, subscribed.durable) == (90, True)


async def test_a_subscription_without_a_timeout_has_that_of_the_queue(make: Make):
    _, stream = await a_queue(make, lease_timeout=span(77))
    assert (await stream.open()).lease_timeout.seconds == 77


async def test_items_are_completed_on_the_stream_and_confirmed_by_number(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce(*"abc")
    await stream.open(credit=3)
    items = await stream.take(3)
    said = await stream.ask(complete=pb.CompleteRequest(leases=under_leases(items)))
    assert words(items, said.completed.outcomes) == [DONE] * 3
    assert await queue.counts() == {}


async def test_a_refused_frame_leaves_the_stream_open(make: Make):
    queue, stream = await a_queue(make)
    await stream.open()
    said = await refusal(stream.ask(complete=pb.CompleteRequest()))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "leases")
    await stream.tell(credit=pb.Credit(items=1))
    await queue.produce("a")
    assert texts(await stream.take(1)) == ["a"]


async def test_a_frame_for_another_queue_is_refused(make: Make):
    _, stream = await a_queue(make)
    other = await make()
    await other.produce("a")
    item = await other.lease_one()
    await stream.open()
    request = pb.CompleteRequest(queue=other.name, leases=under_leases([item]))
    said = await refusal(stream.ask(complete=request))
    assert (said.code, said.field, said.value) == ("INVALID_ARGUMENT", "queue", other.name)
    assert await other.counts() == {"leased": 1}


async def test_a_second_subscription_on_a_stream_is_refused(make: Make):
    queue, stream = await a_queue(make)
    await stream.open()
    again = pb.Subscribe(queue=queue.name, client_id="c")
    said = await refusal(stream.ask(subscribe=again))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "subscribe")


async def test_a_stream_that_does_not_begin_with_a_subscription_is_ended(make: Make):
    _, stream = await a_queue(make)
    said = await refusal(stream.ask(credit=pb.Credit(items=1)))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "credit")


async def test_empty_credit_is_refused(make: Make):
    _, stream = await a_queue(make)
    await stream.open()
    said = await refusal(stream.ask(credit=pb.Credit()))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "credit")


async def test_credit_for_more_than_100000_items_is_refused(make: Make):
    _, stream = await a_queue(make)
    await stream.open()
    said = await refusal(stream.ask(credit=pb.Credit(items=100_001)))
    assert said.facts == ("LIMIT_EXCEEDED", "credit.items", "100000 items", "100001 items")


async def test_a_stream_that_closes_releases_its_items_at_once(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce(*"abc")
    await stream.open(credit=2)
    await stream.take(2)
    await stream.close()
    again = await queue.lease(3)
    assert [(one.text, one.attempt) for one in again] == [("a", 1), ("b", 1), ("c", 1)]


async def test_a_stream_that_is_cut_leaves_its_items_leased(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a")
    await stream.open(credit=1)
    [item] = await stream.take(1)
    stream.cut()
    assert await queue.complete(item) == [DONE]


async def test_the_items_of_a_stream_that_is_cut_come_back_when_their_leases_lapse(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a")
    await stream.open(credit=1, lease_timeout=span(1))
    await stream.take(1)
    stream.cut()
    again = await queue.lease_one(client="other")
    assert (again.text, again.attempt) == ("a", 2)


async def test_a_stream_that_is_cut_releases_its_items_if_it_has_said_so(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a")
    await stream.open(credit=1, release_on_disconnect=True, lease_timeout=span(600))
    await stream.take(1)
    stream.cut()
    again = await queue.lease_one(client="other")
    assert (again.text, again.attempt) == ("a", 1)


async def test_a_completed_item_does_not_come_back_when_its_stream_closes(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a", "b")
    await stream.open(credit=2)
    a, _ = await stream.take(2)
    await stream.ask(complete=pb.CompleteRequest(leases=under_leases([a])))
    await stream.close()
    assert texts(await queue.lease(1)) == ["b"]
    assert await queue.counts() == {"leased": 1}


async def test_an_operation_after_the_stream_has_closed_is_lost(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a")
    await stream.open(credit=1)
    [item] = await stream.take(1)
    await stream.close()
    await queue.until(ready=1)
    assert await queue.complete(item) == [LOST]


async def test_a_stream_with_automatic_extension_keeps_its_items(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a")
    await stream.open(credit=1, auto_extend=True, lease_timeout=span(1))
    [item] = await stream.take(1)
    await queue.elapse(3.2)
    said = await stream.ask(complete=pb.CompleteRequest(leases=under_leases([item])))
    assert words([item], said.completed.outcomes) == [DONE]
    assert (await queue.stats()).lapsed == 0


async def test_a_stream_that_ends_its_deliveries_takes_nothing_more_and_may_settle(make: Make):
    queue, stream = await a_queue(make)
    await stream.open(credit=10)
    await queue.produce("a")
    [item] = await stream.take(1)
    await stream.tell(end_deliveries=pb.EndDeliveries())
    said = await stream.ask(retry=pb.RetryRequest(leases=under_leases([item]), count_attempt=False))
    assert words([item], said.retried.outcomes) == [DONE]
    await queue.produce("b")
    assert texts(await queue.lease(2, client="other")) == ["a", "b"]


async def test_a_released_item_comes_back_to_a_stream_that_has_credit(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a")
    await stream.open(credit=2)
    [item] = await stream.take(1)
    await stream.tell(retry=pb.RetryRequest(leases=under_leases([item]), count_attempt=False))
    delivered = False
    confirmed = False
    while not (delivered and confirmed):
        said = await stream.read()
        confirmed |= said.HasField("retried")
        delivered |= said.HasField("leased")
    assert await queue.counts() == {"leased": 1}


async def test_a_stream_extends_all_its_leases_by_its_client(make: Make):
    queue, stream = await a_queue(make)
    await queue.produce("a")
    await stream.open(credit=1, lease_timeout=span(5))
    [item] = await stream.take(1)
    said = await stream.ask(extend=pb.ExtendRequest(client_id="c", lease_timeout=span(500)))
    [outcome] = said.extended.outcomes
    assert outcome.lease_id == item.lease_id
    assert outcome.lease_remaining.seconds > 490


async def test_a_stream_without_credit_does_not_hold_up_another(make: Make):
    queue, slow = await a_queue(make)
    fast = Stream(make, queue)
    await slow.open()
    await fast.open(credit=5, client_id="fast")
    await queue.produce(*"abcde")
    assert len(await fast.take(5)) == 5


async def test_items_for_a_consumer_that_opens_its_next_stream_come_back_to_it(make: Make):
    queue, first = await a_queue(make)
    me: dict[str, Any] = {"consumer_id": make.name(), "lease_timeout": span(600)}
    await queue.produce("a", "b")
    await first.open(credit=2, stream_number=1, **me)
    await first.take(2)
    first.cut()
    second = Stream(make, queue)
    await second.open(credit=2, stream_number=2, **me)
    again = await second.take(2)
    assert [(one.text, one.attempt) for one in again] == [("a", 1), ("b", 1)]


async def test_the_leases_that_a_consumer_still_holds_stay_with_it(make: Make):
    queue, first = await a_queue(make)
    me: dict[str, Any] = {"consumer_id": make.name(), "lease_timeout": span(600)}
    await queue.produce("a")
    await first.open(credit=1, stream_number=1, **me)
    [item] = await first.take(1)
    first.cut()
    second = Stream(make, queue)
    await second.open(stream_number=2, held_lease_ids=[item.lease_id], **me)
    said = await second.ask(complete=pb.CompleteRequest(leases=under_leases([item])))
    assert words([item], said.completed.outcomes) == [DONE]


async def test_a_consumer_name_without_a_stream_number_is_refused(make: Make):
    _, stream = await a_queue(make)
    said = await refusal(stream.open(consumer_id="me"))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "stream_number")


async def test_a_subscription_to_no_queue_ends_the_stream(make: Make):
    stream = Stream(make, make.queue())
    with pytest.raises(Refused) as caught:
        await stream.open()
    assert caught.value.code == "QUEUE_NOT_FOUND"


async def test_produce_answers_carry_the_numbers_of_their_requests(make: Make):
    queue = await make()
    call: Any = make.nodes[0].queue.ProduceStream()
    for number in (7, 3, 12):
        request = pb.ProduceRequest(queue=queue.name, items=[Item(payload=b"%d" % number)])
        await call.write(pb.ProduceStreamRequest(request_number=number, produce=request))
    async with asyncio.timeout(CALL_S):
        answers = [await call.read() for _ in range(3)]
    assert sorted(one.request_number for one in answers) == [3, 7, 12]
    shown = {f"{one.partition}-{one.seq}": one.item.payload for one in await queue.peek()}
    for one in answers:
        [batch] = one.produced.batches
        assert shown[f"{batch.partition}-{batch.first_seq}"] == b"%d" % one.request_number


async def test_a_refused_produce_leaves_the_stream_open(make: Make):
    queue = await make()
    call: Any = make.nodes[0].queue.ProduceStream()
    await call.write(pb.ProduceStreamRequest(request_number=1))
    good = pb.ProduceRequest(queue=queue.name, items=[Item(payload=b"a")])
    await call.write(pb.ProduceStreamRequest(request_number=2, produce=good))
    async with asyncio.timeout(CALL_S):
        answers = {one.request_number: one for one in [await call.read(), await call.read()]}
    assert refusal_of_frame(answers[1].error).field == "produce"
    assert answers[2].produced.durable


async def a_queue(make: Make, **settings: Any) -> tuple[Queue, Stream]:
    """A queue, and a stream that is not subscribed."""
    queue = await make(**settings)
    return queue, Stream(make, queue)
