"""Follow-ups: which partition each of them is for, and how they get there."""

import struct
from typing import Any

import pytest

from querator.model.calls import CompleteCall, FollowUpItems, LeasedRun, SettleReply
from querator.model.commands import NO_SLOT, Follow, ItemSpecial
from querator.model.errors import ErrorCode
from querator.model.queues import Queue, QueueSettings
from querator.model.routing import slot_of_key
from tests.unit.service.service_node import (
    ServiceNode,
    payloads,
    ref,
    refusal,
    service_node,
    whole,
    wire_item,
)


def group_of(
    queue: str, *texts: bytes, keys: dict[int, bytes] | None = None, dedup: bytes = b""
) -> FollowUpItems:
    """`keys` by position. `dedup`: the dedup key of the last item."""
    items = [wire_item(text) for text in texts]
    slots = [slot_of_key(keys[n]) if keys and n in keys else NO_SLOT for n in range(len(items))]
    specials = (ItemSpecial(len(items) - 1, dedup_key=dedup),) if dedup else ()
    return FollowUpItems(
        queue,
        b"".join(items),
        struct.pack(f"<{len(items)}I", *map(len, items)),
        specials,
        struct.pack(f"<{len(slots)}H", *slots) if keys else b"",
    )


def key_for(partition: int, partitions: int) -> bytes:
    """A key that belongs to a partition."""
    return next(
        key
        for key in map(b"k%d".__mod__, range(1_000))
        if slot_of_key(key) % partitions == partition
    )


async def leased(node: ServiceNode, *texts: bytes) -> LeasedRun:
    await node.produce(*texts)
    [batch] = (await node.lease(len(texts), wait_ms=60_000)).batches
    return batch


async def leased_from(node: ServiceNode, partition: int) -> LeasedRun:
    """An item of this partition."""
    while (batch := await leased(node, b"a")).partition != partition:
        await node.complete(batch)
    return batch


async def followed(node: ServiceNode, batch: LeasedRun, *groups: FollowUpItems) -> SettleReply:
    call = CompleteCall(
        "default", "q", (ref(batch),), all_or_nothing=True, follow_ups=tuple(groups)
    )
    return await node.queues.complete(call)


async def resize(node: ServiceNode, queue: str, partitions: int) -> Queue:
    settings = QueueSettings(partitions=partitions)
    return await node.admin.update_queue("default", queue, settings, ("partitions",), 0)


def watch(node: ServiceNode, monkeypatch: pytest.MonkeyPatch) -> list[Follow]:
    """The commands with follow-ups that the node proposes from now on."""
    proposed: list[Follow] = []
    propose = node.host.propose

    def seen(group: Any, command: Any, attachment: bytes = b"") -> Any:
        if isinstance(command, Follow):
            proposed.append(command)
        return propose(group, command, attachment)

    monkeypatch.setattr(node.host, "propose", seen)
    return proposed


async def test_those_without_a_key_stay_in_the_partition(monkeypatch: pytest.MonkeyPatch):
    async with service_node() as node:
        await node.create(partitions=3)
        batch = await leased(node, b"a")
        proposed = watch(node, monkeypatch)
        [outcome] = (await followed(node, batch, group_of("q", b"x", b"y"))).outcomes
        assert outcome.done == ((batch.loaded.first_seq, 1),)
        [target] = proposed[0].targets
        assert (target.group, target.partition, target.count) == (0, batch.partition, 2)
        [again] = (await node.lease()).batches
        assert (again.partition, payloads(again)) == (batch.partition, [b"x", b"y"])


async def test_a_key_decides_about_the_partition(monkeypatch: pytest.MonkeyPatch):
    async with service_node() as node:
        queue = await node.create(partitions=3)
        batch = await leased(node, b"a")
        other = (batch.partition + 1) % 3
        keys = {0: key_for(other, 3), 2: key_for(batch.partition, 3)}
        proposed = watch(node, monkeypatch)
        await followed(node, batch, group_of("q", b"x", b"y", b"z", keys=keys))
        [command] = proposed
        assert {(t.partition, t.group, t.count) for t in command.targets} == {
            (batch.partition, 0, 2),
            (other, queue.groups[other], 1),
        }
        assert command.routing == queue.routing
        await node.until(lambda: node.counts().ready == 3)
        found = {each.partition: payloads(each) for each in (await node.lease()).batches}
        assert found == {other: [b"x"], batch.partition: [b"y", b"z"]}


async def test_specials_and_slots_stay_with_their_items(monkeypatch: pytest.MonkeyPatch):
    async with service_node() as node:
        await node.create(partitions=1)
        await node.create("t", partitions=2)
        batch = await leased(node, b"a")
        proposed = watch(node, monkeypatch)
        keys = {1: key_for(0, 2), 2: key_for(1, 2)}
        await followed(
            node,
            batch,
            group_of("q", b"plain"),
            group_of("t", b"x", b"y", b"z", keys=keys, dedup=keys[2]),
        )
        [command] = proposed
        [special] = command.specials
        slots = struct.unpack("<4H", command.slots)
        assert (special.dedup_key, slots[special.ordinal]) == (keys[2], slot_of_key(keys[2]))
        assert sum(slot == NO_SLOT for slot in slots) == 2
        assert sum(target.count for target in command.targets) == 4
        await node.until(lambda: node.counts("t").ready == 3)


async def test_a_queue_that_is_not_there_is_named_and_nothing_is_settled():
    async with service_node() as node:
        await node.create()
        batch = await leased(node, b"a")
        groups = group_of("q", b"x"), group_of("none", b"y")
        error = await refusal(followed(node, batch, *groups))
        assert (error.code, error.field) == (ErrorCode.QUEUE_NOT_FOUND, "follow_ups[1].queue")
        assert "nothing was settled" in str(error)
        assert (node.counts().leased, node.counts().produced) == (1, 1)


async def test_a_lost_lease_has_no_follow_ups():
    async with service_node() as node:
        await node.create()
        batch = await leased(node, b"a")
        await node.retry(whole(batch))
        [outcome] = (await followed(node, batch, group_of("q", b"x"))).outcomes
        assert (outcome.error, outcome.done) == (ErrorCode.LEASE_LOST, ())
        assert (node.counts().ready, node.counts().produced) == (1, 1)


async def test_a_lease_of_another_queue_has_none():
    async with service_node() as node:
        await node.create()
        await node.create("other")
        await node.produce(b"a", queue="other")
        [batch] = (await node.lease(queue="other")).batches
        [outcome] = (await followed(node, batch, group_of("q", b"x"))).outcomes
        assert outcome.error is ErrorCode.LEASE_LOST
        assert node.counts().produced == 0


async def test_a_repeat_has_none_again():
    async with service_node() as node:
        await node.create()
        batch = await leased(node, b"a")
        await followed(node, batch, group_of("q", b"x"))
        [outcome] = (await followed(node, batch, group_of("q", b"x"))).outcomes
        assert outcome.repeated == ((batch.loaded.first_seq, 1),)
        assert node.counts().ready == 1


async def test_a_request_for_partitions_that_have_changed_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
):
    """It was planned for other partitions, and is refused by the partition of the lease."""
    async with service_node() as node:
        old = await node.create(partitions=2)
        batch = await leased_from(node, 1)
        await resize(node, "q", 4)
        find = node.queues.directory.find
        stale = [old]

        async def behind(namespace: str, queue: str, *more: Any) -> Queue:
            return stale.pop() if stale else await find(namespace, queue, *more)

        monkeypatch.setattr(node.queues.directory, "find", behind)
        proposed = watch(node, monkeypatch)
        keys = {0: key_for(3, 4)}
        [outcome] = (await followed(node, batch, group_of("q", b"x", keys=keys))).outcomes
        assert outcome.error is None
        assert [command.routing for command in proposed[:1]] == [old.routing]
        assert len(proposed) == 2
        [again] = (await node.lease(wait_ms=60_000)).batches
        assert again.partition == 3


async def test_a_partition_that_is_about_to_close_keeps_none_of_them():
    async with service_node() as node:
        await node.create(partitions=2)
        batch = await leased_from(node, 1)
        await resize(node, "q", 1)
        await followed(node, batch, group_of("q", b"x"))
        await node.until(lambda: node.counts().ready == 1)
        [again] = (await node.lease()).batches
        assert again.partition == 0


async def test_those_for_a_partition_that_came_back_arrive():
    """It takes moves again, and nothing goes in a circle between it and the first partition."""
    async with service_node() as node:
        await node.create(partitions=1)
        await node.create("t", partitions=3)
        await node.produce(b"stays", queue="t", keyed=[key_for(2, 3)])
        await resize(node, "t", 1)
        queue = await resize(node, "t", 3)
        assert queue.routed_partitions == 3
        batch = await leased(node, b"a")
        keys = {0: key_for(2, 3)}
        await followed(node, batch, group_of("t", b"x", keys=keys, dedup=keys[0]))
        await node.until(lambda: node.counts("q").moved_out == 1)
        await node.until(lambda: node.counts("t").moving == 0 or node.counts("t").moved_in > 20)
        assert node.counts("t").moved_in == 1
        # It waits for the earlier items of its key.
        [first] = (await node.lease(queue="t")).batches
        assert payloads(first) == [b"stays"]
        await node.complete(first, queue="t")
        [then] = (await node.lease(queue="t", wait_ms=60_000)).batches
        assert (then.partition, payloads(then)) == (2, [b"x"])
