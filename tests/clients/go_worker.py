"""Workers of `durable_program` as processes, in Go and in Python, and the ledger of their steps."""

import asyncio
import inspect
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from querator.client.executions import ExecutionInfo
from querator.durable import ExecutionHandle
from tests.clients.programs import made

LEASE = timedelta(seconds=2)


class WorkerProcess:
    """A worker, in any language."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    def send(self, number: int) -> None:
        """It may have ended by itself, if no node answered at its start."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """Politely. It must end well."""
        self._process.send_signal(signal.SIGTERM)
        code = await self._process.wait()
        assert code == 0, self.log.read_text()[-4000:]


@asynccontextmanager
async def worker_process(
    *command: str, log: Path, environment: dict[str, str] | None = None
) -> AsyncIterator[WorkerProcess]:
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stderr=errors, env={**os.environ, **(environment or {})}
        )
    try:
        yield WorkerProcess(process, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def go_worker(
    addresses: str, queue: str, ledger: Path, *, version: str = "go-1", changed: str = ""
) -> AbstractAsyncContextManager[WorkerProcess]:
    """`changed` is put behind the names of its steps."""
    program = str(made("go") / "bin" / "worker")
    seconds = f"{LEASE.total_seconds()}s"
    return worker_process(
        program, addresses, queue, str(ledger), version, seconds,
        log=ledger.with_name(f"{version}.log"), environment={"CHANGED": changed},
    )  # fmt: skip


def python_worker(
    address: str, queue: str, ledger: Path, *, version: str = "python-1"
) -> AbstractAsyncContextManager[WorkerProcess]:
    return worker_process(
        sys.executable, "-m", "tests.clients.durable_program", address, queue, str(ledger), version,
        log=ledger.with_name(f"{version}.log"),
    )  # fmt: skip


async def until(holds: Callable[[], Any]) -> None:
    """Waits until what it returns, or what that gives, is true."""
    while True:
        held = holds()
        if await held if inspect.isawaitable(held) else held:
            return
        await asyncio.sleep(0.02)


async def in_state(handle: ExecutionHandle[Any], state: str) -> ExecutionInfo:
    """Waits until an execution is in a state."""

    async def is_there() -> bool:
        return (await handle.get()).state == state

    await until(is_there)
    return await handle.get()


def begun(ledger: Path) -> dict[str, list[str]]:
    """The numbers of the attempts of each step, by its key, in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in ledger.read_text().splitlines():
        key, number = line.rsplit(" ", 1)
        found[key].append(number)
    return found
