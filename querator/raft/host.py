"""API of `querator.raft`: takes commands on the asyncio thread, and runs the turns on a thread of
its own.

    asyncio thread                          raft thread
    propose → deque, eventfd ───────────►   turn: batch, append, tick, write, apply, synced commit
    futures, then events     ◄───────────   one call_soon_threadsafe before the sync, one after it

A call ends in one of three ways:

- its result;
- a refusal that means *not executed*: NOT_LEADER, OVERLOADED, STORAGE_FULL, UNAVAILABLE, INTERNAL;
- OUTCOME_UNKNOWN: it was appended, and before it was applied, the group or the process stopped, or
  the call's time was over.

Cancelling a future does not cancel its command.

A failure of the storage, or any defect outside of a machine, stops the raft thread for good
(fail-stop), because memory and disk may differ afterwards. Every call ends, `HostEvents.on_failure`
is called, and the process must exit and recover from disk.

A raft thread that hangs, for example in a sync that does not end, answers no call, while its
followers elect other leaders. `HostEvents.on_hang` reports this, so that waiting callers can be
sent to other nodes.

The module is longer than 500 lines, because every way in which a call of another thread begins or
ends is read in one place.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from querator import telemetry
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    LOG_BYTES_KEPT,
    PROPOSAL_BYTES_WAITING_MAX,
    PROPOSAL_OVERHEAD_BYTES,
    PROPOSALS_WAITING_MAX,
)
from querator.model.nodes import NodeKey, Replica, Replicas, node_key
from querator.model.shares import Shares
from querator.raft.clock import Clock
from querator.raft.configuration import Change
from querator.raft.group import call_errors
from querator.raft.group.snapshot_schedule import SnapshotStats
from querator.raft.machine import Machine
from querator.raft.peers import PeerLink
from querator.raft.requests import (
    Call,
    Damaged,
    Effects,
    Event,
    Leader,
    Leadership,
    Mend,
    Open,
    Outcome,
    Quarantine,
    Read,
    Reconfigure,
    Remove,
    Stop,
    Transfer,
)
from querator.raft.stats import TurnStats
from querator.raft.status import GroupStatus
from querator.raft.turn.liveness import HANGS_S, LOOK_S, Liveness
from querator.raft.turn.thread import RaftThread, TurnLoop
from querator.storage.environment import Environment, ReadTransaction, StorageError

LONE_NODE = node_key("node", "alone")
"""The node of a host without other nodes."""

_log = telemetry.logger(__name__)


class HostEvents(Protocol):
    """Events for the owner, on the asyncio thread, after the futures of the same turn are set."""

    def on_effects(self, group: GroupId, effects: Any) -> None: ...

    def on_leadership(self, group: GroupId, leads: bool) -> None:
        """Whether this node accepts calls for the group."""
        ...

    def on_leader(self, group: GroupId, node: NodeKey | None) -> None:
        """The leader as far as this node knows; None: this node knows of none."""
        ...

    def on_failure(self, error: BaseException) -> None:
        """Fail-stop: no call is answered after this, and the process must exit."""
        ...

    def on_quarantine(self, group: GroupId, error: BaseException) -> None:
        """A defect stopped this group on this node; the other groups continue."""
        ...

    def on_hang(self, hangs: bool) -> None:
        """The raft thread hangs, or continues. Only on a node of a cluster of several."""
        ...

    def on_damage(self, group: GroupId, index: int, part: int) -> None:
        """An attachment that this node should send to another replica is damaged on this node."""
        ...


class Host:
    """All Raft groups of a node. Every method must be called on the event loop that called
    `start`.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        clock: Clock,
        events: HostEvents,
        node: NodeKey = LONE_NODE,
        peers: PeerLink | None = None,
        chance: random.Random | None = None,
        log_bytes_kept: int = LOG_BYTES_KEPT,
        turn_loop: TurnLoop | None = None,
    ) -> None:
        """`node` is the name in replicas and their votes. `peers` connects to the other nodes; the
        raft thread serves it from `start` on, and the caller owns it. `chance` draws election
        timeouts. `log_bytes_kept` bounds the logs of all groups behind their state. `turn_loop`
        makes the turns instead of a thread, with an environment, clock and peers of its own.
        """
        self.node = node
        self._clock = clock
        self._events = events
        self._turn_loop: TurnLoop = turn_loop or RaftThread(
            environment,
            clock=clock,
            node=node,
            peers=peers,
            chance=chance if chance is not None else random.Random(),
            log_bytes_kept=log_bytes_kept,
        )
        self._turns = self._turn_loop.turns
        self._put = self._turn_loop.put
        self._watched = self._turn_loop.watched
        self._watch: asyncio.TimerHandle | None = None
        self.hangs = False
        """Whether the raft thread hangs; always False on a node that is alone."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: dict[Call, None] = {}
        self._waiting: Shares[GroupId] = Shares(
            calls_max=PROPOSALS_WAITING_MAX, bytes_max=PROPOSAL_BYTES_WAITING_MAX
        )
        """Calls that are not answered, counted against their limits."""
        self._opened: dict[GroupId, asyncio.Future[None]] = {}
        self._removed: dict[GroupId, asyncio.Future[None]] = {}
        self._unreadable: dict[GroupId, QueratorError] = {}
        # All futures that the two dicts have ever held and that are not done. A future that is
        # replaced leaves the dicts early.
        self._unanswered: set[asyncio.Future[None]] = set()
        self._hasty: dict[asyncio.Future[None], ErrorCode] = {}
        """The unanswered futures that a hanging thread ends, and with which error. Groups that are
        opened, closed and deleted wait until the thread continues: one request at a time opens a
        group.
        """
        self._led: set[GroupId] = set()
        self._leaders: dict[GroupId, NodeKey] = {}
        self._closed: QueratorError | None = None
        """Why no more requests are accepted; None while they are."""

    @property
    def liveness(self) -> Liveness:
        """Liveness of the raft thread."""
        return self._turn_loop.liveness

    # --- the owner's side --------------------------------------------------------------

    async def start(self) -> None:
        """Starts the raft thread. `create_group` opens groups."""
        assert self._loop is None
        self._loop = asyncio.get_running_loop()
        self._turn_loop.start(self._deliver, self._fail)
        if self._watched:
            self._watch = self._loop.call_later(LOOK_S, self._check_liveness)

    async def stop(self) -> None:
        """Accepts no more requests, finishes and answers the accepted ones, and ends the thread.

        Only deletions of groups stop where they are, with UNAVAILABLE, because they may be long.
        The environment stays open: it belongs to the caller.
        """
        assert self._loop is not None
        if self._closed is None:
            self._closed = QueratorError(ErrorCode.UNAVAILABLE, "the node is shutting down")
            self._put(Stop())
        if self._watch is not None:
            self._watch.cancel()
        await self._turn_loop.ended()
        message = "the node stopped before a majority had acknowledged"
        self._end_calls(QueratorError(ErrorCode.OUTCOME_UNKNOWN, message), self._closed)

    async def create_group(
        self, group: GroupId, machine: Machine, replicas: Replicas | None = None
    ) -> None:
        """Recovers this node's replica of the group from disk, or creates it with `replicas` as the
        first configuration. `replicas` names this node's replica; None: it is the only one; (): it
        is on disk. Returns when a lone replica leads and its effects are delivered; one of several,
        when it is open.

        A further call for an open group waits in the same way. Raises QueratorError: INTERNAL when
        the machine fails on the stored state, UNAVAILABLE when the group is being deleted or the
        node stops.
        """
        opened = self._opened.get(group)
        if opened is None:
            opened = self._request_future()
            self._opened[group] = opened
            alone = (Replica(1, self.node),)
            self._put(Open(group, machine, opened, alone if replicas is None else replicas))
        try:
            await asyncio.shield(opened)
        except QueratorError as error:
            if self._opened.get(group) is opened:
                del self._opened[group]
            if error.code is ErrorCode.INTERNAL and self.status(group) is None:
                self._unreadable[group] = error
            raise
        self._unreadable.pop(group, None)

    def unreadable(self) -> Mapping[GroupId, QueratorError]:
        """The groups that could not be opened from their stored state, with the reason. They have
        no status.
        """
        return self._unreadable

    async def close_group(self, group: GroupId) -> None:
        """Stops the group for good; returns when that is on disk. From then on this node neither
        votes nor acknowledges anything in the group, also after a crash. Its rows stay until
        `delete_group`.
        """
        closed = self._request_future()
        self._opened.pop(group, None)
        self._unreadable.pop(group, None)
        self._put(Remove(group, closed, rows=False))
        await closed

    async def delete_group(self, group: GroupId) -> None:
        """Stops the group and deletes all its rows, in bounded steps; returns when the last row is
        deleted.

        After a crash in between, the only use of the group is to call this again.
        """
        removed = self._removed.get(group)
        if removed is None or removed.done():
            removed = self._request_future()
            self._removed[group] = removed
            self._opened.pop(group, None)
            self._unreadable.pop(group, None)
            self._put(Remove(group, removed))
        try:
            await asyncio.shield(removed)
        finally:
            if removed.done() and self._removed.get(group) is removed:
                del self._removed[group]

    def propose(
        self, group: GroupId, command: Any, attachment: bytes = b""
    ) -> "asyncio.Future[Any]":
        """Returns the future of the result, or of a QueratorError (see the module's docstring)."""
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        size = len(attachment) + PROPOSAL_OVERHEAD_BYTES
        if self._closed is not None:
            future.set_exception(self._closed)
            return future
        excess = self._waiting.try_add(group, size)
        if excess is not None:
            future.set_exception(call_errors.full(excess, group, "wait"))
            return future
        call = Call(group, Proposal(command, attachment), future, size)
        self._calls[call] = None
        self._put(call)
        return future

    async def confirm_read(self, group: GroupId) -> None:
        """Returns when a snapshot taken from then on shows everything that was acknowledged before
        the call. Raises QueratorError: NOT_LEADER, UNAVAILABLE, INTERNAL.
        """
        future = self._request_future(hung=ErrorCode.UNAVAILABLE)
        self._put(Read(group, future))
        await future

    async def transfer(self, group: GroupId, to: NodeKey) -> None:
        """Hands the leadership over; returns when this node does not lead the group any more.

        Raises QueratorError: NOT_LEADER; INVALID_ARGUMENT; UNAVAILABLE when the other node did not
        take the leadership in time, and this node continues to lead; OUTCOME_UNKNOWN when the raft
        thread hangs.
        """
        future = self._request_future(hung=ErrorCode.OUTCOME_UNKNOWN)
        self._put(Transfer(group, to, future))
        await future

    async def mend(
        self,
        group: GroupId,
        index: int,
        part: int,
        data: bytes,
        is_wanted: Callable[[ReadTransaction], bool],
    ) -> None:
        """Writes an attachment again that is damaged here. `data` is what another replica has,
        checked. Returns when it is on disk, or when `is_wanted` says, on the raft thread, that the
        attachment is not needed any more.

        Raises QueratorError: STORAGE_FULL, INTERNAL, UNAVAILABLE.
        """
        future = self._request_future(hung=ErrorCode.OUTCOME_UNKNOWN)
        self._put(
            Mend(group=group, index=index, part=part, data=data, is_wanted=is_wanted, future=future)
        )
        await future

    async def change_replicas(self, group: GroupId, change: Change) -> None:
        """Changes the replicas by one; returns when the change is committed. A change that is
        already made is no error.

        Raises QueratorError: NOT_LEADER, INVALID_ARGUMENT, UNAVAILABLE while another change is on
        its way or a learner is not caught up, OUTCOME_UNKNOWN.
        """
        future = self._request_future(hung=ErrorCode.OUTCOME_UNKNOWN)
        self._put(Reconfigure(group, change, future))
        await future

    def leader(self, group: GroupId) -> NodeKey | None:
        """The leader of the group as far as this node knows."""
        return self._leaders.get(group)

    def groups(self) -> tuple[GroupId, ...]:
        """The groups that are open on this node."""
        return tuple(self._turns.groups())

    @property
    def led_groups(self) -> frozenset[GroupId]:
        """The groups for which `leads` is True."""
        return frozenset(self._led)

    def leads(self, group: GroupId) -> bool:
        """Whether this node leads the group, as far as `on_leadership` has reported."""
        return group in self._led

    def status(self, group: GroupId) -> GroupStatus | None:
        """The status as of the last synced turn; None when the group is not open here."""
        return self._turns.status(group)

    @property
    def clock_differs(self) -> tuple[NodeKey, int] | None:
        """See `Skew.differs`."""
        return self._turns.skew.differs

    @property
    def skew_ms(self) -> int:
        """How far the median of the nodes' wall clocks is ahead of this node's. Beyond
        `CLOCK_SKEW_MS_MAX` this node does not lead.
        """
        return self._turns.skew.ms

    def time_ahead_ms(self, group: GroupId) -> int:
        """How far state time, as of the last applied entry, is ahead of the wall clock. It is
        negative when nothing has been applied for a while.
        """
        status = self._turns.status(group)
        return 0 if status is None else status.now_ms - self._clock.wall_ms()

    def trust_clock(self) -> None:
        """Accepts an operator's statement that this node's clock is right
        (`raft.consensus.skew`).
        """
        self._turns.skew.trust()

    @property
    def loop_hangs(self) -> int:
        """How often the event loop has hung (`raft.consensus.loop_watch`); 0 on a node that is
        alone.
        """
        return self._turns.loop_watch.hung

    def turn_stats(self) -> TurnStats:
        return self._turns.stats.stats()

    def snapshot_stats(self) -> SnapshotStats:
        return self._turns.traffic.stats()

    def _request_future(self, *, hung: ErrorCode | None = None) -> "asyncio.Future[None]":
        """`hung`: the error of the future when the thread hangs; None: the future waits until the
        thread continues.
        """
        assert self._loop is not None
        if self._closed is not None:
            raise self._closed
        if hung is not None and self.hangs:
            message = "the raft thread of this node hangs; not executed"
            raise QueratorError(ErrorCode.UNAVAILABLE, message)
        future: asyncio.Future[None] = self._loop.create_future()
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)
        if hung is not None:
            self._hasty[future] = hung
            future.add_done_callback(self._hasty.pop)
        return future

    def _refuse_unanswered(self, refused: QueratorError) -> None:
        for future in tuple(self._unanswered):
            if not future.done():
                future.set_exception(refused)

    # --- whether the raft thread hangs -----------------------------------------------------

    def _check_liveness(self) -> None:
        assert self._loop is not None
        stalled_s = self.liveness.stalled_s()
        hangs = stalled_s > HANGS_S
        # The thread cannot hang before that. When it continues, that should be seen soon.
        wait_s = LOOK_S if hangs else max(LOOK_S, HANGS_S - stalled_s)
        self._watch = self._loop.call_later(wait_s, self._check_liveness)
        if hangs is self.hangs:
            return
        self.hangs = hangs
        tell = _log.warning if hangs else _log.info
        tell("host.hung" if hangs else "host.resumed", stalled_s=round(stalled_s, 1))
        if hangs:
            message = "the raft thread of this node hangs; the outcome of the request is unknown"
            for future, code in list(self._hasty.items()):
                if not future.done():
                    future.set_exception(QueratorError(code, message))
        self._events.on_hang(hangs)

    def end_calls(self, which: Callable[[Any], bool]) -> None:
        """Ends the calls with such commands by OUTCOME_UNKNOWN. They count as waiting until the
        raft thread has finished them.
        """
        message = "the raft thread of the node hangs, and may still execute the request"
        for call in self._calls:
            future = call.future
            if future is not None and not future.done() and which(call.proposal.command):
                future.set_exception(QueratorError(ErrorCode.OUTCOME_UNKNOWN, message))

    # --- results, on the asyncio thread --------------------------------------------------

    def _deliver(self, outcome: Outcome) -> None:
        for call, result in outcome.results:
            if self._uncount(call):
                assert call.future is not None
                call.future.set_result(result)
        for call, error in outcome.errors:
            if self._uncount(call):
                assert call.future is not None
                call.future.set_exception(error)
        for future, failure in outcome.done:
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
        for event in outcome.events:
            try:
                self._publish(event)
            except Exception as error:  # noqa: BLE001 - the other receivers must get their events
                name = type(event).__name__
                _log.error("host.event_failed", kind=name, group=event.group, exc_info=error)

    def _uncount(self, call: Call) -> bool:
        """Removes the call from the counts of waiting calls; returns whether its caller still
        waits.
        """
        if call.future is None:
            return False
        self._calls.pop(call, None)
        self._waiting.remove(call.group, call.bytes)
        return not call.future.done()

    def _publish(self, event: Event) -> None:
        match event:
            case Effects(group, effects):
                self._events.on_effects(group, effects)
            case Leadership(group, leads):
                if leads:
                    self._led.add(group)
                else:
                    self._led.discard(group)
                self._events.on_leadership(group, leads)
            case Leader(group, node):
                if node is None:
                    self._leaders.pop(group, None)
                else:
                    self._leaders[group] = node
                self._events.on_leader(group, node)
            case Quarantine(group, error):
                self._opened.pop(group, None)
                self._events.on_quarantine(group, error)
            case Damaged(group, index, part):
                self._events.on_damage(group, index, part)

    def _fail(self, error: BaseException) -> None:
        """Called when the raft thread has ended by `error`."""
        code = ErrorCode.STORAGE_FAILED if isinstance(error, StorageError) else ErrorCode.INTERNAL
        refused = QueratorError(code, f"the node has failed: {error}")
        refused.__cause__ = error
        unknown = QueratorError(ErrorCode.OUTCOME_UNKNOWN, f"the node has failed: {error}")
        unknown.__cause__ = error
        self._closed = refused
        self._end_calls(unknown, refused)
        self._led.clear()
        self._events.on_failure(error)

    def _end_calls(self, unknown: QueratorError, refused: QueratorError) -> None:
        """Ends all waiting calls: the raft thread has ended."""
        for call in list(self._calls):
            if self._uncount(call):
                assert call.future is not None
                call.future.set_exception(unknown if call.appended else refused)
        self._refuse_unanswered(refused)
