"""The turn: what the raft thread does for all groups at once, without the thread.

    1 take      requests of the asyncio thread; groups whose time has come propose for themselves
    2 deliver   messages of other nodes, each to its group
    3 tick      the library's election and commit rule, for groups that have reason
    4 append    waiting calls, one entry per group, bounded (`raft.batcher`); a lone voter ticks
                after that, to be done in one turn
    5 send      entries to followers, which write them while this node does
    6 write     journal rows, terms and votes of all groups into one write transaction
    7 apply     committed entries, each group in a child transaction
    8 commit    synced, once for all groups; nothing derived from the turn is known outside before
    9 send      acknowledgements, votes, requests for votes
    10 outcome  results, errors and events, for the caller to hand over

With one voter an entry is appended, committed, applied and answered in one turn and one sync; with
more in two, the second of which begins when a majority has acknowledged. A turn that has nothing to
write does not commit. While the commit runs the interpreter is free, and new requests gather for
the next turn: group commit without a timer.

All groups that this node leads share one heartbeat to each other node (`raft.heartbeats`): a group
in which nothing happens costs a few bytes, and no tick.

Space is judged before an entry is appended, from `Environment.usage`: calls with an attachment
leave the environment's reserve free, others go on down to a quarter of it. Of a leader's entries
none is taken while less than that quarter is free. When little more than
the reserve is free, the logs give way: whatever their window, they keep their last entry alone, or
what has been completed would go on to fill the disk. A transaction that
fails all the same is the end of the process, because memory has moved on and the disk has not;
whatever `turn` raises means that.
"""

import heapq
import random
from collections.abc import Sequence

import msgspec

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    DELETE_ROWS_TURN_MAX,
    LOG_BYTES_KEPT,
    PROPOSAL_BYTES_UNAPPLIED_MAX,
    PROPOSAL_TIMEOUT_MS,
    TURN_BYTES_MAX,
)
from querator.model.nodes import NodeKey
from querator.raft.batcher import Batcher
from querator.raft.clock import Clock
from querator.raft.copies import Traffic
from querator.raft.group import Group, Packed
from querator.raft.handover import (
    Call,
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
from querator.raft.heartbeats import Heartbeats
from querator.raft.journal import GroupDeleted
from querator.raft.log_rows import mark_deleting
from querator.raft.mail import Mail
from querator.raft.messages import Append, Envelope, Heartbeat, HeartbeatReply
from querator.raft.peers import Connected, Disconnected, PeerEvent, Peers, Received
from querator.raft.pending import Backlog
from querator.raft.skew import Skew
from querator.raft.stats import TurnGatherer
from querator.raft.status import GroupStatus
from querator.storage import generations
from querator.storage.environment import Environment, StorageCorrupt, WriteTransaction
from querator.storage.generations import delete_generations

_FLOOR_PART = 4
"""Calls without attachments go on while this part of the reserve is free."""
_CALL_BYTES = 4_096
"""What a call may need on disk besides what its bytes tell: its rows and their pages."""
_COMMAND_FACTOR = 16
"""What a byte of a command may need: 20 of them ask for a time or a key of one item, which takes a
row or two of their own in the partition's tables, besides the log."""
_SHORT_RESERVES = 2
"""Space is short when no more than so many times the reserve is free."""
_TRIM_GROUPS_MAX = 16
"""Logs that give way in one turn, the largest first."""


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
    ) -> None:
        self._environment = environment
        self._clock = clock
        self._node = node
        self._mail = Mail(peers)
        self._chance = chance
        self._log_bytes_kept = log_bytes_kept
        self._groups: dict[GroupId, Group] = {}
        self._heartbeats = Heartbeats(self._groups, clock=clock, mail=self._mail)
        self.skew = Skew(clock)
        self._opening: dict[GroupId, Open] = {}
        self._deleting: dict[GroupId, list[Remove]] = {}
        self._batcher = Batcher()
        self._backlog = Backlog()
        self._dirty: dict[GroupId, Group] = {}
        # (instant of the monotonic clock, group): when to look for a group's own calls.
        self._alarms: list[tuple[float, GroupId]] = []
        self._alarm_of: dict[GroupId, float] = {}
        self._free_bytes = 0
        self._reserve_bytes = 0
        self._usage_known = False
        self._short = False
        self.stats = TurnGatherer()
        self.traffic = Traffic()
        """Of snapshots."""

    def turn(self, requests: Sequence[Request], events: Sequence[PeerEvent] = ()) -> Outcome:
        """Raises StorageError or AssertionError: the process must stop and recover from disk."""
        outcome = Outcome()
        clock = self._clock.monotonic_s
        started = clock()
        for request in requests:
            self._take(request, outcome)
        for event in events:
            self._deliver(event, outcome)
        self._ring(started, outcome)
        self._call()
        taken = clock()
        for group in self._dirty.values():
            if not group.alone:
                group.tick()
        self._look(outcome)
        ticked = clock()
        counts = self._append(outcome)
        for group in self._dirty.values():
            if group.alone:
                group.tick()
                group.look(outcome)
            group.send(outcome)
        self._heartbeats.send(started, outcome)
        self._mail.send_now()
        appended = clock()
        instants = self._write(outcome)
        self._mail.send_later()
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

    def _look(self, outcome: Outcome) -> None:
        for group in self._dirty.values():
            if group.alone and group.member.leads:
                continue
            group.look(outcome)
            office = group.office
            if office is None:
                continue
            if office.transferring:
                office.held[:0] = self._batcher.remove(group.group)
            elif office.held:
                self._batcher.add_first(office.held)
                office.held = []

    @property
    def _floor_bytes(self) -> int:
        return self._reserve_bytes // _FLOOR_PART

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done before a request, a message or an alarm."""
        if self._batcher or self._dirty or self._deleting:
            return False
        return not (self.traffic.calls or self._mail.calls)

    @property
    def answered(self) -> bool:
        """Whether every call that was taken on is answered. Groups may still be on their way out;
        that goes on whenever it is asked for again.
        """
        if self._batcher or self._dirty:
            return False
        return not any(group.waiting for group in self._groups.values())

    def wait_s(self) -> float | None:
        """Seconds until there is something to do without a request; None: for ever."""
        if not self.idle:
            return 0.0
        instants = [self._alarms[0][0]] if self._alarms else []
        if (beat_s := self._heartbeats.due_s) is not None:
            instants.append(beat_s)
        if not instants:
            return None
        return max(0.0, min(instants) - self._clock.monotonic_s())

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
            case Stop():
                raise AssertionError("the thread's own business")

    def _take_call(self, call: Call, outcome: Outcome) -> None:
        group = self._groups.get(call.group)
        if group is None or group.office is None:
            outcome.errors.append((call, refusal(call.group, group)))
            return
        if self._backlog.bytes + call.bytes > PROPOSAL_BYTES_UNAPPLIED_MAX:
            message = f"commands of {self._backlog.bytes} bytes wait for a majority"
            outcome.errors.append((call, QueratorError(ErrorCode.OVERLOADED, message)))
            return
        call.deadline_s = self._clock.monotonic_s() + PROPOSAL_TIMEOUT_MS / 1000
        if group.office.transferring:
            group.office.held.append(call)
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
        if group_id in self._deleting:
            outcome.done.append((request.future, _being_deleted(group_id)))
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
                    mail=self._mail,
                    environment=self._environment,
                    traffic=self.traffic,
                    backlog=self._backlog,
                    log_bytes_kept=self._log_bytes_kept,
                )
        except GroupDeleted:
            outcome.done.append((request.future, _being_deleted(group_id)))
            return
        except StorageCorrupt as error:
            outcome.done.append((request.future, _stopped(group_id, error)))
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
            self._heartbeats.forget(group_id)
            self._dirty.pop(group_id, None)
        opening = self._opening.pop(group_id, None)
        if opening is not None:
            outcome.done.append((opening.future, _being_deleted(group_id)))
        self._deleting.setdefault(group_id, []).append(request)

    def _ring(self, now_s: float, outcome: Outcome) -> None:
        """Looks at the groups whose alarm has gone off, which may propose what is due."""
        while self._alarms and self._alarms[0][0] <= now_s:
            at_s, group_id = heapq.heappop(self._alarms)
            if self._alarm_of.get(group_id) != at_s:
                continue
            del self._alarm_of[group_id]
            group = self._groups.get(group_id)
            if group is None:
                continue
            if group.in_office and not group.transferring:
                self._batcher.add_first(group.own_calls(outcome))
            if group.alone and group.in_office and not group.copying:
                self._set_alarm(group)
            else:
                self._dirty[group_id] = group

    def _call(self) -> None:
        """Lets those go on who have waited until a snapshot may begin, or for room."""
        for group_id in self.traffic.called() if self.traffic.calls else ():
            group = self._groups.get(group_id)
            if group is not None and group.office is not None:
                group.office.copies.called()
                self._dirty[group_id] = group
        if self._mail.calls:
            # They go first, or those that fill the room up again would always be before them.
            called = {id_: self._groups[id_] for id_ in self._mail.called() if id_ in self._groups}
            self._dirty = {**called, **self._dirty}

    def _set_alarm(self, group: Group) -> None:
        at_s = group.wake_s()
        if at_s is None:
            return
        earlier = self._alarm_of.get(group.group)
        # A later alarm is not needed: an early one looks, and sets itself again.
        if earlier is None or at_s < earlier:
            self._alarm_of[group.group] = at_s
            heapq.heappush(self._alarms, (at_s, group.group))

    # --- 2 deliver ----------------------------------------------------------------

    def _deliver(self, event: PeerEvent, outcome: Outcome) -> None:
        match event:
            case Received(node, messages):
                for message in messages:
                    match message:
                        case Envelope():
                            self._deliver_envelope(message, node, outcome)
                        case Heartbeat():
                            self.skew.heard(node, message.wall_ms)
                            changed = self._heartbeats.on_heartbeat(node, message, outcome)
                            self._dirty.update(changed)
                        case HeartbeatReply():
                            self.skew.heard(node, message.wall_ms)
                            self._dirty.update(self._heartbeats.on_reply(node, message))
            case Connected(node) | Disconnected(node):
                up = isinstance(event, Connected)
                self._heartbeats.forget_node(node)
                for group_id, group in self._groups.items():
                    if group.on_connection(node, up=up):
                        self._dirty[group_id] = group

    def _deliver_envelope(self, envelope: Envelope, node: NodeKey, outcome: Outcome) -> None:
        group = self._groups.get(envelope.group)
        if group is None:
            return
        message = envelope.message
        if isinstance(message, Append) and message.entries and not self._has_room(message):
            # It is acknowledged without them; the leader comes again.
            self._short = True
            bare = msgspec.structs.replace(message, entries=())
            envelope = msgspec.structs.replace(envelope, message=bare)
        group.receive(envelope, node, outcome)
        self._dirty[envelope.group] = group

    def _has_room(self, message: Append) -> bool:
        """Whether entries of a leader can be written; then their space is taken."""
        if self._free_bytes < 2 * self._reserve_bytes or not self._usage_known:
            self._look_at_usage()
        need = sum(_entry_need(entry.command, entry.attachments) for entry in message.entries)
        if self._free_bytes - need < self._floor_bytes:
            return False
        self._free_bytes -= need
        return True

    def _look_at_usage(self) -> None:
        usage = self._environment.usage()
        self._free_bytes, self._reserve_bytes = usage.free_bytes, usage.reserve_bytes
        self._usage_known = True

    # --- 4 append -----------------------------------------------------------------

    def _append(self, outcome: Outcome) -> tuple[int, int, int]:
        """Entries, calls and bytes appended."""
        if not self._batcher:
            return 0, 0, 0
        self._look_at_usage()
        self._short = self._free_bytes <= _SHORT_RESERVES * self._reserve_bytes
        entries = commands = size = 0
        for group_id, waiting in self._batcher.take():
            group = self._groups[group_id]
            if not group.in_office:
                refused = group.refusal()
                outcome.errors.extend((call, refused) for call in waiting)
                continue
            packed = group.pack(waiting, outcome)
            if packed is not None and not self._has_space(packed):
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

    def _has_space(self, packed: Packed) -> bool:
        """Whether the entry may be taken on; then its space is taken."""
        entry = packed.stamped.entry
        need = _entry_need(entry.command, entry.attachments) + _CALL_BYTES * len(packed.calls)
        kept = self._reserve_bytes if entry.attachments else self._floor_bytes
        if self._free_bytes - need < kept:
            return False
        self._free_bytes -= need
        return True

    def _with_space(self, group: Group, waiting: list[Call], outcome: Outcome) -> list[Call]:
        """Calls of an entry that has no space, which may be taken on; the others are refused."""
        calls: list[Call] = []
        for call in waiting:
            alone = group.pack([call], outcome)
            if alone is None:
                continue
            if self._has_space(alone):
                calls.append(call)
                continue
            kept = self._reserve_bytes if call.proposal.attachment else self._floor_bytes
            self._short = True
            message = f"{max(0, self._free_bytes)} bytes are free and {kept} are kept in reserve"
            outcome.errors.append((call, QueratorError(ErrorCode.STORAGE_FULL, message)))
            if call.future is None:
                assert group.office is not None
                group.office.refused()
                self._set_alarm(group)
        return calls

    # --- 6, 7, 8 write, apply, commit -----------------------------------------------

    def _write(self, outcome: Outcome) -> tuple[float, float, float] | None:
        """Instants after writing, applying and committing; None: there was nothing to write."""
        clock = self._clock.monotonic_s
        groups = [group for group in self._dirty.values() if group.changed]
        trimmed = self._to_trim()
        if not groups and not trimmed and not self._deleting:
            self._settle(outcome)
            return None
        txn = self._environment.begin()
        try:
            for group in groups:
                group.flush(txn)
            written = clock()
            for group in groups:
                if group.unapplied:
                    group.apply(txn, outcome)
                    group.truncate(txn, outcome)
                if group.arrival.busy and group.quarantined is None:
                    group.take_snapshot(txn, self._staging_bytes(), outcome)
            for group in trimmed:
                group.truncate(txn, outcome, whole=True)
            removed = self._delete(txn)
            self.traffic.before_commit(txn)
            applied = clock()
        except BaseException:
            txn.abort()
            raise
        txn.commit(sync=True)
        self._usage_known = False
        for group in (*groups, *trimmed):
            group.synced()
        for group in trimmed:
            group.settled(outcome)
        outcome.done.extend((request.future, None) for request in removed)
        self._settle(outcome)
        return written, applied, clock()

    def _staging_bytes(self) -> int:
        """What a snapshot may take of the space in this turn: none when it becomes short."""
        if not self._usage_known:
            self._look_at_usage()
        spare = self._free_bytes - _SHORT_RESERVES * self._reserve_bytes
        self._free_bytes -= min(max(0, spare), TURN_BYTES_MAX)
        return min(max(0, spare), TURN_BYTES_MAX)

    def _to_trim(self) -> list[Group]:
        """Groups whose logs give way, when the last look at the storage found it short."""
        if not self._short:
            return []
        self._short = False
        spare = [group for group in self._groups.values() if group.log_spare]
        return heapq.nlargest(_TRIM_GROUPS_MAX, spare, key=lambda group: group.journal.bytes_kept)

    def _settle(self, outcome: Outcome) -> None:
        """After the sync: who is done, who goes on with the next turn, and who wakes when."""
        dirty = {}
        for group_id, group in self._dirty.items():
            group.settled(outcome)
            self._settle_opening(group, outcome)
            self._heartbeats.look(group)
            if group.changed or group.sends_more:
                dirty[group_id] = group
            self._set_alarm(group)
        self._dirty = dirty

    def _settle_opening(self, group: Group, outcome: Outcome) -> None:
        request = self._opening.get(group.group)
        waits = group.alone and not group.in_office and group.quarantined is None
        if request is None or waits:
            return
        del self._opening[group.group]
        error = None if group.quarantined is None else refusal(group.group, group)
        outcome.done.append((request.future, error))

    def _delete(self, txn: WriteTransaction) -> list[Remove]:
        """Deletes rows of groups, in bounded steps; requests that are fulfilled with this turn.

        A group that loses its first rows is marked in the same transaction, so that a crash in
        between leaves one that can only be deleted further.
        """
        removed: list[Remove] = []
        for group_id, requests in list(self._deleting.items()):
            if not delete_generations(
                txn, group_id, rows_max=DELETE_ROWS_TURN_MAX, bytes_max=TURN_BYTES_MAX
            ):
                current = generations.read(txn, group_id).current
                mark_deleting(generations.write_view(txn, group_id, current), group_id)
                break
            removed.extend(requests)
            del self._deleting[group_id]
        return removed


def refusal(group_id: GroupId, group: Group | None) -> QueratorError:
    """Why a call for this group is not taken on."""
    if group is None:
        message = f"this node has no replica of group {group_id}"
        return QueratorError(ErrorCode.NOT_LEADER, message)
    return group.refusal()


def _stopped(group_id: GroupId, defect: BaseException) -> QueratorError:
    error = QueratorError(ErrorCode.INTERNAL, f"group {group_id} is stopped by {defect!r}")
    error.__cause__ = defect
    return error


def _being_deleted(group_id: GroupId) -> QueratorError:
    return QueratorError(ErrorCode.UNAVAILABLE, f"group {group_id} is being deleted")


def _entry_need(command: bytes, attachments: Sequence[bytes]) -> int:
    return 2 * sum(map(len, attachments)) + _COMMAND_FACTOR * len(command)


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
