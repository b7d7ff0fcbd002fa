"""Leased items as a consumer sees them.

A batch is a run of items as the server sent it. The protobuf library parses its message once, and
fields are read from the message on access. A bit mask holds which items are settled.

`complete`, `retry`, `reject` and `release` act at once and return a future. The future is done when
the effect is durable, and fails with `LeaseLost` when the lease had ended. Settles of one round of
the event loop share a frame. An item can be settled once; a second settle raises RuntimeError.

Longer than 500 lines: a batch and its items know each other, and offer the same verbs.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from querator.client.checks import check_checkpoint, check_result, check_span
from querator.client.consuming.follow_ups import FollowUps
from querator.client.consuming.verbs import COMPLETE, RELEASE, Verb, complete_verb, retry_verb
from querator.client.items import decode_dead_letter, decode_item, instant
from querator.client.outcomes import UndecodablePayload
from querator.client.typed import typed
from querator.client.values import DeadLetter, ExtendOutcome, Item, ItemId
from querator.v1 import items_pb2, queue_service_pb2

_LOOKS = 12
"""Looks at a lease that the node extends, in the time of the lease."""
_LOOK_S_MIN = 0.05


class LeaseState:
    """The known state of one lease. `ends` is an instant of the loop's clock; `timeout` is in
    seconds.

    `kept`: the server extends the lease as long as its stream lives, so that only the server knows
    its end. `stream`: number of the stream that delivered it, 0 for a single call. `lost`: the
    lease is known to have ended.
    """

    __slots__ = (
        "_revision", "_watchers", "deadline", "ends", "id", "kept", "lost", "stream", "timeout",
    )  # fmt: skip

    def __init__(self, batch: items_pb2.LeasedBatch, *, now: float, kept: bool, stream: int):
        remaining = batch.lease_remaining
        self.id = batch.lease_id
        self.timeout = remaining.seconds + remaining.nanos / 1e9
        self.ends = now + self.timeout
        self.deadline = instant(batch.deadline)
        self.kept = kept
        self.stream = stream
        self.lost = False
        self._revision = 0
        self._watchers: tuple[Callable[[], None], ...] = ()

    def next_revision(self) -> int:
        """The revision of the next checkpoint: higher than all before, also than those that another
        object for this lease has given out in this process.
        """
        self._revision = max(self._revision + 1, time.monotonic_ns() // 1000)
        return self._revision

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Calls `on_lost` once the lease is known to have ended: now, if it has. On the loop."""
        if self.lost:
            on_lost()
        else:
            self._watchers += (on_lost,)

    def unwatch(self, on_lost: Callable[[], None]) -> None:
        self._watchers = tuple(one for one in self._watchers if one is not on_lost)

    def lose(self) -> None:
        """The lease is known to have ended."""
        self.lost, self.kept, self.ends = True, False, 0.0
        watchers, self._watchers = self._watchers, ()
        for on_lost in watchers:
            on_lost()

    def extended(self, outcome: ExtendOutcome, *, now: float) -> None:
        self.ends = now + outcome.remaining.total_seconds()
        self.deadline = outcome.deadline

    def left_alone(self, now: float) -> None:
        """The stream that kept the lease is gone, and its end is not known. Assumes that the lease
        lasts for another third of its time, in which the consumer extends it.
        """
        if self.kept:
            self.kept = False
            self.ends = max(self.ends, now + self.timeout / 3)


class Holder(Protocol):
    """Sends settles and extends of leases to the server."""

    def settle(
        self, verb: Verb, batch: "LeasedBatch", mask: int, results: Mapping[int, bytes] = ...
    ) -> "asyncio.Future[None]": ...
    def settled_elsewhere(self, batch: "LeasedBatch", mask: int) -> None: ...
    def not_settled(self, batch: "LeasedBatch", mask: int) -> None: ...
    async def extend(
        self,
        lease: LeaseState,
        lease_timeout: timedelta | None,
        checkpoint: queue_service_pb2.ItemCheckpoint | None = None,
    ) -> None: ...
    def now(self) -> float: ...


class LeasedBatch:
    """A run of leased items that were produced together; a sequence of `LeasedItem`.

    `complete`, `retry`, `reject` and `release` act on all items that are not settled, at once. Each
    returns a future that is done when the effect is durable, and fails with `LeaseLost` when the
    lease had ended. They raise RuntimeError when all items are settled.
    """

    __slots__ = (
        "_holder", "_items", "_message", "_saved", "_settled", "count", "counted", "lease", "size",
    )  # fmt: skip

    def __init__(self, message: items_pb2.LeasedBatch, holder: Holder, lease: LeaseState) -> None:
        self._message = message
        self._holder = holder
        self._items = message.items
        self._settled = 0
        self._saved: dict[int, bytes] | None = None
        self.lease = lease
        self.count = len(self._items)
        self.size = sum(map(_wire_size, self._items))
        """Size of the items in bytes, as the server counts it."""
        self.counted = True
        """Whether the consumer counts these items as held."""

    @property
    def lease_id(self) -> str:
        return self.lease.id

    @property
    def queue(self) -> str:
        return self._message.queue

    @property
    def partition(self) -> int:
        return self._message.partition

    @property
    def attempt(self) -> int:
        """How many times these items have been leased; 1 at the first lease."""
        return self._message.attempt

    @property
    def priority(self) -> int:
        """The priority of these items now."""
        return self._message.priority

    @property
    def produced_at(self) -> datetime:
        return instant(self._message.produced_at)

    @property
    def deadline(self) -> datetime:
        """When the lease ends by the leader's clock, as far as it is known here. Extensions that
        the server makes (`auto_extend`) do not change this value.
        """
        return self.lease.deadline

    @property
    def remaining(self) -> timedelta:
        """How long the lease still lasts by this process's monotonic clock, at least zero. As
        `deadline`, it does not include extensions by the server.
        """
        return timedelta(seconds=max(0.0, self.lease.ends - self._holder.now()))

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have ended: another consumer may have the items. False
        proves nothing, because the server decides.
        """
        return self.lease.lost

    @property
    def repeated_answer(self) -> bool:
        """Whether this repeats the answer to a lease request, whose first answer was lost."""
        return self._message.repeated_answer

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator["LeasedItem"]:
        for index, item in enumerate(self._items):
            yield LeasedItem(self, index, item)

    def __getitem__(self, index: int) -> "LeasedItem":
        index = range(self.count)[index]
        return LeasedItem(self, index, self._items[index])

    def __repr__(self) -> str:
        return f"<LeasedBatch of {self.count} in {self.queue!r}, lease {self.lease_id}>"

    def payloads(self) -> list[bytes]:
        """Returns all payloads, without making a `LeasedItem` of each."""
        return [item.payload for item in self._items]

    def seq(self, index: int) -> int:
        ordinals = self._message.ordinals
        return self._message.first_seq + (ordinals[index] if ordinals else index)

    @property
    def left(self) -> int:
        """Mask of the items that are not settled; bit i is item i."""
        return ((1 << self.count) - 1) & ~self._settled

    def complete(self, *, follow_ups: FollowUps | None = None) -> "asyncio.Future[None]":
        """Completes all items that are not settled: their work is done, and they are removed.
        `follow_ups` as in `LeasedItem.complete`, once for all of them.
        """
        verb = COMPLETE if follow_ups is None else complete_verb(follow_ups)
        return self.settle(verb, self.left)

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
    ) -> "asyncio.Future[None]":
        """Gives back all items that are not settled, to be leased again after `delay`, at
        `retry_at`, or at once; `priority` None: with the priority that they have. `attributes` take
        the place of all attributes that the items have; None: they keep them. Raises ValueError for
        `delay` with `retry_at`, a negative `delay`, a `retry_at` without a time zone, times more
        than 10 years ahead, a priority outside of 32 bits, more than 64 attributes, and attributes
        of more than 8 KiB. `follow_ups` as in `complete`. `clear_checkpoint`: the items lose their
        checkpoints, so that the next attempts begin from the start.
        """
        verb = retry_verb(
            delay=delay,
            retry_at=retry_at,
            error=error,
            count_attempt=count_attempt,
            priority=priority,
            attributes=attributes,
            follow_ups=follow_ups,
            clear_checkpoint=clear_checkpoint,
        )
        return self.settle(verb, self.left)

    def reject(
        self, error: str = "", *, follow_ups: FollowUps | None = None
    ) -> "asyncio.Future[None]":
        """Makes dead letters of all items that are not settled."""
        return self.settle(retry_verb(error=error, dead=True, follow_ups=follow_ups), self.left)

    def release(self) -> "asyncio.Future[None]":
        """Gives all items that are not settled back to their places, as if not leased."""
        return self.settle(RELEASE, self.left)

    @typed
    async def extend(self, lease_timeout: timedelta | None = None) -> None:
        """Extends the lease so that it ends `lease_timeout` from now (None: the items' own, or the
        queue's), never earlier than before. Raises `LeaseLost`.
        """
        await self._holder.extend(self.lease, lease_timeout)

    def checkpoint(self, index: int) -> bytes:
        """The checkpoint of an item: the last one saved here, or else the delivered one."""
        if self._saved is not None and index in self._saved:
            return self._saved[index]
        overlay = self.overlay(index)
        return b"" if overlay is None else overlay.checkpoint

    async def save_checkpoint(
        self, index: int, data: bytes, lease_timeout: timedelta | None
    ) -> None:
        """As `LeasedItem.save_checkpoint`."""
        check_checkpoint("data", data)
        message = queue_service_pb2.ItemCheckpoint(
            lease_id=self.lease.id,
            seq=self.seq(index),
            data=data,
            revision=self.lease.next_revision(),
        )
        await self._holder.extend(self.lease, lease_timeout, message)
        if self._saved is None:
            self._saved = {}
        self._saved[index] = data

    def settle(
        self, verb: Verb, mask: int, results: Mapping[int, bytes] | None = None
    ) -> "asyncio.Future[None]":
        """`results` are those of the items, by sequence."""
        if not mask or self._settled & mask:
            raise RuntimeError(f"settled already: {self!r}")
        self._settled |= mask
        if results is None:
            return self._holder.settle(verb, self, mask)
        return self._holder.settle(verb, self, mask, results)

    def not_settled(self, mask: int) -> None:
        """Takes back that items were settled: their settle was refused."""
        self._settled &= ~mask
        self._holder.not_settled(self, mask)

    def settled_elsewhere(self, mask: int) -> None:
        """Marks items that were settled by a separate call."""
        mask &= self.left
        if mask:
            self._settled |= mask
            self._holder.settled_elsewhere(self, mask)

    def is_settled(self, index: int) -> bool:
        return bool(self._settled >> index & 1)

    def ranges(self, mask: int) -> list[items_pb2.SeqRange]:
        """The sequences of the items in `mask`, as runs."""
        if mask == (1 << self.count) - 1 and not self._message.ordinals:
            return [items_pb2.SeqRange(first_seq=self._message.first_seq, count=self.count)]
        runs: list[items_pb2.SeqRange] = []
        following = -1
        for index in _bits(mask):
            seq = self.seq(index)
            if seq == following:
                runs[-1].count += 1
            else:
                runs.append(items_pb2.SeqRange(first_seq=seq, count=1))
            following = seq + 1
        return runs

    def lost_items(self, mask: int, lost: frozenset[int]) -> tuple[ItemId, ...]:
        """The items in `mask` whose sequences are in `lost`."""
        seqs = (self.seq(index) for index in _bits(mask))
        return tuple(ItemId(self.partition, seq) for seq in seqs if seq in lost)

    def overlay(self, index: int) -> items_pb2.Overlay | None:
        for overlay in self._message.overlays:
            if overlay.index == index:
                return overlay
        return None


def _wire_size(item: items_pb2.Item) -> int:
    """Size in bytes of an item with its tag (one byte) and its length."""
    size = item.ByteSize()
    if size < 0x4000:
        return size + (2 if size < 0x80 else 3)
    return size + (4 if size < 0x20_0000 else 5)


def _bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class LeasedItem:
    """One leased item: the item's own fields, and those of its lease.

    `complete`, `retry`, `reject` and `release` act at once. Each returns a future that is done when
    the effect is durable, and fails with `LeaseLost` when the lease had ended. They raise
    RuntimeError when the item is settled.
    """

    __slots__ = ("_batch", "_index", "_message")

    def __init__(self, batch: LeasedBatch, index: int, message: items_pb2.Item) -> None:
        self._batch = batch
        self._index = index
        self._message = message

    @property
    def payload(self) -> bytes:
        return self._message.payload

    def text(self) -> str:
        """The payload as UTF-8 text. Raises UndecodablePayload."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise UndecodablePayload(f"{self._payload_name()} is not UTF-8: {error}") from error

    def json(self) -> Any:
        """The value of a JSON payload. Raises UndecodablePayload."""
        try:
            return msgspec.json.decode(self.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UndecodablePayload(f"{self._payload_name()} is not JSON: {error}") from error

    def _payload_name(self) -> str:
        return f"the payload of item {self.id} ({len(self.payload):,} bytes)"

    @property
    def kind(self) -> str:
        return self._message.kind

    @property
    def encoding(self) -> str:
        return self._message.encoding

    @property
    def reference(self) -> str:
        return self._message.reference

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes now; `item.attributes` are those with which the item was produced."""
        overlay = self._batch.overlay(self._index)
        if overlay is not None and overlay.HasField("attributes"):
            return dict(overlay.attributes.values)
        return dict(self._message.attributes)

    @property
    def priority(self) -> int:
        """The priority now; `item.priority` is the one with which the item was produced."""
        return self._batch.priority

    @property
    def max_attempts(self) -> int | None:
        """How many attempts the item itself allows (0: no limit); None: those of its queue decide,
        as they do for a dead letter.
        """
        message = self._message
        if not message.HasField("max_attempts") or self.dead_letter is not None:
            return None
        return message.max_attempts

    @property
    def group(self) -> str:
        return self._message.group

    @property
    def key(self) -> str:
        return self._message.key

    @property
    def dedup_key(self) -> str:
        return self._message.dedup_key

    @property
    def item(self) -> Item:
        """The item as it was produced."""
        return decode_item(self._message)

    @property
    def id(self) -> ItemId:
        return ItemId(self._batch.partition, self._batch.seq(self._index))

    @property
    def batch(self) -> LeasedBatch:
        """The batch that the item was delivered in."""
        return self._batch

    @property
    def lease_id(self) -> str:
        """Id of the lease, which the batch shares. It may settle items from another process."""
        return self._batch.lease.id

    @property
    def queue(self) -> str:
        return self._batch.queue

    @property
    def attempt(self) -> int:
        """How many times the item has been leased; 1 at the first lease."""
        return self._batch.attempt

    @property
    def produced_at(self) -> datetime:
        return self._batch.produced_at

    @property
    def deadline(self) -> datetime:
        """When the lease ends by the leader's clock; see `LeasedBatch.deadline`."""
        return self._batch.deadline

    @property
    def remaining(self) -> timedelta:
        """How long the lease still lasts; see `LeasedBatch.remaining`."""
        return self._batch.remaining

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have ended; see `LeasedBatch.lost`."""
        return self._batch.lost

    async def until_lost(self) -> None:
        """Returns as soon as the lease is known to have ended. Never, if it does not end before the
        item is settled: run it beside the work, and cancel it.
        """
        gone = asyncio.Event()
        lease, on_lost = self._batch.lease, gone.set
        lease.watch(on_lost)
        try:
            await gone.wait()
        finally:
            lease.unwatch(on_lost)

    @typed
    async def until_ending(self, before: timedelta) -> None:
        """Returns when the lease ends in `before` or less, as far as it is known here, or as soon
        as it is known to have ended. An extension puts the moment off. While the node extends the
        lease (`auto_extend`), there is no such moment, until the connection is lost. As
        `until_lost`, run it beside the work, and cancel it.
        """
        check_span("before", before)
        gone = asyncio.Event()
        lease, on_lost = self._batch.lease, gone.set
        lease.watch(on_lost)
        try:
            while not gone.is_set():
                left_s = (self._batch.remaining - before).total_seconds()
                if not lease.kept and left_s <= 0:
                    return
                # What happens to the connection, and extensions, are seen at the next look.
                look_s = max(lease.timeout / _LOOKS, _LOOK_S_MIN)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(look_s if lease.kept else left_s):
                        await gone.wait()
        finally:
            lease.unwatch(on_lost)

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Origin of the item if it is a dead letter; else None."""
        overlay = self._batch.overlay(self._index)
        if overlay is None or not overlay.HasField("dead_letter"):
            return None
        return decode_dead_letter(overlay.dead_letter)

    @property
    def errors(self) -> tuple[str, ...]:
        """Error texts of the item's last retries, newest last."""
        overlay = self._batch.overlay(self._index)
        return () if overlay is None else tuple(overlay.errors)

    @property
    def checkpoint(self) -> bytes:
        """The last checkpoint that was saved with the item, here or in an earlier attempt; empty:
        none was, or it was cleared.
        """
        return self._batch.checkpoint(self._index)

    @property
    def index(self) -> int:
        """Position of the item in its batch."""
        return self._index

    @property
    def settled(self) -> bool:
        """Whether the item was completed, retried, rejected or released here."""
        return self._batch.is_settled(self._index)

    def __repr__(self) -> str:
        return f"<LeasedItem {self.id} of {self.queue!r}, attempt {self.attempt}>"

    def complete(
        self, *, follow_ups: FollowUps | None = None, result: bytes | None = None
    ) -> "asyncio.Future[None]":
        """Completes the item: its work is done, and it is removed.

        `result`: at most 1 MiB for the producer that waits for it (`Client.produce_and_wait`). If
        the item was produced without `keep_result`, it is dropped. None: an empty one. Raises
        ValueError for a longer one, and for `result` with `follow_ups`.

        `follow_ups` are items by the name of their queue. They are produced in the same step:
        exactly once if the item is completed, else not at all. When they are refused (no such
        queue, too large, queue full), the future fails, and the item is not settled. Raises
        TypeError and ValueError as `Client.produce`.
        """
        if result is not None:
            if follow_ups is not None:
                raise ValueError("give either result or follow_ups")
            check_result("result", result)
            seq = self._batch.seq(self._index)
            return self._batch.settle(COMPLETE, 1 << self._index, {seq: result})
        verb = COMPLETE if follow_ups is None else complete_verb(follow_ups)
        return self._batch.settle(verb, 1 << self._index)

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
    ) -> "asyncio.Future[None]":
        """Gives the item back, to be leased again after `delay`, at `retry_at`, or at once. `error`
        stays with the item. `priority` None: it keeps its priority. `attributes` take the place of
        all that the item has: `{**item.attributes, "page": "7"}` keeps the others.
        `clear_checkpoint`: it loses its checkpoint. Raises ValueError as `LeasedBatch.retry`.
        """
        verb = retry_verb(
            delay=delay,
            retry_at=retry_at,
            error=error,
            count_attempt=count_attempt,
            priority=priority,
            attributes=attributes,
            follow_ups=follow_ups,
            clear_checkpoint=clear_checkpoint,
        )
        return self._batch.settle(verb, 1 << self._index)

    def reject(
        self, error: str = "", *, follow_ups: FollowUps | None = None
    ) -> "asyncio.Future[None]":
        """Makes the item a dead letter, with the text `error`."""
        verb = retry_verb(error=error, dead=True, follow_ups=follow_ups)
        return self._batch.settle(verb, 1 << self._index)

    def release(self) -> "asyncio.Future[None]":
        """Gives the item back to its place, as if it had not been leased."""
        return self._batch.settle(RELEASE, 1 << self._index)

    @typed
    async def extend(self, lease_timeout: timedelta | None = None) -> None:
        """Extends the lease of the whole batch; see `LeasedBatch.extend`. Raises `LeaseLost`."""
        await self._batch.extend(lease_timeout)

    @typed
    async def save_checkpoint(self, data: bytes, lease_timeout: timedelta | None = None) -> None:
        """Saves a checkpoint with the item, at most 64 KiB, in place of the last one, and extends
        the lease in the same step, as `extend` does. Returns when both are durable. The next
        attempt, of any consumer, finds it in `checkpoint`; empty: it finds none.

        It stays with the item through lapses, retries and releases, as a dead letter, and when that
        is redriven; `retry(clear_checkpoint=True)` removes it. Raises `LeaseLost` if the lease had
        ended or the item was settled: nothing is saved. Raises ValueError for more than 64 KiB.
        """
        await self._batch.save_checkpoint(self._index, data, lease_timeout)


def masks_left(
    items: Iterable[LeasedItem], batches: Iterable[LeasedBatch]
) -> dict[LeasedBatch, int]:
    """Masks of those of the items, and of the items of the batches, that are not settled."""
    masks: dict[LeasedBatch, int] = {}
    for item in items:
        masks[item.batch] = masks.get(item.batch, 0) | 1 << item.index
    masks = {batch: mask & batch.left for batch, mask in masks.items()}
    masks.update((batch, batch.left) for batch in batches)
    return {batch: mask for batch, mask in masks.items() if mask}


def retrieve_exception(future: "asyncio.Future[None]") -> None:
    """Retrieves the exception, which no caller waits for: the lease may have ended."""
    if not future.cancelled():
        future.exception()
