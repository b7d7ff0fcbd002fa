"""Lease streams: credit, prefetch, extension, release."""

import asyncio
from collections import Counter

import pytest

from querator.model.calls import CompleteCall, ExtendCall, LeasedRanges, RetryCall
from querator.model.errors import ErrorCode, QueratorError
from querator.raft.clock import SimulatedClock
from querator.service.lease.subscriptions import BATCHES_AHEAD_MAX
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.running_host import CommitGate
from tests.unit.service.service_node import (
    code,
    payloads,
    refusal,
    seqs,
    service_node,
    whole,
)


def completing(*refs: LeasedRanges) -> CompleteCall:
    return CompleteCall("", "", refs)


async def test_deliveries_within_the_credit():
    async with service_node() as node:
        await node.create()
        await node.produce(*[b"x"] * 30)
        stream = await node.subscribe(max_items=10)
        stream.grant(25, 0)
        sizes = [sum(b.loaded.count for b in (await stream.next()).batches) for _ in range(3)]
        assert sizes == [10, 10, 5]
        waiting = asyncio.get_running_loop().create_task(stream.next())
        await node.produce(b"y")
        assert not waiting.done()
        assert (await node.total()).leased == 25
        stream.grant(100, 0)
        assert sum(b.loaded.count for b in (await waiting).batches) == 6
        await stream.close(polite=False)


async def test_without_credit_nothing_is_leased():
    async with service_node() as node:
        await node.create()
        await node.produce(*[b"x"] * 10)
        stream = await node.subscribe()
        waiting = asyncio.get_running_loop().create_task(stream.next())
        reply = await node.lease(10)
        assert sum(batch.loaded.count for batch in reply.batches) == 10
        waiting.cancel()
        await asyncio.wait([waiting])
        await stream.close(polite=True)


async def test_a_slow_reader_holds_a_few_batches_ahead():
    async with service_node() as node:
        await node.create()
        await node.produce(*[b"x"] * 200)
        stream = await node.subscribe(max_items=10)
        stream.grant(200, 0)
        ahead = 10 * BATCHES_AHEAD_MAX
        await node.until(lambda: node.counts().leased == ahead)
        for _ in range(3):
            await node.produce(b"y")
        assert (await node.total()).leased == ahead
        await stream.close(polite=True)
        await node.until(lambda: not node.counts().leased)
        assert (await node.total()).released == ahead


async def test_deliveries_keep_the_order_of_the_items():
    async with service_node() as node:
        await node.create()
        await node.produce(*[b"%d" % number for number in range(200)])
        stream = await node.subscribe(max_items=10)
        stream.grant(200, 0)
        seen: list[bytes] = []
        while len(seen) < 200:
            seen += payloads(*(await stream.next()).batches)
        assert seen == [b"%d" % number for number in range(200)]
        await stream.close(polite=True)


async def test_items_larger_than_the_last_batch_had_are_delivered():
    async with service_node() as node:
        await node.create()
        await node.produce(*[b"x"] * 10)
        await node.produce(*[b"x" * 10_000] * 10)
        stream = await node.subscribe(max_items=10)
        stream.grant(20, 500_000)
        counts = 0
        while counts < 20:
            counts += sum(batch.loaded.count for batch in (await stream.next()).batches)
        await stream.close(polite=True)


async def test_bytes_of_credit_bound_deliveries():
    async with service_node() as node:
        await node.create()
        await node.produce(*[b"x" * 1_000] * 10)
        stream = await node.subscribe()
        stream.grant(100, 3_500)
        reply = await stream.next()
        assert sum(batch.loaded.count for batch in reply.batches) == 3
        waiting = asyncio.get_running_loop().create_task(stream.next())
        await node.produce(b"y")
        assert not waiting.done(), "the next item needs more bytes than there are"
        stream.grant(0, 2_000)
        assert sum(batch.loaded.count for batch in (await waiting).batches) == 2
        await stream.close(polite=True)


async def test_an_item_that_no_delivery_can_carry_ends_the_stream():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x" * 5_000)
        stream = await node.subscribe(max_bytes=1_000)
        stream.grant(10, 0)
        assert await code(stream.next()) is ErrorCode.ITEM_TOO_LARGE
        await stream.close(polite=True)


@pytest.mark.parametrize("credit", [(0, 0), (-1, 0), (1, -1)])
async def test_credit_must_be_positive(credit):
    async with service_node() as node:
        await node.create()
        stream = await node.subscribe()
        with pytest.raises(QueratorError, match="credit"):
            stream.grant(*credit)
        await stream.close(polite=True)


async def test_credit_is_bounded():
    async with service_node() as node:
        await node.create()
        stream = await node.subscribe()
        stream.grant(100_000, 0)
        with pytest.raises(QueratorError, match="100000") as caught:
            stream.grant(1, 0)
        assert caught.value.field == "credit.items"
        await stream.close(polite=True)


async def test_settling_on_the_stream():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create()
        await node.produce(b"a", b"b", b"c")
        stream = await node.subscribe()
        stream.grant(10, 0)
        [batch] = (await stream.next()).batches
        one, two, _ = seqs(batch)
        [outcome] = (
            await stream.complete(completing(LeasedRanges(batch.lease_id, ((one, 1),))))
        ).outcomes
        assert outcome.done == ((one, 1),)
        retry = RetryCall("", "", (LeasedRanges(batch.lease_id, ((two, 1),)),))
        assert (await stream.retry(retry)).outcomes[0].done == ((two, 1),)
        extended = await stream.extend(ExtendCall("", "", (), lease_timeout_ms=60_000))
        assert [outcome.lease_id for outcome in extended.outcomes] == [batch.lease_id]
        other = CompleteCall("default", "other", (whole(batch),))
        assert (await refusal(stream.complete(other))).field == "queue"
        await stream.close(polite=False)


async def test_a_stream_without_deliveries_leases_nothing_and_still_settles():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b", b"c", b"d")
        stream = await node.subscribe(max_items=2)
        stream.grant(10, 0)
        first = await stream.next()
        late = await stream.next()
        stream.end_deliveries()
        assert stream.as_of_now(late) is None
        waiting = asyncio.get_running_loop().create_task(stream.next())
        stream.grant(10, 0)
        await node.produce(b"e")
        total = await node.total()
        assert (total.leased, total.released) == (2, 2)
        release = RetryCall("", "", tuple(map(whole, first.batches)), count_attempt=False)
        assert all(not outcome.error for outcome in (await stream.retry(release)).outcomes)
        await node.produce(b"f")
        total = await node.total()
        assert (total.ready, total.leased, total.released) == (6, 0, 4)
        waiting.cancel()
        await asyncio.wait([waiting])
        await stream.close(polite=True)
        assert (await node.total()).released == 4


async def test_items_of_a_lease_in_progress_go_back_when_deliveries_end():
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create()
        await node.produce(b"x")
        gate = CommitGate(environment)
        gate.close()
        stream = await node.subscribe()
        stream.grant(5, 0)
        await gate.reached()
        stream.end_deliveries()
        gate.open()
        assert payloads(*(await node.lease(wait_ms=60_000)).batches) == [b"x"]
        await stream.close(polite=True)


async def test_a_polite_close_releases_what_is_unfinished():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b", b"c", b"d")
        stream = await node.subscribe(max_items=2)
        stream.grant(10, 0)
        [batch] = (await stream.next()).batches
        one, _ = seqs(batch)
        await stream.complete(completing(LeasedRanges(batch.lease_id, ((one, 1),))))
        await stream.close(polite=True)
        await stream.close(polite=True)
        reply = await node.lease(10, wait_ms=60_000)
        while len(payloads(*reply.batches)) < 3:
            more = await node.lease(10, wait_ms=60_000)
            reply = type(reply)(reply.batches + more.batches, reply.durable)
        assert sorted(payloads(*reply.batches)) == [b"b", b"c", b"d"]
        assert {b.attempt for b in reply.batches} == {1}


@pytest.mark.parametrize("release", [False, True])
async def test_a_broken_stream_releases_if_the_subscription_says_so(release):
    async with service_node() as node:
        await node.create()
        await node.produce(b"a")
        stream = await node.subscribe(release_on_disconnect=release)
        stream.grant(10, 0)
        await stream.next()
        await stream.close(polite=False)
        await node.produce(b"b")
        total = await node.total()
        assert (total.released, total.leased) == ((1, 0) if release else (0, 1))


async def test_leases_are_extended_while_the_stream_lives():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(lease_timeout_ms=1_000)
        stream = await node.subscribe(auto_extend=True)
        stream.grant(1, 0)
        await node.produce(b"a")
        [batch] = (await stream.next()).batches
        index = node.index()
        clock.advance(400)
        await node.until(lambda: node.index() > index)
        clock.advance(700)
        [outcome] = (await stream.complete(completing(whole(batch)))).outcomes
        assert outcome.error is None
        assert (await node.total()).lapsed == 0
        await stream.close(polite=True)


async def test_one_batch_is_not_cut_among_the_waiters_of_a_stream():
    async with service_node() as node:
        await node.create()
        stream = await node.subscribe()
        stream.grant(1_000, 0)
        waiting = asyncio.get_running_loop().create_task(stream.next())
        await asyncio.sleep(0)
        await node.produce(*[b"x"] * 100)
        assert [batch.loaded.count for batch in (await waiting).batches] == [100]
        await stream.close(polite=True)


async def test_streams_share_and_deliver_everything_once():
    async with service_node() as node:
        await node.create(partitions=3)
        seen: Counter[bytes] = Counter()

        async def consume(number: int) -> None:
            stream = await node.subscribe(max_items=5, client_id=f"c{number}")
            stream.grant(20, 0)
            try:
                while True:
                    reply = await stream.next()
                    got = payloads(*reply.batches)
                    seen.update(got)
                    await stream.complete(completing(*map(whole, reply.batches)))
                    stream.grant(len(got), 0)
            finally:
                await stream.close(polite=True)

        consumers = [asyncio.get_running_loop().create_task(consume(n)) for n in range(4)]
        for number in range(50):
            await node.produce(*[b"%d-%d" % (number, item) for item in range(4)])
        await node.until(lambda: node.counts().completed == 200)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.wait(consumers)
        assert len(seen) == 200
        assert set(seen.values()) == {1}


async def test_a_late_prefetched_batch_is_released_not_delivered():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(lease_timeout_ms=10_000)
        await node.produce(b"x")
        stream = await node.subscribe()
        stream.grant(1, 0)
        await node.until(lambda: node.counts().leased == 1)
        clock.advance(6_000)
        [batch] = (await stream.next()).batches
        assert batch.remaining_ms > 9_000
        assert (await node.total()).released == 1
        await stream.close(polite=True)


async def test_what_nobody_takes_is_released_before_it_lapses():
    async with service_node() as node:
        await node.create(lease_timeout_ms=1_000)
        await node.produce(b"x")
        stream = await node.subscribe()
        stream.grant(2, 0)
        await node.until(lambda: node.counts().leased == 1)
        await node.until(lambda: node.counts().released == 1)
        await node.produce(b"y")
        assert (await node.total()).leased == 0, "nothing is leased ahead any more"
        [batch, *_] = (await stream.next()).batches
        assert batch.attempt == 1
        assert (await node.total()).lapsed == 0
        await stream.close(polite=True)


async def test_what_is_ready_behind_a_batch_that_was_taken_is_released_before_it_lapses():
    async with service_node() as node:
        await node.create(lease_timeout_ms=1_000)
        await node.produce(*[b"x"] * 20)
        stream = await node.subscribe(max_items=10)
        stream.grant(20, 0)
        await node.until(lambda: node.counts().leased == 20)
        await stream.next()
        await node.until(lambda: node.counts().leased <= 10)
        total = await node.total()
        assert (total.released, total.lapsed) == (10, 0)
        await stream.close(polite=True)


async def test_a_stream_delivers_items_with_timeouts_of_their_own_in_order():
    async with service_node() as node:
        await node.create(lease_timeout_ms=100_000)
        await node.produce(b"a", b"b", b"c", lease_timeouts_ms=[50_000, 0, 50_000])
        stream = await node.subscribe()
        stream.grant(100, 0)
        batches = (await stream.next()).batches
        assert payloads(*batches) == [b"a", b"b", b"c"]
        assert [round(batch.remaining_ms, -3) for batch in batches] == [50_000, 100_000, 50_000]
        assert len({batch.lease_id for batch in batches}) == 2
        await stream.close(polite=True)
        assert (await node.total()).ready == 3


async def test_a_reader_that_has_stopped_takes_nothing_from_others():
    async with service_node() as node:
        await node.create(lease_timeout_ms=1_000)
        await node.produce(b"x")
        stream = await node.subscribe(max_items=1)
        stream.grant(10, 0)
        await node.until(lambda: node.counts().released == 1)
        for _ in range(3):
            await node.produce(b"y")
        total = await node.total()
        assert (total.leased, total.ready, total.delivered) == (0, 4, 1)
        assert [payloads(*(await stream.next()).batches) for _ in range(4)] == [
            [b"x"], [b"y"], [b"y"], [b"y"]
        ]  # fmt: skip
        await stream.close(polite=True)


async def test_a_lost_item_does_not_end_the_care_for_the_others_of_its_lease():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(lease_timeout_ms=1_000)
        await node.produce(b"a", b"b")
        stream = await node.subscribe(auto_extend=True)
        stream.grant(2, 0)
        [batch] = (await stream.next()).batches
        one, two = seqs(batch)
        first = LeasedRanges(batch.lease_id, ((one, 1),))
        await stream.retry(RetryCall("", "", (first,), dead=True))
        assert (await stream.complete(completing(first))).outcomes[0].lost == ((one, 1),)
        index = node.index()
        clock.advance(400)
        await node.until(lambda: node.index() > index)
        clock.advance(700)
        second = completing(LeasedRanges(batch.lease_id, ((two, 1),)))
        assert (await stream.complete(second)).outcomes[0].done == ((two, 1),)
        await stream.close(polite=True)


@pytest.mark.parametrize("auto_extend", [False, True])
async def test_a_stream_full_of_leases_that_end_elsewhere_goes_on(monkeypatch, auto_extend):
    monkeypatch.setattr("querator.service.lease.held_leases.STREAM_LEASES_MAX", 3)
    async with service_node() as node:
        await node.create(lease_timeout_ms=1_000)
        await node.produce(*[b"x"] * 24)
        stream = await node.subscribe(max_items=1, auto_extend=auto_extend)
        stream.grant(100, 0)
        for _ in range(24):
            await node.complete(*(await stream.next()).batches)
        assert (await node.total()).completed == 24
        await stream.close(polite=True)


async def test_a_stream_that_closes_while_items_are_granted_gives_them_back():
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create()
        await node.produce(b"x")
        gate = CommitGate(environment)
        gate.close()
        stream = await node.subscribe()
        stream.grant(5, 0)
        await gate.reached()
        await stream.close(polite=False)
        gate.open()
        assert payloads(*(await node.lease(wait_ms=60_000)).batches) == [b"x"]


async def test_deleting_the_queue_ends_streams():
    async with service_node() as node:
        await node.create()
        stream = await node.subscribe()
        stream.grant(5, 0)
        waiting = asyncio.get_running_loop().create_task(stream.next())
        await asyncio.sleep(0)
        await node.admin.delete_queue("default", "q")
        assert await code(waiting) in (ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND)
        await stream.close(polite=True)


async def test_stopping_ends_streams():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x")
        stream = await node.subscribe()
        stream.grant(5, 0)
        await node.until(lambda: node.counts().leased == 1)
        await node.queues.stop()
        assert await code(stream.next()) is ErrorCode.UNAVAILABLE
        total = node.counts()
        assert (total.released, total.ready) == (1, 1), "what was not delivered is given back"
        await stream.close(polite=True)


async def test_the_stream_names_its_terms():
    async with service_node() as node:
        await node.create(lease_timeout_ms=7_000)
        stream = await node.subscribe()
        assert (stream.lease_timeout_ms, stream.durable) == (7_000, False)
        other = await node.subscribe(lease_timeout_ms=9_000)
        assert other.lease_timeout_ms == 9_000
        await stream.close(polite=True)
        await other.close(polite=True)


async def test_a_delivery_that_waited_tells_what_remains_and_not_of_leases_that_have_ended():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create()
        await node.produce(b"x", b"y")
        stream = await node.subscribe(max_items=2, lease_timeout_ms=10_000)
        stream.grant(2, 0)
        reply = await stream.next()
        clock.advance(4_000)
        told = stream.as_of_now(reply)
        assert told is not None
        assert [batch.remaining_ms for batch in told.batches] == [6_000]
        clock.advance(6_000)
        assert stream.as_of_now(reply) is None
        again = await stream.next()
        assert payloads(*again.batches) == [b"x", b"y"], (
            "they are leased anew, and the credit is back"
        )
        assert (await node.total()).leases == 1
        await stream.close(polite=True)


async def test_a_lease_that_reached_nobody_comes_after_what_was_leased_meanwhile():
    """Order is the order of leases (ADR 30). A returned item goes back to its place. Later items
    that another consumer has leased stay with that consumer.
    """
    async with service_node() as node:
        await node.create()
        stream = await node.subscribe(max_items=1)
        stream.grant(1, 0)
        await node.produce(b"1", keyed=[b"k"])
        await node.until(lambda: node.counts().leased == 1)
        await node.produce(b"2", keyed=[b"k"])
        await node.produce(b"3", keyed=[b"k"])
        delivered = payloads(*(await node.lease(1)).batches)
        await stream.close(polite=True)
        await node.until(lambda: node.counts().released == 1)
        for _ in range(2):
            delivered += payloads(*(await node.lease(1)).batches)
        assert delivered == [b"2", b"1", b"3"]
