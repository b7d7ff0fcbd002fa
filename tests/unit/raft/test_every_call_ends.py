"""Every caller that waits for a host gets an outcome, whatever happens in between."""

import asyncio

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.storage.environment import EnvironmentFailed
from querator.storage.keys import ALL
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.fake_machine import EventRecorder, RegisterMachine
from tests.unit.raft.running_host import CommitGate, code_of, running_host

G1, G2 = GroupId(1), GroupId(2)


class QuittingMachine(RegisterMachine):
    def poison(self) -> int:
        raise SystemExit("the machine ends the thread")


async def test_a_thread_that_quits_is_a_failure():
    owner = EventRecorder()
    async with running_host(MemoryEnvironment(), QuittingMachine(1), owner=owner) as host:
        assert await code_of(host.propose(G1, "raise")) is ErrorCode.OUTCOME_UNKNOWN
        assert await code_of(host.propose(G1, 1)) is ErrorCode.INTERNAL
    assert [type(error) for error in owner.failures] == [SystemExit]


async def test_a_creation_overtaken_by_a_deletion_ends_when_the_storage_fails():
    environment = MemoryEnvironment()
    gate = CommitGate(environment)
    async with running_host(environment, RegisterMachine(1)) as host:
        gate.close()
        first = host.propose(G1, 1)
        await gate.reached()
        calls = asyncio.gather(
            host.create_group(G2, RegisterMachine(2)),
            host.delete_group(G2),
            return_exceptions=True,
        )
        await asyncio.sleep(0)
        gate.fail(EnvironmentFailed("the disk is gone"))
        await code_of(first)
        errors = await calls
    assert [type(error) for error in errors] == [QueratorError, QueratorError]


async def test_a_deletion_that_nobody_waited_for_does_not_answer_the_next():
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1), RegisterMachine(2)) as host:
        impatient = asyncio.gather(host.delete_group(G1))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        while G1 in host.groups():
            await host.propose(G2, 1)
        await host.propose(G2, 1)
        await host.create_group(G1, RegisterMachine(1))
        await host.delete_group(G1)
        assert host.groups() == (G2,)
        with environment.snapshot() as snapshot:
            rows = [key for table in ALL.values() for key, _ in table.rows(snapshot, G1)]
    assert rows == []


async def test_stop_leaves_a_long_deletion_to_the_next_start(monkeypatch):
    monkeypatch.setattr("querator.raft.turn.deletions.DELETE_ROWS_TURN_MAX", 5)
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        for _ in range(50):
            await host.propose(G1, 1, b"attached")
        before = environment.commit_points
        gate = CommitGate(environment)
        gate.close()
        deletion = asyncio.gather(host.delete_group(G1))
        await gate.reached()
        stopping = asyncio.gather(host.stop())
        await asyncio.sleep(0)
        gate.open()
        await stopping
        assert environment.commit_points <= before + 2
        with pytest.raises(QueratorError) as caught:
            await deletion
        assert caught.value.code is ErrorCode.UNAVAILABLE
    environment = environment.crash()
    async with running_host(environment) as host:
        await host.delete_group(G1)
        with environment.snapshot() as snapshot:
            rows = [key for table in ALL.values() for key, _ in table.rows(snapshot, G1)]
    assert rows == []
