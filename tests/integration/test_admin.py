"""The admin port of real nodes: scraped under load, queried while they start, hang, fail
and end.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from querator import Client
from querator.node import Node, NodeFailedError
from querator.server.admin.health import Health
from querator.storage.identity import DirectoryRefused
from querator.storage.memory_environment import MemoryEnvironment
from querator.v1 import admin_service_pb2 as admin
from querator.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.integration.processes import server
from tests.integration.test_serve import serve
from tests.unit.server.http_client import get
from tests.unit.server.observed_node import Exposition

QUEUE = {"namespace": "default", "queue": "q"}


async def scraped(address: str) -> Exposition:
    status, _, text = await get(address, "/metrics")
    assert status == 200
    return Exposition(text)


async def test_a_node_under_load_is_scraped(tmp_path: Path) -> None:
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", partitions=2, max_attempts=0, dead_queue="")

        async def work() -> None:
            async with client.producer("q") as producer:
                for _ in range(20):
                    async with asyncio.TaskGroup() as tasks:
                        for number in range(100):
                            tasks.create_task(producer.produce(b"%d" % number))

        async def scrape_meanwhile(working: "asyncio.Task[None]") -> list[float]:
            produced = []
            while not working.done():
                said = await scraped(node.admin_address)
                produced.append(said.value("querator_queue_produced_items_total", **QUEUE))
                assert (await get(node.admin_address, "/livez"))[0] == 200
                assert (await get(node.admin_address, "/readyz"))[0] == 200
            return produced

        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(work())
            scraping = tasks.create_task(scrape_meanwhile(working))
        assert scraping.result() == sorted(scraping.result())
        async with grpc.aio.insecure_channel(node.address) as channel:
            request = admin.GetQueueStatsRequest(queue="q")
            total = (await AdminServiceStub(channel).GetQueueStats(request)).total
        said = await scraped(node.admin_address)
        assert total.produced == 2_000
        assert said.value("querator_queue_produced_items_total", **QUEUE) == 2_000
        assert said.value("querator_queue_items", **QUEUE, state="ready") == 2_000
        assert said.value("querator_queue_partitions", **QUEUE, state="leader") == 2
        assert said.value("querator_queue_oldest_ready_age_seconds", **QUEUE) > 0
        assert said.value("querator_turn_commands_sum") > 0
        assert said.value("querator_turn_part_seconds_count", part="commit") > 0
        assert said.value("querator_calls_total", method="GetQueueStats", code="OK") == 1
        assert said.value("querator_storage_used_bytes") > 0
        assert said.value("querator_node_unready_reasons") == 0
        assert said.value("process_resident_memory_bytes") > 0


async def test_counters_begin_anew_with_the_process_and_stocks_do_not(tmp_path: Path) -> None:
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", max_attempts=0, dead_queue="")
            await client.produce("q", b"work")
        said = await scraped(node.admin_address)
        assert said.value("querator_queue_produced_items_total", **QUEUE) == 1
        assert await node.terminate() == 0
        await node.start()
        said = await scraped(node.admin_address)
        assert said.value("querator_queue_items", **QUEUE, state="ready") == 1
        assert said.value("querator_queue_produced_items_total", **QUEUE) == 0


async def test_a_frozen_node_answers_no_probe_until_it_goes_on(tmp_path: Path) -> None:
    async with server(tmp_path / "data") as node:
        host, _, port = node.admin_address.rpartition(":")
        os.kill(node.pid, signal.SIGSTOP)
        stopped = os.WSTOPPED | os.WNOWAIT
        await asyncio.to_thread(os.waitid, os.P_PID, node.pid, stopped)
        # The kernel accepts the connection; no answer comes on it while the process is stopped.
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await writer.drain()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
        os.kill(node.pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await get(node.admin_address, "/readyz"))[0] == 200
        assert await node.terminate() == 0


async def test_the_admin_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = await asyncio.to_thread(
            serve, "--memory", "--listen", "127.0.0.1:0", "--listen-admin", listen
        )
    assert code == 1
    assert listen in line
    assert "--listen-admin" in line


async def test_no_admin_port_when_it_is_empty(tmp_path: Path) -> None:
    async with server(tmp_path / "data", "--listen-admin", "") as node:
        assert node.admin_address == ""
        assert await node.terminate() == 0


async def test_every_line_of_the_log_says_which_node(tmp_path: Path) -> None:
    async with server(tmp_path / "data", "--log-format", "json") as node:
        said = await scraped(node.admin_address)
        assert await node.terminate() == 0
    info = said.families["querator_node_info"].samples[0].labels
    lines = [line for line in node.log.read_text().splitlines() if line.startswith("{")]
    assert len(lines) > 2
    for line in lines:
        assert f'"node":"{info["node"]}"' in line
        assert f'"cluster_id":"{info["cluster_id"]}"' in line


# --- in this process: what hangs or fails can be chosen --------------------------------------


@asynccontextmanager
async def watched(environment: MemoryEnvironment) -> AsyncIterator[Node]:
    node = Node(environment=environment, new=True, listen_admin="127.0.0.1:0")
    async with node:
        yield node


class Gate:
    """Holds every thread that commits."""

    def __init__(self, environment: MemoryEnvironment) -> None:
        self._environment = environment
        self._passing = threading.Event()
        self.reached = threading.Event()

    def close(self) -> None:
        self._environment.faults = self._hold

    def _hold(self, point: str) -> None:
        if point == "commit":
            self.reached.set()
            self._passing.wait()

    def open(self) -> None:
        self._environment.faults = None
        self._passing.set()


async def test_a_disk_that_hangs_is_seen_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server then takes any turn that has begun for a hung one.
    monkeypatch.setattr(Health.__init__, "__kwdefaults__", {"stalled_s_max": 0.0})
    environment = MemoryEnvironment()
    async with watched(environment) as node, Client(node.address) as client:
        gate = Gate(environment)
        gate.close()
        async with asyncio.TaskGroup() as tasks:
            creating = tasks.create_task(client.create_queue("q", max_attempts=0, dead_queue=""))
            await asyncio.to_thread(gate.reached.wait)
            for path in ("/livez", "/readyz"):
                status, _, text = await get(node.admin_address, path)
                assert status == 503
                assert "the raft thread has not ended its turn" in text
            said = await scraped(node.admin_address)
            assert said.value("querator_turn_stalled_seconds") > 0
            assert said.value("querator_node_unready_reasons") == 1
            assert not creating.done()
            gate.open()


async def test_a_node_whose_disk_fails_says_so_until_it_ends() -> None:
    environment = MemoryEnvironment()

    async def fail_and_ask() -> None:
        async with watched(environment) as node, Client(node.address) as client:
            await client.create_queue("q", max_attempts=0, dead_queue="")
            environment.faults = _fail
            with pytest.raises(Exception, match="failed"):
                await client.produce("q", b"work")
            for path in ("/livez", "/readyz"):
                status, _, text = await get(node.admin_address, path)
                assert status == 503
                assert "the node has failed: " in text
                assert "DiskError" in text
            await node.run_until_stopped()

    with pytest.raises(NodeFailedError):
        await fail_and_ask()


class DiskError(Exception):
    pass


def _fail(point: str) -> None:
    raise DiskError(point)


async def test_a_scrape_during_the_end_reads_no_closed_storage(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", new=True, listen_admin="127.0.0.1:0")
    await node.start()
    async with Client(node.address) as client:
        await client.create_queue("q", partitions=8, max_attempts=0, dead_queue="")
        await client.produce("q", b"work")
    address = node.admin_address

    async def scrape_until_it_is_gone() -> int:
        answers = 0
        while True:
            try:
                status, _, _ = await get(address, "/metrics")
            except OSError:
                return answers
            assert status == 200
            answers += 1

    async with asyncio.TaskGroup() as tasks:
        scraping = [tasks.create_task(scrape_until_it_is_gone()) for _ in range(3)]
        await scraped(address)
        await node.stop()
    assert all(task.result() for task in scraping)


async def test_a_start_that_fails_gives_the_admin_port_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DirectoryRefused):
        await Node(tmp_path / "no", listen_admin=listen).start()
    async with Node(memory=True, listen_admin=listen) as node:
        assert (await get(node.admin_address, "/readyz"))[0] == 200
