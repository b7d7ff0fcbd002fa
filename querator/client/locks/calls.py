"""Calls of locks to the nodes, for all locks of one client.

A lease that no caller has got is given back: that of a call that was cancelled, or whose outcome is
unknown. The request is sent again with its identity, and returns the lease that it had made, if it
had. If that fails as well, the lease lapses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import uuid_utils

from querator.client.admin import Admin
from querator.client.consuming.single import extend, raise_lost, settle
from querator.client.consuming.verbs import COMPLETE, Verb, retry_verb
from querator.client.errors import (
    ErrorCode,
    LeaseEnded,
    LeaseLost,
    OutcomeUnknown,
    RequestError,
    make_error,
)
from querator.client.items import duration
from querator.client.logs import LOCKS
from querator.client.results import settle_outcome
from querator.client.transport.nodes import ATTEMPT_SECONDS, Nodes
from querator.client.values import ExtendOutcome, Item, ProducedItems
from querator.v1 import items_pb2
from querator.v1 import queue_service_pb2 as pb

R = TypeVar("R")
_RELEASE = retry_verb(count_attempt=False, priority=0)
"""A token goes back to its place, with the priority that it has. To name the priority makes it
another verb than the release by an operator: that one would be taken for a repeat of ours, and the
holder would not notice that it had lost the lock.
"""
Produce = Callable[..., Awaitable[ProducedItems]]
"""`Client.produce`."""


class OpenLock(Protocol):
    """A lock that is held, as the client sees it that closes."""

    def lose(self, why: str) -> None: ...
    async def give_back(self) -> None: ...


class LockCalls:
    """One for each client. `admin` are its calls about queues."""

    def __init__(
        self, nodes: Nodes, admin: Admin, *, namespace: str, client_id: str, produce: Produce
    ) -> None:
        self.admin = admin
        self.client_id = client_id
        self.held: set[OpenLock] = set()
        self.seen: set[tuple[str, int]] = set()
        """Queues of locks that were there with their settings, with their numbers of permits."""
        self._nodes = nodes
        self._namespace = namespace
        self._produce = produce
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: set[asyncio.Task[Any]] = set()
        """Tasks that end when the client is closed."""
        self._closed = False

    async def close(self, *, patience: float) -> None:
        """Ends what is held, and waits at most `patience` seconds until it is given back."""
        self._closed = True
        for holding in list(self.held):
            holding.lose("its client was closed")
            self.spawn(holding.give_back())
        waiting = list(self._waiting)
        for task in waiting:
            task.cancel()
        # What they have leased is given back by further tasks.
        await asyncio.gather(*waiting, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check_open(self) -> None:
        """Raises `Unavailable` when the client is closed."""
        if self._closed:
            raise make_error(ErrorCode.UNAVAILABLE, "the client is closed")

    def spawn(self, work: Coroutine[Any, Any, R], *, waits: bool = False) -> "asyncio.Task[R]":
        """Runs what is done also if its caller is cancelled. `waits`: it ends when the client is
        closed; else that waits for it.
        """
        # Owned: `close` awaits it.
        task = asyncio.get_running_loop().create_task(work)
        tasks = self._waiting if waits else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def produce(self, queue: str, items: Sequence[Item]) -> None:
        await self._produce(queue, *items)

    async def lease(
        self, queue: str, *, items: int, wait: float, lease_timeout: timedelta, holder: str
    ) -> list[items_pb2.LeasedBatch]:
        """Leases up to `items` tokens; waits up to `wait` seconds for the first one."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        request = pb.LeaseRequest(
            namespace=self._namespace,
            queue=queue,
            client_id=holder,
            max_items=items,
            lease_timeout=duration(lease_timeout, "lease_timeout"),
        )

        async def ask(node: Any, left: float) -> pb.LeaseResponse:
            request.wait_timeout.FromMilliseconds(int(max(0.0, until - loop.time()) * 1000))
            response: pb.LeaseResponse = await node.queues.Lease(request, timeout=left)
            return response

        while True:
            request.request_id = str(uuid_utils.uuid7())
            try:
                response = await self._nodes.call(
                    ask,
                    seconds=wait + self._nodes.request_timeout,
                    patience=wait + ATTEMPT_SECONDS,
                    telling=(LeaseEnded,),
                )
            except LeaseEnded:
                # The lease of an unanswered attempt has ended: its token is free again.
                continue
            except (asyncio.CancelledError, OutcomeUnknown):
                self.spawn(self._return_leased(request))
                raise
            return list(response.batches)

    async def _return_leased(self, request: pb.LeaseRequest) -> None:
        """Gives back what the request has leased, or leases with this repeat."""
        request.ClearField("wait_timeout")
        try:
            response = await self._nodes.call(
                lambda node, left: node.queues.Lease(request, timeout=left), telling=(LeaseEnded,)
            )
        except LeaseEnded:
            return
        except RequestError as error:
            _log_left(request.queue, error)
            return
        await self.give_back(request.queue, sorted({one.lease_id for one in response.batches}))

    async def give_back(self, queue: str, lease_ids: Sequence[str]) -> None:
        """As `release`, for tokens that no caller has got: logs a failure."""
        if not lease_ids:
            return
        try:
            await self.release(queue, lease_ids)
        except LeaseLost:
            return
        except RequestError as error:
            _log_left(queue, error)

    async def extend(
        self, queue: str, lease_ids: list[str], lease_timeout: timedelta
    ) -> list[ExtendOutcome]:
        return await extend(self._nodes, self._namespace, queue, lease_ids, lease_timeout)

    async def release(self, queue: str, lease_ids: Sequence[str]) -> None:
        """Gives the tokens of leases back. Raises `LeaseLost` if one has ended in another way."""
        await self._settle(_RELEASE, queue, lease_ids)

    async def complete(self, queue: str, lease_ids: Sequence[str]) -> None:
        """Takes the tokens of leases out of the queue. Raises as `release`."""
        await self._settle(COMPLETE, queue, lease_ids)

    async def _settle(self, verb: Verb, queue: str, lease_ids: Sequence[str]) -> None:
        if not lease_ids:
            return
        leases = [pb.LeaseItems(lease_id=lease_id) for lease_id in lease_ids]
        outcomes = await settle(self._nodes, self._namespace, queue, verb, leases)
        raise_lost([settle_outcome(outcome) for outcome in outcomes])


def _log_left(queue: str, error: RequestError) -> None:
    LOCKS.warning("a token of queue %s may stay leased until its lease ends: %s", queue, error)
