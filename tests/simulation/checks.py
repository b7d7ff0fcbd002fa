"""Invariants that must hold after every step, whatever has happened. They are checked from outside
all nodes.

    each term has one leader
    terms never go back, and a node votes once in a term
    log matching: entries of one index and term are equal, and so are all entries before them
    what a leader commits is on the disks of a majority of the voters
    the committed prefix never changes, and every later leader has it
    what a leader believes of a follower is on the follower's disk
    another replica takes a replica's place on a node only when the group has removed the first one
    the configuration in force is the last one in the log, and quorums are counted by it
    state time is ahead of the right time by at most the error of the clocks (jumps do not count)
    what is applied at one index is the same everywhere: results at each, state at some
    nothing of a removed group lives: neither the group nor its heartbeats
    no group stops, no turn fails

All checks are incremental: their cost follows what a turn has changed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from querator.model.commands import LeaseResult, Refusal
from querator.model.entries import Applied
from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from querator.model.limits import SECOND_MS, STATE_TIME_JUMP_MS_MAX
from querator.model.nodes import NodeKey, Replicas
from querator.partition.machine import PartitionMachine
from querator.raft import configuration
from querator.raft.engine.library import LEADER
from querator.raft.group.group import Group
from querator.raft.log.journal import Journal
from querator.raft.log.rows import KIND_CONFIGURATION
from querator.raft.requests import Outcome, Quarantine
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import ReadTransaction, WriteTransaction
from tests.simulation.clock import EPOCH_MS
from tests.simulation.node import SimulatedNode
from tests.simulation.timeline import MS, Timeline

DIGEST_EVERY = 97
"""State is compared at the indexes that are multiples of this."""
IN_VAIN_MAX = 10
"""Lease calls under the name of an ended lease. Some are normal: a client repeats a call whose
answer was lost.
"""
_READ_BYTES = 1 << 40
_BEGIN_SHOWN = 400
_END_SHOWN = 200
"""Characters that are shown of the end of a violation's text."""


class Violation(Exception):
    """An invariant was violated."""


@dataclass
class View:
    """The last observed state of a replica on a node, also while the node is down."""

    replica: int = 0
    """Replica id. A replica with another id is another replica, and has promised nothing yet."""
    boots: int = 0
    term: int = 0
    vote: int | None = None
    base: int = 0
    last: int = 0
    terms: dict[int, int] = field(default_factory=dict)
    """Index to term, including the sentinel's."""
    durable: int = 0
    """Last index that is on disk."""
    commit: int = 0
    leads: bool = False
    seen: tuple[Any, ...] = ()
    believed: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """What the replica, as the leader, was last found to believe of each follower."""

    def has(self, index: int, term: int) -> bool:
        """Whether the entry is on disk."""
        return index < self.base or (index <= self.durable and self.terms.get(index) == term)


@dataclass
class Truth:
    """What is known of a group from all of its replicas together."""

    leaders: dict[int, str] = field(default_factory=dict)
    entries: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """(index, term) to (term before it, hash of the content)."""
    committed: dict[int, int] = field(default_factory=dict)
    """Index to term."""
    committed_in: dict[int, int] = field(default_factory=dict)
    """Index to the term in which it was committed, which may be a later one."""
    configurations: dict[tuple[int, int], Replicas] = field(default_factory=dict)
    """(index, term) to what the entry makes of the replicas."""
    commit: int = 0
    applied: dict[int, int] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)


class Checks:
    """A `Watcher`. `violations` are sentences; the run continues until its world reads them."""

    def __init__(self, timeline: Timeline) -> None:
        self.violations: list[str] = []
        self.commits = 0
        self.elections = 0
        self.snapshots = 0
        self._in_vain: Counter[tuple[int, str]] = Counter()
        """Number of calls for a lease that has ended, by group and request."""
        self._timeline = timeline
        self._ahead_ms = 0.0
        """The most that any clock has been ahead, without jumps."""
        self._truths: dict[GroupId, Truth] = {}
        self._views: dict[tuple[str, GroupId], View] = {}
        self._aside: dict[tuple[str, GroupId], View] = {}
        """Views of disks that an older image has replaced."""

    def found(self, text: str) -> None:
        """Records a violation. Leaves out the middle of a long text, such as one with an item's
        payload.
        """
        left_out = len(text) - _BEGIN_SHOWN - _END_SHOWN
        if left_out > 0:
            begin, end = text[:_BEGIN_SHOWN], text[-_END_SHOWN:]
            text = f"{begin} … {left_out} characters … {end}"
        self._timeline.tell("CHECK", f"VIOLATION: {text}")
        self.violations.append(f"{self._timeline.now_us / 1_000_000:.6f} s: {text}")

    def forget(self, node: NodeKey, group: GroupId) -> None:
        """The replica was deleted on purpose."""
        self._views.pop((node, group), None)

    def agrees(self, group: GroupId, journal: Journal, index: int) -> bool:
        """Whether the log has the committed entry at `index`, and not an entry of a deposed leader.
        Entries that the log has dropped were applied, so they agree.
        """
        if index < journal.first_index:
            return True
        return self._truth(group).committed.get(index) == journal.term_at(index)

    def commit_index(self, group: GroupId) -> int:
        return self._truth(group).commit

    def _truth(self, group: GroupId) -> Truth:
        found = self._truths.get(group)
        if found is None:
            found = self._truths[group] = Truth()
        return found

    # --- the watcher -----------------------------------------------------------------

    def failed(self, node: SimulatedNode, error: BaseException) -> None:
        where = ""
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            where = f" at {code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}"
            trace = trace.tb_next
        self.found(f"{node.name} failed: {error!r}{where}")

    def put_back(self, node: SimulatedNode) -> None:
        """The node's disk is an older image. What it says from then on is checked against the
        cluster alone.
        """
        for key in [key for key in self._views if key[0] == node.key]:
            del self._views[key]

    def put_aside(self, node: SimulatedNode) -> None:
        """An older image takes the place of the node's disk, until the disk is brought back."""
        for key in [key for key in self._views if key[0] == node.key]:
            self._aside[key] = self._views.pop(key)

    def brought_back(self, node: SimulatedNode) -> None:
        self.put_back(node)
        for key in [key for key in self._aside if key[0] == node.key]:
            self._views[key] = self._aside.pop(key)

    def after_turn(self, node: SimulatedNode, outcome: Outcome) -> None:
        for event in outcome.events:
            if isinstance(event, Quarantine):
                self.found(f"{node.name}: group {event.group} stopped by {event.error!r}")
        turns = node.turns
        assert turns is not None
        for group_id in node.removed:
            if group_id in turns._groups or group_id in turns._heartbeats.led:
                self.found(f"{node.name}: group {group_id} was removed, and lives")
        views, key = self._views, node.endpoint
        for group_id, group in turns._groups.items():
            member, journal = group.member, group.journal
            # Straight from the attributes, because this is done for each group in each turn.
            state = member._SyncObj__raftState
            seen = (
                member._SyncObj__raftCurrentTerm, state, member._SyncObj__raftCommitIndex,
                journal.last_index, journal.last_term, journal.durable_index, journal._base_index,
                journal._vote, journal._configurations[-1][0],
            )  # fmt: skip
            view = views.get((key, group_id))
            if view is None or view.replica != journal.replica:
                if view is not None:
                    self._look_at_former(node, group, view)
                view = views[key, group_id] = View(journal.replica)
            if view.seen != seen or view.boots != node.boots:
                view.seen = seen
                self._look(node, group, view)
            if state == LEADER:
                self._followers(node, group, view)

    # --- one group on one node -----------------------------------------------------------

    def _look(self, node: SimulatedNode, group: Group, view: View) -> None:
        truth = self._truth(group.group)
        member = group.member
        who = f"{node.name}: group {group.group}"
        self._look_at_term(who, group, view)
        if view.boots != node.boots:
            view.boots = node.boots
            view.commit = 0
            view.leads = False
        self._look_at_log(who, node, group, view, truth)
        self._look_at_configuration(who, group, view, truth)
        self._look_at_time(who, node, group)
        if member.leads:
            leader = truth.leaders.setdefault(member.term, node.endpoint)
            if leader != node.endpoint:
                self.found(f"{who}: two leaders in term {member.term}, the other is {leader}")
            if not view.leads:
                self.elections += 1
                self._look_at_new_leader(who, group, truth)
        view.leads = member.leads
        if member.commit_index > view.commit:
            self._look_at_commit(who, node, group, view, truth)
        elif member.commit_index < view.commit:
            self.found(f"{who}: the commit index went from {view.commit} to {member.commit_index}")

    def _look_at_former(self, node: SimulatedNode, group: Group, view: View) -> None:
        """Checks that the group has removed the replica that was on the node before."""
        truth = self._truth(group.group)
        held = {
            index: replicas
            for (index, term), replicas in truth.configurations.items()
            if truth.committed.get(index) == term
        }
        if not held or configuration.find(held[max(held)], view.replica) is not None:
            self.found(f"{node.name}: group {group.group}: replica {group.journal.replica} is in "
                       f"the place of {view.replica}, which has not left the group")  # fmt: skip

    def _look_at_term(self, who: str, group: Group, view: View) -> None:
        term, vote = group.member.term, group.journal.getVotedForNodeId()
        if term < view.term:
            self.found(f"{who}: went back from term {view.term} to {term}")
        elif term == view.term and view.vote is not None and vote != view.vote:
            self.found(f"{who}: voted for {view.vote} and then for {vote} in term {term}")
        view.term, view.vote = term, vote

    def _look_at_time(self, who: str, node: SimulatedNode, group: Group) -> None:
        """One clock at a time jumps by days. That clock must not move state time."""
        self._ahead_ms = max(self._ahead_ms, node.clock.latest_ms)
        right_ms = EPOCH_MS + node.clock.now_us / MS
        ahead_ms = group.journal.last_ms - right_ms
        if ahead_ms > self._ahead_ms + STATE_TIME_JUMP_MS_MAX:
            self.found(f"{who}: state time is {ahead_ms / SECOND_MS:.0f} s ahead of the right time")

    def _look_at_log(
        self, who: str, node: SimulatedNode, group: Group, view: View, truth: Truth
    ) -> None:
        journal = group.journal
        base, last = journal.first_index - 1, journal.last_index
        view.durable = journal.durable_index
        assert node.turns is not None
        if journal.durable_index != last and not node.turns._transaction:
            self.found(f"{who}: after its turn entries up to {journal.durable_index} of {last} "
                       "are on disk")  # fmt: skip
        terms = view.terms
        self.snapshots += base > view.last > 0
        for index in range(last + 1, view.last + 1):
            terms.pop(index, None)
        for index in range(view.base, min(base, view.last + 1)):
            terms.pop(index, None)
        first_new = last + 1
        while first_new > base + 1 and terms.get(first_new - 1) != journal.term_at(first_new - 1):
            first_new -= 1
        if first_new <= last:
            self._compare(
                who=who,
                node=node,
                group=group,
                truth=truth,
                first=first_new,
                last=last,
                terms=terms,
            )
        if terms.get(base) != journal.term_at(base):
            if base in terms and base <= view.commit:
                self.found(f"{who}: the log begins with another term than entry {base} had")
            terms[base] = journal.term_at(base)
        view.base, view.last = base, last

    def _compare(
        self,
        who: str,
        node: SimulatedNode,
        group: Group,
        truth: Truth,
        first: int,
        last: int,
        terms: dict[int, int],
    ) -> None:
        """Compares new entries with those of the same index and term elsewhere."""
        journal = group.journal
        entries: list[Any] = []
        try:
            while first + len(entries) <= last:
                entries += journal.entries(
                    partial(node.view, group.group), first + len(entries), _READ_BYTES
                )
        except AttachmentDamaged:
            if not node.disk.damages:
                raise
            # Entries that cannot be read cannot be compared, nor can those that follow them.
            terms.update((index, journal.term_at(index)) for index in range(first, last + 1))
        before = journal.term_at(first - 1)
        for index, entry in enumerate(entries, first):
            content = hash((entry.kind, entry.now_ms, entry.command, entry.attachments))
            known = truth.entries.setdefault((index, entry.term), (before, content))
            if known != (before, content):
                self.found(f"{who}: entry {index} of term {entry.term} differs from another's")
            if entry.term != journal.term_at(index):
                self.found(f"{who}: entry {index} has two terms")
            if entry.kind == KIND_CONFIGURATION:
                truth.configurations[index, entry.term] = configuration.decode(entry.command)
            terms[index] = before = entry.term

    def _look_at_configuration(self, who: str, group: Group, view: View, truth: Truth) -> None:
        in_force = group.journal.replicas_index, group.journal.replicas
        held = {
            index: replicas
            for (index, term), replicas in truth.configurations.items()
            if view.base < index <= view.last and view.terms.get(index) == term
        }
        last = max(held, default=0)
        if (last and in_force != (last, held[last])) or (not last and in_force[0] > view.base):
            self.found(f"{who}: in force is the configuration of entry {in_force[0]}, and the last "
                       f"one in its log is {last or 'none'}")  # fmt: skip
        if group.member._voters != configuration.voters(in_force[1]):
            self.found(f"{who}: counts {sorted(group.member._voters)} as voters, and not those of "
                       "the configuration in force")  # fmt: skip

    def _look_at_new_leader(self, who: str, group: Group, truth: Truth) -> None:
        """A new leader has everything that was committed in earlier terms."""
        journal = group.journal
        must = truth.commit
        while must and truth.committed_in[must] >= group.member.term:
            must -= 1
        if journal.last_index < must:
            self.found(f"{who}: leads with a log up to {journal.last_index}, and {must} "
                       "is committed")  # fmt: skip
        for index in range(journal.first_index, min(must, journal.last_index) + 1):
            term = truth.committed.get(index)
            if term is not None and journal.term_at(index) != term:
                self.found(f"{who}: leads, and has entry {index} of term {journal.term_at(index)}, "
                           f"which is committed in term {term}")  # fmt: skip
                return

    def _look_at_commit(
        self, who: str, node: SimulatedNode, group: Group, view: View, truth: Truth
    ) -> None:
        journal, commit = group.journal, group.member.commit_index
        for index in range(max(view.commit, journal.first_index - 1) + 1, commit + 1):
            term = journal.term_at(index)
            known = truth.committed.setdefault(index, term)
            if known != term:
                self.found(
                    f"{who}: commits entry {index} of term {term}; committed is term {known}"
                )
                break
        if commit > truth.commit:
            self.commits += commit - truth.commit
            for index in range(truth.commit + 1, commit + 1):
                truth.committed_in[index] = group.member.term
            truth.commit = commit
            self._look_for_majority(who, group, commit)
        view.commit = commit

    def _look_for_majority(self, who: str, group: Group, commit: int) -> None:
        journal = group.journal
        term = journal.term_at(commit)
        voters = [replica for replica in journal.replicas if replica.voter]
        holders = [
            replica.node
            for replica in voters
            if (
                (
                    view := self._aside.get(key := (replica.node, group.group))
                    or self._views.get(key)
                )
                is not None
            )
            and view.has(commit, term)
        ]
        if 2 * len(holders) <= len(voters):
            self.found(f"{who}: commits entry {commit}, which of {len(voters)} voters only "
                       f"{len(holders)} have on disk")  # fmt: skip

    def _followers(self, node: SimulatedNode, group: Group, view: View) -> None:
        """Checks what the leader believes of its followers, when the belief or the follower has
        changed.
        """
        member, journal = group.member, group.journal
        for id_, progress in member.progress.items():
            other = member._nodes.get(id_)
            if other is None or (other, group.group) in self._aside:
                continue
            its = self._views.get((other, group.group))
            if its is None or its.term != view.term or progress.match < journal.first_index:
                continue
            believed = view.term, progress.match, progress.state, its.seen
            if view.believed.get(id_) == believed:
                continue
            view.believed[id_] = believed
            if not its.has(progress.match, journal.term_at(progress.match)):
                self.found(
                    f"{node.name}: group {group.group}: believes that {other} has entry "
                    f"{progress.match}, and its disk has entries up to {its.last}"
                )
            elif progress.state.value == "lost":
                self.found(f"{node.name}: group {group.group}: takes {other} for lost")

    # --- applied state -----------------------------------------------------------------

    def applied(self, machine: "CheckedMachine", index: int, result: int) -> bool:
        """Returns whether the entry is applied for the first time."""
        results = self._truth(GroupId(machine.group)).applied
        is_first = index not in results
        if results.setdefault(index, result) != result:
            self.found(f"{machine.node}: group {machine.group}: entry {index} has other results "
                       "than elsewhere")  # fmt: skip
        return is_first

    def leased(self, machine: "CheckedMachine", result: LeaseResult) -> None:
        """A caller that learns that a lease has ended must ask under another name."""
        for grant in result.grants:
            if isinstance(grant, Refusal) and grant.code is ErrorCode.LEASE_ENDED:
                name = machine.group, grant.value
                self._in_vain[name] += 1
                if self._in_vain[name] == IN_VAIN_MAX:
                    self.found(f"group {machine.group}: {IN_VAIN_MAX} leases were asked for under "
                               f"the name of one that has ended: {grant.value}")  # fmt: skip

    def first_applied(
        self, machine: "CheckedMachine", txn: ReadTransaction, entry: bytes, results: Sequence[Any]
    ) -> None:
        """An entry was applied for the first time; `txn` shows the state after it."""

    def digest(self, node: str, group: GroupId, index: int, digest: bytes) -> None:
        known = self._truth(group).digests.setdefault(index, digest)
        if known != digest:
            self.found(f"{node}: group {group}: after entry {index} the state is not that of "
                       "other replicas")  # fmt: skip

    # --- at the end ----------------------------------------------------------------------

    def same_logs(self, nodes: list[SimulatedNode]) -> None:
        """Reads every log from disk and compares it with all entries that were seen."""
        for node in nodes:
            if node.turns is None:
                continue
            for group_id, group in node.turns._groups.items():
                journal = group.journal
                if journal.last_index >= journal.first_index:
                    who = f"{node.name}: group {group_id}, at the end"
                    self._compare(
                        who=who, node=node, group=group, truth=self._truth(group_id),
                        first=journal.first_index, last=journal.last_index, terms={},
                    )  # fmt: skip


class CheckedMachine(PartitionMachine):
    """The real state machine. The result of each entry is compared with its result on other
    replicas.
    """

    def __init__(self, group: GroupId, node: str, checks: Checks) -> None:
        super().__init__(group)
        self.node = node
        self._checks = checks

    def apply(
        self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int
    ) -> Applied:
        applied = super().apply(txn, index, term, command, log_first=log_first)
        came_of_it = (applied.results, applied.effects, applied.due_ms)
        if self._checks.applied(self, index, hash(came_of_it)):
            for result in applied.results:
                if isinstance(result, LeaseResult):
                    self._checks.leased(self, result)
            self._checks.first_applied(self, txn, command, applied.results)
        if index % DIGEST_EVERY == 0:
            self._checks.digest(self.node, GroupId(self.group), index, self.digest(txn))
        return applied
