"""The queue of a lock: its settings, its tokens, and their holders.

There are never more tokens than permits, whichever clients make them: the limit of the queue's
items is the number of permits, and the partition checks it when a token is stored. All tokens are
in partition 0, also if an operator gives the queue more partitions: their key has slot 0. Each has
a dedup key, so that clients which make them at the same time make the same ones. Tokens that were
purged are made again by the next client that waits for one.

A token cannot die: its attempts are unlimited, it does not expire, and there is no dead queue.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from querator.client.errors import LockMismatch, NotFound, QueueFull
from querator.client.locks.calls import LockCalls
from querator.client.locks.fencing import fencing_token
from querator.client.values import Item, ItemState, PeekedItem, QueueInfo
from querator.model.errors import QueratorError
from querator.model.ids import check_name
from querator.model.limits import LOCK_PERMITS_MAX
from querator.v1 import items_pb2

TOKEN_KIND: Final = "querator.token"
TOKEN_KEY: Final = "lock-tokens-6436"
"""Its slot is 0, which belongs to partition 0 for every number of partitions."""
_SETTINGS: Final[Mapping[str, Any]] = {
    "kind": "plain",
    "max_attempts": 0,
    "dead_queue": "",
    "dedup_until": "done",
    "expire_timeout": None,
    "retry_delay": None,
    "breaker": None,
}
"""What the queue of a lock must have. None: the default, which is: not at all."""
_FILLS_MAX: Final = 3
"""How often missing tokens are looked for again because other clients make some, too."""


class LockHolder(msgspec.Struct, frozen=True):
    """The holder of a lock, or of a permit of a semaphore. `holder`: the name with which it was
    acquired. `token`: its fencing token. `deadline`: when its lease ends unless it is extended.
    """

    holder: str
    token: int
    since: datetime
    deadline: datetime


class TokenQueue:
    """The tokens of the lock `name`, in the queue `prefix` + `name`. Raises ValueError for a name
    that is none, or a number of permits out of range.
    """

    def __init__(self, calls: LockCalls, prefix: str, name: str, *, permits: int) -> None:
        if not 1 <= permits <= LOCK_PERMITS_MAX:
            raise ValueError(f"permits is {permits}; it must be from 1 to {LOCK_PERMITS_MAX}")
        try:
            self.queue = check_name(prefix + check_name(name, field="name"), field="name")
        except QueratorError as error:
            raise ValueError(error.message) from None
        self.name = name
        self.permits = permits
        self.calls = calls

    async def open(self) -> None:
        """Makes the queue and its tokens, unless this client has seen them. Raises `LockMismatch`
        when there is a queue of this name that is none of such a lock.
        """
        if (self.queue, self.permits) in self.calls.seen:
            return
        wanted = {name: value for name, value in _SETTINGS.items() if value is not None}
        wanted["partition_items_max"] = self.permits
        wanted["description"] = f"tokens of a lock with {self.permits} permits"
        info = await self.calls.admin.create(self.queue, wanted, keep=True)
        if info.created:
            await self.calls.produce(self.queue, list(map(_token, range(self.permits))))
        else:
            self._check(info)
        self.calls.seen.add((self.queue, self.permits))

    def forget(self) -> None:
        """The queue was deleted: `open` makes it again."""
        self.calls.seen.discard((self.queue, self.permits))

    async def fill(self) -> bool:
        """Makes the tokens that are missing; returns whether there were some. Makes the queue if it
        was deleted. Raises `LockMismatch` as `open`.
        """
        try:
            self._check(await self.calls.admin.get(self.queue))
        except NotFound:
            self.forget()
            await self.open()
            return True
        for _ in range(_FILLS_MAX):
            there = [item async for item in self._items()]
            missing = self.permits - len(there)
            if missing <= 0:
                return False
            keys = {item.item.dedup_key for item in there}
            numbers = (number for number in range(2 * self.permits) if _key(number) not in keys)
            try:
                made = [_token(number) for _, number in zip(range(missing), numbers, strict=False)]
                await self.calls.produce(self.queue, made)
            except QueueFull:
                # Another client has made some of them meanwhile, with other numbers.
                continue
            return True
        return False

    async def holders(self) -> list[LockHolder]:
        """The holders of tokens, the earliest first. Empty if the lock was never used."""
        try:
            found = [item async for item in self._items(ItemState.LEASED)]
        except NotFound:
            return []
        held = [
            LockHolder(
                holder=item.client_id,
                token=fencing_token(item.lease_id),
                since=item.leased_at,
                deadline=item.deadline,
            )
            for item in found
            if item.leased_at is not None and item.deadline is not None
        ]
        return sorted(held, key=lambda one: one.token)

    async def count(self) -> int:
        """Number of tokens that are there, free or not."""
        return len([item async for item in self._items()])

    def check_tokens(self, batches: list[items_pb2.LeasedBatch]) -> None:
        """Raises `LockMismatch` when an item that was leased is no token."""
        for batch in batches:
            for item in batch.items:
                if item.kind != TOKEN_KIND:
                    raise LockMismatch(
                        f"queue {self.queue} has items that are no tokens of a lock, for example "
                        f"{batch.partition}-{batch.first_seq}: cancel or purge them"
                    )

    def _items(self, state: ItemState | None = None) -> AsyncIterator[PeekedItem]:
        return self.calls.admin.peek(self.queue, state=state, limit=None, after=None, stale=False)

    def _check(self, info: QueueInfo) -> None:
        for name, wanted in _SETTINGS.items():
            there = getattr(info, name)
            if there != wanted:
                raise LockMismatch(
                    f"queue {self.queue} is none of a lock: its {name} is {there or 'none'}, and "
                    f"must be {wanted or 'none'}"
                )
        if info.partition_items_max != self.permits:
            raise LockMismatch(
                f"{self.queue} has {info.partition_items_max} permits, and not {self.permits}; "
                "Semaphore.resize changes their number"
            )


def _key(number: int) -> str:
    return f"token-{number}"


def _token(number: int) -> Item:
    return Item(b"", kind=TOKEN_KIND, key=TOKEN_KEY, dedup_key=_key(number), max_attempts=0)
