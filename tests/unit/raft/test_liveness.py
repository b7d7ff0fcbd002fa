"""How long the raft thread has owed the end of what it began."""

import pytest

from querator.model.errors import QueratorError
from querator.model.ids import GroupId
from querator.raft.clock import SimulatedClock
from querator.raft.liveness import Liveness
from querator.storage.environment import StorageFailed
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.hosting import Gate, hosting
from tests.unit.raft.register import Owner, RegisterMachine


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
    gate = Gate(environment)
    async with hosting(environment, RegisterMachine(1), clock=clock) as host:
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


async def test_a_host_that_has_failed_owes_nothing() -> None:
    environment, clock = MemoryEnvironment(), SimulatedClock()
    gate = Gate(environment)
    owner = Owner()
    async with hosting(environment, RegisterMachine(1), owner=owner, clock=clock) as host:
        gate.close()
        held = host.propose(GroupId(1), 1)
        await gate.reached()
        gate.fail(StorageFailed("the disk is gone"))
        with pytest.raises(QueratorError):
            await held
    clock.advance(40_000)
    assert host.liveness.stalled_s() == 0
