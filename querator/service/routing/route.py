"""The way to one partition as this node knows it: its leader, and the calls that wait for one.

A route mirrors what the raft package and the other nodes have reported last. Its values are
absolute, so the next report mends a lost one. They may be behind: a caller that relies on them must
bear being wrong. Only this package writes them.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from querator.model.commands import PartitionEffects
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId


class PartitionRoute:
    """`is_reachable` says whether a command can be sent: to this node's replica, which leads
    (`local`), or to the node that leads as far as is known (`leader`) and is not out of reach.
    """

    __slots__ = (
        "changes",
        "effects",
        "forwards",
        "group",
        "is_reachable",
        "leader",
        "line",
        "local",
        "looks",
        "proved",
        "questions",
    )

    def __init__(self, group: GroupId, *, local: bool = False) -> None:
        """`local`: this node leads it."""
        self.group = group
        self.is_reachable = local
        self.local = local
        self.leader = ""
        """Name of another node that leads, as far as is known."""
        self.proved = False
        """Whether that node has said so, or the raft package says so; else it is a guess."""
        self.questions: dict[str, asyncio.Future[Any]] = {}
        """Unanswered questions whether a node leads, by node."""
        self.effects = PartitionEffects(0, 0)
        """What the partition holds, by this node's own replica."""
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
        if self.effects.ready or not self.local:
            _let_go(self.looks)

    async def something_ready(self, until: float) -> None:
        """Until something is ready in this node's replica, which leads, or until then."""
        if not self.effects.ready and self.local:
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
            if self.is_reachable and self.line:
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
