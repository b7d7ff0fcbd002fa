"""Complete: a precise answer for each item, repeats, and all or nothing."""

import asyncio

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import SeqRange
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, REPEATED, UNTOUCHED, refusal, under_leases, words


async def test_a_completed_item_is_gone(make: Make):
    queue = await make()
    await queue.produce("a")
    assert await queue.complete(await queue.lease_one()) == [DONE]
    assert await queue.counts() == {}
    assert await queue.peek() == []
    assert (await queue.stats()).completed == 1


async def test_some_items_of_a_lease_are_completed_and_the_others_stay_leased(make: Make):
    queue = await make()
    await queue.produce(*"abcde")
    a, b, c, d, e = await queue.lease(5)
    assert await queue.complete(b, d) == [DONE, DONE]
    assert await queue.counts("leased", "completed") == {"leased": 3, "completed": 2}
    assert await queue.complete(a, c, e) == [DONE] * 3


async def test_a_lease_is_completed_without_naming_its_items(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    items = await queue.lease(3)
    request = pb.CompleteRequest(
        queue=queue.name, leases=[pb.LeaseItems(lease_id=items[0].lease_id)]
    )
    [outcome] = (await queue.door.complete(request)).outcomes
    assert [(run.first_seq, run.count) for run in outcome.done] == [(1, 3)]
    assert await queue.counts() == {}


async def test_what_a_lease_still_holds_is_completed_without_naming_it(make: Make):
    queue = await make()
    await queue.produce(*"abcd")
    a, b, c, d = await queue.lease(4)
    await queue.retry(b)
    request = pb.CompleteRequest(queue=queue.name, leases=[pb.LeaseItems(lease_id=a.lease_id)])
    [outcome] = (await queue.door.complete(request)).outcomes
    assert words([a, c, d], [outcome]) == [DONE, DONE, DONE]
    assert await queue.counts() == {"ready": 1}


async def test_items_of_many_leases_are_completed_in_one_request(make: Make):
    queue = await make(partitions=3)
    for number in range(12):
        await queue.produce(str(number))
    items = [item for _ in range(4) for item in await queue.lease(3)]
    assert await queue.complete(*items) == [DONE] * 12
    assert await queue.counts() == {}


async def test_the_outcomes_are_in_the_order_of_the_leases_in_the_request(make: Make):
    queue = await make(partitions=2)
    await queue.produce("a")
    await queue.produce("b")
    items = [await queue.lease_one() for _ in range(2)]
    for order in (items, items[::-1]):
        request = pb.CompleteRequest(queue=queue.name, leases=under_leases(order))
        outcomes = (await queue.door.complete(request)).outcomes
        assert [one.lease_id for one in outcomes] == [item.lease_id for item in order]


async def test_a_complete_repeated_is_answered_as_a_repeat_and_counted_once(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    assert await queue.complete(item) == [DONE]
    assert await queue.complete(item) == [REPEATED]
    assert (await queue.stats()).completed == 1


async def test_a_complete_that_is_repeated_with_more_items_completes_those(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    a, b = await queue.lease(2)
    await queue.complete(a)
    assert await queue.complete(a, b) == [REPEATED, DONE]


async def test_completes_at_the_same_time_count_once(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    said = await asyncio.gather(*(queue.complete(item) for _ in range(6)))
    assert sorted(said) == [[DONE]] + [[REPEATED]] * 5
    assert (await queue.stats()).completed == 1


async def test_of_many_items_the_one_that_was_lost_is_named(make: Make):
    queue = await make()
    await queue.produce(*map(str, range(100)))
    items = await queue.lease(100)
    await queue.release(items[41])
    said = await queue.complete(*items)
    assert said == [LOST if number == 41 else DONE for number in range(100)]
    assert await queue.counts("ready", "completed") == {"ready": 1, "completed": 99}


async def test_the_outcome_of_a_lost_item_says_why(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.retry(item)
    request = pb.CompleteRequest(queue=queue.name, leases=under_leases([item]))
    [outcome] = (await queue.door.complete(request)).outcomes
    assert outcome.error == 8  # LEASE_LOST
    assert [(run.first_seq, run.count) for run in outcome.lost] == [(1, 1)]
    assert not outcome.done


async def test_an_item_that_the_lease_never_held_is_lost(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    a = await queue.lease_one()
    b = await queue.lease_one()
    request = pb.CompleteRequest(
        queue=queue.name,
        leases=[pb.LeaseItems(lease_id=a.lease_id, ranges=[SeqRange(first_seq=b.seq, count=1)])],
    )
    [outcome] = (await queue.door.complete(request)).outcomes
    assert [(run.first_seq, run.count) for run in outcome.lost] == [(b.seq, 1)]
    assert await queue.counts() == {"leased": 2}


async def test_a_lease_that_never_was_is_lost(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    number = int(item.lease_id.rpartition(".")[2])
    unknown = f"{item.lease_id.rpartition('.')[0]}.{number + 1_000}"
    request = pb.CompleteRequest(
        queue=queue.name,
        leases=[pb.LeaseItems(lease_id=unknown, ranges=[SeqRange(first_seq=item.seq, count=1)])],
    )
    [outcome] = (await queue.door.complete(request)).outcomes
    assert [(run.first_seq, run.count) for run in outcome.lost] == [(item.seq, 1)]
    assert await queue.counts() == {"leased": 1}


async def test_a_complete_of_an_item_that_was_rejected_is_lost(make: Make):
    queue = await make(dead_queue="")
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.reject(item)
    assert await queue.complete(item) == [LOST]
    assert await queue.counts("completed", "dead") == {"completed": 0, "dead": 1}


async def test_a_retry_of_an_item_that_was_completed_is_lost(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.complete(item)
    assert await queue.retry(item) == [LOST]
    assert await queue.counts() == {}


async def test_the_lease_of_an_earlier_attempt_does_not_complete_the_item(make: Make):
    queue = await make()
    await queue.produce("a")
    first = await queue.lease_one()
    await queue.retry(first)
    second = await queue.lease_one()
    assert await queue.complete(first) == [LOST]
    assert await queue.complete(second) == [DONE]


# -- all or nothing


async def test_all_or_nothing_completes_all(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    assert await queue.complete(*await queue.lease(3), all_or_nothing=True) == [DONE] * 3
    assert await queue.counts() == {}


async def test_all_or_nothing_completes_nothing_when_one_item_is_lost(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    a, b, c = await queue.lease(3)
    await queue.release(b)
    said = await queue.complete(a, b, c, all_or_nothing=True)
    assert said == [UNTOUCHED, LOST, UNTOUCHED]
    assert await queue.counts("leased", "ready", "completed") == {
        "leased": 2, "ready": 1, "completed": 0,
    }  # fmt: skip
    assert await queue.complete(a, c) == [DONE, DONE]


async def test_all_or_nothing_may_be_repeated(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    items = await queue.lease(2)
    await queue.complete(*items, all_or_nothing=True)
    assert await queue.complete(*items, all_or_nothing=True) == [REPEATED] * 2


async def test_all_or_nothing_retries_nothing_when_one_item_is_lost(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    a, b, c = await queue.lease(3)
    await queue.complete(c)
    said = await queue.retry(a, b, c, all_or_nothing=True)
    assert said == [UNTOUCHED, UNTOUCHED, LOST]
    assert await queue.counts() == {"leased": 2}


# -- refusals


async def test_a_complete_of_nothing_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.complete())
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "leases")


async def test_a_lease_id_that_is_none_is_refused_by_its_place(make: Make):
    queue = await make()
    request = pb.CompleteRequest(queue=queue.name, leases=[pb.LeaseItems(lease_id="what?")])
    said = await refusal(queue.door.complete(request))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "leases[0].lease_id")
    assert said.value == "what?"


async def test_a_range_of_nothing_is_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    request = pb.CompleteRequest(
        queue=queue.name,
        leases=[pb.LeaseItems(lease_id=item.lease_id, ranges=[SeqRange(first_seq=1, count=0)])],
    )
    said = await refusal(queue.door.complete(request))
    assert said.field == "leases[0].ranges[0].count"
    assert await queue.counts() == {"leased": 1}


async def test_more_than_1000_leases_of_one_request_are_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    request = pb.CompleteRequest(
        queue=queue.name, leases=[pb.LeaseItems(lease_id=item.lease_id)] * 1_001
    )
    said = await refusal(queue.door.complete(request))
    assert said.facts == ("LIMIT_EXCEEDED", "leases", "1000 leases", "1001 leases")
    assert await queue.counts() == {"leased": 1}
