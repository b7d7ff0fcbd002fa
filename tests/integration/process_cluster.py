"""Nodes of one cluster as processes on loopback: their output while they start, and their end."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from querator.cli.cluster_views import cluster_view
from querator.cli.demo.local_nodes import free_ports
from querator.client.cluster import ClusterAdmin
from querator.client.errors import RequestError
from tests.integration.processes import run

START_S = 45
LOOK_S = 0.1
"""Pause between two checks of the status of a cluster."""
_READY = re.compile(r"querator ready address=(\S+)")


class ClusterProcess:
    """One node. `stop` and `kill` leave its data; `lose` deletes it."""

    def __init__(self, name: str, home: Path, *, client_port: int, options: Sequence[str]) -> None:
        self.name = name
        self.data_dir = home / f"data-{name}"
        self.log = home / f"{name}.log"
        self.address = f"127.0.0.1:{client_port}"
        self.options = list(options)
        self.program = "querator"
        """The module that is run."""
        self.environment: dict[str, str] = {}
        """Variables in addition to those of the test."""
        self.records: list[dict[str, Any]] = []
        """Log records of its last process."""
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()

    async def launch(self, *more: str) -> None:
        """Starts the process; `ready` waits for it."""
        assert self._process is None
        self.records = []
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.program,
            "serve",
            "--name",
            self.name,
            "--data-dir",
            str(self.data_dir),
            "--listen",
            self.address,
            "--listen-admin",
            "",
            *self.options,
            *more,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "QUERATOR_LOG_FORMAT": "json", **self.environment},
        )
        # Owned: `_end` and `refused` await it.
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        """Keeps what the process writes to standard error."""
        assert self._process is not None
        assert self._process.stderr is not None
        with self.log.open("ab", buffering=0) as log:
            async for line in self._process.stderr:
                log.write(line)
                if line.startswith(b"{"):
                    self.records.append(msgspec.json.decode(line))
                self._heard.set()
        self._heard.set()

    async def ready(self) -> None:
        """Waits until it serves clients. Raises AssertionError when it ends before."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            async for line in self._process.stdout:
                if _READY.search(line.decode()):
                    return
        code = await self._ended()
        raise AssertionError(f"node {self.name} ended with {code}:\n{self.said()[-4000:]}")

    async def start(self) -> None:
        await self.launch()
        await self.ready()

    async def refused(self, exit_code: int = 1) -> str:
        """The one line in which a node that does not start gives the reason."""
        async with asyncio.timeout(START_S):
            assert await self._ended() == exit_code
        return self.said().splitlines()[-1]

    async def waiting(self, words: str) -> None:
        """Waits until it logs that it waits for its cluster, for a reason with these words."""
        await self.says("formation.waiting", words)

    async def says(self, event: str, words: str = "") -> None:
        """Waits until its log has such a line."""
        async with asyncio.timeout(START_S):
            while not any(
                record.get("event") == event and words in str(record) for record in self.records
            ):
                assert self.running, f"node {self.name} has ended:\n{self.said()[-4000:]}"
                self._heard.clear()
                await self._heard.wait()

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, signal_number: int) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal_number)
        return await self._ended()

    async def _ended(self) -> int:
        """The exit code, when the process has ended and all that it wrote is kept."""
        assert self._process is not None
        assert self._listening is not None
        code = await self._process.wait()
        await self._listening
        self._process = self._listening = None
        return code

    async def end(self) -> int:
        """Waits until it has ended by itself; returns the exit code."""
        async with asyncio.timeout(START_S):
            return await self._ended()

    def freeze(self) -> None:
        """SIGSTOP: it does nothing, and its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def lose(self) -> None:
        """The node loses its disk."""
        assert self._process is None
        for path in self.data_dir.iterdir():
            path.unlink()
        self.data_dir.rmdir()


class ProcessCluster:
    """A cluster of nodes a, b, c, …, none of them started."""

    def __init__(self, home: Path, names: str = "abc", *more: str) -> None:
        self.home = home
        ports = free_ports(2 * len(names))
        self.token = home / "token"
        self.token.write_text("the secret of this test\n")
        self.peers = ",".join(
            f"{name}=127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)
        )
        self.by_name = {
            name: ClusterProcess(
                name,
                home,
                client_port=port,
                options=["--peers", self.peers, "--cluster-token-file", str(self.token), *more],
            )
            for name, port in zip(names, ports[len(names) :], strict=True)
        }

    def __getitem__(self, name: str) -> ClusterProcess:
        return self.by_name[name]

    async def start(self, names: str = "") -> None:
        """Starts all nodes at once, or the named ones."""
        async with asyncio.TaskGroup() as tasks:
            for name in names or self.by_name:
                tasks.create_task(self[name].start())

    async def stop(self) -> None:
        """Stops all nodes at once; each exits with 0."""
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(one.stop()) for one in self.by_name.values() if one.running]
        assert [end.result() for end in ends] == [0] * len(ends)

    async def status(self, asked: str = "a") -> dict[str, Any]:
        """`querator cluster status` as JSON, from one node."""
        address = self[asked].address
        code, out, err = await run("cluster", "status", "--output", "json", "--address", address)
        assert code in (0, 1), err
        view = msgspec.json.decode(out)
        assert isinstance(view, dict)
        assert bool(view["problems"]) == bool(code)
        return view

    async def watch(self, asked: str = "a") -> AsyncGenerator[dict[str, Any], None]:
        """The status repeatedly, as from `querator cluster status --watch`, without a process for
        each caller. Ends when no node answers.
        """
        address = self[asked].address
        async with ClusterAdmin(address, request_timeout=30, connect_timeout=5) as admin:
            while True:
                try:
                    view = cluster_view(await admin.picture())
                except RequestError:
                    return
                yield msgspec.json.decode(msgspec.json.encode(view))
                await asyncio.sleep(LOOK_S)

    async def until(
        self,
        condition: Callable[[dict[str, Any]], bool],
        asked: str = "a",
        *,
        seconds: float = START_S,
    ) -> dict[str, Any]:
        """Waits for the first status that fulfils the condition."""
        last: dict[str, Any] = {}
        try:
            async with asyncio.timeout(seconds), contextlib.aclosing(self.watch(asked)) as views:
                async for last in views:
                    if condition(last):
                        return last
        except TimeoutError:
            pass
        raise AssertionError(f"the cluster is not as it should be: {last}")

    async def until_well(self, asked: str = "a") -> dict[str, Any]:
        """The status, once it has no problem except those that a slow machine causes."""
        return await self.until(is_well, asked)

    async def querator(self, *command: str, asked: str = "a", code: int = 0) -> tuple[str, str]:
        """Runs a command against one node; its output."""
        address = self[asked].address
        ended, out, err = await run(*command, "--address", address)
        assert ended == code, err
        return out, err


def is_well(view: dict[str, Any]) -> bool:
    """Whether a status has no problem except a slow disk or a starved event loop. The machine
    causes these, and they are reported for 30 s.
    """
    machine = ("The disk of node", "The event loop of node")
    return all(problem.startswith(machine) for problem in view["problems"])


@asynccontextmanager
async def process_cluster(
    home: Path, names: str = "abc", *more: str
) -> AsyncIterator[ProcessCluster]:
    cluster = ProcessCluster(home, names, *more)
    try:
        yield cluster
    finally:
        for one in cluster.by_name.values():
            if one.running:
                await one.kill()
