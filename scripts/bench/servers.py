"""The measured nodes: one, or a cluster of several, each a process of its own."""

import asyncio
import contextlib
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from querator.cli.demo.local_nodes import free_ports

READY = re.compile(r"querator ready address=(\S+)")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
START_TRIES = 5
"""Starts with other ports each time, because another program may take a free port before a node
does."""


class PortTaken(Exception):
    """A node could not listen, because another program has the port."""


class Checkout(msgspec.Struct, frozen=True):
    """A version of this project to measure, with the Python of its environment."""

    directory: Path
    python: Path

    async def run(self, *arguments: str, **how: Any) -> asyncio.subprocess.Process:
        """Runs a module of this version in a process of its own."""
        return await asyncio.create_subprocess_exec(
            self.python, "-m", *arguments, cwd=self.directory, **how
        )


HERE: Final = Checkout(Path(__file__).parents[2], Path(sys.executable))


class Used(msgspec.Struct, frozen=True):
    """What a process has used since it started."""

    cpu_seconds: float
    switches: int
    """Context switches of all threads."""


class Server:
    """A node in a temporary directory, or in memory."""

    def __init__(self, directory: Path, arguments: list[str], checkout: Checkout) -> None:
        directory.mkdir(exist_ok=True)
        self.name = directory.name
        self.directory = directory
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._arguments = arguments
        self._checkout = checkout
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with (self.directory / "server.log").open("ab") as log:
            self._process = await self._checkout.run(
                "querator", "serve", *self._arguments,
                "--listen", self.address, "--listen-admin", "",
                stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if match := READY.search(line.decode()):
                self.address = match[1]
                return
        await self._process.wait()
        self._process = None
        said = (self.directory / "server.log").read_text()[-2000:]
        raise PortTaken(said) if "uses port" in said.splitlines()[-1] else RuntimeError(said)

    async def profiled(self, seconds: float, flame_graph: Path) -> None:
        """Samples all threads of the node from outside and draws where they spend their time."""
        assert self._process is not None
        sampler = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("py-spy")), "record", "--threads", "--rate", "300",
            "--duration", str(round(seconds)), "--output", str(flame_graph),
            "--pid", str(self._process.pid), stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        if await sampler.wait():
            raise RuntimeError("py-spy could not watch the node; it may need more rights")

    def cpu_seconds(self) -> float:
        fields = (self._proc / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def used(self) -> Used:
        switches = 0
        for status in self._proc.glob("task/*/status"):
            lines = status.read_text().splitlines()
            switches += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
        return Used(self.cpu_seconds(), switches)

    def resident_bytes(self) -> int:
        pages = (self._proc / "statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def _proc(self) -> Path:
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}")

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            # A process that has ended by itself is reported by the call that got no answer from it.
            if kill:
                self._process.kill()
            else:
                self._process.terminate()
        await self._process.wait()
        self._process = None


class Servers:
    """All nodes. `address` is for clients: the addresses of all nodes, separated by commas."""

    def __init__(
        self, directory: Path, *, nodes: int, memory: bool, checkout: Checkout = HERE
    ) -> None:
        self.checkout = checkout
        self._directory = directory
        self._nodes = nodes
        self._memory = memory
        self._servers = self._made()

    def _made(self) -> list[Server]:
        """The nodes, with ports that are free at the moment."""
        arguments = _arguments(self._directory, self._nodes, memory=self._memory)
        return [
            Server(self._directory / name, one, self.checkout) for name, one in arguments.items()
        ]

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self._servers)

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __getitem__(self, name: str) -> Server:
        return next(server for server in self._servers if server.name == name)

    async def start(self) -> None:
        """Returns when all are ready: the nodes of a cluster wait for each other. When one cannot
        start, all are stopped. If a port was taken, all start again with other ports.
        """
        for tries_left in reversed(range(START_TRIES)):
            try:
                async with asyncio.TaskGroup() as tasks:
                    for server in self._servers:
                        tasks.create_task(server.start())
            except* PortTaken:
                await self.stop()
                if not tries_left:
                    raise
                self._servers = self._made()
            except* BaseException:
                await self.stop()
                raise
            else:
                return

    async def profiled(self, seconds: float, flame_graph: Path) -> None:
        """Profiles the first node."""
        await self._servers[0].profiled(seconds, flame_graph)

    def cpu_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self._servers)

    def resident_bytes(self) -> int:
        """Resident memory of the largest node."""
        return max(server.resident_bytes() for server in self._servers)

    async def stop(self, *, kill: bool = False) -> None:
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                tasks.create_task(server.stop(kill=kill))


def _arguments(directory: Path, nodes: int, *, memory: bool) -> dict[str, list[str]]:
    """The command lines, by the names of the nodes."""
    if nodes == 1:
        where = ["--memory"] if memory else ["--data-dir", str(directory / "data")]
        return {"node": [*where, "--new"]}
    token = directory / "token"
    token.write_text(secrets.token_hex(32))
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    peers = ",".join(
        f"{name}=127.0.0.1:{port}" for name, port in zip(names, free_ports(nodes), strict=True)
    )
    return {
        name: [
            "--data-dir", str(directory / f"{name}-data"), "--name", name, "--peers", peers,
            "--cluster-token-file", str(token),
        ]
        for name in names
    }  # fmt: skip
