"""Real `querator` processes on loopback: start, wait until ready, kill -9, stop, verify."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

_READY = re.compile(r"querator ready address=(\S+)(?: admin=(\S+))?")
START_S = 30


class ServerProcess:
    """One `querator serve` on a data directory. `port` 0 takes a free one at the first start. Later
    starts use the same port, because clients reconnect to it.
    """

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.options = options
        self.address = "127.0.0.1:0"
        self.admin_address = "127.0.0.1:0"
        self.log = data_dir.with_name(data_dir.name + ".log")
        """Standard error of the servers, one after the other."""
        self.environment: dict[str, str] = {}
        """Variables of the next server in addition to those of the tests."""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        """The arguments of `querator`."""
        return [
            "serve", "--data-dir", str(self.data_dir), "--new", "--listen", self.address,
            "--listen-admin", self.admin_address, *self.options,
        ]  # fmt: skip

    async def start(self) -> None:
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "querator",
                *self.command(),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        try:
            async with asyncio.timeout(START_S):
                self.address, self.admin_address = await self._ready()
        except TimeoutError:
            await self.kill()
            raise

    async def _ready(self) -> tuple[str, str]:
        """Returns the addresses that it reports when it is ready. It writes little to standard
        output later.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if match := _READY.search(line.decode()):
                return match[1], match[2] or ""
        code = await self._process.wait()
        self._process = None
        said = self.log.read_text()[-4000:]
        raise AssertionError(f"the server ended with {code} before it was ready:\n{said}")

    async def _end(self, signal_number: int) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal_number)
        code = await self._process.wait()
        self._process = None
        return code

    async def kill(self) -> None:
        """kill -9."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM; the exit code."""
        return await self._end(signal.SIGTERM)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None


@asynccontextmanager
async def server(data_dir: Path, *options: str) -> AsyncIterator[ServerProcess]:
    process = ServerProcess(data_dir, *options)
    await process.start()
    try:
        yield process
    finally:
        if process.running:
            await process.kill()


async def run(
    *command: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs `querator` with these arguments: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "querator",
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def ok(node: ServerProcess, *command: str) -> str:
    """Runs `querator` against the node; its standard output. It must succeed."""
    code, out, error = await run(*command, "--address", node.address)
    assert code == 0, error
    return out


async def verify(data_dir: Path, environment: Mapping[str, str] | None = None) -> None:
    """Runs `querator verify` on the directory of a node that is not running: every
    invariant holds.
    """
    code, out, err = await run("verify", "--data-dir", str(data_dir), environment=environment)
    assert code == 0, f"verify found:\n{out}\n{err}"
