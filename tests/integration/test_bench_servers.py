"""The nodes of a benchmark start although another program takes their ports."""

import socket
from pathlib import Path

import pytest

from scripts.bench.servers import Servers

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("nodes", [1, 3])
async def test_a_port_that_is_taken_is_replaced(tmp_path: Path, nodes: int) -> None:
    servers = Servers(tmp_path, nodes=nodes, memory=nodes == 1)
    chosen = servers.address.split(",")[0]
    with socket.create_server(("127.0.0.1", int(chosen.rpartition(":")[2]))):
        try:
            await servers.start()
            assert chosen not in servers.address.split(",")
        finally:
            await servers.stop()
