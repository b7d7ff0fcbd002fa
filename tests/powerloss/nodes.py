"""Nodes whose machines lose power: real `querator serve` processes, each on a disk that forgets."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from querator.cli.demo.local_nodes import free_ports
from tests.integration.processes import ServerProcess, verify
from tests.powerloss.disk import Disk, Kept, Loss


class PoweredNode:
    """A server on a disk of its own; both have their files in the directory `room`."""

    def __init__(self, room: Path, library: Path, *options: str) -> None:
        root = room / "disk"
        root.mkdir(parents=True)
        self.disk = Disk(root, room / "platter", library)
        self.process = ServerProcess(root / "data", *options)
        self.process.log = room / "log"
        self.lie()

    def lie(self, *lies: str) -> None:
        """From its next start on the disk reports syncs of these kinds as done, and does not make
        them.
        """
        self.process.environment = self.disk.environment(*lies)


def cluster(room: Path, library: Path, count: int) -> list[PoweredNode]:
    """Nodes that form one cluster, on free ports."""
    token = room / "token"
    token.write_text("the secret of this cluster")
    ports = free_ports(count)
    names = [f"node-{number}" for number in range(1, count + 1)]
    peers = ",".join(f"{name}=127.0.0.1:{port}" for name, port in zip(names, ports, strict=True))
    options = ("--no-new", "--peers", peers, "--cluster-token-file", str(token))
    return [PoweredNode(room / name, library, *options, "--name", name) for name in names]


@dataclass(slots=True)
class Totals:
    """Totals over the power losses of single nodes."""

    losses: int = 0
    in_flight: int = 0
    """Power losses that came while something was not synced."""
    pages: int = 0
    pages_lost: int = 0
    pages_torn: int = 0

    def add(self, loss: Loss) -> None:
        self.losses += 1
        self.in_flight += loss.pages > 0
        self.pages += loss.pages
        self.pages_lost += loss.pages_lost
        self.pages_torn += loss.pages_torn


async def start(nodes: Sequence[PoweredNode]) -> None:
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(node.process.start())


async def lose_power(
    nodes: Sequence[PoweredNode], kept: Kept, random: Random, totals: Totals
) -> None:
    """All nodes lose power at once: they are killed, and each disk keeps what may remain. A node
    that is not running loses what was not synced when it ended.
    """
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            if node.process.running:
                group.create_task(node.process.kill())
    for node in nodes:
        totals.add(await asyncio.to_thread(node.disk.lose_power, kept, random))


async def verify_all(nodes: Sequence[PoweredNode]) -> None:
    """Runs `querator verify` on each of these nodes, none of which is running. Checks all before
    the first one with findings raises.
    """
    looks = (verify(node.process.data_dir, node.process.environment) for node in nodes)
    for outcome in await asyncio.gather(*looks, return_exceptions=True):
        if outcome is not None:
            raise outcome
