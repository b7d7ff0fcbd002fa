"""Queries and commands to partitions, on any leader, for the leader of group 0."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from querator import telemetry
from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.partition.dedup_export import Closure, ClosureQuery, SharingQuery, answer
from querator.placement.bootstrap import Ask, Propose
from querator.raft.host import Host
from querator.storage.environment import Environment

ANSWER_S = 1.0
"""Time for a partition to report its progress, or to be reopened; others wait for that."""
AT_ONCE_MAX = 16
"""Partitions that receive a query or a command at once."""

_log = telemetry.logger(__name__)


def here(host: Host, environment: Environment) -> Ask:
    """Returns an `Ask` for a node that leads all groups."""

    async def ask(group: GroupId, query: SharingQuery) -> Any:
        await host.confirm_read(group)
        with environment.snapshot() as txn:
            return answer(txn, query)

    return ask


class PartitionCalls:
    """Belongs to one event loop. `propose` and `ask` reach the leader of a group."""

    def __init__(self, *, propose: Propose, ask: Ask) -> None:
        self.propose = propose
        self.ask = ask
        self._room = asyncio.Semaphore(AT_ONCE_MAX)

    async def closure(self, group: GroupId) -> Closure | None:
        """The progress of a partition; None: it has not answered within ANSWER_S."""
        try:
            async with asyncio.timeout(ANSWER_S):
                closure = await self.ask(group, ClosureQuery(group))
        except (QueratorError, TimeoutError) as error:
            _log.info("placement.no_answer", group=group, error=str(error))
            return None
        assert isinstance(closure, Closure)
        return closure

    async def accepted(self, group: GroupId, command: Any) -> Done:
        """Sends a command. Raises QueratorError, INTERNAL for a refusal."""
        result = await self.propose(group, command)
        if isinstance(result, Refusal):
            message = f"group {group} refused {type(command).__name__}: {result.message}"
            raise QueratorError(ErrorCode.INTERNAL, message)
        assert isinstance(result, Done)
        return result

    async def taken(self, group: GroupId, command: Any) -> None:
        """As `accepted`, within ANSWER_S. A failure is logged, and the caller sends the command
        again later.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.accepted(group, command)
        except (QueratorError, TimeoutError) as error:
            _log.info("placement.command_failed", group=group, error=str(error))

    async def all(self, steps: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Runs all steps, AT_ONCE_MAX at a time, and returns their results. Raises the first error
        once all are over.
        """

        async def one(step: Callable[[], Awaitable[Any]]) -> Any:
            async with self._room:
                return await step()

        outcomes = await asyncio.gather(*map(one, steps), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes
