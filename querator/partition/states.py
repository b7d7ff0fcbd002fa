"""All transitions of an item, as one table. Callers assert that a transition is in the table.

`table_markdown` prints the table for the docs.
"""

from enum import IntEnum

from querator.partition.rows import RowState


class Event(IntEnum):
    """What a command does to an item."""

    PRODUCE = 1
    PRODUCE_LATER = 2
    MOVE_IN = 3
    LEASE = 4
    COMPLETE = 5
    RETRY = 6
    RETRY_LATER = 7
    RELEASE = 8
    LAPSE = 9
    DUE = 10
    DIE = 11
    DROP = 12
    REDRIVE = 13
    MOVED = 14
    RETURN = 15
    REROUTE = 16
    RESERVE = 17
    ACKNOWLEDGE = 18
    UNRESERVE = 19
    HOLD = 20
    FOLLOW = 21
    GIVE_UP = 22
    RESCHEDULE = 23
    CANCEL = 24
    PRIORITIZE = 25
    GO_HOME = 26
    REPLACE = 46


ABSENT = None
"""State of an item that is not stored: it has not come yet, or it is gone."""

TRANSITIONS: dict[tuple[RowState | None, Event], RowState | None] = {
    (ABSENT, Event.PRODUCE): RowState.READY,
    (ABSENT, Event.PRODUCE_LATER): RowState.SCHEDULED,
    (ABSENT, Event.MOVE_IN): RowState.READY,
    (ABSENT, Event.HOLD): RowState.HELD,
    (RowState.HELD, Event.FOLLOW): RowState.READY,
    (RowState.HELD, Event.DIE): RowState.MOVING,
    (RowState.HELD, Event.DROP): ABSENT,
    (RowState.HELD, Event.GIVE_UP): ABSENT,
    (RowState.HELD, Event.CANCEL): ABSENT,
    (RowState.HELD, Event.REPLACE): ABSENT,
    (RowState.READY, Event.LEASE): RowState.LEASED,
    (RowState.READY, Event.DIE): RowState.MOVING,
    (RowState.READY, Event.DROP): ABSENT,
    (RowState.READY, Event.GIVE_UP): ABSENT,
    (RowState.READY, Event.CANCEL): ABSENT,
    (RowState.READY, Event.REPLACE): ABSENT,
    (RowState.READY, Event.REDRIVE): RowState.MOVING,
    (RowState.LEASED, Event.COMPLETE): ABSENT,
    (RowState.LEASED, Event.RETRY): RowState.READY,
    (RowState.LEASED, Event.RETRY_LATER): RowState.SCHEDULED,
    (RowState.LEASED, Event.RELEASE): RowState.READY,
    (RowState.LEASED, Event.LAPSE): RowState.READY,
    (RowState.LEASED, Event.DIE): RowState.MOVING,
    (RowState.LEASED, Event.DROP): ABSENT,
    (RowState.SCHEDULED, Event.DUE): RowState.READY,
    (RowState.SCHEDULED, Event.HOLD): RowState.HELD,
    (RowState.SCHEDULED, Event.GO_HOME): RowState.MOVING,
    (RowState.SCHEDULED, Event.DIE): RowState.MOVING,
    (RowState.SCHEDULED, Event.DROP): ABSENT,
    (RowState.SCHEDULED, Event.GIVE_UP): ABSENT,
    (RowState.SCHEDULED, Event.RESCHEDULE): RowState.SCHEDULED,
    (RowState.SCHEDULED, Event.CANCEL): ABSENT,
    (RowState.SCHEDULED, Event.REPLACE): ABSENT,
    (RowState.READY, Event.PRIORITIZE): RowState.READY,
    (RowState.HELD, Event.PRIORITIZE): RowState.HELD,
    (RowState.SCHEDULED, Event.PRIORITIZE): RowState.SCHEDULED,
    (RowState.MOVING, Event.MOVED): ABSENT,
    (RowState.MOVING, Event.RETURN): RowState.READY,
    (RowState.MOVING, Event.HOLD): RowState.HELD,
    (RowState.MOVING, Event.REROUTE): RowState.MOVING,
    (RowState.MOVING, Event.GO_HOME): RowState.MOVING,
    (RowState.MOVING, Event.DIE): RowState.MOVING,
    (RowState.MOVING, Event.DROP): ABSENT,
    (RowState.MOVING, Event.GIVE_UP): ABSENT,
    (RowState.READY, Event.RESERVE): RowState.RESERVED,
    (RowState.RESERVED, Event.ACKNOWLEDGE): ABSENT,
    (RowState.RESERVED, Event.UNRESERVE): RowState.READY,
    (RowState.RESERVED, Event.DIE): RowState.MOVING,
    (RowState.RESERVED, Event.DROP): ABSENT,
}

_MEANINGS = {
    Event.PRODUCE: "produced",
    Event.PRODUCE_LATER: "produced with `enqueue_at` later",
    Event.MOVE_IN: "moved here from another queue",
    Event.LEASE: "leased (the attempt is counted)",
    Event.COMPLETE: "completed",
    Event.RETRY: "retried now: to the tail",
    Event.RETRY_LATER: "retried at `retry_at`, or failed: later by the retry policy",
    Event.RELEASE: "released: to its place, attempt given back",
    Event.LAPSE: "its lease lapsed, attempts left: to the tail",
    Event.DUE: "its time has come, or an operator says that it is ready at once",
    Event.DIE: "died: expired, attempts used up, or rejected; there is a dead queue",
    Event.DROP: "died the same way; there is no dead queue",
    Event.REDRIVE: "a dead letter redriven to its queue",
    Event.MOVED: "arrived in the other queue",
    Event.RETURN: "the other queue was deleted",
    Event.HOLD: "ready, but earlier items of its key are in the partition that its slot came from",
    Event.GO_HOME: "ready, but its key has moved: to the partition of its key",
    Event.FOLLOW: "those items have been leased and settled",
    Event.REROUTE: "the partition of the other queue is closing: to another one of that queue",
    Event.GIVE_UP: "given up by an operator: its payload is damaged, and no replica has it whole",
    Event.RESCHEDULE: "moved to another time by an operator",
    Event.CANCEL: "cancelled, purged, or dropped as a dead letter, by an operator",
    Event.REPLACE: "replaced by a later item with its dedup key",
    Event.PRIORITIZE: "given another priority by an operator: a ready item to the tail of it",
    Event.RESERVE: "put into a named batch of a reader",
    Event.ACKNOWLEDGE: "its batch was acknowledged",
    Event.UNRESERVE: "its batch was released: to its place, the attempt is counted",
}


def allowed(state: int | None, event: Event, target: RowState | None) -> bool:
    before = ABSENT if state is None else RowState(state)
    return (before, event) in TRANSITIONS and TRANSITIONS[before, event] is target


def table_markdown() -> str:
    """The table as Markdown, with one line for each transition."""

    def name(state: RowState | None, absent: str) -> str:
        return absent if state is None else state.name

    lines = ["| from | what happens | to |", "|---|---|---|"]
    for (before, event), after in TRANSITIONS.items():
        lines.append(f"| {name(before, '–')} | {_MEANINGS[event]} | {name(after, 'gone')} |")
    return "\n".join(lines) + "\n"
