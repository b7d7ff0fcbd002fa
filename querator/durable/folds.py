"""What a called durable function has seen, and the fold that replaces it.

When a called durable function has returned, its result stands in the place of its last event, and
the records of its other events go. Whatever else the code has seen keeps its place, so the order of
all others is the same in a replay, which does not run the function.

Nothing is folded if that would change what others see: if tasks or operations of the call are still
there, or if the event that made the function return was not one of its own (a cancellation). A
signal has no path and keeps its place, so a call whose last event is a signal keeps its records.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from querator.durable.paths import Path
from querator.model.executions import Fold, Note, RecordKind

if TYPE_CHECKING:
    from querator.durable.outgoing_items import OutgoingItems


class CodeEvent:
    """Something that the code was given: a record of the journal, or one on its way there."""

    __slots__ = (
        "cause", "index", "is_apart", "is_gone", "is_sent", "is_signal", "number", "produced",
        "size",
    )  # fmt: skip

    cause: "CodeEvent | None"
    """Of a record that the code has made: the event of the turn in which it did."""
    produced: "OutgoingItems | None"
    """Items that go with the record."""
    is_apart: bool
    """Whether the code was given something between the turn in which it made the record, and the
    record's place: a worker that has run the code again made it there.
    """

    def __init__(
        self, index: int, number: int = 0, size: int = 0, *, is_signal: bool = False
    ) -> None:
        self.index = index
        """Its place in the journal; 0 until that is known."""
        self.number = number
        """A record of this worker: which one, counted from 1 in this machine."""
        self.size = size
        """Bytes of its payload."""
        self.is_signal = is_signal
        self.is_sent = False
        self.is_gone = False
        self.cause = None
        self.produced = None
        self.is_apart = False


class Scope:
    """What a call of a durable function has begun and seen, with the calls in it."""

    __slots__ = ("above", "deep", "events", "is_clean", "open", "path", "tasks")

    def __init__(self, path: Path, above: "Scope | None") -> None:
        self.path = path
        self.above = above
        self.deep: int = 1 if above is None else above.deep + 1
        self.events: list[CodeEvent] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.open = 0
        """Operations that have not ended."""
        self.is_clean = True

    def opened(self) -> None:
        self.open += 1

    def ended(self) -> None:
        self.open -= 1

    def returned(self, last: CodeEvent | None) -> bool:
        """Whether its records may go. `last` is the event that made it return. The events, and what
        is left, count as those of the call above.
        """
        if self.open or not all(task.done() for task in self.tasks):
            self.is_clean = False
        above = self.above
        if above is not None:
            above.events += self.events
            above.is_clean = above.is_clean and self.is_clean
        if not self.is_clean or last is None or last.is_signal:
            return False
        # What the call has produced in this turn comes behind its last event, and is a place as
        # good as that one.
        end = len(self.events)
        while end and self.events[end - 1].cause is last:
            end -= 1
        return end > 0 and self.events[end - 1] is last and len(self.events) > 1


@dataclass(slots=True, kw_only=True)
class PendingFold:
    """The result of a call whose records go when all of them are in the journal."""

    path: Path
    name: str
    site: str
    kind: RecordKind
    payload: bytes
    events: list[CodeEvent]

    @property
    def is_ready(self) -> bool:
        return all(event.index or event.is_gone for event in self.events)

    @property
    def is_unsent(self) -> bool:
        """Whether nothing of the call has left this worker, and all may be left out."""
        return not any(
            event.index or event.is_sent or event.produced is not None for event in self.events
        )

    def made(self) -> Fold | None:
        """None if the place is gone, or is not behind all that goes, or if the call returned before
        what comes before the place.
        """
        *others, place = self.events
        indexes = sorted(event.index for event in others if not event.is_gone)
        if place.is_gone or place.is_apart or not indexes or indexes[-1] >= place.index:
            return None
        note = Note(
            kind=self.kind, path=self.path, name=self.name, site=self.site, payload=self.payload
        )
        return Fold(place.index, note, runs_of(indexes))

    def apply(self) -> tuple[int, int]:
        """The fold is in the journal; returns how many records are gone, and by how many bytes of
        payloads the journal is smaller.
        """
        *others, place = self.events
        gone = [event for event in others if not event.is_gone]
        for event in gone:
            event.is_gone = True
        freed = sum(event.size for event in gone) + place.size - len(self.payload)
        place.size = len(self.payload)
        return len(gone), freed


def runs_of(indexes: list[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return tuple(runs)
