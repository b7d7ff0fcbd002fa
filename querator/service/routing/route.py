"""The route to one partition as this node knows it: its leader, and the calls that wait for one.

A route mirrors the latest reports of the raft package and the other nodes. Its values are absolute,
so the next report corrects a lost one. They may be outdated: a caller must tolerate wrong values.
Only this package writes them.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from querator.model.commands import PartitionEffects
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId


class PartitionRoute:
    """`is_reachable` says whether a command can be sent: to this node's replica, which leads
    (`local`), or to the node that is believed to lead (`leader`) and is not known to be out of
    reach.
    """

    __slots__ = (
        "changes",
        "effects",
        "forwards",
        "group",
        "is_reachable",
        "leader",
        "local",
        "looks",
        "proved",
        "questions",
        "wait_queue",
    )

    def __init__(self, group: GroupId, *, local: bool = False) -> None:
        """`local`: this node leads the partition."""
        self.group = group
        self.is_reachable = local
        self.local = local
        self.leader = ""
        """Name of another node that leads, as far as this node knows."""
        self.proved = False
        """Whether that node or the raft package has confirmed it; otherwise it is a guess."""
        self.questions: dict[str, asyncio.Future[Any]] = {}
        """Unanswered questions whether a node leads, by node."""
        self.effects = PartitionEffects(0, 0)
        """Contents of the partition, as reported by this node's own replica."""
        self.wait_queue: dict[asyncio.Future[None], None] = {}
        """Calls that wait for a leader, in the order in which they continue."""
        self.changes: dict[asyncio.Future[None], None] = {}
        """Calls that pause before they try again, or until a node is known to lead."""
        self.looks: dict[asyncio.Future[None], None] = {}
        """Readers' calls that wait at the leader until something is ready."""
        self.forwards: dict[asyncio.Future[Any], tuple[str, bool]] = {}
        """Unanswered requests at other nodes: the node, and whether the request may be repeated."""

    def wake(self, *, paused: bool = True) -> None:
        """Lets waiting calls check again; those that pause after a refusal only if `paused`."""
        _let_go(self.wait_queue)
        _let_go(self.looks)
        if paused:
            _let_go(self.changes)

    def give_up(self, former: str) -> None:
        """Ends the repeatable requests that a former leader has not answered."""
        if self.leader == former and not self.local:
            return
        for future, (node, may_repeat) in list(self.forwards.items()):
            if node == former and may_repeat and not future.done():
                future.set_exception(
                    QueratorError(ErrorCode.OUTCOME_UNKNOWN, f"node {former} lost the leadership")
                )

    def wake_readers(self) -> None:
        """Ends the wait of readers once something is ready, or this node leads no more."""
        if self.effects.ready or not self.local:
            _let_go(self.looks)

    async def something_ready(self, until: float) -> None:
        """Waits until something is ready in this node's leading replica, at most until `until`."""
        if not self.effects.ready and self.local:
            await _wait_in(self.looks, until)

    async def wait_for_turn(self, latest: float) -> None:
        """Waits until `wake`, behind the calls that wait already. Raises TimeoutError
        at `latest`.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait_queue[place] = None
        try:
            async with asyncio.timeout_at(latest):
                await place
        finally:
            del self.wait_queue[place]
            if self.is_reachable and self.wait_queue:
                # Other calls joined while this one was being woken.
                _let_go(self.wait_queue)

    async def pause(self, until: float) -> None:
        """Waits until `until`, or until a node is known to lead."""
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
