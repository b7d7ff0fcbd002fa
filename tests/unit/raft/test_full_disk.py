"""A node with a full disk keeps working, whatever its partitions do at once, and can be emptied."""

import asyncio
from collections.abc import Coroutine, Sequence
from struct import pack
from typing import Any

from querator.model.commands import (
    Complete,
    Configure,
    Lease,
    LeaseCaller,
    LeaseItems,
    PartitionSettings,
    Produce,
    Retry,
)
from querator.model.entries import Applied, Need
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import KIB, MIB
from querator.partition.machine import PartitionMachine
from querator.raft.host import Host
from querator.raft.status import GroupStatus
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.keys import Table
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.fake_machine import EventRecorder, RegisterMachine
from tests.unit.raft.running_host import CommitGate, code_of, running_host

ITEMS = 500
QUOTA = 6 * MIB
PARTITIONS = [GroupId(number) for number in range(1, 21)]


def settings(group: int) -> Configure:
    return Configure(
        1,
        PartitionSettings(
            namespace="default",
            queue="mail",
            queue_id=1,
            partition=group,
            lease_timeout_ms=600_000,
            expire_timeout_ms=0,
            max_attempts=0,
            dedup_window_ms=3_600_000,
            items_max=1_000_000,
        ),
    )


def lease_of(items: int, name: str) -> Lease:
    return Lease((LeaseCaller("c", name, items, 0),))


def ask(host: Host, commands: dict[GroupId, Any]) -> Coroutine[Any, Any, dict[GroupId, Any]]:
    """Sends all commands at once, and returns the answers, errors of a full disk among them."""
    futures = [host.propose(group, command) for group, command in commands.items()]
    return answers_of(list(commands), futures)


async def answers_of(
    groups: list[GroupId], futures: list["asyncio.Future[Any]"]
) -> dict[GroupId, Any]:
    answers = await asyncio.gather(*futures, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            assert isinstance(answer, QueratorError), answer
            assert answer.code is ErrorCode.STORAGE_FULL, answer
    return dict(zip(groups, answers, strict=True))


async def scatter(host: Host, groups: Sequence[GroupId]) -> None:
    """Gives each partition ITEMS ready items, each in a segment of its own."""
    for group in groups:
        await host.create_group(group, PartitionMachine(group))
        await host.propose(group, settings(group))
        await host.propose(group, Produce(pack("<I", 1) * ITEMS), b"x" * ITEMS)
        granted = await host.propose(group, lease_of(ITEMS, "all"))
        [grant] = granted.grants
        named = tuple(LeaseItems(grant.lease, ((seq, 1),)) for seq in range(1, ITEMS + 1))
        result = await host.propose(group, Retry(named))
        assert len(result.outcomes) == ITEMS


async def stored(future: "asyncio.Future[Any]") -> ErrorCode | None:
    await asyncio.wait([future])
    return None if future.exception() is None else await code_of(future)


async def fill(host: Host, group: GroupId) -> None:
    """Produces items until not even the smallest one is stored."""
    for size in (64 * KIB, 4 * KIB, 1):
        command, data = Produce(pack("<I", size)), b"f" * size
        while (code := await stored(host.propose(group, command, data))) is None:
            pass
        assert code is ErrorCode.STORAGE_FULL


async def test_many_partitions_lease_scattered_items_at_once_from_a_full_node():
    environment, owner = MemoryEnvironment(quota_bytes=QUOTA), EventRecorder()
    gate = CommitGate(environment)
    async with running_host(environment, owner=owner, log_bytes_kept=MIB) as host:
        filler = PARTITIONS[-1]
        await scatter(host, PARTITIONS)
        await fill(host, filler)
        # All leases are taken in one turn.
        gate.close()
        first = host.propose(filler, Complete(()))
        await gate.reached()
        asking = ask(host, {group: lease_of(ITEMS, "one") for group in PARTITIONS})
        gate.open()
        await first
        leased = await asking
        assert owner.failures == []

        completed = 0
        for _ in range(1_000):
            held = {
                group: Complete((LeaseItems(answer.grants[0].lease),))
                for group, answer in leased.items()
                if not isinstance(answer, QueratorError) and answer.grants[0].lease
            }
            done = await ask(host, held)
            assert not any(isinstance(answer, QueratorError) for answer in done.values())
            completed += sum(
                count
                for answer in done.values()
                for outcome in answer.outcomes
                for _, count in outcome.done
            )
            if completed >= ITEMS * len(PARTITIONS):
                break
            leased = await ask(host, {group: lease_of(ITEMS, "") for group in PARTITIONS})
        assert completed >= ITEMS * len(PARTITIONS)
        await host.propose(filler, Produce(pack("<I", 64 * KIB)), b"f" * 64 * KIB)
        assert owner.failures == []


class Puzzled(RegisterMachine):
    def need(self, txn: ReadTransaction, command: Any) -> Need:
        raise StorageCorrupt("a row is damaged")


async def test_a_group_whose_needs_cannot_be_told_does_not_stop_the_node():
    environment, owner = MemoryEnvironment(quota_bytes=QUOTA), EventRecorder()
    async with running_host(environment, Puzzled(1), RegisterMachine(2), owner=owner) as host:
        assert (await host.propose(GroupId(1), 1))[0] == 1
        assert (await host.propose(GroupId(2), 2))[0] == 2
        assert owner.failures == []


def told(host: Host, group: int) -> GroupStatus:
    status = host.status(GroupId(group))
    assert status is not None
    return status


HEAVY = Table("test_heavy", b"\x03", "Q")


class Heavy(RegisterMachine):
    """Writes much more than it announces: a mebibyte for each unit that it adds."""

    def apply(
        self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int
    ) -> Applied:
        applied = super().apply(txn, index, term, command, log_first=log_first)
        for number in range(applied.effects):
            HEAVY.put(txn, self.group, number, value=bytes(MIB))
        return applied


async def test_what_there_is_no_room_for_waits_and_the_other_groups_go_on():
    environment, owner = MemoryEnvironment(quota_bytes=QUOTA), EventRecorder()
    async with running_host(environment, Heavy(1), RegisterMachine(2), owner=owner) as host:
        assert (await host.propose(GroupId(1), 2))[0] == 2
        heavy = host.propose(GroupId(1), 30)
        await host.propose(GroupId(2), 0)
        behind = host.propose(GroupId(1), -31)
        for count in range(1, 10):
            assert (await host.propose(GroupId(2), 1))[0] == count
        assert not heavy.done()
        assert told(host, 1).waits_for_space
        assert not told(host, 2).waits_for_space
        with environment.snapshot() as snapshot:
            assert len(list(HEAVY.rows(snapshot, 1))) == 2, "nothing of it is written"
        environment._quota_bytes = 100 * MIB
        assert (await heavy)[0] == 32
        assert (await behind)[0] == 1
        # The status is that of the last synced turn, and an answer may be sent before its turn's
        # sync.
        await host.propose(GroupId(1), 0)
        assert not told(host, 1).waits_for_space
        assert owner.failures == []
