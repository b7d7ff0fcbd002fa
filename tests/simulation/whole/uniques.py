"""What must hold of items whose dedup keys count until they are done. A checker of its own, which
knows requests and answers alone.

    an answer that names another item as the one with the key: that item was not completed before
    the request began
    an item that was stored: no other item that was stored with the key before the request began was
    there until the answer came (for keys of which all items say KEEP)
    an item that an answer names as replaced is not delivered after that answer (`Ledger`)
    an item that was acknowledged and is neither completed nor there was named as replaced, or a
    request with its key has no known outcome (`Ledger`)
    a bumped item is scheduled for an instant that is not later than its limit after the first
    produce of the items that replaced each other

An item is named by its partition and sequence, which no other item of the queue ever gets.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from querator.model.item_options import OnDuplicate
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS
from tests.simulation.whole.ledger import Ledger

QUEUE = "unique"
Place = tuple[int, int]
"""Partition and sequence."""


@dataclass
class Wish:
    """What a producer says about an item."""

    key: str
    what: OnDuplicate
    most_ms: int = 0


@dataclass
class _Stored:
    reference: str
    wish: Wish
    began_us: int
    answered_us: int
    first_us: int
    """When the first of the items was answered that replaced each other."""


@dataclass
class _Request:
    references: tuple[str, ...]
    wishes: tuple[Wish, ...]
    began_us: int


class Uniques:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked: dict[str, _Request] = {}
        """By producer, the request without an answer."""
        self._stored: dict[Place, _Stored] = {}
        self._by_reference: dict[str, _Stored] = {}
        self._of_key: dict[str, list[_Stored]] = {}
        self._replaced: dict[Place, int] = {}
        """Items that answers have named before their own answer came."""
        self._doubtful: set[str] = set()
        """Keys of requests whose outcome is not known."""
        self._taken: set[str] = set()
        """Keys of which items may have been replaced."""
        self._due: dict[str, int] = {}
        """The latest instant (ms) for which an item was seen scheduled."""
        self._ending: dict[str, int] = {}
        """When the first complete of an item began, also before its produce was answered."""
        self._found: list[str] = []

    def asking(
        self, producer: str, references: Sequence[str], wishes: Sequence[Wish], now_us: int
    ) -> None:
        """A request begins. If the one before had no answer, its outcome is not known."""
        self._give_up(producer)
        self._asked[producer] = _Request(tuple(references), tuple(wishes), now_us)
        self._taken.update(wish.key for wish in wishes if wish.what is not OnDuplicate.KEEP)

    def _give_up(self, producer: str) -> None:
        request = self._asked.pop(producer, None)
        for wish in () if request is None else request.wishes:
            self.doubt(wish.key)

    def doubt(self, key: str) -> None:
        """Items of the key may be replaced, or may have been, without an answer that says so."""
        self._doubtful.add(key)
        self._ledger.perhaps_cancelled(one.reference for one in self._of_key.get(key, ()))

    def answered(
        self,
        producer: str,
        now_us: int,
        stored: Iterable[tuple[int, Place]],
        duplicates: Iterable[tuple[int, Place]],
        replaced: Iterable[tuple[int, Place]],
    ) -> None:
        """The answer to the request: positions of items, each with a place."""
        request = self._asked.pop(producer)
        taken = dict(replaced)
        for index, place in sorted(stored):
            self._keep(request, index, place, taken.get(index), now_us)
        for index, place in duplicates:
            self._ledger.perhaps_cancelled([request.references[index]])
            self._judge_duplicate(request, index, place)
        for place in taken.values():
            self._gone(place, now_us)

    def _keep(
        self, request: _Request, index: int, place: Place, taken: Place | None, now_us: int
    ) -> None:
        wish, reference = request.wishes[index], request.references[index]
        before = None if taken is None else self._stored.get(taken)
        first_us = now_us if before is None else before.first_us
        one = _Stored(reference, wish, request.began_us, now_us, first_us)
        others = self._of_key.setdefault(wish.key, [])
        if wish.key not in self._taken:
            self._judge_stored(one, others)
        others.append(one)
        self._stored[place] = self._by_reference[reference] = one
        if wish.key in self._doubtful:
            self._ledger.perhaps_cancelled([reference])
        if place in self._replaced:
            self._gone(place, self._replaced[place])

    def _judge_stored(self, one: _Stored, others: Iterable[_Stored]) -> None:
        for other in others:
            # A request that began before the other answer may have been executed before.
            was_there = other.answered_us < one.began_us
            ending_us = self._ending.get(other.reference, one.answered_us + 1)
            if was_there and ending_us > one.answered_us:
                self._found.append(
                    f"{one.reference}: stored, while {other.reference} has key {one.wish.key}"
                )

    def _judge_duplicate(self, request: _Request, index: int, place: Place) -> None:
        other = self._stored.get(place)
        if other is None:
            return
        done_us = self._ledger.completed_at(other.reference)
        if done_us is not None and done_us < request.began_us:
            self._found.append(
                f"{request.references[index]}: not stored because of {other.reference}, which was "
                "completed before"
            )

    def _gone(self, place: Place, now_us: int) -> None:
        one = self._stored.get(place)
        if one is None:
            self._replaced[place] = now_us
            return
        self._ledger.cancelled(now_us, [one.reference])

    def completing(self, references: Iterable[str], now_us: int) -> None:
        """A complete of these items begins."""
        for reference in references:
            self._ending.setdefault(reference, now_us)

    def scheduled(self, reference: str, due_ms: int) -> None:
        self._due[reference] = max(self._due.get(reference, 0), due_ms)

    def judge(self, apart_ms: float) -> Iterator[str]:
        """`apart_ms`: how far the clocks of nodes may be from each other."""
        yield from self._found
        for reference, due_ms in self._due.items():
            one = self._by_reference.get(reference)
            if one is None or one.wish.what is not OnDuplicate.BUMP:
                continue
            latest_ms = EPOCH_MS + one.first_us // MS + one.wish.most_ms + apart_ms
            if due_ms > latest_ms:
                yield f"{reference}: scheduled {due_ms - latest_ms:.0f} ms after its limit"
