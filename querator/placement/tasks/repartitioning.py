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
    7  when a replica here has nothing left that was ready before
       3, and from time to time, all are asked whether anything of
       that is left in them; others may hold items of keys for it
       (`partition.holds`), and are told                            Unhold

After 3 nothing is stored by the old number, whoever still believes in it, so that what is read in 4
is all there is; and nothing is stored by the new one before 6. Nothing is pinned after 3 either,
and what was pinned brings its keys before they are read. What is being dated anew, because time was
put back (`partition.redate`), counts as pinned; if that begins while a partition is read, it is
read once more. Every step may be done again, and by several nodes at once: what is known is only
added to, and a partition does not go back. A node that dies leaves the rest to the next leader of
group 0.

Each step needs all partitions. One that cannot be reached holds up 1 and 2, while requests go on.
From 3 to 6 requests wait, so these steps have ROUTING_CLOSED_MS_MAX. If they take longer, because a
partition was lost or a transaction stays prepared, the change is undone, and begins again at 1
after ROUTING_AGAIN_MS:

    a  the map is told that the version of 3 is given up; after
       that 6 is refused, so that one of the two happens         UndoRouting
    b  the partitions of before that can be reached are told to
       go on by the old number, as the version after that        Route, open
    c  the map is told, and by it every node                     QueueRouted
    d  partitions that could not be reached in b are told when
       they can be; they refuse requests until then              Route, open

No request was stored by the new number then, so that each partition of before knows what it knew.
A leader of group 0 that finds partitions closed and others away begins with a. An operator who
gives the queue its old number back does the same, and nothing is tried again.

In 7 a partition that cannot be reached holds up the keys that have moved from it, as does one that
is full of items. The number may be changed again meanwhile, a few times.

Partitions behind the new number are closing from 3 on (`placement.tasks.closing`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from querator import telemetry
from querator.model.commands import Adopt, Route, Unhold
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    KEY_CHANGES_MAX,
    PARTITIONS_MAX,
    ROUTING_AGAIN_MS,
    ROUTING_CLOSED_MS_MAX,
)
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.partition import masks
from querator.partition.facts import Closure, ClosureQuery, FactsPage, FactsQuery
from querator.placement.bootstrap import Ask, Propose
from querator.placement.map.commands import QueueRouted, UndoRouting
from querator.placement.tasks.closing import Closing
from querator.placement.tasks.telling import Telling

PINNED_S = 0.05
"""Between two looks at partitions that have something pinned."""
FOLLOWING_S_MIN = 0.05
FOLLOWING_S_MAX = 1.0
"""Between two looks at whether keys may go on: the pause doubles while they may not."""

_log = telemetry.logger(__name__)


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


def _is_closed(queue: Queue, seen: Sequence[Closure | None]) -> bool:
    """Whether a partition has been told of the next version."""
    return any(one is not None and one.routing > queue.routing for one in seen)


def _behind(queue: Queue, seen: Sequence[Closure | None]) -> list[int]:
    """Numbers of the partitions that answer, and were away when the queue was reopened."""
    later = range(queue.shares, queue.settings.partitions)
    return [
        number
        for number, one in enumerate(seen)
        if one is not None and one.routing < queue.routing and number not in later
    ]


def _check_changes(queue: Queue, seen: Sequence[Closure]) -> None:
    """Raises UNAVAILABLE when too many changes are not over for the keys."""
    if any(
        sum(version <= queue.routing for version, _, _ in one.changes) >= KEY_CHANGES_MAX
        for one in seen[: queue.shares]
    ):
        message = (
            f"the last {KEY_CHANGES_MAX} changes of the partitions of queue {queue.name} are "
            "not over for its keys: items wait for earlier ones"
        )
        raise QueratorError(ErrorCode.UNAVAILABLE, message)


def _undone(queue: Queue, reason: str, again_ms: int) -> QueratorError:
    return QueratorError(
        ErrorCode.UNAVAILABLE,
        f"the change of queue {queue.name} from {queue.shares} to {queue.settings.partitions} "
        f"partitions was undone, and is tried again: {reason}",
        retry_delay_ms=again_ms,
    )


class Sharing:
    """Belongs to one event loop."""

    def __init__(self, *, propose: Propose, ask: Ask) -> None:
        self.telling = Telling(propose=propose, ask=ask)
        self._closing = Closing(self.telling)
        self._look = asyncio.Event()
        """A number was changed, or a partition may have passed."""
        self._drained: dict[GroupId, int] = {}
        """By partition as `PartitionEffects`, where that is not 0."""
        self._settled: dict[QueueId, int] = {}
        """By queue the version up to which no key waits any more."""
        self._again_s: dict[QueueId, float] = {}
        """When a change that was undone may be tried again, by the loop's clock."""
        self._missing: dict[QueueId, tuple[int, ...]] = {}

    # --- another number ----------------------------------------------------------

    def missing(self, queue: QueueId) -> tuple[int, ...]:
        """Numbers of the partitions that the change of the queue waits for, as far as is known."""
        return self._missing.get(queue, ())

    async def recover(self, queue: Queue) -> bool:
        """Steps a to c, if a change was given up, or stopped where requests wait and not all
        partitions can be reached. True: the map says something else of the queue. Raises
        QueratorError; then again.
        """
        if not queue.reopening:
            seen = await self._seen(queue, queue.groups[: queue.shares])
            if None not in seen or not _is_closed(queue, seen):
                return False
            return await self._undo(queue)
        await self._reopen(queue)
        return True

    async def change(self, queue: Queue) -> None:
        """Steps 2 to 6. All groups of the queue have settings. Returns when the map says something
        else of the queue. Raises QueratorError, also when the change was undone; then again, after
        `retry_delay_ms` if it has one.
        """
        self._check_pause(queue)
        seen = await self._all_seen(queue)
        _check_changes(queue, seen)
        since_ms = [0] * queue.shares
        if not _is_closed(queue, seen):
            since_ms = await self._hand_over(queue, since_ms)
        try:
            async with asyncio.timeout(ROUTING_CLOSED_MS_MAX / 1000):
                changed = await self._switch(queue, since_ms)
        except (QueratorError, TimeoutError) as error:
            if not await self._undo(queue):
                # The map has the new number, and the answer was lost; or another leader has given
                # the change up. The map says which.
                _log.info("placement.routing_decided", queue=queue.name, error=str(error))
                self._missing.pop(queue.id, None)
                self._look.set()
                return
            await self._seen(queue, queue.groups)
            reason = str(error) or f"not all followed within {ROUTING_CLOSED_MS_MAX} ms"
            raise _undone(queue, reason, ROUTING_AGAIN_MS) from error
        self._missing.pop(queue.id, None)
        if changed:
            _log.info(
                "placement.routed",
                queue=queue.name,
                queue_id=queue.id,
                before=queue.shares,
                partitions=queue.settings.partitions,
            )
            self._look.set()

    async def _switch(self, queue: Queue, since_ms: Sequence[int]) -> bool:
        """Steps 3 to 6; False: the change has been given up meanwhile, or somebody else made it."""
        routing, partitions = queue.routing + 1, queue.settings.partitions
        await self._tell(queue, Route(routing, partitions, open=False, before=queue.shares))
        await self._nothing_pinned(queue)
        await self._hand_over(queue, since_ms)
        await self._tell(queue, Route(routing, partitions, open=True, before=queue.shares))
        done = await self.telling.accepted(
            PLACEMENT_GROUP, QueueRouted(queue.id, routing, partitions)
        )
        return done.changed > 0

    def _check_pause(self, queue: Queue) -> None:
        """Raises UNAVAILABLE if the change was undone a short while ago."""
        again_s = self._again_s.get(queue.id)
        if again_s is None:
            return
        left_ms = int(1000 * (again_s - asyncio.get_running_loop().time()))
        if left_ms > 0:
            raise _undone(queue, "not all partitions followed in time", left_ms)
        del self._again_s[queue.id]

    async def _undo(self, queue: Queue) -> bool:
        """Steps a to c; False: the change is over, or was given up by somebody else."""
        routing = queue.routing + 1
        done = await self.telling.accepted(PLACEMENT_GROUP, UndoRouting(queue.id, routing))
        if not done.changed:
            return False
        self._again_s[queue.id] = asyncio.get_running_loop().time() + ROUTING_AGAIN_MS / 1000
        await self._reopen(msgspec.structs.replace(queue, reopening=routing + 1))
        return True

    async def _reopen(self, queue: Queue) -> None:
        """Steps b and c. Partitions that are to take items later are left out, for one that has
        been behind the number of partitions takes no moves any more.
        """
        groups = queue.groups
        if queue.settings.partitions > queue.shares:
            groups = groups[: queue.shares]
        route = Route(queue.reopening, queue.shares, open=True)
        await self.telling.all([partial(self.telling.taken, group, route) for group in groups])
        command = QueueRouted(queue.id, queue.reopening, queue.shares)
        await self.telling.accepted(PLACEMENT_GROUP, command)
        _log.warning(
            "placement.routing_undone",
            queue=queue.name,
            queue_id=queue.id,
            partitions=queue.shares,
            asked=queue.settings.partitions,
            missing=self.missing(queue.id),
        )
        self._look.set()

    async def _all_seen(self, queue: Queue) -> list[Closure]:
        """What each partition says. Raises UNAVAILABLE, naming those that say nothing."""
        seen = await self._seen(queue, queue.groups)
        found = [one for one in seen if one is not None]
        if len(found) == len(seen):
            return found
        numbers = ", ".join(map(str, self.missing(queue.id)))
        raise QueratorError(
            ErrorCode.UNAVAILABLE,
            f"the partitions of queue {queue.name} cannot be changed while some do not answer: "
            f"{numbers}",
            field="partition",
            value=numbers,
        )

    async def _seen(self, queue: Queue, groups: Sequence[GroupId]) -> list[Closure | None]:
        """What each says, None: nothing; keeps in mind which are missing."""
        seen: list[Closure | None] = await self.telling.all(
            [partial(self.telling.closure, group) for group in groups]
        )
        missing = tuple(number for number, one in enumerate(seen) if one is None)
        self._missing.pop(queue.id, None)
        if missing:
            self._missing[queue.id] = missing
        return seen

    async def _nothing_pinned(self, queue: Queue) -> None:
        """Until no partition has anything to publish, or to let go, for a transaction."""
        while True:
            seen = await self.telling.all(
                [partial(self.telling.ask, group, ClosureQuery(group)) for group in queue.groups]
            )
            if not any(one.pinned for one in seen):
                return
            await asyncio.sleep(PINNED_S)

    async def _hand_over(self, queue: Queue, since_ms: Sequence[int]) -> list[int]:
        """Brings what each of the partitions of before has come to remember since then to those
        that need it; the state time of each when it was read.
        """
        return await self.telling.all(
            [
                partial(self._hand_over_one, queue, group, since)
                for group, since in zip(queue.groups, since_ms, strict=False)
            ]
        )

    async def _hand_over_one(self, queue: Queue, group: GroupId, since_ms: int) -> int:
        first: FactsPage | None = None
        after = b""
        while True:
            query = FactsQuery(group, queue.shares, queue.settings.partitions, after, since_ms)
            page = await self.telling.ask(group, query)
            assert isinstance(page, FactsPage)
            if page.redating or (first is not None and not page.is_after(first)):
                # Rows that were not read may be dated before those that were: from the beginning.
                await asyncio.sleep(PINNED_S)
                first, after = None, b""
                continue
            for partition, facts in page.facts:
                await self.telling.accepted(queue.groups[partition], Adopt(facts))
            first = first or page
            after = page.after
            if not after:
                return first.now_ms

    async def _tell(self, queue: Queue, route: Route) -> None:
        await self.telling.all(
            [partial(self.telling.accepted, group, route) for group in queue.groups]
        )

    async def run(
        self, placed: Callable[[], PlacementMap], pending: Callable[[], Collection[QueueId]]
    ) -> None:
        """Lets keys go on and closing partitions go, again and again, while `placed` is not empty.
        Until it is cancelled; raises what is no QueratorError: a defect.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(placed))
            tasks.create_task(self._closing.run(placed, pending))

    # --- keys --------------------------------------------------------------------

    def on_drained(self, group: GroupId, changes: int) -> None:
        """A partition with a replica here says so: keys that have moved from it may go on."""
        before = self._drained.get(group, 0)
        if changes == before:
            return
        if changes:
            self._drained[group] = changes
        else:
            del self._drained[group]
        if changes > before:
            self._look.set()

    async def _follow(self, placed: Callable[[], PlacementMap]) -> None:
        """Step 7, again and again."""
        pause_s = FOLLOWING_S_MIN
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
                    pause_s = FOLLOWING_S_MIN
            self._look.clear()
            pause_s = min(2 * pause_s, FOLLOWING_S_MAX)
            for queue in placed():
                if queue.state is QueueState.ACTIVE and self._is_waiting(queue):
                    try:
                        if await self._let_follow(queue):
                            pause_s = FOLLOWING_S_MIN
                    except QueratorError as error:
                        _log.info("placement.following", queue=queue.name, error=str(error))
            self._forget_gone(placed())

    def _forget_gone(self, placed: PlacementMap) -> None:
        self._settled = {one: at for one, at in self._settled.items() if placed.get(one)}
        self._again_s = {one: at for one, at in self._again_s.items() if placed.get(one)}
        self._missing = {one: those for one, those in self._missing.items() if placed.get(one)}
        self._drained = {one: n for one, n in self._drained.items() if placed.by_group(one)}

    def _is_waiting(self, queue: Queue) -> bool:
        return queue.routing > self._settled.get(queue.id, 0)

    async def _let_follow(self, queue: Queue) -> bool:
        """Tells those that hold items who has passed, and those that were away when the number was
        reopened (step d); whether there was anything to tell. A partition that does not answer has
        not passed, and is asked again.
        """
        steps = [partial(self.telling.closure, group) for group in queue.groups]
        seen: list[Closure | None] = await self.telling.all(steps)
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
        behind = _behind(queue, seen)
        route = Route(queue.routing, queue.shares, open=True)
        telling += [partial(self.telling.taken, queue.groups[number], route) for number in behind]
        if not behind and all(one is not None and not one.changes for one in seen):
            self._settled[queue.id] = queue.routing
            _log.info("placement.followed", queue=queue.name, routing=queue.routing)
        await self.telling.all(telling)
        return bool(telling)

    async def _unhold(self, group: GroupId, command: Unhold) -> None:
        while (await self.telling.accepted(group, command)).changed >= APPLY_SEGMENTS_MAX:
            pass
