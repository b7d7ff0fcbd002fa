"""Waits for the ends of executions, across partitions, nodes and leaders."""

import asyncio
from typing import Any

import msgspec
import pytest

from querator.model import limits
from querator.model.calls import LeaseCall
from querator.model.commands import PartitionEffects
from querator.model.errors import ErrorCode
from querator.model.execution_calls import (
    ArriveCall,
    ProgressCall,
    PublishedCall,
    StartCall,
    WaitExecutionsCall,
)
from querator.model.execution_commands import Arrive, RecordProgress, StartExecution
from querator.model.executions import (
    ArriveKind,
    ExecutionState,
    GiveBack,
    Published,
    RecordKind,
)
from querator.model.ids import parse_lease_id
from querator.model.queues import QueueKind
from querator.service import execution_waits
from querator.service.queue_service import QueueService
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import LONG_MS, ServiceNode, code, refusal, service_node
from tests.unit.service.storage_damage import damaged

SETTINGS: dict[str, Any] = {"kind": QueueKind.EXECUTIONS}


async def start(service: QueueService, *ids: str) -> None:
    for one in ids:
        command = StartExecution(one, "shop.checkout", "1", bytes(16), b"h" * 16)
        await service.executions.start(StartCall("default", "q", command, b"", 0))


async def terminate(service: QueueService, one: str, reason: bytes = b"enough") -> None:
    place = int(len(reason) > limits.JOURNAL_INLINE_BYTES_MAX)
    command = Arrive(
        ArriveKind.TERMINATE, one, payload=b"" if place else reason, place=place,
        lengths=len(reason).to_bytes(4, "little") if place else b"",
    )  # fmt: skip
    call = ArriveCall("default", "q", -1, command, reason if place else b"", 0)
    await service.executions.arrive(call)


def wait_call(*ids: str, wait_ms: int = LONG_MS, queue: str = "q") -> WaitExecutionsCall:
    return WaitExecutionsCall("default", queue, ids, wait_ms)


async def ended(service: QueueService, *ids: str, **more: Any) -> dict[str, bytes | None]:
    return payloads(await service.executions.wait(wait_call(*ids, **more)))


def payloads(reply: Any) -> dict[str, bytes | None]:
    """What the executions of a reply have ended with; None: they do not exist."""
    found: dict[str, bytes | None] = {}
    for _, one in reply.executions:
        assert (one.view is None) == (one.end is None)
        if one.view is not None:
            assert (one.view.id, one.view.state) == (one.id, ExecutionState.TERMINATED)
            assert one.end.note.kind == RecordKind.TERMINATED
        found[one.id] = None if one.end is None else one.end.note.payload
    return found


class Waiting:
    """A call that waits. `parked` returns when its question has found nothing, at `at`."""

    def __init__(
        self,
        service: QueueService,
        *ids: str,
        at: QueueService | None = None,
        call: PublishedCall | None = None,
        **more: Any,
    ) -> None:
        """`at`: the service at which its question waits; None: at the one that is called. `call`:
        one for published values; None: for the ends of executions.
        """
        self._waits = (at or service).events._executions
        self._confirm = self._waits._confirm
        self._waits._confirm = self._confirming  # type: ignore[method-assign]
        self._looked = asyncio.Semaphore(0)
        self.looks = 0
        """Of all questions since then, but for those that an end answers."""
        asked: Any = service.executions.wait(wait_call(*ids, **more))
        if call is not None:
            asked.close()
            asked = service.executions.published(call)
        self.task = asyncio.get_running_loop().create_task(asked)

    async def _confirming(self, group: Any) -> None:
        self.looks += 1
        await self._confirm(group)
        # It reads in this step, and waits from then on if it finds nothing.
        self._looked.release()

    async def parked(self, questions: int = 1) -> None:
        for _ in range(questions):
            await self._looked.acquire()

    async def ended(self) -> dict[str, bytes | None]:
        return payloads(await self.task)

    async def values(self) -> dict[str, tuple[bytes, int]]:
        return {one.key: (one.value, one.version) for one in (await self.task).values}


def awaited(node: ServiceNode) -> int:
    return node.queues.events._executions.awaited


async def test_an_end_wakes_the_wait():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a")
        call = Waiting(node.queues, "a")
        await call.parked()
        assert awaited(node) == 1
        await terminate(node.queues, "a")
        assert await call.ended() == {"a": b"enough"}
        assert awaited(node) == 0


async def test_what_has_ended_is_answered_at_once():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a", "b")
        await terminate(node.queues, "a")
        for wait_ms in (0, LONG_MS):
            assert await ended(node.queues, "a", "b", wait_ms=wait_ms) == {"a": b"enough"}


async def test_one_that_does_not_exist_counts_as_ended():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a")
        assert await ended(node.queues, "a", "nothing") == {"nothing": None}


async def test_a_wait_ends_with_nothing(monkeypatch):
    monkeypatch.setattr(limits, "EXECUTION_LOOK_MS_MAX", 5)
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a")
        assert await ended(node.queues, "a", wait_ms=0) == {}
        # Longer than one question waits.
        assert await ended(node.queues, "a", wait_ms=20) == {}


async def test_an_end_wakes_only_the_questions_about_its_execution():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a", "b")
        first = Waiting(node.queues, "a")
        await first.parked()
        second = Waiting(node.queues, "b")
        await second.parked()
        await terminate(node.queues, "a")
        assert await first.ended() == {"a": b"enough"}
        await terminate(node.queues, "b")
        assert await second.ended() == {"b": b"enough"}
        # Each has looked when it came; the ends themselves have answered them.
        assert first.looks == 2


async def test_effects_that_were_missed_wake_all_questions():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a")
        call = Waiting(node.queues, "a")
        await call.parked()
        events = node.queues.events
        passed = events.on_effects

        def without_names(group: Any, effects: PartitionEffects) -> None:
            passed(group, msgspec.structs.replace(effects, ended_ids=()))

        events.on_effects = without_names  # type: ignore[method-assign]
        await terminate(node.queues, "a")
        assert await call.ended() == {"a": b"enough"}


async def test_a_call_for_many_partitions_returns_those_that_have_ended():
    async with service_node() as node:
        await node.create(partitions=4, **SETTINGS)
        ids = [str(number) for number in range(20)]
        await start(node.queues, *ids)
        call = Waiting(node.queues, *ids)
        await call.parked(4)
        assert awaited(node) == 20
        await terminate(node.queues, "7")
        assert await call.ended() == {"7": b"enough"}
        assert awaited(node) == 0
        left = {one for one in ids if one != "7"}
        for one in left:
            await terminate(node.queues, one)
        while left:
            left -= set(await ended(node.queues, *left))


async def test_a_reply_has_the_results_that_fit(monkeypatch):
    async with service_node() as node:
        await node.create(partitions=2, **SETTINGS)
        large = b"x" * 2_000
        monkeypatch.setattr(limits, "REPLY_BYTES_DEFAULT", 2 * len(large))
        monkeypatch.setattr(execution_waits, "REPLY_BYTES_DEFAULT", 2 * len(large))
        left = {str(number) for number in range(6)}
        await start(node.queues, *left)
        for one in left:
            await terminate(node.queues, one, large)
        rounds = 0
        while left:
            found = await ended(node.queues, *left)
            assert set(found.values()) == {large}
            assert len(found) <= 2
            left -= set(found)
            rounds += 1
        assert rounds >= 3


async def test_waits_that_are_refused():
    async with service_node() as node:
        await node.create(**SETTINGS)
        assert await code(ended(node.queues, "a", queue="other")) is ErrorCode.QUEUE_NOT_FOUND
        await node.create("items")
        assert await code(ended(node.queues, "a", queue="items")) is ErrorCode.QUEUE_KIND


async def test_the_deletion_of_the_queue_ends_the_wait():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a")
        call = Waiting(node.queues, "a")
        await call.parked()
        await node.admin.delete_queue("default", "q")
        assert await code(call.task) in (ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND)


async def test_a_node_that_stops_ends_the_wait():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a")
        call = Waiting(node.queues, "a")
        await call.parked()
        await node.queues.stop()
        assert await code(call.task) is ErrorCode.UNAVAILABLE


async def test_a_caller_that_leaves_leaves_no_question():
    async with service_node() as node:
        await node.create(partitions=3, **SETTINGS)
        ids = [str(number) for number in range(9)]
        await start(node.queues, *ids)
        call = Waiting(node.queues, *ids)
        await call.parked(3)
        call.task.cancel()
        await asyncio.gather(call.task, return_exceptions=True)
        assert awaited(node) == 0
        assert not node.queues.events._executions._partitions


@pytest.mark.parametrize(
    ("bound", "field", "whose"),
    [
        ("EXECUTIONS_AWAITED_QUEUE_MAX", "queue", "of queue q"),
        ("EXECUTIONS_AWAITED_MAX", "node", "on this node"),
    ],
)
async def test_the_executions_that_are_waited_for_are_bounded(monkeypatch, bound, field, whose):
    monkeypatch.setattr(execution_waits, bound, 2)
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "a", "b", "c")
        call = Waiting(node.queues, "a", "b")
        await call.parked()
        error = await refusal(ended(node.queues, "c"))
        assert (error.code, error.field) == (ErrorCode.OVERLOADED, field)
        assert (error.limit, error.value) == ("2 executions", "3 executions")
        assert whose in error.message
        await terminate(node.queues, "a")
        assert await call.ended() == {"a": b"enough"}
        assert await ended(node.queues, "c", wait_ms=0) == {}


async def test_a_node_that_does_not_lead_waits_at_the_leader():
    async with service_cluster("a", "b", kind=QueueKind.EXECUTIONS) as cluster:
        a, b = cluster.members["a"], cluster.members["b"]
        await start(b, "x")
        call = Waiting(b, "x", at=a)
        await call.parked()
        await terminate(b, "x")
        assert await call.ended() == {"x": b"enough"}


async def test_a_wait_continues_at_the_next_leader():
    async with service_cluster("a", "b", "c", kind=QueueKind.EXECUTIONS) as cluster:
        a, b, c = (cluster.members[name] for name in "abc")
        await start(c, "x")
        call = Waiting(c, "x", at=a)
        await call.parked()
        cluster.lead(group_of(cluster), "b")
        moved = Waiting(c, "x", at=b)
        await moved.parked()
        await terminate(b, "x")
        for each in (call, moved):
            assert await each.ended() == {"x": b"enough"}


async def test_a_damaged_result_is_an_error_until_it_is_mended():
    async with service_node() as node:
        group = (await node.create(**SETTINGS)).groups[0]
        await start(node.queues, "a")
        large = b"x" * 2_000
        await terminate(node.queues, "a", large)
        assert isinstance(node.environment, MemoryEnvironment)
        with node.environment.snapshot() as txn:
            nth = len(list(ATTACHMENTS.rows(txn, group))) - 1
        with damaged(node.environment, group, nth):
            error = await refusal(ended(node.queues, "a"))
            assert (error.code, error.field) == (ErrorCode.UNAVAILABLE, "partition")
        assert await ended(node.queues, "a") == {"a": large}


# --- published values ----------------------------------------------------------------------------


async def publish(service: QueueService, one: str, **values: bytes) -> None:
    """The next Record of a worker that gives the activation back."""
    lease = LeaseCall(
        namespace="default", queue="q", client_id="w", request_id="", max_items=1, max_bytes=0,
        lease_timeout_ms=0, wait_ms=LONG_MS, activations=True,
    )  # fmt: skip
    [leased] = await service.executions.lease(lease)
    assert leased.view.id == one
    command = RecordProgress(
        leased.view.number, leased.item, parse_lease_id(leased.lease_id, field="lease_id")[2], 1,
        then=GiveBack(), published=tuple(Published(*value) for value in values.items()),
    )  # fmt: skip
    await service.executions.record(
        ProgressCall("default", "q", leased.lease_id, command, b"", LONG_MS)
    )


def read_call(one: str, key: str = "", after: int = 0, wait_ms: int = LONG_MS) -> PublishedCall:
    return PublishedCall("default", "q", one, key, after, wait_ms)


async def test_published_values_are_read_by_key_and_version():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "x")
        await publish(node.queues, "x", a=b"1", b=b"2")
        await publish(node.queues, "x", a=b"3")
        for call, expected in (
            (read_call("x"), {"b": (b"2", 2), "a": (b"3", 3)}),
            (read_call("x", "b"), {"b": (b"2", 2)}),
            (read_call("x", after=2), {"a": (b"3", 3)}),
            (read_call("x", "b", after=2, wait_ms=0), {}),
            (read_call("x", "nothing", wait_ms=0), {}),
        ):
            assert await Waiting(node.queues, call=call).values() == expected
        assert (await node.queues.executions.published(read_call("x"))).version == 3


async def test_a_publication_wakes_the_wait():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "x")
        end = Waiting(node.queues, "x")
        await end.parked()
        call = Waiting(node.queues, call=read_call("x", "b"))
        await call.parked()
        looks = end.looks
        await publish(node.queues, "x", a=b"1")
        await call.parked()
        await publish(node.queues, "x", b=b"2")
        assert await call.values() == {"b": (b"2", 2)}
        assert not end.task.done()
        # The question about the end has not looked again.
        assert end.looks == looks + 2
        await terminate(node.queues, "x")
        assert await end.ended() == {"x": b"enough"}
        assert awaited(node) == 0


async def test_the_end_of_an_execution_ends_the_wait_for_its_values():
    async with service_node() as node:
        await node.create(**SETTINGS)
        await start(node.queues, "x")
        call = Waiting(node.queues, call=read_call("x"))
        await call.parked()
        await terminate(node.queues, "x")
        page = await call.task
        assert (page.values, page.closed, page.version) == ((), True, 0)


async def test_values_of_what_is_not_there():
    async with service_node() as node:
        await node.create(**SETTINGS)
        error = await refusal(node.queues.executions.published(read_call("nothing")))
        assert (error.code, error.field, error.value) == (
            ErrorCode.EXECUTION_NOT_FOUND, "id", "nothing",
        )  # fmt: skip


async def test_values_are_waited_for_at_the_next_leader():
    async with service_cluster("a", "b", "c", kind=QueueKind.EXECUTIONS) as cluster:
        a, b, c = (cluster.members[name] for name in "abc")
        await start(c, "x")
        call = Waiting(c, call=read_call("x", "state"), at=a)
        await call.parked()
        cluster.lead(group_of(cluster), "b")
        moved = Waiting(c, call=read_call("x", "state"), at=b)
        await moved.parked()
        await publish(b, "x", state=b"1")
        for each in (call, moved):
            assert await each.values() == {"state": (b"1", 1)}
