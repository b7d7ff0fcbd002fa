"""Releases leases that were granted to a consumer's former streams and never reached it.

The leader of a partition grants leases, and the node of the stream delivers them. When that node
dies, leases on their way are known to no node: they would lapse late, and at the price of an
attempt. The consumer knows which leases it holds, and the partitions know which leases were granted
to its streams (`model.ids.stream_request_id`). So when the consumer opens its next stream, through
any node, the difference is released without counting an attempt.

Each partition is asked twice, because lease requests of the lost node may still be on their way to
the leader. A partition that has no leader, or does not answer, is asked again until the leases have
lapsed.
"""

import asyncio
from collections.abc import Sequence

from querator import telemetry
from querator.model.calls import SubscribeCall
from querator.model.commands import LeaseItems, Retry
from querator.model.errors import QueratorError
from querator.model.ids import LeaseNumber, parse_lease_id
from querator.model.limits import REQUEST_LEASES_MAX
from querator.partition.queries import LeasePage
from querator.service.routing.forwarder import StreamLeasesQuery
from querator.service.routing.outcomes import Accepted
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

ASKED_AT_ONCE_MAX = 16
"""Number of partitions that one stream asks at the same time."""
ANSWER_S = 2.0
"""Timeout of one answer."""
LATE_S = 1.0
"""Delay before a partition is asked the second time."""
PAUSE_S = 0.1
PAUSE_S_MAX = 1.0
"""Delays before a partition that has not answered is asked again; doubled each time up to the
maximum.
"""

_log = telemetry.logger(__name__)


class FormerStreams:
    """Releases for the consumer of one stream. Created on its event loop, works until `close`."""

    def __init__(
        self,
        call: SubscribeCall,
        routes: Sequence[PartitionRoute],
        *,
        router: Router,
        lease_timeout_ms: int,
    ) -> None:
        self._call = call
        self._routes = routes
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + lease_timeout_ms / 1000
        held = (parse_lease_id(text, field="held_lease_ids") for text in call.held_lease_ids)
        self._held = {(group, lease) for group, _, lease in held}
        self._room = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        # Owned: `close` ends and awaits it.
        self._task = self._loop.create_task(self._release_all())

    async def close(self) -> None:
        """Stops the search; releases that have been sent still take effect."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _release_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for route in self._routes:
                    tasks.create_task(self._release_twice(route))
        except Exception as error:  # noqa: BLE001 - the top of the task: the stream continues
            _log.error("former_streams.failed", client_id=self._call.client_id, exc_info=error)

    async def _release_twice(self, route: PartitionRoute) -> None:
        await self._release(route)
        await asyncio.sleep(LATE_S)
        await self._release(route)

    async def _release(self, route: PartitionRoute) -> None:
        after_lease, pause_s = 0, PAUSE_S
        while (now_s := self._loop.time()) < self._deadline:
            page = await self._page(route, after_lease)
            if page is None:
                await route.pause(min(now_s + pause_s, self._deadline))
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
                continue
            self._give_back(route, page)
            if not page.after_lease:
                return
            after_lease = page.after_lease

    async def _page(self, route: PartitionRoute, after_lease: int) -> LeasePage | None:
        """Asks the partition for one page of leases; None: no answer."""
        if not route.is_reachable:
            return None
        call = self._call
        query = StreamLeasesQuery(
            group=route.group,
            client_id=call.client_id,
            consumer_id=call.consumer_id,
            before=call.stream_number,
            after_lease=after_lease,
            limit=REQUEST_LEASES_MAX,
        )
        async with self._room:
            try:
                deadline = min(self._loop.time() + ANSWER_S, self._deadline)
                page = await self._router.read(route.group, query, deadline=deadline)
            except QueratorError:
                return None
        assert isinstance(page, LeasePage)
        return page

    def _give_back(self, route: PartitionRoute, page: LeasePage) -> None:
        leases = tuple(
            LeaseItems(LeaseNumber(lease))
            for lease in page.leases
            if (route.group, lease) not in self._held
        )
        if leases:
            command = Retry(leases, count_attempt=False)
            self._router.post(route, command, then=_released, patient=True)


def _released(_outcome: Accepted | QueratorError) -> None:
    """Ignores the outcome: the leases of a failed release lapse."""
