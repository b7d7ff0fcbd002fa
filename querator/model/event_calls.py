"""Events of a queue: their kinds, the calls that read them, and the replies.

`wire` decodes the calls and encodes the replies; `service` answers the calls.
"""

from enum import IntEnum

import msgspec

from querator.model.ids import GroupId


class EventKind(IntEnum):
    """What has happened. The wire uses the same numbers. Kinds from STARTED on are of the partition
    itself, the others of items.
    """

    PRODUCED = 1
    ARRIVED = 2
    """From another partition: a dead letter, a redriven item, or a follow-up."""
    LEASED = 3
    COMPLETED = 4
    RETRIED = 5
    """At the cost of an attempt, or for a later time."""
    RELEASED = 6
    LAPSED = 7
    DEAD = 8
    MOVED = 9
    """The item has left for another partition, where it has arrived."""
    RETURNED = 10
    """The target of its move is gone for ever: it is ready again."""
    DUE = 11
    REMOVED = 12
    REPLACED = 13
    GIVEN_UP = 14
    RESCHEDULED = 15
    PRIORITIZED = 16
    RESERVED = 17
    ACKNOWLEDGED = 18
    REDRIVEN = 19
    STARTED = 30
    SETTINGS_CHANGED = 31
    PAUSED = 32
    RESUMED = 33
    RESIZED = 34
    BREAKER_CHANGED = 35


class PausedPart(IntEnum):
    """What is paused or resumed. The wire uses the same numbers."""

    LEASES = 1
    PRODUCERS = 2


class EventStart(IntEnum):
    """Where a follower without a position begins. The wire uses the same numbers."""

    FIRST = 1
    END = 2


class RecordedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event at a position of a feed. `ranges` name the items, which are of one block. Instants
    in ms; 0: none.

    `lease` and `client_id` are given for what happens to or by a lease. `attempt` is that of the
    items. `detail` by kind: DEAD: a `DeadCause`; PRIORITIZED: the priority; SETTINGS_CHANGED: their
    version; PAUSED, RESUMED: a `PausedPart`; RESIZED: the number of partitions; BREAKER_CHANGED: a
    `BreakerState`. `dropped`: there was no dead queue. `flow` names the group or key of the items.
    """

    position: int
    kind: int
    at_ms: int
    ranges: tuple[tuple[int, int], ...] = ()
    lease: int = 0
    client_id: str = ""
    attempt: int = 0
    produced_at_ms: int = 0
    due_ms: int = 0
    detail: int = 0
    flow: bytes = b""
    dropped: bool = False


class ReadEventsCall(msgspec.Struct, frozen=True):
    """Reads events of a partition from `position` on (0: from `start`). `feed` 0: of whatever group
    the partition is now. `kinds` empty: of all kinds. `wait_ms` 0: does not wait.
    """

    namespace: str
    queue: str
    partition: int
    feed: GroupId
    position: int
    start: int
    kinds: frozenset[int]
    events_max: int
    wait_ms: int = 0


class EventsReply(msgspec.Struct, frozen=True):
    """Events of the partition, whose group is `feed`. The next call continues at `next_position`,
    also when events were left out by their kinds. The feed has positions from `first_position` up
    to before `end_position`. The queue has `partitions` in all.
    """

    events: tuple[RecordedEvent, ...]
    partition: int
    feed: GroupId
    next_position: int
    first_position: int
    end_position: int
    partitions: int
