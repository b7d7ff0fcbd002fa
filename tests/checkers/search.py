"""Is there an order in which these calls make sense? Wing & Gong's search, with Lowe's memory.

A history is *linearizable* when each call can be given one instant between its begin and its end
such that the calls, taken one by one in the order of these instants, do what the sequential model
allows. Wing and Gong ("Testing and verifying concurrent objects", 1993) search for the order depth
first: the next call is one that began before any call still waiting has ended. Lowe ("Testing for
linearizability", 2017) remembers (set of calls placed, state) and never checks one pair twice.

Two additions keep long histories tractable. The calls that may come next are tried by their ends,
the most urgent first, which is nearly always right. A call marked `solo` touches nothing that a
call overlapping it in time touches; once the model has placed it without a choice, no other place
for it need be tried (a persistent set of one, in the terms of partial-order reduction).

The outcome of an *optional* call is unknown: it takes effect at some point after its begin, or
never. `steps_max` bounds the search; a history that is not decided by then is UNDECIDED, which is
not a pass.
"""

import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

STEPS_MAX = 3_000_000

Action = TypeVar("Action")
Action_contra = TypeVar("Action_contra", contravariant=True)


class Verdict(Enum):
    LINEARIZABLE = "linearizable"
    VIOLATION = "not linearizable"
    UNDECIDED = "undecided"


@dataclass(slots=True)
class Call(Generic[Action]):
    """`end` of an optional call is infinite."""

    begin: float
    end: float
    action: Action
    optional: bool = False
    solo: bool = False


class Model(Protocol[Action_contra]):
    """The sequential object, with one state that moves forward and back."""

    def moves(self, action: Action_contra, latest: float) -> Iterator[bool]:
        """Each way in which the action may happen as the next one, at an instant not after
        `latest`. The state is changed while the iterator is suspended, and is restored when it
        continues. Yields whether there was no choice.
        """
        ...

    def key(self) -> Hashable:
        """Equal for equal states."""
        ...


@dataclass(slots=True)
class Answer:
    """`order`: a witness, when it is linearizable, as indexes of the calls. Otherwise `placed` is
    the number of calls that the best try could place, and `stuck` has those of which one had to
    come next.
    """

    verdict: Verdict
    order: list[int] = field(default_factory=list)
    placed: int = 0
    stuck: list[int] = field(default_factory=list)
    steps: int = 0


@dataclass(slots=True)
class _Frame:
    """A choice of the next call: the candidates, and the one being tried."""

    candidates: list[int]
    latest: float
    at: int = -1
    moves: Iterator[bool] | None = None
    final: bool = False


class _Waiting:
    """The calls not placed yet, by begin: a list that adds and removes calls at constant cost."""

    def __init__(self, calls: Sequence[Call[Action]]) -> None:
        order = sorted(range(len(calls)), key=lambda n: calls[n].begin)
        self._calls = calls
        self._head = len(calls)
        ring = [self._head, *order, self._head]
        self._next = [0] * (len(calls) + 1)
        self._before = [0] * (len(calls) + 1)
        for left, right in pairwise(ring):
            self._next[left] = right
            self._before[right] = left

    def remove(self, n: int) -> None:
        self._next[self._before[n]] = self._next[n]
        self._before[self._next[n]] = self._before[n]

    def restore(self, n: int) -> None:
        """Calls are restored in the opposite order of their removal."""
        self._next[self._before[n]] = n
        self._before[self._next[n]] = n

    def _urgency(self, n: int) -> tuple[bool, float, float]:
        call = self._calls[n]
        return not call.solo, call.end, call.begin

    def window(self) -> tuple[list[int], float]:
        """Calls that may come next, and the instant by which one must: first `solo` calls, then the
        most urgent.
        """
        found: list[int] = []
        latest = float("inf")
        n = self._next[self._head]
        while n != self._head and self._calls[n].begin <= latest:
            found.append(n)
            latest = min(latest, self._calls[n].end)
            n = self._next[n]
        # A call whose interval is empty can never be placed.
        may = [n for n in found if self._calls[n].begin <= latest]
        return sorted(may, key=self._urgency), latest


class _Search(Generic[Action]):
    def __init__(self, calls: Sequence[Call[Action]], model: Model[Action]) -> None:
        chance = random.Random(len(calls))
        self._calls = calls
        self._model = model
        self._marks = [chance.getrandbits(64) for _ in calls]
        self._required = sum(not call.optional for call in calls)
        self._waiting = _Waiting(calls)
        self._seen: set[tuple[int, Hashable]] = set()
        self._placed_key = 0
        self._order: list[int] = []
        self._frames: list[_Frame] = []

    def run(self, steps_max: int) -> Answer:
        answer = Answer(Verdict.VIOLATION)
        self._descend(answer)
        while self._required and self._frames:
            frame = self._frames[-1]
            if frame.moves is None and not self._next_candidate(frame):
                self._retreat()
                continue
            assert frame.moves is not None
            answer.steps += 1
            if answer.steps > steps_max:
                answer.verdict = Verdict.UNDECIDED
                return answer
            free = next(frame.moves, None)
            if free is None:
                frame.moves = None
            elif self._place(frame, free):
                self._descend(answer)
        if not self._required:
            answer.verdict = Verdict.LINEARIZABLE
            answer.order = self._order
        return answer

    def _descend(self, answer: Answer) -> None:
        below = _Frame(*self._waiting.window())
        self._frames.append(below)
        if len(self._order) >= answer.placed:
            answer.placed, answer.stuck = len(self._order), below.candidates

    def _next_candidate(self, frame: _Frame) -> bool:
        frame.at += 1
        if frame.final or frame.at >= len(frame.candidates):
            return False
        action = self._calls[frame.candidates[frame.at]].action
        frame.moves = self._model.moves(action, frame.latest)
        return True

    def _place(self, frame: _Frame, free: bool) -> bool:
        """Whether the place is one that has not been tried before."""
        n = frame.candidates[frame.at]
        call = self._calls[n]
        frame.final = frame.final or (free and call.solo)
        key = (self._placed_key ^ self._marks[n], self._model.key())
        if key in self._seen:
            return False
        self._seen.add(key)
        self._placed_key ^= self._marks[n]
        self._required -= not call.optional
        self._waiting.remove(n)
        self._order.append(n)
        return True

    def _retreat(self) -> None:
        """Nothing can follow: takes back the call that led here."""
        self._frames.pop()
        if self._frames:
            n = self._order.pop()
            self._placed_key ^= self._marks[n]
            self._required += not self._calls[n].optional
            self._waiting.restore(n)


def search(
    calls: Sequence[Call[Action]], model: Model[Action], *, steps_max: int = STEPS_MAX
) -> Answer:
    """`model` is in its initial state; afterwards it may be in any."""
    return _Search(calls, model).run(steps_max)
