"""Executions of the machine, compared with the model: after every step both have the same journals
and states. Mutants of the rules are put in, and the comparison finds them.
"""

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from querator.model.commands import FollowTarget, MoveDone, Refusal
from querator.model.execution_commands import Arrived, Recorded, RewindExecution, Rewound, Started
from querator.model.executions import (
    ArriveKind,
    ChildRefusal,
    Close,
    ExecutionState,
    Fold,
    GiveBack,
    GoOn,
    KeyPolicy,
    NewRun,
    Note,
    Park,
    Published,
    RecordKind,
    Then,
    Timer,
    encode_path,
)
from querator.model.limits import EXECUTION_LAPSES_MAX
from querator.partition import (
    execution_arrivals,
    execution_children,
    execution_runs,
    execution_starts,
    executions,
    recording,
)
from querator.partition.execution_items import send_items
from tests.unit.partition.execution_model import Entry, Model, Outcome, Run, Spawn
from tests.unit.partition.execution_queue import (
    LEASE_MS,
    RETENTION_MS,
    ExecutionQueue,
    Worker,
    spawn,
)
from tests.unit.partition.partition_log import START_MS
from tests.unit.partition.test_follow_ups import batch_of

MAIL = 9
"""The group of a queue of items."""
NAMES = st.sampled_from(["a"] * 5 + ["b", "a/1"])
AFTERS = st.sampled_from([0] * 8 + [1] * 4 + [2])
ENDS = [ArriveKind.RETRY] * 4 + [ArriveKind.CANCEL, ArriveKind.TERMINATE]
PATHS = st.sampled_from([(1,), (2,), (9, 1), (9, 2), (9, 9, 1)])
SIGNALS = st.sampled_from(["go", "stop"])
IDS = ("a", "b", "a/1", "a/2")
SPAWNS = st.lists(
    st.tuples(
        st.sampled_from(["a/1"] * 4 + ["a/2"] * 4 + ["b"]),
        st.sampled_from(["f"] * 6 + ["g"]),
        st.sampled_from(["attached", "attached", "shielded", "detached"]),
        st.sampled_from([True] * 9 + [False]),
    ),
    max_size=2,
)
KINDS = st.sampled_from(["STEP_DONE"] * 9 + ["TIMER_DONE"])
WAITS = st.frozensets(st.one_of(PATHS, SIGNALS), min_size=1, max_size=3)
THEN = st.one_of(
    st.just(("go on",)),
    st.just(("go on",)),
    st.just(("await",)),
    st.tuples(st.just("park"), st.one_of(WAITS, WAITS, st.none()), st.just(False)),
    st.tuples(st.just("park"), WAITS, st.just(False)),
    st.tuples(st.just("park"), st.frozensets(PATHS, min_size=1, max_size=3), st.just(True)),
    st.sampled_from([("close",), ("drain",), ("stick",), ("back",), ("back",), ("go on",)]),
    st.tuples(st.just("new"), st.sampled_from(["none", "all", "odd"])),
)


def then_of(then: tuple[Any, ...]) -> Then:
    if then[0] == "park":
        _, waits, every = then
        if waits is None:
            return Park(anything=True)
        paths = tuple(encode_path(one) for one in waits if not isinstance(one, str))
        return Park(paths, tuple(one for one in waits if isinstance(one, str)), every)
    if then[0] == "new":
        return NewRun(b"args of the next run", unread=runs_of(then[1]))
    others: dict[str, Then] = {
        "go on": GoOn(),
        "close": Close(RecordKind.COMPLETED),
        "drain": Close(RecordKind.COMPLETED, drain=True),
        "stick": GiveBack(stuck=True, reason="help"),
        "back": GiveBack(),
    }
    return others[then[0]]


def runs_of(indexes: set[int]) -> tuple[tuple[int, int], ...]:
    """Indexes as ranges of one, except that neighbours are joined."""
    found: list[list[int]] = []
    for index in sorted(indexes):
        if found and sum(found[-1]) == index:
            found[-1][1] += 1
        else:
            found.append([index, 1])
    return tuple((first, count) for first, count in found)


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = ExecutionQueue(lease_timeout_ms=LEASE_MS)
        self.model = Model(START_MS, RETENTION_MS, LEASE_MS, EXECUTION_LAPSES_MAX)
        self.workers: list[tuple[Worker, int]] = []
        """All that was ever leased, with the number of the activation."""
        self.instants = self.requests = 0
        self.paths = 0
        """How many operations have started children."""
        self.made = self.carried = 0
        """Items that Records have had, and those that have left the outbox."""
        self.waiting: list[bytes] = []
        """Items of Records that were applied, which have not left."""

    def instant(self, milliseconds: int) -> int:
        """An instant that no other timer has."""
        self.instants += 1
        return self.model.now + milliseconds + self.instants

    @initialize()
    def begin(self) -> None:
        self.start("a", "f", deadline=False)
        self.lease(1)

    @rule(
        name=st.sampled_from(["a", "a", "b", "b", "a/1"]),
        function=st.sampled_from(["f", "f", "g"]),
        deadline=st.booleans(),
        policy=st.sampled_from(["ATTACH", "ATTACH", "FAIL", *["RESTART_CLOSED"] * 3]),
        back=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def start(
        self, name: str, function: str, deadline: bool, policy: str = "ATTACH", back: int = 0
    ) -> None:
        """`back`: repeats this request from the end."""
        at_ms = self.instant(50_000) if deadline else 0
        self.requests += back == 0
        request = max(1, self.requests - back)
        result = self.queue.start(
            name, function=function, deadline_ms=at_ms, policy=KeyPolicy[policy],
            request=request.to_bytes(16, "big"),
        )  # fmt: skip
        expected = self.model.start(name, function, at_ms, policy, request)
        if isinstance(result, Started):
            found = ("there" if result.attached else "made", result.execution)
            assert found == expected
        else:
            assert isinstance(result, Refusal)
            assert result.code.name == expected

    @precondition(lambda self: self.model.ready())
    @rule(wanted=st.integers(1, 2))
    def lease(self, wanted: int) -> None:
        ready = self.model.ready()
        workers = self.queue.lease(wanted)
        assert len(workers) == min(wanted, len(ready))
        for worker in workers:
            name = self.queue.at(worker.item).id
            self.model.leased(name, worker.lease)
            self.workers.append((worker, self.model.runs[name].activation))

    def take(self, versions: dict[str, str], most: int) -> None:
        """A worker with some versions leases what is pinned."""
        fitting = self.model.fitting(versions)
        workers = self.queue.lease_pinned(versions, most)
        assert len(workers) == min(most, len(fitting))
        for worker in workers:
            name = self.queue.at(worker.item).id
            assert name in fitting
            self.model.taken(name, worker.lease)
            self.workers.append((worker, self.model.runs[name].activation))

    def wake(self) -> None:
        """Does what makes an execution ready, if none is."""
        for name, run in sorted(self.model.runs.items()):
            if self.model.ready():
                return
            if run.state == "STUCK":
                self.end(name, ArriveKind.RETRY)
            elif run.state == "PINNED":
                self.take({run.function: "1"}, 1)
            elif run.state == "PARKED":
                for what in sorted(run.wake or {"go"}, key=str):
                    if isinstance(what, str):
                        self.signal(name, what, "")
                    elif what in run.timers:
                        self.advance(max(0, run.timers[what] - self.model.now))
                        return
                    elif children := [n for n, link in run.links.items() if what in link.paths]:
                        child = self.model.of_number(children[0])
                        self.end(next(n for n in IDS if self.model.runs.get(n) is child),
                                 ArriveKind.TERMINATE)  # fmt: skip
                    else:
                        self.resolve(run.number, what)
        for name in ("a", "b"):
            if name not in self.model.runs:
                self.start(name, "f", deadline=False)
                return

    def worker(self, data: st.DataObject) -> tuple[Worker, int]:
        """Mostly one whose lease lives, else one of the last ones."""
        if data.draw(st.sampled_from([True] * 7 + [False]), label="live"):
            if not any(run.holder for run in self.model.runs.values()):
                self.wake()
                self.lease(1)
            for worker, activation in reversed(self.workers):
                run = self.model.of_number(worker.execution)
                if run and (run.holder, run.activation) == (worker.lease, activation):
                    return worker, activation
        at = data.draw(st.integers(1, min(3, len(self.workers))), label="worker")
        return self.workers[-at]

    @rule(
        data=st.data(),
        notes=st.lists(st.tuples(KINDS, PATHS, AFTERS), max_size=3),
        timers=st.dictionaries(PATHS, st.sampled_from([0, 0, -500, 1_000, 40_000]), max_size=2),
        then=THEN,
        odd=st.sampled_from([0] * 30 + [-1, -1, 1]),
        spawns=st.one_of(st.just([]), SPAWNS),
        cancels=st.sampled_from([0] * 5 + [1, 2]),
        items=st.sampled_from([0] * 4 + [1, 3]),
    )
    def record(
        self,
        data: st.DataObject,
        notes: list[tuple[str, tuple[int, ...], int]],
        timers: dict[tuple[int, ...], int],
        then: tuple[Any, ...],
        odd: int,
        spawns: list[tuple[str, str, str, bool]],
        cancels: int,
        items: int,
    ) -> None:
        worker, activation = self.worker(data)
        run = self.model.of_number(worker.execution)
        last = run.next - 1 if run is not None else 0
        least = run.seen if run is not None else 0
        seen = data.draw(st.sampled_from([least] * 3 + [last] * 4 + [last + 1, 0]), label="seen")
        number = max(1, self.queue.numbers.get(worker, 0) + 1 + odd)
        folds = self._folds(data, run.journal if run is not None else {})
        # `after` of a note: as the one before it, what was seen, or what is to come.
        afters = [run.after if run is not None else 0, seen, seen + 1]
        given: list[Entry] = []
        for kind, path, which in notes:
            after = afters[which] if which < 2 or odd else seen
            given.append((kind, path, "", after))
            afters[0] = after
        due = {path: self.instant(ms) if ms else 0 for path, ms in timers.items()}
        if spawns:
            then = ("go on",)
        if then[0] == "new":
            indexes = set() if run is None or then[1] == "none" else set(run.journal) - {0}
            then = ("new", {at for at in indexes if then[1] == "all" or at % 2})
        if then == ("await",):
            then = self._awaits(run)
        published = {"ab"[path[-1] % 2]: b"%d" % which for _, path, which in notes}
        started = self._starts(spawns) if then == ("go on",) else []
        ended: list[tuple[int, ...]] = [
            (9, 20 + self.paths - nth) for nth in range(min(cancels, self.paths))
        ]
        expected = self.model.record(
            worker.execution, worker.lease, activation, number, seen, given, folds, due, then,
            (started, ended), published,
        )  # fmt: skip
        produced = tuple(b"%d" % (self.made + nth) for nth in range(items))
        self.made += items
        result = self.queue.record(
            worker,
            *[Note(RecordKind[kind], encode_path(path), after=after)
              for kind, path, _, after in given],
            number=number,
            seen=seen,
            folds=tuple(
                Fold(index, Note(RecordKind.CALL_DONE, encode_path(path)), runs_of(removed))
                for index, path, removed in folds
            ),
            timers=tuple(Timer(encode_path(path), at_ms) for path, at_ms in due.items()),
            then=then_of(then),
            children=tuple(
                spawn(
                    *path, id=name, function=function, arguments=b"h" * 16,
                    shielded=way == "shielded", detached=way == "detached",
                )
                for path, name, function, way in started
            ),
            cancels=tuple(encode_path(path) for path in ended),
            published=tuple(Published(*one) for one in published.items()),
            items=produced,
            targets=(FollowTarget("mail", 0, MAIL, items),) if items else (),
        )  # fmt: skip
        found: Outcome
        if isinstance(result, Refusal):
            found = result.code.name
        else:
            assert isinstance(result, Recorded)
            found = ("repeated" if result.repeated else "recorded", result.first_index)
            self.waiting += () if result.repeated else produced
        assert found == expected

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 3))
    def carry(self, count: int) -> None:
        """Items have arrived at their queue."""
        count = min(count, len(self.waiting))
        self.carried += count
        self.queue.log.one(MoveDone(MAIL, self.carried))
        del self.waiting[:count]

    @invariant()
    def items_wait_in_their_order(self) -> None:
        batch = batch_of(self.queue.log, MAIL)
        found = () if batch is None else batch.attachment
        assert found == b"".join(self.waiting) or not (found or self.waiting)

    def children(self) -> list[Run]:
        """Children whose code can run."""
        runs = self.model.runs.values()
        return [run for run in runs if run.parent and run.state == "RUNNABLE"]

    @precondition(lambda self: self.children())
    @rule(nth=st.integers(0, 1))
    def return_from_child(self, nth: int) -> None:
        """The code of a child returns."""
        children = self.children()
        run = children[nth % len(children)]
        while not run.holder:
            self.lease(1)
        held = (run.number, run.holder, run.activation)
        worker = next(
            worker for worker, activation in self.workers
            if (worker.execution, worker.lease, activation) == held
        )  # fmt: skip
        number, seen = self.queue.numbers.get(worker, 0) + 1, run.next - 1
        expected = self.model.record(
            run.number, run.holder, run.activation, number, seen, [], [], {}, ("close",),
            ([], []), {},
        )  # fmt: skip
        result = self.queue.record(worker, seen=seen, then=Close(RecordKind.COMPLETED))
        assert isinstance(result, Recorded)
        assert expected == ("recorded", result.first_index)

    def _starts(self, spawns: list[tuple[str, str, str, bool]]) -> list[Spawn]:
        """Mostly of new operations."""
        found: list[Spawn] = []
        for name, function, way, fresh in spawns:
            self.paths += fresh or not self.paths
            path = (9, 20 + self.paths)
            if path not in [each[0] for each in found]:
                found.append((path, name, function, way))
        return found

    @staticmethod
    def _awaits(run: Run | None) -> tuple[Any, ...]:
        """A park that waits for the children."""
        links = {} if run is None else run.links
        waits = frozenset(path for link in links.values() for path in link.paths)
        return ("park", waits, False) if waits else ("go on",)

    @staticmethod
    def _folds(
        data: st.DataObject, journal: dict[int, Entry]
    ) -> list[tuple[int, tuple[int, ...], set[int]]]:
        """Mostly none, or one that may be right: a call with its last record and some before it."""
        if not data.draw(st.sampled_from([False, False, True]), label="folds"):
            return []
        path = data.draw(st.sampled_from([(9,), (9,), (9, 9), (1,)]), label="call")
        mine = [
            index for index, entry in journal.items()
            if index and len(entry[1]) > len(path) and entry[1][: len(path)] == path
        ]  # fmt: skip
        if not mine:
            return []
        index = mine[-1]
        others = [at for at in range(1, index) if at in mine]
        removed = set(others)
        if index > 1 and data.draw(st.sampled_from([False] * 3 + [True]), label="others, too"):
            removed.add(data.draw(st.integers(1, index - 1), label="stray"))
        return [(index, path, removed)]

    @rule(name=NAMES, signal=SIGNALS, message=st.sampled_from(["", "", "m1", "m2"]))
    def signal(self, name: str, signal: str, message: str) -> None:
        result = self.queue.signal(signal, name, message_id=message)
        self.compare(result, self.model.signal(name, signal, message))

    @rule(number=st.sampled_from([1, 1, 1, 2, 3]), path=PATHS, is_old=st.booleans())
    def resolve(self, number: int, path: tuple[int, ...], is_old: bool = False) -> None:
        run = self.model.of_number(number)
        of_run = 1 if is_old or run is None else run.origin
        result = self.queue.resolve(number, encode_path(path), run=of_run)
        self.compare(result, self.model.resolve(number, path, of_run))

    @rule(name=NAMES, kind=st.sampled_from(ENDS))
    def end(self, name: str, kind: ArriveKind) -> None:
        result = self.queue.arrive(kind, name)
        expected = {
            ArriveKind.CANCEL: self.model.cancel,
            ArriveKind.TERMINATE: self.model.terminate,
            ArriveKind.RETRY: self.model.retry,
        }[kind](name)
        self.compare(result, expected)

    @rule(
        data=st.data(),
        name=st.sampled_from(["a", "a", "a", "b", "a/1"]),
        keep=st.booleans(),
        back=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def rewind(self, data: st.DataObject, name: str, keep: bool, back: int) -> None:
        """Mostly to a record that is there. `back`: repeats this request from the end."""
        run = self.model.runs.get(name)
        known = [0, 1] if run is None else [*run.journal, run.next]
        to = data.draw(st.sampled_from(known), label="to")
        self.requests += back == 0
        request = max(1, self.requests - back)
        result = self.queue.log.one(
            RewindExecution(name, to, 0, request.to_bytes(16, "big"), keep_children=keep)
        )
        expected = self.model.rewind(name, to, keep, request)
        found: Outcome
        if isinstance(result, Refusal):
            found = result.code.name
        else:
            assert isinstance(result, Rewound)
            found = ("rewound", result.run, result.records, result.children)
            found = ("repeated", result.run) if result.repeated else found
        assert found == expected

    @staticmethod
    def compare(result: object, expected: Outcome) -> None:
        if isinstance(result, Refusal):
            assert result.code.name == expected
        else:
            assert isinstance(result, Arrived)
            assert ("repeated" if result.repeated else "arrived", result.index) == expected

    @rule(milliseconds=st.sampled_from([0, 1_000, 1_000, 1_000, LEASE_MS + 1] * 2 + [RETENTION_MS]))
    def advance(self, milliseconds: int) -> None:
        self.queue.log.advance(milliseconds)
        self.model.advance(milliseconds)

    @invariant()
    def the_same(self) -> None:
        for name in IDS:
            view, run = self.queue.find(name), self.model.runs.get(name)
            assert (view is None) == (run is None)
            if view is None or run is None:
                continue
            assert (view.number, view.state.name) == (run.number, run.state)
            assert (view.run, view.timers) == (run.run, len(run.timers))
            assert view.refused == tuple(run.refused)
            waits = sum(len(link.paths) for link in run.links.values())
            assert view.children == (0 if run.closed_at else waits)
            page = self.queue.values(name)
            assert {one.key: (one.value, one.version) for one in page.values} == run.published
            assert (page.version, page.closed) == (run.changes, run.closed_at > 0)
            journal = {
                record.index: (
                    {71: "LATER"}.get(record.note.kind)
                    or RecordKind(record.note.kind).name,
                    record.note.path,
                    record.note.name,
                    record.note.after,
                )
                for record in self.queue.journal(name)
            }  # fmt: skip
            assert journal == {
                index: (kind, encode_path(path), text, after)
                for index, (kind, path, text, after) in run.journal.items()
            }


class Pinning(Comparison):
    """With workers of several versions."""

    @rule(data=st.data(), refused=st.sampled_from(["", "2", "2", "3"]))
    def pin(self, data: st.DataObject, refused: str) -> None:
        """A worker cannot run what it has leased."""
        worker, activation = self.worker(data)
        number = self.queue.numbers.get(worker, 0) + 1
        expected = self.model.record(
            worker.execution, worker.lease, activation, number, 0, [], [], {}, ("pin", refused),
            ([], []), {},
        )  # fmt: skip
        then = GiveBack(reason="unlike it", pinned=True, refused=refused)
        result = self.queue.record(worker, number=number, then=then)
        if isinstance(result, Refusal):
            assert result.code.name == expected
        else:
            assert expected == ("recorded", result.first_index)

    @precondition(lambda self: any(run.state == "PINNED" for run in self.model.runs.values()))
    @rule(
        versions=st.dictionaries(
            st.sampled_from(["f", "f", "g"]), st.sampled_from(["1", "2", "3"]), min_size=1
        ),
        most=st.integers(1, 2),
    )
    def lease_pinned(self, versions: dict[str, str], most: int) -> None:
        self.take(versions, most)


TestExecutions = Comparison.TestCase
TestExecutions.settings = hypothesis_settings(max_examples=40, stateful_step_count=50)
TestPinning = Pinning.TestCase
TestPinning.settings = hypothesis_settings(max_examples=40, stateful_step_count=50)


@contextlib.contextmanager
def unfenced(monkeypatch):
    """A record without its lease."""
    monkeypatch.setattr(recording, "_holds", lambda context, command, row: row.activation > 0)
    yield


@contextlib.contextmanager
def producing_less(monkeypatch):
    """Items go out only while the worker keeps the activation."""

    def send(context, command, blocks):
        if isinstance(command.then, GoOn):
            send_items(context, command, blocks)

    monkeypatch.setattr(recording, "send_items", send)
    yield


@contextlib.contextmanager
def losing(monkeypatch):
    """An arrival is lost while the activation is leased."""
    arrive = executions.arrive

    def lost(context, number, row, record):
        if row.activation and row.last_lease:
            return row.next_index
        return arrive(context, number, row, record)

    monkeypatch.setattr(execution_arrivals, "arrive", lost)
    yield


@contextlib.contextmanager
def overlooking(monkeypatch):
    """A park over an arrival that the code has not been given."""
    monkeypatch.setattr(recording, "_behind", lambda context, command, row: [])
    yield


@contextlib.contextmanager
def outliving(monkeypatch):
    """Children outlive an execution that was cancelled, or has ended."""
    for module in (execution_children, execution_arrivals):
        monkeypatch.setattr(module, "forsake", lambda context, number, row: None)
    yield


@contextlib.contextmanager
def refusing(monkeypatch):
    """A child that is asked for twice is refused."""

    def taken(context, number, row, child, found, other):
        return ChildRefusal("EXECUTION_EXISTS", "it is there")

    monkeypatch.setattr(execution_children, "_taken", taken)
    yield


@contextlib.contextmanager
def forgetting(monkeypatch):
    """A new run has only the signals that the code was not given."""
    monkeypatch.setattr(execution_runs, "_is_in", lambda index, runs: False)
    yield


@contextlib.contextmanager
def keeping_waits(monkeypatch):
    """A new run has the timers and promises of the one before it."""
    monkeypatch.setattr(execution_runs, "_drop_waits", lambda context, number, row: None)
    yield


@contextlib.contextmanager
def beginning_twice(monkeypatch):
    """A repeated start begins an execution that has ended once more."""
    monkeypatch.setattr(execution_starts, "has_begun", lambda row, request: False)
    yield


@contextlib.contextmanager
def handing_out(monkeypatch):
    """A version that does not fit gets an execution again."""

    def forgetful(context, command, row, then):
        row.pin, row.refused = 0, []
        return give_back(context, command, row, then)

    give_back = recording._give_back
    monkeypatch.setattr(recording, "_give_back", forgetful)
    yield


@contextlib.contextmanager
def waking_for_all(monkeypatch):
    """What was pinned wakes for every worker."""
    arrive = executions.arrive

    def freed(context, number, row, record):
        if row.state == ExecutionState.PARKED:
            executions.free(row)
        return arrive(context, number, row, record)

    monkeypatch.setattr(execution_arrivals, "arrive", freed)
    yield


MUTANTS = [
    unfenced, producing_less, losing, overlooking, outliving, refusing, forgetting, keeping_waits,
    beginning_twice,
]  # fmt: skip
OF_PINS = [handing_out, waking_for_all]


@pytest.mark.parametrize("mutant", MUTANTS + OF_PINS)
def test_the_model_finds_a_mutant(mutant, monkeypatch):
    found = hypothesis_settings(
        max_examples=500, stateful_step_count=50, phases=[Phase.generate], database=None,
        deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
    )  # fmt: skip
    with mutant(monkeypatch), pytest.raises(AssertionError):
        run_state_machine_as_test(Pinning if mutant in OF_PINS else Comparison, settings=found)
