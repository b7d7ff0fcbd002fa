"""Two clusters for a whole run: one node, and three nodes. All workers of the run use the same.

The process that collects no tests itself (the controller of pytest-xdist, or pytest without
workers) starts the nodes, and names their addresses in the environment of its workers. It does not
wait for them: a worker does, before its first test.
"""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import grpc
import msgspec

from querator.cli.demo.local_nodes import free_ports
from querator.v1.admin_service_pb2 import CreateQueueRequest
from querator.v1.admin_service_pb2_grpc import AdminServiceStub

SIZES: Final = (1, 3)
START_S = 60
STOP_S = 30
_VARIABLE = "QUERATOR_CONFORMANCE_{}"


def addresses(size: int) -> list[str]:
    """Where clients reach the nodes of the cluster of this size."""
    return os.environ[_VARIABLE.format(size)].split(",")


def are_started() -> bool:
    return _VARIABLE.format(SIZES[0]) in os.environ


class Cluster:
    """The nodes of one cluster as processes, on data directories below `home`."""

    def __init__(self, size: int, home: Path) -> None:
        self._home = home
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._ports = free_ports(2 * size)
        self._size = size

    def start(self) -> None:
        """Starts the processes and returns. Workers see their addresses."""
        served = [f"127.0.0.1:{port}" for port in self._ports[: self._size]]
        names = [f"node-{number + 1}" for number in range(self._size)]
        options = ["--new"]
        if self._size > 1:
            token = self._home / "token"
            token.write_text(secrets.token_hex(32))
            peers = [
                f"{name}=127.0.0.1:{port}"
                for name, port in zip(names, self._ports[self._size :], strict=True)
            ]
            options = ["--peers", ",".join(peers), "--cluster-token-file", str(token)]
        for name, address in zip(names, served, strict=True):
            self._nodes.append(self._node(name, address, options))
        os.environ[_VARIABLE.format(self._size)] = ",".join(served)

    def _node(self, name: str, address: str, options: list[str]) -> "subprocess.Popen[bytes]":
        directory = self._home / f"{self._size}-{name}"
        with directory.with_suffix(".log").open("wb") as log:
            return subprocess.Popen(
                [
                    sys.executable, "-m", "querator", "serve", "--name", name,
                    "--data-dir", str(directory), "--listen", address, "--listen-admin", "",
                    *options,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                env={**os.environ, "QUERATOR_LOG_FORMAT": "json"},
            )  # fmt: skip

    def stop(self) -> list[int]:
        """Ends the nodes; the exit codes of those that did not end well."""
        for node in self._nodes:
            node.send_signal(signal.SIGTERM)
        codes = [node.wait(STOP_S) for node in self._nodes]
        del os.environ[_VARIABLE.format(self._size)]
        return [code for code in codes if code]

    def errors(self) -> list[str]:
        """What the nodes have logged as errors."""
        logs = sorted(self._home.glob(f"{self._size}-*.log"))
        return [
            f"{log.stem}: {line}"
            for log in logs
            for line in log.read_text().splitlines()
            if msgspec.json.decode(line).get("level") in ("error", "critical")
        ]


def wait_until_well(size: int) -> None:
    """Returns when the nodes of this cluster serve, and queues can be made."""
    for address in addresses(size):
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(START_S)
            request = CreateQueueRequest(queue="warm")
            AdminServiceStub(channel).CreateQueue(request, timeout=START_S)
