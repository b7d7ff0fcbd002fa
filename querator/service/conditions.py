"""Conditions of a node that make items late or replicas doubtful.

The node checks for them every `LOOK_S`. A condition that begins or ends is a log line
(`condition.began`, `condition.ended`). Present conditions are counted by kind in a metric, and
listed in the answer to GetClusterStatus, each as a sentence. `docs/operating.md` has the table of
kinds, with what an operator does for each.

    kind               present while
    clock_wrong        this node's clock is further than the limit from the median of all clocks
    clocks_differ      the clocks of this node and of another one differ by more than the limit, and
                       this node does not know which of both is wrong
    clock_not_believed a replica here does not stand for election because of this node's clock
    time_ahead         state time of a partition led here is ahead of this node's clock
    time_behind        state time of a partition led here is far behind this node's clock, which was
                       set forward
    partition_stopped  a defect has stopped a replica here
    blocks_damaged     a replica here has blocks that cannot be read
    token_refused      another node has another cluster token than this one, or all others have
    peer_refused       connections between this node and another process are refused again and again
    no_majority        this node reaches no majority of the replicas of partitions that it has
    storage_full       this node's storage has no space for items (`service.storage_watch`)
    no_space           a replica here does not apply its log because the node has no space for it
    copy_behind        another voter has not on disk what the leader here had `PATIENCE_S` ago
    disk_slow          a sync here took longer than `SLOW_SYNC_S`, within `MEMORY_S`
    event_loop_hung    the event loop here hung (`raft.consensus.loop_watch`), within `MEMORY_S`
    moves_wait         a partition led here has had its moves to another one refused
    change_waits       this node leads the map, and a change of a queue is not complete
    queue_refuses      a partition refused a call of this node's clients for lack of space, within
                       `MEMORY_S`

Refusals and delays of less than `PATIENCE_S` are no condition: leaders change, and links break.

Longer than 500 lines: each kind has its check and its sentence, and the table above names them all.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from querator import telemetry
from querator.model.cluster import LEASES_CONTINUE, ClusterCondition
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.limits import CLOCK_SKEW_MS_MAX, MIB, STATE_TIME_JUMP_MS_MAX
from querator.model.nodes import NodeKey, node_name
from querator.model.queues import QueueState
from querator.raft.refusals import LastingRefusal, OtherTokens
from querator.raft.status import GroupStatus

if TYPE_CHECKING:
    from querator.placement.placement import Placement
    from querator.raft.clock import Clock
    from querator.raft.host import Host
    from querator.service.queue_service import QueueService
    from querator.storage.environment import Usage

LOOK_S: Final = 2.0
"""Interval of the checks. For a thousand partitions a check takes a millisecond."""
PATIENCE_S: Final = 10.0
MEMORY_S: Final = 30.0
_SLOW_SYNC_BUCKET: Final = 21
"""The first bucket of `TurnStats.commit_us` that counts as slow."""
SLOW_SYNC_S: Final = 2 ** (_SLOW_SYNC_BUCKET - 1) / 1e6
_FULL_PART: Final = 16
"""The storage is full when less than this part of its reserve is free beyond the reserve: 4 MiB, so
that large requests are refused."""
_FULL_UNTIL_PART: Final = 8
"""It is full until this part is free, so that the condition does not begin and end all the time."""
_NAMED_MAX: Final = 5
_MAP_NAME: Final = "(map)"

KINDS: Final = (
    "clock_wrong",
    "clocks_differ",
    "clock_not_believed",
    "time_ahead",
    "time_behind",
    "partition_stopped",
    "blocks_damaged",
    "token_refused",
    "peer_refused",
    "no_majority",
    "storage_full",
    "no_space",
    "copy_behind",
    "disk_slow",
    "event_loop_hung",
    "moves_wait",
    "change_waits",
    "queue_refuses",
)

_log = telemetry.logger(__name__)


class Conditions:
    """Conditions of one node, on its event loop. Call `start` once, and `stop` before the loop
    ends.
    """

    def __init__(
        self,
        *,
        host: "Host",
        placement: "Placement",
        service: "QueueService",
        clock: "Clock",
        out_of_reach: Callable[[], Collection[str]] = frozenset,
        other_tokens: Callable[[], OtherTokens] = OtherTokens,
        lasting_refusals: Callable[[], Sequence[LastingRefusal]] = tuple,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        """`out_of_reach` returns the names of the other nodes that the raft package of this node
        cannot reach, or does not hear; `other_tokens`, those with another token;
        `lasting_refusals`, connections that are refused for other reasons. `now_s` None: the loop's
        clock.
        """
        self._host = host
        self._placement = placement
        self._service = service
        self._clock = clock
        self._out_of_reach = out_of_reach
        self._other_tokens = other_tokens
        self._lasting_refusals = lasting_refusals
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time if now_s is None else now_s
        self._timer: asyncio.TimerHandle | None = None
        self._present: dict[tuple[str, str], ClusterCondition] = {}
        self._since_s: dict[tuple[str, str], float] = {}
        self._lagging: dict[tuple[GroupId, int], tuple[int, float]] = {}
        """By group and replica: a log index that the replica has to reach, and the start of the
        wait.
        """
        self._slow_syncs = 0
        self._slow_sync_s = float("-inf")
        self._loop_hangs = 0
        self._loop_hung_s = float("-inf")
        self._changing_s: dict[QueueId, float] = {}
        self.storage: Usage | None = None
        """The space of the storage as it was read last; None: it is not checked."""

    @property
    def present(self) -> tuple[ClusterCondition, ...]:
        """Conditions found by the last check."""
        return tuple(self._present.values())

    def start(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._again)
        self.check()

    def check(self) -> None:
        """Checks for conditions."""
        now_s = self._now_s()
        found = {(one.kind, one.about): one for one in self._found(now_s)}
        for key, one in found.items():
            if key not in self._present:
                self._since_s[key] = now_s
                _log.warning("condition.began", kind=one.kind, about=one.about, text=one.sentence)
        for key in self._present:
            if key not in found:
                lasted_s = round(now_s - self._since_s.pop(key), 1)
                _log.info("condition.ended", kind=key[0], about=key[1], lasted_s=lasted_s)
        self._present = found

    def _found(self, now_s: float) -> Iterator[ClusterCondition]:
        statuses = {
            group: status
            for group in self._host.groups()
            if (status := self._host.status(group)) is not None
        }
        yield from self._clocks(statuses)
        yield from self._tokens()
        yield from self._refused_peers()
        yield from self._majorities(statuses)
        yield from self._replicas(statuses)
        yield from self._behind(statuses, now_s)
        yield from self._storage()
        yield from self._disk(now_s)
        yield from self._event_loop(now_s)
        yield from self._moves(now_s)
        yield from self._changes(now_s)
        yield from self._refusals(now_s)

    @property
    def _node(self) -> str:
        return node_name(self._host.node)

    # --- clocks ------------------------------------------------------------------------------

    def _clocks(self, statuses: dict[GroupId, GroupStatus]) -> Iterator[ClusterCondition]:
        skew_ms = self._host.skew_ms
        if abs(skew_ms) > CLOCK_SKEW_MS_MAX:
            side = "behind" if skew_ms > 0 else "ahead of"
            yield ClusterCondition(
                "clock_wrong",
                self._node,
                f"The clock of node {self._node} is {abs(skew_ms) / 1000:.1f} s {side} that of the "
                "others.",
            )
        if (differs := self._host.clock_differs) is not None:
            names = " and ".join(sorted((self._node, node_name(differs[0]))))
            yield ClusterCondition(
                "clocks_differ",
                names,
                f"The clocks of nodes {names} differ by {abs(differs[1]) / 1000:,.1f} s: one of "
                "them is wrong.",
            )
        waiting = [group for group, status in statuses.items() if status.waits_for_clock]
        yield from self._by_queue(
            "clock_not_believed",
            waiting,
            lambda named, _: (
                f"{named}: node {self._node} does not stand for election, because its clock is "
                "far ahead of the data and no majority of clocks agrees with it."
            ),
        )
        wall_ms = self._clock.wall_ms()
        ahead_ms = {
            group: status.now_ms - wall_ms
            for group, status in statuses.items()
            if status.leads
            and group != PLACEMENT_GROUP
            and status.now_ms - wall_ms > STATE_TIME_JUMP_MS_MAX
        }
        yield from self._by_queue(
            "time_ahead",
            ahead_ms,
            lambda named, groups: (
                f"Time in {named} is ahead of the clock of node {self._node}, by "
                f"up to {max(ahead_ms[group] for group in groups) / 1000:,.0f} s."
            ),
        )
        behind_ms = {
            group: status.behind_ms
            for group, status in statuses.items()
            if status.behind_ms and group != PLACEMENT_GROUP
        }
        yield from self._by_queue(
            "time_behind",
            behind_ms,
            lambda named, groups: (
                f"Time in {named} is behind the clock of node {self._node}, by up to "
                f"{max(behind_ms[group] for group in groups) / 1000:,.0f} s: schedules come due "
                "late, and it catches up by a tenth of the time that passes. When all clocks are "
                f"right: querator cluster repair-time {self._queue_name(groups[0])}"
            ),
        )

    # --- tokens ------------------------------------------------------------------------------

    def _tokens(self) -> Iterator[ClusterCondition]:
        found = self._other_tokens()
        if found == OtherTokens():
            return
        others = {node.name for node in self._placement.map.nodes} - {self._node}
        names = sorted(found.names & others)
        # A node dials those of larger names, so their refusals have names: without one it is down.
        silent = others - found.names
        refused = not silent or (found.unnamed and max(silent) < self._node)
        if others and refused and others <= set(self._out_of_reach()):
            who = " and ".join((*names, "other nodes") if found.unnamed else names)
            yield ClusterCondition(
                "token_refused",
                self._node,
                f"Node {self._node} is refused by {who}: it has another cluster token. Start it "
                "with the token of the others.",
            )
            return
        for name in names:
            yield ClusterCondition(
                "token_refused",
                name,
                f"Node {name} has another cluster token than node {self._node}: they refuse each "
                f"other. Start node {name} with the token of the others.",
            )

    def _refused_peers(self) -> Iterator[ClusterCondition]:
        for one in self._lasting_refusals():
            reason = one.reason.rstrip(".")
            if one.dialed:
                sentence = (
                    f"Nodes {self._node} and {one.peer} do not connect. Node {self._node} reports "
                    f"of the other one: {reason}."
                )
            else:
                sentence = (
                    f"A process at {one.peer} asks node {self._node} for a connection, and "
                    f"{'refuses it' if one.by_peer else 'is refused'}: {reason}. If it should be a "
                    "node of this cluster, correct its settings. If not, stop it, or keep it from "
                    "the port for nodes."
                )
            yield ClusterCondition("peer_refused", one.peer, sentence)

    # --- majorities --------------------------------------------------------------------------

    def _majorities(self, statuses: dict[GroupId, GroupStatus]) -> Iterator[ClusterCondition]:
        away = self._out_of_reach()
        if not away:
            return
        missing: set[str] = set()
        groups = []
        for group, status in statuses.items():
            voters = [node_name(replica.node) for replica in status.replicas if replica.voter]
            lost = [name for name in voters if name in away]
            if 2 * len(lost) >= len(voters) > 0:
                groups.append(group)
                missing.update(lost)
        if groups:
            nodes = sorted(missing)
            verb = "is" if len(nodes) == 1 else "are"
            yield ClusterCondition(
                "no_majority",
                self._node,
                f"Node {self._node} reaches no majority of the replicas of {self._named(groups)}: "
                f"{', '.join(nodes)} {verb} out of reach. Calls to these partitions wait, and fail "
                "with UNAVAILABLE, until a majority is back. Nothing that was acknowledged is "
                "lost.",
            )

    # --- replicas ----------------------------------------------------------------------------

    def _replicas(self, statuses: dict[GroupId, GroupStatus]) -> Iterator[ClusterCondition]:
        yield from self._by_queue(
            "partition_stopped",
            [
                *(group for group, status in statuses.items() if status.quarantined),
                *self._host.unreadable(),
            ],
            lambda named, _: (
                f"{named}: stopped by a defect on node {self._node}; see "
                "node.partition_stopped in its log, and check its data with: querator verify"
            ),
        )
        blocks = {g: count for g, count in self._service.damage.stats().aside.items() if count}
        yield from self._by_queue(
            "blocks_damaged",
            blocks,
            lambda named, groups: (
                f"{named} on node {self._node}: "
                f"{_count(sum(blocks[group] for group in groups), 'block')} damaged."
            ),
        )

        yield from self._by_queue(
            "no_space",
            [group for group, status in statuses.items() if status.waits_for_space],
            lambda named, _: (
                f"{named}: node {self._node} has no space for committed entries, and applies none "
                "until there is space."
            ),
        )

    def _behind(
        self, statuses: dict[GroupId, GroupStatus], now_s: float
    ) -> Iterator[ClusterCondition]:
        lagging: dict[tuple[GroupId, int], tuple[int, float]] = {}
        behind: dict[NodeKey, list[tuple[float, int]]] = defaultdict(list)
        for group, status in statuses.items():
            for follower in status.followers if status.leads else ():
                if not follower.voter or follower.match >= status.log_last:
                    continue
                key = group, follower.id
                goal, since_s = self._lagging.get(key, (0, 0.0))
                if follower.match >= goal:
                    goal, since_s = status.log_last, now_s
                lagging[key] = goal, since_s
                if now_s - since_s >= PATIENCE_S:
                    lag = status.log_last - follower.match
                    behind[follower.node].append((now_s - since_s, lag))
        self._lagging = lagging
        for node, some in behind.items():
            name = node_name(node)
            yield ClusterCondition(
                "copy_behind",
                name,
                f"Node {name} has been behind for {max(some)[0]:,.0f} s, by up to "
                f"{_entries(max(lag for _, lag in some))}, in {_count(len(some), 'partition')} "
                f"led by node {self._node}: its disk or its network is slow, or it is down.",
            )

    def _storage(self) -> Iterator[ClusterCondition]:
        usage = self.storage
        if usage is None:
            return
        was_full = ("storage_full", self._node) in self._present
        part = _FULL_UNTIL_PART if was_full else _FULL_PART
        if usage.open_bytes >= usage.reserve_bytes // part:
            return
        where, remedy = "on its disk", "Free space on the disk"
        if usage.by_quota:
            where, remedy = f"of its quota of {_mib(usage.quota_bytes)}", "Raise the quota"
        refused = f"new items with STORAGE_FULL; {LEASES_CONTINUE}"
        if usage.free_bytes < usage.reserve_bytes // 4:
            refused = (
                "every change with STORAGE_FULL, also completes and deletions. "
                f"{remedy}: nothing can be consumed until then"
            )
        elif usage.free_bytes < usage.reserve_bytes // 2:
            refused = "new items, leases and retries with STORAGE_FULL; completes continue"
        yield ClusterCondition(
            "storage_full",
            self._node,
            f"The storage of node {self._node} is full: {_mib(usage.free_bytes)} {where} are free, "
            f"and {_mib(usage.reserve_bytes)} are kept in reserve. It refuses {refused}.",
        )

    def _disk(self, now_s: float) -> Iterator[ClusterCondition]:
        slow = sum(self._host.turn_stats().commit_us.buckets[_SLOW_SYNC_BUCKET:])
        if slow > self._slow_syncs:
            self._slow_syncs, self._slow_sync_s = slow, now_s
        stalled_s = self._host.liveness.stalled_s()
        if stalled_s > SLOW_SYNC_S:
            yield ClusterCondition(
                "disk_slow",
                self._node,
                f"The raft thread of node {self._node} has made no progress for {stalled_s:,.1f} "
                "s: its disk does not answer, or there is a defect.",
            )
        elif now_s - self._slow_sync_s < MEMORY_S:
            yield ClusterCondition(
                "disk_slow",
                self._node,
                f"The disk of node {self._node} is slow: a sync took more than "
                f"{SLOW_SYNC_S:.0f} s within the last {MEMORY_S:.0f} s.",
            )

    def _event_loop(self, now_s: float) -> Iterator[ClusterCondition]:
        hangs = self._host.loop_hangs
        if hangs > self._loop_hangs:
            self._loop_hangs, self._loop_hung_s = hangs, now_s
        if now_s - self._loop_hung_s < MEMORY_S:
            yield ClusterCondition(
                "event_loop_hung",
                self._node,
                f"The event loop of node {self._node} hung within the last {MEMORY_S:.0f} s: it "
                "answered no request, and other nodes took its leaderships. This has happened "
                f"{_count(hangs, 'time')} since its start.",
            )

    # --- queues ------------------------------------------------------------------------------

    def _moves(self, now_s: float) -> Iterator[ClusterCondition]:
        waiting: dict[tuple[str, str], list[tuple[float, GroupId, str]]] = defaultdict(list)
        for one in self._service.mover.waiting():
            if now_s - one.since_s >= PATIENCE_S:
                queues = self._queue_name(one.source), self._queue_name(one.target)
                waiting[queues].append((now_s - one.since_s, one.source, str(one.error)))
        for (source, target), some in waiting.items():
            longest_s, _, reason = max(some)
            yield ClusterCondition(
                "moves_wait",
                f"{source} to {target}",
                f"Items of {self._named([group for _, group, _ in some])} have waited for "
                f"{longest_s:,.0f} s to be moved to queue {target}: {reason.rstrip('.')}.",
            )

    def _changes(self, now_s: float) -> Iterator[ClusterCondition]:
        leads = self._host.leads(PLACEMENT_GROUP)
        pending = self._placement.pending if leads else frozenset()
        self._changing_s = {one: self._changing_s.get(one, now_s) for one in pending}
        for queue_id, since_s in self._changing_s.items():
            queue = self._placement.map.get(queue_id)
            if queue is None or now_s - since_s < PATIENCE_S:
                continue
            doing = "its new settings"
            if queue.state is not QueueState.ACTIVE:
                doing = "being made" if queue.state is QueueState.CREATING else "its deletion"
            elif queue.is_changing:
                doing = f"its change to {_count(queue.settings.partitions, 'partition')}"
            reason = self._placement.last_error(queue_id).rstrip(".")
            yield ClusterCondition(
                "change_waits",
                queue.name,
                f"Queue {queue.name} has waited for {doing} for {now_s - since_s:,.0f} s"
                f"{': ' if reason else ''}{reason}. It is tried again by itself.",
            )

    def _refusals(self, now_s: float) -> Iterator[ClusterCondition]:
        refused = self._service.router.refusals.since(now_s - MEMORY_S)

        def sentence(named: str, groups: Sequence[GroupId]) -> str:
            calls = sum(refused[group].calls for group in groups)
            last = max((refused[group] for group in groups), key=lambda one: one.last_s).error
            return (
                f"{named}: {_count(calls, 'call')} of clients of node {self._node} refused, the "
                f"last one with {last.code.name}: {last.message.rstrip('.')}."
            )

        yield from self._by_queue("queue_refuses", refused, sentence)

    # --- names -------------------------------------------------------------------------------

    def _by_queue(
        self,
        kind: str,
        groups: Iterable[GroupId],
        sentence: Callable[[str, Sequence[GroupId]], str],
    ) -> Iterator[ClusterCondition]:
        """One condition per queue; `sentence` gets the names of its partitions, and
        their groups.
        """
        queues: dict[str, list[GroupId]] = defaultdict(list)
        for group in groups:
            queues[self._queue_name(group)].append(group)
        for name, some in queues.items():
            yield ClusterCondition(kind, name, sentence(self._named(some), some))

    def _queue_name(self, group: GroupId) -> str:
        owner = self._placement.map.by_group(group)
        return _MAP_NAME if owner is None else owner[0].name

    def _named(self, groups: Sequence[GroupId]) -> str:
        owners = [self._placement.map.by_group(group) for group in groups]
        names = [_MAP_NAME if one is None else f"{one[0].name}/{one[1]}" for one in owners]
        more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
        return ", ".join(sorted(names)[:_NAMED_MAX]) + more


def _mib(number: int) -> str:
    return f"{number / MIB:,.1f} MiB"


def _entries(number: int) -> str:
    return "1 log entry" if number == 1 else f"{number:,} log entries"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
