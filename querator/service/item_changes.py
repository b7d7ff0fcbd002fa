"""Changes of items that an operator names: each partition that has some gets one command."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from querator.model.calls import CancelCall, CancelReply, PrioritizeCall, PrioritizeReply
from querator.model.commands import (
    Cancel,
    Done,
    DropLetters,
    ItemsChanged,
    ItemsRemoved,
    Prioritize,
    Purge,
    Ranges,
    Reschedule,
    SetBreaker,
)
from querator.model.errors import QueratorError, invalid
from querator.model.ids import GroupId, PartitionNumber, Seq, check_name, format_item_id
from querator.model.limits import PRIORITY_MAX, PRIORITY_MIN
from querator.model.queues import Queue, QueueKind
from querator.partition import masks
from querator.service.item_ids import by_partition, check_partitions
from querator.service.reading.queries import all_results
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.router import Router, deadline_after
from querator.service.validate import check_between, not_of_items

T = TypeVar("T")
Change = Reschedule | Prioritize | Cancel


class ItemChanges:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, router: Router, directory: QueueDirectory) -> None:
        self._router = router
        self._directory = directory

    async def prioritize(self, call: PrioritizeCall) -> PrioritizeReply:
        """Changes the items, each at most once. After an error some may be changed; call again."""
        deadline = deadline_after(call.timeout_ms)
        if not call.item_ids:
            raise invalid("item_ids", "must not be empty")
        check_between(call.priority, PRIORITY_MIN, PRIORITY_MAX, field="priority", unit="")
        named = by_partition(call.item_ids)
        queue = await self.whole_queue(call.namespace, call.queue, deadline)
        changed, missing = await self.change_named(
            queue, call.item_ids, named, lambda ranges: Prioritize(ranges, call.priority), deadline
        )
        return PrioritizeReply(changed, missing)

    async def cancel(self, call: CancelCall) -> CancelReply:
        """Removes the items that wait. After an error some may be removed; call again."""
        deadline = deadline_after(call.timeout_ms)
        if not call.item_ids:
            raise invalid("item_ids", "must not be empty")
        named = by_partition(call.item_ids)
        queue = await self.whole_queue(call.namespace, call.queue, deadline)
        return CancelReply(*await self.change_named(queue, call.item_ids, named, Cancel, deadline))

    async def change_named(
        self,
        queue: Queue,
        item_ids: Sequence[str],
        named: dict[int, list[int]],
        command: Callable[[Ranges], Change],
        deadline: float | None,
    ) -> tuple[int, tuple[str, ...]]:
        """The number of changed items, and the ids of those that are in no state for the change.
        `named` has the sequences of `item_ids` by partition.
        """
        queue, known = await self._directory.reaching(queue, max(named), deadline=deadline)
        check_partitions(item_ids, queue, known=known)

        async def change(partition: int, seqs: list[int]) -> ItemsChanged:
            ranges = masks.merge_ranges((seq, 1) for seq in seqs)
            group = queue.groups[partition]
            proposed = self.propose(group, command(ranges), deadline)
            return await self.asked(queue, group, ItemsChanged(0, ranges), proposed)

        results = await all_results([change(partition, seqs) for partition, seqs in named.items()])
        missing = {
            format_item_id(PartitionNumber(partition), Seq(first_seq + n))
            for partition, result in zip(named, results, strict=True)
            for first_seq, count in result.missing
            for n in range(count)
        }
        listed = [one for one in dict.fromkeys(item_ids) if one in missing]
        return sum(result.changed for result in results), tuple(listed)

    async def propose(
        self, group: GroupId, command: Change, deadline: float | None
    ) -> ItemsChanged:
        result = await self._router.call(self._router.route(group), command, deadline=deadline)
        assert isinstance(result, ItemsChanged)
        return result

    async def remove(
        self, group: GroupId, command: Purge | DropLetters, deadline: float | None
    ) -> ItemsRemoved:
        result = await self._router.call(self._router.route(group), command, deadline=deadline)
        assert isinstance(result, ItemsRemoved)
        return result

    async def set_breaker(self, group: GroupId, command: SetBreaker, deadline: float | None) -> int:
        result = await self._router.call(self._router.route(group), command, deadline=deadline)
        assert isinstance(result, Done)
        return result.changed

    async def whole_queue(self, namespace: str, name: str, deadline: float | None) -> Queue:
        """The queue with all its partitions, as the leader of the placement group knows it."""
        check_name(namespace, field="namespace")
        check_name(name, field="queue")
        queue = await self._of_items(namespace, name)
        return await self._directory.whole(queue, deadline=deadline)

    async def _of_items(self, namespace: str, name: str) -> Queue:
        queue = await self._directory.find(namespace, name)
        if queue.settings.kind is QueueKind.EXECUTIONS:
            raise not_of_items(queue)
        return queue

    async def queue(
        self, namespace: str, name: str, *, stale: bool, deadline: float | None
    ) -> Queue:
        """As `whole_queue`; `stale`: as this node knows the queue."""
        if not stale:
            return await self.whole_queue(namespace, name, deadline)
        check_name(namespace, field="namespace")
        check_name(name, field="queue")
        return await self._of_items(namespace, name)

    async def asked(self, queue: Queue, group: GroupId, none: T, asked: Awaitable[T]) -> T:
        """The answer of a partition; `none` if it was empty and has left the queue."""
        try:
            return await asked
        except QueratorError as error:
            if not self._directory.has_left(queue, group, error):
                raise
            return none
