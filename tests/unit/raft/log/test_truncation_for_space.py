"""The log is truncated when disk space is short: it is kept for no follower then, and must not keep
items out.
"""

import asyncio
import time
from struct import pack

from querator.model.commands import Configure, ItemSpecial, PartitionSettings, Produce
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import KIB, MIB, REQUEST_ITEMS_MAX
from querator.partition.machine import PartitionMachine
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.unit.raft.fake_machine import HELD, EventRecorder, RegisterMachine
from tests.unit.raft.running_host import running_host

G1, G2 = GroupId(1), GroupId(2)
PAYLOAD = b"p" * (64 * KIB)


async def test_a_log_does_not_fill_the_storage_with_what_the_machine_let_go_of():
    environment = MemoryEnvironment(quota_bytes=4 * MIB)
    async with running_host(environment, RegisterMachine(1)) as host:
        for count in range(1, 200):
            assert (await host.propose(G1, 1, PAYLOAD))[0] == count


async def test_the_log_of_a_group_that_rests_gives_way_to_others():
    environment = MemoryEnvironment(quota_bytes=4 * MIB)
    async with running_host(environment, RegisterMachine(1), RegisterMachine(2)) as host:
        for _ in range(24):
            await host.propose(G1, 1, PAYLOAD)
        for count in range(1, 100):
            assert (await host.propose(G2, 1, PAYLOAD))[0] == count
        with environment.snapshot() as snapshot:
            rows = [key for key, _ in ATTACHMENTS.rows(snapshot, G1)]
        assert len(rows) == HELD
        status = host.status(G1)
        assert status is not None
        assert status.log_first == status.log_last
    async with running_host(environment.crash(), RegisterMachine(1), RegisterMachine(2)) as host:
        assert (await host.propose(G1, 1))[0] == 25
        assert (await host.propose(G2, 1))[0] == 100


async def test_what_commands_ask_for_counts_too():
    environment, owner = MemoryEnvironment(quota_bytes=8 * MIB), EventRecorder()
    lengths = pack("<I", 1) * REQUEST_ITEMS_MAX
    codes: set[ErrorCode | None] = set()
    async with running_host(environment, owner=owner) as host:
        await host.create_group(G1, PartitionMachine(1))
        settings = PartitionSettings(
            namespace="default",
            queue="mail",
            queue_id=1,
            partition=0,
            lease_timeout_ms=30_000,
            expire_timeout_ms=0,
            max_attempts=10,
            dedup_window_ms=3_600_000,
            items_max=1_000_000,
        )
        await host.propose(G1, Configure(1, settings))
        due_ms = time.time_ns() // 1_000_000 + 3_600_000
        while codes <= {None}:
            futures = []
            for _ in range(20):
                specials = tuple(
                    ItemSpecial(ordinal, enqueue_at_ms=(due_ms := due_ms + 1))
                    for ordinal in range(REQUEST_ITEMS_MAX)
                )
                command = Produce(lengths, specials=specials)
                futures.append(host.propose(G1, command, b"x" * REQUEST_ITEMS_MAX))
            for error in await asyncio.gather(*futures, return_exceptions=True):
                codes.add(error.code if isinstance(error, QueratorError) else None)
        assert codes <= {None, ErrorCode.STORAGE_FULL}
        assert owner.failures == []
