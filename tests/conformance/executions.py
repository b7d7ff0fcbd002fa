"""The executions of one queue, in words of the behaviours: a worker by hand, and its callers."""

import itertools
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from querator.v1 import admin_service_pb2 as admin
from querator.v1 import execution_service_pb2 as v1
from querator.v1 import queue_service_pb2 as pb
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import PATIENCE_S, Queue, looks, span
from tests.conformance.stubs import Node, answer

OTHERS_S = 0.3
"""How long a lease waits for executions that must not come."""


def kind(name: str) -> v1.RecordKind.ValueType:
    return v1.RecordKind.Value(f"RECORD_KIND_{name}")


def step(path: bytes, payload: bytes = b"", name: str = "charge", **more: Any) -> v1.JournalRecord:
    """The result of a step."""
    more.setdefault("kind", v1.RECORD_KIND_STEP_DONE)
    return v1.JournalRecord(path=path, payload=payload, name=name, **more)


def timer(path: bytes, due_s: float) -> v1.Timer:
    """A timer that is due at this time, since the epoch."""
    return v1.Timer(path=path, due_ms=round(due_s * 1000))


def child(
    path: bytes, id_: str = "e/child", function: str = "g", arguments: bytes = b"", **more: Any
) -> v1.ChildStart:
    """The start of a child."""
    more.setdefault("version", "1")
    return v1.ChildStart(path=path, id=id_, function=function, arguments=arguments, **more)


def value(key: str, data: bytes) -> v1.PublishedValue:
    return v1.PublishedValue(key=key, value=data)


def kinds(records: Sequence[v1.JournalRecord]) -> list[str]:
    return [v1.RecordKind.Name(one.kind).removeprefix("RECORD_KIND_") for one in records]


def payloads(records: Sequence[v1.JournalRecord]) -> list[bytes]:
    return [one.payload for one in records]


class Executions:
    """Calls about the executions of a queue, through one node of the cluster."""

    def __init__(self, queue: Queue, nodes: Sequence[Node]) -> None:
        self.queue = queue
        self._nodes = nodes
        self._numbers: dict[tuple[str, int], itertools.count[int]] = {}
        self._node = nodes[0]
        self._stub = nodes[0].executions

    def through(self, node: int) -> "Executions":
        """The same executions through another node."""
        return Executions(self.queue, [*self._nodes[node:], *self._nodes[:node]])

    @property
    def names(self) -> dict[str, Any]:
        """The fields that each request has."""
        return {"namespace": self.queue.namespace, "queue": self.queue.name}

    async def start(
        self, id_: str = "e", function: str = "f", arguments: bytes = b"args", **more: Any
    ) -> v1.StartExecutionResponse:
        more.setdefault("version", "1")
        request = v1.StartExecutionRequest(
            **self.names, id=id_, function=function, arguments=arguments, **more
        )
        return await answer(self._stub.StartExecution(request, timeout=CALL_S))

    async def lease(
        self, most: int = 1, wait_s: float = PATIENCE_S, timeout_s: float = 0, **more: Any
    ) -> list[v1.Activation]:
        """Of executions that can continue; waits for the first one."""
        if timeout_s:
            more["lease_timeout"] = span(timeout_s)
        more.setdefault("client_id", "worker")
        request = v1.LeaseActivationsRequest(
            **self.names, max_activations=most, request_timeout=span(wait_s), **more
        )
        leased = await answer(self._stub.LeaseActivations(request, timeout=CALL_S + wait_s))
        return list(leased.activations)

    async def lease_one(self, timeout_s: float = 0) -> v1.Activation:
        [activation] = await self.lease(timeout_s=timeout_s)
        return activation

    async def nothing_to_lease(self) -> bool:
        return await self.lease(wait_s=OTHERS_S) == []

    async def record(
        self,
        held: v1.Activation,
        *records: v1.JournalRecord,
        number: int | None = None,
        extend_s: float = 0,
        **more: Any,
    ) -> v1.RecordProgressResponse:
        """The next Record of the lease, or the one with a number."""
        if extend_s:
            more["extend"] = span(extend_s)
        if number is None:
            numbers = self._numbers.setdefault((held.lease_id, held.execution), itertools.count(1))
            number = next(numbers)
        request = v1.RecordProgressRequest(
            **self.names, lease_id=held.lease_id, item=held.item, execution=held.execution,
            number=number, records=records, **more,
        )  # fmt: skip
        return await answer(self._stub.RecordProgress(request, timeout=CALL_S))

    async def park(
        self, held: v1.Activation, *records: v1.JournalRecord, seen: int = 0, **park: Any
    ) -> v1.RecordProgressResponse:
        """Parks for paths, names, or anything; `timers` are set in the same Record."""
        timers = park.pop("timers", ())
        return await self.record(held, *records, seen=seen, timers=timers, park=v1.Park(**park))

    async def close(
        self,
        held: v1.Activation,
        payload: bytes = b"done",
        *records: v1.JournalRecord,
        seen: int = 0,
        outcome: str = "COMPLETED",
        drain: bool = False,
    ) -> v1.RecordProgressResponse:
        end = v1.Close(outcome=kind(outcome), payload=payload, drain=drain)
        return await self.record(held, *records, seen=seen, close=end)

    async def give_back(
        self, held: v1.Activation, reason: str = "", *, stuck: bool = False
    ) -> None:
        await self.record(held, give_back=v1.GiveBack(stuck=stuck, reason=reason))

    async def pin(self, held: v1.Activation, refused: str = "2", reason: str = "unlike it") -> None:
        """A worker with the version `refused` cannot run it; empty: it has no such function."""
        back = v1.GiveBack(pinned=True, refused_version=refused, reason=reason)
        await self.record(held, give_back=back)

    async def lease_as(self, version: str, most: int = 1, **more: Any) -> list[v1.Activation]:
        """As a worker that has the function `f` in a version."""
        functions = [v1.FunctionVersion(function="f", version=version)]
        return await self.lease(most, functions=functions, **more)

    async def extend(self, *lease_ids: str, timeout_s: float) -> list[pb.ExtendOutcome]:
        """On the stream of executions, or by the call for items."""
        request = pb.ExtendRequest(**self.names, lease_ids=lease_ids, lease_timeout=span(timeout_s))
        return list((await answer(self._node.extend(request, timeout=CALL_S))).outcomes)

    async def signal(
        self, id_: str = "e", name: str = "word", payload: bytes = b"hello", message_id: str = ""
    ) -> v1.SignalExecutionResponse:
        request = v1.SignalExecutionRequest(
            **self.names, id=id_, name=name, payload=payload, message_id=message_id
        )
        return await answer(self._stub.SignalExecution(request, timeout=CALL_S))

    async def resolve(
        self,
        held: v1.Activation,
        path: bytes,
        payload: bytes = b"yes",
        *,
        reject: bool = False,
        **other: Any,
    ) -> v1.ResolvePromiseResponse:
        """Of the promise that the code of an execution has made at a path; `at`: another path."""
        named: dict[str, Any] = {
            "partition": held.partition, "execution": held.execution, "run": held.origin_run,
            "at": path, "proof": proof(held, path),
        } | other  # fmt: skip
        named["path"] = named.pop("at")
        request = v1.ResolvePromiseRequest(**self.names, **named, payload=payload, reject=reject)
        return await answer(self._stub.ResolvePromise(request, timeout=CALL_S))

    async def cancel(self, id_: str = "e", reason: str = "") -> v1.CancelExecutionResponse:
        request = v1.CancelExecutionRequest(**self.names, id=id_, reason=reason)
        return await answer(self._stub.CancelExecution(request, timeout=CALL_S))

    async def terminate(self, id_: str = "e", reason: str = "") -> v1.TerminateExecutionResponse:
        request = v1.TerminateExecutionRequest(**self.names, id=id_, reason=reason)
        return await answer(self._stub.TerminateExecution(request, timeout=CALL_S))

    async def retry(self, id_: str = "e") -> bool:
        """Whether it was stuck."""
        request = v1.RetryExecutionRequest(**self.names, id=id_)
        return bool((await answer(self._stub.RetryExecution(request, timeout=CALL_S))).changed)

    async def rewind(self, record: int, id_: str = "e", **more: Any) -> v1.RewindExecutionResponse:
        request = v1.RewindExecutionRequest(**self.names, id=id_, record=record, **more)
        return await answer(self._stub.RewindExecution(request, timeout=CALL_S))

    async def get(self, id_: str = "e", **more: Any) -> v1.GetExecutionResponse:
        request = v1.GetExecutionRequest(**self.names, id=id_, **more)
        return await answer(self._stub.GetExecution(request, timeout=CALL_S))

    async def state(self, id_: str = "e") -> str:
        return _state((await self.get(id_)).execution)

    async def until_state(self, state: str, id_: str = "e") -> v1.GetExecutionResponse:
        """Waits for what time does."""
        async for _ in looks():
            found = await self.get(id_)
            if _state(found.execution) == state:
                return found
        raise AssertionError(f"{id_} is not {state}")

    async def wait(self, *ids: str, wait_s: float = PATIENCE_S) -> list[v1.EndedExecution]:
        """Those of the executions that have ended; waits for the first one."""
        request = v1.WaitExecutionsRequest(**self.names, ids=ids, wait_timeout=span(wait_s))
        waited = await answer(self._stub.WaitExecutions(request, timeout=CALL_S + wait_s))
        return list(waited.executions)

    async def news(
        self, *held: v1.Activation, known: int = 0, wait_s: float = PATIENCE_S
    ) -> tuple[list[int], list[int]]:
        """The items of activations for which something has arrived behind the record `known`, and
        of those that their leases do not hold; waits for the first one.
        """
        request = v1.WaitArrivalsRequest(
            **self.names, wait_timeout=span(wait_s),
            executions=[
                v1.KnownJournal(
                    lease_id=one.lease_id, item=one.item, execution=one.execution, index=known
                )
                for one in held
            ],
        )  # fmt: skip
        found = await answer(self._stub.WaitArrivals(request, timeout=CALL_S + wait_s))
        return [one.item for one in found.arrived], [one.item for one in found.lost]

    async def published(
        self, key: str = "", after: int = 0, wait_s: float = 0, id_: str = "e"
    ) -> v1.ReadPublishedResponse:
        """What the execution has published; waits for a version above `after`."""
        request = v1.ReadPublishedRequest(
            **self.names, id=id_, key=key, after_version=after, wait_timeout=span(wait_s)
        )
        return await answer(self._stub.ReadPublished(request, timeout=CALL_S + wait_s))

    async def journal(
        self, id_: str = "e", page: int = 0, first: int = 0
    ) -> list[v1.JournalRecord]:
        """All records from an index on, by pages of this size."""
        records: list[v1.JournalRecord] = []
        while True:
            request = v1.ReadJournalRequest(
                **self.names, id=id_, first_index=first, max_records=page
            )
            found = await answer(self._stub.ReadJournal(request, timeout=CALL_S))
            records += found.records
            if not (first := found.next_index):
                return records

    async def list_page(self, request: v1.ListExecutionsRequest) -> v1.ListExecutionsResponse:
        return await answer(self._stub.ListExecutions(request, timeout=CALL_S))

    async def list(self, page_size: int = 0, state: str = "", function: str = "") -> list[str]:
        """The ids of all pages."""
        ids: list[str] = []
        token = ""
        while True:
            request = v1.ListExecutionsRequest(
                **self.names, function=function, page_size=page_size, page_token=token,
                state=v1.ExecutionState.Value(f"EXECUTION_STATE_{state or 'UNSPECIFIED'}"),
            )  # fmt: skip
            page = await self.list_page(request)
            assert not page_size or len(page.executions) <= page_size
            ids += [one.id for one in page.executions]
            if not (token := page.next_page_token):
                return ids


def _state(execution: v1.Execution) -> str:
    return v1.ExecutionState.Name(execution.state).removeprefix("EXECUTION_STATE_")


def proof(held: v1.Activation, path: bytes) -> bytes:
    """Only workers can make it, as docs/durable.md says."""
    named = held.execution.to_bytes(8, "big") + held.origin_run.to_bytes(8, "big") + path
    return blake2b(named, digest_size=16, key=held.secret).digest()


async def executions(make: Make, **settings: Any) -> Executions:
    """A queue of executions."""
    queue = await make(kind=admin.QueueKind.QUEUE_KIND_EXECUTIONS, **settings)
    return Executions(queue, make.nodes)


async def begun(make: Make, **settings: Any) -> tuple[Executions, v1.Activation]:
    """An execution that a worker has leased."""
    shop = await executions(make, **settings)
    await shop.start()
    return shop, await shop.lease_one()
