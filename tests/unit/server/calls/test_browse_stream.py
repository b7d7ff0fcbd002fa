"""Browse: pages in order, and every way in which its streams end."""

import asyncio
from typing import Any

import grpc
import pytest

from querator.model.calls import BrowseCall, BrowsedPage
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import items_pb2, queue_service_pb2, queue_service_pb2_grpc
from tests.unit.server.fake_service import Changes, FakeService, RunningServer, running_server

REQUEST = queue_service_pb2.BrowseRequest(queue="q", from_seq=1, upto_seq=5)


class Scan:
    """Pages of one item. The page at `broken_at` fails, and the page at `stuck_at` never comes."""

    def __init__(self, call: BrowseCall, service: "Scanning") -> None:
        self.call = call
        self._service = service
        self._changes: Changes = service.changes

    async def page(self, from_seq: int) -> BrowsedPage:
        if from_seq == self._service.broken_at:
            raise QueratorError(ErrorCode.QUEUE_DELETING, "going")
        if from_seq == self._service.stuck_at:
            await asyncio.get_running_loop().create_future()
        self._service.made += 1
        columns = items_pb2.ItemColumns(rows=1, seq=from_seq.to_bytes(8, "little"))
        return BrowsedPage(columns.SerializeToString(), from_seq + 1, self.call.upto_seq)

    def close(self) -> None:
        self._service.closed += 1


class Scanning(FakeService):
    def __init__(self, *, broken_at: int = 0, stuck_at: int = 0) -> None:
        super().__init__()
        self.broken_at = broken_at
        self.stuck_at = stuck_at
        self.made = 0
        self.closed = 0

    async def browse(self, call: BrowseCall, caller: str = "") -> Scan:
        await self._take(call)
        return Scan(call, self)


async def seqs(there: RunningServer, **options: Any) -> list[int]:
    return [
        int.from_bytes(response.columns.seq, "little")
        async for response in there.stub.Browse(REQUEST, **options)
    ]


async def test_all_pages_come_in_order():
    service = Scanning()
    async with running_server(service) as there:
        assert await seqs(there) == [1, 2, 3, 4, 5]
    assert (service.made, service.closed) == (5, 1)


async def test_a_request_that_is_refused():
    async with running_server(Scanning()) as there:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in there.stub.Browse(queue_service_pb2.BrowseRequest()):
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_pages_before_a_failure_arrive():
    service = Scanning(broken_at=4)
    async with running_server(service) as there:
        stream: Any = there.stub.Browse(REQUEST)
        assert [(await stream.read()).next_seq for _ in range(3)] == [2, 3, 4]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert service.closed == 1


async def test_a_scan_that_its_client_leaves_is_closed():
    service = Scanning(stuck_at=3)
    async with running_server(service) as there:
        stream: Any = there.stub.Browse(REQUEST)
        assert (await stream.read()).next_seq == 2
        stream.cancel()
    assert service.closed == 1


class Slow(Scan):
    """Needs many rounds of the loop to cancel a page."""

    async def page(self, from_seq: int) -> BrowsedPage:
        try:
            return await super().page(from_seq)
        finally:
            if from_seq == self._service.stuck_at:
                for _ in range(1_000):
                    await asyncio.sleep(0)


class SlowScanning(Scanning):
    async def browse(self, call: BrowseCall, caller: str = "") -> Scan:
        await self._take(call)
        return Slow(call, self)


async def test_a_stopped_server_has_no_handler_at_work():
    service = SlowScanning(stuck_at=3)
    async with running_server(service) as there:
        stream: Any = there.stub.Browse(REQUEST)
        assert (await stream.read()).next_seq == 2
    assert service.closed == 1


class Heavy(Scan):
    """Pages larger than the flow-control window of a connection."""

    async def page(self, from_seq: int) -> BrowsedPage:
        made = await super().page(from_seq)
        columns = items_pb2.ItemColumns(rows=1, seq=bytes(1 << 20))
        return BrowsedPage(columns.SerializeToString(), made.next_seq, made.upto_seq)

    def close(self) -> None:
        super().close()
        assert isinstance(self._service, HeavyScanning)
        self._service.left.set()


async def drained(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


class HeavyScanning(Scanning):
    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    async def browse(self, call: BrowseCall, caller: str = "") -> Scan:
        await self._take(call)
        return Heavy(call, self)


@pytest.mark.parametrize("idle_ms", [0, 50])
async def test_a_scan_that_nobody_reads_is_closed(monkeypatch: pytest.MonkeyPatch, idle_ms: int):
    """With an idle time of 0 the server gives up the first page."""
    monkeypatch.setattr("querator.server.calls.browse_stream.SCAN_IDLE_MS_MAX", idle_ms)
    service = HeavyScanning()
    # gRPC enlarges the window of an unread stream while answers to its pings are late.
    options = [("grpc.http2.bdp_probe", 0)]
    async with (
        running_server(service) as there,
        grpc.aio.insecure_channel(there.address, options=options) as channel,
    ):
        stream: Any = queue_service_pb2_grpc.QueueServiceStub(channel).Browse(REQUEST)
        async with asyncio.timeout(20):
            await service.left.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(stream)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_scan_has_the_deadline_of_its_caller():
    service = Scanning()
    async with running_server(service) as there:
        assert await seqs(there, timeout=30) == [1, 2, 3, 4, 5]
        assert await seqs(there) == [1, 2, 3, 4, 5]
    within, without = (call.timeout_ms for call in service.calls)
    assert 20_000 < within < 30_000
    assert without == 0
