"""Values of promises that come behind a rewind, before the code has made the promises again."""

from typing import Any

import msgspec
import pytest

from querator.durable import Codec, Durable, NonDeterminism, durable, promise, step
from querator.durable.machine import ExecutionMachine, living
from tests.unit.durable.memory_partition import (
    FOREVER_MS,
    IDENTITY,
    START_MS,
    MemoryPartition,
    result_of,
)

REWOUND = msgspec.structs.replace(IDENTITY, run=2)


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    before = living()
    yield
    assert living() == before


@step
async def price() -> int:
    return 17


@durable(name="main")
async def order() -> str:
    cost = await price()
    approval = promise(str)
    refund = promise(int)
    return f"{cost}: {await approval}, {await refund}"


@durable(name="main")
async def pays_in_a_call() -> str:
    return await pays()


@durable
async def pays() -> str:
    cost = await price()
    approval = promise(str)
    refund = promise(int)
    return f"{cost}: {await approval}, {await refund}"


def loaded(partition: MemoryPartition, function: Durable[..., Any], identity: Any = REWOUND) -> Any:
    machine = ExecutionMachine(function, identity, Codec())
    machine.leased(FOREVER_MS)
    machine.load(partition.journal, timers=())
    return machine


def paths_of(function: Durable[..., Any]) -> list[bytes]:
    """Of its two promises."""
    machine = loaded(MemoryPartition().start(function), function)
    [effect] = machine.ready(START_MS)
    machine.finished(effect.path, 1, 17, START_MS)
    paths = list(machine.code.promises)
    assert machine.put_away()
    return paths


@pytest.mark.parametrize("function", [order, pays_in_a_call])
@pytest.mark.parametrize("is_live", [False, True])
def test_an_early_value_waits_for_its_promise(function: Durable[..., Any], is_live: bool):
    approval, refund = paths_of(function)
    partition = MemoryPartition().start(function)
    early = [partition.resolve(refund, b"5"), partition.resolve(approval, b'"yes"')]
    if is_live:
        machine = loaded(MemoryPartition().start(function), function)
        machine.arrive(early)
    else:
        machine = loaded(partition, function)
    [effect] = machine.ready(START_MS)
    assert not machine.is_over
    machine.finished(effect.path, 1, 17, START_MS)
    assert result_of(machine.end) == "17: yes, 5"
    assert machine.put_away()


def test_a_replay_gives_it_at_the_same_place():
    approval, refund = paths_of(order)
    partition = MemoryPartition().start(order)
    partition.resolve(approval, b'"yes"')
    lease = partition.grant()
    machine = loaded(partition, order)
    [effect] = machine.ready(START_MS)
    machine.finished(effect.path, 1, 17, START_MS)
    sending = machine.take(should_park=True)
    partition.record(lease, sending)
    assert machine.put_away()
    partition.resolve(refund, b"5")
    machine = loaded(partition, order)
    assert result_of(machine.end) == "17: yes, 5"
    assert machine.put_away()


def test_a_value_of_another_type_makes_it_stuck():
    approval, _ = paths_of(order)
    machine = loaded(MemoryPartition().start(order), order)
    machine.arrive([MemoryPartition().start(order).resolve(approval, b"7")])
    [effect] = machine.ready(START_MS)
    machine.finished(effect.path, 1, 17, START_MS)
    assert "CodecError" in machine.stuck
    assert machine.put_away()


def test_without_a_rewind_no_value_is_early():
    approval, _ = paths_of(order)
    partition = MemoryPartition().start(order)
    partition.resolve(approval, b'"yes"')
    with pytest.raises(NonDeterminism, match="nothing waits at the path"):
        loaded(partition, order, IDENTITY)
