"""Executions on real nodes by unary calls alone: a worker is a loop of LeaseActivations and
RecordProgress, in any language.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc import error_details_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]

from querator import Client
from querator.model.executions import encode_path, promise_mac
from querator.v1 import admin_service_pb2, admin_service_pb2_grpc, items_pb2, queue_service_pb2
from querator.v1 import execution_service_pb2 as v1
from querator.v1.execution_service_pb2_grpc import ExecutionServiceStub
from querator.v1.queue_service_pb2_grpc import QueueServiceStub
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import run, server

pytestmark = pytest.mark.timeout(180)

Settings = admin_service_pb2.QueueSettings
KIND = admin_service_pb2.QueueKind.QUEUE_KIND_EXECUTIONS
CHARGE, SLEEP, APPROVAL = encode_path([1]), encode_path([2]), encode_path([3])


class Shop:
    """Calls for the queue `shop`, each at the next of the nodes."""

    def __init__(self, *addresses: str) -> None:
        self.channels = [grpc.aio.insecure_channel(address) for address in addresses]
        self._next = itertools.cycle(self.channels)

    async def call(self, method: str, **fields: Any) -> Any:
        request = getattr(v1, f"{method}Request")(queue="shop", **fields)
        stub = ExecutionServiceStub(next(self._next))
        return await getattr(stub, method)(request, timeout=30)

    async def refused(self, method: str, **fields: Any) -> tuple[str, str]:
        """The reason and the field of the refusal of a call."""
        return await refused(lambda: self.call(method, **fields))

    async def create(self) -> None:
        admin = admin_service_pb2_grpc.AdminServiceStub(self.channels[0])
        settings = Settings(kind=KIND, partitions=3, lease_timeout=Duration(seconds=2))
        await admin.CreateQueue(
            admin_service_pb2.CreateQueueRequest(queue="shop", settings=settings)
        )

    async def start(self, name: str, **fields: Any) -> Any:
        fields = {"function": "shop.checkout", "version": "1", "arguments": b"17"} | fields
        return await self.call("StartExecution", id=name, **fields)

    async def lease(self, name: str) -> Any:
        """The activation of an execution, when there is one."""
        while True:
            leased = await self.call(
                "LeaseActivations",
                client_id="worker",
                max_activations=1,
                request_timeout=Duration(seconds=20),
            )
            assert leased.activations, f"{name} has no activation"
            (activation,) = leased.activations
            if activation.id == name:
                return activation

    async def record(self, activation: Any, number: int, **fields: Any) -> Any:
        return await self.call("RecordProgress", **named(activation, number), **fields)

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()


def named(activation: Any, number: int) -> dict[str, Any]:
    return {
        "lease_id": activation.lease_id,
        "item": activation.item,
        "execution": activation.execution,
        "number": number,
    }


def step(path: bytes, payload: bytes = b"paid", after: int = 0) -> v1.JournalRecord:
    return v1.JournalRecord(
        kind=v1.RECORD_KIND_STEP_DONE, path=path, name="charge", site="shop.py:41", after=after,
        payload=payload,
    )  # fmt: skip


def kinds(records: Any) -> list[str]:
    return [v1.RecordKind.Name(record.kind).removeprefix("RECORD_KIND_") for record in records]


async def refused(call: Callable[[], Awaitable[Any]]) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call()
    status = rpc_status.from_call(caught.value)
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    return info.reason, info.metadata.get("field", "")


async def a_life(shop: Shop, disturb: Callable[[], Awaitable[None]]) -> None:
    """A step, a durable sleep, an approval, a signal, a result. The journal is the same after
    `disturb`.
    """
    started = await shop.start("order-17")
    assert not started.attached
    assert (await shop.start("order-17")).attached
    first = await shop.lease("order-17")
    assert (first.execution, kinds(first.records)) == (started.execution, ["STARTED"])
    # A step, then a timer, in one write. The answer of a repeat is the first one.
    due_ms = time.time_ns() // 1_000_000 + 1_000
    parking: dict[str, Any] = {
        "records": [step(CHARGE)],
        "timers": [v1.Timer(path=SLEEP, due_ms=due_ms)],
        "park": v1.Park(paths=[SLEEP]),
    }
    parked = await shop.record(first, 1, **parking)
    again = await shop.record(first, 1, **parking)
    assert (parked.first_index, again.first_index, again.repeated_answer) == (1, 1, True)
    assert (await shop.refused("RecordProgress", **named(first, 2)))[0] == "LEASE_LOST"
    await disturb()
    # The timer fires, and the next worker gets the journal.
    second = await shop.lease("order-17")
    assert time.time_ns() // 1_000_000 >= due_ms - 500
    assert kinds(second.records) == ["STARTED", "STEP_DONE", "TIMER_FIRED"]
    assert second.records[1].payload == b"paid"
    # A promise, resolved by anyone with its proof, and a signal: each arrives once.
    await shop.record(second, 1, seen=2, park=v1.Park(paths=[APPROVAL], names=["go"]), timers=[])
    promise = {
        "partition": second.partition, "execution": second.execution, "run": second.run,
        "path": APPROVAL,
        "proof": promise_mac(second.secret, second.execution, second.run, APPROVAL),
    }  # fmt: skip
    forged = await shop.refused("ResolvePromise", **{**promise, "proof": b"x" * 16})
    assert forged[0] == "TOKEN_INVALID"
    resolved = await shop.call("ResolvePromise", **promise, payload=b"yes")
    late = await shop.call("ResolvePromise", **promise, payload=b"no", reject=True)
    assert (late.index, late.kind, late.repeated_answer) == (
        resolved.index, v1.RECORD_KIND_RESOLVED, True,
    )  # fmt: skip
    sent = await shop.call("SignalExecution", id="order-17", name="go", message_id="m1")
    assert (await shop.call(
        "SignalExecution", id="order-17", name="go", message_id="m1"
    )).index == sent.index  # fmt: skip
    third = await shop.lease("order-17")
    overlooked = await shop.refused(
        "RecordProgress", **named(third, 1), seen=3, park=v1.Park(names=["go"])
    )
    assert overlooked[0] == "UNSEEN"
    # The result, larger than what a command holds.
    result = b"x" * 100_000
    close = v1.Close(outcome=v1.RECORD_KIND_COMPLETED, payload=result, drain=True)
    await shop.record(third, 1, seen=4, records=[step(encode_path([4]), after=4)], close=close)
    found = await shop.call("GetExecution", id="order-17")
    assert found.execution.state == v1.EXECUTION_STATE_COMPLETED
    assert found.end.payload == result
    journal = await shop.call("ReadJournal", id="order-17")
    assert kinds(journal.records) == [
        "STARTED", "STEP_DONE", "TIMER_FIRED", "RESOLVED", "SIGNAL", "STEP_DONE", "COMPLETED",
    ]  # fmt: skip
    ended = await shop.refused("SignalExecution", id="order-17", name="go")
    assert ended == ("EXECUTION_CLOSED", "id")


async def a_late_worker(shop: Shop) -> None:
    """A worker that stands still past its lease writes nothing more."""
    await shop.start("late")
    late = await shop.lease("late")
    await shop.record(late, 1, records=[step(CHARGE)])
    other = await shop.lease("late")
    assert other.lease_id != late.lease_id
    assert kinds(other.records) == ["STARTED", "STEP_DONE"]
    stale = await shop.refused("RecordProgress", **named(late, 2), records=[step(SLEEP)])
    assert stale[0] == "LEASE_LOST"
    await shop.record(other, 1, records=[step(SLEEP)])
    await shop.call("TerminateExecution", id="late", reason="enough")
    state = (await shop.call("GetExecution", id="late")).execution.state
    assert state == v1.EXECUTION_STATE_TERMINATED
    assert (await shop.refused("RecordProgress", **named(other, 2)))[0] == "LEASE_LOST"


async def waits(shop: Shop) -> None:
    """Calls that wait for many executions, at each node; then those that wait for one."""
    ids = [f"awaited-{number}" for number in range(7)]
    for one in ids:
        await shop.start(one)
    known = await shop.call("WaitExecutions", ids=[*ids, "nothing"])
    assert [(one.id, one.HasField("execution")) for one in known.executions] == [("nothing", False)]
    assert not (await shop.call("WaitExecutions", ids=ids)).executions
    waiting = [
        asyncio.get_running_loop().create_task(
            shop.call("WaitExecutions", ids=ids, wait_timeout=Duration(seconds=25))
        )
        for _ in shop.channels
    ]
    await shop.call("TerminateExecution", id=ids[3], reason="enough")
    for each in await asyncio.gather(*waiting):
        [ended] = each.executions
        assert (ended.id, ended.execution.id, ended.end.payload) == (ids[3], ids[3], b"enough")
        assert ended.execution.state == v1.EXECUTION_STATE_TERMINATED
        assert ended.end.kind == v1.RECORD_KIND_TERMINATED
    assert await shop.refused("WaitExecutions", ids=[]) == ("INVALID_ARGUMENT", "ids")
    for one in ids:
        await shop.call("TerminateExecution", id=one)


async def test_a_node_keeps_executions(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        shop = Shop(node.address)
        await shop.create()

        async def restart() -> None:
            await node.kill()
            await node.start()

        await a_life(shop, restart)
        await a_late_worker(shop)
        await waits(shop)
        # Lists are by partition, in pages.
        for number in range(5):
            await shop.start(f"listed-{number}", function="listed")
        found: list[str] = []
        token = ""
        while True:
            page = await shop.call(
                "ListExecutions", function="listed", page_size=2, page_token=token
            )
            found += [one.id for one in page.executions]
            token = page.next_page_token
            if not token:
                break
        assert sorted(found) == [f"listed-{number}" for number in range(5)]
        await refusals(shop)
        await shop.close()
        # The SDK and the command line know the kind.
        create = ("queue", "create", "made", "--kind", "executions")
        code, _, error = await run(*create, environment={"QUERATOR_ADDRESS": node.address})
        assert code == 0, error
        async with Client(node.address) as client:
            kinds = {queue.name: queue.kind async for queue in client.list_queues()}
            assert kinds["shop"] == kinds["made"] == "executions"


async def refusals(shop: Shop) -> None:
    """Calls for the other kind of queue, and malformed ones."""
    queues = QueueServiceStub(shop.channels[0])
    item = queue_service_pb2.ProduceRequest(queue="shop", items=[items_pb2.Item(payload=b"x")])
    assert (await refused(lambda: queues.Produce(item)))[0] == "QUEUE_KIND"
    lease = queue_service_pb2.LeaseRequest(queue="shop", client_id="c", max_items=1)
    assert (await refused(lambda: queues.Lease(lease)))[0] == "QUEUE_KIND"
    peek = admin_service_pb2.PeekItemsRequest(queue="shop")
    admin = admin_service_pb2_grpc.AdminServiceStub(shop.channels[0])
    assert (await refused(lambda: admin.PeekItems(peek)))[0] == "QUEUE_KIND"
    await admin.CreateQueue(admin_service_pb2.CreateQueueRequest(queue="items"))
    start = v1.StartExecutionRequest(queue="items", id="a", function="f", version="1")
    stub = ExecutionServiceStub(shop.channels[0])
    assert (await refused(lambda: stub.StartExecution(start)))[0] == "QUEUE_KIND"
    wrong = admin_service_pb2.CreateQueueRequest(
        queue="other", settings=Settings(kind=KIND, max_attempts=3)
    )
    assert await refused(lambda: admin.CreateQueue(wrong)) == (
        "INVALID_ARGUMENT", "settings.max_attempts",
    )  # fmt: skip
    more = admin_service_pb2.UpdateQueueRequest(
        queue="shop", settings=Settings(partitions=5), update_mask=FieldMask(paths=["partitions"])
    )
    assert await refused(lambda: admin.UpdateQueue(more)) == ("QUEUE_KIND", "settings.partitions")
    assert await shop.refused("StartExecution", id="", function="f", version="1") == (
        "INVALID_ARGUMENT", "id",
    )  # fmt: skip
    assert (await shop.refused("GetExecution", id="nothing"))[0] == "EXECUTION_NOT_FOUND"
    assert (await shop.refused("CancelExecution", id="nothing"))[0] == "EXECUTION_NOT_FOUND"
    await shop.start("bad")
    bad = await shop.lease("bad")
    future = await shop.refused("RecordProgress", **named(bad, 1), seen=9)
    assert future == ("INVALID_ARGUMENT", "seen")
    unknown = v1.JournalRecord(kind=v1.RECORD_KIND_SIGNAL, path=CHARGE)
    forged = await shop.refused("RecordProgress", **named(bad, 1), records=[unknown])
    assert forged == ("INVALID_ARGUMENT", "records[0].kind")
    stuck = v1.GiveBack(stuck=True, reason="undecodable")
    await shop.record(bad, 1, give_back=stuck)
    shown = (await shop.call("GetExecution", id="bad")).execution
    assert (shown.state, shown.reason) == (v1.EXECUTION_STATE_STUCK, "undecodable")
    assert (await shop.call("RetryExecution", id="bad")).changed
    assert not (await shop.call("RetryExecution", id="bad")).changed


async def test_three_nodes_keep_executions_while_one_is_killed(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.until_well()
        shop = Shop(*(cluster[name].address for name in "ab"))
        await shop.create()
        await cluster.until_well()
        await waits(shop)
        waiting: list[asyncio.Task[Any]] = []

        async def kill() -> None:
            asked = shop.call("WaitExecutions", ids=["order-17"], wait_timeout=Duration(seconds=25))
            waiting.append(asyncio.get_running_loop().create_task(asked))
            await cluster["c"].kill()

        await a_life(shop, kill)
        [ended] = (await waiting[0]).executions
        assert ended.execution.state == v1.EXECUTION_STATE_COMPLETED
        assert len(ended.end.payload) == 100_000
        await a_late_worker(shop)
        await shop.close()
