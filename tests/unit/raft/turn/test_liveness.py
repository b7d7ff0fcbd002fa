"""How long the raft thread has failed to finish a turn that it began."""

import asyncio

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.raft.clock import SimulatedClock
from querator.raft.turn.liveness import HANGS_S, Liveness
from querator.storage.environment import EnvironmentFailed
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.fake_machine import EventRecorder, RegisterMachine
from tests.unit.raft.running_host import CommitGate, code_of, running_host
from tests.unit.raft.tcp_cluster import TcpNode, info, tcp_nodes


def test_nothing_is_owed_before_the_first_mark() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    clock.advance(3_600_000)
    assert liveness.stalled_s() == 0


def test_a_turn_is_owed_from_its_beginning() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    clock.advance(5_000)
    liveness.begin_turn()
    assert liveness.stalled_s() == 0
    clock.advance(2_500)
    assert liveness.stalled_s() == 2.5
    liveness.begin_turn()
    assert liveness.stalled_s() == 0


def test_a_wait_is_owed_when_it_should_be_over() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    liveness.begin_turn()
    clock.advance(2_000)
    liveness.begin_wait(10.0)
    clock.advance(10_000)
    assert liveness.stalled_s() == 0
    clock.advance(750)
    assert liveness.stalled_s() == pytest.approx(0.75)


def test_a_wait_without_end_is_never_owed() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    liveness.begin_turn()
    liveness.begin_wait(None)
    clock.advance(86_400_000)
    assert liveness.stalled_s() == 0


async def test_a_host_whose_disk_hangs_and_comes_back() -> None:
    environment, clock = MemoryEnvironment(), SimulatedClock()
    gate = CommitGate(environment)
    async with running_host(environment, RegisterMachine(1), clock=clock) as host:
        gate.close()
        held = host.propose(GroupId(1), 1)
        await gate.reached()
        clock.advance(40_000)
        assert host.liveness.stalled_s() == 40
        gate.open()
        await held
        await host.propose(GroupId(1), 1)
        assert host.liveness.stalled_s() == 0
    clock.advance(40_000)
    assert host.liveness.stalled_s() == 0, "a thread that has ended owes nothing"


async def test_those_who_wait_for_a_thread_that_hangs_are_told_and_it_goes_on() -> None:
    environment, clock = MemoryEnvironment(), SimulatedClock()
    gate, owner = CommitGate(environment), EventRecorder()
    tcp_node = TcpNode(info("a"), clock=clock)
    with tcp_nodes(tcp_node):
        async with running_host(
            environment, RegisterMachine(1), owner=owner, clock=clock, peers=tcp_node.peers
        ) as host:
            await owner.until(lambda: (GroupId(1), True) in owner.leadership)
            gate.close()
            held = [host.propose(GroupId(1), amount) for amount in (1, 10)]
            await gate.reached()
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(code_of(host.confirm_read(GroupId(1))))
                handing = tasks.create_task(code_of(host.transfer(GroupId(1), host.node)))
                await asyncio.sleep(0)
                clock.advance(int(HANGS_S * 1000) + 1)
                await owner.until(lambda: owner.hangs == [True])
            assert reading.result() is ErrorCode.UNAVAILABLE
            assert handing.result() is ErrorCode.OUTCOME_UNKNOWN
            assert host.hangs
            host.end_calls(lambda command: command == 1)
            assert await code_of(held[0]) is ErrorCode.OUTCOME_UNKNOWN
            assert not held[1].done()
            assert host.leads(GroupId(1))
            # Requests that arrive during the hang are refused at once.
            for asked in (host.confirm_read(GroupId(1)), host.transfer(GroupId(1), host.node)):
                with pytest.raises(QueratorError) as refused:
                    await asked
                assert refused.value.code is ErrorCode.UNAVAILABLE
            gate.open()
            # The requests that were given up have been carried out all the same.
            assert (await held[1])[0] == 11
            await owner.until(lambda: owner.hangs == [True, False])
            assert not host.hangs


async def test_a_group_whose_opening_meets_a_hang_is_opened_when_the_thread_goes_on() -> None:
    environment, clock = MemoryEnvironment(), SimulatedClock()
    gate, owner = CommitGate(environment), EventRecorder()
    tcp_node = TcpNode(info("a"), clock=clock)
    with tcp_nodes(tcp_node):
        async with running_host(
            environment, RegisterMachine(1), owner=owner, clock=clock, peers=tcp_node.peers
        ) as host:
            await owner.until(lambda: (GroupId(1), True) in owner.leadership)
            gate.close()
            held = host.propose(GroupId(1), 1)
            await gate.reached()
            machine = RegisterMachine(2)
            made = asyncio.gather(
                host.create_group(GroupId(2), machine), host.close_group(GroupId(3))
            )
            read = asyncio.gather(host.confirm_read(GroupId(1)))
            await asyncio.sleep(0)
            clock.advance(int(HANGS_S * 1000) + 1)
            await owner.until(lambda: owner.hangs == [True])
            assert await code_of(read) is ErrorCode.UNAVAILABLE
            # The component that opens the groups of a map may ask again.
            again = asyncio.gather(host.create_group(GroupId(2), machine))
            await asyncio.sleep(0)
            gate.open()
            await held
            await asyncio.wait((made, again))
            assert owner.failures == []
            await made
            await again
            assert (await host.propose(GroupId(2), 5))[0] == 5


async def test_a_host_that_is_alone_waits_for_its_disk() -> None:
    environment, clock = MemoryEnvironment(), SimulatedClock()
    gate, owner = CommitGate(environment), EventRecorder()
    async with running_host(environment, RegisterMachine(1), owner=owner, clock=clock) as host:
        gate.close()
        held = host.propose(GroupId(1), 1)
        await gate.reached()
        clock.advance(10 * int(HANGS_S * 1000))
        assert not host.hangs
        gate.open()
        assert (await held)[0] == 1
        assert owner.hangs == []


async def test_a_host_that_has_failed_owes_nothing() -> None:
    environment, clock = MemoryEnvironment(), SimulatedClock()
    gate = CommitGate(environment)
    owner = EventRecorder()
    async with running_host(environment, RegisterMachine(1), owner=owner, clock=clock) as host:
        gate.close()
        held = host.propose(GroupId(1), 1)
        await gate.reached()
        gate.fail(EnvironmentFailed("the disk is gone"))
        with pytest.raises(QueratorError):
            await held
    clock.advance(40_000)
    assert host.liveness.stalled_s() == 0
