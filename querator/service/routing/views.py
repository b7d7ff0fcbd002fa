"""One partition as this node knows it: who leads it, what is ready, who waits for a leader.

It mirrors what the raft room and the other nodes have said last. Its values are absolute, so a
lost update heals with the next one, and they may be behind: whoever relies on them must bear being
wrong.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId

if TYPE_CHECKING:
    from querator.service.lease.dispatcher import LeaseDesk


class PartitionView:
    """`led` says whether a command can be sent: to this node's replica, which leads (`local`), or
    to the node that leads as far as is known (`leader`) and is not out of reach.
    """

    __slots__ = (
        "changes",
        "desk",
        "forwards",
        "group",
        "kept",
        "leader",
        "leases_asked",
        "led",
        "line",
        "local",
        "looks",
        "occupied",
        "outbox",
        "pinned",
        "produce_bytes",
        "produces",
        "proved",
        "questions",
        "ready",
        "rests",
        "stages",
        "stored",
        "txns",
    )

    def __init__(self, group: GroupId, *, led: bool = False) -> None:
        """`led`: by this node."""
        self.group = group
        self.led = led
        self.local = led
        self.leader = ""
        """Name of another node that leads, as far as is known."""
        self.proved = False
        """Whether that node has said so, or the raft room says so; else it is a guess."""
        self.questions: dict[str, asyncio.Future[Any]] = {}
        """What is unanswered of whether a node leads, by node."""
        self.ready = 0
        """Items that can be leased through this node: not promised to others."""
        self.kept = False
        """Whether this node keeps some for others: then its own leases ask for no more."""
        self.rests = False
        """Whether leases of this node give way to those of others for a moment (`pace`)."""
        self.stored = 0
        """Items that can be leased, as this node's own replica has it."""
        self.outbox = 0
        """Items on their way to other partitions, as this node's own replica has it."""
        self.occupied = 0
        """Items that count for the queue's limit, as this node's own replica has it."""
        self.txns = 0
        """Transactions that it coordinates and that are not finished, as this node's replica has
        it; and staged items that are pinned for some."""
        self.pinned = 0
        self.stages = 0
        """Stages in it, as this node's replica has it."""
        self.produces = 0
        """Produce commands not answered yet, and their bytes."""
        self.produce_bytes = 0
        self.leases_asked = False
        """Whether a lease command is in flight; there is never more than one."""
        self.desk: LeaseDesk | None = None
        """Where leases of the queue wait; None before the first."""
        self.line: dict[asyncio.Future[None], None] = {}
        """Calls that wait for a leader, in the order in which they go on."""
        self.changes: dict[asyncio.Future[None], None] = {}
        """Calls that wait for a moment before they try again, or for another leader."""
        self.looks: dict[asyncio.Future[None], None] = {}
        """Readers' calls that wait here, where the partition is led, until something is ready."""
        self.forwards: dict[asyncio.Future[Any], tuple[str, bool]] = {}
        """What is unanswered at other nodes: the node, and whether it may be repeated."""

    def wake(self) -> None:
        """Lets those who wait look again."""
        _let_go(self.line)
        _let_go(self.changes)
        _let_go(self.looks)

    def give_up(self, former: str) -> None:
        """Ends what a node that leads no more has not answered and what can be repeated."""
        if self.leader == former and not self.local:
            return
        for future, (node, may_repeat) in list(self.forwards.items()):
            if node == former and may_repeat and not future.done():
                future.set_exception(
                    QueratorError(ErrorCode.OUTCOME_UNKNOWN, f"node {former} lost the leadership")
                )

    def look(self) -> None:
        """Lets go of those who wait until something is ready, or somebody else leads."""
        if self.stored or not self.local:
            _let_go(self.looks)

    async def something_ready(self, until: float) -> None:
        """Until something is ready in this node's replica, which leads, or until then."""
        if not self.stored and self.local:
            await _wait_in(self.looks, until)

    async def stand_in_line(self, latest: float) -> None:
        """Waits until `wake`, behind those who wait already. Raises TimeoutError at `latest`."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line[place] = None
        try:
            async with asyncio.timeout_at(latest):
                await place
        finally:
            del self.line[place]
            if self.led and self.line:
                # Some came while this one was on its way.
                _let_go(self.line)

    async def pause(self, until: float) -> None:
        """Waits until then, or until there is another leader."""
        await _wait_in(self.changes, until)


async def _wait_in(waiting: dict["asyncio.Future[None]", None], until: float) -> None:
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting[place] = None
    try:
        async with asyncio.timeout_at(until):
            await place
    except TimeoutError:
        return
    finally:
        del waiting[place]


def _let_go(waiting: Iterable["asyncio.Future[None]"]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
