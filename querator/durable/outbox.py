"""What a machine has for the partition, in the order in which its code was given it."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from querator.durable.folds import CodeEvent, PendingFold
from querator.durable.outgoing_items import OutgoingItems
from querator.durable.paths import Path
from querator.durable.publishing import Pending, Publishing
from querator.model.executions import ChildStart, Fold, GoOn, Note, Then, Timer
from querator.model.limits import (
    FOLLOW_UP_QUEUES_MAX,
    RECORD_BYTES_MAX,
    RECORD_CHILDREN_MAX,
    RECORD_FOLDS_MAX,
    RECORD_ITEMS_MAX,
    RECORD_NOTES_MAX,
    RECORD_TIMERS_MAX,
)

_NOTE_BYTES = 256
"""Of a note, beside its payload: the most that its name, site and path usually have."""
_WITH_FOLDS_BYTES = RECORD_BYTES_MAX * 5 // 8
"""Of notes, items and folds: the rest is for children, or the end."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A Record for the partition. It is applied whole or not at all.

    `number` counts the Records under one lease from 1. `seen` is the last arrival that the code was
    given. `published` are keys with their new values. `children` start, and `cancels` are the paths
    of the operations that have started those that are to be cancelled. `produced` are items, each
    queue once.
    """

    number: int
    seen: int
    notes: tuple[Note, ...] = ()
    folds: tuple[Fold, ...] = ()
    timers: tuple[Timer, ...] = ()
    published: tuple[tuple[str, bytes], ...] = ()
    children: tuple[ChildStart, ...] = ()
    cancels: tuple[Path, ...] = ()
    produced: tuple[OutgoingItems, ...] = ()
    then: Then = field(default_factory=GoOn)


@dataclass(slots=True)
class _InFlight:
    sending: Sending
    notes: list[tuple[Note, CodeEvent]]
    folds: list[PendingFold]
    starts: "dict[Path, _Start]"
    cancels: dict[Path, int]
    published: Pending


class _Start(NamedTuple):
    """A child that is to be started when the records up to `after` are in the journal."""

    child: ChildStart
    after: int


class RecordOutbox:
    """One Record is in flight at a time; what comes meanwhile is in the next one."""

    def __init__(self, published: Publishing) -> None:
        self.acknowledged = 0
        """All records of this machine up to this number are in the journal."""
        self.folds: list[PendingFold] = []
        self.timers: dict[Path, int] = {}
        self.starts: dict[Path, _Start] = {}
        self.cancels: dict[Path, int] = {}
        """Children that are to be cancelled, with the number of the last record before that."""
        self._published = published
        self._notes: deque[tuple[Note, CodeEvent]] = deque()
        self._sent = 0
        self._in_flight: _InFlight | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all that the code was given is in the journal, or in flight."""
        return not self._notes

    @property
    def in_flight(self) -> Sending | None:
        return None if self._in_flight is None else self._in_flight.sending

    @property
    def is_leaving(self) -> bool:
        """Whether a Record in flight ends the lease: another worker may have the execution."""
        flight = self._in_flight
        return flight is not None and not isinstance(flight.sending.then, GoOn)

    @property
    def waiting(self) -> int:
        """Records that are not in the journal."""
        return len(self._notes) + (0 if self._in_flight is None else len(self._in_flight.notes))

    @property
    def waiting_size(self) -> int:
        """Bytes of the payloads of these records."""
        flying = () if self._in_flight is None else self._in_flight.notes
        return sum(event.size for _, event in (*flying, *self._notes))

    def leased(self) -> None:
        """A new lease numbers its Records from 1."""
        assert self._in_flight is None
        self._sent = 0

    def add(self, note: Note, number: int) -> CodeEvent:
        event = CodeEvent(0, number, len(note.payload))
        self._notes.append((note, event))
        return event

    def add_production(self, note: Note, event: CodeEvent) -> None:
        """The record of a call that has produced items, which go with it."""
        self._notes.append((note, event))

    @property
    def has_items(self) -> bool:
        """Whether items wait for a Record."""
        return any(event.produced is not None for _, event in self._notes)

    def add_fold(self, fold: PendingFold) -> None:
        """Those of calls in it have nothing left to replace."""
        self.folds = [each for each in self.folds if not each.path.startswith(fold.path)]
        if fold.is_unsent:
            self._replace(fold)
        else:
            self.folds.append(fold)

    def start(self, child: ChildStart, after: int) -> None:
        """Starts a child behind the records up to this number."""
        self.starts[child.path] = _Start(child, after)

    def cancel(self, path: Path, after: int) -> None:
        """Cancels the child that was started at a path, behind the records up to this number."""
        self.cancels.setdefault(path, after)

    def _replace(self, fold: PendingFold) -> None:
        """Sends the result of a call instead of its records, in the place of the last one."""
        *others, place = fold.events
        for event in others:
            event.is_gone = True
        notes: deque[tuple[Note, CodeEvent]] = deque()
        for note, event in self._notes:
            if event is place:
                note = Note(
                    kind=fold.kind, path=fold.path, name=fold.name, site=fold.site,
                    after=note.after, at_ms=note.at_ms, payload=fold.payload,
                )  # fmt: skip
                event.size = len(fold.payload)
            if not event.is_gone:
                notes.append((note, event))
        self._notes = notes

    def take(self, seen: int, end: Then | None) -> Sending | None:
        """The next Record, or None while one is in flight or there is nothing to say. `end` is how
        the execution continues when all has been sent.
        """
        if self._in_flight is not None:
            return None
        notes = self._take_notes()
        # What follows from records that are left must not be durable before them.
        left = self._notes[0][1].number if self._notes else None
        produced = _by_queue(notes)
        folds, made = self._take_folds(_size(notes)) if left is None else ([], [])
        pending = list(self.timers.items()) if left is None else []
        published = self._published.take(left)
        timers = [Timer(path, due_ms) for path, due_ms in pending[:RECORD_TIMERS_MAX]]
        is_all = not self._notes and len(timers) == len(self.timers)
        # What leaves the execution does not overtake what its code was given before.
        upto = notes[-1][1].number if self._notes else None
        starts = self._take_starts(upto)
        cancels = self._take_cancels(upto)
        is_all = is_all and not (starts or self.starts or self.cancels)
        then: Then = end if end is not None and is_all else GoOn()
        says = notes or made or timers or starts or cancels or published
        if isinstance(then, GoOn) and not says:
            return None
        self._sent += 1
        sending = Sending(
            number=self._sent,
            seen=seen,
            notes=tuple(note for note, _ in notes),
            folds=tuple(made),
            timers=tuple(timers),
            published=tuple({key: data for (_, key), data in published.items()}.items()),
            children=tuple(each.child for each in starts.values()),
            cancels=tuple(cancels),
            produced=produced,
            then=then,
        )
        for timer in timers:
            del self.timers[timer.path]
        self._in_flight = _InFlight(
            sending,
            notes,
            folds,
            starts=starts,
            cancels=cancels,
            published=published,
        )
        return sending

    def _take_starts(self, upto: int | None) -> dict[Path, _Start]:
        taken: dict[Path, _Start] = {}
        size = 0
        for path, start in self.starts.items():
            size += len(start.child.payload) + _NOTE_BYTES
            is_full = len(taken) == RECORD_CHILDREN_MAX or (taken and size > RECORD_BYTES_MAX // 4)
            if is_full or (upto is not None and start.after > upto):
                break
            taken[path] = start
        for path in taken:
            del self.starts[path]
        return taken

    def _take_cancels(self, upto: int | None) -> dict[Path, int]:
        taken = {
            path: after
            for path, after in list(self.cancels.items())[:RECORD_CHILDREN_MAX]
            if upto is None or after <= upto
        }
        for path in taken:
            del self.cancels[path]
        return taken

    def _take_notes(self) -> list[tuple[Note, CodeEvent]]:
        taken: list[tuple[Note, CodeEvent]] = []
        size = items = 0
        queues: set[str] = set()
        while self._notes and len(taken) < RECORD_NOTES_MAX:
            note, event = self._notes[0]
            size += len(note.payload) + _NOTE_BYTES
            if event.produced is not None:
                size += len(event.produced.encoded)
                items += len(event.produced.items)
                queues.add(event.produced.queue)
            is_full = items > RECORD_ITEMS_MAX or len(queues) > FOLLOW_UP_QUEUES_MAX
            if taken and (is_full or size > RECORD_BYTES_MAX // 2):
                break
            taken.append(self._notes.popleft())
            event.is_sent = True
        return taken

    def _take_folds(self, size: int) -> tuple[list[PendingFold], list[Fold]]:
        taken: list[PendingFold] = []
        made: list[Fold] = []
        kept: list[PendingFold] = []
        for fold in self.folds:
            if len(made) >= RECORD_FOLDS_MAX or not fold.is_ready:
                kept.append(fold)
                continue
            size += len(fold.payload) + _NOTE_BYTES
            if made and size > _WITH_FOLDS_BYTES:
                kept.append(fold)
            elif (one := fold.made()) is not None:
                taken.append(fold)
                made.append(one)
        self.folds = kept
        return taken, made

    def applied(self, number: int, first_index: int) -> tuple[Sending, int, int]:
        """The Record of this number is in the journal, its notes from `first_index` on. Returns it,
        how many records are gone by its folds, and how many bytes of payloads.
        """
        flight = self._flight(number)
        for offset, (_, event) in enumerate(flight.notes):
            event.index = first_index + offset
            self.acknowledged = event.number
        self._in_flight = None
        applied = [fold.apply() for fold in flight.folds]
        return flight.sending, sum(gone for gone, _ in applied), sum(freed for _, freed in applied)

    def refused(self, number: int) -> Sending:
        """The Record of this number was not applied, because something has arrived. Its content is
        in the next one.
        """
        flight = self._flight(number)
        sending = flight.sending
        self._in_flight = None
        self._sent -= 1
        self._notes.extendleft(reversed(flight.notes))
        for _, event in flight.notes:
            event.is_sent = False
        newer, self.folds = self.folds, []
        for fold in flight.folds + newer:
            self.add_fold(fold)
        self.timers = {timer.path: timer.due_ms for timer in sending.timers} | self.timers
        self.starts = flight.starts | self.starts
        self.cancels = flight.cancels | self.cancels
        self._published.put_back(flight.published)
        return sending

    def drop_items(self, queue: str) -> None:
        """The records of items for this queue are not written: it does not take them."""
        self._notes = deque(
            (note, event)
            for note, event in self._notes
            if event.produced is None or event.produced.queue != queue
        )

    def _flight(self, number: int) -> _InFlight:
        flight = self._in_flight
        if flight is None or flight.sending.number != number:
            raise ValueError(f"Record {number} is not in flight")
        return flight


def _size(notes: list[tuple[Note, CodeEvent]]) -> int:
    """Bytes of these notes, and of the items that go with them."""
    size = 0
    for note, event in notes:
        size += len(note.payload) + _NOTE_BYTES
        if event.produced is not None:
            size += len(event.produced.encoded)
    return size


def _by_queue(notes: list[tuple[Note, CodeEvent]]) -> tuple[OutgoingItems, ...]:
    """The items that go with these notes, in their order for each queue."""
    found: dict[str, OutgoingItems] = {}
    for _, event in notes:
        if (one := event.produced) is not None:
            before = found.get(one.queue)
            if before is not None:
                one = OutgoingItems(
                    one.queue, before.items + one.items, before.encoded + one.encoded
                )
            found[one.queue] = one
    return tuple(found.values())
