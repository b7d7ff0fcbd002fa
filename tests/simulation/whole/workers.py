"""Processes that run durable functions: the worker of the SDK, each on an event loop of its own.

Its calls are those of the SDK, with their repeats, and go to the handlers of a node's methods as
bytes. Only gRPC and the choice of a node are simulated. The clocks are virtual. A killed process
ends with everything in it; a paused one does nothing, while its leases lapse.
"""

import asyncio
import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from querator.client import Client
from querator.client import executions as client_executions
from querator.client.errors import RequestError
from querator.client.executions import ExecutionCalls
from querator.client.transport.attempts import repeated
from querator.client.transport.channel import EXECUTION_METHODS, ExecutionCallKind
from querator.client.transport.rpc_errors import from_frame, from_rpc
from querator.client.transport.streamed_calls import StreamRefusal
from querator.durable import Durable, Worker, activation_run, kept_leases, partition_clock, worker
from querator.model.errors import QueratorError
from querator.node_core import NodeCore
from querator.server.calls.execution_calls import streamed_calls
from querator.server.calls.execution_stream import CallerDeadline
from querator.service import executions as service_executions
from querator.v1 import execution_service_pb2, queue_service_pb2
from querator.wire.errors import error_message
from querator.wire.field_checks import DEFAULT_LIMITS
from tests.simulation.mutants import replaced
from tests.simulation.timeline import SECOND, Timeline
from tests.simulation.whole.loop import RightClock, VirtualLoop
from tests.simulation.whole.node import Lost, WholeNode
from tests.simulation.whole.stub import NobodyListens, Shores, Stub

R = TypeVar("R")
NAMESPACE = "default"
REQUEST_TIMEOUT_S = 10.0
LEASE_TIMEOUT = timedelta(seconds=3)
CONCURRENCY = 12
AGAIN_S = 0.5
"""After this time a process that has ended is started again."""


def _answers() -> dict[str, Callable[[bytes], Any]]:
    services = (
        execution_service_pb2.DESCRIPTOR.services_by_name["ExecutionService"],
        queue_service_pb2.DESCRIPTOR.services_by_name["QueueService"],
    )
    modules = (execution_service_pb2, queue_service_pb2)
    return {
        method.name: getattr(module, method.output_type.name).FromString
        for service, module in zip(services, modules, strict=True)
        for method in service.methods
        if hasattr(module, method.output_type.name)
    }


_ANSWERS = _answers()


class SimulatedConnection:
    """Stands for the client's connection to one node."""

    def __init__(self, stub: Stub, node: WholeNode) -> None:
        self._stub = stub
        self._node = node

    @property
    def executions(self) -> "_Methods":
        return _Methods(self)

    async def call_execution(
        self, kind: ExecutionCallKind, request: Message, seconds: float, *, waits: bool = False
    ) -> Any:
        return await self.call(EXECUTION_METHODS[kind], request, seconds)

    async def call(self, method: str, request: Message, seconds: float) -> Any:
        data = request.SerializeToString()

        def ask(core: NodeCore) -> Awaitable[bytes]:
            return streamed_calls(core.service, DEFAULT_LIMITS)[method](
                data, CallerDeadline(seconds)
            )

        try:
            answer = await self._stub.call(self._node, ask, patience_s=seconds)
        except Lost:
            raise _failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except NobodyListens:
            text = "failed to connect to all addresses; Connection refused"
            raise _failure(grpc.StatusCode.UNAVAILABLE, text) from None
        except QueratorError as error:
            raise StreamRefusal(from_frame(error_message(error, request_id="r"))) from None
        return _ANSWERS[method](answer)


class _Methods:
    """The stub of the unary calls."""

    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    def __getattr__(self, method: str) -> Any:
        def call(request: Message, *, timeout: float) -> Awaitable[Any]:
            return self._connection.call(method, request, timeout)

        return call


def _failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class SimulatedNodes:
    """Stands for the client's `Nodes`: repeats calls as it does, and goes to another node when one
    does not answer.
    """

    request_timeout = REQUEST_TIMEOUT_S

    def __init__(self, shores: Shores, chance: random.Random) -> None:
        self._shores = shores
        self._chance = chance
        self._stub = Stub(shores, chance)
        self._preferred = ""

    def hang_up(self) -> None:
        self._stub.hang_up()

    def check_open(self) -> None:
        """Does nothing: it is open."""

    async def call(
        self,
        send: Callable[[Any, float], Awaitable[R]],
        *,
        seconds: float | None = None,
        patience: float | None = None,
        changes: bool = True,
        repeatable: bool = True,
        telling: tuple[type[RequestError], ...] = (),
    ) -> R:
        async def attempt(left: float) -> R | RequestError:
            node = self._choose()
            left = left if patience is None else min(left, patience)
            try:
                return await send(SimulatedConnection(self._stub, node), left)
            except StreamRefusal as refusal:
                error = refusal.error
            except grpc.aio.AioRpcError as raw:
                error = from_rpc(raw, address=node.name, changes=changes)
            self._preferred = ""
            return error

        return await repeated(
            attempt,
            seconds=self.request_timeout if seconds is None else seconds,
            hopeless=lambda error, waited: False,
            repeatable=repeatable,
            telling=telling,
        )

    def _choose(self) -> WholeNode:
        nodes = self._shores.whole_nodes()
        chosen = next((node for node in nodes if node.name == self._preferred), None)
        chosen = chosen or self._chance.choice(nodes)
        self._preferred = chosen.name
        return chosen


class _ProcessShores:
    """What a worker process sees of the world."""

    def __init__(self, shores: Shores, loop: VirtualLoop) -> None:
        self._shores = shores
        self.client_loop = loop
        self.timeline = shores.timeline
        self.latency_us = shores.latency_us

    @property
    def loss(self) -> float:
        return self._shores.loss

    def whole_nodes(self) -> list[WholeNode]:
        return self._shores.whole_nodes()

    def found(self, text: str) -> None:
        self._shores.found(text)


class _Client(Client):
    """As much of a client as a worker uses."""

    def __init__(self, calls: ExecutionCalls, client_id: str) -> None:
        self._calls = calls
        self._id = client_id

    @property
    def client_id(self) -> str:
        return self._id

    @property
    def executions(self) -> ExecutionCalls:
        return self._calls


class WorkerProcess:
    """A process that runs durable functions, and is started again when it has ended.
    `deployments`: the functions of its code, one of which each start has.
    """

    def __init__(
        self,
        shores: Shores,
        name: str,
        queue: str,
        deployments: Sequence[Sequence[Durable[..., Any]]],
        chance: random.Random,
        *,
        client_id: str,
    ) -> None:
        self.name = name
        self._client_id = client_id
        self.loops: list[VirtualLoop] = []
        """Loops of all its starts."""
        self._shores = shores
        self._queue = queue
        self._deployments = deployments
        self._chance = chance
        self._worker: Worker | None = None
        self._nodes: SimulatedNodes | None = None

    @property
    def loop(self) -> VirtualLoop:
        return self.loops[-1]

    def start(self, deployment: int | None = None) -> None:
        """`deployment`: the number of the code that it runs; None: any."""
        if deployment is None:
            deployment = self._chance.randrange(len(self._deployments))
        functions = self._deployments[deployment % len(self._deployments)]
        timeline = self._shores.timeline
        chance = random.Random(self._chance.random())
        loop = VirtualLoop(timeline, RightClock(timeline), chance, self._failed)
        self.loops.append(loop)
        timeline.note("worker", self.name, "start", deployment)
        loop.start(self._live(loop, functions, chance)).add_done_callback(self._ended)

    def kill(self, *, silent: bool = False) -> None:
        """`silent`: with its machine, so that no node sees its connections end."""
        self._shores.timeline.note("worker", self.name, "kill", silent)
        self.loop.end()
        if not silent and self._nodes is not None:
            self._nodes.hang_up()

    def stop(self) -> None:
        """As SIGTERM does. A process that has lost its first call is not there."""
        if self._worker is not None and not self.loop.ended:
            self.loop.within(self._worker.stop)

    async def _live(
        self, loop: VirtualLoop, functions: Sequence[Durable[..., Any]], chance: random.Random
    ) -> None:
        shores = _ProcessShores(self._shores, loop)
        self._nodes = nodes = SimulatedNodes(shores, chance)
        calls = ExecutionCalls(nodes, NAMESPACE)  # type: ignore[arg-type]
        client = _Client(calls, self._client_id)
        while True:
            self._worker = Worker(
                client, self._queue, functions,
                concurrency=CONCURRENCY, lease_timeout=LEASE_TIMEOUT, grace=timedelta(seconds=1),
            )  # fmt: skip
            running = loop.start(self._worker.run())
            await asyncio.wait((running,))
            error = running.exception()
            # The first call may fail.
            if error is not None and not isinstance(error, RequestError):
                raise error
            await asyncio.sleep(AGAIN_S)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed("its task has ended", error)

    def _failed(self, text: str, error: BaseException | None) -> None:
        self._shores.found(f"worker {self.name} failed: {text}: {error!r}")

    def dispose(self) -> None:
        for loop in self.loops:
            loop.dispose()


class _Clock:
    """Stands for the module `time` in the modules of the worker, which read no wall clock."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def monotonic(self) -> float:
        return self._timeline.now_us / SECOND


class _Chance:
    """Stands for the modules `secrets` and `uuid_utils`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def token_bytes(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    def uuid7(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._chance.randbytes(16))


async def _no_findings(functions: object) -> list[object]:
    """The thread that reads sources is no part of a simulation."""
    return []


@contextlib.contextmanager
def of_one_seed(timeline: Timeline, seed: int) -> Iterator[None]:
    """Within the block, workers read virtual clocks, and names, secrets and the pauses between
    repeats follow from the seed.
    """
    before = random.getstate()
    random.seed(f"pauses {seed}")
    chance = _Chance(random.Random(f"names {seed}"))
    with ExitStack() as stack:
        for module in (activation_run, kept_leases, partition_clock, worker):
            stack.enter_context(replaced(module, "time", _Clock(timeline)))
        for module in (client_executions, worker, service_executions):
            stack.enter_context(replaced(module, "uuid_utils", chance))
        stack.enter_context(replaced(service_executions, "secrets", chance))
        stack.enter_context(replaced(worker, "read_findings", _no_findings))
        try:
            yield
        finally:
            random.setstate(before)
