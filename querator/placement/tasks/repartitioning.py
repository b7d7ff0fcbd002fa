"""How the number of partitions of a queue in use is changed, by the leader of group 0.

Requests with an identity or keys are distributed by the number of partitions (`model.routing`). The
memory of a request must be where its repeat will go. So, with n partitions before and n' after:

    1  the groups of new partitions exist and have settings         `reconcile`
    2  the first n report what they remember that other partitions
       will need, and those adopt it; requests continue meanwhile
    3  all receive the new number, and accept nothing yet           Route, not open
    4  when no partition has anything pinned for a transaction,
       step 2 is repeated for what has come since                   requests wait
    5  all continue by the new number                               Route, open
    6  the map receives the new number, and all nodes through it    QueueRouted
    7  when a replica here has nothing left that was ready before
       3, and from time to time, all are asked whether they have
       any of that left; the answers are passed to the partitions
       that may hold items of keys for it (`partition.held_keys`)       Unhold
    8  from time to time, partitions that know dedup keys of items
       in other partitions learn which of these are done
       (`placement.tasks.key_freeing`)                                  FreeKeys

After 3 nothing is stored by the old number, even if a client or node still uses it, so what is read
in 4 is complete. Nothing is stored by the new number before 6. Nothing is pinned after 3 either,
and what was pinned adds its keys before they are read. Rows that are being redated because time was
set back (`partition.redate`) count as pinned. If that begins while a partition is read, the
partition is read once more. Every step may be repeated, and run by several nodes at once: facts are
only added, and a partition never goes back. If a node dies, the next leader of group 0 continues.

Each step needs all partitions. An unreachable one delays 1 and 2, while requests continue. From 3
to 6 requests wait, so these steps have ROUTING_CLOSED_MS_MAX. If they take longer, because a
partition was lost or a transaction stays prepared, the change is undone, and begins again at 1
after ROUTING_AGAIN_MS:

    a  the map records that the version of 3 is given up; after
       that 6 is refused, so only one of the two happens         UndoRouting
    b  the reachable old partitions continue by the old number,
       as the version after that                                 Route, open
    c  the map receives that, and all nodes through it           QueueRouted
    d  partitions that b could not reach receive it when they
       can be reached; they refuse requests until then           Route, open

No request was stored by the new number then, so each old partition has its old knowledge. A leader
of group 0 that finds partitions closed and others away begins with a. If an operator sets the old
number again, the same happens, and the change is not retried.

In 7 an unreachable partition holds up the keys that have moved from it, and so does one that is
full of items. The number may be changed again meanwhile, a few times.

Partitions from the new number on are closing from 3 on (`placement.tasks.closing`).
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
from querator.model.queues import Queue, QueueKind, QueueState
from querator.partition import masks
from querator.partition.dedup_export import Closure, ClosureQuery, FactsPage, FactsQuery
from querator.placement.bootstrap import Ask, Propose
from querator.placement.map.commands import QueueRouted, UndoRouting
from querator.placement.tasks.closing import PartitionClosing
from querator.placement.tasks.key_freeing import KeyFreeing
from querator.placement.tasks.partition_calls import PartitionCalls

PINNED_S = 0.05
"""Pause between two checks of partitions that have something pinned."""
FOLLOWING_S_MIN = 0.05
FOLLOWING_S_MAX = 1.0
"""Pause between two checks whether held keys may continue. It doubles while they may not."""

_log = telemetry.logger(__name__)


def passed(seen: Sequence[Closure | None], version: int) -> int:
    """The partitions that no other partition must wait for because of a change of their number, as
    a mask: those that report so, and those that do not exist. `seen` is each partition's answer,
    None if it does not answer.
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
    """Whether a partition has received the next version."""
    return any(one is not None and one.routing > queue.routing for one in seen)


def _behind(queue: Queue, seen: Sequence[Closure | None]) -> list[int]:
    """Numbers of the partitions that answer and were away when the queue was reopened."""
    later = range(queue.routed_partitions, queue.settings.partitions)
    return [
        number
        for number, one in enumerate(seen)
        if one is not None and one.routing < queue.routing and number not in later
    ]


def _key_groups(queue: Queue, partitions: int) -> tuple[int, ...]:
    """The groups over which the keys of a keyed queue are distributed; empty for other queues."""
    if queue.settings.kind is not QueueKind.KEYED:
        return ()
    return tuple(queue.groups[:partitions])


def _check_changes(queue: Queue, seen: Sequence[Closure]) -> None:
    """Raises UNAVAILABLE when too many changes are unfinished for the keys."""
    if any(
        sum(version <= queue.routing for version, _, _ in one.changes) >= KEY_CHANGES_MAX
        for one in seen[: queue.routed_partitions]
    ):
        message = (
            f"the last {KEY_CHANGES_MAX} changes of the partitions of queue {queue.name} are not "
            "complete for its keys: items wait for earlier items"
        )
        raise QueratorError(ErrorCode.UNAVAILABLE, message)


def _undone(queue: Queue, reason: str, again_ms: int) -> QueratorError:
    return QueratorError(
        ErrorCode.UNAVAILABLE,
        f"the change of queue {queue.name} from {queue.routed_partitions} to "
        f"{queue.settings.partitions} partitions was undone, and is tried again: {reason}",
        retry_delay_ms=again_ms,
    )


class Repartitioner:
    """Belongs to one event loop."""

    def __init__(self, *, propose: Propose, ask: Ask) -> None:
        self.telling = PartitionCalls(propose=propose, ask=ask)
        self._closing = PartitionClosing(self.telling)
        self._freeing = KeyFreeing(self.telling)
        self._look = asyncio.Event()
        """Set when a number was changed, or a partition may have passed."""
        self._drained: dict[GroupId, int] = {}
        """`PartitionEffects.drained` by group, where it is not 0."""
        self._settled: dict[QueueId, int] = {}
        """By queue, the version up to which no key waits any more."""
        self._again_s: dict[QueueId, float] = {}
        """By queue, when an undone change may be tried again, by the loop's clock."""
        self._missing: dict[QueueId, tuple[int, ...]] = {}

    # --- another number ----------------------------------------------------------

    def missing(self, queue: QueueId) -> tuple[int, ...]:
        """Numbers of the partitions that the queue's change waits for, as far as is known."""
        return self._missing.get(queue, ())

    async def recover(self, queue: Queue) -> bool:
        """Takes steps a to c, if a change was given up, or stopped while requests wait and some
        partitions are unreachable. True: the map has changed for the queue. Raises QueratorError;
        the caller then retries.
        """
        if not queue.reopening:
            seen = await self._seen(queue, queue.groups[: queue.routed_partitions])
            if None not in seen or not _is_closed(queue, seen):
                return False
            return await self._undo(queue)
        await self._reopen(queue)
        return True

    async def change(self, queue: Queue) -> None:
        """Takes steps 2 to 6. All groups of the queue have settings. Returns when the map has
        changed for the queue. Raises QueratorError, also when the change was undone; the caller
        then retries, after `retry_delay_ms` if it is given.
        """
        self._check_pause(queue)
        seen = await self._all_seen(queue)
        _check_changes(queue, seen)
        since_ms = [0] * queue.routed_partitions
        if not _is_closed(queue, seen):
            since_ms = await self._hand_over(queue, since_ms)
        try:
            async with asyncio.timeout(ROUTING_CLOSED_MS_MAX / 1000):
                changed = await self._switch(queue, since_ms)
        except (QueratorError, TimeoutError) as error:
            if not await self._undo(queue):
                # The map has the new number and the answer was lost, or another leader has given
                # the change up. The map says which.
                _log.info("placement.routing_decided", queue=queue.name, error=str(error))
                self._missing.pop(queue.id, None)
                self._look.set()
                return
            await self._seen(queue, queue.groups)
            reason = str(error) or f"not all partitions followed within {ROUTING_CLOSED_MS_MAX} ms"
            raise _undone(queue, reason, ROUTING_AGAIN_MS) from error
        self._missing.pop(queue.id, None)
        if changed:
            _log.info(
                "placement.routing_changed",
                queue=queue.name,
                queue_id=queue.id,
                before=queue.routed_partitions,
                partitions=queue.settings.partitions,
            )
            self._look.set()

    async def _switch(self, queue: Queue, since_ms: Sequence[int]) -> bool:
        """Takes steps 3 to 6. False: the change was given up meanwhile, or another leader completed
        it.
        """
        routing, partitions = queue.routing + 1, queue.settings.partitions
        before, groups = queue.routed_partitions, _key_groups(queue, partitions)
        await self._command(
            queue, Route(routing, partitions, open=False, before=before, groups=groups)
        )
        await self._nothing_pinned(queue)
        await self._hand_over(queue, since_ms)
        await self._command(
            queue, Route(routing, partitions, open=True, before=before, groups=groups)
        )
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
        """Takes steps a to c. False: the change is over, or another leader gave it up."""
        routing = queue.routing + 1
        done = await self.telling.accepted(PLACEMENT_GROUP, UndoRouting(queue.id, routing))
        if not done.changed:
            return False
        self._again_s[queue.id] = asyncio.get_running_loop().time() + ROUTING_AGAIN_MS / 1000
        await self._reopen(msgspec.structs.replace(queue, reopening=routing + 1))
        return True

    async def _reopen(self, queue: Queue) -> None:
        """Takes steps b and c. Partitions that are to accept items later are left out, because a
        partition beyond the number never accepts moves again.
        """
        groups = queue.groups
        if queue.settings.partitions > queue.routed_partitions:
            groups = groups[: queue.routed_partitions]
        routed = queue.routed_partitions
        route = Route(queue.reopening, routed, open=True, groups=_key_groups(queue, routed))
        await self.telling.all([partial(self.telling.taken, group, route) for group in groups])
        command = QueueRouted(queue.id, queue.reopening, queue.routed_partitions)
        await self.telling.accepted(PLACEMENT_GROUP, command)
        _log.warning(
            "placement.routing_undone",
            queue=queue.name,
            queue_id=queue.id,
            partitions=queue.routed_partitions,
            asked=queue.settings.partitions,
            missing=self.missing(queue.id),
        )
        self._look.set()

    async def _all_seen(self, queue: Queue) -> list[Closure]:
        """The answer of each partition. Raises UNAVAILABLE, naming those that do not answer."""
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
        """The answer of each group, None if there is none; remembers the missing ones."""
        seen: list[Closure | None] = await self.telling.all(
            [partial(self.telling.closure, group) for group in groups]
        )
        missing = tuple(number for number, one in enumerate(seen) if one is None)
        self._missing.pop(queue.id, None)
        if missing:
            self._missing[queue.id] = missing
        return seen

    async def _nothing_pinned(self, queue: Queue) -> None:
        """Waits until no partition has anything to publish or release for a transaction."""
        while True:
            seen = await self.telling.all(
                [partial(self.telling.ask, group, ClosureQuery(group)) for group in queue.groups]
            )
            if not any(one.pinned for one in seen):
                return
            await asyncio.sleep(PINNED_S)

    async def _hand_over(self, queue: Queue, since_ms: Sequence[int]) -> list[int]:
        """Sends what each old partition remembers since `since_ms` to the partitions that need it.
        Returns the state time of each when it was read.
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
            query = FactsQuery(
                group, queue.routed_partitions, queue.settings.partitions, after, since_ms
            )
            page = await self.telling.ask(group, query)
            assert isinstance(page, FactsPage)
            if page.redating or (first is not None and not page.is_after(first)):
                # Unread rows may get earlier dates than those that were read: read from the
                # beginning.
                await asyncio.sleep(PINNED_S)
                first, after = None, b""
                continue
            for partition, facts in page.facts:
                await self.telling.accepted(queue.groups[partition], Adopt(facts))
            first = first or page
            after = page.after
            if not after:
                return first.now_ms

    async def _command(self, queue: Queue, route: Route) -> None:
        await self.telling.all(
            [partial(self.telling.accepted, group, route) for group in queue.groups]
        )

    async def run(
        self, placed: Callable[[], PlacementMap], pending: Callable[[], Collection[QueueId]]
    ) -> None:
        """Lets held keys continue and closing partitions leave, periodically while `placed` is not
        empty. Runs until cancelled; raises any error that is not a QueratorError: a defect.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(placed))
            tasks.create_task(self._closing.run(placed, pending))

    # --- keys --------------------------------------------------------------------

    def on_drained(self, group: GroupId, changes: int) -> None:
        """Handles that a partition with a replica here has drained: keys that moved from it may
        continue.
        """
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
        """Runs step 7 periodically."""
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
                        _log.info(
                            "placement.routing_not_completed", queue=queue.name, error=str(error)
                        )
            self._forget_gone(placed())

    def _forget_gone(self, placed: PlacementMap) -> None:
        self._settled = {one: at for one, at in self._settled.items() if placed.get(one)}
        self._again_s = {one: at for one, at in self._again_s.items() if placed.get(one)}
        self._missing = {one: those for one, those in self._missing.items() if placed.get(one)}
        self._drained = {one: n for one, n in self._drained.items() if placed.by_group(one)}
        self._freeing.forget_gone(placed)

    def _is_waiting(self, queue: Queue) -> bool:
        return queue.routing > self._settled.get(queue.id, 0)

    async def _let_follow(self, queue: Queue) -> bool:
        """Informs partitions that hold items which partitions have passed, and takes step d for
        those that were away at the reopening. Returns whether there was anything to send. A
        partition that does not answer has not passed, and is asked again.
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
        routed = queue.routed_partitions
        route = Route(queue.routing, routed, open=True, groups=_key_groups(queue, routed))
        telling += [partial(self.telling.taken, queue.groups[number], route) for number in behind]
        holders = [
            group
            for group, one in zip(queue.groups, seen, strict=True)
            if one is not None and one.away_keys
        ]
        telling += [partial(self._freeing.free, queue, group) for group in holders]
        done = not (behind or holders)
        if done and all(one is not None and not one.changes for one in seen):
            self._settled[queue.id] = queue.routing
            _log.info("placement.routing_completed", queue=queue.name, routing=queue.routing)
        await self.telling.all(telling)
        return len(telling) > len(holders)

    async def _unhold(self, group: GroupId, command: Unhold) -> None:
        while (await self.telling.accepted(group, command)).changed >= APPLY_SEGMENTS_MAX:
            pass
