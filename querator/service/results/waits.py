"""Questions about results that wait at the leader of a partition. Nothing polls.

A question that finds none of its items ended is parked. The effects of an entry name the items that
ended in it, and the number of all that ever ended. If that number shows that the node has missed an
entry, all questions of the partition look again. They look also when this node leads no more, and
when the queue is being deleted: then the reading itself fails, and the error says why.

A question is parked before it reads, so that no end of an item falls between the two.
"""

import asyncio
from typing import TYPE_CHECKING

from querator.model.commands import PartitionEffects
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    OVERLOADED_RETRY_MS,
    REPLY_BYTES_DEFAULT,
    RESULT_LOOK_MS_MAX,
    RESULT_QUESTIONS_MAX,
)
from querator.model.queues import QueueState
from querator.partition.result_queries import ResultsPage, ended_items
from querator.service.repair.damage import DamagedBlocks
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.forwarder import ResultsQuery
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.router import Router
from querator.service.validate import gone
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import Environment

if TYPE_CHECKING:
    from querator.raft.host import Host

_Parked = dict[asyncio.Event, None]


class _Partition:
    """The parked questions of a partition. `answered` is as in its effects."""

    __slots__ = ("answered", "parked")

    def __init__(self, answered: int) -> None:
        self.answered = answered
        self.parked: dict[int, _Parked] = {}
        """By the sequence of an item that they ask about."""


class ResultWaits:
    """Answers questions about results of the partitions that this node leads. Used on the event
    loop.
    """

    def __init__(
        self,
        host: "Host",
        router: Router,
        *,
        environment: Environment,
        damage: DamagedBlocks,
        answers: QueryAnswers,
    ) -> None:
        self._host = host
        self._router = router
        self._environment = environment
        self._damage = damage
        self._partitions: dict[GroupId, _Partition] = {}
        self._questions = 0
        self._loop = asyncio.get_running_loop()
        answers.register(self.answer, ResultsQuery)

    @property
    def questions(self) -> int:
        """Number of questions that are being answered, or parked."""
        return self._questions

    async def answer(self, query: ResultsQuery) -> ResultsPage:
        """The items that have ended, as soon as one has; none, if none has in time. Raises
        QueratorError.
        """
        if self._questions >= RESULT_QUESTIONS_MAX:
            raise _too_many(self._questions)
        until = self._loop.time() + min(query.wait_ms, RESULT_LOOK_MS_MAX) / 1000
        woken = asyncio.Event()
        self._questions += 1
        self._park(query, woken)
        try:
            while True:
                woken.clear()
                page = await self._look(query)
                if page.items or self._loop.time() >= until:
                    return page
                try:
                    async with asyncio.timeout_at(until):
                        await woken.wait()
                except TimeoutError:
                    return page
        finally:
            self._questions -= 1
            self._unpark(query, woken)

    async def _look(self, query: ResultsQuery) -> ResultsPage:
        group = query.group
        if self._router.stopping:
            raise stopping_error()
        owner = self._router.map.by_group(group)
        if owner is None or owner[0].state is QueueState.DELETING:
            raise gone(None if owner is None else owner[0])
        await self._host.confirm_read(group)
        try:
            with self._environment.snapshot() as txn:
                return ended_items(txn, group, query.seqs, bytes_max=REPLY_BYTES_DEFAULT)
        except AttachmentDamaged as error:
            raise self._damage.unreadable(error) from error

    def _park(self, query: ResultsQuery, woken: asyncio.Event) -> None:
        there = self._partitions.get(query.group)
        if there is None:
            answered = self._router.route(query.group).effects.answered
            there = self._partitions[query.group] = _Partition(answered)
        for seq in query.seqs:
            there.parked.setdefault(seq, {})[woken] = None

    def _unpark(self, query: ResultsQuery, woken: asyncio.Event) -> None:
        there = self._partitions[query.group]
        for seq in query.seqs:
            parked = there.parked[seq]
            del parked[woken]
            if not parked:
                del there.parked[seq]
        if not there.parked:
            del self._partitions[query.group]

    # --- events --------------------------------------------------------------------------------

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> None:
        """An apply has changed a partition, or its effects were counted again."""
        there = self._partitions.get(group)
        if there is None or effects.answered <= there.answered:
            return
        seqs = effects.answered_seqs
        missed = effects.answered - len(seqs) != there.answered
        there.answered = effects.answered
        for seq in tuple(there.parked) if missed else seqs:
            for woken in there.parked.get(seq, ()):
                woken.set()

    def on_leadership(self, group: GroupId) -> None:
        """This node has begun or ceased to lead the group: its questions look again."""
        there = self._partitions.get(group)
        if there is not None:
            there.answered = 0
            self._wake(there)

    def on_map(self) -> None:
        """Questions about queues that are gone or being deleted look again."""
        for group, there in self._partitions.items():
            owner = self._router.map.by_group(group)
            if owner is None or owner[0].state is QueueState.DELETING:
                self._wake(there)

    def stop(self) -> None:
        """Ends all waits with UNAVAILABLE. The router stops before."""
        for there in self._partitions.values():
            self._wake(there)

    @staticmethod
    def _wake(there: _Partition) -> None:
        for parked in there.parked.values():
            for woken in parked:
                woken.set()


def _too_many(questions: int) -> QueratorError:
    limit = f"{RESULT_QUESTIONS_MAX} questions"
    return QueratorError(
        ErrorCode.OVERLOADED,
        f"questions about results on this node are {questions}; the limit is {limit}; wait and "
        "repeat",
        field="node",
        limit=limit,
        value=f"{questions + 1} questions",
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )
