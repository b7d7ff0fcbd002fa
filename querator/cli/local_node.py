"""A node process of our own, on a directory and a port that nobody else uses."""

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from querator.cli.failures import Failure

START_SECONDS = 30.0
STOP_SECONDS = 15.0
_READY = re.compile(rb"querator ready address=(\S+)")
_LOG_LINES_SHOWN = 10


@contextlib.asynccontextmanager
async def local_node(directory: Path) -> AsyncIterator[str]:
    """Runs `querator serve` and yields its address. Stopped politely at the end, killed after an
    error: what the node keeps is not needed any more.

    The process has a session of its own, so that a Ctrl-C reaches us alone. Raises Failure when it
    does not start, or when it ends before the block does.
    """
    log_path = directory / "node.log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "querator",
            "serve",
            "--data-dir",
            str(directory / "data"),
            "--new",
            "--listen",
            "127.0.0.1:0",
            "--listen-admin",
            "",
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        address = await _ready(process, log_path)
        async with _watched(process, log_path):
            yield address
        await _stop(process, log_path)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(process: asyncio.subprocess.Process, log_path: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            async for line in process.stdout:
                if match := _READY.search(line):
                    return match[1].decode()
    except TimeoutError:
        raise Failure(
            f"The node was not ready in {START_SECONDS:.0f} s.{_said(log_path)}"
        ) from None
    raise Failure(f"The node did not start.{_said(log_path)}")


@contextlib.asynccontextmanager
async def _watched(process: asyncio.subprocess.Process, log_path: Path) -> AsyncIterator[None]:
    """Cancels the block when the process ends, for nothing would ever come from it again."""
    assert process.stdout is not None

    async def drain() -> None:
        assert process.stdout is not None
        while await process.stdout.read(64 * 1024):
            pass
        code = await process.wait()
        raise Failure(f"The node ended with exit code {code}.{_said(log_path)}")

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(drain())
        yield
        watching.cancel()


async def _stop(process: asyncio.subprocess.Process, log_path: Path) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            code = await process.wait()
    except TimeoutError:
        raise Failure(f"The node did not stop in {STOP_SECONDS:.0f} s.{_said(log_path)}") from None
    if code != 0:
        raise Failure(f"The node stopped with exit code {code}.{_said(log_path)}")


def _said(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
    return " It said:\n" + "\n".join(lines) if lines else " It said nothing."
