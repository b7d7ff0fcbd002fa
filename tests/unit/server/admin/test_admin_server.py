"""The admin port over HTTP: its answers, its refusals, and its stop."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from querator.config import ConfigError, ListenError
from querator.server.admin.admin_server import AdminServer
from querator.server.admin.admin_view import Observed
from tests.unit.server.http_client import get
from tests.unit.server.observed_node import Exposition, HeldEnvironment, observed
from tests.unit.service.service_node import service_node


@asynccontextmanager
async def listening(seen: Observed, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = AdminServer(seen, listen=listen)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


async def test_what_a_node_that_serves_answers() -> None:
    async with service_node() as node, listening(observed(node)) as address:
        await node.create("q")
        status, headers, text = await get(address, "/metrics")
        assert (status, headers["cache-control"]) == (200, "no-store")
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        label = {"namespace": "default", "queue": "q", "state": "leader"}
        assert Exposition(text).value("querator_queue_partitions", **label) == 1
        for path in ("/livez", "/readyz"):
            assert (await get(address, path))[::2] == (200, "ok\n")
        assert (await get(address, "/"))[::2] == (200, "/metrics\n/livez\n/readyz\n")


async def test_reasons_are_named_one_a_line() -> None:
    seen = Observed(waits_for="n2", stopping=True)
    async with listening(seen) as address:
        assert (await get(address, "/livez"))[0] == 200
        status, _, text = await get(address, "/readyz")
        assert status == 503
        assert text.splitlines() == [
            "the node is stopping",
            "the start waits for n2",
            "the storage is not open",
        ]
        seen.failure = OSError("gone")
        assert (await get(address, "/livez"))[::2] == (
            503,
            "the node has failed: OSError('gone')\n",
        )


async def test_openmetrics_by_the_accept_header() -> None:
    async with listening(Observed()) as address:
        accept = "application/openmetrics-text;version=1.0.0"
        _, headers, text = await get(address, "/metrics", Accept=accept)
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")


async def test_other_paths_and_methods() -> None:
    async with listening(Observed()) as address:
        assert (await get(address, "/debug"))[0] == 404
        assert (await get(address, "/metrics", method="POST"))[0] == 405
        status, _, text = await get(address, "/livez", method="HEAD")
        assert (status, text) == (200, "")


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 1_000, b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000],
    ids=["zeros", "TLS", "an endless header"],
)
async def test_garbage_on_the_port_harms_nobody_else(garbage: bytes) -> None:
    async with listening(Observed()) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        assert (await get(address, "/livez"))[0] == 200
        writer.write_eof()
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        writer.close()
        assert (await get(address, "/livez"))[0] == 200


async def test_a_port_in_use_is_said_clearly() -> None:
    async with listening(Observed()) as address:
        other = AdminServer(Observed(), listen=address)
        with pytest.raises(ListenError, match=f"{address}.*--listen-admin"):
            await other.start()
        await other.stop()
        assert (await get(address, "/livez"))[0] == 200


async def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="listen_admin"):
        await AdminServer(Observed(), listen="here").start()
    with pytest.raises(ListenError, match=r"no\.such\.host\.invalid"):
        await AdminServer(Observed(), listen="no.such.host.invalid:0").start()


async def test_signals_stay_with_the_process() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with listening(Observed()):
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert during == before


async def test_the_end_waits_for_no_idle_connection_and_frees_the_port() -> None:
    server = AdminServer(Observed(), listen="127.0.0.1:0")
    address = await server.start()
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(20):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await server.stop()
        await reader.read()
    writer.close()
    await server.stop()
    with socket.create_server((host, int(port))):
        pass


@pytest.mark.parametrize("steps", range(6))
async def test_whoever_connects_at_the_end_is_not_left_waiting(steps: int) -> None:
    server = AdminServer(Observed(), listen="127.0.0.1:0")
    address = await server.start()
    host, _, port = address.rpartition(":")

    async def come() -> None:
        """Connects. The server refuses the connection, or accepts and closes it."""
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection(host, int(port))
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(come())
        for _ in range(steps):
            await asyncio.sleep(0)
        await server.stop()


async def test_the_end_waits_for_no_answer_that_does_not_come() -> None:
    environment = HeldEnvironment()
    async with service_node(environment) as node:
        await node.create("q")
        server = AdminServer(observed(node), listen="127.0.0.1:0")
        address = await server.start()
        host, _, port = address.rpartition(":")
        environment.passing.clear()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.to_thread(environment.reached.wait)
        try:
            await server.stop()
            async with asyncio.timeout(20):
                assert await reader.read() == b""
        finally:
            environment.passing.set()
        writer.close()


async def test_scrapes_at_the_same_time_are_all_answered() -> None:
    async with service_node() as node, listening(observed(node)) as address:
        await node.create("q", partitions=4)
        answers = await asyncio.gather(*[get(address, "/metrics") for _ in range(12)])
        assert [status for status, _, _ in answers] == [200] * 12
