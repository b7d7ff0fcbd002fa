"""Queues of one test, in words of the behaviours: texts in, items out, ids as text.

`Queue` moves items through the door of the test. What only operators do goes through the stubs of
`AdminService`, whatever the door.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from querator.v1 import admin_service_pb2 as admin
from querator.v1 import items_pb2, recurrences_pb2
from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Attributes, Item, LeasedBatch, SeqRange
from tests.conformance.door import CALL_S, Door, Refused
from tests.conformance.stubs import Node, answer

PATIENCE_S = 20
"""How long a lease waits for items that must come."""

LOOK_S = 0.02
"""Pause between two looks at the statistics, or at dead letters."""
PRIORITY_MIN = -(2**31)
DONE, REPEATED, LOST = "done", "repeated", "lost"
UNTOUCHED = "untouched"
"""Not in the answer: what all-or-nothing has left as it was."""


def span(seconds: float) -> Duration:
    made = Duration()
    made.FromMicroseconds(round(seconds * 1_000_000))
    return made


def instant(at_s: float) -> Timestamp:
    made = Timestamp()
    made.FromMicroseconds(round(at_s * 1_000_000))
    return made


def soon(seconds: float) -> Timestamp:
    """The instant that many seconds ahead; negative: ago."""
    return instant(time.time() + seconds)


async def looks() -> AsyncIterator[None]:
    """Yields again and again, as long as a test waits for what it cannot be called for."""
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        yield
        await asyncio.sleep(LOOK_S)


async def refusal(call: Awaitable[object]) -> Refused:
    """What the server says when it refuses the call, which it must."""
    try:
        accepted = await call
    except Refused as refused:
        return refused
    raise AssertionError(f"not refused, but answered: {accepted}")


@dataclass(frozen=True)
class Produced:
    """One item of a produce request."""

    id: str
    """Of the first item, if this one is a duplicate."""
    repeated: bool = False
    duplicate: bool = False
    replaced: str = ""
    """The id of the item that this one has replaced."""


@dataclass(frozen=True)
class Leased:
    """One item under a lease."""

    id: str
    lease_id: str
    item: Item
    attempt: int
    priority: int
    deadline_s: float
    remaining_s: float
    produced_at_s: float
    errors: tuple[str, ...] = ()
    changed: dict[str, str] | None = None
    """Attributes that a retry has put in the place of those of the item."""
    dead: items_pb2.DeadLetter | None = None
    repeated: bool = False
    seq: int = field(default=0)
    checkpoint: bytes = b""

    @property
    def text(self) -> str:
        return self.item.payload.decode()

    @property
    def attributes(self) -> dict[str, str]:
        return dict(self.item.attributes) if self.changed is None else self.changed


def texts(items: Iterable[Leased]) -> list[str]:
    return [item.text for item in items]


def leased_items(batches: Iterable[LeasedBatch]) -> list[Leased]:
    return list(itertools.chain.from_iterable(map(_of_batch, batches)))


def _of_batch(batch: LeasedBatch) -> Iterable[Leased]:
    overlays = {overlay.index: overlay for overlay in batch.overlays}
    for index, item in enumerate(batch.items):
        seq = batch.first_seq + (batch.ordinals[index] if batch.ordinals else index)
        overlay = overlays.get(index, items_pb2.Overlay())
        changed = dict(overlay.attributes.values) if overlay.HasField("attributes") else None
        yield Leased(
            f"{batch.partition}-{seq}",
            batch.lease_id,
            item,
            batch.attempt,
            batch.priority,
            batch.deadline.ToMilliseconds() / 1000,
            batch.lease_remaining.ToMilliseconds() / 1000,
            batch.produced_at.ToMilliseconds() / 1000,
            tuple(overlay.errors),
            changed,
            overlay.dead_letter if overlay.HasField("dead_letter") else None,
            batch.repeated_answer,
            seq,
            overlay.checkpoint,
        )


def under_leases(items: Sequence[Leased]) -> list[pb.LeaseItems]:
    """The items by lease, as complete and retry name them."""
    named: dict[str, pb.LeaseItems] = {}
    for item in items:
        lease = named.setdefault(item.lease_id, pb.LeaseItems(lease_id=item.lease_id))
        lease.ranges.append(SeqRange(first_seq=item.seq, count=1))
    return list(named.values())


def words(items: Sequence[Leased], outcomes: Iterable[pb.LeaseOutcome]) -> list[str]:
    """For each item what became of it: DONE, REPEATED, LOST or UNTOUCHED."""
    said: dict[tuple[str, int], str] = {}
    for outcome in outcomes:
        runs = ((DONE, outcome.done), (REPEATED, outcome.repeated_answer), (LOST, outcome.lost))
        for word, ranges in runs:
            for run in ranges:
                for seq in range(run.first_seq, run.first_seq + run.count):
                    assert (outcome.lease_id, seq) not in said, "one outcome for each item"
                    said[outcome.lease_id, seq] = word
    return [said.get((item.lease_id, item.seq), UNTOUCHED) for item in items]


class Queue:
    """One queue, through one door."""

    def __init__(self, name: str, door: Door, node: Node, namespace: str = "") -> None:
        self.name = name
        self.namespace = namespace
        self.door = door
        self._admin = node.admin
        self._calls = node.queue
        self.named: dict[str, Any] = {"queue": name, "namespace": namespace}

    def through(self, door: Door, node: Node) -> "Queue":
        """The same queue through another node."""
        return Queue(self.name, door, node, self.namespace)

    # -- what clients do

    async def produce_reply(self, *things: str | Item, **fields: Any) -> pb.ProduceResponse:
        items = [Item(payload=one.encode()) if isinstance(one, str) else one for one in things]
        return await self.door.produce(pb.ProduceRequest(items=items, **self.named, **fields))

    async def produce(self, *things: str | Item, **fields: Any) -> list[Produced]:
        """Produces items, or texts as payloads; answers in their order."""
        reply = await self.produce_reply(*things, **fields)
        made: dict[int, Produced] = {}
        for batch in reply.batches:
            known = {one.index: f"{one.partition}-{one.seq}" for one in batch.duplicates}
            made |= {index: Produced(one, False, True) for index, one in known.items()}
            places = batch.indexes or range(len(things))
            gone = {one.index: f"{one.partition}-{one.seq}" for one in batch.replaced}
            stored = [place for place in places if place not in known]
            for number, place in enumerate(stored):
                one = f"{batch.partition}-{batch.first_seq + number}"
                made[place] = Produced(one, batch.repeated_answer, replaced=gone.get(place, ""))
        return [made[place] for place in sorted(made)]

    async def lease(
        self,
        number: int = 1,
        *,
        client: str = "client",
        timeout_s: float | None = None,
        wait_s: float = PATIENCE_S,
        **fields: Any,
    ) -> list[Leased]:
        """Leases exactly this number of items, and waits for them."""
        request = pb.LeaseRequest(
            client_id=client, max_items=number, wait_timeout=span(wait_s), **self.named, **fields
        )
        if timeout_s is not None:
            request.lease_timeout.CopyFrom(span(timeout_s))
        async with asyncio.timeout(wait_s + CALL_S):
            items = leased_items(await self.door.lease(request))
        assert len(items) == number, f"{len(items)} of {number} items: {texts(items)}"
        return items

    async def lease_one(self, **fields: Any) -> Leased:
        [item] = await self.lease(1, **fields)
        return item

    async def lease_nothing(self, wait_s: float = 0.2) -> None:
        """A lease that waits for this long gets nothing."""
        request = pb.LeaseRequest(
            client_id="idle", max_items=100, wait_timeout=span(wait_s), **self.named
        )
        found = leased_items(await self.door.lease(request))
        assert found == [], texts(found)

    async def complete(self, *items: Leased, **fields: Any) -> list[str]:
        request = pb.CompleteRequest(leases=under_leases(items), **self.named, **fields)
        return words(items, (await self.door.complete(request)).outcomes)

    async def retry(
        self,
        *items: Leased,
        at: Timestamp | None = None,
        attributes: dict[str, str] | None = None,
        **fields: Any,
    ) -> list[str]:
        request = pb.RetryRequest(leases=under_leases(items), **self.named, **fields)
        if at is not None:
            request.retry_at.CopyFrom(at)
        if attributes is not None:
            request.attributes.CopyFrom(Attributes(values=attributes))
        return words(items, (await self.door.retry(request)).outcomes)

    async def release(self, *items: Leased, **fields: Any) -> list[str]:
        return await self.retry(*items, count_attempt=False, **fields)

    async def reject(self, *items: Leased, error: str = "") -> list[str]:
        return await self.retry(*items, dead=True, error=error)

    async def extend(
        self, *lease_ids: str, client: str = "", timeout_s: float | None = None
    ) -> list[pb.ExtendOutcome]:
        request = pb.ExtendRequest(lease_ids=lease_ids, client_id=client, **self.named)
        if timeout_s is not None:
            request.lease_timeout.CopyFrom(span(timeout_s))
        return list((await self.door.extend(request)).outcomes)

    async def save(
        self, item: Leased, data: bytes, *, revision: int = 0, timeout_s: float | None = None
    ) -> bool:
        """Saves a checkpoint. Returns whether the lease holds the item; else nothing was saved."""
        [outcome] = await self.save_all([item], [data], revision=revision, timeout_s=timeout_s)
        return not outcome.lost_checkpoints

    async def save_all(
        self,
        items: Sequence[Leased],
        data: Sequence[bytes],
        *,
        revision: int = 0,
        timeout_s: float | None = None,
    ) -> list[pb.ExtendOutcome]:
        """Saves checkpoints in one request: one outcome for each lease."""
        request = pb.ExtendRequest(
            lease_ids=list(dict.fromkeys(item.lease_id for item in items)),
            checkpoints=[
                pb.ItemCheckpoint(lease_id=item.lease_id, seq=item.seq, data=one, revision=revision)
                for item, one in zip(items, data, strict=True)
            ],
            **self.named,
        )
        if timeout_s is not None:
            request.lease_timeout.CopyFrom(span(timeout_s))
        return list((await self.door.extend(request)).outcomes)

    async def answer(self, items: Sequence[Leased], data: Sequence[bytes]) -> list[str]:
        """Completes items, each with a result."""
        results = [
            pb.ItemResult(lease_id=item.lease_id, seq=item.seq, data=one)
            for item, one in zip(items, data, strict=True)
        ]
        return await self.complete(*items, results=results)

    async def ends(self, *ids: str, wait_s: float = 0.0) -> dict[str, pb.EndedItem]:
        """Those of the items that have ended, after one call."""
        request = pb.WaitResultsRequest(item_ids=ids, wait_timeout=span(wait_s), **self.named)
        reply = await answer(self._calls.WaitResults(request, timeout=wait_s + CALL_S))
        return {item.item_id: item for item in reply.items}

    async def end(self, item_id: str) -> pb.EndedItem:
        """Waits until the item has ended."""
        return (await self.ends(item_id, wait_s=PATIENCE_S))[item_id]

    async def events_page(
        self, position: int = 0, *, wait_s: float = 0.0, **fields: Any
    ) -> pb.ReadEventsResponse:
        """One answer about events of a partition; the first one unless another is named."""
        request = pb.ReadEventsRequest(
            position=position, wait_timeout=span(wait_s), **self.named, **fields
        )
        page: pb.ReadEventsResponse = await answer(
            self._calls.ReadEvents(request, timeout=wait_s + CALL_S)
        )
        return page

    async def events(self, position: int = 0, **fields: Any) -> list[pb.QueueEvent]:
        """All events of a partition from a position on, page by page."""
        found: list[pb.QueueEvent] = []
        while True:
            page = await self.events_page(position, **fields)
            found += page.events
            position = page.next_position
            if position == page.end_position:
                return found

    # -- what operators do

    async def _ask(self, method: str, request: Any) -> Any:
        return await answer(getattr(self._admin, method)(request, timeout=CALL_S))

    async def create(self, **settings: Any) -> admin.CreateQueueResponse:
        request = admin.CreateQueueRequest(settings=admin.QueueSettings(**settings), **self.named)
        created: admin.CreateQueueResponse = await self._ask("CreateQueue", request)
        return created

    async def update(self, expected_version: int = 0, **settings: Any) -> admin.Queue:
        request = admin.UpdateQueueRequest(
            settings=admin.QueueSettings(**settings),
            update_mask=FieldMask(paths=list(settings)),
            expected_version=expected_version,
            **self.named,
        )
        queue: admin.Queue = (await self._ask("UpdateQueue", request)).queue
        return queue

    async def update_paths(self, *paths: str) -> None:
        """Names settings to change, whatever they are."""
        request = admin.UpdateQueueRequest(update_mask=FieldMask(paths=paths), **self.named)
        await self._ask("UpdateQueue", request)

    async def get(self) -> admin.Queue:
        queue: admin.Queue = (
            await self._ask("GetQueue", admin.GetQueueRequest(**self.named))
        ).queue
        return queue

    async def delete(self) -> None:
        await self._ask("DeleteQueue", admin.DeleteQueueRequest(**self.named))

    async def stats(self) -> admin.PartitionStats:
        """The sums over all partitions."""
        return (await self.all_stats()).total

    async def all_stats(self, *, stale: bool = False) -> admin.GetQueueStatsResponse:
        request = admin.GetQueueStatsRequest(stale=stale, **self.named)
        stats: admin.GetQueueStatsResponse = await self._ask("GetQueueStats", request)
        return stats

    async def counts(self, *names: str) -> dict[str, int]:
        """The named counts; without names those that are not 0, of items in each state."""
        total = await self.stats()
        if names:
            return {name: getattr(total, name) for name in names}
        states = ("ready", "leased", "scheduled", "moving", "held", "reserved")
        return {name: getattr(total, name) for name in states if getattr(total, name)}

    async def elapse(self, seconds: float) -> None:
        """Lets this time pass in the only partition of the queue: waits for a scheduled item."""
        clock = Item(payload=b"clock", priority=PRIORITY_MIN, enqueue_at=soon(seconds))
        await self.produce(clock)
        [item] = await self.lease(1, client="clock")
        assert item.text == "clock", "nothing is ready meanwhile"
        await self.complete(item)

    async def until(self, **wanted: int) -> None:
        """Waits until the statistics have these counts."""
        last: dict[str, int] = {}
        async for _ in looks():
            last = await self.counts(*wanted)
            if last == wanted:
                return
        raise AssertionError(f"the counts are {last}, and not {wanted}")

    async def peek_page(self, **fields: Any) -> admin.PeekItemsResponse:
        page: admin.PeekItemsResponse = await self._ask(
            "PeekItems", admin.PeekItemsRequest(**self.named, **fields)
        )
        return page

    async def peek(self, **fields: Any) -> list[admin.PeekedItem]:
        """All items, page by page."""
        return await self._pages(self.peek_page, fields)

    async def dead_page(self, **fields: Any) -> admin.ListDeadLettersResponse:
        page: admin.ListDeadLettersResponse = await self._ask(
            "ListDeadLetters", admin.ListDeadLettersRequest(**self.named, **fields)
        )
        return page

    async def dead_letters(self, number: int, **fields: Any) -> list[admin.PeekedItem]:
        """Exactly this number of dead letters of the queue; waits for them."""
        found: list[admin.PeekedItem] = []
        async for _ in looks():
            found = await self._pages(self.dead_page, fields)
            if len(found) >= number:
                break
        assert len(found) == number, f"{len(found)} dead letters, and not {number}"
        return found

    async def scheduled_page(self, **fields: Any) -> admin.ListScheduledItemsResponse:
        page: admin.ListScheduledItemsResponse = await self._ask(
            "ListScheduledItems", admin.ListScheduledItemsRequest(**self.named, **fields)
        )
        return page

    async def scheduled(self, **fields: Any) -> list[admin.PeekedItem]:
        return await self._pages(self.scheduled_page, fields)

    async def _pages(self, page: Any, fields: dict[str, Any]) -> list[admin.PeekedItem]:
        items: list[admin.PeekedItem] = []
        token = ""
        while True:
            got = await page(**fields, page_token=token)
            items += got.items
            if not (token := got.next_page_token):
                return items

    async def count_scheduled(self, **fields: Any) -> admin.CountScheduledItemsResponse:
        counted: admin.CountScheduledItemsResponse = await self._ask(
            "CountScheduledItems", admin.CountScheduledItemsRequest(**self.named, **fields)
        )
        return counted

    async def reschedule(self, *ids: str, **fields: Any) -> admin.RescheduleItemsResponse:
        done: admin.RescheduleItemsResponse = await self._ask(
            "RescheduleItems", admin.RescheduleItemsRequest(item_ids=ids, **self.named, **fields)
        )
        return done

    async def prioritize(self, *ids: str, priority: int) -> admin.PrioritizeItemsResponse:
        done: admin.PrioritizeItemsResponse = await self._ask(
            "PrioritizeItems",
            admin.PrioritizeItemsRequest(item_ids=ids, priority=priority, **self.named),
        )
        return done

    async def cancel(self, *ids: str) -> admin.CancelItemsResponse:
        done: admin.CancelItemsResponse = await self._ask(
            "CancelItems", admin.CancelItemsRequest(item_ids=ids, **self.named)
        )
        return done

    async def purge(self, **fields: Any) -> admin.PurgeQueueResponse:
        done: admin.PurgeQueueResponse = await self._ask(
            "PurgeQueue", admin.PurgeQueueRequest(**self.named, **fields)
        )
        return done

    async def redrive(self, *ids: str, **fields: Any) -> int:
        done = await self._ask(
            "RedriveDeadLetters",
            admin.RedriveDeadLettersRequest(item_ids=ids, **self.named, **fields),
        )
        redriven: int = done.redriven
        return redriven

    async def drop(self, *ids: str, **fields: Any) -> int:
        done = await self._ask(
            "DropDeadLetters", admin.DropDeadLettersRequest(item_ids=ids, **self.named, **fields)
        )
        dropped: int = done.dropped
        return dropped

    async def recurrences(self, method: str, **fields: Any) -> Any:
        """A call about recurrences: `method` without the word, as Create."""
        name = "ListRecurrences" if method == "List" else f"{method}Recurrence"
        request = getattr(recurrences_pb2, f"{name}Request")(**self.named, **fields)
        return await self._ask(name, request)

    async def recur(self, name: str = "tick", **spec: Any) -> recurrences_pb2.Recurrence:
        """Makes a recurrence; with an interval of 1 s unless the specification says otherwise. Its
        first due time is then soon, so that a test waits less.
        """
        if "cron" not in spec:
            phase = span(int((time.time() + 0.2) % 1 * 1000) / 1000)
            every_second = {} if "interval" in spec else {"interval": span(1), "phase": phase}
            spec = {"item": Item(payload=b"{{number}}"), **every_second, **spec}
        request = recurrences_pb2.RecurrenceSpec(**spec)
        made: recurrences_pb2.Recurrence = (
            await self.recurrences("Create", name=name, spec=request)
        ).recurrence
        return made

    async def recurrence(self, name: str = "tick") -> recurrences_pb2.Recurrence:
        found: recurrences_pb2.Recurrence = (await self.recurrences("Get", name=name)).recurrence
        return found
