"""Checkpoints: saved by the lease, delivered with the next one, kept and removed."""

import time
from typing import Any

import pytest

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item
from tests.conformance.door import Door
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, Leased, Queue, refusal, soon, texts

FULL = b"x" * 65_536


async def saved(make: Make, data: bytes = b"half", **settings: Any) -> tuple[Queue, Leased]:
    """A leased item with a checkpoint."""
    queue = await make(**settings)
    await queue.produce("a")
    item = await queue.lease_one()
    assert await queue.save(item, data)
    return queue, item


async def test_an_item_has_no_checkpoint_at_first(make: Make):
    queue = await make()
    await queue.produce("a")
    assert (await queue.lease_one()).checkpoint == b""


async def test_a_checkpoint_comes_with_the_next_lease(make: Make):
    queue, item = await saved(make, b"\0\xff half")
    assert await queue.retry(item) == [DONE]
    assert (await queue.lease_one()).checkpoint == b"\0\xff half"


async def test_a_checkpoint_outlives_a_lapse(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one(timeout_s=1)
    await queue.save(item, b"half", timeout_s=1)
    assert (await queue.lease_one()).checkpoint == b"half"


async def test_a_checkpoint_outlives_a_release(make: Make):
    queue, item = await saved(make)
    await queue.release(item)
    assert (await queue.lease_one()).checkpoint == b"half"


async def test_a_checkpoint_outlives_a_retry_for_later(make: Make):
    queue, item = await saved(make)
    await queue.retry(item, at=soon(0.3), error="busy")
    again = await queue.lease_one()
    assert (again.checkpoint, again.errors) == (b"half", ("busy",))


async def test_the_last_checkpoint_of_a_lease_wins(make: Make):
    queue, item = await saved(make, FULL)
    await queue.save(item, b"second")
    await queue.retry(item)
    assert (await queue.lease_one()).checkpoint == b"second"


async def test_a_checkpoint_of_an_earlier_revision_changes_nothing(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    assert await queue.save(item, b"second", revision=2)
    assert await queue.save(item, b"first", revision=1)
    assert await queue.save(item, b"repeat", revision=2)
    await queue.retry(item)
    assert (await queue.lease_one()).checkpoint == b"second"


async def test_revisions_begin_again_with_each_lease(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.save(item, b"of the first", revision=9)
    await queue.retry(item)
    item = await queue.lease_one()
    await queue.save(item, b"of the second", revision=1)
    await queue.retry(item)
    assert (await queue.lease_one()).checkpoint == b"of the second"


async def test_a_checkpoint_extends_its_lease(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one(timeout_s=5)
    [outcome] = await queue.save_all([item], [b"half"], timeout_s=3600)
    assert outcome.deadline.ToMilliseconds() / 1000 > time.time() + 1800
    assert await queue.complete(item) == [DONE]


async def test_a_lease_that_has_ended_saves_nothing(make: Make):
    queue, item = await saved(make)
    await queue.retry(item)
    assert not await queue.save(item, b"late")
    again = await queue.lease_one()
    assert not await queue.save(item, b"later", revision=2**63)
    assert again.checkpoint == b"half"
    await queue.retry(again)
    assert (await queue.lease_one()).checkpoint == b"half"


async def test_a_lease_saves_nothing_for_an_item_that_it_has_settled(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    first, second = await queue.lease(2)
    await queue.retry(first)
    [outcome] = await queue.save_all([first, second], [b"late", b"half"])
    assert list(outcome.lost_checkpoints) == [first.seq]
    assert outcome.HasField("deadline")
    await queue.retry(second)
    assert [one.checkpoint for one in await queue.lease(2)] == [b"", b"half"]


async def test_one_request_saves_for_many_items(make: Make):
    queue = await make()
    await queue.produce(*[f"item {number}" for number in range(100)])
    items = await queue.lease(100)
    await queue.save_all(items, [item.text.encode() for item in items])
    await queue.retry(*items)
    again = await queue.lease(100)
    assert [one.checkpoint.decode() for one in again] == texts(again)


async def test_an_empty_checkpoint_removes_it(make: Make):
    queue, item = await saved(make)
    await queue.save(item, b"")
    await queue.retry(item)
    assert (await queue.lease_one()).checkpoint == b""


async def test_a_retry_may_clear_the_checkpoint(make: Make):
    queue, item = await saved(make)
    assert await queue.retry(item, clear_checkpoint=True) == [DONE]
    assert (await queue.lease_one()).checkpoint == b""


async def test_a_retry_that_clears_is_no_repeat_of_one_that_does_not(make: Make):
    queue, item = await saved(make)
    await queue.retry(item)
    assert await queue.retry(item, clear_checkpoint=True) == [LOST]
    assert (await queue.lease_one()).checkpoint == b"half"


async def test_a_dead_letter_keeps_the_checkpoint_and_a_redriven_item_too(make: Make):
    dead = await make()
    queue, item = await saved(make, FULL, dead_queue=dead.name)
    await queue.reject(item)
    letter = await dead.lease_one()
    assert letter.checkpoint == FULL
    await dead.release(letter)
    assert await queue.redrive(letter.id) == 1
    again = await queue.lease_one()
    assert (again.checkpoint, again.attempt) == (FULL, 1)


async def test_a_checkpoint_is_gone_with_its_item(make: Make):
    queue, item = await saved(make)
    assert await queue.counts("checkpoint_bytes") == {"checkpoint_bytes": 4}
    await queue.complete(item)
    assert await queue.counts("checkpoint_bytes") == {"checkpoint_bytes": 0}


async def test_a_peek_shows_the_size_of_a_checkpoint(make: Make):
    queue, _ = await saved(make)
    assert [one.checkpoint_bytes for one in await queue.peek()] == [4]


@pytest.mark.doors("unary")
async def test_checkpoints_count_in_the_bytes_of_a_lease(make: Make):
    queue = await make()
    await queue.produce(*"abcdefgh")
    items = await queue.lease(8)
    await queue.save_all(items, [FULL] * 8)
    await queue.retry(*items)
    request = pb.LeaseRequest(queue=queue.name, client_id="c", max_items=8, max_bytes=200_000)
    [batch] = await queue.door.lease(request)
    assert len(batch.items) == 3


async def test_a_checkpoint_over_64_kib_is_refused(make: Make):
    queue, item = await saved(make)
    said = await refusal(queue.save(item, FULL + b"x"))
    assert said.facts == (
        "LIMIT_EXCEEDED", "checkpoints[0].data", "65536 bytes", "65537 bytes",
    )  # fmt: skip
    assert await queue.complete(item) == [DONE]


async def test_more_than_1_mib_of_checkpoints_in_a_request_are_refused(make: Make):
    queue = await make()
    await queue.produce(*[str(number) for number in range(17)])
    items = await queue.lease(17)
    said = await refusal(queue.save_all(items, [FULL] * 17))
    assert said.facts == ("LIMIT_EXCEEDED", "checkpoints", "1048576 bytes", "1114112 bytes")


async def test_a_checkpoint_of_a_lease_that_is_not_named_is_refused(make: Make):
    queue, item = await saved(make)
    request = pb.ExtendRequest(
        lease_ids=["1.0.1"],
        checkpoints=[pb.ItemCheckpoint(lease_id=item.lease_id, seq=item.seq, data=b"x")],
        **queue.named,
    )
    said = await refusal(queue.door.extend(request))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "checkpoints[0].lease_id")


@pytest.mark.sizes(3)
async def test_a_checkpoint_that_was_saved_through_one_node_is_delivered_by_another(make: Make):
    queue, item = await saved(make)
    await queue.retry(item)
    other: Door = make.open(1)
    assert (await queue.through(other, make.nodes[1]).lease_one()).checkpoint == b"half"


async def test_a_lease_delivers_items_with_and_without_checkpoints(make: Make):
    queue = await make()
    await queue.produce("a", Item(payload=b"b", attributes={"n": "1"}), "c")
    items = await queue.lease(3)
    await queue.save(items[1], b"half")
    await queue.retry(*items)
    assert [one.checkpoint for one in await queue.lease(3)] == [b"", b"half", b""]
