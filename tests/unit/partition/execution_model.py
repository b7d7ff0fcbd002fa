"""The rules of executions, written again with a dict of journals. The model shares no code with the
machine. It has no items, rows or indexes: the holder of each is a plain field.

A record is (kind, path, name, after). Outcomes are the name of an error, or a tuple.
"""

from dataclasses import dataclass, field
from typing import Any

ARRIVALS = ("SIGNAL", "RESOLVED", "TIMER_FIRED", "CANCEL", "LATER")
OPEN = ("RUNNABLE", "PARKED", "STUCK")
Entry = tuple[str, tuple[int, ...], str, int]
Outcome = str | tuple[Any, ...]


@dataclass
class Run:
    """One execution. `holder`: the lease that holds it; 0: none does."""

    number: int
    function: str
    state: str = "RUNNABLE"
    journal: dict[int, Entry] = field(default_factory=dict)
    next: int = 0
    holder: int = 0
    activation: int = 1
    """Counts the activations, so that a lease of an earlier one is known."""
    lease: int = 0
    numbers: list[int] = field(default_factory=list)
    """First indexes of the Records of `lease`."""
    seen: int = 0
    after: int = 0
    timers: dict[tuple[int, ...], int] = field(default_factory=dict)
    arrived: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Timers and promises that have arrived; those that were folded are forgotten if timers."""
    messages: dict[str, int] = field(default_factory=dict)
    wake: set[Any] | None = None
    """None: anything."""
    wake_all: bool = False
    cancelled: int = 0
    deadline: int = 0
    lapses: int = 0
    closed_at: int = 0

    def append(self, entry: Entry) -> int:
        self.journal[self.next] = entry
        self.next += 1
        return self.next - 1

    def unseen(self, seen: int) -> list[Entry]:
        return [
            entry for index, entry in self.journal.items()
            if entry[0] in ARRIVALS and index > seen
        ]  # fmt: skip

    def arrive(self, kind: str, path: tuple[int, ...] = (), name: str = "") -> int:
        index = self.append((kind, path, name, 0))
        what = name if kind == "SIGNAL" else path
        if self.state == "PARKED":
            waits = self.wake
            if kind == "CANCEL" or waits is None:
                self.run_again()
            elif what in waits:
                waits.discard(what)
                if not self.wake_all or not waits:
                    self.run_again()
        return index

    def run_again(self) -> None:
        self.state, self.holder = "RUNNABLE", 0
        self.activation += 1

    def end(self, state: str, now: int) -> None:
        self.state, self.holder, self.closed_at = state, 0, now

    def fire(self, path: tuple[int, ...]) -> None:
        del self.timers[path]
        self.arrived[path] = self.arrive("TIMER_FIRED", path)


@dataclass
class Model:
    now: int
    retention: int
    lease_ms: int
    lapses_max: int
    runs: dict[str, Run] = field(default_factory=dict)
    started: int = 0
    leases: dict[int, int] = field(default_factory=dict)
    """The deadlines of leases, whose executions name them."""

    def start(self, name: str, function: str, deadline: int) -> Outcome:
        run = self.runs.get(name)
        if run is not None:
            return ("there", run.number) if run.function == function else "EXECUTION_EXISTS"
        self.started += 1
        run = self.runs[name] = Run(self.started, function, deadline=deadline)
        run.append(("STARTED", (), function, 0))
        return ("made", run.number)

    def ready(self) -> set[str]:
        return {
            name for name, run in self.runs.items() if run.state == "RUNNABLE" and not run.holder
        }

    def leased(self, name: str, lease: int) -> None:
        run = self.runs[name]
        assert name in self.ready()
        run.holder = lease
        self.leases[lease] = self.now + self.lease_ms

    def of_number(self, number: int) -> Run | None:
        return next((run for run in self.runs.values() if run.number == number), None)

    def record(
        self,
        number: int,
        lease: int,
        activation: int,
        count: int,
        seen: int,
        notes: list[Entry],
        folds: list[tuple[int, tuple[int, ...], set[int]]],
        timers: dict[tuple[int, ...], int],
        then: tuple[Any, ...],
    ) -> Outcome:
        run = self.of_number(number)
        if run is None:
            return "EXECUTION_NOT_FOUND"
        fence = self._fence(run, lease, activation, count)
        if fence:
            return fence
        refusal = self._judge(run, seen, notes, folds, timers, then)
        if refusal:
            return refusal
        first = run.next
        for note in notes:
            run.append(note)
            run.after = note[3]
        for index, path, removed in folds:
            self._fold(run, index, path, removed)
        run.numbers = [*run.numbers, first] if run.lease == lease else [first]
        run.lease, run.seen = lease, seen
        for path, due in timers.items():
            if path not in run.arrived:
                run.timers.pop(path, None)
                if due:
                    run.timers[path] = due
        self._end(run, seen, bool(notes), then)
        return ("recorded", first)

    @staticmethod
    def _fence(run: Run, lease: int, activation: int, count: int) -> Outcome:
        if run.lease == lease and len(run.numbers) - 8 < count <= len(run.numbers):
            return ("repeated", run.numbers[count - 1])
        if run.state != "RUNNABLE" or (run.holder, run.activation) != (lease, activation):
            return "LEASE_LOST"
        if count != (len(run.numbers) if run.lease == lease else 0) + 1:
            return "SEQUENCE_GAP"
        return ""

    def _judge(
        self,
        run: Run,
        seen: int,
        notes: list[Entry],
        folds: list[Any],
        timers: dict[tuple[int, ...], int],
        then: tuple[Any, ...],
    ) -> str:
        paths = {**run.timers, **run.arrived}
        if any(kind == "TIMER_DONE" and path in paths for kind, path, _, _ in notes):
            run.state, run.holder = "STUCK", 0
            return "INVALID_ARGUMENT"
        afters = [run.after, *(note[3] for note in notes), seen]
        if not run.seen <= seen < run.next or afters != sorted(afters):
            return "INVALID_ARGUMENT"
        if not self._may_fold(run, seen, folds):
            return "INVALID_ARGUMENT"
        for path, due in timers.items():
            if due and 0 < run.arrived.get(path, 0) <= seen:
                return "INVALID_ARGUMENT"
        return self._may_end(run, seen, then)

    def _may_fold(self, run: Run, seen: int, folds: list[Any]) -> bool:
        used: set[int] = set()
        for index, path, removed in folds:
            for at in [index, *sorted(removed)]:
                entry = run.journal.get(at)
                if entry is None and at != index and at < run.next:
                    continue
                if entry is None or at in used or (entry[0] in ARRIVALS and at > seen):
                    return False
                below = len(entry[1]) > len(path) and entry[1][: len(path)] == path
                if not below and (at == index or entry[0] != "SIGNAL"):
                    return False
                used.add(at)
        return True

    def _fold(self, run: Run, index: int, path: tuple[int, ...], removed: set[int]) -> None:
        for at in [index, *removed]:
            entry = run.journal.get(at)
            if entry is not None and entry[0] == "TIMER_FIRED":
                del run.arrived[entry[1]]
        old = run.journal[index]
        run.journal[index] = ("LATER" if old[0] in ARRIVALS else "CALL_DONE", path, "", old[3])
        for at in removed:
            run.journal.pop(at, None)

    def _may_end(self, run: Run, seen: int, then: tuple[Any, ...]) -> str:
        if then[0] == "park":
            _, waits, every = then
            unseen = run.unseen(seen)
            if any(0 < run.arrived.get(one, 0) <= seen for one in waits or ()):
                return "INVALID_ARGUMENT"
            came = {name if kind == "SIGNAL" else path for kind, path, name, _ in unseen}
            if any(kind == "CANCEL" for kind, _, _, _ in unseen):
                return "UNSEEN"
            hit = bool(unseen) if waits is None else waits <= came if every else bool(waits & came)
            return "UNSEEN" if hit else ""
        if then == ("drain",) and any(entry[0] == "SIGNAL" for entry in run.unseen(seen)):
            return "UNSEEN"
        return ""

    def _end(self, run: Run, seen: int, noted: bool, then: tuple[Any, ...]) -> None:
        if noted or then[0] in ("park", "close", "drain", "stick"):
            run.lapses = 0 if noted or then[0] != "stick" else run.lapses
        if then[0] == "park":
            _, waits, run.wake_all = then
            came = {path for kind, path, _, _ in run.unseen(seen) if kind != "SIGNAL"}
            run.state, run.holder = "PARKED", 0
            run.wake = None if waits is None else set(waits) - (came if run.wake_all else set())
        elif then[0] in ("close", "drain"):
            run.append(("COMPLETED", (), "", seen))
            run.end("COMPLETED", self.now)
        elif then[0] == "stick":
            run.state, run.holder = "STUCK", 0
        elif then[0] == "back":
            run.holder = 0

    def signal(self, name: str, signal: str, message: str) -> Outcome:
        run = self.runs.get(name)
        if run is None:
            return "EXECUTION_NOT_FOUND"
        if message in run.messages:
            return ("repeated", run.messages[message])
        if run.state not in OPEN:
            return "EXECUTION_CLOSED"
        index = run.arrive("SIGNAL", name=signal)
        if message:
            run.messages[message] = index
        return ("arrived", index)

    def resolve(self, number: int, path: tuple[int, ...]) -> Outcome:
        run = self.of_number(number)
        if run is None or path in run.timers:
            return "TOKEN_INVALID"
        if path in run.arrived:
            fired = run.journal.get(run.arrived[path], ("",))[0] == "TIMER_FIRED"
            return "TOKEN_INVALID" if fired else ("repeated", run.arrived[path])
        if run.state not in OPEN:
            return "EXECUTION_CLOSED"
        run.arrived[path] = run.arrive("RESOLVED", path)
        return ("arrived", run.arrived[path])

    def cancel(self, name: str) -> Outcome:
        run = self.runs.get(name)
        if run is None or run.state not in OPEN:
            return "EXECUTION_NOT_FOUND" if run is None else "EXECUTION_CLOSED"
        if run.cancelled:
            return ("repeated", run.cancelled)
        run.cancelled = run.arrive("CANCEL", name="cancel")
        return ("arrived", run.cancelled)

    def terminate(self, name: str) -> Outcome:
        run = self.runs.get(name)
        if run is None:
            return "EXECUTION_NOT_FOUND"
        if run.state == "TERMINATED":
            return ("repeated", max(run.journal))
        if run.state not in OPEN:
            return "EXECUTION_CLOSED"
        index = run.append(("TERMINATED", (), "", 0))
        run.end("TERMINATED", self.now)
        return ("arrived", index)

    def retry(self, name: str) -> Outcome:
        run = self.runs.get(name)
        if run is None or run.state not in OPEN:
            return "EXECUTION_NOT_FOUND" if run is None else "EXECUTION_CLOSED"
        if run.state != "STUCK":
            return ("repeated", 0)
        run.run_again()
        return ("arrived", 0)

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        for lease, deadline in sorted(self.leases.items()):
            if deadline <= self.now:
                del self.leases[lease]
                for run in self.runs.values():
                    if run.holder == lease:
                        self._lapse(run)
        due = [
            (at, name, path)
            for name, run in self.runs.items()
            for path, at in [*run.timers.items(), (None, run.deadline)]
            if 0 < at <= self.now and run.state in OPEN
        ]
        for _, name, path in sorted(due, key=lambda one: one[0]):
            run = self.runs[name]
            if path is not None:
                run.fire(path)
                continue
            run.deadline = 0
            if not run.cancelled:
                run.cancelled = run.arrive("CANCEL", name="deadline")
        for name in [
            name for name, run in self.runs.items()
            if run.closed_at and run.closed_at + self.retention <= self.now
        ]:  # fmt: skip
            del self.runs[name]

    def _lapse(self, run: Run) -> None:
        run.holder = 0
        run.lapses += 1
        if run.lapses == self.lapses_max:
            run.state, run.lapses = "STUCK", 0
