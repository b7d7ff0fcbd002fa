"""How a queue gets another number of partitions while it is used: by the leader of group 0.

Requests with an identity or keys are shared out by their number (`model.routing`), and what is
remembered of a request must be where its repeat will go. So, with n partitions before and n' after:

    1  the groups of new partitions are there and have settings     `reconcile`
    2  the first n are asked what they remember that others will
       need, and those adopt it; requests go on meanwhile
    3  all are told the new number, and to take nothing yet         Route, not open
    4  when no partition has anything pinned for a transaction,
       as 2, of what has come since                                 requests wait
    5  all are told to go on by the new number                      Route, open
    6  the map is told, and by it every node                        QueueRouted
    7  from time to time all are asked whether anything is left in
       them that was ready before 3; others may hold items of keys
       for that (`partition.holds`), and are told                   Unhold

After 3 nothing is stored by the old number, whoever still believes in it, so that what is read in 4
is all there is; and nothing is stored by the new one before 5. Nothing is pinned after 3 either,
and what was pinned brings its keys before they are read. Every step may be done again, and by
several nodes at once: what is known is only added to, and a partition does not go back. A node that
dies leaves the rest to the next leader of group 0. Partitions that cannot be reached hold up 1 and
2, and nothing else waits for them; in 7 they hold up the keys that have moved from them, as does
one that is full of items. The number may be changed again meanwhile, a few times.

Partitions behind the new number are closing from 3 on: they take no items and no moves, and are
leased from until they are empty. They leave the map, and then their data goes (`reconcile`), when

* no item is in them or pinned for a transaction, and no outcome of a lease is remembered, for which
  somebody may ask again;
* they wait for nobody;
* no partition of the namespace has a move on its way to them: those know then which have arrived.

They go from the last one on, for partitions are numbered without gaps. One that comes again under
the same number goes on where its predecessor's sequences ended.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

from querator import telemetry
from querator.model.commands import Adopt, Done, Refusal, Route, Unhold
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.limits import APPLY_SEGMENTS_MAX, KEY_CHANGES_MAX, PARTITIONS_MAX
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.partition import masks
from querator.partition.facts import (
    Closure,
    ClosureQuery,
    FactsPage,
    FactsQuery,
    SharingQuery,
    answer,
)
from querator.placement.commands import PartitionsEmpty, QueueRouted
from querator.placement.standing import Ask, Propose
from querator.raft.host import Host
from querator.storage.environment import Environment

CLOSING_S = 1.0
"""Between two looks at closing partitions."""
PINNED_S = 0.05
"""Between two looks at partitions that have something pinned."""
FOLLOWING_S_MIN = 0.05
FOLLOWING_S_MAX = 1.0
"""Between two looks at whether keys may go on: the pause doubles while they may not."""
ANSWER_S = 1.0
"""How long a partition may take to say whether keys may go on: others wait for its answer."""
AT_ONCE_MAX = 16
"""Partitions that are asked or told at once."""

_log = telemetry.logger(__name__)


def here(host: Host, environment: Environment) -> Ask:
    """For a node that leads all groups."""

    async def ask(group: GroupId, query: SharingQuery) -> Any:
        await host.confirm_read(group)
        with environment.snapshot() as txn:
            return answer(txn, query)

    return ask


def passed(seen: Sequence[Closure | None], version: int) -> int:
    """The partitions that nobody need wait for any more because of a change of their number, as a
    mask: those that say so, and those that are not there. `seen` is what each of a queue says, None
    if it does not answer.
    """
    left = sum(
        1 << partition
        for partition, one in enumerate(seen)
        if one is None
        or one.routing < version
        or any(known == version and not done for known, done, _ in one.changes)
    )
    return (1 << PARTITIONS_MAX) - 1 & ~left


class Sharing:
    """Belongs to one event loop."""

    def __init__(self, *, propose: Propose, ask: Ask) -> None:
        self._propose = propose
        self._ask = ask
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._routed = asyncio.Event()
        """A number was changed."""
        self._settled: dict[QueueId, int] = {}
        """By queue the version up to which no key waits any more."""

    # --- another number ----------------------------------------------------------

    async def change(self, queue: Queue) -> None:
        """Steps 2 to 6. All groups of the queue have settings. Raises QueratorError; then again."""
        routing, partitions = queue.routing + 1, queue.settings.partitions
        await self._check_changes(queue)
        since_ms = await self._hand_over(queue, [0] * queue.shares)
        await self._tell(queue, Route(routing, partitions, open=False, before=queue.shares))
        await self._nothing_pinned(queue)
        await self._hand_over(queue, since_ms)
        await self._tell(queue, Route(routing, partitions, open=True, before=queue.shares))
        await self._accepted(PLACEMENT_GROUP, QueueRouted(queue.id, routing, partitions))
        _log.info(
            "placement.routed",
            queue=queue.name,
            queue_id=queue.id,
            before=queue.shares,
            partitions=partitions,
        )
        self._routed.set()

    async def _check_changes(self, queue: Queue) -> None:
        seen = await self._look_at(queue.groups[: queue.shares])
        if any(
            sum(version <= queue.routing for version, _, _ in one.changes) >= KEY_CHANGES_MAX
            for one in seen
        ):
            message = (
                f"the last {KEY_CHANGES_MAX} changes of the partitions of queue {queue.name} are "
                "not over for its keys: items wait for earlier ones"
            )
            raise QueratorError(ErrorCode.UNAVAILABLE, message)

    async def _nothing_pinned(self, queue: Queue) -> None:
        """Until no partition has anything to publish, or to let go, for a transaction."""
        while True:
            seen = await self._look_at(queue.groups)
            if not any(one.pinned for one in seen):
                return
            await asyncio.sleep(PINNED_S)

    async def _hand_over(self, queue: Queue, since_ms: Sequence[int]) -> list[int]:
        """Brings what each of the partitions of before has come to remember since then to those
        that need it; the state time of each when it was read.
        """
        return await self._all(
            [
                partial(self._hand_over_one, queue, group, since)
                for group, since in zip(queue.groups, since_ms, strict=False)
            ]
        )

    async def _hand_over_one(self, queue: Queue, group: GroupId, since_ms: int) -> int:
        after, read_ms = b"", -1
        while True:
            query = FactsQuery(group, queue.shares, queue.settings.partitions, after, since_ms)
            page = await self._ask(group, query)
            assert isinstance(page, FactsPage)
            for partition, facts in page.facts:
                await self._accepted(queue.groups[partition], Adopt(facts))
            read_ms = page.now_ms if read_ms < 0 else read_ms
            after = page.after
            if not after:
                return read_ms

    async def _tell(self, queue: Queue, route: Route) -> None:
        await self._all([partial(self._accepted, group, route) for group in queue.groups])

    async def run(
        self, placed: Callable[[], PlacementMap], pending: Callable[[], Collection[QueueId]]
    ) -> None:
        """Lets keys go on and closing partitions go, again and again, while `placed` is not empty.
        Until it is cancelled; raises what is no QueratorError: a defect.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(placed))
            tasks.create_task(self._close(placed, pending))

    # --- keys --------------------------------------------------------------------

    async def _follow(self, placed: Callable[[], PlacementMap]) -> None:
        """Step 7, again and again."""
        pause_s = FOLLOWING_S_MIN
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._routed.wait()
                    pause_s = FOLLOWING_S_MIN
            self._routed.clear()
            pause_s = min(2 * pause_s, FOLLOWING_S_MAX)
            for queue in placed():
                if queue.state is QueueState.ACTIVE and self._is_waiting(queue):
                    try:
                        if await self._let_follow(queue):
                            pause_s = FOLLOWING_S_MIN
                    except QueratorError as error:
                        _log.info("placement.following", queue=queue.name, error=str(error))
            self._settled = {one: at for one, at in self._settled.items() if placed().get(one)}

    def _is_waiting(self, queue: Queue) -> bool:
        return queue.routing > self._settled.get(queue.id, 0)

    async def _let_follow(self, queue: Queue) -> bool:
        """Tells those that hold items who has passed; whether there was anything to tell. Who does
        not answer has not passed, and is asked again.
        """
        steps = [partial(self._closure, group) for group in queue.groups]
        seen: list[Closure | None] = await self._all(steps)
        gone: dict[int, int] = {}
        telling = []
        for group, one in zip(queue.groups, seen, strict=True):
            for version, done, waits in () if one is None else one.changes:
                if version > queue.routing:
                    continue
                if version not in gone:
                    gone[version] = passed(seen, version)
                mine = masks.from_bytes(waits) & gone[version]
                if mine or (done and not waits):
                    telling.append(
                        partial(self._unhold, group, Unhold(version, masks.to_bytes(mine)))
                    )
        if all(one is not None and not one.changes for one in seen):
            self._settled[queue.id] = queue.routing
            _log.info("placement.followed", queue=queue.name, routing=queue.routing)
        await self._all(telling)
        return bool(telling)

    async def _closure(self, group: GroupId) -> Closure | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                closure = await self._ask(group, ClosureQuery(group))
        except (QueratorError, TimeoutError) as error:
            _log.info("placement.following", group=group, error=str(error))
            return None
        assert isinstance(closure, Closure)
        return closure

    async def _unhold(self, group: GroupId, command: Unhold) -> None:
        while (await self._accepted(group, command)).changed >= APPLY_SEGMENTS_MAX:
            pass

    # --- closing partitions ------------------------------------------------------

    async def _close(
        self, placed: Callable[[], PlacementMap], pending: Callable[[], Collection[QueueId]]
    ) -> None:
        while True:
            await asyncio.sleep(CLOSING_S)
            for queue in placed():
                if queue.closing and queue.state is QueueState.ACTIVE and not queue.is_changing:
                    try:
                        await self._let_go(placed(), pending(), queue)
                    except QueratorError as error:
                        _log.info("placement.closing", queue=queue.name, error=str(error))

    async def _let_go(
        self, placed: PlacementMap, pending: Collection[QueueId], queue: Queue
    ) -> None:
        open_ = queue.settings.partitions
        seen = await self._look_at(queue.groups[open_:])
        left = len(queue.groups)
        while left > open_:
            last = seen[left - 1 - open_]
            if last.routing != queue.routing or not last.is_empty:
                break
            left -= 1
        if left == len(queue.groups) or await self._are_needed(
            placed, pending, queue, frozenset(queue.groups[left:])
        ):
            return
        first_seqs = tuple(one.next_seq for one in seen[left - open_ :])
        command = PartitionsEmpty(queue.id, queue.routing, left, first_seqs)
        await self._accepted(PLACEMENT_GROUP, command)
        _log.info("placement.closed", queue=queue.name, queue_id=queue.id, left=left)

    async def _are_needed(
        self,
        placed: PlacementMap,
        pending: Collection[QueueId],
        queue: Queue,
        groups: frozenset[GroupId],
    ) -> bool:
        """Whether a partition may still want to move something to one of the groups."""
        sources = [
            source
            for source in placed.queues(queue.namespace)
            if source.state is not QueueState.DELETING
        ]
        if any(
            source.settings.dead_queue == queue.name and source.id in pending for source in sources
        ):
            return True
        seen = await self._look_at([group for source in sources for group in source.groups])
        return any(not groups.isdisjoint(one.targets) for one in seen)

    async def _look_at(self, groups: Sequence[GroupId]) -> list[Closure]:
        return await self._all([partial(self._ask, group, ClosureQuery(group)) for group in groups])

    # --- asking and telling ------------------------------------------------------

    async def _accepted(self, group: GroupId, command: Any) -> Done:
        result = await self._propose(group, command)
        if isinstance(result, Refusal):
            message = f"group {group} refused {type(command).__name__}: {result.message}"
            raise QueratorError(ErrorCode.INTERNAL, message)
        assert isinstance(result, Done)
        return result

    async def _all(self, steps: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """What all steps come to, AT_ONCE_MAX at a time; or the first error, when all are over."""

        async def one(step: Callable[[], Awaitable[Any]]) -> Any:
            async with self._room:
                return await step()

        outcomes = await asyncio.gather(*map(one, steps), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes
