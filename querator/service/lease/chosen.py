"""Lease calls for chosen items: by id, or by kind and attributes.

Such a call goes past the dispatcher, so that plain leases cost nothing more. It does not wait.
Partitions are asked one after the other, until the call has enough. By kind and attributes, a look
ahead finds the items first (`partition.look_ahead`), in all partitions at once. Others may lease
them before this call does; then it looks again, up to LOOK_AHEADS_MAX times.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from querator.model.calls import ChosenItems, LeaseCall
from querator.model.commands import Lease, LeaseCaller, LeaseGrant, LeaseResult, Ranges, Refusal
from querator.model.errors import ErrorCode, QueratorError, invalid
from querator.model.limits import LOOK_AHEADS_MAX, REPLY_BYTES_DEFAULT
from querator.model.queues import Queue, QueueKind
from querator.partition import masks
from querator.partition.look_ahead import Sought
from querator.service.item_ids import by_partition
from querator.service.lease.requests import granted_by
from querator.service.lease.waiter import Grant
from querator.service.routing.forwarder import AheadQuery
from querator.service.routing.outcomes import Accepted, each
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

if TYPE_CHECKING:
    from querator.raft.clock import Clock


class ChosenLeases:
    """The lease calls for chosen items of one node. Used on the event loop."""

    def __init__(self, *, router: Router, clock: "Clock") -> None:
        self._router = router
        self._clock = clock

    async def grants(
        self, queue: Queue, call: LeaseCall, release: Callable[[list[Grant]], None]
    ) -> list[Grant]:
        """What the partitions have granted. `release` gives grants back that come when the caller
        is gone. Raises QueratorError when nothing was granted.
        """
        chosen = call.chosen
        assert chosen is not None
        if queue.settings.kind is not QueueKind.PLAIN:
            kind = queue.settings.kind.name.lower()
            field = "item_ids" if chosen.item_ids else "filter"
            message = f"is for plain queues; {queue.name} is {kind}"
            raise invalid(field, message)
        one = _OneCall(self._router, self._clock, queue, call, release)
        try:
            if chosen.item_ids:
                await one.by_id(chosen.item_ids)
            else:
                await one.by_filter(chosen)
        except asyncio.CancelledError:
            release(one.grants)
            raise
        except QueratorError:
            if not one.grants:
                raise
        return one.grants

    async def granted_before(
        self, queue: Queue, call: LeaseCall, release: Callable[[list[Grant]], None]
    ) -> list[Grant]:
        """What all partitions have granted to an earlier attempt of the call, and still lives.
        Raises QueratorError if a partition does not say so.
        """

        async def one(partition: int) -> list[Grant]:
            asked = _OneCall(self._router, self._clock, queue, call, release)
            try:
                await asked.without_more(partition)
            except QueratorError as error:
                if error.code is not ErrorCode.LEASE_ENDED:
                    raise
            return asked.grants

        found = await asyncio.gather(*map(one, range(len(queue.groups))))
        return [grant for grants in found for grant in grants]


class _OneCall:
    def __init__(
        self,
        router: Router,
        clock: "Clock",
        queue: Queue,
        call: LeaseCall,
        release: Callable[[list[Grant]], None],
    ) -> None:
        self._router = router
        self._clock = clock
        self._routes = router.routes(queue)
        self._call = call
        self._release = release
        self._request_id = call.request_id or router.lease_name()
        self._items_left = call.max_items
        self._bytes_left = call.max_bytes or REPLY_BYTES_DEFAULT
        self.grants: list[Grant] = []

    async def by_id(self, item_ids: tuple[str, ...]) -> None:
        named = by_partition(item_ids)
        if self._call.partition is not None:
            # A repeat: the partition knows what it has granted.
            named = {self._call.partition: named.get(self._call.partition, [])}
        for partition, seqs in sorted(named.items()):
            await self._lease(partition, seqs)

    async def by_filter(self, chosen: ChosenItems) -> None:
        sought = Sought(chosen.kinds, chosen.attributes)
        if self._call.partition is not None:
            partitions = [self._call.partition]
            await self.without_more(self._call.partition)
        else:
            partitions = list(range(len(self._routes)))
        for _ in range(LOOK_AHEADS_MAX):
            if self.grants or not partitions:
                return
            found = await self._look_ahead(partitions, sought)
            partitions = [partition for partition, seqs in found.items() if seqs]
            for partition in partitions:
                await self._lease(partition, found[partition])

    async def _look_ahead(
        self, partitions: list[int], sought: Sought
    ) -> dict[int, tuple[int, ...]]:
        """Items by partition. Raises QueratorError if no partition answers."""
        groups = [self._routes[partition].group for partition in partitions]
        answers = await each(
            [
                self._router.read(group, AheadQuery(group, sought, self._call.max_items))
                for group in groups
            ]
        )
        errors = [answer for answer in answers if isinstance(answer, QueratorError)]
        if len(errors) == len(answers):
            raise errors[0]
        return {
            partition: answer
            for partition, answer in zip(partitions, answers, strict=True)
            if not isinstance(answer, QueratorError)
        }

    async def without_more(self, partition: int) -> None:
        """Only what an earlier attempt of the call was granted."""
        await self._lease(partition, [])

    async def _lease(self, partition: int, seqs: list[int] | tuple[int, ...]) -> None:
        """Leases items of a partition, as far as the call has space. Without items, only what an
        earlier attempt of the call was granted.
        """
        if self._items_left <= 0 or self._bytes_left <= 0:
            return
        caller = LeaseCaller(
            self._call.client_id,
            self._request_id,
            self._items_left if seqs else 0,
            self._bytes_left,
            self._call.lease_timeout_ms,
        )
        named = masks.merge_ranges((seq, 1) for seq in seqs)
        for grant in await self._ask(self._routes[partition], caller, named):
            self.grants.append(grant)
            self._items_left -= sum(segment.count for segment in grant.segments)
            self._bytes_left -= sum(segment.bytes for segment in grant.segments)

    async def _ask(self, route: PartitionRoute, caller: LeaseCaller, named: Ranges) -> list[Grant]:
        done: asyncio.Future[list[Grant]] = asyncio.get_running_loop().create_future()
        sent_s = self._clock.monotonic_s()

        def on_repeat() -> None:
            nonlocal sent_s
            sent_s = self._clock.monotonic_s()

        def answered(outcome: Accepted | QueratorError) -> None:
            if isinstance(outcome, QueratorError):
                if not done.done():
                    done.set_exception(outcome)
                return
            assert isinstance(outcome, LeaseResult)
            [answer] = outcome.grants
            if isinstance(answer, Refusal):
                if not done.done():
                    done.set_exception(answer.as_error())
                return
            grants = self._granted(route, answer, outcome, sent_s)
            if done.done():
                self._release(grants)
            else:
                done.set_result(grants)

        self._router.post(
            route, Lease((caller,), named=named), then=answered, patient=True, on_repeat=on_repeat
        )
        return await done

    def _granted(
        self, route: PartitionRoute, answer: LeaseGrant, result: LeaseResult, sent_s: float
    ) -> list[Grant]:
        if not answer.lease:
            return []
        return granted_by(
            route, answer, result, named=bool(self._call.request_id), place=0, sent_s=sent_s
        )
