"""The turn: what the raft thread does for all groups at once, without the thread.

    0 remember  the starts of connected nodes, synced, before messages of these nodes count
    1 take      requests of the asyncio thread; groups with due work propose for themselves
    2 deliver   messages of other nodes, each to its group
    3 tick      the library's election and commit rule, for groups that have reason
    4 append    waiting calls, one entry per group, bounded (`raft.turn.batcher`); a lone voter
                ticks after that, to be done in one turn
    5 send      entries to followers, which write them while this node does
    6 write     journal rows, terms and votes of all groups into one write transaction
    7 apply     committed entries, each group in a child transaction
    8 commit    synced, once for all groups; nothing that the turn writes is known outside before;
                only results of entries that an earlier turn has written are delivered before it
    9 send      acknowledgements, votes, requests for votes
    10 outcome  results, errors and events, for the caller to deliver

With one voter an entry is appended, committed, applied and answered in one turn and one sync. With
more voters it takes two turns; the second begins when a majority has acknowledged. A turn without
writes does not commit. A turn whose commit no caller waits for may leave it to a later turn
(`raft.turn.open_transaction`). A leader counts its own log for an entry when the entry is durable,
like that of a slow follower. While the commit runs the interpreter is free, and new requests gather
for the next turn: group commit without a timer.

All groups that this node leads share one heartbeat to each other node (`raft.turn.heartbeats`): an
idle group costs a few bytes, and no tick.

Space is checked before anything is accepted and, where it is scarce, with each entry that is
applied (`raft.log.disk_budget`). A transaction that fails nevertheless ends the process, because
memory is then ahead of the disk; any exception from `turn` means that.

The module is longer than 500 lines: the order of the steps ensures the guarantees, and is read in
one place.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from querator.model.entries import Need, Tier
from querator.model.errors import QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    LOG_BYTES_KEPT,
    PROPOSAL_BYTES_UNAPPLIED_MAX,
    PROPOSAL_TIMEOUT_MS,
    TURN_ROWS_MAX,
)
from querator.model.nodes import NodeKey
from querator.raft.clock import Clock
from querator.raft.consensus.loop_watch import LoopWatch
from querator.raft.consensus.skew import Skew
from querator.raft.group import call_errors
from querator.raft.group.group import Group
from querator.raft.group.packing import Packed
from querator.raft.group.pending import Backlog
from querator.raft.group.snapshot_schedule import SnapshotTraffic
from querator.raft.log.disk_budget import DiskBudget
from querator.raft.log.journal import GroupDeleted
from querator.raft.log.window import LogWindow
from querator.raft.messages import (
    Append,
    Envelope,
    Heartbeat,
    HeartbeatReply,
    Meetings,
    RequestVote,
    VoteReply,
)
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.peers import Connected, Disconnected, PeerEvent, Peers, Quiet, Received
from querator.raft.requests import (
    Call,
    Damaged,
    Mend,
    Open,
    Outcome,
    Quarantine,
    Read,
    Reconfigure,
    Remove,
    Request,
    Stop,
    Transfer,
)
from querator.raft.starts import StartMemory
from querator.raft.stats import TurnGatherer
from querator.raft.status import GroupStatus
from querator.raft.turn.batcher import Batcher
from querator.raft.turn.deletions import Deletions
from querator.raft.turn.heartbeats import Heartbeats
from querator.raft.turn.meeting import Meeting
from querator.raft.turn.mending import Mending
from querator.raft.turn.open_transaction import OpenTransaction
from querator.raft.turn.timers import GroupTimers
from querator.storage.environment import Environment, StorageCorrupt, WriteTransaction

_Done = tuple["asyncio.Future[None]", QueratorError | None]
_SMALL_NEED = Need(Tier.FREES, 0)
_NONE: Mapping[GroupId, Group] = {}
_TRIM_GROUPS_MAX = 16
"""Most logs that shrink in one turn, the largest first."""


class Turns:
    """All groups of a node. One thread calls it, bound to `clock` (`library.bind`)."""

    def __init__(
        self,
        environment: Environment,
        *,
        clock: Clock,
        chance: random.Random,
        node: NodeKey,
        peers: Peers,
        log_bytes_kept: int = LOG_BYTES_KEPT,
        early: Callable[[Outcome], None] | None = None,
        starts: StartMemory | None = None,
    ) -> None:
        """`early` receives, just before a turn's sync, the results that may be known without it;
        None: they come with the rest. `starts` is the record by which the transport judges nodes;
        None: empty.
        """
        self._environment = environment
        self._tell_early = early
        self._clock = clock
        self._node = node
        self._outbox = PeerOutbox(peers)
        self._meetings = Meeting(
            StartMemory(node, {}) if starts is None else starts, clock=clock, outbox=self._outbox
        )
        self._chance = chance
        self._window = LogWindow(log_bytes_kept)
        self._groups: dict[GroupId, Group] = {}
        self._heartbeats = Heartbeats(self._groups, clock=clock, outbox=self._outbox)
        self.skew = Skew(clock)
        self.loop_watch = LoopWatch()
        """Checked by the component that makes the turns, if there are other nodes."""
        self._opening: dict[GroupId, Open] = {}
        self._deletions = Deletions()
        self._batcher = Batcher()
        self._backlog = Backlog(bytes_max=PROPOSAL_BYTES_UNAPPLIED_MAX)
        self._dirty: dict[GroupId, Group] = {}
        self._timers = GroupTimers()
        self._disk_budget = DiskBudget(environment, node)
        self._mending = Mending(self._disk_budget)
        self._transaction = OpenTransaction(environment, clock)
        self.stats = TurnGatherer()
        self.traffic = SnapshotTraffic()
        """Traffic of snapshots."""

    def turn(self, requests: Sequence[Request], events: Sequence[PeerEvent] = ()) -> Outcome:
        """Makes a turn. Raises StorageError or AssertionError: the process must then stop and
        recover from disk.
        """
        outcome = Outcome()
        clock = self._clock.monotonic_s
        started = clock()
        self._disk_budget.begin_turn()
        self._remember(events, outcome)
        for request in requests:
            self._take(request, outcome)
        for event in events:
            self._deliver(event, outcome)
        self._wake_due_groups(started, outcome)
        if self.loop_watch.hangs:
            # The led groups must hand over their leaderships.
            self._dirty.update(self._heartbeats.led)
        self._call()
        taken = clock()
        for group in self._dirty.values():
            if not group.is_only_voter:
                group.tick()
        self._check_groups(outcome)
        ticked = clock()
        counts = self._append(outcome)
        self._transaction.bytes += counts[2]
        for group in self._dirty.values():
            if group.is_only_voter:
                group.tick()
                group.check(outcome)
            group.send(outcome)
        self._heartbeats.send(started, outcome)
        self._outbox.send_now()
        appended = clock()
        instants = self._write(outcome)
        self._outbox.send_later()
        if instants is not None:
            written, applied, committed = instants
            self.stats.add(
                take_us=_us(taken - started),
                tick_us=_us(ticked - taken),
                append_us=_us(appended - ticked),
                write_us=_us(written - appended),
                apply_us=_us(applied - written),
                commit_us=_us(committed - applied),
                turn_us=_us(committed - started),
            )
        if counts[0]:
            self.stats.add(entries=counts[0], commands=counts[1], bytes=counts[2])
        return outcome

    def _remember(self, events: Sequence[PeerEvent], outcome: Outcome) -> None:
        """Writes the starts of connected nodes to disk before anything of these nodes counts."""
        if self._meetings.must_be_kept(events):
            txn = self._transaction.begin()
            try:
                self._meetings.flush(txn)
            except BaseException:
                txn.abort()
                raise
            self._stored(self._transaction.commit(txn), outcome)
        self._meetings.send_starts()

    def _check_groups(self, outcome: Outcome) -> None:
        for group in self._dirty.values():
            if group.is_only_voter and group.member.leads:
                continue
            group.check(outcome)
            leader_term = group.leader_term
            if leader_term is None:
                continue
            if leader_term.transferring:
                leader_term.held[:0] = self._batcher.remove(group.group)
            elif leader_term.held:
                self._batcher.add_first(leader_term.held)
                leader_term.held = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do before a request, a message or a timer."""
        if self._batcher or self._dirty or self._deletions or self._mending:
            return False
        if self._meetings.pending:
            return False
        return not (self.traffic.calls or self._outbox.calls)

    @property
    def all_answered(self) -> bool:
        """Whether every accepted call is answered, or waits for a majority that is not heard.
        Groups may still be being deleted; a later request continues that.
        """
        if self._batcher or self._dirty or self._transaction:
            return False
        return not any(
            group.waiting and group.member.may_still_commit for group in self._groups.values()
        )

    def wait_s(self) -> float | None:
        """Seconds until there is something to do without a request; None: for ever."""
        if not self.idle:
            return 0.0
        instants = (
            self._timers.first_s,
            self._heartbeats.due_s,
            self._transaction.due_s,
            self._meetings.due_s,
        )
        first_s = min((instant for instant in instants if instant is not None), default=None)
        return None if first_s is None else max(0.0, first_s - self._clock.monotonic_s())

    def end(self) -> None:
        """After the last turn, on the thread of the turns."""
        self._transaction.abandon()

    def groups(self) -> list[GroupId]:
        return list(self._groups)

    def status(self, group: GroupId) -> GroupStatus | None:
        found = self._groups.get(group)
        return None if found is None else found.status

    # --- 1 take -------------------------------------------------------------------

    def _take(self, request: Request, outcome: Outcome) -> None:
        match request:
            case Call():
                self._take_call(request, outcome)
            case Open():
                self._open(request, outcome)
            case Remove():
                self._remove(request, outcome)
            case Read() | Transfer() | Reconfigure():
                self._ask(request, outcome)
            case Mend():
                self._mending.add(request)
            case Stop():
                raise AssertionError("the thread's own business")

    def _take_call(self, call: Call, outcome: Outcome) -> None:
        group = self._groups.get(call.group)
        if group is None or group.leader_term is None:
            outcome.errors.append((call, refusal(call.group, group)))
            return
        excess = self._backlog.excess(call.group, call.bytes)
        if excess is not None:
            refused = call_errors.full(excess, call.group, "wait for a majority")
            outcome.errors.append((call, refused))
            return
        call.deadline_s = self._clock.monotonic_s() + PROPOSAL_TIMEOUT_MS / 1000
        if group.leader_term.transferring:
            group.leader_term.held.append(call)
        else:
            self._batcher.add(call)

    def _ask(self, request: Read | Transfer | Reconfigure, outcome: Outcome) -> None:
        group = self._groups.get(request.group)
        if group is None or group.quarantined is not None:
            assert request.future is not None
            outcome.done.append((request.future, refusal(request.group, group)))
            return
        group.ask(request, outcome)
        self._dirty[request.group] = group

    def _open(self, request: Open, outcome: Outcome) -> None:
        group_id = request.group
        assert group_id not in self._opening
        known = self._groups.get(group_id)
        if known is not None:
            stopped = known.quarantined is not None
            outcome.done.append((request.future, refusal(group_id, known) if stopped else None))
            return
        if group_id in self._deletions:
            outcome.done.append((request.future, call_errors.being_deleted(group_id)))
            return
        try:
            with self._environment.snapshot() as snapshot:
                group = Group(
                    group_id,
                    request.machine,
                    snapshot,
                    node=self._node,
                    replicas=request.replicas,
                    clock=self._clock,
                    chance=self._chance,
                    skew=self.skew,
                    loop_watch=self.loop_watch,
                    outbox=self._outbox,
                    environment=self._environment,
                    traffic=self.traffic,
                    backlog=self._backlog,
                    window=self._window,
                )
        except GroupDeleted:
            outcome.done.append((request.future, call_errors.being_deleted(group_id)))
            return
        except StorageCorrupt as error:
            outcome.done.append((request.future, call_errors.stopped(group_id, error)))
            outcome.events.append(Quarantine(group_id, error))
            return
        self._groups[group_id] = group
        self._opening[group_id] = request
        self._dirty[group_id] = group

    def _remove(self, request: Remove, outcome: Outcome) -> None:
        group_id = request.group
        group = self._groups.pop(group_id, None)
        if group is not None:
            gone = refusal(group_id, None)
            outcome.errors.extend((call, gone) for call in self._batcher.remove(group_id))
            group.close(outcome)
            self._window.forget(group_id)
            self._heartbeats.forget(group_id)
            self._dirty.pop(group_id, None)
        opening = self._opening.pop(group_id, None)
        if opening is not None:
            outcome.done.append((opening.future, call_errors.being_deleted(group_id)))
        self._deletions.add(request)

    def _wake_due_groups(self, now_s: float, outcome: Outcome) -> None:
        """Checks the groups whose timer is due, which may propose due commands."""
        for group_id in self._timers.due(now_s):
            group = self._groups.get(group_id)
            if group is None:
                continue
            if (at_s := group.wake_s()) is not None and at_s > self._clock.monotonic_s():
                # The leader, or the majority, has been heard meanwhile.
                self._timers.set(group_id, at_s)
                continue
            if group.is_serving and not group.transferring:
                self._batcher.add_first(group.own_calls(outcome))
            self._dirty[group_id] = group

    def _call(self) -> None:
        """Lets groups continue that have waited for a snapshot to begin, or for space to send."""
        for group_id in self.traffic.called() if self.traffic.calls else ():
            group = self._groups.get(group_id)
            if group is not None and group.snapshot_senders is not None:
                group.snapshot_senders.called()
                self._dirty[group_id] = group
        if self._outbox.calls:
            # They go first. Otherwise the groups that fill the space again would always be before
            # them.
            called = {
                id_: self._groups[id_] for id_ in self._outbox.called() if id_ in self._groups
            }
            self._dirty = {**called, **self._dirty}

    def _set_timer(self, group: Group) -> None:
        at_s = group.wake_s()
        if at_s is not None:
            self._timers.set(group.group, at_s)

    # --- 2 deliver ----------------------------------------------------------------

    def _deliver(self, event: PeerEvent, outcome: Outcome) -> None:
        match event:
            case Received(node, messages):
                for message in messages:
                    match message:
                        case Envelope():
                            if isinstance(message.message, RequestVote | VoteReply):
                                self._hear_clock(node, message.message.wall_ms)
                            self._deliver_envelope(message, node, outcome)
                        case Heartbeat():
                            self._hear_clock(node, message.wall_ms)
                            changed = self._heartbeats.on_heartbeat(node, message, outcome)
                            self._dirty.update(changed)
                        case HeartbeatReply():
                            self._hear_clock(node, message.wall_ms)
                            self._dirty.update(self._heartbeats.on_reply(node, message))
                        case Meetings():
                            self._meetings.learn(message)
            case Quiet(node):
                self._touch(lambda group: group.on_quiet(node))
            case Connected(node) | Disconnected(node):
                up = isinstance(event, Connected)
                self._heartbeats.forget_node(node)
                self._touch(lambda group: group.on_connection(node, up=up))

    def _touch(self, concerns: Callable[[Group], bool]) -> None:
        """Marks the groups that an event concerns for this turn."""
        self._dirty.update({id_: group for id_, group in self._groups.items() if concerns(group)})

    def _hear_clock(self, node: NodeKey, wall_ms: int) -> None:
        if wall_ms:
            self.skew.record_clock(node, wall_ms)
        if self.skew.clock_is_wrong:
            # The led groups must hand over their leaderships.
            self._dirty.update(self._heartbeats.led)

    def _deliver_envelope(self, envelope: Envelope, node: NodeKey, outcome: Outcome) -> None:
        group = self._groups.get(envelope.group)
        if group is None:
            return
        message = envelope.message
        if (
            isinstance(message, Append)
            and message.entries
            and not self._disk_budget.takes_entries(message)
        ):
            # The message is acknowledged without its entries; the leader sends them again.
            bare = msgspec.structs.replace(message, entries=())
            envelope = msgspec.structs.replace(envelope, message=bare)
        group.receive(envelope, node, outcome)
        self._dirty[envelope.group] = group

    # --- 4 append -----------------------------------------------------------------

    def _append(self, outcome: Outcome) -> tuple[int, int, int]:
        """Appends entries; returns the number of entries, calls and bytes."""
        if not self._batcher:
            return 0, 0, 0
        entries = commands = size = 0
        for group_id, waiting in self._batcher.next_entries():
            group = self._groups[group_id]
            if not group.is_serving:
                refused = group.refusal()
                outcome.errors.extend((call, refused) for call in waiting)
                continue
            packed = group.pack(waiting, outcome)
            if packed is not None and not self._takes(packed, self._need(group, packed)):
                calls = self._with_space(group, packed.calls, outcome)
                packed = group.pack(calls, outcome) if calls else None
            if packed is None:
                continue
            group.append(packed)
            self._dirty[group_id] = group
            entries += 1
            commands += len(packed.calls)
            size += sum(call.bytes for call in packed.calls)
        return entries, commands, size

    def _need(self, group: Group, packed: Packed) -> Need:
        if self._disk_budget.roomy:
            return _SMALL_NEED
        return group.need(packed.calls)

    def _takes(self, packed: Packed, need: Need) -> bool:
        return self._disk_budget.takes_calls(packed.stamped.entry, len(packed.calls), need)

    def _with_space(self, group: Group, waiting: list[Call], outcome: Outcome) -> list[Call]:
        """The calls of an entry without space that may be accepted. Calls that lack space only in
        this turn wait for the next one, in their order; the others are refused.
        """
        calls: list[Call] = []
        later: list[Call] = []
        for call in waiting:
            alone = group.pack([call], outcome)
            if alone is None:
                continue
            need = self._need(group, alone)
            if not later and self._takes(alone, need):
                calls.append(call)
                continue
            if self._disk_budget.may_take_later(alone.stamped.entry, 1, need):
                later.append(call)
                continue
            outcome.errors.append((call, self._disk_budget.refusal(need.tier)))
            if call.future is None:
                assert group.leader_term is not None
                group.leader_term.refused()
                self._set_timer(group)
        self._batcher.add_first(later)
        return calls

    # --- 6, 7, 8 write, apply, commit -----------------------------------------------

    def _write(self, outcome: Outcome) -> tuple[float, float, float] | None:
        """Instants after writing, applying and committing; None: nothing was committed."""
        clock = self._clock.monotonic_s
        groups = [group for group in self._dirty.values() if group.changed]
        trimmed = self._groups_to_empty()
        always = bool(trimmed or self._deletions or self._mending)
        if not (groups or always or self._transaction.must_commit):
            self._settle(outcome)
            return None
        may_wait = not always and all(group.may_wait for group in groups)
        early = outcome if self._tell_early is None else Outcome()
        txn = self._transaction.begin()
        try:
            for group in groups:
                group.flush(txn)
            written = clock()
            later = self._apply(groups, txn, outcome, early)
            self._transaction.written_by(groups)
            if early and self._tell_early is not None:
                self._tell_early(early)
            if may_wait and not later and self._may_wait(txn, outcome):
                self._settle(outcome)
                return None
            giving = self._groups_to_trim(groups)
            done = self._finish(txn, [*groups, *giving], trimmed, outcome)
            applied = clock()
        except BaseException:
            txn.abort()
            raise
        stored = self._transaction.commit(txn)
        stored.update({group.group: group for group in (*trimmed, *giving)})
        self._stored(stored, outcome)
        outcome.done.extend(done)
        self._settle(outcome, later)
        return written, applied, clock()

    def _apply(
        self, groups: Sequence[Group], txn: WriteTransaction, outcome: Outcome, early: Outcome
    ) -> Mapping[GroupId, Group]:
        """Lets groups apply committed entries; returns the groups that are left to the next turn,
        because this turn has written much.
        """
        waiting = [group for group in groups if group.unapplied]
        room = self._disk_budget.room(txn) if waiting else None
        for place, group in enumerate(waiting):
            if len(txn.changes()) > TURN_ROWS_MAX:
                return {left.group: left for left in waiting[place:]}
            group.apply(txn, outcome, early, room)
        return {}

    def _stored(self, groups: Mapping[GroupId, Group], outcome: Outcome) -> None:
        """The writes of the groups are durable."""
        for group_id, group in groups.items():
            if not self._is_here(group):
                continue
            group.synced()
            if group_id in self._dirty:
                continue
            if group.needs_next_turn:
                self._dirty[group_id] = group
            else:
                group.settled(outcome)

    def _may_wait(self, txn: WriteTransaction, outcome: Outcome) -> bool:
        """Whether the commit may be left to a later turn; if so, the transaction is kept."""
        if outcome or self._opening or self.traffic.sending or not self._disk_budget.ample:
            return False
        return self._transaction.keep(txn)

    def _finish(
        self,
        txn: WriteTransaction,
        groups: Sequence[Group],
        trimmed: Sequence[Group],
        outcome: Outcome,
    ) -> list[_Done]:
        """Does the other writes before the commit; returns the requests that they fulfil."""
        for group in groups:
            group.truncate(txn, outcome)
            if group.snapshot_installer.busy and group.quarantined is None:
                group.take_snapshot(txn, self._disk_budget.take_staging(), outcome)
        for group in trimmed:
            group.truncate(txn, outcome, whole=True)
        done: list[_Done] = [(request.future, None) for request in self._deletions.delete_more(txn)]
        done += self._mending.mend_next(txn)
        self.traffic.before_commit(txn)
        return done

    def _groups_to_empty(self) -> list[Group]:
        """Groups whose logs shrink, when the last check found the storage short."""
        if not self._disk_budget.was_short():
            return []
        spare = [group for group in self._groups.values() if group.log_spare]
        return heapq.nlargest(_TRIM_GROUPS_MAX, spare, key=lambda group: group.journal.bytes_kept)

    def _groups_to_trim(self, groups: Sequence[Group]) -> list[Group]:
        """Sets what groups keep of their logs; returns the groups beside `groups` whose logs
        shrink.
        """
        for group in groups:
            group.measure()
        self._window.divide(self._clock.monotonic_s())
        giving = (self._groups[group_id] for group_id in self._window.groups_to_trim())
        return [group for group in giving if group not in groups and group.log_spare]

    def _settle(self, outcome: Outcome, first: Mapping[GroupId, Group] = _NONE) -> None:
        """After the sync: ends what is done, collects the groups of the next turn (`first` before
        the others), and sets timers.
        """
        dirty = dict(first)
        for group_id, group in self._dirty.items():
            group.settled(outcome)
            self._settle_opening(group, outcome)
            if not self._is_here(group):
                continue
            self._heartbeats.update(group)
            if group.changed or group.needs_next_turn:
                dirty[group_id] = group
            self._set_timer(group)
        self._dirty = dirty
        for one in self.traffic.damaged:
            outcome.events.append(Damaged(GroupId(one.group), one.index, one.part))
        self.traffic.damaged.clear()

    def _is_here(self, group: Group) -> bool:
        """Whether this is the node's replica of the group. A removed replica may have written into
        the transaction that is still open; it takes part in no turn after that.
        """
        return self._groups.get(group.group) is group

    def _settle_opening(self, group: Group, outcome: Outcome) -> None:
        request = self._opening.get(group.group)
        waits = group.is_only_voter and not group.is_serving and group.quarantined is None
        if request is None or waits:
            return
        del self._opening[group.group]
        error = None if group.quarantined is None else refusal(group.group, group)
        outcome.done.append((request.future, error))


def refusal(group_id: GroupId, group: Group | None) -> QueratorError:
    """The reason why a call for this group is not accepted."""
    return call_errors.no_replica(group_id) if group is None else group.refusal()


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
