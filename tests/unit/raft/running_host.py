"""A host that runs as long as a test, and ways to hold it, break it and count what it reads."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import MIB
from querator.raft.clock import Clock, RealClock
from querator.raft.host import Host
from querator.raft.peers import PeerLink
from querator.storage.environment import Environment, EnvironmentFailed
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.fake_machine import EventRecorder, RegisterMachine


@asynccontextmanager
async def running_host(
    environment: Environment,
    *machines: RegisterMachine,
    owner: EventRecorder | None = None,
    clock: Clock | None = None,
    log_bytes_kept: int = 64 * MIB,
    peers: PeerLink | None = None,
) -> AsyncIterator[Host]:
    host = Host(
        environment,
        clock=clock if clock is not None else RealClock(),
        events=owner if owner is not None else EventRecorder(),
        log_bytes_kept=log_bytes_kept,
        peers=peers,
    )
    await host.start()
    try:
        for machine in machines:
            await host.create_group(GroupId(machine.group), machine)
        yield host
    finally:
        await host.stop()


async def code_of(future: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(QueratorError) as caught:
        await future
    return caught.value.code


class CrashAt:
    """A fault at the `nth` time that `point` is reached."""

    def __init__(self, point: str, nth: int) -> None:
        self._point = point
        self._left = nth

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                raise EnvironmentFailed(f"crash at {point}")


class CommitGate:
    """Holds the raft thread in its commit, so that a test decides what waits for the next turn."""

    def __init__(self, environment: MemoryEnvironment) -> None:
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()
        self._pass = threading.Event()
        self._error: BaseException | None = None
        self._environment = environment

    def close(self) -> None:
        self._environment.faults = self._hold

    def _hold(self, point: str) -> None:
        if point == "commit":
            self._loop.call_soon_threadsafe(self._reached.set)
            self._pass.wait()
            if self._error is not None:
                raise self._error

    async def reached(self) -> None:
        await self._reached.wait()

    def open(self) -> None:
        self._environment.faults = None
        self._pass.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._pass.set()


class CountingClock(RealClock):
    """Counts how often time is read."""

    def __init__(self) -> None:
        self.reads = 0

    def monotonic_s(self) -> float:
        self.reads += 1
        return super().monotonic_s()
