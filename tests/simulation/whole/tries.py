"""What retries leave at items, and what items say about their retries, as clients know it.

    a delivered item has the attributes of the last retry that changed them before its lease
    its errors are those of its last retries, in their order, at most five
    the last two also hold after its death, and after its return from the dead queue
    no item is leased more often than it allows, and none dies of its attempts before that
    no item comes back before the wait that its own policy asks for
    an item that asks for no wait is never scheduled
    no item dies of its age before it has it, and none is leased a second after it

An item is in one place after the other: a sequence of a group. In one place the numbers of its
leases ascend, and one lease ends by at most one retry. So what is delivered under a lease follows
from the retries under smaller numbers. A retry without a certain answer may have been executed, or
not. All is judged at the end, when the answers are known.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from querator.model.calls import LeasedRun
from querator.model.commands import Attributes
from querator.model.ids import parse_lease_id
from querator.model.limits import ERRORS_KEPT_MAX, EXPIRY_GRAIN_MS
from querator.partition.rows import DeadCause
from tests.simulation.timeline import MS

QUEUE = "retried"
DEAD = "retried.dead"


class Place(NamedTuple):
    """Where an item is for some time."""

    group: int
    seq: int


class Wish(NamedTuple):
    """What an item says. `max_attempts` None: its queue's; `wait_ms` None: by its queue's policy,
    else after each failed attempt. `age_ms` None: it does not die of its age.
    """

    max_attempts: int | None
    wait_ms: int | None
    age_ms: int | None = None


class Change:
    """A retry under a lease. `executed` None: it is not known."""

    def __init__(self, attributes: Attributes | None, error: str) -> None:
        self.attributes = attributes
        self.error = error
        self.executed: bool | None = None


class _Seen(NamedTuple):
    place: Place
    lease: int
    reference: str
    attributes: Attributes | None
    errors: tuple[str, ...]


class Tries:
    """`max_attempts`: those of the queue."""

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._wishes: dict[str, Wish] = {}
        self._born: dict[str, Place] = {}
        """Where acknowledged items began."""
        self._places: dict[str, dict[Place, Place | None]] = {}
        """Where an item was seen, each with where it died if it is in the dead queue."""
        self._changes: dict[Place, dict[int, dict[str, Change]]] = {}
        """Retries by lease, and by reference."""
        self._seen: list[_Seen] = []
        self._returns: dict[Place, tuple[int, int, str]] = {}
        """Place to (lease, instant before which the item does not return, reference)."""
        self._wrong: list[tuple[float, str]] = []
        """(milliseconds, what is wrong unless the clocks were that wrong)."""
        self._stored_us: dict[Place, int] = {}
        """When the answers to produces came."""
        self._found: list[str] = []
        self.compared = 0
        """Deliveries of items that a retry had changed."""

    # --- what clients know -------------------------------------------------------------------

    def producing(self, references: Iterable[str], wishes: Iterable[Wish]) -> None:
        self._wishes.update(zip(references, wishes, strict=True))

    def stored(self, now_us: int, group: int, seq: int, reference: str) -> None:
        place = self._born[reference] = Place(group, seq)
        self._stored_us[place] = now_us

    def retrying(
        self, lease_id: str, held: dict[int, str], attributes: Attributes | None, error: str
    ) -> list[Change]:
        """A retry is about to be sent."""
        group, _, lease = parse_lease_id(lease_id, field="lease_id")
        changes = []
        for seq, reference in held.items():
            change = Change(attributes, error)
            by_lease = self._changes.setdefault(Place(group, seq), {})
            by_lease.setdefault(lease, {})[reference] = change
            changes.append(change)
        return changes

    def waits(self, lease_id: str, seq: int, reference: str, begun_us: int) -> None:
        """A retry without a time of its own, sent at `begun_us`, was executed."""
        wish = self._wishes.get(reference)
        if wish is not None and wish.wait_ms:
            group, _, lease = parse_lease_id(lease_id, field="lease_id")
            self._returns[Place(group, seq)] = lease, begun_us + wish.wait_ms * MS, reference

    def delivered(
        self,
        asked_us: int,
        now_us: int,
        batch: LeasedRun,
        items: dict[int, str],
        groups: Sequence[int],
    ) -> None:
        """The items came in the answer to a call that was made at `asked_us`; 0: in a stream.
        `items` are references by sequence; `groups` those of the queue's partitions now.
        """
        group, _, lease = parse_lease_id(batch.lease_id, field="lease_id")
        later = {overlay.index: overlay for overlay in batch.loaded.overlays}
        for index, (seq, reference) in enumerate(items.items()):
            place, overlay = Place(group, seq), later.get(index)
            origin: Place | None = None
            if overlay is not None and overlay.dead_letter is not None:
                letter = overlay.dead_letter
                if letter.origin_partition < len(groups):
                    origin = Place(groups[letter.origin_partition], letter.origin_seq)
                if letter.reason == DeadCause.ATTEMPTS:
                    self._died(reference, letter.attempts)
                elif letter.reason == DeadCause.EXPIRED:
                    self._died_of_age(reference, letter.died_at_ms - letter.produced_at_ms)
            self._places.setdefault(reference, {})[place] = origin
            attributes = None if overlay is None else overlay.attributes
            errors = () if overlay is None else overlay.errors
            self._seen.append(_Seen(place, lease, reference, attributes, errors))
            if batch.queue == QUEUE:
                self._attempted(reference, batch.attempt)
                self._returned(place, lease, now_us)
                self._aged(place, reference, asked_us)

    def peeked(self, reference: str, *, is_scheduled: bool) -> None:
        """An item of the queue was shown."""
        wish = self._wishes.get(reference)
        if is_scheduled and wish is not None and wish.wait_ms == 0:
            self._found.append(f"{reference}: is scheduled, and asks for no wait")

    # --- what follows at once ----------------------------------------------------------------

    def _limit(self, reference: str) -> int:
        wish = self._wishes.get(reference)
        if wish is None or wish.max_attempts is None:
            return self._max_attempts
        return wish.max_attempts

    def _attempted(self, reference: str, attempt: int) -> None:
        limit = self._limit(reference)
        if 0 < limit < attempt:
            self._found.append(f"{reference}: attempt {attempt} of {limit}")

    def _died(self, reference: str, attempts: int) -> None:
        limit = self._limit(reference)
        if attempts != limit:
            self._found.append(
                f"{reference}: died of {attempts} attempts, and has {limit or 'any'}"
            )

    def _returned(self, place: Place, lease: int, now_us: int) -> None:
        before, at_us, reference = self._returns.get(place, (lease, 0, ""))
        if before < lease and now_us < at_us:
            early_ms = (at_us - now_us) / MS
            self._wrong.append((early_ms, f"{reference}: came back before its time"))

    def _aged(self, place: Place, reference: str, asked_us: int) -> None:
        """The item came in the answer to a call that was made at `asked_us`."""
        wish, stored_us = self._wishes.get(reference), self._stored_us.get(place)
        if wish is not None and wish.age_ms is not None and stored_us is not None:
            late_ms = (asked_us - stored_us) / MS - wish.age_ms - EXPIRY_GRAIN_MS
            self._wrong.append((late_ms, f"{reference}: leased after its age"))

    def _died_of_age(self, reference: str, age_ms: int) -> None:
        wish = self._wishes.get(reference)
        if wish is not None and (wish.age_ms is None or age_ms < wish.age_ms):
            self._found.append(f"{reference}: died at {age_ms} ms, and lives {wish.age_ms}")

    # --- what follows at the end -------------------------------------------------------------

    def judge(self, uncertainty_ms: float) -> Iterator[str]:
        """`uncertainty_ms`: how far clocks were apart."""
        yield from self._found
        for by_ms, text in self._wrong:
            if by_ms > uncertainty_ms:
                yield f"{text}, by {by_ms:.0f} ms"
        for seen in self._seen:
            possible = self._attributes(seen.reference, seen.place, seen.lease, frozenset())
            if seen.attributes not in possible:
                yield (
                    f"{seen.reference}: delivered with attributes {seen.attributes}, has "
                    f"{sorted(possible, key=str)}"
                )
            self.compared += possible != {None}
            errors = self._errors(seen)
            if errors is not None and errors != seen.errors:
                yield f"{seen.reference}: delivered with errors {seen.errors}, has {errors}"

    def _before(self, place: Place, lease: int | None, reference: str) -> list[Change]:
        """Retries at a place under leases before one (None: all), the last one first."""
        by_lease = self._changes.get(place, {})
        return [
            by_lease[number][reference]
            for number in sorted(by_lease, reverse=True)
            if (lease is None or number < lease) and reference in by_lease[number]
        ]

    def _attributes(
        self, reference: str, place: Place, lease: int | None, passed: frozenset[Place]
    ) -> set[Attributes | None]:
        """The attributes that the item may have under a lease, or when it leaves the place."""
        possible: set[Attributes | None] = set()
        for change in self._before(place, lease, reference):
            if change.attributes is None or change.executed is False:
                continue
            possible.add(change.attributes)
            if change.executed:
                return possible
        return possible | self._at_first(reference, place, passed | {place})

    def _at_first(
        self, reference: str, place: Place, passed: frozenset[Place]
    ) -> set[Attributes | None]:
        """Those with which it came to a place."""
        before, first = self.whence(reference, place, passed)
        possible: set[Attributes | None] = set()
        for other in before:
            possible |= self._attributes(reference, other, None, passed)
        if first or (before and not possible):
            possible.add(None)
        return possible

    def whence(
        self, reference: str, place: Place, passed: frozenset[Place]
    ) -> tuple[set[Place], bool]:
        """The places from which an item may have come to a place, without those in `passed`; and
        whether it may have come from none in which a client has seen it: nothing was changed there.
        """
        born = self._born.get(reference)
        if born == place:
            return set(), True
        places = self._places.get(reference, {})
        origin = places.get(place)
        before = {*places} - {place} if origin is None else {origin}
        left = before - passed
        return left, not before or (bool(left) and (born is None or born not in places))

    def _errors(self, seen: _Seen) -> tuple[str, ...] | None:
        """The errors that the item must have; None: they are not certain."""
        changes = self._before(seen.place, seen.lease, seen.reference)
        if any(change.executed is None for change in changes):
            return None
        texts = [change.error for change in reversed(changes) if change.executed and change.error]
        return tuple(texts[-ERRORS_KEPT_MAX:])
