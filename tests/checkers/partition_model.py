"""A partition, as simply as can be: the sequential object that histories are compared with.

It follows the history's own answers, so it only has to say whether an answer is possible in a
state. What happens without a call (a lease lapses, a complete or retry of unknown outcome takes
effect) is supposed only when the next answer cannot be explained without it. That loses nothing:
such a step only takes possibilities away from the lease it ends, so the latest instant is the best
one.

An item:       there ──lease──► held ──complete──► gone
                 ▲               │
                 └─retry, lapse──┴──attempts used up, retry(dead)──► dead
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from sortedcontainers import SortedList

from tests.checkers.partition_steps import (
    VERBS,
    End,
    Kind,
    Maybe,
    PartitionSteps,
    Prolong,
    Put,
    Show,
    Step,
    Take,
    Tell,
)

THERE, HELD, GONE, DEAD = "there", "held", "gone", "dead"
LAPSED = "lapsed"
COMPLETES = frozenset({Kind(completes=True).verb})
ALWAYS = float("-inf")

Item = tuple[str, int, str, float]
"""(state, attempt, lease, not leased before)."""

_NOTHING = "nothing"


@dataclass(slots=True, frozen=True)
class Lapse:
    lease: str


Help = Lapse | Maybe
"""A step without an answer."""

Explained = bool | list[Help]
"""True or False: the step was made, without or with a choice. A list: the step was not made, and
one of these may help.
"""

IMPOSSIBLE: list[Help] = []


class PartitionModel:
    """One state that moves forward and back; see `search.Model`."""

    def __init__(self, steps: PartitionSteps, *, keeps_dead: bool = True) -> None:
        """`keeps_dead`: a full look shows the dead letters as well."""
        self._max_attempts = steps.max_attempts
        self._unseen_from_s = steps.unseen_from_s
        self._unseen_lapse_s = steps.unseen_lapse_s
        self._born_s: dict[int, float] = {}
        self._keeps_dead = keeps_dead
        self._state: dict[object, object] = {}
        self._undo: list[tuple[object, object]] = []
        self._key = 0
        self._fresh: SortedList = SortedList()
        """Items that are there, were never leased and have a place in the order."""
        self._alive: set[int] = set()
        """Items produced and not gone."""
        self._maybes: dict[str, list[Maybe]] = defaultdict(list)
        self._completes = sorted(
            (maybe.begin_s, len(maybe.seqs)) for maybe in steps.maybes if maybe.kind.completes
        )
        for maybe in steps.maybes:
            self._maybes[maybe.lease].append(maybe)
        self._members: dict[str, tuple[tuple[int, int], ...]] = {}
        self._done: set[tuple[str, int]] = set()
        """Items that an answer reports as done under a lease: until then that must remain
        possible.
        """
        self._never: set[tuple[str, int, str]] = set()
        """Fates under a lease that some answer, perhaps a later one, rules out. Fates are final."""
        self._proofs: dict[str, int] = defaultdict(int)
        """Answers that show that a lease is live."""
        self._highest: dict[int, int] = {}
        self._unordered: set[int] = set()
        self._puts = sorted(
            call.action.first_seq for call in steps.calls if isinstance(call.action, Put)
        )
        """Sequences are given in the order of produces, and all of them must be explained."""
        self._counts = sorted(
            (call.action.produced, call.action.completed)
            for call in steps.calls
            if isinstance(call.action, Tell)
        )
        for call in steps.calls:
            if isinstance(call.action, Put):
                first = call.action.first_seq
                self._born_s.update(
                    dict.fromkeys(range(first, first + call.action.count), call.begin)
                )
        self._learn([call.action for call in steps.calls])

    def _learn(self, steps: list[Step]) -> None:
        first: dict[int, int] = {}
        for step in steps:
            if isinstance(step, Take):
                self._proofs[step.lease] += step.repeats
                if not step.repeats:
                    self._members[step.lease] = step.items
                for seq, attempt in step.items:
                    first[seq] = min(attempt, first.get(seq, attempt))
                    self._highest[seq] = max(attempt, self._highest.get(seq, 0))
            elif isinstance(step, End):
                self._learn_fates(step)
            elif isinstance(step, Prolong):
                for lease, live, _ in step.leases:
                    self._proofs[lease] += live
        self._learn_order(steps, first)

    def _learn_fates(self, step: End) -> None:
        verb = step.kind.verb
        for lease, done, repeated, lost, _ in step.parts:
            self._done.update((lease, seq) for seq in done)
            self._never.update((lease, seq, verb) for seq in lost)
            for fate in {*VERBS, LAPSED} - {verb}:
                self._never.update((lease, seq, fate) for seq in repeated)

    def _learn_order(self, steps: list[Step], first: dict[int, int]) -> None:
        """`first`: the lowest attempt with which each item was seen."""
        # An item that may have been leased unseen, and lapsed, has no place in the order any more.
        anybody = self._unseen_from_s < float("inf")
        for step in steps:
            if not isinstance(step, Put):
                continue
            for seq in range(step.first_seq, step.first_seq + step.count):
                if step.due_s != ALWAYS or first.get(seq, 2 if anybody else 1) != 1:
                    self._unordered.add(seq)

    def key(self) -> int:
        return self._key

    def moves(self, action: Step, latest: float) -> Iterator[bool]:
        return self._moves(action, latest, set())

    def _moves(self, action: Step, latest: float, tried: set[int]) -> Iterator[bool]:
        """`tried`: keys of states in which the same action has been tried at this point."""
        if self._key in tried:
            return
        tried.add(self._key)
        mark = len(self._undo)
        explained = self._explain(action, latest)
        if isinstance(explained, bool):
            if self._may_count():
                yield explained
            self._back_to(mark)
            return
        self._back_to(mark)
        for help_ in explained:
            self._apply(help_)
            if self._may_count():
                for _ in self._moves(action, latest, tried):
                    yield False
            self._back_to(mark)

    # --- the state ---------------------------------------------------------------------------

    def _put(self, key: object, value: object) -> None:
        old = self._state.get(key, _NOTHING)
        self._undo.append((key, old))
        self._set(key, old, value)

    def _set(self, key: object, old: object, value: object) -> None:
        self._key ^= hash((key, old)) ^ hash((key, value))
        if value == _NOTHING:
            del self._state[key]
        else:
            self._state[key] = value
        if isinstance(key, int):
            if self._in_order(key, old):
                self._fresh.remove(key)
            if self._in_order(key, value):
                self._fresh.add(key)
            if value == _NOTHING or value[0] == GONE:  # type: ignore[index]
                self._alive.discard(key)
            else:
                self._alive.add(key)

    def _in_order(self, seq: int, value: object) -> bool:
        return value == (THERE, 0, "", ALWAYS) and seq not in self._unordered

    def _back_to(self, mark: int) -> None:
        while len(self._undo) > mark:
            key, old = self._undo.pop()
            self._set(key, self._state.get(key, _NOTHING), old)

    def _item(self, seq: int) -> Item | None:
        return self._state.get(seq)  # type: ignore[return-value]

    def _fate(self, lease: str, seq: int) -> str | None:
        """What became of an item under a lease; None: the lease never had it."""
        return self._state.get((lease, seq))  # type: ignore[return-value]

    def _number(self, *key: str) -> int:
        return self._state.get(key, 0)  # type: ignore[return-value]

    def _add(self, number: int, *key: str) -> None:
        self._put(key, self._number(*key) + number)

    def _held(self, lease: str) -> list[int]:
        return [s for s, _ in self._members.get(lease, ()) if self._fate(lease, s) == HELD]

    # --- the steps ---------------------------------------------------------------------------

    def _explain(self, step: Step, latest: float) -> Explained:
        match step:
            case Put():
                return self._produce(step)
            case Take():
                return self._repeat(step, latest) if step.repeats else self._lease(step, latest)
            case End():
                return self._end(step, latest)
            case Prolong():
                return self._extend(step, latest)
            case Show():
                return self._look(step, latest)
            case Tell():
                return self._count(step, latest)

    def _produce(self, step: Put) -> Explained:
        turn = self._number("puts")
        if self._puts[turn] != step.first_seq or step.first_seq in self._state:
            return IMPOSSIBLE
        self._add(1, "puts")
        self._add(step.count, "produced")
        for seq in range(step.first_seq, step.first_seq + step.count):
            self._put(seq, (THERE, 0, "", step.due_s))
        return True

    def _lease(self, step: Take, latest: float) -> Explained:
        if self._number("granted", step.lease) or len(step.items) > step.most:
            return IMPOSSIBLE
        newest = 0
        for seq, attempt in step.items:
            item = self._item(seq)
            if item is None or item[0] in (GONE, DEAD):
                return IMPOSSIBLE
            if item[0] == HELD:
                return self._ends_of(item[2], seq, latest, verbs=VERBS - COMPLETES)
            if not self._may_take(seq, item, attempt, latest):
                return IMPOSSIBLE
            if self._in_order(seq, item):
                newest = max(newest, seq)
        for seq, attempt in step.items:
            self._put(seq, (HELD, attempt, step.lease, ALWAYS))
            self._put((step.lease, seq), HELD)
        self._put(("granted", step.lease), 1)
        self._put(("held", step.lease), len(step.items))
        self._put(("lapse", step.lease), step.lapse_s)
        skipped = self._fresh.bisect_left(newest)
        return IMPOSSIBLE if skipped > step.skips else skipped == 0

    def _may_take(self, seq: int, item: Item, attempt: int, latest: float) -> bool:
        _, before, _, due_s = item
        if due_s > latest or 0 < self._max_attempts < attempt:
            return False
        return attempt > before and self._may_miss(seq, attempt - before - 1, latest)

    def _may_miss(self, seq: int, attempts: int, latest: float) -> bool:
        """Whether this number of attempts may be unseen: the item was leased for calls that never
        learned of it, and each of these leases has lapsed.
        """
        from_s = max(self._unseen_from_s, self._born_s[seq])
        return not attempts or from_s + attempts * self._unseen_lapse_s <= latest

    def _repeat(self, step: Take, latest: float) -> Explained:
        held = set(self._held(step.lease))
        shown = {seq for seq, _ in step.items}
        for seq, attempt in step.items:
            if seq not in held or self._item(seq) != (HELD, attempt, step.lease, ALWAYS):
                return IMPOSSIBLE
        for seq in held - shown:
            return self._ends_of(step.lease, seq, latest, lapse=False)
        self._add(1, "proofs", step.lease)
        return True

    def _end(self, step: End, latest: float) -> Explained:
        verb = step.kind.verb
        for lease, done, repeated, lost, whole in step.parts:
            granted = self._number("granted", lease)
            if not granted and (done or repeated):
                return IMPOSSIBLE
            for seq in done:
                if self._fate(lease, seq) != HELD:
                    return IMPOSSIBLE
                self._settle(lease, seq, step.kind)
            for seq in repeated:
                fate = self._fate(lease, seq)
                if fate == HELD:
                    return self._ends_of(lease, seq, latest, verbs={verb}, lapse=False)
                if fate != verb:
                    return IMPOSSIBLE
            for seq in lost:
                fate = self._fate(lease, seq)
                if fate == HELD:
                    return self._ends_of(lease, seq, latest, verbs=VERBS - {verb})
                if fate == verb:
                    return IMPOSSIBLE
            if whole and granted and not lost and self._number("held", lease):
                return IMPOSSIBLE
        return True

    def _extend(self, step: Prolong, latest: float) -> Explained:
        for lease, live, lapse_s in step.leases:
            held = self._number("held", lease)
            if live and not held:
                return IMPOSSIBLE
            if not live and held:
                seq = self._held(lease)[0]
                return self._ends_of(lease, seq, latest)
            if live:
                self._add(1, "proofs", lease)
                self._put(("lapse", lease), max(lapse_s, self._lapses_at(lease)))
        return True

    def _look(self, step: Show, latest: float) -> Explained:
        if not step.present | step.dead <= self._alive:
            return IMPOSSIBLE
        for seq in sorted(self._alive):
            item = self._item(seq)
            assert item is not None
            state, _, lease, _ = item
            if seq in step.present:
                if state == DEAD or seq in step.dead:
                    return IMPOSSIBLE
                continue
            dies = seq in step.dead
            if state == DEAD:
                if not dies and self._keeps_dead:
                    return IMPOSSIBLE
            elif state == HELD:
                worn = dies or not self._keeps_dead
                verbs = VERBS - COMPLETES if dies else COMPLETES
                return self._ends_of(lease, seq, latest, verbs=verbs, lapse=worn)
            elif not dies and self._keeps_dead:
                return IMPOSSIBLE
            elif not (
                self._max_attempts and self._may_miss(seq, self._max_attempts - item[1], latest)
            ):
                return IMPOSSIBLE
        return True

    def _may_count(self) -> bool:
        """Whether the counts still to be explained are not behind: they never go down."""
        turn = self._number("counts")
        if turn == len(self._counts):
            return True
        produced, completed = self._counts[turn]
        return produced >= self._number("produced") and completed >= self._number("completed")

    def _count(self, step: Tell, latest: float) -> Explained:
        if self._counts[self._number("counts")] != (step.produced, step.completed):
            return IMPOSSIBLE
        self._add(1, "counts")
        produced, completed = self._number("produced"), self._number("completed")
        most = completed + sum(n for begin_s, n in self._completes if begin_s <= latest)
        fits = (
            produced <= step.produced <= produced + step.unseen_items
            and completed <= step.completed <= most
        )
        return True if fits else IMPOSSIBLE

    # --- what happens without an answer ------------------------------------------------------

    def _ends_of(
        self,
        lease: str,
        seq: int,
        latest: float,
        *,
        verbs: Set[str] = VERBS,
        lapse: bool = True,
    ) -> list[Help]:
        """What could have ended the lease of a held item by now: a call of unknown outcome (one
        with one of the `verbs`), or a lapse. Other such calls of the lease follow. They may have
        settled an item before, so that the first ones then did not.
        """
        begun = [maybe for maybe in self._maybes.get(lease, ()) if maybe.begin_s <= latest]

        def helps(maybe: Maybe) -> bool:
            return seq in maybe.seqs and maybe.kind.verb in verbs

        lapse = (
            lapse
            and self._lapses_at(lease) <= latest
            and self._number("proofs", lease) == self._proofs[lease]
        )
        if not lapse and not any(map(helps, begun)):
            return IMPOSSIBLE
        found: list[Help] = [
            maybe
            for maybe in sorted(begun, key=lambda maybe: not helps(maybe))
            if any(self._fate(lease, other) == HELD for other in maybe.seqs)
            and self._may_end(lease, maybe.seqs, maybe.kind)
        ]
        if lapse and self._may_end(lease, self._held(lease), None):
            found.append(Lapse(lease))
        return found

    def _may_end(self, lease: str, seqs: Iterable[int], kind: Kind | None) -> bool:
        """Whether no answer that is still to be explained contradicts this. No `kind`: the items
        lapse.
        """
        fate = LAPSED if kind is None else kind.verb
        for seq in seqs:
            if self._fate(lease, seq) == HELD:
                if (lease, seq, fate) in self._never:
                    return False
                item = self._item(seq)
                assert item is not None
                if (lease, seq) in self._done:
                    return False
                final = kind is not None and (kind.completes or kind.dead)
                if final and item[1] < self._highest.get(seq, 0):
                    return False
        return True

    def _lapses_at(self, lease: str) -> float:
        return self._state.get(("lapse", lease), ALWAYS)  # type: ignore[return-value]

    def _apply(self, help_: Help) -> None:
        if isinstance(help_, Maybe):
            for seq in help_.seqs:
                if self._fate(help_.lease, seq) == HELD:
                    self._settle(help_.lease, seq, help_.kind)
            return
        for seq in self._held(help_.lease):
            self._settle(help_.lease, seq, Kind(completes=False), fate=LAPSED)

    def _settle(self, lease: str, seq: int, kind: Kind, *, fate: str = "") -> None:
        item = self._item(seq)
        assert item is not None
        attempt = item[1]
        self._put((lease, seq), fate or kind.verb)
        self._add(-1, "held", lease)
        worn = kind.counted and 0 < self._max_attempts <= attempt
        if kind.completes:
            self._add(1, "completed")
            self._put(seq, (GONE, attempt, "", ALWAYS))
        elif kind.dead or worn:
            self._put(seq, (DEAD, attempt, "", ALWAYS))
        else:
            self._put(seq, (THERE, attempt - (not kind.counted), "", kind.due_s))
