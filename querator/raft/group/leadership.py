"""Tasks of a leader other than its entries: state time, reads, transfer of the leadership, and
changes of the replicas. All of them end with the leadership.

    transfer    (Ongaro, section 3.10) no more calls are accepted; when the other replica has all
                of the log, the leader asks it to stand for election at once; after
                `TRANSFER_TIMEOUT_S` the leader continues
    change      (section 4.1) one at a time; done when its entry is committed and applied, unknown
                after `PROPOSAL_TIMEOUT_MS`
    reads       `raft.group.read_index`; also during a transfer, because a majority confirms each
                of them
"""

from typing import Final

from querator import telemetry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    LEASE_GRACE_MS,
    LONE_TIME_NOTED_MS,
    PROPOSAL_TIMEOUT_MS,
    STATE_TIME_JUMP_MS_MAX,
    UNAPPLIED_ENTRIES_MAX,
)
from querator.model.nodes import node_name
from querator.raft import configuration
from querator.raft.clock import Clock, StateTime
from querator.raft.consensus.member import Member
from querator.raft.consensus.replication import ReplicationState
from querator.raft.consensus.skew import Skew
from querator.raft.group.read_index import ReadIndex
from querator.raft.log.journal import Journal
from querator.raft.requests import Call, Outcome, Read, Reconfigure, Transfer

_log = telemetry.logger(__name__)

TRANSFER_TIMEOUT_S: Final = 2.0
"""A leader that hands over accepts no calls for at most this long."""
HAND_AWAY_AGAIN_S: Final = 10.0
"""A leadership that no replica has taken over is offered again after this."""

DUE_REFUSED_MS: Final = 1_000
"""A group's own call that was refused for lack of space is proposed again after this."""


class LeaderTerm:
    """The leadership of one group, in one term of its member."""

    def __init__(
        self,
        group: GroupId,
        member: Member,
        journal: Journal,
        clock: Clock,
        skew: Skew,
        *,
        last_ms: int,
        due_ms: int | None,
        prompt_ms: int | None,
    ) -> None:
        """`last_ms`: the time of the last entry. `due_ms`: when to ask the machine for due
        commands. `prompt_ms`: when to ask it for those that need not wait.
        """
        self._group = group
        self._member = member
        self._journal = journal
        self._clock = clock
        self._skew = skew
        self.behind_ms = 0
        """How far state time is behind the wall clock, as of the last check; 0: not far, or the
        clock is not known to be right.
        """
        self._begin_time(last_ms)
        self.term = member.term
        self.due_ms = due_ms
        self.prompt_ms = prompt_ms
        self.held: list[Call] = []
        """Calls that arrived while the leadership is being handed over."""
        self._reads = ReadIndex()
        self._transfer: Transfer | None = None
        self._transfer_until_s = 0.0
        self._offered_s = float("-inf")
        self._handed = False
        self._changes: dict[int, tuple[float, Reconfigure]] = {}
        """Index of the entry → (until when, the request)."""

    # --- time --------------------------------------------------------------------

    def _begin_time(self, last_ms: int) -> None:
        self._since_s = self._clock.monotonic_s()
        self.behind_ms = 0
        self._time = StateTime(self._clock, last_ms=last_ms, believed_ms=self._believed_ms)
        ahead_ms = last_ms - self._clock.wall_ms()
        if ahead_ms > STATE_TIME_JUMP_MS_MAX:
            _log.warning("time.ahead", group=self._group, ahead_ms=ahead_ms)
        self.by_others_clocks = not self._skew.believes(self._member.other_voters, last_ms)

    def _believed_ms(self, wall_ms: int, last_ms: int) -> int:
        return self._skew.believed_ms(wall_ms, self._member.other_voters, last_ms)

    def now_ms(self) -> int:
        return self._time.now_ms()

    def check_clock(self) -> None:
        """Checks the clock. A leadership that began without a believed clock restarts its time when
        there is one: state time then jumps to the clock, and no lease lapses for a while. Also
        records how far state time is behind a clock that was set forward.
        """
        now_ms = self.now_ms()
        self._skew.reached(self._group, now_ms)
        if self.by_others_clocks and self._skew.believes(self._member.other_voters, now_ms):
            self._begin_time(now_ms)
            now_ms = self.now_ms()
        behind_ms = self._clock.wall_ms() - now_ms
        self.behind_ms = behind_ms if self._is_behind(behind_ms) else 0

    def _is_behind(self, behind_ms: int) -> bool:
        """Whether the difference is large, and a majority agrees with this clock."""
        if behind_ms <= STATE_TIME_JUMP_MS_MAX:
            return False
        return self._skew.agrees(self._member.other_voters)

    def _was_set(self, now_ms: int) -> bool:
        """Whether the clock was set since the last check."""
        return self._is_behind(self._clock.wall_ms() - now_ms) != bool(self.behind_ms)

    def right_ms(self) -> int:
        """The wall clock, to which state time may be set. Raises QueratorError."""
        if self._skew.agrees(self._member.other_voters):
            return self._clock.wall_ms()
        raise QueratorError(
            ErrorCode.UNAVAILABLE,
            f"group {self._group}: the clocks of a majority do not agree with that of the leader's "
            "node; set the clocks, and try again; not executed",
        )

    def put_back(self, now_ms: int) -> None:
        """An entry that sets state time back is in the log."""
        back_ms = self.now_ms() - now_ms
        _log.warning("time.set_back", group=self._group, by_ms=back_ms)
        self._begin_time(now_ms)

    def put_forward(self, now_ms: int) -> None:
        """An entry with which state time jumps to the clock is in the log. No lease lapses for a
        while.
        """
        _log.warning("time.set_forward", group=self._group, by_ms=now_ms - self.now_ms())
        self._begin_time(now_ms)

    def note_time(self) -> None:
        """Reads state time, and at intervals appends it to the log of a lone voter."""
        now_ms = self.now_ms()
        if self._note_in_s() == 0:
            self._member.note_time(now_ms)

    def _note_in_s(self) -> float | None:
        if not self._member.is_only_voter or not self._journal.last_ms:
            return None
        at_ms = self._journal.last_ms + LONE_TIME_NOTED_MS
        return self._time.wait_s(at_ms)

    def due_in_s(self) -> float | None:
        """Seconds from the last reading of state time until the machine must be asked for due
        commands; None while nothing is due.

        In the first `LEASE_GRACE_MS` only commands that need not wait count: leases could not be
        extended while there was no leader.
        """
        wait_s = None
        if self.due_ms is not None:
            wait_s = max(self._grace_s(), self._time.wait_s(self.due_ms))
        if self.prompt_ms is not None:
            prompt_s = self._time.wait_s(self.prompt_ms)
            wait_s = prompt_s if wait_s is None else min(wait_s, prompt_s)
        return wait_s

    @property
    def in_grace(self) -> bool:
        return self._grace_s() > 0

    def _grace_s(self) -> float:
        return self._since_s + LEASE_GRACE_MS / 1000 - self._time.read_s

    def refused(self) -> None:
        """The due commands were not accepted; they are due again after a while."""
        due_ms = self.now_ms() + DUE_REFUSED_MS
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)
        self.prompt_ms = due_ms if self.prompt_ms is None else min(self.prompt_ms, due_ms)

    def wake_s(self) -> float | None:
        """When there is something to do if nothing happens, by the monotonic clock."""
        was_set = self._was_set(self.now_ms())
        now_s = self._time.read_s
        instants = [until_s for until_s, _ in self._changes.values()] if self._changes else []
        if was_set:
            instants.append(now_s)
        if self._transfer is not None:
            # Nothing is proposed during a transfer, even if it is due.
            instants.append(self._transfer_until_s)
            return min(instants)
        if (wait_s := self.due_in_s()) is not None:
            instants.append(now_s + wait_s)
        if (wait_s := self._note_in_s()) is not None:
            instants.append(now_s + wait_s)
        return min(instants, default=None)

    # --- reads -------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """Whether a caller waits to read."""
        return bool(self._reads)

    @property
    def needs_read_round(self) -> bool:
        """Whether reads wait for the next round of questions."""
        return self._reads.wants_round

    def read(self, request: Read) -> None:
        self._reads.add(request.future, self._member.commit_index)

    def read_round_sent(self, round_: int) -> None:
        self._reads.begun(round_)

    def confirm_reads(self) -> None:
        while (first := self._reads.first_round) is not None and self._member.has_quorum_for(first):
            self._reads.confirm(first)

    def answer_reads(self, synced_index: int, outcome: Outcome) -> None:
        """Answers the reads for which a current snapshot, with entries up to `synced_index`, is
        enough.
        """
        if self._reads:
            outcome.done.extend((future, None) for future in self._reads.done(synced_index))

    # --- transfer ----------------------------------------------------------------

    @property
    def transferring(self) -> bool:
        return self._transfer is not None

    def transfer(self, request: Transfer, outcome: Outcome) -> None:
        """Accepts no calls until the replica on that node leads, or the time is over."""
        target = configuration.of_node(self._journal.replicas, request.to)
        own = target is not None and target.id == self._member.id
        unapplied = 0 if target is None or own else self._member.unapplied_by(target.id)
        error: QueratorError | None = None
        if target is None or not target.voter:
            message = f"{request.to} has no voting replica of group {self._group}"
            error = QueratorError(
                ErrorCode.INVALID_ARGUMENT, message, field="node", value=request.to
            )
        elif self._transfer is not None:
            message = f"group {self._group} is being handed over already"
            error = QueratorError(ErrorCode.UNAVAILABLE, message)
        elif not self._skew.has_right_clock(target.node):
            message = f"the clock of {node_name(request.to)} is wrong"
            error = QueratorError(ErrorCode.UNAVAILABLE, message)
        elif unapplied > UNAPPLIED_ENTRIES_MAX:
            name = node_name(request.to)
            message = f"{name} has to apply {unapplied} entries of group {self._group} first"
            error = QueratorError(ErrorCode.UNAVAILABLE, message)
        if error is not None or own:
            self._end_transfer(request, error, outcome)
            return
        self._begin(request)

    def transfer_away(self) -> None:
        """Hands over to the best suited replica, if there is one. Does nothing during a transfer,
        or shortly after one that failed.
        """
        now_s = self._clock.monotonic_s()
        if self._transfer is not None or now_s - self._offered_s < HAND_AWAY_AGAIN_S:
            return
        heir = self._member.transfer_target(able=True)
        replica = None if heir is None else configuration.find(self._journal.replicas, heir)
        if replica is not None:
            self._offered_s = now_s
            self._begin(Transfer(self._group, replica.node, None))

    def _begin(self, request: Transfer) -> None:
        self._transfer = request
        self._transfer_until_s = self._clock.monotonic_s() + TRANSFER_TIMEOUT_S
        self._handed = False

    def continue_transfer(self, outcome: Outcome) -> None:
        """Asks the other replica to take over as soon as it can, and gives up when it does not."""
        request = self._transfer
        if request is None:
            return
        if self._clock.monotonic_s() >= self._transfer_until_s:
            self._transfer = None
            message = f"{node_name(request.to)} did not take group {self._group} over in time"
            self._end_transfer(request, QueratorError(ErrorCode.UNAVAILABLE, message), outcome)
            return
        target = configuration.of_node(self._journal.replicas, request.to)
        if target is not None and not self._handed and self._member.is_caught_up(target.id):
            self._handed = True
            self._member.hand_to(target.id)

    # --- change of replicas --------------------------------------------------------

    def reconfigure(self, request: Reconfigure, outcome: Outcome) -> None:
        """Appends the changed configuration, if the change is allowed."""
        try:
            index = self._reconfigure(request.change)
        except QueratorError as error:
            outcome.done.append((request.future, error))
            return
        if index is None:
            outcome.done.append((request.future, None))
        else:
            until_s = self._clock.monotonic_s() + PROPOSAL_TIMEOUT_MS / 1000
            self._changes[index] = until_s, request

    def _reconfigure(self, change: configuration.Change) -> int | None:
        member, replicas = self._member, self._journal.replicas
        if self._transfer is not None or self._journal.replicas_index > member.commit_index:
            message = f"group {self._group}: another change of replicas is under way"
            raise QueratorError(ErrorCode.UNAVAILABLE, message)
        if configuration.changed(replicas, change) == replicas:
            return None
        match change:
            case configuration.Promote(id_):
                missing = member.unapplied_by(id_)
                state = member.progress[id_].state
                if missing > UNAPPLIED_ENTRIES_MAX or state is not ReplicationState.REPLICATE:
                    message = f"group {self._group}: replica {id_} is {missing} entries behind"
                    raise QueratorError(ErrorCode.UNAVAILABLE, message)
            case configuration.RemoveReplica(id_) if id_ == member.id:
                raise QueratorError(
                    ErrorCode.INVALID_ARGUMENT,
                    f"group {self._group}: replica {id_} leads; hand the leadership over first",
                    field="replica",
                    value=str(id_),
                )
        return member.reconfigure(change)

    def applied(self, index: int, outcome: Outcome) -> None:
        """The entry at `index`, which is of this term, is applied."""
        found = self._changes.pop(index, None)
        if found is not None:
            outcome.done.append((found[1].future, None))

    def end_changes(self, unknown: QueratorError, outcome: Outcome) -> None:
        """Ends changes that take too long; their outcome is unknown."""
        now_s = self._clock.monotonic_s()
        for index, (until_s, request) in list(self._changes.items()):
            if until_s <= now_s:
                del self._changes[index]
                outcome.done.append((request.future, unknown))

    # --- the end -----------------------------------------------------------------

    def leave(self, refused: QueratorError, unknown: QueratorError, outcome: Outcome) -> None:
        """Ends all tasks; calls in the log end as their entries do."""
        outcome.errors.extend((call, refused) for call in self.held)
        outcome.done.extend((future, refused) for future in self._reads.take_all())
        outcome.done.extend((request.future, unknown) for _, request in self._changes.values())
        if self._transfer is not None:
            # The transfer has succeeded: this replica does not lead any more.
            self._end_transfer(self._transfer, None, outcome)

    @staticmethod
    def _end_transfer(request: Transfer, error: QueratorError | None, outcome: Outcome) -> None:
        if request.future is not None:
            outcome.done.append((request.future, error))
