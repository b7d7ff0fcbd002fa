"""Queues, their counts and items, and dead letters.

Requests that are invalid in themselves are refused here. Everything else (dead queues, versions,
users of a queue) is decided by placement, in the log. Counts and items are read at the leader of
each partition (`service.reading.queries`): they are exact, and no scan of a queue is needed to
count it.

The file is longer than 500 lines, because each call of administrators is a method of one service.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from querator import telemetry
from querator.model import rates
from querator.model.calls import (
    BlockDamage,
    BrowsedItem,
    PartitionCounts,
    PartitionTimeError,
    PeekedPage,
    QueueCounts,
    QueuePage,
)
from querator.model.commands import (
    ALL_LETTERS,
    DeadTarget,
    Done,
    DropLetters,
    GiveUp,
    LetterFilter,
    Redrive,
    RedriveResult,
    RepairTime,
)
from querator.model.errors import ErrorCode, QueratorError, invalid
from querator.model.ids import DEFAULT_NAMESPACE, GroupId, check_name, parse_item_id
from querator.model.limits import (
    CLOCK_SKEW_MS_MAX,
    DELETE_WAIT_MS_MAX,
    GIVE_UP_BLOCKS_MAX,
    REPLY_BYTES_DEFAULT,
)
from querator.model.placement_map import PlacementMap
from querator.model.queues import (
    DEAD_QUEUE_DEFAULT,
    Queue,
    QueueKind,
    QueueSettings,
    QueueState,
)
from querator.partition.queries import ItemPage, reply_bytes
from querator.partition.rows import RowState
from querator.service.breakers import Breakers
from querator.service.groups import Groups
from querator.service.item_changes import ItemChanges
from querator.service.item_ids import by_partition, check_partitions
from querator.service.item_reads import ItemReads
from querator.service.keys import Keys
from querator.service.live_leases import LiveLeases
from querator.service.purging import Purging
from querator.service.reading import paging
from querator.service.reading.queries import Queries
from querator.service.recurring.calls import RecurrenceService
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.forwarder import LetterCountsQuery, LettersQuery, PeekQuery
from querator.service.routing.router import Router, deadline_after
from querator.service.schedules import Schedules
from querator.service.stopped import check_running
from querator.service.validate import (
    check_between,
    check_settings,
    check_update_mask,
    deleting,
    existing,
    namespace_not_found,
    not_of_items,
    page_items,
)

if TYPE_CHECKING:
    from querator.placement.placement import Placement
    from querator.raft.clock import Clock

T = TypeVar("T")

_log = telemetry.logger(__name__)

_NOT_SUMMED = (
    "partition", "applied_index", "waits_for", "first_seq", "head_seq", "breaker", "limits",
    "rates", "executions",
)  # fmt: skip
_SUMMED = tuple(
    field
    for field in PartitionCounts.__struct_fields__
    if field not in _NOT_SUMMED and not field.startswith(("oldest", "state_ms", "behind_ms"))
)

_Query = Callable[[GroupId, int, int, int], PeekQuery | LettersQuery]
"""(group, after_seq, limit, bytes_max)."""


class AdminService:
    """Calls of administrators. Every method raises QueratorError, and runs on the event loop of the
    host. `timeout_ms`: maximum time until the call fails with a reason; 0: the usual wait for a
    leader.
    """

    def __init__(
        self,
        *,
        placement: "Placement",
        router: Router,
        directory: QueueDirectory,
        reads: Queries,
        durable: bool,
        clock: "Clock",
    ) -> None:
        self._placement = placement
        self._router = router
        self._directory = directory
        self._reads = reads
        self._durable = durable
        self._clock = clock
        self.changes = ItemChanges(router=router, directory=directory)
        self.schedules = Schedules(
            changes=self.changes, directory=directory, reads=reads, clock=clock
        )
        """Scheduled items: lists, counts and changes."""
        self.items = ItemReads(changes=self.changes, directory=directory, reads=reads)
        """Reads items by id."""
        self.groups = Groups(changes=self.changes, reads=reads)
        """The groups of fair queues."""
        self.keys = Keys(changes=self.changes, reads=reads)
        """The keys of keyed queues."""
        self.live_leases = LiveLeases(router=router, changes=self.changes, reads=reads)
        """Lists live leases, and ends them by hand."""
        self.purging = Purging(changes=self.changes, reads=reads)
        """Removes the waiting items of a queue."""
        self.breakers = Breakers(changes=self.changes)
        """Opens and closes the breakers of a queue by hand."""
        self.recurrences = RecurrenceService(
            router=router, directory=directory, reads=reads, clock=clock
        )
        """Items that a queue produces by itself."""

    # --- queues ------------------------------------------------------------------------------

    async def create_queue(
        self,
        namespace: str,
        name: str,
        settings: QueueSettings,
        given: tuple[str, ...] | None = None,
        *,
        timeout_ms: int = 0,
    ) -> tuple[Queue, bool]:
        """The queue, and whether this call created it. Answered when all partitions are usable.
        `given`: the settings that an existing queue must have, None for all. The default dead queue
        is created when it is missing.
        """
        deadline = deadline_after(timeout_ms)
        check_name(namespace, field="namespace")
        check_name(name, field="queue")
        check_settings(settings, name=name)

        return await self._with_dead_queue(
            namespace,
            lambda: self._placement.create_queue(
                namespace, name, settings, given, timeout_ms=_left_ms(deadline)
            ),
            deadline,
        )

    async def _with_dead_queue(
        self, namespace: str, change: Callable[[], Awaitable[T]], deadline: float | None
    ) -> T:
        """The result of the change. If the default dead queue is missing, it is created, and the
        change is repeated once.
        """
        try:
            return await change()
        except QueratorError as error:
            missing = error.code in (ErrorCode.QUEUE_NOT_FOUND, ErrorCode.UNAVAILABLE)
            place = (error.field, error.value)
            if not missing or place != ("settings.dead_queue", DEAD_QUEUE_DEFAULT):
                raise
        settings = QueueSettings(description="Dead letters of queues that name no other dead queue")
        await self._placement.create_queue(
            namespace, DEAD_QUEUE_DEFAULT, settings, (), timeout_ms=_left_ms(deadline)
        )
        return await change()

    async def get_queue(self, namespace: str, name: str) -> Queue:
        """The queue, in any state."""
        return await self._directory.newly(lambda: self._existing(namespace, name))

    async def list_queues(self, namespace: str, page_size: int, page_token: str) -> QueuePage:
        """Queues of the namespace, ordered by name."""
        limit = page_items(page_size)
        check_name(namespace, field="namespace")
        placed = await self._directory.newly(lambda: self._map_with(namespace))
        scope = f"queues/{namespace}"
        after = paging.decode(scope, page_token).decode() if page_token else ""
        later = [queue for queue in placed.queues(namespace) if queue.name > after]
        more = len(later) > limit
        token = paging.encode(scope, later[limit - 1].name.encode()) if more else ""
        return QueuePage(tuple(later[:limit]), token)

    async def update_queue(
        self,
        namespace: str,
        name: str,
        settings: QueueSettings,
        mask: tuple[str, ...],
        expected_version: int,
        *,
        timeout_ms: int = 0,
    ) -> Queue:
        """Changes the settings that `mask` names (fields of `QueueSettings`); answered when all
        partitions have them. `expected_version` 0: any version. STORAGE_FAILED: a partition is
        stopped, and nothing was changed.
        """
        deadline = deadline_after(timeout_ms)
        check_update_mask(mask)
        check_between(expected_version, 0, 2**63 - 1, field="expected_version")
        queue = await self._directory.find_or_wait(
            lambda: self._existing(namespace, name), deadline=deadline
        )
        changes = {field: getattr(settings, field) for field in mask}
        check_settings(msgspec.structs.replace(queue.settings, **changes), name=name)
        if queue.state is QueueState.ACTIVE and not queue.is_changing:
            # A change in progress can be undone without all partitions.
            await check_running(self._router, queue, deadline=deadline)
        return await self._with_dead_queue(
            namespace,
            lambda: self._placement.update_queue(
                namespace, name, settings, mask, expected_version, timeout_ms=_left_ms(deadline)
            ),
            deadline,
        )

    async def delete_queue(self, namespace: str, name: str, *, timeout_ms: int = 0) -> None:
        """Answered when no node can store items in the queue or lease from it any more; the data is
        deleted in the background. OUTCOME_UNKNOWN: the queue is being deleted, and nodes that could
        still use it have not answered within DELETE_WAIT_MS_MAX.
        """
        deadline = deadline_after(min(timeout_ms or DELETE_WAIT_MS_MAX, DELETE_WAIT_MS_MAX))
        await self._directory.find_or_wait(
            lambda: self._existing(namespace, name), deadline=deadline
        )
        await self._placement.delete_queue(namespace, name, deadline=deadline)

    def _existing(self, namespace: str, name: str) -> Queue:
        check_name(namespace, field="namespace")
        check_name(name, field="queue")
        return existing(self._placement.map, namespace, name)

    def _map_with(self, namespace: str) -> PlacementMap:
        placed = self._placement.map
        if not placed.has_namespace(namespace) and namespace != DEFAULT_NAMESPACE:
            raise namespace_not_found(namespace)
        return placed

    async def _live(self, namespace: str, name: str) -> Queue:
        def look() -> Queue:
            queue = self._existing(namespace, name)
            if queue.state is QueueState.DELETING:
                raise deleting(name)
            return queue

        return await self._directory.find_or_wait(look)

    # --- reading -----------------------------------------------------------------------------

    async def queue_stats(
        self, namespace: str, name: str, *, stale: bool = False, timeout_ms: int = 0
    ) -> QueueCounts:
        """Exact counts, each partition at a time of its own; `stale`: as in any local replica."""
        deadline = deadline_after(timeout_ms)
        queue = await self._live(namespace, name)
        if not stale:
            queue = await self._directory.whole(queue, deadline=deadline)
        queue, stats = await self._stats(queue, stale=stale, deadline=deadline)
        counts = tuple(
            msgspec.structs.replace(each, partition=partition)
            for partition, each in enumerate(stats)
        )
        return QueueCounts(queue, total_of(counts), counts, self._durable)

    async def _stats(
        self, queue: Queue, *, stale: bool, deadline: float | None
    ) -> tuple[Queue, list[PartitionCounts]]:
        """Counts of each partition, and the queue with the partitions that were asked."""
        while True:
            try:
                return queue, await self._reads.stats(queue.groups, stale=stale, deadline=deadline)
            except QueratorError as error:
                if not any(self._directory.has_left(queue, group, error) for group in queue.groups):
                    raise
                queue = self._directory.newest(queue)

    async def peek_items(
        self,
        namespace: str,
        name: str,
        state: int,
        page_size: int,
        page_token: str,
        *,
        after_item_id: str = "",
        stale: bool = False,
        timeout_ms: int = 0,
    ) -> PeekedPage:
        """Items by partition and sequence, without leasing them; `state` 0: any state.
        `after_item_id`: the first page has only items after this one.
        """
        deadline = deadline_after(timeout_ms)
        queue = await self._live(namespace, name)
        if queue.settings.kind is QueueKind.EXECUTIONS:
            raise not_of_items(queue)
        limit = page_items(page_size)
        if state and state not in RowState.__members__.values():
            raise invalid("state", "is not a state of items", value=state)

        def query(group: GroupId, after_seq: int, limit: int, bytes_max: int) -> PeekQuery:
            return PeekQuery(
                group=group,
                state=state,
                after_seq=after_seq,
                limit=limit,
                bytes_max=bytes_max,
                stale=stale,
            )

        scope = f"items/{queue.id}/{state}"
        if after_item_id and not page_token:
            partition, after_seq = parse_item_id(after_item_id, field="after_item_id")
            page_token = paging.encode_item(scope, partition, after_seq)
        return await self._page(
            queue=queue,
            scope=scope,
            limit=limit,
            page_token=page_token,
            query=query,
            deadline=deadline,
            stale=stale,
        )

    async def list_dead_letters(
        self,
        namespace: str,
        name: str,
        page_size: int,
        page_token: str,
        *,
        stale: bool = False,
        timeout_ms: int = 0,
    ) -> PeekedPage:
        """Dead letters of a queue, as items of its dead queue. For a dead queue, and for a queue
        without a dead queue: the letters that it contains itself, from any queue.
        """
        deadline = deadline_after(timeout_ms)
        queue = await self._live(namespace, name)
        if not stale:
            queue = await self._directory.whole(queue, deadline=deadline)
        limit = page_items(page_size)
        origin = name if queue.settings.dead_queue and not self._is_dead_queue(queue) else None
        dead = await self._live(namespace, queue.settings.dead_queue) if origin else queue

        def query(group: GroupId, after_seq: int, limit: int, bytes_max: int) -> LettersQuery:
            return LettersQuery(
                group=group,
                origin_queue=origin,
                after_seq=after_seq,
                limit=limit,
                bytes_max=bytes_max,
                stale=stale,
            )

        scope = f"dead/{queue.id}/{dead.id}"
        return await self._page(
            queue=dead,
            scope=scope,
            limit=limit,
            page_token=page_token,
            query=query,
            deadline=deadline,
            stale=stale,
        )

    async def _page(
        self,
        queue: Queue,
        scope: str,
        limit: int,
        page_token: str,
        query: _Query,
        deadline: float | None,
        *,
        stale: bool,
    ) -> PeekedPage:
        partition, after_seq = paging.decode_item(scope, page_token) if page_token else (0, 0)
        items: list[tuple[int, int, BrowsedItem]] = []
        left_bytes = REPLY_BYTES_DEFAULT
        while partition < len(queue.groups) and len(items) < limit and left_bytes > 0:
            group = queue.groups[partition]
            asked = query(group, after_seq, limit - len(items), left_bytes)
            try:
                page = await self._reads.page(asked, deadline=deadline)
            except QueratorError as error:
                if not self._directory.has_left(queue, group, error):
                    raise
                page = ItemPage((), 0)
            items += [(group, partition, item) for item in page.items]
            left_bytes -= sum(map(reply_bytes, page.items))
            after_seq = page.after_seq
            if after_seq:
                break
            partition += 1
            if partition == len(queue.groups) and not stale:
                # Checked before the reply says that there are no more items.
                queue = await self._directory.whole(queue, deadline=deadline)
        more = partition < len(queue.groups)
        token = paging.encode_item(scope, partition, after_seq) if more else ""
        return PeekedPage(tuple(items), token)

    def _is_dead_queue(self, queue: Queue) -> bool:
        """Whether a queue of the namespace sends its dead letters to this one. A dead queue may
        have a dead queue itself: the default one.
        """
        others = self._directory.map.queues(queue.namespace)
        return any(other.settings.dead_queue == queue.name for other in others)

    # --- time ------------------------------------------------------------------------------

    async def repair_time(
        self, namespace: str, name: str, *, dry_run: bool, timeout_ms: int = 0
    ) -> tuple[PartitionTimeError, ...]:
        """Sets state time to the leaders' clocks in partitions where it is ahead of this node's
        clock, or far behind; returns these partitions. May be repeated.
        """
        deadline = deadline_after(timeout_ms)
        queue = await self._directory.whole(await self._live(namespace, name), deadline=deadline)
        found = []
        queue, counts = await self._stats(queue, stale=False, deadline=deadline)
        for partition, stats in enumerate(counts):
            ahead_ms = -stats.behind_ms or stats.state_ms - self._clock.wall_ms()
            if ahead_ms <= CLOCK_SKEW_MS_MAX and not stats.behind_ms:
                continue
            if not dry_run:
                route = self._router.route(queue.groups[partition])
                try:
                    done = await self._router.call(route, RepairTime(), deadline=deadline)
                except QueratorError as error:
                    if not self._directory.has_left(queue, route.group, error):
                        raise
                    continue
                assert isinstance(done, Done)
                ahead_ms = ahead_ms if stats.behind_ms else done.changed
            found.append(
                PartitionTimeError(
                    partition=partition,
                    ahead_ms=ahead_ms,
                    repaired=not dry_run,
                    leases=stats.leases,
                    scheduled=stats.scheduled,
                    expired=stats.expired,
                )
            )
        return tuple(found)

    # --- damage ----------------------------------------------------------------------------

    async def give_up_damaged(
        self, namespace: str, name: str, *, dry_run: bool, timeout_ms: int = 0
    ) -> tuple[tuple[BlockDamage, ...], int]:
        """Gives up the items of damaged blocks that no replica has whole, except items that are
        leased or in a reader's batch. Returns all blocks that cannot be repaired, in their previous
        state, and the number of items given up. May be repeated.
        """
        deadline = deadline_after(timeout_ms)
        queue = await self._directory.whole(await self._live(namespace, name), deadline=deadline)
        found: list[BlockDamage] = []
        given_up = 0
        for partition, group in enumerate(queue.groups):
            try:
                damaged = await self._reads.damage(group, deadline=deadline)
                found += [msgspec.structs.replace(one, partition=partition) for one in damaged]
                lost = [one.first_seq for one in damaged if one.lost]
                if not dry_run:
                    given_up += await self._give_up(queue, partition, lost, deadline)
            except QueratorError as error:
                if not self._directory.has_left(queue, group, error):
                    raise
        return tuple(found), given_up

    async def _give_up(
        self, queue: Queue, partition: int, lost: Sequence[int], deadline: float | None
    ) -> int:
        """Gives up the blocks' items, and returns their number."""
        given_up = 0
        route = self._router.route(queue.groups[partition])
        for start in range(0, len(lost), GIVE_UP_BLOCKS_MAX):
            blocks = tuple(lost[start : start + GIVE_UP_BLOCKS_MAX])
            done = await self._router.call(route, GiveUp(blocks), deadline=deadline)
            assert isinstance(done, Done)
            given_up += done.changed
            _log.warning(
                "damage.given_up",
                namespace=queue.namespace,
                queue=queue.name,
                partition=partition,
                blocks=blocks,
                items=done.changed,
            )
        return given_up

    # --- redrive -----------------------------------------------------------------------------

    async def redrive_dead_letters(
        self,
        namespace: str,
        name: str,
        item_ids: Sequence[str],
        chosen: LetterFilter = ALL_LETTERS,
        *,
        dry_run: bool = False,
        timeout_ms: int = 0,
    ) -> int:
        """Sends dead letters of the queue home: the named ones (as items of the dead queue), or
        those that `chosen` chooses. With `dry_run` it only counts the latter.

        Returns the number of letters on their way. Letters that are leased or scheduled stay; ids
        that name no letter of the queue are ignored. After an error, call again: no letter is sent
        twice.
        """
        deadline = deadline_after(timeout_ms)
        queue, dead = await self._queue_of_letters(namespace, name, item_ids, deadline)
        if dry_run:
            return await self._count_letters(name, dead, chosen, deadline)
        homes = tuple(
            DeadTarget(name, partition, group)
            for partition, group in enumerate(queue.groups[: queue.producing_partitions])
        )

        async def step(group: GroupId, seqs: tuple[int, ...], after_seq: int) -> tuple[int, int]:
            command = Redrive(name, homes, seqs, after_seq, chosen)
            result = await self._router.call(self._router.route(group), command, deadline=deadline)
            assert isinstance(result, RedriveResult)
            return result.redriven, result.next_seq

        return await self._each_letter(dead, item_ids, step, deadline)

    async def drop_dead_letters(
        self,
        namespace: str,
        name: str,
        item_ids: Sequence[str],
        chosen: LetterFilter = ALL_LETTERS,
        *,
        dry_run: bool = False,
        timeout_ms: int = 0,
    ) -> int:
        """Removes dead letters of the queue, chosen as by `redrive_dead_letters`. Returns their
        number.
        """
        deadline = deadline_after(timeout_ms)
        _, dead = await self._queue_of_letters(namespace, name, item_ids, deadline)
        if dry_run:
            return await self._count_letters(name, dead, chosen, deadline)

        async def step(group: GroupId, seqs: tuple[int, ...], after_seq: int) -> tuple[int, int]:
            command = DropLetters(name, seqs, after_seq, chosen)
            result = await self.changes.remove(group, command, deadline)
            return result.removed, result.next_seq

        return await self._each_letter(dead, item_ids, step, deadline)

    async def _queue_of_letters(
        self, namespace: str, name: str, item_ids: Sequence[str], deadline: float | None
    ) -> tuple[Queue, Queue]:
        """The queue in which the items died, and its dead queue."""
        queue = await self._directory.whole(await self._live(namespace, name), deadline=deadline)
        if not queue.settings.dead_queue:
            raise invalid(
                "queue",
                f"{name} has no dead queue; name the queue in which the items died",
                value=name,
            )
        if item_ids and self._is_dead_queue(queue):
            # A list of dead letters of this queue has ids of items in it, and not of its own dead.
            raise invalid(
                "queue",
                f"{name} is a dead queue itself, whose dead letters cannot be named by ids; name "
                "the queue in which the items died",
                value=name,
            )
        return queue, await self._live(namespace, queue.settings.dead_queue)

    async def _count_letters(
        self, name: str, dead: Queue, chosen: LetterFilter, deadline: float | None
    ) -> int:
        async def step(group: GroupId, _: tuple[int, ...], after_seq: int) -> tuple[int, int]:
            query = LetterCountsQuery(group, name, chosen, after_seq)
            return await self._reads.letters(query, deadline=deadline)

        return await self._each_letter(dead, (), step, deadline)

    async def _each_letter(
        self,
        dead: Queue,
        item_ids: Sequence[str],
        step: Callable[[GroupId, tuple[int, ...], int], Awaitable[tuple[int, int]]],
        deadline: float | None,
    ) -> int:
        """Makes the steps of each partition of the dead queue: with the named items, or with all.
        A step returns a number of letters, and the sequence after which the next one continues.
        """
        if not item_ids:
            each: list[tuple[GroupId, tuple[int, ...]]] = [(group, ()) for group in dead.groups]
        else:
            named = by_partition(item_ids)
            dead, known = await self._directory.reaching(dead, max(named), deadline=deadline)
            check_partitions(item_ids, dead, known=known)
            each = [
                (dead.groups[partition], tuple(seqs)) for partition, seqs in sorted(named.items())
            ]
        letters = 0
        for group, seqs in each:
            after_seq, more = 0, True
            while more:
                asked = step(group, seqs, after_seq)
                found, after_seq = await self.changes.asked(dead, group, (0, 0), asked)
                letters += found
                more = after_seq > 0
        return letters


def _left_ms(deadline: float | None) -> int:
    """Time until the deadline, as a timeout: 0 for none."""
    if deadline is None:
        return 0
    return max(1, int(1000 * (deadline - asyncio.get_running_loop().time())))


def total_of(counts: Sequence[PartitionCounts]) -> PartitionCounts:
    sums = {field: sum(getattr(each, field) for each in counts) for field in _SUMMED}
    return PartitionCounts(
        partition=0,
        applied_index=0,
        oldest_ready_at_ms=_oldest(each.oldest_ready_at_ms for each in counts),
        oldest_batch_at_ms=_oldest(each.oldest_batch_at_ms for each in counts),
        oldest_stage_at_ms=_oldest(each.oldest_stage_at_ms for each in counts),
        oldest_lease_at_ms=_oldest(each.oldest_lease_at_ms for each in counts),
        waits_for=tuple(sorted({one for each in counts for one in each.waits_for})),
        rates=rates.summed([each.rates for each in counts]),
        **sums,
    )


def _oldest(instants: Iterable[int]) -> int:
    return min((at_ms for at_ms in instants if at_ms), default=0)
