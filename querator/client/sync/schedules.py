"""Scheduled items, for programs without an event loop."""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from querator.client.client import Client
from querator.client.options import ChangeOptions, CountOptions, ListOptions
from querator.client.schedules import Rescheduled, ScheduleDensity, ScheduledItems
from querator.client.sync.leases import Runner
from querator.client.sync.loop_thread import listed
from querator.client.values import ItemId, PeekedItem

T = TypeVar("T")


class SyncScheduledItems:
    """Calls about scheduled items, as `ScheduledItems`. Made by `SyncClient.schedules`."""

    def __init__(self, runner: Runner, client: Client) -> None:
        self._runner = runner
        self._client = client

    def list(self, queue: str, **options: Unpack[ListOptions]) -> Iterator[PeekedItem]:
        """Yields scheduled items by due time. See `ScheduledItems.list`."""
        return listed(self._runner, lambda: self._client.schedules.list(queue, **options))

    def count(self, queue: str, **options: Unpack[CountOptions]) -> ScheduleDensity:
        """Counts scheduled items by due time. See `ScheduledItems.count`."""
        return self._run(lambda schedules: schedules.count(queue, **options))

    def move(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str] | None = None,
        *,
        to: datetime | None = None,
        by: timedelta | None = None,
        **options: Unpack[ChangeOptions],
    ) -> Rescheduled:
        """Makes scheduled items due at the instant `to`, or later `by` a time. See
        `ScheduledItems.move`.
        """
        return self._run(lambda schedules: schedules.move(queue, item_ids, to=to, by=by, **options))

    def run_now(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str] | None = None,
        **options: Unpack[ChangeOptions],
    ) -> Rescheduled:
        """Makes scheduled items ready at once. See `ScheduledItems.run_now`."""
        return self._run(lambda schedules: schedules.run_now(queue, item_ids, **options))

    def cancel(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str] | None = None,
        **options: Unpack[ChangeOptions],
    ) -> Rescheduled:
        """Drops scheduled items and counts them. See `ScheduledItems.cancel`."""
        return self._run(lambda schedules: schedules.cancel(queue, item_ids, **options))

    def _run(self, call: Callable[[ScheduledItems], Coroutine[Any, Any, T]]) -> T:
        async def called() -> T:
            # The connections are made on the client's loop.
            return await call(self._client.schedules)

        return self._runner.run(called())
