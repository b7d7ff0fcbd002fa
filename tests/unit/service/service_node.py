"""A node's packages below the transports, joined as the node joins them, and helpers to call
them.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uuid_utils

from querator.model.calls import (
    CompleteCall,
    ExtendCall,
    LeaseCall,
    LeasedRanges,
    LeasedRun,
    LeaseReply,
    PartitionCounts,
    ProduceCall,
    ProduceReply,
    RetryCall,
    SubscribeCall,
)
from querator.model.commands import NO_SLOT, ItemSpecial, Ranges
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import MIB
from querator.model.nodes import NodeKey
from querator.model.queues import Queue, QueueSettings
from querator.model.routing import slot_of_key
from querator.partition import invariants, queries
from querator.partition.machine import PartitionMachine
from querator.placement.bootstrap import alone
from querator.placement.placement import Placement
from querator.raft.clock import Clock, RealClock
from querator.raft.host import Host
from querator.service.admin_service import AdminService, total_of
from querator.service.assembly import assemble
from querator.service.lease.subscriptions import Subscription
from querator.storage.environment import Environment
from querator.storage.memory_environment import MemoryEnvironment

LONG_MS = 60_000
"""A wait so long that no test reaches its end."""


class ServiceNode:
    def __init__(self, environment: Environment, clock: Clock, **bounds: Any) -> None:
        self.environment = environment
        self.clock = clock
        self.failures: list[BaseException] = []
        self.host = Host(environment, clock=clock, events=self)
        self.placement = Placement(
            self.host,
            PartitionMachine,
            environment=environment,
            bootstrap=alone(),
            on_failure=self.failures.append,
        )
        self.queues = assemble(
            host=self.host,
            placement=self.placement,
            environment=environment,
            clock=clock,
            **bounds,
        )
        self.admin = AdminService(
            placement=self.placement,
            router=self.queues.router,
            directory=self.queues.directory,
            reads=self.queues.reads,
            durable=environment.durable,
            clock=clock,
        )
        self.placement.watch(self.queues.events.on_map)
        self._changed = asyncio.Event()

    # --- the host's events ---------------------------------------------------------------------

    def on_effects(self, group: GroupId, effects: Any) -> None:
        if group == PLACEMENT_GROUP:
            self.placement.on_effects(effects)
        else:
            self.placement.on_partition(group, effects)
            self.queues.events.on_effects(group, effects)
        self._changed.set()

    def on_leader(self, group: GroupId, node: NodeKey | None) -> None: ...

    def on_leadership(self, group: GroupId, leads: bool) -> None:
        self.queues.events.on_leadership(group, leads)

    def on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self.placement.end()
        self._changed.set()

    def on_damage(self, group: GroupId, index: int, part: int) -> None: ...

    def on_quarantine(self, group: GroupId, error: BaseException) -> None:
        self.failures.append(error)

    def on_hang(self, hangs: bool) -> None:
        raise AssertionError("a node that is alone is not watched")

    # --- helpers -------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool]) -> None:
        """Checks the condition after each apply of any group, within the test's timeout."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def counts(self, queue: str = "q") -> PartitionCounts:
        """The sums over a queue's partitions."""
        found = self.placement.map.find("default", queue)
        assert found is not None
        with self.environment.snapshot() as txn:
            return total_of([queries.stats(txn, group) for group in found.groups])

    def index(self, queue: str = "q") -> int:
        """Index of the last entry of the queue's first partition."""
        found = self.placement.map.find("default", queue)
        assert found is not None
        with self.environment.snapshot() as txn:
            return queries.applied_index(txn, found.groups[0])

    async def create(self, name: str = "q", **settings: Any) -> Queue:
        queue, _ = await self.admin.create_queue("default", name, QueueSettings(**settings))
        return queue

    async def produce(self, *payloads: bytes, queue: str = "q", **more: Any) -> ProduceReply:
        return await self.queues.produce(produce_call(*payloads, queue=queue, **more))

    async def lease(self, max_items: int = 100, **more: Any) -> LeaseReply:
        return await self.queues.lease(lease_call(max_items, **more))

    async def lease_all(self) -> AsyncIterator[LeasedRun]:
        """Leases all items that are ready, by several calls, before the first batch is returned."""
        batches: list[LeasedRun] = []
        while more := (await self.lease(1_000)).batches:
            batches += more
        for batch in batches:
            yield batch

    async def complete(
        self, *leases: LeasedRanges | LeasedRun, queue: str = "q", **more: Any
    ) -> Any:
        refs = tuple(map(ref, leases))
        return await self.queues.complete(CompleteCall("default", queue, refs, **more))

    async def retry(self, *leases: LeasedRanges | LeasedRun, queue: str = "q", **more: Any) -> Any:
        refs = tuple(map(ref, leases))
        return await self.queues.retry(RetryCall("default", queue, refs, **more))

    async def extend(self, *lease_ids: str, queue: str = "q", **more: Any) -> Any:
        return await self.queues.extend(ExtendCall("default", queue, lease_ids, **more))

    async def subscribe(self, max_items: int = 100, **more: Any) -> Subscription:
        fields = {"client_id": "c", "max_bytes": 3 * MIB, "queue": "q", **more}
        return await self.queues.subscribe(
            SubscribeCall(namespace="default", max_items=max_items, **fields)
        )

    async def total(self, queue: str = "q") -> PartitionCounts:
        return (await self.admin.queue_stats("default", queue)).total


@asynccontextmanager
async def service_node(
    environment: MemoryEnvironment | None = None,
    clock: Clock | None = None,
    *,
    may_fail: bool = False,
    **bounds: int,
) -> AsyncIterator[ServiceNode]:
    """A running node. After its stop a full scan checks the invariants of its partitions."""
    environment = environment or MemoryEnvironment()
    node = ServiceNode(environment, clock or RealClock(), **bounds)
    await node.host.start()
    try:
        await node.placement.start()
        yield node
        await node.queues.stop()
        await node.placement.stop()
    finally:
        await node.host.stop()
    assert may_fail or not node.failures
    with environment.snapshot() as txn:
        for queue in node.placement.map:
            for group in queue.groups:
                assert invariants.check(txn, group) == []


def ref(lease: LeasedRanges | LeasedRun) -> LeasedRanges:
    """A reference to the lease. For a leased batch it names the items of that batch."""
    if isinstance(lease, LeasedRanges):
        return lease
    return LeasedRanges(lease.lease_id, tuple((seq, 1) for seq in seqs(lease)))


def whole(batch: LeasedRun, ranges: Ranges = ()) -> LeasedRanges:
    return LeasedRanges(batch.lease_id, ranges)


def wire_item(payload: bytes) -> bytes:
    """An item as in `ProduceRequest.items`: tagged, length-prefixed, with only a payload."""
    inner = b"\x0a" + _varint(len(payload)) + payload if payload else b""
    return b"\x7a" + _varint(len(inner)) + inner


def payloads(*batches: LeasedRun) -> list[bytes]:
    found = []
    for batch in batches:
        data = batch.loaded.items
        while data:
            assert data[0] == 0x7A
            size, at = _read_varint(data, 1)
            inner, data = data[at : at + size], data[at + size :]
            found.append(inner[_read_varint(inner, 1)[1] :] if inner else b"")
    return found


def seqs(batch: LeasedRun) -> list[int]:
    loaded = batch.loaded
    return [loaded.first_seq + ordinal for ordinal in loaded.ordinals or range(loaded.count)]


def places_of(reply: ProduceReply) -> dict[int, tuple[int, int]]:
    """Partition and sequence of each item of a split request, by the item's index in it."""
    return {
        index: (batch.partition, batch.first_seq + offset)
        for batch in reply.batches
        for offset, index in enumerate(batch.indexes)
    }


def produce_call(
    *payloads: bytes,
    queue: str = "q",
    keys: Sequence[bytes] = (),
    keyed: Sequence[bytes] = (),
    enqueue_at_ms: int = 0,
    lease_timeouts_ms: Sequence[int] = (),
    **more: Any,
) -> ProduceCall:
    """`keys` are dedup keys. `keyed` are keys that only choose the partition. A lease timeout of 0
    means that the item has no timeout of its own.
    """
    timeouts = lease_timeouts_ms or [0] * len(payloads)
    items = [wire_item(payload) for payload in payloads]
    specials = tuple(
        ItemSpecial(ordinal, enqueue_at_ms, 0, timeouts[ordinal], key)
        for ordinal, key in enumerate(keys or [b""] * len(payloads))
        if key or enqueue_at_ms or timeouts[ordinal]
    )
    slots = [slot_of_key(key) if key else NO_SLOT for key in keyed or keys]
    return ProduceCall(
        namespace="default",
        queue=queue,
        items=b"".join(items),
        lengths=struct.pack(f"<{len(items)}I", *map(len, items)),
        specials=specials,
        slots=struct.pack(f"<{len(slots)}H", *slots),
        **more,
    )


def lease_call(max_items: int = 100, **more: Any) -> LeaseCall:
    fields = {"client_id": "c", "request_id": "", "max_bytes": 3 * MIB, "queue": "q", **more}
    return LeaseCall(namespace="default", max_items=max_items, **fields)


def producer_id() -> bytes:
    return uuid_utils.uuid7().bytes


async def refusal(awaitable: Any) -> QueratorError:
    with pytest.raises(QueratorError) as caught:
        await awaitable
    return caught.value


async def code(awaitable: Any) -> ErrorCode:
    return (await refusal(awaitable)).code


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
