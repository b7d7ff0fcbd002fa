"""The rules of executions, written again with a dict of journals. The model shares no code with the
machine. It has no items, rows or indexes: the holder of each is a plain field.

A record is (kind, path, name, after). Outcomes are the name of an error, or a tuple.
"""

from dataclasses import dataclass, field
from typing import Any

RESULTS = {"COMPLETED": "CHILD_DONE", "TERMINATED": "CHILD_TERMINATED"}
ARRIVALS = (
    "SIGNAL", "RESOLVED", "TIMER_FIRED", "CANCEL", "LATER", "CHILD_STARTED", "CHILD_REFUSED",
    *RESULTS.values(),
)  # fmt: skip
OPEN = ("RUNNABLE", "PARKED", "STUCK", "PINNED")
Entry = tuple[str, tuple[int, ...], str, int]
Outcome = str | tuple[Any, ...]
Spawn = tuple[tuple[int, ...], str, str, str]
"""A start: path, id, function, and `attached`, `shielded` or `detached`."""


@dataclass
class Link:
    """A child that has not ended, as its parent knows it. `ends`: when it is cancelled, if it is:
    with the `cancel` of its parent, or with the `end`.
    """

    paths: list[tuple[int, ...]]
    ends: str


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
    parent: int = 0
    links: dict[int, Link] = field(default_factory=dict)
    """Children that have not ended, by number."""
    forsaken: list[int] = field(default_factory=list)
    """When its children are to be cancelled."""
    published: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """The values by key, each with its version."""
    changes: int = 0
    run: int = 1
    parent_run: int = 0
    requests: list[int] = field(default_factory=list)
    """Those that have begun a run."""
    pinned: bool = False
    """Whether it was pinned in this run."""
    refused: list[str] = field(default_factory=list)
    origin: int = 1
    cuts: list[tuple[int, int]] = field(default_factory=list)
    parent_index: int = 0
    former: list[int] = field(default_factory=list)
    since: dict[int, int] = field(default_factory=dict)
    """The first record that each fold has removed."""
    lost: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Children that have ended behind the end of this one, by the paths that wait for them."""
    end_at: int = 0

    def publish(self, values: dict[str, bytes]) -> None:
        for key, value in values.items():
            if self.published.get(key, (None, 0))[0] != value:
                self.changes += 1
                self.published[key] = (value, self.changes)

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
        self.state, self.holder = "PINNED" if self.pinned else "RUNNABLE", 0
        self.activation += 1

    def pin(self, refused: str) -> None:
        self.pinned = True
        if refused and refused not in self.refused:
            self.refused.append(refused)
        self.run_again()

    def free(self) -> None:
        self.pinned, self.refused = False, []
        self.run_again()

    def renew(self, seen: int, unread: set[int]) -> None:
        """A new run: what the code has not received stays."""
        self.journal = {0: ("STARTED", (), self.function, 0)} | {
            index: entry for index, entry in self.journal.items()
            if (index > seen and entry[0] in ("SIGNAL", "CANCEL"))
            or (index in unread and entry[0] == "SIGNAL")
        }  # fmt: skip
        self.timers, self.arrived, self.links, self.since, self.cuts = {}, {}, {}, {}, []
        self.seen = self.after = self.lapses = 0
        self.run += 1
        self.origin = self.run
        self.free()

    def end(self, state: str, now: int) -> None:
        self.state, self.holder, self.closed_at = state, 0, now
        self.end_at = self.next - 1

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
    orphans: list[int] = field(default_factory=list)
    """Children of executions whose place others have taken; they are cancelled soon."""
    leases: dict[int, int] = field(default_factory=dict)
    """The deadlines of leases, whose executions name them."""

    def start(self, name: str, function: str, deadline: int, policy: str, request: int) -> Outcome:
        run = self.runs.get(name)
        if run is not None:
            if request in run.requests[-16:]:
                return ("made", run.number)
            if policy == "RESTART_CLOSED" and run.state not in OPEN:
                self._restart(name, run, function, deadline, request)
                return ("made", run.number)
            if run.function != function or policy == "FAIL":
                return "EXECUTION_EXISTS"
            return ("there", run.number)
        self.started += 1
        run = self.runs[name] = Run(self.started, function, deadline=deadline)
        run.requests.append(request)
        run.append(("STARTED", (), function, 0))
        return ("made", run.number)

    def _restart(self, name: str, run: Run, function: str, deadline: int, request: int) -> None:
        """Another run of an execution that has ended: nothing stays but its name and number."""
        for child, link in sorted(run.links.items()):
            if link.ends:
                self._cancel(self._open(child), "parent")
        self.runs[name] = begun = Run(
            run.number, function, deadline=deadline, run=run.run + 1, messages=run.messages,
            lease=run.lease, numbers=run.numbers, changes=run.changes,
            requests=[*run.requests, request], next=run.next,
            activation=run.activation + 1, origin=run.run + 1,
        )  # fmt: skip
        begun.journal[0] = ("STARTED", (), function, 0)

    def ready(self) -> set[str]:
        return {
            name for name, run in self.runs.items() if run.state == "RUNNABLE" and not run.holder
        }

    def leased(self, name: str, lease: int) -> None:
        run = self.runs[name]
        assert name in self.ready()
        run.holder = lease
        self.leases[lease] = self.now + self.lease_ms

    def fitting(self, versions: dict[str, str]) -> set[str]:
        """What is pinned, and may be leased by a worker with these versions of functions."""
        return {
            name for name, run in self.runs.items()
            if run.state == "PINNED"
            and run.function in versions and versions[run.function] not in run.refused
        }  # fmt: skip

    def taken(self, name: str, lease: int) -> None:
        run = self.runs[name]
        run.state, run.holder = "RUNNABLE", lease
        run.activation += 1
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
        children: tuple[list[Spawn], list[tuple[int, ...]]],
        published: dict[str, bytes],
    ) -> Outcome:
        """`children`: those that start, and the operations whose children are cancelled."""
        spawns, cancels = children
        run = self.of_number(number)
        if run is None:
            return "EXECUTION_NOT_FOUND"
        fence = self._fence(run, lease, activation, count)
        if fence:
            return fence
        refusal = self._judge(run, seen, notes, folds, timers, spawns, then)
        if refusal:
            return refusal
        first = run.next
        run.publish(published)
        for note in notes:
            run.append(note)
            run.after = note[3]
        for index, path, removed in folds:
            self._fold(run, index, path, removed)
        run.numbers = [*run.numbers, first] if run.lease == lease else [first]
        run.lease, run.seen = lease, max(run.seen, seen)
        for path, due in timers.items():
            if path not in run.arrived:
                run.timers.pop(path, None)
                if due:
                    run.timers[path] = due
        for path in cancels:
            self._cancel_child(run, (*path, 1))
        for spawn in spawns:
            self._spawn(run, seen, spawn)
        self._end(run, seen, bool(notes or spawns), then)
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
        spawns: list[Spawn],
        then: tuple[Any, ...],
    ) -> str:
        paths = {**run.timers, **run.arrived}
        if any(kind == "TIMER_DONE" and path in paths for kind, path, _, _ in notes):
            run.state, run.holder = "STUCK", 0
            return "INVALID_ARGUMENT"
        # What no code was given is given back.
        least = 0 if then[0] in ("pin", "back", "stick") and not notes else run.seen
        afters = [run.after, *(note[3] for note in notes), max(seen, run.seen)]
        if not least <= seen < run.next or afters != sorted(afters):
            return "INVALID_ARGUMENT"
        if not self._may_fold(run, seen, folds):
            return "INVALID_ARGUMENT"
        for path, due in timers.items():
            if due and 0 < run.arrived.get(path, 0) <= seen:
                return "INVALID_ARGUMENT"
        waits = {path for link in run.links.values() for path in link.paths}
        for path, *_ in spawns:
            if (*path, 1) in waits or (*path, 1) in run.arrived:
                return "INVALID_ARGUMENT"
        if then[0] == "new":
            is_open = any(link.ends for link in run.links.values())
            return "INVALID_ARGUMENT" if is_open or 0 < run.cancelled <= seen else ""
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
                if entry[0] == "CHILD_STARTED" and self._waits(run, seen, (*entry[1], 1)):
                    return False
                used.add(at)
        return True

    @staticmethod
    def _waits(run: Run, seen: int, path: tuple[int, ...]) -> bool:
        """Whether the result of a child has not come, or was not given to the code."""
        is_open = any(path in link.paths for link in run.links.values())
        return is_open or run.arrived.get(path, 0) > seen

    def _fold(self, run: Run, index: int, path: tuple[int, ...], removed: set[int]) -> None:
        for at in [index, *removed]:
            entry = run.journal.get(at)
            if entry is not None and entry[0] in ("TIMER_FIRED", *RESULTS.values()):
                del run.arrived[entry[1]]
        old = run.journal[index]
        gone = [at for at in [index, *removed] if at in run.journal]
        run.since[index] = min(run.since.get(at) or at for at in gone)
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
            self._close(run, "COMPLETED")
        elif then[0] == "new":
            run.renew(seen, then[1])
        elif then[0] == "stick":
            run.state, run.holder = "STUCK", 0
        elif then[0] == "pin":
            run.pin(then[1])
        elif then[0] == "back":
            run.holder = 0
            if run.pinned:
                run.run_again()

    # --- children --------------------------------------------------------------------------------

    def _open(self, number: int) -> Run:
        run = self.of_number(number)
        assert run is not None
        assert run.state in OPEN
        return run

    def _spawn(self, run: Run, seen: int, spawn: Spawn) -> None:
        path, name, function, way = spawn
        other = self.runs.get(name)
        mine = (run.number, run.origin)
        is_mine = other is not None and (other.parent, other.parent_run) == mine
        former: list[int] = []
        if other is not None and (
            other.parent in run.former
            or (is_mine and any(first <= other.parent_index < end for first, end in run.cuts))
        ):
            if other.state in OPEN:
                other.append(("TERMINATED", (), "", 0))
                self._close(other, "TERMINATED")
            self.orphans += sorted(other.links)
            former = [*other.former, other.number]
            del self.runs[name]
            other, is_mine = None, True
        if other is not None and not (is_mine and other.function == function):
            run.arrive("CHILD_REFUSED", path, function)
            return
        index = run.arrive("CHILD_STARTED", path, function)
        if other is None:
            self.started += 1
            other = self.runs[name] = Run(
                self.started, function, parent=run.number, parent_run=run.origin,
                parent_index=index, former=former,
            )  # fmt: skip
            other.append(("STARTED", (), function, 0))
            ends = {"attached": "cancel", "shielded": "end", "detached": ""}[way]
            if ends == "cancel" and run.cancelled:
                ends = "end"
                if seen < run.cancelled:
                    ends = ""
                    self._cancel(other, "parent")
            run.links[other.number] = Link([(*path, 1)], ends)
        elif other.state in OPEN:
            if not run.links[other.number].paths:
                other.parent_index = index
            run.links[other.number].paths.append((*path, 1))
        else:
            self._give(run, other, (*path, 1))

    def _give(self, run: Run, child: Run, path: tuple[int, ...]) -> None:
        run.arrived[path] = run.arrive(RESULTS[child.state], path, child.function)

    def _close(self, run: Run, state: str) -> None:
        run.end(state, self.now)
        if run.links:
            run.forsaken.append(self.now)
        parent = self.of_number(run.parent)
        if parent is not None:
            # A later run of the parent does not wait for it.
            link = parent.links.pop(run.number, None)
            for path in link.paths if link else ():
                if parent.state in OPEN:
                    self._give(parent, run, path)
                else:
                    parent.lost[path] = run.number

    def _cancel(self, run: Run, why: str) -> None:
        if not run.cancelled:
            run.cancelled = run.arrive("CANCEL", name=why)
            if run.links:
                run.forsaken.append(self.now)

    def _cancel_child(self, run: Run, path: tuple[int, ...]) -> None:
        for child, link in run.links.items():
            if path in link.paths:
                self._cancel(self._open(child), "parent")

    def _forsake(self, run: Run) -> None:
        """The children of an execution that was cancelled, or has ended, are cancelled."""
        ends = ("cancel",) if run.state in OPEN else ("cancel", "end")
        for child, link in sorted(run.links.items()):
            if link.ends in ends:
                link.ends = ""
                self._cancel(self._open(child), "parent")

    # --- clients ---------------------------------------------------------------------------------

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

    def resolve(self, number: int, path: tuple[int, ...], of_run: int) -> Outcome:
        run = self.of_number(number)
        waits = [] if run is None else [one for link in run.links.values() for one in link.paths]
        waits += [] if run is None else run.lost
        if run is None or of_run != run.origin or path in run.timers or path in waits:
            return "TOKEN_INVALID"
        if path in run.arrived:
            kind = run.journal.get(run.arrived[path], ("",))[0]
            others = ("TIMER_FIRED", *RESULTS.values())
            return "TOKEN_INVALID" if kind in others else ("repeated", run.arrived[path])
        if run.state not in OPEN:
            return "EXECUTION_CLOSED"
        run.arrived[path] = run.arrive("RESOLVED", path)
        return ("arrived", run.arrived[path])

    def cancel(self, name: str) -> Outcome:
        run = self.runs.get(name)
        if run is None:
            return "EXECUTION_NOT_FOUND"
        if run.cancelled:
            return ("repeated", run.cancelled)
        if run.state not in OPEN:
            return "EXECUTION_CLOSED"
        self._cancel(run, "cancel")
        return ("arrived", run.cancelled)

    def terminate(self, name: str) -> Outcome:
        run = self.runs.get(name)
        if run is None:
            return "EXECUTION_NOT_FOUND"
        if run.state == "TERMINATED":
            return ("repeated", run.end_at)
        if run.state not in OPEN:
            return "EXECUTION_CLOSED"
        index = run.append(("TERMINATED", (), "", 0))
        self._close(run, "TERMINATED")
        return ("arrived", index)

    def rewind(self, name: str, to: int, keep: bool, request: int) -> Outcome:
        run = self.runs.get(name)
        if run is None:
            return "EXECUTION_NOT_FOUND"
        if request in run.requests[-16:]:
            return ("repeated", run.run)
        folds = [at for at, since in run.since.items() if since <= to < at and at in run.journal]
        ends = ("COMPLETED", "TERMINATED")
        if folds or to not in run.journal or run.journal[to][0] in ends:
            return "INVALID_ARGUMENT"
        starts = {
            (*entry[1], 1) for at, entry in run.journal.items()
            if at <= to and entry[0] == "CHILD_STARTED"
        }  # fmt: skip
        before = len(run.journal)
        run.journal = {
            at: entry for at, entry in run.journal.items()
            if at <= to or entry[0] == "SIGNAL"
            or (entry[0] in RESULTS.values() and entry[1] in starts)
        }  # fmt: skip
        cancelled = self._cut(run, to, starts, keep)
        run.requests.append(request)
        if run.state not in OPEN:
            run.parent = run.parent_run = 0
        if run.cancelled > to:
            run.cancelled = 0
            if run.deadline <= self.now:
                run.deadline = 0
        if run.state not in OPEN and run.deadline <= self.now and not run.cancelled:
            run.deadline = 0
        run.closed_at = run.lapses = 0
        run.seen = run.after = max(
            entry[3] for entry in run.journal.values() if entry[0] not in ARRIVALS
        )  # fmt: skip
        run.run += 1
        run.free()
        cut = before - len(run.journal)
        for path, child in sorted(run.lost.items()):
            if path in starts:
                other = self.of_number(child)
                assert other is not None
                self._give(run, other, path)
                cut -= 1
        run.lost = {}
        return ("rewound", run.run, cut, cancelled)

    def _cut(self, run: Run, to: int, starts: set[tuple[int, ...]], keep: bool) -> int:
        """What was waited for behind a record goes; returns how many children were cancelled."""
        run.timers = {}
        run.arrived = {
            path: at for path, at in run.arrived.items() if at <= to or at in run.journal
        }  # fmt: skip
        cancelled = 0
        for child, link in sorted(run.links.items()):
            other = self._open(child)
            if other.parent_index > to and not keep:
                del run.links[child]
                self._cancel(other, "parent")
                cancelled += 1
            else:
                link.paths = [path for path in link.paths if path in starts]
        if not keep:
            run.cuts = [one for one in run.cuts if one[0] <= to] + [(to + 1, run.next)]
        return cancelled

    def retry(self, name: str) -> Outcome:
        run = self.runs.get(name)
        if run is None or run.state not in OPEN:
            return "EXECUTION_NOT_FOUND" if run is None else "EXECUTION_CLOSED"
        if run.state not in ("STUCK", "PINNED"):
            return ("repeated", 0)
        run.free()
        return ("arrived", 0)

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        for lease, deadline in sorted(self.leases.items()):
            if deadline <= self.now:
                del self.leases[lease]
                for run in self.runs.values():
                    if run.holder == lease:
                        self._lapse(run)
        while self._fire():
            pass
        for name in [
            name for name, run in self.runs.items()
            if run.closed_at and run.closed_at + self.retention <= self.now
        ]:  # fmt: skip
            del self.runs[name]

    def _fire(self) -> bool:
        """What is due, the earliest first. What it makes due comes in the next round."""
        for child in self.orphans:
            self._cancel(self._open(child), "parent")
        self.orphans = []
        due: list[tuple[int, Run, Any]] = []
        for run in self.runs.values():
            due += [(at, run, "forsake") for at in run.forsaken]
            run.forsaken = []
            if run.state in OPEN:
                due += [(at, run, path) for path, at in run.timers.items() if at <= self.now]
            if run.state in OPEN and 0 < run.deadline <= self.now:
                due.append((run.deadline, run, "deadline"))
        for _, run, what in sorted(due, key=lambda one: one[0]):
            if what == "forsake":
                self._forsake(run)
            elif what == "deadline":
                run.deadline = 0
                self._cancel(run, "deadline")
            else:
                run.fire(what)
        return bool(due)

    def _lapse(self, run: Run) -> None:
        run.holder = 0
        run.lapses += 1
        if run.lapses == self.lapses_max:
            run.state, run.lapses = "STUCK", 0
        elif run.pinned:
            run.run_again()
