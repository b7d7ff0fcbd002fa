"""A worker: leases activations of one queue, and runs their durable functions."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

import uuid_utils

from querator.client import Client
from querator.client.errors import LeaseEnded, OutcomeUnknown, RequestError
from querator.client.executions import ActivationGrant, ExecutionCalls
from querator.client.transport.backoff import Backoff
from querator.client.typed import typed
from querator.durable.activation_run import ActivationRun, RunParts
from querator.durable.arrival_watch import ArrivalWatch
from querator.durable.codec import Codec
from querator.durable.fitting import versions_of
from querator.durable.functions import Durable, Step
from querator.durable.kept_leases import LeaseKeeper
from querator.durable.lint import LintFinding, lint
from querator.durable.logs import WORKER as LOG
from querator.durable.logs import tell_finding
from querator.durable.partition_clock import PartitionClock
from querator.model import limits

CONCURRENCY_DEFAULT: Final = 100
CONCURRENCY_MOST: Final = 10_000
GRACE_DEFAULT: Final = timedelta(seconds=10)
_TOGETHER_MOST: Final = 100
"""Activations of one call: each comes with up to 64 KiB of its journal."""
_WAIT_SHARE: Final = 3
"""A call waits for this part of a lease: a lease counts from when it was asked for."""
_LEASE_LEAST: Final = timedelta(milliseconds=limits.LEASE_TIMEOUT_MS_MIN)
_THREADS_MOST: Final = 64
_GIVE_BACK_SECONDS: Final = 5.0
"""How long giving back may take, after the grace."""


class Worker:
    """Runs durable functions for the executions of one queue.

        await Worker(client, "shop", [checkout, pack]).run()

    `functions`: the durable functions that it runs, by their names. `concurrency`: how many
    executions are at work at a time; those that wait are parked, and do not count. Async steps run
    on the loop of `run`, sync ones in up to 64 threads. `codec` or `errors`: the types of
    exceptions that are raised as themselves, as in `Codec(errors=…)`. `lease_timeout`: how long
    another worker waits for this one after its death; None: as the queue says. `grace`: how long
    steps under way may take to end when the worker is stopped.

    `run` logs what lint finds in the functions, once in a process; with `strict` it raises it.
    """

    @typed
    def __init__(
        self,
        client: Client,
        queue: str,
        functions: Iterable[Durable[..., Any]],
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        codec: Codec | None = None,
        errors: Iterable[type[Exception]] = (),
        lease_timeout: timedelta | None = None,
        grace: timedelta = GRACE_DEFAULT,
        strict: bool = False,
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MOST:
            raise ValueError(
                f"concurrency is {concurrency}; it must be from 1 to {CONCURRENCY_MOST}"
            )
        if grace < timedelta(0):
            raise ValueError(f"grace is {grace}; it must not be negative")
        self._client = client
        self._queue = queue
        self._functions = functions_by_name(functions)
        self._versions = versions_of(self._functions.values())
        self._concurrency = concurrency
        self._codec = make_codec(codec, errors)
        self._lease_timeout = lease_timeout
        self._grace_seconds = grace.total_seconds()
        self._strict = strict
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        self._runs: dict[asyncio.Task[None], ActivationRun] = {}
        self._has_run = False

    def stop(self) -> None:
        """Ends `run` politely: steps under way may end within the grace, executions are given
        back. Call it in the thread of the loop.
        """
        self._stopping.set()

    async def run(self) -> None:
        """Runs executions until it is stopped or cancelled. A cancellation cancels the steps under
        way, and gives their executions back. A worker runs once.

        Raises `RequestError` if its first call fails, or if the queue is not there any more; and
        ValueError, if it is strict, for functions that may not do the same in a replay.
        """
        if self._has_run:
            raise RuntimeError("a Worker runs once: make another one")
        self._has_run = True
        await self._check_functions()
        calls = self._client.executions
        leases = LeaseKeeper(calls, self._queue)
        executor = ThreadPoolExecutor(
            min(self._concurrency, _THREADS_MOST), thread_name_prefix="querator-step"
        )
        parts = RunParts(
            calls, self._queue, self._functions, self._codec, leases=leases, executor=executor,
            strays=set(), times=defaultdict(PartitionClock),
            watch=ArrivalWatch(calls, self._queue),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        # Owned: cancelled and awaited below.
        keeping = loop.create_task(leases.keep())
        watching = loop.create_task(parts.watch.watch())
        grace = self._grace_seconds
        try:
            await self._take_activations(parts, keeping)
        except asyncio.CancelledError:
            grace = 0.0
            raise
        finally:
            try:
                await self._end(grace)
            finally:
                for task in (keeping, watching, *self._runs):
                    task.cancel()
                await asyncio.gather(keeping, watching, *self._runs, return_exceptions=True)
                executor.shutdown(wait=False, cancel_futures=True)

    async def _check_functions(self) -> None:
        """Raises ValueError, if it is strict, for what lint finds."""
        try:
            findings = await read_findings(self._functions.values())
        except Exception:  # A defect of the check must not keep executions from running.
            if self._strict:
                raise
            LOG.exception("The functions of queue %s cannot be read by lint", self._queue)
            return
        tell_findings(findings, strict=self._strict)

    async def _take_activations(self, parts: RunParts, keeping: "asyncio.Task[None]") -> None:
        loop = asyncio.get_running_loop()
        lease_timeout = self._lease_timeout
        if lease_timeout is None:
            lease_timeout = (await self._client.get_queue(self._queue)).lease_timeout
        # Owned, as each call: cancelled at the end.
        stopped = loop.create_task(self._stopping.wait())
        asking: asyncio.Task[list[ActivationGrant]] | None = None
        backoff = Backoff()
        has_leased = False
        try:
            while await self._has_room(stopped, keeping):
                request_id = str(uuid_utils.uuid7())
                since = time.monotonic()
                wait = lease_timeout / _WAIT_SHARE
                asking = loop.create_task(self._lease(parts.calls, request_id, wait))
                await asyncio.wait({asking, stopped, keeping}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
                    for grant in await self._leased_meanwhile(parts.calls, request_id):
                        self._begin(parts, grant, since)
                    continue
                try:
                    grants = asking.result()
                except LeaseEnded:
                    continue
                except RequestError as error:
                    is_passing = error.retriable or isinstance(error, OutcomeUnknown)
                    if not (has_leased and is_passing):
                        raise
                    parts.calls.check_open()
                    LOG.warning("queue %s cannot be asked for activations: %s", self._queue, error)
                    await asyncio.wait({stopped, keeping}, timeout=backoff.next())
                    continue
                has_leased = True
                backoff.reset()
                for grant in grants:
                    self._begin(parts, grant, since)
                    lease_timeout = max(_LEASE_LEAST, grant.remaining)
        finally:
            for task in (stopped, asking):
                if task is not None:
                    task.cancel()

    async def _has_room(self, stopped: "asyncio.Task[bool]", keeping: "asyncio.Task[None]") -> bool:
        """Waits until another activation can be taken; False: the worker is stopped."""
        while not stopped.done() and not self._stopping.is_set():
            if keeping.done():
                keeping.result()
            if len(self._runs) < self._concurrency:
                return True
            self._freed.clear()
            # Owned: cancelled below.
            freed = asyncio.get_running_loop().create_task(self._freed.wait())
            try:
                await asyncio.wait({freed, stopped, keeping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                freed.cancel()
        return False

    async def _lease(
        self, calls: ExecutionCalls, request_id: str, wait: timedelta, *, given_up: bool = False
    ) -> list[ActivationGrant]:
        return await calls.lease(
            self._queue,
            client_id=self._client.client_id,
            most=min(self._concurrency - len(self._runs), _TOGETHER_MOST),
            wait=wait,
            lease_timeout=self._lease_timeout,
            request_id=request_id,
            versions=self._versions,
            given_up=given_up,
        )

    async def _leased_meanwhile(
        self, calls: ExecutionCalls, request_id: str
    ) -> list[ActivationGrant]:
        """What a call that was given up has leased."""
        try:
            async with asyncio.timeout(_GIVE_BACK_SECONDS):
                return await self._lease(calls, request_id, timedelta(0), given_up=True)
        except (RequestError, TimeoutError) as error:
            LOG.warning("activations of queue %s may be leased until they lapse: %s",
                        self._queue, error)  # fmt: skip
            return []

    def _begin(self, parts: RunParts, grant: ActivationGrant, since: float) -> None:
        parts.times[grant.partition].heard(grant.now_ms)
        run = ActivationRun(parts, grant, since)
        if self._stopping.is_set():
            run.stop(0.0)
        # Owned: `run` waits for it, or cancels it.
        task = asyncio.get_running_loop().create_task(run.run())
        self._runs[task] = run
        task.add_done_callback(self._run_ended)

    def _run_ended(self, task: "asyncio.Task[None]") -> None:
        del self._runs[task]
        self._freed.set()

    async def _end(self, grace: float) -> None:
        self._stopping.set()
        for run in self._runs.values():
            run.stop(grace)
        if self._runs:
            await asyncio.wait(set(self._runs), timeout=grace + _GIVE_BACK_SECONDS)


async def read_findings(functions: Iterable[Durable[..., Any]]) -> list[LintFinding]:
    """What lint finds, in a thread: it reads files."""
    return await asyncio.to_thread(lint, functions)


def tell_findings(findings: Iterable[LintFinding], *, strict: bool) -> None:
    """Logs what lint has found, once in a process. Raises ValueError, if it is strict."""
    lines = [str(one) for one in findings if strict or one.is_read]
    if strict and lines:
        raise ValueError(
            "\n".join(["strict refuses what may not be the same in a replay:", *lines])
        )
    for line in lines:
        tell_finding(line)


def make_codec(codec: Codec | None, errors: Iterable[type[Exception]]) -> Codec:
    errors = tuple(errors)
    if codec is not None and errors:
        raise TypeError("codec and errors are given; give the errors to the codec")
    return Codec(errors) if codec is None else codec


def as_functions(functions: Iterable[Durable[..., Any]]) -> tuple[Durable[..., Any], ...]:
    """Raises TypeError for what is no list."""
    if callable(functions) or isinstance(functions, str):
        raise TypeError(f"functions is {functions!r}; it must be a list of functions with @durable")
    return tuple(functions)


def functions_by_name(functions: Iterable[Durable[..., Any]]) -> dict[str, Durable[..., Any]]:
    """Raises TypeError and ValueError for what a worker cannot run."""
    named: dict[str, Durable[..., Any]] = {}
    for function in as_functions(functions):
        if isinstance(function, Step):
            raise TypeError(
                f"functions has the step {function.name}; steps are not listed, but the functions "
                "with @durable that call them"
            )
        if not isinstance(function, Durable):
            raise TypeError(f"functions has {function!r}; it must have functions with @durable")
        if named.setdefault(function.name, function) is not function:
            raise ValueError(f"functions has two with the name {function.name}")
    if not named:
        raise ValueError("functions is empty; a worker needs at least one")
    if len(named) > limits.WORKER_FUNCTIONS_MAX:
        raise ValueError(f"functions has {len(named)}; the limit is {limits.WORKER_FUNCTIONS_MAX}")
    return named
