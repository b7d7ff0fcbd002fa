"""Events of a queue: `Client.events`, which follows all partitions of a queue and resumes.

Each partition has a feed of its own, with positions. A follower asks each partition for what comes
after its position, and the node answers when there is something. So nothing is polled, and a
follower that continues with the positions that it has saved gets each later event once.
"""

import asyncio
import re
from collections import deque
from collections.abc import Collection, Iterable
from datetime import datetime
from types import TracebackType
from typing import Final, Literal, Self, get_args

import msgspec

from querator.client.errors import (
    ErrorCode,
    EventsGone,
    OutcomeUnknown,
    Unavailable,
    make_error,
)
from querator.client.items import instant
from querator.client.transport.channel import Connection
from querator.client.transport.nodes import ATTEMPT_SECONDS, Nodes
from querator.client.values import DeadReason, ItemId
from querator.model.event_calls import EventKind as Kind
from querator.model.event_calls import PausedPart
from querator.model.queues import BreakerState
from querator.v1 import queue_service_pb2 as pb

EventKind = Literal[
    "produced", "arrived", "leased", "completed", "retried", "released", "lapsed", "dead", "moved",
    "returned", "due", "removed", "replaced", "given_up", "rescheduled", "prioritized", "reserved",
    "acknowledged", "redriven", "started", "settings_changed", "paused", "resumed", "resized",
    "breaker_changed", "unknown",
]  # fmt: skip
"""What has happened. The kinds from "started" on are of a partition, the others of items. The last
one stands for kinds that this version of the SDK does not know.
"""
EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)[:-1]
EventsStart = Literal["first", "end"]
"""Where to begin without positions: at the first event that is kept, or behind the last one."""

_WAIT_SECONDS = 20.0
_MARGIN_SECONDS = 2.0
_GATHER_SECONDS = 0.02
"""After an answer with the last events that there were. What comes meanwhile is in one answer."""
_PAGES_MAX = 16
"""Answers that wait for the program. A partition is asked again when its last one has a place."""
_POSITION = re.compile(r"(0|[1-9][0-9]{0,3}):([1-9][0-9]{0,19})\.([1-9][0-9]{0,19})", re.ASCII)
_KINDS: Final[dict[int, EventKind]] = dict(zip(Kind, EVENT_KINDS, strict=True))
_NUMBERS: Final = {name: number for number, name in _KINDS.items()}
_PARTS: Final[dict[int, str]] = {PausedPart.LEASES: "leases", PausedPart.PRODUCERS: "producers"}
_BREAKERS: Final[dict[int, str]] = {state: state.name.lower() for state in BreakerState}
assert all(Kind[name.upper()] == number for name, number in _NUMBERS.items())


class EventPosition(msgspec.Struct, frozen=True, order=True):
    """Where a follower continues in one partition. `feed` names the partition's feed: a partition
    that is removed and created again has another one. As text: `partition:feed.position`.
    """

    partition: int
    feed: int
    position: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.feed}.{self.position}"

    @staticmethod
    def parse(text: str) -> "EventPosition":
        """Raises ValueError."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text[:64]!r} is not a position (partition:feed.position, for example 0:7.1234)"
            )
        return EventPosition(*map(int, match.groups()))


class QueueEvent(msgspec.Struct, frozen=True):
    """Something that has happened to items of one partition, or to the partition. `position` counts
    the events of the partition from 1, without gaps. `ranges` are runs of items: (first sequence,
    count).

    `lease_id`, `client_id` (of "leased"), `attempt`, `produced_at`, `due_at`, `group` (or key) are
    given where they make sense; else None, empty or 0. `reason` and `dropped` (there was no dead
    queue) are those of "dead" items, `priority` that of "prioritized" ones. `part` ("leases" or
    "producers"), `partitions`, `settings_version` and `breaker` ("closed", "open", "half_open") say
    what has changed in the partition.
    """

    queue: str
    partition: int
    feed: int
    position: int
    kind: EventKind
    at: datetime
    ranges: tuple[tuple[int, int], ...] = ()
    lease_id: str = ""
    client_id: str = ""
    attempt: int = 0
    produced_at: datetime | None = None
    due_at: datetime | None = None
    group: str = ""
    reason: DeadReason | None = None
    dropped: bool = False
    priority: int | None = None
    part: str = ""
    partitions: int = 0
    settings_version: int = 0
    breaker: str = ""

    @property
    def count(self) -> int:
        """The number of items."""
        return sum(count for _, count in self.ranges)

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return tuple(
            ItemId(self.partition, seq)
            for first, count in self.ranges
            for seq in range(first, first + count)
        )

    @property
    def next(self) -> EventPosition:
        """Where to continue after this event."""
        return EventPosition(self.partition, self.feed, self.position + 1)


class _Followed:
    """A partition that is followed. `target` is where to end; 0: never. `caught_up`: the last
    answer had all events that there were.
    """

    __slots__ = ("caught_up", "feed", "number", "position", "target")

    def __init__(self, number: int, feed: int = 0, position: int = 0) -> None:
        self.number = number
        self.feed = feed
        self.position = position
        self.target = 0
        self.caught_up = False


_Page = tuple[_Followed, pb.ReadEventsResponse]


class Events:
    """The events of a queue, in the order of their positions within each partition. Use it as an
    `async with` block, and iterate over it.
    """

    def __init__(
        self,
        nodes: Nodes,
        namespace: str,
        queue: str,
        *,
        positions: Iterable[EventPosition | str],
        start: EventsStart,
        kinds: Collection[EventKind] | None,
        follow: bool,
    ) -> None:
        self._nodes = nodes
        self._namespace, self._queue = namespace, queue
        self._start = pb.EVENT_START_END if start == "end" else pb.EVENT_START_FIRST
        self._kinds = _kind_numbers(kinds)
        self._follow = follow
        self._given = _given(positions)
        self._at: dict[int, EventPosition] = {}
        self._pages: asyncio.Queue[_Page | Exception | None] = asyncio.Queue(_PAGES_MAX)
        self._tasks: list[asyncio.Task[None]] = []
        self._live = 0
        self._closed = False
        self._known = 0
        self._buffer: deque[QueueEvent] = deque()
        self._after: tuple[int, EventPosition] | None = None

    @property
    def positions(self) -> tuple[EventPosition, ...]:
        """Where to continue after the events that were yielded, by partition. Save them when the
        last event is handled, and give them to `Client.events` later.
        """
        return tuple(self._at[number] for number in sorted(self._at))

    async def __aenter__(self) -> Self:
        """Finds the partitions, and where to begin in each. Raises `RequestError`."""
        followed = [_Followed(0)]
        await self._begin(followed[0])
        followed += map(_Followed, range(1, self._known))
        # The answer about a partition that has left the queue is its error.
        left = map(_Followed, sorted(self._given.keys() - set(range(self._known))))
        for partition in (*followed[1:], *left):
            await self._begin(partition)
        for partition in followed:
            self._run(partition)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the requests. `positions` stays."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._pages.full():
            self._pages.put_nowait(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> QueueEvent:
        while not self._buffer:
            if self._closed or not self._live:
                raise StopAsyncIteration
            page = await self._pages.get()
            if isinstance(page, tuple):
                self._take(*page)
                continue
            self._live -= 1
            if page is not None:
                raise page
        event = self._buffer.popleft()
        self._at[event.partition] = event.next
        if not self._buffer and self._after is not None:
            number, position = self._after
            self._at[number] = position
        return event

    def _take(self, partition: _Followed, response: pb.ReadEventsResponse) -> None:
        number = partition.number
        self._buffer.extend(
            decode_event(self._queue, number, response.feed, event) for event in response.events
        )
        after = EventPosition(number, response.feed, response.next_position)
        self._after = (number, after)
        if not self._buffer:
            self._at[number] = after

    # --- the partitions ----------------------------------------------------------------------

    async def _begin(self, partition: _Followed) -> None:
        """Asks once, without waiting, so that the follower begins at the position of now."""
        given = self._given.get(partition.number)
        if given is not None:
            partition.feed, partition.position = given.feed, given.position
        response = await self._ask(partition, self._start, max_events=1, wait_seconds=0.0)
        self._known = max(self._known, response.partitions)
        partition.feed = response.feed
        if not partition.position:
            at_end = self._start == pb.EVENT_START_END
            partition.position = response.end_position if at_end else response.first_position
        partition.target = 0 if self._follow else response.end_position
        number = partition.number
        self._at[number] = EventPosition(number, partition.feed, partition.position)

    def _run(self, partition: _Followed) -> None:
        # Owned: `close` cancels and awaits it.
        self._tasks.append(asyncio.get_running_loop().create_task(self._read(partition)))
        self._live += 1

    async def _read(self, partition: _Followed) -> None:
        """Puts the answers of one partition into the queue, and at last its error or None."""
        last: Exception | None = None
        try:
            while await self._next(partition):
                pass
        except Exception as error:  # noqa: BLE001 - raised again where the events are read
            last = error
        await self._pages.put(last)

    async def _next(self, partition: _Followed) -> bool:
        """Asks once. Returns whether to continue."""
        if 0 < partition.target <= partition.position:
            return False
        wait = _WAIT_SECONDS if self._follow else 0.0
        try:
            response = await self._ask(partition, pb.EVENT_START_FIRST, wait_seconds=wait)
        except (Unavailable, OutcomeUnknown):
            if self._nodes.closed or not self._follow:
                raise
            return True
        except EventsGone as error:
            return self._gone(partition, error)
        partition.feed = response.feed
        partition.position = response.next_position
        partition.caught_up = response.next_position == response.end_position
        while self._follow and self._known < response.partitions:
            self._run(_Followed(self._known))
            self._known += 1
        await self._pages.put((partition, response))
        if self._follow and response.events and partition.caught_up:
            await asyncio.sleep(_GATHER_SECONDS)
        return True

    def _gone(self, partition: _Followed, error: EventsGone) -> bool:
        """A partition that has left the queue after all its events were read has ended. One that
        was created again continues at the beginning of its new feed. One that has never answered is
        known to other nodes only: it is asked again when one of them names it.
        """
        unseen = not partition.feed and error.field == "partition"
        if not unseen and (error.field == "position" or not partition.caught_up):
            raise error
        if error.field == "feed":
            partition.feed = partition.position = 0
            partition.caught_up = False
            return True
        self._at.pop(partition.number, None)
        self._known = min(self._known, partition.number)
        return False

    async def _ask(
        self,
        partition: _Followed,
        start: pb.EventStart.ValueType,
        *,
        max_events: int = 0,
        wait_seconds: float,
    ) -> pb.ReadEventsResponse:
        request = pb.ReadEventsRequest(
            namespace=self._namespace,
            queue=self._queue,
            partition=partition.number,
            feed=partition.feed,
            position=partition.position,
            start=start,
            kinds=self._kinds,
            max_events=max_events,
        )
        if wait_seconds:
            request.wait_timeout.FromMilliseconds(int(wait_seconds * 1000))

        async def send(node: Connection, left: float) -> pb.ReadEventsResponse:
            response: pb.ReadEventsResponse = await node.queues.ReadEvents(request, timeout=left)
            return response

        return await self._nodes.call(
            send,
            seconds=wait_seconds + _MARGIN_SECONDS if wait_seconds else None,
            patience=wait_seconds + ATTEMPT_SECONDS,
            changes=False,
        )


def decode_event(queue: str, partition: int, feed: int, event: pb.QueueEvent) -> QueueEvent:
    kind = _KINDS.get(event.kind, "unknown")
    return QueueEvent(
        queue=queue,
        partition=partition,
        feed=feed,
        position=event.position,
        kind=kind,
        at=instant(event.at),
        ranges=tuple((run.first_seq, run.count) for run in event.items),
        lease_id=event.lease_id,
        client_id=event.client_id,
        attempt=event.attempt,
        produced_at=instant(event.produced_at) if event.HasField("produced_at") else None,
        due_at=instant(event.due_at) if event.HasField("due_at") else None,
        group=event.group,
        reason=DeadReason(event.reason) if event.reason else None,
        dropped=event.dropped,
        priority=event.priority if kind == "prioritized" else None,
        part=_PARTS.get(event.part, ""),
        partitions=event.partitions,
        settings_version=event.settings_version,
        breaker=_BREAKERS.get(event.breaker, ""),
    )


def _kind_numbers(kinds: Collection[EventKind] | None) -> list[pb.EventKind.ValueType]:
    """Raises `InvalidArgument`."""
    if kinds is None:
        return []
    for kind in kinds:
        if kind not in _NUMBERS:
            raise make_error(
                ErrorCode.INVALID_ARGUMENT,
                f"kinds: {kind!r} is not a kind of event; there are {', '.join(EVENT_KINDS)}",
                field="kinds",
                value=str(kind),
            )
    if not kinds:
        raise make_error(ErrorCode.INVALID_ARGUMENT, "kinds must not be empty", field="kinds")
    return [pb.EventKind.ValueType(_NUMBERS[kind]) for kind in kinds]


def _given(positions: Iterable[EventPosition | str]) -> dict[int, EventPosition]:
    """Raises `InvalidArgument` for a partition that is there twice, ValueError for a text."""
    found: dict[int, EventPosition] = {}
    for one in positions:
        position = EventPosition.parse(one) if isinstance(one, str) else one
        if found.setdefault(position.partition, position) != position:
            raise make_error(
                ErrorCode.INVALID_ARGUMENT,
                f"positions: partition {position.partition} is there twice",
                field="positions",
                value=str(position),
            )
    return found
