"""Recurrences of the machine, with the planning of a leader, compared with the model: after every
step both have the same recurrences and the same items.
"""

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from querator.model.commands import Complete, Done, LeaseItems, Refusal, Retry
from querator.model.entries import Proposal
from querator.model.recurrences import (
    DeleteRecurrence,
    MissedRuns,
    Overlap,
    PauseRecurrence,
    PutRecurrence,
    RecurrenceResult,
    RecurrenceSpec,
    Remind,
)
from querator.partition import queries, recurrence_queries
from querator.partition.rows import RowState
from querator.service.recurring.planning import plan
from querator.v1 import items_pb2
from tests.unit.partition.partition_log import GROUP, START_MS, PartitionLog, dead_to, lease_of
from tests.unit.partition.recurrence_model import RecurrenceModel, Spec
from tests.unit.partition.test_recurrences import lead, state, waiting

LEASE_MS = 30_000
names = st.sampled_from(["a", "a", "b"])
specs = st.builds(
    Spec,
    interval=st.sampled_from([1_000, 1_500, 1_500, 7_000, 60_000]),
    phase=st.sampled_from([None, 0, 250, 999]),
    kept=st.sampled_from([0, 1, 1, 3, 1_000]),
    missed_after=st.sampled_from([1_000, 10_000, 60_000]),
    skips=st.booleans(),
    tag=st.sampled_from([1, 2]),
)


def spec_of(spec: Spec) -> RecurrenceSpec:
    policies = {0: MissedRuns.SKIP, 1: MissedRuns.ONE}
    payload = b"%d/{{recurrence}}/{{number}}/{{due_ms}}" % spec.tag
    return RecurrenceSpec(
        interval_ms=spec.interval,
        phase_ms=-1 if spec.phase is None else spec.phase,
        missed=policies.get(spec.kept, MissedRuns.ALL),
        missed_max=max(1, spec.kept),
        missed_after_ms=spec.missed_after,
        overlap=Overlap.SKIP if spec.skips else Overlap.ALLOW,
        item=items_pb2.Item(payload=payload).SerializeToString(),
    )


class Comparison(RuleBasedStateMachine):
    @initialize(dead=st.booleans(), first=specs, second=specs)
    def begin(self, dead: bool, first: Spec, second: Spec) -> None:
        self.log = PartitionLog()
        self.log.configure(lease_timeout_ms=LEASE_MS, dead_targets=dead_to(9) if dead else ())
        self.model = RecurrenceModel(START_MS)
        self.late: list[tuple[Proposal, str, int, tuple[int, int, int]]] = []
        """Decisions of a leader that are not applied yet."""
        self.create("a", first)
        self.create("b", second)

    def compare(self, command: Any, expected: bool | None) -> None:
        result = self.log.one(command)
        if expected is None:
            assert isinstance(result, Refusal)
        else:
            assert isinstance(result, RecurrenceResult)
            assert result.changed is expected

    # -- operators

    @rule(name=names, spec=specs)
    def create(self, name: str, spec: Spec) -> None:
        self.compare(PutRecurrence(name, spec_of(spec)), self.model.create(name, spec))

    @rule(name=names, spec=specs, back=st.sampled_from([0, 0, 0, 1]))
    def update(self, name: str, spec: Spec, back: int) -> None:
        found = self.model.live.get(name)
        revision = max(1, found.revision - back) if found else 1
        expected = self.model.update(name, spec, revision)
        self.compare(PutRecurrence(name, spec_of(spec), revision), expected)

    @rule(name=names, missed=st.sampled_from([0, 1, 3]), skips=st.booleans())
    def change_the_policies(self, name: str, missed: int, skips: bool) -> None:
        found = self.model.live.get(name)
        if found is not None:
            self.update(name, found.spec._replace(kept=missed, skips=skips), 0)

    @rule(name=names, again=st.sampled_from([False, False, True]))
    def pause(self, name: str, again: bool) -> None:
        """Pauses it, or lets it continue."""
        found = self.model.live.get(name)
        paused = found is None or found.paused is again
        expected = self.model.pause(name, paused=paused)
        self.compare(PauseRecurrence(name, paused), expected)

    @rule(name=names, sure=st.sampled_from([False, False, True]))
    def delete(self, name: str, sure: bool) -> None:
        if sure:
            self.compare(DeleteRecurrence(name), self.model.delete(name))

    # -- time, and the leader

    @rule(milliseconds=st.sampled_from([1, 400, 1_000, 5_000, 29_999, 90_000]), led=st.booleans())
    def pass_time(self, milliseconds: int, led: bool) -> None:
        """Without a leader only the state time continues."""
        self.log.advance(milliseconds)
        self.log.one(Remind())
        self.model.now = self.log.now_ms
        if led:
            self.lead()

    @rule(milliseconds=st.sampled_from([1_000, 1_000, 7_000, 60_000]))
    def work_as_usual(self, milliseconds: int) -> None:
        self.pass_time(milliseconds, led=True)

    @rule()
    def lead(self) -> None:
        lead(self.log)
        for name in self.model.live:
            self.model.decide(name, self.model.now)

    def seen(self, name: str) -> tuple[int, int, int]:
        """By what a decision is the next one."""
        with self.log.environment.snapshot() as txn:
            [one] = recurrence_queries.by_name(txn, GROUP, name).recurrences
        return one.number, one.row.revision, one.runs.after_ms

    @rule()
    def plan_a_decision(self) -> None:
        page = waiting(self.log)
        for one in page.recurrences:
            name = one.row.name
            if len(self.model.live[name].due_times(self.model.now)) < 50:
                proposal = Proposal(*plan(GROUP, one, page.now_ms))
                self.late.append((proposal, name, page.now_ms, self.seen(name)))

    @rule()
    def apply_late_decisions(self) -> None:
        """Of this leader, or of one before: it is repeated, out of date, or the next one."""
        for proposal, name, now_ms, seen in self.late:
            fired = self.model.live[name].fired if name in self.model.live else -1
            waits = any(one.row.name == name for one in waiting(self.log).recurrences)
            fits = waits and self.seen(name) == seen and proposal.command.number == fired + 1
            assert self.log.entry(proposal) == (Done(int(fits)),)
            if fits:
                self.model.decide(name, now_ms)
        self.late = []

    # -- the items

    @rule(
        count=st.sampled_from([1, 3, 100]),
        what=st.sampled_from(["done", "reject", "later", "hold"]),
    )
    def work(self, count: int, what: str) -> None:
        """Held leases lapse when their time has passed."""
        before = self.leased()
        grant = self.log.one(lease_of(count)).grants[0]
        if not grant.lease or what == "hold":
            return
        taken = self.leased() - before
        leases = (LeaseItems(grant.lease),)
        if what == "later":
            self.log.one(Retry(leases, retry_at_ms=self.log.now_ms + 40_000))
            return
        command = Complete(leases) if what == "done" else Retry(leases, dead=True)
        self.log.one(command)
        for text in taken:
            del self.model.items[text]

    def leased(self) -> set[str]:
        return {text for text, found in self.held().items() if found == "leased"}

    def held(self) -> dict[str, str]:
        """The items of the machine that are not finished, with their states, by payload."""
        found: dict[str, str] = {}
        after = 0
        while True:
            with self.log.environment.snapshot() as txn:
                page = queries.peek(
                    txn, GROUP, None, after_seq=after, limit=1_000, bytes_max=1 << 20
                )
            for one in page.items:
                [item] = items_pb2.LeasedBatch.FromString(one.item).items
                if one.state != RowState.MOVING:
                    text = item.payload.decode()
                    assert text not in found, "each due time has one item"
                    found[text] = RowState(one.state).name.lower()
            after = page.after_seq
            if not after:
                return found

    @invariant()
    def both_are_alike(self) -> None:
        model = self.model
        assert self.held().keys() == model.items.keys()
        with self.log.environment.snapshot() as txn:
            page = recurrence_queries.page(txn, GROUP, after=0, limit=100, bytes_max=1 << 20)
        assert [one.row.name for one in page.recurrences] == [*model.live]
        for one, expected in zip(page.recurrences, model.live.values(), strict=True):
            row, runs = one.row, one.runs
            assert (row.spec, row.revision, row.paused, row.created_ms) == (
                spec_of(expected.spec), expected.revision, expected.paused, expected.created,
            )  # fmt: skip
            assert (runs.fired, runs.skipped, runs.missed, runs.last_due_ms) == (
                expected.fired, expected.skipped, expected.missed, expected.last_due,
            )  # fmt: skip
            if runs.next_due_ms:
                assert runs.next_due_ms == model.next_due(row.name)
        sums = state(self.log)
        assert (sums.runs_fired, sums.runs_skipped, sums.runs_missed) == (
            model.fired, model.skipped, model.missed,
        )  # fmt: skip


Comparison.TestCase.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=40, deadline=None
)
TestComparison = Comparison.TestCase
