"""The command `querator worker` in a process of its own, with the lines that it writes."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

BOUND_S = 60

TASKS = '''
import os
import threading
import time

from querator import Reject


async def handle(item):
    """Says what it does; the first attempts of `die` and `exit 3` end its process."""
    text = item.text()
    if text == "die" and item.attempt == 1:
        os.kill(os.getpid(), 9)
    if text.startswith("exit ") and item.attempt == 1:
        os._exit(int(text.removeprefix("exit ")))
    if text == "reject":
        raise Reject("not wanted")
    if text == "raise":
        raise ValueError("no address")
    print("handled", text, os.getpid(), flush=True)


def wait_on_thread(item):
    print("begun", item.text(), os.getpid(), flush=True)
    threading.Event().wait()


async def block_the_loop(item):
    print("begun", item.text(), os.getpid(), flush=True)
    while True:
        time.sleep(0.01)


def decode(item):
    print("got", item.json()["n"], flush=True)


def two(item, database): ...
'''


class WorkerProcess:
    """`said` and `printed` wait for lines of standard error and of standard output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.log: list[str] = []
        self.output: list[str] = []

    async def said(self, words: str) -> str:
        """The next line of the log with these words."""
        assert self._process.stderr is not None
        return await self._line(self._process.stderr, self.log, words)

    async def printed(self, words: str) -> str:
        """The next line of the handlers with these words."""
        assert self._process.stdout is not None
        return await self._line(self._process.stdout, self.output, words)

    async def _line(self, stream: asyncio.StreamReader, seen: list[str], words: str) -> str:
        async with asyncio.timeout(BOUND_S):
            async for raw in stream:
                line = raw.decode().rstrip()
                seen.append(line)
                if re.search(words, line):
                    return line
        raise AssertionError(f"no line with {words!r} in {seen}")

    def signal(self, number: signal.Signals) -> None:
        """Raises ProcessLookupError after the end. `send_signal` would take the exit code of a
        process that has just ended, and asyncio would not find it.
        """
        if self._process.returncode is not None:
            raise ProcessLookupError
        os.kill(self._process.pid, number)

    async def ended(self) -> int:
        """The exit code. Reads the remaining lines."""
        assert self._process.stderr is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            said = await self._process.stderr.read()
            printed = await self._process.stdout.read()
            self.log += said.decode().splitlines()
            self.output += printed.decode().splitlines()
            return await self._process.wait()

    async def close(self) -> None:
        """Ends it and its children, which die with their supervisor."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.communicate()


@asynccontextmanager
async def worker_process(
    folder: Path, address: str, *arguments: str
) -> AsyncIterator[WorkerProcess]:
    """`querator worker` in `folder`, which gets the module `tasks`."""
    tasks = folder / "tasks.py"
    if not tasks.exists():
        tasks.write_text(TASKS)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "querator",
        "worker",
        *arguments,
        "--log-format=text",
        "--address",
        address,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    running = WorkerProcess(process)
    try:
        yield running
    finally:
        await running.close()
