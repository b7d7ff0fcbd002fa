"""Node processes on own directories and free ports."""

import asyncio
import contextlib
import random
import re
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from querator.cli.shared.failures import Failure
from querator.client.cluster import ClusterAdmin

START_SECONDS = 30.0
STOP_SECONDS = 15.0
_READY = re.compile(rb"querator ready address=(\S+)")
_LOG_LINES_SHOWN = 10
_PORTS = (12_000, 32_000)


class LocalNode:
    """One `querator serve`. The process has a session of its own, so a Ctrl-C reaches only this
    process.
    """

    def __init__(self, name: str, directory: Path, port: int, arguments: list[str]) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self._arguments = [
            "--data-dir", str(directory / name), "--listen", self.address, "--listen-admin", "",
            *arguments,
        ]  # fmt: skip
        self._log_path = directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._wanted = False
        """Whether the process is to run: if so, its end is a failure."""

    async def start(self) -> None:
        """Returns when the node serves clients. Raises Failure."""
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "querator", "serve", *self._arguments,
                stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                async for line in self._process.stdout:
                    if _READY.search(line):
                        self._wanted = True
                        return
        except TimeoutError:
            raise Failure(
                f"{self.name} was not ready in {START_SECONDS:.0f} s.{self._said()}"
            ) from None
        raise Failure(f"{self.name} did not start.{self._said()}")

    async def watch(self) -> None:
        """Returns when `kill` or `stop` has ended the process. Raises Failure when it ends
        otherwise, because it would never answer again.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while await process.stdout.read(64 * 1024):
            pass
        code = await process.wait()
        if self._wanted:
            raise Failure(f"{self.name} ended with exit code {code}.{self._said()}")

    async def kill(self) -> None:
        """Sends SIGKILL. Acknowledged items are on the node's disk."""
        self._wanted = False
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Sends SIGTERM and waits. Raises Failure when the node does not stop properly."""
        process = self._process
        if process is None or not self._wanted:
            return
        self._wanted = False
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await process.wait()
        except TimeoutError:
            raise Failure(
                f"{self.name} did not stop in {STOP_SECONDS:.0f} s.{self._said()}"
            ) from None
        if code != 0:
            raise Failure(f"{self.name} stopped with exit code {code}.{self._said()}")

    def _said(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return " It said:\n" + "\n".join(lines) if lines else " It said nothing."


class LocalNodes:
    """All nodes of the demo. `address` has the address of each, separated by commas."""

    def __init__(self, nodes: list[LocalNode], watching: asyncio.TaskGroup) -> None:
        self._nodes = nodes
        self._watching = watching

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self._nodes)

    @property
    def names(self) -> list[str]:
        return [node.name for node in self._nodes]

    def __getitem__(self, name: str) -> LocalNode:
        return next(node for node in self._nodes if node.name == name)

    async def leader(self, queue: str, partition: int) -> str:
        """Name of the node that leads a partition; the first node if there is no leader at the
        moment. Raises RequestError.
        """
        async with ClusterAdmin(self.address, request_timeout=30, connect_timeout=5) as cluster:
            picture = await cluster.picture()
        leaders = {(group.queue, group.partition): group.leader for group in picture.groups}
        return leaders[queue, partition] or self.names[0]

    async def restart(self, name: str) -> None:
        """Starts a killed node again. Raises Failure."""
        node = self[name]
        await node.start()
        self._watching.create_task(node.watch())


@contextlib.asynccontextmanager
async def local_nodes(directory: Path, count: int) -> AsyncIterator[LocalNodes]:
    """Runs one node, or a cluster of `count`. The nodes are stopped properly at the end. After an
    error they are killed, because their data is not needed any more.

    Raises Failure when a node does not start, or ends without a request: then the block is
    cancelled.
    """
    nodes = _nodes(directory, count)
    try:
        async with asyncio.TaskGroup() as starting:
            # The nodes of a cluster wait for each other.
            for node in nodes:
                starting.create_task(node.start())
        async with asyncio.TaskGroup() as watching:
            for node in nodes:
                watching.create_task(node.watch())
            yield LocalNodes(nodes, watching)
            async with asyncio.TaskGroup() as stopping:
                for node in nodes:
                    stopping.create_task(node.stop())
    finally:
        for node in nodes:
            await node.kill()


def _nodes(directory: Path, count: int) -> list[LocalNode]:
    ports = free_ports(2 * count)
    if count == 1:
        return [LocalNode("node-1", directory, ports[0], ["--new"])]
    token = directory / "token"
    token.write_text(secrets.token_hex(32))
    names = [f"node-{number}" for number in range(1, count + 1)]
    peers = ",".join(
        f"{name}=127.0.0.1:{port}" for name, port in zip(names, ports[count:], strict=True)
    )
    arguments = ["--peers", peers, "--cluster-token-file", str(token)]
    return [
        LocalNode(name, directory, port, ["--name", name, *arguments])
        for name, port in zip(names, ports, strict=False)
    ]


def free_ports(count: int) -> list[int]:
    """Ports without a listener, all different, and outside of the range that the system assigns to
    outgoing connections: a node that restarts gets its own port again.
    """
    # Programs with the same random seed must not choose the same ports.
    chance = random.SystemRandom()
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            one = stack.enter_context(socket.socket())
            port = chance.randint(*_PORTS)
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                ports.append(port)
        return ports
