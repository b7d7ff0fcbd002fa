"""Recurrences, for programs without an event loop."""

import builtins
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from querator.client.client import Client
from querator.client.options import RecurrenceOptions
from querator.client.recurrences import Recurrence, Recurrences, RecurrenceTime
from querator.client.sync.leases import Runner
from querator.client.sync.loop_thread import listed
from querator.client.values import Item
from querator.model import limits

T = TypeVar("T")


class SyncRecurrences:
    """Calls about recurrences, as `Recurrences`. Made by `SyncClient.recurrences`."""

    def __init__(self, runner: Runner, client: Client) -> None:
        self._runner = runner
        self._client = client

    def create(
        self,
        queue: str,
        name: str,
        item: Item | bytes | str,
        **options: Unpack[RecurrenceOptions],
    ) -> Recurrence:
        """Makes a recurrence. See `Recurrences.create`."""
        return self._run(lambda calls: calls.create(queue, name, item, **options))

    def get(self, queue: str, name: str) -> Recurrence:
        """Returns a recurrence. See `Recurrences.get`."""
        return self._run(lambda calls: calls.get(queue, name))

    def list(self, queue: str) -> Iterator[Recurrence]:
        """Yields the recurrences of a queue. See `Recurrences.list`."""
        return listed(self._runner, lambda: self._client.recurrences.list(queue))

    def update(
        self,
        queue: str,
        name: str,
        item: Item | bytes | str | None = None,
        *,
        expected_revision: int = 0,
        **options: Unpack[RecurrenceOptions],
    ) -> Recurrence:
        """Changes what is given. See `Recurrences.update`."""
        return self._run(
            lambda calls: calls.update(
                queue, name, item, expected_revision=expected_revision, **options
            )
        )

    def pause(self, queue: str, name: str) -> Recurrence:
        """Pauses a recurrence. See `Recurrences.pause`."""
        return self._run(lambda calls: calls.pause(queue, name))

    def resume(self, queue: str, name: str) -> Recurrence:
        """Lets a paused recurrence continue. See `Recurrences.resume`."""
        return self._run(lambda calls: calls.resume(queue, name))

    def delete(self, queue: str, name: str) -> None:
        """Deletes a recurrence. See `Recurrences.delete`."""
        self._run(lambda calls: calls.delete(queue, name))

    def next(
        self,
        queue: str,
        name: str,
        *,
        count: int = limits.RECURRENCE_TIMES_DEFAULT,
        after: datetime | None = None,
    ) -> builtins.list[RecurrenceTime]:
        """Returns the coming runs of a recurrence. See `Recurrences.next`."""
        return self._run(lambda calls: calls.next(queue, name, count=count, after=after))

    def preview(
        self,
        *,
        cron: str | None = None,
        time_zone: str | None = None,
        interval: timedelta | None = None,
        phase: timedelta | None = None,
        count: int = limits.RECURRENCE_TIMES_DEFAULT,
        after: datetime | None = None,
    ) -> builtins.list[RecurrenceTime]:
        """Returns the coming due times of an expression or an interval. See
        `Recurrences.preview`.
        """
        return self._run(
            lambda calls: calls.preview(
                cron=cron,
                time_zone=time_zone,
                interval=interval,
                phase=phase,
                count=count,
                after=after,
            )
        )

    def _run(self, call: Callable[[Recurrences], Coroutine[Any, Any, T]]) -> T:
        async def called() -> T:
            # The connections are made on the client's loop.
            return await call(self._client.recurrences)

        return self._runner.run(called())
