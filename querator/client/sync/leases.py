"""Leased items for programs without an event loop: the verbs wait until their effect is durable."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from querator.client.consuming.leases import LeasedBatch, LeasedItem
from querator.client.values import DeadLetter, Item, ItemId, Priority

T = TypeVar("T")


class Runner(Protocol):
    """Runs what belongs to the client's event loop."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
    def call(self, function: Callable[[], None]) -> None: ...


async def _settled(settle: "Callable[[], asyncio.Future[None]]") -> None:
    await settle()


class SyncLeasedItem:
    """As `LeasedItem`, which `leased` is."""

    __slots__ = ("_runner", "leased")

    def __init__(self, runner: Runner, leased: LeasedItem) -> None:
        self._runner = runner
        self.leased = leased

    @property
    def payload(self) -> bytes:
        return self.leased.payload

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
    def priority(self) -> Priority | None:
        return self.leased.priority

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
        return self.leased.item

    @property
    def id(self) -> ItemId:
        return self.leased.id

    @property
    def lease_id(self) -> str:
        return self.leased.lease_id

    @property
    def queue(self) -> str:
        return self.leased.queue

    @property
    def attempt(self) -> int:
        return self.leased.attempt

    @property
    def produced_at(self) -> datetime:
        return self.leased.produced_at

    @property
    def deadline(self) -> datetime:
        return self.leased.deadline

    @property
    def remaining(self) -> timedelta:
        return self.leased.remaining

    @property
    def dead_letter(self) -> DeadLetter | None:
        return self.leased.dead_letter

    @property
    def errors(self) -> tuple[str, ...]:
        return self.leased.errors

    @property
    def settled(self) -> bool:
        return self.leased.settled

    def __repr__(self) -> str:
        return repr(self.leased)

    def complete(self) -> None:
        self._runner.run(_settled(self.leased.complete))

    def retry(
        self,
        *,
        delay: timedelta | None = None,
        retry_at: datetime | None = None,
        error: str = "",
        count_attempt: bool = True,
    ) -> None:
        self._runner.run(
            _settled(
                lambda: self.leased.retry(
                    delay=delay, retry_at=retry_at, error=error, count_attempt=count_attempt
                )
            )
        )

    def reject(self, error: str = "") -> None:
        self._runner.run(_settled(lambda: self.leased.reject(error)))

    def release(self) -> None:
        self._runner.run(_settled(self.leased.release))

    def extend(self, lease_timeout: timedelta | None = None) -> None:
        self._runner.run(self.leased.extend(lease_timeout))


class SyncLeasedBatch:
    """As `LeasedBatch`, which `leased` is."""

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
        return self.leased.attempt

    def payloads(self) -> list[bytes]:
        return self.leased.payloads()

    def complete(self) -> None:
        self._runner.run(_settled(self.leased.complete))

    def retry(
        self,
        *,
        delay: timedelta | None = None,
        retry_at: datetime | None = None,
        error: str = "",
        count_attempt: bool = True,
    ) -> None:
        self._runner.run(
            _settled(
                lambda: self.leased.retry(
                    delay=delay, retry_at=retry_at, error=error, count_attempt=count_attempt
                )
            )
        )

    def reject(self, error: str = "") -> None:
        self._runner.run(_settled(lambda: self.leased.reject(error)))

    def release(self) -> None:
        self._runner.run(_settled(self.leased.release))

    def extend(self, lease_timeout: timedelta | None = None) -> None:
        self._runner.run(self.leased.extend(lease_timeout))
