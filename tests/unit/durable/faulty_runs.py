"""Programs of `random_programs` under workers that die, stand still and continue, and late signals.

A run is a series of random moves: a signal arrives, the worker hears of it, an effect begins or
ends, a Record is sent, taken or answered, a worker dies or stands still and continues later under a
lease that is over. The checks are of histories alone:

- the past of each effect (what its code had been given when the effect was called) is a prefix of
  the final order of delivery, so no effect is seen outside whose past is not durable;
- the final journal replays to the result that was recorded;
- no step begins again when its result is in the journal;
- what was published at any time is what the final code publishes, and its last value is there.

`MUTANTS` break the rule, one way each.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from querator.durable.folds import PendingFold
from querator.durable.operations import WAITS_OF, Effect, WaitKind
from querator.durable.outbox import Sending
from querator.model.executions import (
    Close,
    JournalRecord,
    Note,
    RecordKind,
    delivery_order,
)
from tests.unit.durable.memory_partition import (
    FOREVER_MS,
    START_MS,
    LeaseLost,
    MemoryPartition,
    Unseen,
    Worker,
    replay,
)
from tests.unit.durable.random_programs import (
    CODEC,
    Durably,
    Programs,
    check_produced,
    published_of,
)

MUTANTS: Final = ("early", "without after", "unfenced", "late effects", "fold at the end")
_CALLS: Final = {kind for kind, waits in WAITS_OF.items() if waits is WaitKind.CALL}
_OF_THE_CODE: Final = (RecordKind.PRODUCED, RecordKind.PATCHED)
_MOVES_MAX: Final = 6_000
_DEATHS_MAX: Final = 6

Past = tuple[tuple[int, bytes, bytes], ...]


class Violation(AssertionError):
    """A check of a history has failed."""


@dataclass
class Holder:
    """A worker with what is between it and the partition."""

    worker: Worker
    sending: Sending | None = None
    given: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    """What the code was given, in order."""
    pasts: dict[bytes, Past] = field(default_factory=dict)
    """Of each step that was called, what the code had been given before."""

    def note_calls(self) -> None:
        for path, operation in self.worker.machine.code.pending.items():
            if operation.waits is WaitKind.STEP and path not in self.pasts:
                self.pasts[path] = tuple(self.given)


@dataclass
class Tally:
    """What many runs have seen."""

    runs: int = 0
    effects: int = 0
    deaths: int = 0
    refused: int = 0
    folded: int = 0
    violations: int = 0


class FaultyRun:
    """One run; raises Violation."""

    def __init__(
        self, seed: int, mutant: str = "", *, partition: MemoryPartition | None = None
    ) -> None:
        assert mutant in ("", *MUTANTS)
        self._mutant = mutant
        self._chance = random.Random(f"faults {seed}")
        programs = Programs(seed)
        self._durably = Durably(programs)
        self._signals = [name for _, name in programs.signals]
        self._now = START_MS
        self.partition = partition or MemoryPartition(
            fenced=mutant != "unfenced",
            keeps_after=mutant != "without after",
            fold_at_end=mutant == "fold at the end",
            # Of a step that a fold has removed, the final journal does not say the place.
            folds=mutant == "fold at the end" or seed % 2 == 0,
        )
        self.partition.start(self._durably.main)
        self._effects: list[tuple[Effect, Past]] = []
        self._late: list[Holder] = []
        self._results: dict[bytes, int] = {}
        self.deaths = self.refused = 0
        self._holder = self._new_worker()

    def run(self) -> None:
        partition = self.partition
        try:
            for _ in range(_MOVES_MAX):
                if partition.state == "closed":
                    break
                self._move()
            else:
                raise Violation(f"the run does not end: {partition.state} {partition.reason}")
        except (LeaseLost, Unseen):
            raise
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}") from error
        finally:
            for holder in [self._holder, *self._late]:
                assert holder.worker.machine.put_away()
        self._check()

    @property
    def effects(self) -> int:
        """How many effects have begun."""
        return len(self._effects)

    # --- moves -----------------------------------------------------------------------------------

    def _move(self) -> None:
        chance, holder = self._chance, self._holder
        self._now += chance.randint(1, 40_000_000)
        self.partition.fire(self._now)
        roll = chance.random()
        if self.partition.state == "parked":
            self._signal()
        elif holder.worker.machine.is_parked:
            holder.worker.lease_again()
        elif roll < 0.08:
            self._signal()
        elif roll < 0.2:
            self._hear(holder)
        elif roll < 0.4:
            self._begin(holder, FOREVER_MS)
        elif roll < 0.6:
            self._finish(holder)
        elif roll < 0.7:
            self._tick(holder)
        elif roll < 0.97:
            self._send(holder)
        elif self.deaths < _DEATHS_MAX:
            self.deaths += 1
            if chance.random() < 0.5:
                self._late.append(holder)
            else:
                assert holder.worker.machine.put_away()
            self._holder = self._new_worker()
        often = 0.9 if self._mutant == "late effects" else 0.3
        if self._late and chance.random() < often:
            self._move_late(chance.choice(self._late))

    def _move_late(self, holder: Holder) -> None:
        """A worker that stood still; its lease is over, which it knows by its own clock."""
        roll = self._chance.random()
        if holder.worker.machine.is_over and holder.sending is None:
            return
        if roll < 0.4:
            self._send(holder)
        elif roll < 0.7:
            self._finish(holder)
        elif self._mutant == "late effects":
            self._hear(holder)
            self._begin(holder, FOREVER_MS)

    def _new_worker(self) -> Holder:
        worker = Worker(self.partition, self._durably.main, codec=CODEC, until_ms=FOREVER_MS)
        if not self.partition.folds:
            worker.machine.code.outbox.add_fold = _no_fold  # type: ignore[method-assign]
        holder = Holder(worker)
        holder.given = _all_told(self.partition.journal)
        holder.note_calls()
        return holder

    def _signal(self) -> None:
        if self._signals:
            name = self._signals.pop()
            self.partition.signal(name, b"%d" % len(self._signals), self._now)

    def _hear(self, holder: Holder) -> None:
        worker = holder.worker
        for record in self.partition.since(worker.known):
            worker.known = record.index
            holder.given.append(_told(record))
            worker.machine.arrive([record])
            holder.note_calls()
        worker.drop_abandoned()

    def _begin(self, holder: Holder, until_ms: int) -> None:
        for effect in holder.worker.begin(self._now):
            if _recorded(self.partition, effect.path) and holder is self._holder:
                raise Violation(f"{effect.name} begins again behind its result")
            if effect.name != "read":
                # A step without effects may begin before its past is durable.
                self._effects.append((effect, holder.pasts[effect.path]))

    def _finish(self, holder: Holder) -> None:
        worker = holder.worker
        if worker.running and not worker.machine.is_over:
            effect = self._chance.choice(list(worker.running.values()))
            self._given_by(holder, lambda: worker.finish(effect, self._now))

    def _tick(self, holder: Holder) -> None:
        worker = holder.worker
        due = worker.machine.next_due()
        if due is not None and not worker.machine.is_over:
            self._now = max(self._now, due)
            self._given_by(holder, lambda: worker.machine.tick(self._now))
            worker.drop_abandoned()

    def _given_by(self, holder: Holder, act: Callable[[], None]) -> None:
        """The records that an act gives the code are the past of what is called from then on."""
        outbox = holder.worker.machine.code.outbox
        add = outbox.add

        def noted(note: Note, number: int) -> Any:
            holder.note_calls()
            if note.kind not in _OF_THE_CODE:
                holder.given.append(_told_of(note))
            return add(note, number)

        outbox.add = noted  # type: ignore[method-assign]
        try:
            act()
        finally:
            outbox.add = add  # type: ignore[method-assign]
        holder.note_calls()

    def _send(self, holder: Holder) -> None:
        worker, partition = holder.worker, self.partition
        machine = worker.machine
        if holder.sending is None:
            park = self._chance.random() < 0.5
            holder.sending = machine.take(should_park=park)
            if self._mutant == "early" and holder.sending is not None:
                machine.code.outbox.acknowledged = machine.code.made
            return
        sending, holder.sending = holder.sending, None
        try:
            first = partition.record(worker.lease, sending)
        except Unseen:
            machine.refused(sending.number)
        except LeaseLost:
            self.refused += 1
            if holder in self._late:
                self._late.remove(holder)
                assert machine.put_away()
        else:
            machine.applied(sending.number, first)

    # --- checks ----------------------------------------------------------------------------------

    def _check(self) -> None:
        close = self.partition.close
        journal = self.partition.journal
        try:
            end = replay(self._durably.main, journal, codec=CODEC)
        except Exception as error:
            raise Violation(f"the final journal does not replay: {error}") from error
        if end != close:
            raise Violation(f"the final journal replays to {end}, and not to {close}")
        self._check_published(close)
        self._check_produced(close)
        if any(each.note.kind in _CALLS for each in journal):
            # The places of the steps of a call are gone with them.
            return
        final = _all_told(journal)
        for effect, past in self._effects:
            if final[: len(past)] != list(past):
                raise Violation(f"{effect.name} {effect.path.hex()} began without its past")

    def _check_published(self, close: Close) -> None:
        if close.outcome != RecordKind.COMPLETED:
            return
        seen = msgspec.json.decode(close.payload)
        for _, value in self.partition.was_published:
            count = msgspec.json.decode(value)[0]
            if msgspec.json.decode(value) != published_of(seen[:count]):
                raise Violation(f"readers have seen {count} things that did not happen so")
        last = self.partition.published.get("seen")
        if seen and (last is None or msgspec.json.decode(last) != published_of(seen)):
            raise Violation("what was published last is not there")

    def _check_produced(self, close: Close) -> None:
        if close.outcome == RecordKind.COMPLETED:
            try:
                check_produced(self.partition.produced, msgspec.json.decode(close.payload))
            except AssertionError as error:
                raise Violation(f"items were not produced once each: {error}") from error


def _no_fold(fold: PendingFold) -> None:
    """Journals keep all records, to compare the pasts of effects with."""


def _all_told(journal: list[JournalRecord]) -> list[tuple[int, bytes, bytes]]:
    """What the code is given. The records that it has made itself it is not given."""
    return [_told(each) for each in delivery_order(journal) if each.note.kind not in _OF_THE_CODE]


def _told(record: JournalRecord) -> tuple[int, bytes, bytes]:
    return _told_of(record.note)


def _told_of(note: Note) -> tuple[int, bytes, bytes]:
    return note.kind, note.path or note.name.encode(), note.payload


def _recorded(partition: MemoryPartition, path: bytes) -> bool:
    ends = (RecordKind.STEP_DONE, RecordKind.STEP_FAILED)
    return any(each.note.path == path and each.note.kind in ends for each in partition.journal)


def many(seeds: range, mutant: str = "") -> Tally:
    """Runs of many seeds, counted; a violation of the design itself is raised."""
    tally = Tally()
    for seed in seeds:
        run = FaultyRun(seed, mutant)
        try:
            run.run()
        except Violation:
            if not mutant:
                raise
            tally.violations += 1
        tally.runs += 1
        tally.effects += run.effects
        tally.deaths += run.deaths
        tally.refused += run.refused
        tally.folded += run.partition.folded
    return tally
