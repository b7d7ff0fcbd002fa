"""What a run may see of recurrences, by the items that they have produced.

one item        no due time of a recurrence has two items, and no number
in order        the items are numbered 1, 2, 3, … in the order of their due times
none is lost    of a recurrence that nothing has changed, each due time up to the last decided one
                has an item, or is counted as skipped
in turn         in a keyed queue with a fixed number of partitions, the items of a recurrence with a
                key are in the partition of the key, and are delivered for the first time in the
                order of their numbers
in time         after the faults, all due times but the last ones are decided
rests           no due time while a recurrence is paused has an item, and none after its deletion

Times are ms of the true clock. The due times are those of intervals: the multiples of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from querator.model.recurrences import RunsRow

QUEUE = "recurring"
LATE_MS_MAX = 3_000
"""So long after its due time a run is decided if there are no faults."""
Place = tuple[int, int]
"""Partition and sequence of an item."""


def reference_of(name: str, number: int, due_ms: int) -> str:
    return f"{name}/{number}/{due_ms}"


TEMPLATE = b"{{recurrence}}/{{number}}/{{due_ms}}"


@dataclass
class _Recurrence:
    interval_ms: int
    created_ms: int
    """State time when it was made."""
    home: int | None = None
    """The partition of the key, if consumers must get its items from there and in turn."""
    is_changed: bool = False
    rests: list[tuple[int, int]] = field(default_factory=list)
    """Spans of true time in which it certainly rests."""
    deleted_ms: int = 0
    """True time at which it was certainly gone."""
    end: RunsRow | None = None
    """Its progress when it was deleted."""
    ended_ms: int = 0
    """True time of the request to delete it, after the faults."""


class Runs:
    def __init__(self) -> None:
        self._made: dict[str, _Recurrence] = {}
        self._items: dict[tuple[str, int, int], set[Place]] = {}
        self.compared = 0
        """Recurrences of which all due times were compared."""

    def made(
        self, name: str, interval_ms: int, created_ms: int, *, home: int | None = None
    ) -> None:
        self._made[name] = _Recurrence(interval_ms, created_ms, home)

    def changed(self, name: str) -> None:
        """It was changed, or perhaps: due times that were not decided may be lost."""
        self._made[name].is_changed = True

    def rested(self, name: str, from_ms: int, until_ms: int) -> None:
        self._made[name].rests.append((from_ms, until_ms))

    def deleted(self, name: str, at_ms: int) -> None:
        self._made[name].deleted_ms = at_ms

    def ended(self, name: str, begun_ms: int, runs: RunsRow) -> None:
        """It was deleted after the faults, by a call of this time, and had this progress."""
        one = self._made[name]
        one.end, one.ended_ms = runs, begun_ms

    def delivered(self, partition: int, items: Iterable[tuple[int, str]]) -> None:
        """Items by sequence. One may come several times."""
        for seq, reference in items:
            name, number, due_ms = reference.split("/")
            places = self._items.setdefault((name, int(number), int(due_ms)), set())
            places.add((partition, seq))

    def judge(self, apart_ms: float) -> Iterator[str]:
        """`apart_ms` bounds the distance of state time from the true time."""
        by_name: dict[str, list[tuple[int, int]]] = {}
        for (name, number, due_ms), places in self._items.items():
            if len(places) > 1:
                yield f"{reference_of(name, number, due_ms)}: has {len(places)} items"
            by_name.setdefault(name, []).append((number, due_ms))
        for name, items in sorted(by_name.items()):
            items.sort()
            if [number for number, _ in items] != list(range(1, len(items) + 1)):
                yield f"{name}: its items have the numbers {[number for number, _ in items]}"
            due = [due_ms for _, due_ms in items]
            if due != sorted(set(due)):
                yield f"{name}: its due times are not in the order of its numbers"
            one = self._made.get(name)
            if one is not None:
                yield from self._in_turn(name, one.home)
                yield from self._judge(name, one, due, apart_ms)
        for name, one in self._made.items():
            if name not in by_name:
                yield from self._judge(name, one, [], apart_ms)

    def _in_turn(self, name: str, home: int | None) -> Iterator[str]:
        if home is None:
            return
        mine = {key: places for key, places in self._items.items() if key[0] == name}
        first = [number for _, number, _ in mine]
        if first != sorted(first):
            yield f"{name}: its items came in the order {first}"
        homes = {partition for places in mine.values() for partition, _ in places}
        if homes != {home}:
            yield f"{name}: its items are in the partitions {sorted(homes)}, its key in {home}"

    def _judge(self, name: str, one: _Recurrence, due: list[int], apart_ms: float) -> Iterator[str]:
        for due_ms in due:
            if due_ms % one.interval_ms or due_ms <= one.created_ms:
                yield f"{name}: {due_ms} is no due time of it"
            if one.deleted_ms and due_ms > one.deleted_ms + apart_ms:
                yield f"{name}: {due_ms} has an item, it was deleted at {one.deleted_ms}"
            for from_ms, until_ms in one.rests:
                if from_ms + apart_ms < due_ms < until_ms - apart_ms:
                    yield f"{name}: {due_ms} has an item, it was paused from {from_ms}"
        runs = one.end
        if runs is None:
            return
        if runs.fired != len(due):
            yield f"{name}: it has {len(due)} items, and says {runs.fired}"
        if one.is_changed:
            return
        self.compared += 1
        if runs.after_ms < one.ended_ms - LATE_MS_MAX - apart_ms - one.interval_ms:
            yield f"{name}: at {one.ended_ms} it is decided up to {runs.after_ms} only"
        decided = runs.after_ms // one.interval_ms - one.created_ms // one.interval_ms
        counted = runs.fired + runs.skipped + runs.missed
        if decided != counted:
            yield f"{name}: {decided} due times have passed, and {counted} are decided"
