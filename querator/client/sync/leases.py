"""Leased items for programs without an event loop: settles wait until their effect is durable."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from querator.client.consuming.follow_ups import FollowUps
from querator.client.consuming.leases import LeasedBatch, LeasedItem
from querator.client.values import DeadLetter, Item, ItemId

T = TypeVar("T")


class Runner(Protocol):
    """Runs coroutines and functions on the client's event loop."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
    def call(self, function: Callable[[], None]) -> None: ...


async def _settled(settle: "Callable[[], asyncio.Future[None]]") -> None:
    await settle()


class SyncLeasedItem:
    """One leased item: the item's own fields, and those of its lease. `leased` is the `LeasedItem`.

    `complete`, `retry`, `reject` and `release` return when the effect is durable. They raise
    `LeaseLost` when the lease had ended, and RuntimeError when the item is settled.
    """

    __slots__ = ("_runner", "leased")

    def __init__(self, runner: Runner, leased: LeasedItem) -> None:
        self._runner = runner
        self.leased = leased

    @property
    def payload(self) -> bytes:
        return self.leased.payload

    def text(self) -> str:
        """The payload as UTF-8 text. Raises UndecodablePayload."""
        return self.leased.text()

    def json(self) -> Any:
        """The value of a JSON payload. Raises UndecodablePayload."""
        return self.leased.json()

    @property
    def kind(self) -> str:
        return self.leased.kind

    @property
    def encoding(self) -> str:
        return self.leased.encoding

    @property
    def reference(self) -> str:
        return self.leased.reference

    @property
    def attributes(self) -> Mapping[str, str]:
        return self.leased.attributes

    @property
    def priority(self) -> int:
        """The priority now; see `LeasedItem.priority`."""
        return self.leased.priority

    @property
    def max_attempts(self) -> int | None:
        """How many attempts the item itself allows; see `LeasedItem.max_attempts`."""
        return self.leased.max_attempts

    @property
    def group(self) -> str:
        return self.leased.group

    @property
    def key(self) -> str:
        return self.leased.key

    @property
    def dedup_key(self) -> str:
        return self.leased.dedup_key

    @property
    def item(self) -> Item:
        """The item as it was produced."""
        return self.leased.item

    @property
    def id(self) -> ItemId:
        return self.leased.id

    @property
    def lease_id(self) -> str:
        """Id of the lease. It may settle items from another process."""
        return self.leased.lease_id

    @property
    def queue(self) -> str:
        return self.leased.queue

    @property
    def attempt(self) -> int:
        """How many times the item has been leased; 1 at the first lease."""
        return self.leased.attempt

    @property
    def produced_at(self) -> datetime:
        return self.leased.produced_at

    @property
    def deadline(self) -> datetime:
        """When the lease ends by the leader's clock; see `LeasedBatch.deadline`."""
        return self.leased.deadline

    @property
    def remaining(self) -> timedelta:
        """How long the lease still lasts; see `LeasedBatch.remaining`."""
        return self.leased.remaining

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have ended; see `LeasedItem.lost`."""
        return self.leased.lost

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Origin of the item if it is a dead letter; else None."""
        return self.leased.dead_letter

    @property
    def errors(self) -> tuple[str, ...]:
        """Error texts of the item's last retries, newest last."""
        return self.leased.errors

    @property
    def checkpoint(self) -> bytes:
        """The last checkpoint that was saved with the item; see `LeasedItem.checkpoint`."""
        return self.leased.checkpoint

    @property
    def settled(self) -> bool:
        """Whether the item was completed, retried, rejected or released here."""
        return self.leased.settled

    def __repr__(self) -> str:
        return repr(self.leased)

    def complete(self, *, follow_ups: FollowUps | None = None, result: bytes | None = None) -> None:
        """Completes the item: its work is done, and it is removed. `follow_ups` are produced in the
        same step, and `result` is for a producer that waits; see `LeasedItem.complete`.
        """
        self._runner.run(
            _settled(lambda: self.leased.complete(follow_ups=follow_ups, result=result))
        )

    def retry(
        self,
        *,
        delay: timedelta | None = None,
        retry_at: datetime | None = None,
        error: str = "",
        count_attempt: bool = True,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        follow_ups: FollowUps | None = None,
        clear_checkpoint: bool = False,
    ) -> None:
        """Gives the item back, to be leased again after `delay`, at `retry_at`, or at once. See
        `LeasedItem.retry`.
        """
        self._runner.run(
            _settled(
                lambda: self.leased.retry(
                    delay=delay,
                    retry_at=retry_at,
                    error=error,
                    count_attempt=count_attempt,
                    priority=priority,
                    attributes=attributes,
                    follow_ups=follow_ups,
                    clear_checkpoint=clear_checkpoint,
                )
            )
        )

    def reject(self, error: str = "", *, follow_ups: FollowUps | None = None) -> None:
        """Makes the item a dead letter, with the text `error`."""
        self._runner.run(_settled(lambda: self.leased.reject(error, follow_ups=follow_ups)))

    def release(self) -> None:
        """Gives the item back to its place, as if it had not been leased."""
        self._runner.run(_settled(self.leased.release))

    def extend(self, lease_timeout: timedelta | None = None) -> None:
        """Extends the lease of the whole batch; see `LeasedBatch.extend`. Raises `LeaseLost`."""
        self._runner.run(self.leased.extend(lease_timeout))

    def save_checkpoint(self, data: bytes, lease_timeout: timedelta | None = None) -> None:
        """Saves a checkpoint with the item, and extends the lease. Returns when both are durable.
        See `LeasedItem.save_checkpoint`.
        """
        self._runner.run(self.leased.save_checkpoint(data, lease_timeout))


class SyncLeasedBatch:
    """A run of leased items that were produced together. `leased` is the `LeasedBatch`.

    `complete`, `retry`, `reject` and `release` act on all items that are not settled, and return
    when the effect is durable. They raise `LeaseLost` when the lease had ended, and RuntimeError
    when all items are settled.
    """

    __slots__ = ("_runner", "leased")

    def __init__(self, runner: Runner, leased: LeasedBatch) -> None:
        self._runner = runner
        self.leased = leased

    def __len__(self) -> int:
        return len(self.leased)

    def __iter__(self) -> Iterator[SyncLeasedItem]:
        return (SyncLeasedItem(self._runner, item) for item in self.leased)

    def __getitem__(self, index: int) -> SyncLeasedItem:
        return SyncLeasedItem(self._runner, self.leased[index])

    def __repr__(self) -> str:
        return repr(self.leased)

    @property
    def lease_id(self) -> str:
        return self.leased.lease_id

    @property
    def attempt(self) -> int:
        """How many times these items have been leased; 1 at the first lease."""
        return self.leased.attempt

    def payloads(self) -> list[bytes]:
        """Returns all payloads, without making a `SyncLeasedItem` of each."""
        return self.leased.payloads()

    def complete(self, *, follow_ups: FollowUps | None = None) -> None:
        """Completes all items that are not settled: their work is done, and they are removed.
        `follow_ups` as in `LeasedBatch.complete`.
        """
        self._runner.run(_settled(lambda: self.leased.complete(follow_ups=follow_ups)))

    def retry(
        self,
        *,
        delay: timedelta | None = None,
        retry_at: datetime | None = None,
        error: str = "",
        count_attempt: bool = True,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        follow_ups: FollowUps | None = None,
        clear_checkpoint: bool = False,
    ) -> None:
        """Gives back all items that are not settled, to be leased again after `delay`, at
        `retry_at`, or at once. See `LeasedBatch.retry`.
        """
        self._runner.run(
            _settled(
                lambda: self.leased.retry(
                    delay=delay,
                    retry_at=retry_at,
                    error=error,
                    count_attempt=count_attempt,
                    priority=priority,
                    attributes=attributes,
                    follow_ups=follow_ups,
                    clear_checkpoint=clear_checkpoint,
                )
            )
        )

    def reject(self, error: str = "", *, follow_ups: FollowUps | None = None) -> None:
        """Makes dead letters of all items that are not settled."""
        self._runner.run(_settled(lambda: self.leased.reject(error, follow_ups=follow_ups)))

    def release(self) -> None:
        """Gives all items that are not settled back to their places, as if not leased."""
        self._runner.run(_settled(self.leased.release))

    def extend(self, lease_timeout: timedelta | None = None) -> None:
        """Extends the lease; see `LeasedBatch.extend`. Raises `LeaseLost`."""
        self._runner.run(self.leased.extend(lease_timeout))
