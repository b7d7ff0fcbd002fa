"""Clients that cannot connect: the error names the cause, as soon as it is certain."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client, SyncClient, Tls
from querator.client.cluster import ClusterAdmin
from querator.client.errors import ConnectionFailed, ConnectionFault
from querator.client.transport import diagnosis
from querator.client.transport.diagnosis import Diagnosis
from tests.certificates import Authority
from tests.unit.client.fake_node import FakeNode, until
from tests.unit.client.ports import grpc_port, odd_port, saying

LONG = timedelta(minutes=10)
"""A client that does not give up in a test by its time-out."""
HTTP = saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.fixture
def papers(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "papers")


async def refused(address: str, tls: Tls | None = None) -> ConnectionFailed:
    """The error of a call, a producer and a consumer, none of which waits for its time-out."""
    async with Client(address, tls=tls, connect_timeout=LONG) as client:
        with pytest.raises(ConnectionFailed) as of_a_call:
            await client.stats("q")
        async with client.producer("q") as producer:
            with pytest.raises(ConnectionFailed) as of_a_producer:
                await producer.produce(b"x")
        async with client.consumer("q") as consumer:
            with pytest.raises(ConnectionFailed) as of_a_consumer:
                await anext(consumer)
    assert of_a_call.value.faults == of_a_producer.value.faults == of_a_consumer.value.faults
    async with ClusterAdmin(address, request_timeout=600, connect_timeout=600, tls=tls) as admin:
        with pytest.raises(ConnectionFailed) as of_an_operator:
            await admin.plan()
    assert of_an_operator.value.message == of_a_call.value.message
    return of_a_call.value


async def test_what_does_not_pass_ends_calls_at_once(papers: Authority):
    with grpc_port(papers, mutual=True) as address:
        error = await refused(address)
        assert error.fault is ConnectionFault.TLS_REQUIRED
        assert error.message.startswith(f"{address} requires TLS. Give the client tls=")
        error = await refused(address, papers.client())
        assert error.fault is ConnectionFault.CERTIFICATE_REQUIRED
        assert "cert=…, key=…" in error.message
    with grpc_port(None) as address:
        error = await refused(address, papers.client())
        assert error.fault is ConnectionFault.NO_TLS
        assert error.message == f"{address} does not use TLS. Make the client without tls."
    with odd_port(HTTP) as address:
        error = await refused(address)
        assert error.fault is ConnectionFault.HTTP
        assert error.message == (
            f"{address} speaks HTTP: is it the admin port? Clients use 4470 by default."
        )


def test_a_client_without_an_event_loop(papers: Authority):
    with (
        grpc_port(papers) as address,
        SyncClient(address, connect_timeout=LONG) as client,
        pytest.raises(ConnectionFailed, match="requires TLS"),
    ):
        client.stats("q")


async def test_several_addresses_are_all_named(papers: Authority):
    with grpc_port(papers) as secure, odd_port(HTTP) as admin:
        error = await refused(f"{secure},{admin}")
    assert error.message.startswith("No node can be reached. ")
    assert f"{secure} requires TLS." in error.message
    assert f"{admin} speaks HTTP" in error.message
    assert error.fault is ConnectionFault.UNKNOWN
    assert {one.kind for one in error.faults} == {
        ConnectionFault.TLS_REQUIRED,
        ConnectionFault.HTTP,
    }


async def test_one_address_that_works_is_enough(papers: Authority):
    async with FakeNode.running() as node:
        with grpc_port(papers) as secure, odd_port(HTTP) as admin:
            async with Client(f"{secure},{admin},{node.address}") as client:
                for _ in range(3):
                    await client.produce("q", b"x")
    assert node.stored == [b"x"] * 3


async def test_what_may_pass_is_tried_again_until_the_time_is_over():
    async with FakeNode.running() as node, Client(node.address, connect_timeout=LONG) as client:
        await node.stop()
        connection = client._nodes()._nodes[node.address].connection
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.produce("q", b"x"))
            await until(lambda: connection.fault is not None)
            assert connection.fault is not None
            assert connection.fault.kind is ConnectionFault.REFUSED
            await node.start()
        assert connection.fault is None
        assert node.stored == [b"x"]


async def test_a_client_that_was_connected_waits_also_for_what_does_not_pass():
    """The node may come back; the error of the call, after its time-out, has the cause."""
    short = timedelta(seconds=2)
    async with (
        FakeNode.running() as node,
        Client(node.address, request_timeout=short) as client,
    ):
        number = int(node.address.rpartition(":")[2])
        await client.produce("q", b"x")
        await node.stop()
        # The first probe may have come before the port listened again. A probe takes a second at
        # most, and on a busy machine the port may not have answered by then.
        found = ConnectionFault.REFUSED
        with odd_port(HTTP, number=number):
            while not found.certain:
                with pytest.raises(ConnectionFailed) as failed:
                    await client.produce("q", b"y")
                found = failed.value.fault
    assert found is ConnectionFault.HTTP


async def test_one_probe_for_many_failures(monkeypatch: pytest.MonkeyPatch):
    probed: list[str] = []

    def probe(address: str, tls: Tls | None) -> None:
        probed.append(address)

    monkeypatch.setattr(diagnosis, "probe", probe)
    looked = Diagnosis("h:1", None)
    for _ in range(100):
        looked.failed()
    await looked.settle()
    for _ in range(100):
        looked.failed()
    assert probed == ["h:1"]
    looked.succeeded()
    looked.failed()
    await looked.settle()
    assert probed == ["h:1"] * 2


async def test_a_loop_that_ended_before_the_probe(monkeypatch: pytest.MonkeyPatch):
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def probe(address: str, tls: Tls | None) -> None:
        begun.set()
        may_end.wait()

    def look(self: Diagnosis, loop: asyncio.AbstractEventLoop) -> None:
        try:
            original(self, loop)
        finally:
            ended.set()

    original = Diagnosis._look
    monkeypatch.setattr(Diagnosis, "_look", look)
    monkeypatch.setattr(diagnosis, "probe", probe)

    async def fail() -> None:
        Diagnosis("h:1", None).failed()

    await asyncio.to_thread(asyncio.run, fail())
    assert begun.wait(10)
    may_end.set()
    assert ended.wait(10)


async def test_a_probe_that_raises_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch):
    looks = []

    def raises(address: str, tls: Tls | None) -> None:
        looks.append(address)
        raise ValueError("what the port says cannot be read")

    monkeypatch.setattr(diagnosis, "probe", raises)
    looked = Diagnosis("h:1", None)
    for times in (1, 2):
        looked.failed()
        await looked.settle()
        assert len(looks) == times
        assert looked.fault is None
        # Ends the pause between two probes.
        looked.succeeded()


async def test_a_thread_that_cannot_be_started_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
):
    def fails(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    looked = Diagnosis("127.0.0.1:1", None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        looked.failed()
        await looked.settle()
    looked.succeeded()
    looked.failed()
    await looked.settle()
    assert looked.fault is not None
