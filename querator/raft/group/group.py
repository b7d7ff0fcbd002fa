"""One Raft group on this node: its member, its log, its machine, and the calls in between.

Life cycle: opened → following or leading, any number of times → closed. Opening recovers the log
and the applied index, and applies committed entries that were not applied. A leader is ready
(`is_serving`) when the no-op of its own term is applied: from then on it accepts calls, and asks
the machine for its due time.

An exception from the machine, or a leader that contradicts a committed entry, ends this early. The
entry's child transaction is aborted, the applied index stays, and the group is *quarantined* until
an operator checks it: it accepts, applies, writes and sends nothing, while the other groups of the
node continue. Its log may hold unacknowledged entries that may yet be applied, so their calls end
with OUTCOME_UNKNOWN.

All of this happens in the order of `raft.turn.turn`; nothing here commits or answers.

The module is longer than 500 lines, because it holds every way in and out of the group. Each must
respect the quarantine and the leadership, which a reader checks by comparing them. Parts with rules
of their own are in other modules (member, journal, application, snapshots, leadership, pending).
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from querator import telemetry
from querator.model.entries import Applied, Need, Proposal, Tier, TimeBack
from querator.model.errors import QueratorError
from querator.model.ids import GroupId
from querator.model.limits import APPLY_ENTRIES_TURN_MAX, STATE_TIME_JUMP_MS_MAX
from querator.model.nodes import NodeKey, Replicas
from querator.raft import configuration
from querator.raft.clock import Clock
from querator.raft.consensus.log_matching import Diverged
from querator.raft.consensus.loop_watch import LoopWatch
from querator.raft.consensus.member import Member
from querator.raft.consensus.skew import Skew
from querator.raft.group import call_errors
from querator.raft.group.application import Application
from querator.raft.group.leadership import LeaderTerm
from querator.raft.group.packing import OwnWorkFailed, Packed, pack
from querator.raft.group.pending import Backlog, Pending
from querator.raft.group.snapshot_install import SnapshotInstaller
from querator.raft.group.snapshot_schedule import SnapshotSenders, SnapshotTraffic
from querator.raft.log.disk_budget import ApplyBudget
from querator.raft.log.journal import Journal
from querator.raft.log.rows import Record
from querator.raft.log.window import LogWindow
from querator.raft.machine import Machine
from querator.raft.messages import (
    Beat,
    Envelope,
    GroupMessage,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotReply,
)
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.requests import (
    Call,
    Effects,
    Leader,
    Leadership,
    Outcome,
    Quarantine,
    Read,
    Reconfigure,
    Transfer,
)
from querator.raft.status import GroupStatus
from querator.storage import generations
from querator.storage.environment import (
    Environment,
    EnvironmentFailed,
    EnvironmentFull,
    ReadTransaction,
    StorageCorrupt,
    WriteTransaction,
)

_log = telemetry.logger(__name__)

NO_ROOM_S: Final = 0.1
"""When to check again whether there is space for committed entries."""


class Group:
    """Only the raft thread calls it; any thread may read `status`."""

    def __init__(
        self,
        group: GroupId,
        machine: Machine,
        txn: ReadTransaction,
        *,
        node: NodeKey,
        replicas: Replicas,
        clock: Clock,
        chance: random.Random,
        skew: Skew,
        loop_watch: LoopWatch,
        outbox: PeerOutbox,
        environment: Environment,
        traffic: SnapshotTraffic,
        backlog: Backlog,
        window: LogWindow,
    ) -> None:
        """Opens the stored replica, or a new one: the replica that `replicas` names on this node.
        Without `replicas` the replica must be stored.

        Raises GroupDeleted, StorageCorrupt.
        """
        self.group = group
        self._machine = machine
        self._clock = clock
        self._skew = skew
        self._loop_watch = loop_watch
        self._outbox = outbox
        self._environment = environment
        self._traffic = traffic
        self.snapshot_installer = SnapshotInstaller(group, txn, outbox)
        view = generations.view_of(txn, group, self.snapshot_installer.generation)
        mine = configuration.of_node(replicas, node)
        self._window = window
        replica = mine.id if mine else 0
        self.journal = Journal.open(view, group, replica=replica, replicas=replicas)
        assert self.journal.replica, "a new replica is named by its first configuration"
        skew.reached(group, self.journal.last_ms)
        self.application = Application(group, machine, self.journal, view, clock)
        self.member = Member(
            group,
            self.journal,
            applied_index=self.application.index,
            clock=clock,
            chance=chance,
            skew=skew,
            loop_watch=loop_watch,
            outbox=outbox,
            snapshots=self._snapshot,
        )
        self._pending = Pending(backlog, group)
        self._no_room_s: float | None = None
        """When to try again to apply entries that lacked space, by the monotonic clock."""
        self._lacks_room = False
        """Whether space was lacking lately: another replica should lead."""
        self.leader_term: LeaderTerm | None = None
        """Set while the group accepts calls."""
        self.snapshot_senders: SnapshotSenders | None = None
        """Snapshots that it sends; set while it leads."""
        self._leader_told: NodeKey | None = None
        self.quarantined: BaseException | None = None
        self.status = self._make_status()

    @contextmanager
    def _snapshot(self) -> Iterator[ReadTransaction]:
        """A transaction on the group's committed rows."""
        with self._environment.snapshot() as snapshot:
            yield generations.view_of(snapshot, self.group, self.snapshot_installer.generation)

    def _view(self, txn: WriteTransaction) -> WriteTransaction:
        return generations.write_view(txn, self.group, self.snapshot_installer.generation)

    @property
    def is_serving(self) -> bool:
        return self.leader_term is not None

    @property
    def is_only_voter(self) -> bool:
        return self.member.is_only_voter

    @property
    def unapplied(self) -> bool:
        """Whether there are entries to apply in this turn."""
        if self.quarantined is not None or self.application.index >= self.member.commit_index:
            return False
        if self._no_room_s is not None:
            return False
        return not self.application.gathers(self.member)

    @property
    def waiting(self) -> bool:
        """Whether a caller waits for the end of a call."""
        held = self.leader_term is not None and bool(self.leader_term.held)
        return held or self._pending.deadline_s is not None

    @property
    def reads(self) -> bool:
        """Whether a caller waits to read."""
        return self.leader_term is not None and self.leader_term.reads

    @property
    def may_wait(self) -> bool:
        """Whether the pending writes need not be on disk at once: state that follows from committed
        entries, and entries of this leader that enough other replicas write.
        """
        member = self.member
        if (
            self.is_only_voter
            or self.snapshot_installer.busy
            or member.commit_index > member.certain_index
        ):
            return False
        if not self.journal.changed:
            return True
        return self.is_serving and self.journal.only_grown and member.others_suffice

    @property
    def changed(self) -> bool:
        return self.quarantined is None and (
            self.journal.changed or self.unapplied or self.snapshot_installer.busy
        )

    # --- the other replicas ----------------------------------------------------------

    def receive(self, envelope: Envelope, node: NodeKey, outcome: Outcome) -> None:
        """Handles a message from `node`. A contradiction quarantines the group."""
        if self.quarantined is not None or envelope.to != self.member.id:
            return
        try:
            self._receive(envelope.sender, node, envelope.message)
        except (Diverged, StorageCorrupt) as error:
            self.quarantine(error, outcome)

    def _receive(self, sender: int, node: NodeKey, message: GroupMessage) -> None:
        match message:
            case SnapshotOffer() | SnapshotChunk():
                if self.member.follows(sender, node, message.term):
                    self.snapshot_installer.receive(sender, node, message)
                if isinstance(message, SnapshotChunk):
                    self._traffic.bytes_received += len(message.content)
            case SnapshotReply():
                if self.snapshot_senders is not None:
                    self.snapshot_senders.on_reply(sender, message)
            case _:
                last_index = self.journal.last_index
                self.member.receive(sender, node, message)
                if self.journal.last_index > last_index:
                    self.snapshot_installer.discard()

    def is_plain_heartbeat(self, beat: Beat, now_s: float) -> bool:
        """Whether the beat only updates the time when the leader was last heard."""
        member = self.member
        return (
            self.quarantined is None
            and beat.to == member.id
            and member.is_plain_heartbeat(beat, now_s)
        )

    def on_beat(self, beat: Beat, outcome: Outcome) -> int | None:
        """None when the leader is followed, or the term with which to refuse its beat."""
        if self.quarantined is not None or beat.to != self.member.id:
            return 0
        try:
            return self.member.on_beat(beat)
        except Diverged as error:
            self.quarantine(error, outcome)
            return 0

    def on_connection(self, node: NodeKey, *, up: bool) -> bool:
        """Handles a new or broken connection; returns whether the group has a replica on the
        node.
        """
        if self.quarantined is not None or not self.member.has_replica_on(node):
            return False
        self.member.on_connection(node, up=up)
        if self.snapshot_senders is not None:
            self.snapshot_senders.on_connection(node)
        return True

    def on_quiet(self, node: NodeKey) -> bool:
        """Handles the silence of a node; returns whether it affects the group."""
        return self.quarantined is None and self.member.on_quiet(node)

    def tick(self) -> None:
        if self.quarantined is None:
            self.member.tick()

    def check(self, outcome: Outcome) -> None:
        """Checks after the tick: the end of the leadership, the leader, and calls whose time is
        over.
        """
        if self.quarantined is not None:
            return
        leader_term = self.leader_term
        if leader_term is not None and (
            not self.member.leads or self.member.term != leader_term.term
        ):
            self._end_leader_term(outcome)
        self._check_snapshot_senders()
        leader = self.member.leader_node
        if leader != self._leader_told:
            self._leader_told = leader
            outcome.events.append(Leader(self.group, leader))
        now_s = self._clock.monotonic_s()
        self._lacks_room = self._no_room_s is not None
        if self._no_room_s is not None and now_s >= self._no_room_s:
            self._no_room_s = None
        self.snapshot_installer.check(now_s)
        outcome.errors.extend(
            (call, self._unknown("its deadline has passed"))
            for call in self._pending.expired(now_s)
        )
        if self.leader_term is not None:
            self.leader_term.check_clock()
            unfit = self._skew.clock_is_wrong or self._loop_watch.hangs or self._lacks_room
            if unfit or self.leader_term.by_others_clocks:
                self.leader_term.transfer_away()
            self.leader_term.continue_transfer(outcome)
            self.leader_term.end_changes(self._unknown("its deadline has passed"), outcome)

    def _check_snapshot_senders(self) -> None:
        """Begins and ends the sending of snapshots. A leader sends them before it is ready
        (`is_serving`): its no-op may wait for the acknowledgement of a follower that needs a
        snapshot.
        """
        member = self.member
        if self.snapshot_senders is not None and (
            not member.leads or self.snapshot_senders.term != member.term
        ):
            self._end_snapshot_senders()
        if member.leads and self.snapshot_senders is None:
            self.snapshot_senders = SnapshotSenders(
                self._environment,
                self.snapshot_installer.generation,
                member,
                self.journal,
                clock=self._clock,
                outbox=self._outbox,
                traffic=self._traffic,
            )

    def _end_snapshot_senders(self) -> None:
        if self.snapshot_senders is not None:
            self.snapshot_senders.close()
            self.snapshot_senders = None

    def heartbeats(self, now_s: float, outcome: Outcome) -> list[tuple[NodeKey, Beat]]:
        """The heartbeat of each follower."""
        try:
            return self.member.heartbeats(now_s)
        except StorageCorrupt as error:
            self.quarantine(error, outcome)
            return []
        finally:
            self._tell_damage()

    def send(self, outcome: Outcome) -> None:
        """Sends the followers their next entries, and the question for waiting reads."""
        if self.quarantined is not None or not self.member.leads:
            return
        try:
            self._send()
        except StorageCorrupt as error:
            self.quarantine(error, outcome)
        self._tell_damage()

    def _tell_damage(self) -> None:
        """Reports attachments that could not be sent to a follower, so that they are mended."""
        if self.member.damaged:
            self._traffic.damaged += self.member.damaged
            self.member.damaged.clear()

    def _send(self) -> None:
        leader_term = self.leader_term
        if self.snapshot_senders is not None:
            self.snapshot_senders.send()
        if leader_term is not None and leader_term.needs_read_round:
            leader_term.read_round_sent(self.member.ask_all())
        else:
            self.member.send_appends()
        if leader_term is not None:
            leader_term.confirm_reads()

    # --- requests other than calls -------------------------------------------------------

    def ask(self, request: Read | Transfer | Reconfigure, outcome: Outcome) -> None:
        leader_term = self.leader_term
        if leader_term is None:
            assert request.future is not None
            outcome.done.append((request.future, self.refusal()))
            return
        match request:
            case Read():
                leader_term.read(request)
            case Transfer():
                leader_term.transfer(request, outcome)
            case Reconfigure():
                leader_term.reconfigure(request, outcome)

    @property
    def transferring(self) -> bool:
        return self.leader_term is not None and self.leader_term.transferring

    # --- proposing ---------------------------------------------------------------

    def pack(self, calls: list[Call], outcome: Outcome) -> Packed | None:
        """One entry of all calls that pack, for `append`; None when there is none."""
        assert self.leader_term is not None
        assert self.quarantined is None
        now_ms, time_back, time_forward = self.leader_term.now_ms(), False, False
        if any(isinstance(call.proposal.command, TimeBack) for call in calls):
            calls, to_ms = self._dated(calls, outcome)
            time_back = 0 < to_ms < now_ms
            time_forward = to_ms > now_ms + STATE_TIME_JUMP_MS_MAX
            now_ms = to_ms if time_back or time_forward else now_ms
        if not calls:
            return None
        try:
            packed = pack(self._machine, calls, now_ms, outcome, time_back=time_back)
        except OwnWorkFailed as failed:
            self.quarantine(failed.error, outcome)
            return None
        if packed is not None and time_forward:
            packed = msgspec.structs.replace(packed, time_forward=True)
        return packed

    def _dated(self, calls: list[Call], outcome: Outcome) -> tuple[list[Call], int]:
        """The calls, some of which ask to set state time to the clock, and the time to set. Without
        those calls, and with 0, when the right time is not known.
        """
        assert self.leader_term is not None
        back = [call for call in calls if isinstance(call.proposal.command, TimeBack)]
        try:
            to_ms = self.leader_term.right_ms()
        except QueratorError as error:
            outcome.errors.extend((call, error) for call in back)
            return [call for call in calls if call not in back], 0
        for call in back:
            command = msgspec.structs.replace(call.proposal.command, to_ms=to_ms)
            call.proposal = msgspec.structs.replace(call.proposal, command=command)
        return calls, to_ms

    def append(self, packed: Packed) -> None:
        """Appends the entry to the log; its calls are answered when it is applied."""
        index = self.member.append(packed.stamped)
        if packed.stamped.time_back:
            assert self.leader_term is not None
            self.leader_term.put_back(packed.stamped.now_ms)
        elif packed.time_forward:
            assert self.leader_term is not None
            self.leader_term.put_forward(packed.stamped.now_ms)
        for call in packed.calls:
            call.appended = True
        self._pending.add(index, self.member.term, packed.calls)

    def own_calls(self, outcome: Outcome) -> list[Call]:
        """The commands that the machine wants to propose because their time has come. The group
        itself waits for the result.
        """
        leader_term = self.leader_term
        assert leader_term is not None
        leader_term.note_time()
        if leader_term.due_in_s() != 0:
            return []
        leader_term.due_ms = leader_term.prompt_ms = None
        try:
            commands: Sequence[Any] = self._machine.due_commands(
                leader_term.now_ms(), prompt=leader_term.in_grace
            )
        except Exception as error:  # noqa: BLE001 - must not stop the others
            self.quarantine(error, outcome)
            return []
        return [Call(self.group, Proposal(command), None, 0) for command in commands]

    # --- applying ----------------------------------------------------------------

    def flush(self, txn: WriteTransaction) -> None:
        """Writes the changes of log, term and vote."""
        self.journal.flush(self._view(txn))

    def take_snapshot(self, txn: WriteTransaction, space_bytes: int, outcome: Outcome) -> None:
        """Continues to store an incoming snapshot, within `space_bytes`, and to delete old ones.
        Raises and quarantines as `apply` does.
        """
        try:
            with txn.child() as child:
                position = self.snapshot_installer.write(
                    child,
                    self.member,
                    self.journal,
                    now_s=self._clock.monotonic_s(),
                    space_bytes=space_bytes,
                    applied_index=self.application.index,
                )
        except (EnvironmentFull, EnvironmentFailed):
            raise
        except Exception as error:  # noqa: BLE001 - must not stop the others
            self.quarantine(error, outcome)
            return
        if position is not None:
            self.application.installed(position)
            self._traffic.installed += 1
            _log.info("snapshot.installed", group=self.group, index=position.index)
            unknown = self._unknown("its state came from another replica")
            calls = self._pending.take_all()
            outcome.errors.extend((call, unknown) for call in calls if not call.ended)

    def need(self, calls: Sequence[Call]) -> Need:
        """The disk space that the calls need together: the highest tier, and the sum of the
        bytes.
        """
        try:
            with self._snapshot() as snapshot:
                needs = [self._machine.need(snapshot, call.proposal.command) for call in calls]
        except Exception as error:  # noqa: BLE001 - must not stop the others
            # A command that fails here fails again when it is applied, and that stops the group.
            _log.warning("apply.space_need_unknown", group=self.group, error=repr(error))
            needs = [Need(Tier.FREES, 0)]
        adds = any(call.proposal.attachment for call in calls)
        tier = Tier.ADDS if adds else max(one.tier for one in needs)
        return Need(tier, sum(one.bytes for one in needs))

    def apply(
        self, txn: WriteTransaction, outcome: Outcome, early: Outcome, room: ApplyBudget | None
    ) -> None:
        """Applies committed entries, at most `APPLY_ENTRIES_TURN_MAX` and within `room`, in a child
        of `txn`. Entries that lack space wait.

        The results of an entry go to `early` when they may be known before the sync, else to
        `outcome`.

        Raises EnvironmentFull and EnvironmentFailed: the whole transaction is then lost. Any other
        exception, also for damage in the group's rows, quarantines the group.
        """
        state = self.application
        last = min(self.member.commit_index, state.index + APPLY_ENTRIES_TURN_MAX)
        try:
            with self._view(txn).child() as child:
                done = state.apply(child, last, room)
                for record, applied in done:
                    self._check(record, applied)
        except (EnvironmentFull, EnvironmentFailed):
            raise
        except Exception as error:  # noqa: BLE001 - must not stop the others
            self.quarantine(error, outcome)
            return
        if not done:
            self._no_room_s = self._clock.monotonic_s() + NO_ROOM_S
            if not self._lacks_room:
                _log.warning("apply.paused_for_space", group=self.group, index=state.index + 1)
            return
        last = done[-1][0].index
        self.member.applied(last)
        state.applied(done[-1][0])
        self._skew.reached(self.group, state.now_ms)
        for record, applied in done:
            if not self._may_tell_early(record, applied):
                # Effects stay in their order.
                early = outcome
            self._hand_out(record, applied, outcome, early)
        if not self.is_serving and self.member.leads and last >= self.member.no_op_index():
            self._begin_leader_term(self._view(txn), outcome)

    def _check(self, record: Record, applied: Applied | None) -> None:
        waiting = self._pending.calls_of(record.index, record.term)
        if applied is not None and waiting is not None:
            assert len(applied.results) == len(waiting), "one result for each proposal"

    def _may_tell_early(self, record: Record, applied: Applied | None) -> bool:
        """Whether the results of an entry may be known before its state is on disk. A committed
        entry on the disks of a majority is applied again after a crash, with the same result. An
        entry of a lone voter is committed in the turn that writes it, so its results wait.
        """
        return applied is None or (applied.early and record.index <= self.member.certain_index)

    def _hand_out(
        self, record: Record, applied: Applied | None, outcome: Outcome, early: Outcome
    ) -> None:
        calls, replaced = self._pending.pop_applied(record.index, record.term)
        if replaced:
            gone = call_errors.superseded(self.group, self.member.leader_node)
            outcome.errors.extend((call, gone) for call in replaced if not call.ended)
        if self.leader_term is not None and record.term == self.leader_term.term:
            self.leader_term.applied(record.index, outcome)
        if applied is None:
            return
        if self.leader_term is not None:
            self.leader_term.due_ms = applied.due_ms
            self.leader_term.prompt_ms = applied.prompt_ms
            if applied.effects is not None:
                early.events.append(Effects(self.group, applied.effects))
        for call, result in zip(calls, applied.results, strict=False):
            if not call.ended:
                told = early if self._machine.tells_early(result) else outcome
                told.results.append((call, result))

    def _begin_leader_term(self, txn: ReadTransaction, outcome: Outcome) -> None:
        try:
            current = self.application.recover(txn)
        except (EnvironmentFull, EnvironmentFailed):
            raise
        except Exception as error:  # noqa: BLE001 - must not stop the others
            self.quarantine(error, outcome)
            return
        self.leader_term = LeaderTerm(
            self.group,
            self.member,
            self.journal,
            self._clock,
            self._skew,
            last_ms=max(self.journal.last_ms, self.application.now_ms),
            due_ms=current.due_ms,
            prompt_ms=current.prompt_ms,
        )
        outcome.events.append(Leadership(self.group, True))
        if current.effects is not None:
            outcome.events.append(Effects(self.group, current.effects))

    def _end_leader_term(self, outcome: Outcome) -> None:
        """Ends the leadership here. Calls in the log end as their entries do; other calls are
        refused.
        """
        assert self.leader_term is not None
        leader_term, self.leader_term = self.leader_term, None
        outcome.events.append(Leadership(self.group, False))
        leader_term.leave(self.refusal(), self._unknown("its leader changed"), outcome)

    # --- the turn's end --------------------------------------------------------------

    @property
    def log_spare(self) -> int:
        """Entries that the log keeps although no component of this node needs them. Followers that
        need them get the state instead.
        """
        spare = self.application.index - self.journal.first_index
        return 0 if self.quarantined else max(0, spare)

    def measure(self) -> None:
        """Reports the size of its log."""
        self._window.record_size(self.group, self.journal.bytes_kept)

    def truncate(self, txn: WriteTransaction, outcome: Outcome, *, whole: bool = False) -> None:
        """Bounds the log behind the applied entries by the group's part of the node's window; with
        `whole` the log keeps only the last of them.
        """
        try:
            self.journal.truncate_head(
                self._view(txn),
                self.application.index,
                bytes_max=self._window.part_bytes,
                needed_from=None
                if self.snapshot_senders is None
                else self.snapshot_senders.needed_from(),
                whole=whole,
            )
        except StorageCorrupt as error:
            self.quarantine(error, outcome)

    def synced(self) -> None:
        """The transaction of its last writes is durable."""
        self.application.stored()
        self.journal.synced(self.application.index)

    def settled(self, outcome: Outcome) -> None:
        """The turn is over, with the commit of its transaction unless the commit may wait."""
        self.measure()
        if self.leader_term is not None:
            self.leader_term.answer_reads(self.application.stored_index, outcome)
        self.status = self._make_status()

    @property
    def needs_next_turn(self) -> bool:
        """Whether the next turn has work that no event brings about: a question to send, or a
        commit of entries that became durable after the answers of the others had come.
        """
        if self.quarantined is not None:
            return False
        return (
            self.leader_term is not None and self.leader_term.needs_read_round
        ) or self.member.may_commit

    def wake_s(self) -> float | None:
        """When it must be checked again if nothing happens, by the monotonic clock."""
        if self.quarantined is not None:
            return None
        instants = [self.member.wake_s, self._pending.deadline_s]
        waits_s = self._no_room_s
        instants += [
            self.snapshot_installer.wake_s,
            self.application.by_s if waits_s is None else waits_s,
        ]
        if self.snapshot_senders is not None:
            instants.append(self.snapshot_senders.wake_s())
        if self.leader_term is not None:
            instants.append(self.leader_term.wake_s())
        return min((instant for instant in instants if instant is not None), default=None)

    def quarantine(self, error: BaseException, outcome: Outcome) -> None:
        """Stops the group on this node after a defect."""
        if self.quarantined is not None:
            return
        self.quarantined = error
        self.status = msgspec.structs.replace(
            self.status, quarantined=True, leads=False, leader=None
        )
        self._outbox.withdraw(self.group)
        self._end("it stopped", error, outcome)
        outcome.events.append(Quarantine(self.group, error))

    def close(self, outcome: Outcome) -> None:
        """Ends the group on this node; it is never called again."""
        self._end("it is being deleted", None, outcome)
        self._skew.forget(self.group)

    def _end(self, why: str, error: BaseException | None, outcome: Outcome) -> None:
        unknown = self._unknown(why, error)
        calls = self._pending.take_all()
        outcome.errors.extend((call, unknown) for call in calls if not call.ended)
        if self.is_serving:
            self._end_leader_term(outcome)
        self._end_snapshot_senders()
        if self._leader_told is not None:
            # The group hears no leader any more.
            self._leader_told = None
            outcome.events.append(Leader(self.group, None))

    def _unknown(self, why: str, error: BaseException | None = None) -> QueratorError:
        return call_errors.unknown(self.group, why, error)

    def refusal(self) -> QueratorError:
        """The reason why no call is accepted here."""
        if self.quarantined is not None:
            return call_errors.stopped(self.group, self.quarantined)
        if self.is_only_voter or self.member.leads:
            return call_errors.starting(self.group)
        return call_errors.not_leader(self.group, self.member.leader_node)

    def _make_status(self) -> GroupStatus:
        return GroupStatus(
            term=self.member.term,
            leader=self.member.leader_node,
            leads=self.is_serving,
            commit_index=self.member.commit_index,
            applied_index=self.application.stored_index,
            log_first=self.journal.first_index,
            log_last=self.journal.last_index,
            log_bytes=self.journal.bytes_kept,
            now_ms=self.application.now_ms,
            due_ms=None if self.leader_term is None else self.leader_term.due_ms,
            quarantined=self.quarantined is not None,
            replica=self.member.id,
            replicas=self.journal.replicas,
            replicas_index=self.journal.replicas_index,
            followers=self.member.followers(),
            waits_for_clock=self.member.waits_for_clock,
            behind_ms=0 if self.leader_term is None else self.leader_term.behind_ms,
            waits_for_space=self._no_room_s is not None,
        )
