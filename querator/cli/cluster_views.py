"""Views of a cluster: states of its nodes and partitions, and its problems in sentences.
`cluster_pictures` draws them, and `cluster_nodes` has the sentences about single nodes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from querator.cli.cluster_nodes import DAY_MS, node_problems, silent_state
from querator.cli.shared.output import count
from querator.client.cluster import ClusterPicture, SeenCondition, SeenDamage, SeenNode
from querator.model.cluster import (
    ClusterGroup,
    ClusterPending,
    ClusterReplica,
    ClusterScrub,
)
from querator.model.limits import STATE_TIME_JUMP_MS_MAX
from querator.model.placement_map import map_voters_wanted

LAG_ENTRIES_MAX = 10_000
"""Log entries: a replica that is further behind is reported."""
WORDED = frozenset({"clock_wrong", "clock_not_believed", "time_ahead", "blocks_damaged"})
"""Kinds of conditions of nodes that this module words itself, for all nodes together."""
NAMED_MAX = 5
MAP_NAME = "(map)"


class CertificateView(msgspec.Struct, frozen=True):
    """A certificate of a node. `port`: `clients` or `nodes`. `days_left` is by the clock of the
    node, rounded down; negative after the expiry.
    """

    port: str
    expires_at: datetime
    days_left: int


class NodeView(msgspec.Struct, frozen=True):
    """`state`: up, handed off, or one of `SILENT_STATES`, and whether the node is draining or
    leaving. `leads` and `replicas` are numbers of partitions. `scrub`: progress of the check of its
    payloads for damage. `certificates`: those that it shows at its ports.
    """

    name: str
    state: str
    why: str
    address: str
    peer_address: str
    zone: str
    version: str
    starts: int
    leads: int
    replicas: int
    lag_entries: int | None
    scrub: ClusterScrub = ClusterScrub()
    certificates: tuple[CertificateView, ...] = ()


class PartitionView(msgspec.Struct, frozen=True):
    """A partition.

        nodes              have replicas that count for majorities
        learning           nodes with replicas that will vote
        leaving            nodes with replicas that the map does not want any more
        silent             nodes that do not answer
        lag_entries        lag of the last voter that answers; None while there is no leader
        closing            the partition takes no items, and is deleted when it is empty
        held               items of keys that wait for earlier items
        waits_for          numbers of the partitions with those earlier items
        time_ahead_ms      how far state time is ahead of the leader's clock
        waits_for_clock    a node that answers does not stand for election: clock not believed
        elected            the node that was elected, while it does not serve yet

    The queue of the placement group is empty.
    """

    namespace: str
    queue: str
    partition: int
    leader: str
    preferred_leader: str
    nodes: tuple[str, ...]
    learning: tuple[str, ...]
    leaving: tuple[str, ...]
    silent: tuple[str, ...]
    lag_entries: int | None
    closing: bool = False
    held: int = 0
    waits_for: tuple[int, ...] = ()
    time_ahead_ms: int = 0
    waits_for_clock: bool = False
    elected: str = ""

    @property
    def name(self) -> str:
        return f"{self.queue}/{self.partition}" if self.queue else MAP_NAME


class ClusterView(msgspec.Struct, frozen=True):
    """`problems` are sentences for the operator; empty if there is no problem."""

    cluster_id: str
    epoch: int
    nodes: tuple[NodeView, ...]
    partitions: tuple[PartitionView, ...]
    problems: tuple[str, ...]


def cluster_view(picture: ClusterPicture) -> ClusterView:
    # The client of the command cannot connect to these nodes, and the other nodes can.
    hidden = {seen.node.name for seen in picture.nodes if seen.fault and seen.node.connected}
    silent = {seen.node.name for seen in picture.nodes if seen.silent} - hidden
    partitions = tuple(_partition(group, silent, hidden) for group in picture.groups)
    return ClusterView(
        cluster_id=picture.cluster_id,
        epoch=picture.epoch,
        nodes=tuple(_node(seen, picture.groups, partitions) for seen in picture.nodes),
        partitions=partitions,
        problems=tuple(_problems(picture, partitions)),
    )


def _partition(group: ClusterGroup, silent: set[str], hidden: set[str]) -> PartitionView:
    counting = [replica for replica in group.replicas or group.target if replica.voter]
    replicas = sorted(counting, key=lambda replica: replica.node)
    leader = group.leader if group.leads or group.leader in hidden else ""
    lags = [
        replica.lag_entries
        for replica in group.replicas
        if replica.voter and replica.node not in silent and replica.lag_entries is not None
    ]
    return PartitionView(
        namespace=group.namespace,
        queue=group.queue,
        partition=group.partition,
        leader=leader,
        preferred_leader=group.preferred_leader,
        nodes=tuple(replica.node for replica in replicas),
        learning=tuple(_learning(group)),
        leaving=tuple(_leaving(group)),
        silent=tuple(replica.node for replica in replicas if replica.node in silent),
        lag_entries=max(lags) if leader and lags else None,
        closing=group.closing,
        held=group.held,
        waits_for=group.waits_for,
        time_ahead_ms=group.time_ahead_ms,
        waits_for_clock=group.waits_for_clock,
        elected="" if leader or group.leader in silent else group.leader,
    )


def _learning(group: ClusterGroup) -> Iterable[str]:
    """Nodes with a replica that is to vote and does not vote yet."""
    votes = {replica.id for replica in group.replicas if replica.voter}
    for replica in group.target:
        if group.leads and replica.voter and replica.id not in votes:
            yield replica.node


def _leaving(group: ClusterGroup) -> Iterable[str]:
    """Nodes with a replica that is to be removed."""
    wanted = {replica.id for replica in group.target}
    for replica in group.replicas:
        if group.leads and replica.id not in wanted:
            yield replica.node


def _node(
    seen: SeenNode, groups: Sequence[ClusterGroup], partitions: Sequence[PartitionView]
) -> NodeView:
    node = seen.node
    state = "handed off" if node.handed_off else "up"
    if seen.silent:
        state = silent_state(seen)
    if node.state != "active":
        state = f"{state}, {node.state}"
    lags = [
        replica.lag_entries
        for group in groups
        if group.leads
        for replica in group.replicas
        if replica.node == node.name and replica.lag_entries is not None
    ]
    return NodeView(
        name=node.name,
        state=state,
        why=seen.silent,
        address=node.client_address,
        peer_address=node.peer_address,
        zone=node.zone,
        version=node.version,
        starts=node.boots,
        leads=sum(one.leader == node.name for one in partitions),
        replicas=sum(node.name in one.nodes for one in partitions),
        lag_entries=max(lags, default=None),
        scrub=seen.scrub,
        certificates=tuple(
            CertificateView(
                one.port,
                datetime.fromtimestamp(one.expires_at_ms / 1000, UTC),
                one.left_ms // DAY_MS,
            )
            for one in seen.certificates
        ),
    )


# --- problems ------------------------------------------------------------------------------


def _problems(picture: ClusterPicture, partitions: Sequence[PartitionView]) -> Iterable[str]:
    waiting = {one.name: one for one in picture.waiting}
    for seen in picture.nodes:
        refused = seen.node.name in _refused(picture)
        left = sum(seen.node.name in one.nodes for one in partitions if one.queue)
        yield from node_problems(seen, left, waiting.pop(seen.node.name, None), refused)
    for newcomer in waiting.values():
        yield (
            f"Node {newcomer.name} at {newcomer.peer_address} asks to join, and waits: its log "
            "says for what (formation.waiting)."
        )
    yield from _availability(picture, partitions)
    yield from _replica_problems(picture, partitions)
    yield from _map_voters(picture)
    yield from map(_damage, picture.damage)
    yield from (one.condition.sentence for one in picture.conditions if _is_news(one, picture))
    yield from _ahead(partitions)
    yield from _held(partitions)
    yield from map(_pending, picture.pending)


def _availability(picture: ClusterPicture, partitions: Sequence[PartitionView]) -> Iterable[str]:
    """Partitions that cannot be used, or have fewer running replicas than they should."""
    cut_off = {seen.node.name for seen in picture.nodes if seen.silent and not seen.node.connected}
    down = {
        seen.node.name for seen in picture.nodes if seen.silent and silent_state(seen) == "down"
    }
    leaderless = [one for one in partitions if not one.leader]
    # A leader notices a moment later that the other nodes are gone.
    lost = [
        one
        for one in partitions
        if 2 * sum(not one.leader or name in cut_off for name in one.silent) >= len(one.nodes)
    ]
    if lost:
        silent = {name for one in lost for name in one.silent}
        are, remedy = "are down", "Start them again."
        if not silent <= down:
            are, remedy = "do not answer", "See above what to do about each of them."
        yield (
            f"{_named(lost)} cannot be used: most of the replicas are on nodes that {are} "
            f"({', '.join(sorted(silent))}). {remedy}"
        )
    doubtful = [
        one for one in partitions if one not in lost and 2 * len(one.silent) >= len(one.nodes)
    ]
    if doubtful:
        nodes = ", ".join(sorted({name for one in doubtful for name in one.silent}))
        yield (
            f"{_named(doubtful)} may not be usable: most of the replicas are on nodes that do not "
            f"answer ({nodes})."
        )
    waiting = [one for one in leaderless if one not in lost and one.waits_for_clock]
    if waiting:
        yield (
            f"{_named(waiting)} {_have(waiting)} no leader: the clock of a node is far ahead of "
            "the data, and no majority of clocks agrees with it. Set the clocks; or, if they "
            "are right, start the node with --trust-clock."
        )
    left = [one for one in leaderless if one not in lost and one not in waiting]
    for node in sorted({one.elected for one in left if one.elected}):
        starting = [one for one in left if one.elected == node]
        yield (
            f"{_named(starting)} {_have(starting)} no leader that serves yet: node {node} was "
            "elected, and applies the rest of the log first."
        )
    electing = [one for one in left if not one.elected]
    if electing:
        yield f"{_named(electing)} {_have(electing)} no leader at the moment; one is being elected."
    weak = [one for one in partitions if one.leader and 0 < 2 * len(one.silent) < len(one.nodes)]
    if weak:
        silent = {name for one in weak for name in one.silent}
        one_node = len(silent) == 1
        are = "is down" if one_node else "are down"
        if not silent <= down:
            are = "does not answer" if one_node else "do not answer"
        yield (
            f"{_named(weak)} can be used, but {_have(weak)} fewer running replicas than "
            f"configured: {', '.join(sorted(silent))} {are}."
        )


def _ahead(partitions: Sequence[PartitionView]) -> Iterable[str]:
    """Queues in which a wrong clock has moved time ahead. Time in the placement group does not
    matter.
    """
    for name in sorted({one.queue for one in partitions if one.queue}):
        some = [
            one
            for one in partitions
            if one.queue == name and one.time_ahead_ms > STATE_TIME_JUMP_MS_MAX
        ]
        if some:
            most_s = max(one.time_ahead_ms for one in some) / 1000
            yield (
                f"Time in {_named(some)} is ahead of the clock, by up to {most_s:,.0f} s: a clock "
                "was wrong, and items may expire and come due too early. When all clocks are "
                f"right: querator cluster repair-time {name}"
            )


def _replica_problems(
    picture: ClusterPicture, partitions: Sequence[PartitionView]
) -> Iterable[str]:
    learning: Counter[str] = Counter()
    leaving: Counter[str] = Counter()
    for one in partitions:
        learning.update(one.learning)
        leaving.update(() if one.learning else one.leaving)
    for name, number in sorted(learning.items()):
        yield f"Node {name} is getting replicas: {count(number, 'partition')} to go."
    for name, number in sorted(leaving.items()):
        yield f"Old replicas of node {name} are being removed: {count(number, 'partition')} to go."
    behind: dict[str, int] = {}
    for group in picture.groups:
        for replica in group.replicas if group.leads else ():
            if _is_behind(replica, picture):
                lag = replica.lag_entries or 0
                behind[replica.node] = max(lag, behind.get(replica.node, 0))
    for name, lag in sorted(behind.items()):
        yield f"Node {name} is behind, by up to {lag:,} log entries; it catches up by itself."


def _map_voters(picture: ClusterPicture) -> Iterable[str]:
    """Nodes have joined, and the placement group does not have the intended number of voters
    yet.
    """
    wanted = map_voters_wanted(sum(seen.node.state == "active" for seen in picture.nodes))
    for group in picture.groups:
        voters = sum(replica.voter for replica in group.target)
        if not group.queue and 0 < voters < wanted:
            yield (f"Partition {MAP_NAME} should have {wanted} voting replicas, and has {voters}.")


def _refused(picture: ClusterPicture) -> set[str]:
    """The nodes with another cluster token than the others."""
    conditions = (one.condition for one in picture.conditions)
    return {one.about for one in conditions if one.kind == "token_refused"}


def _is_news(seen: SeenCondition, picture: ClusterPicture) -> bool:
    """Whether no other sentence reports the same condition. A node that is down is always behind,
    and the sentences about partitions name it.
    """
    condition = seen.condition
    refused = _refused(picture)
    if condition.kind == "copy_behind":
        silent = {one.node.name for one in picture.nodes if one.silent}
        return condition.about not in silent | refused
    if condition.kind == "no_majority":
        # A node that was removed a moment ago hears no other one, and ends.
        belongs = any(one.node.name == seen.node for one in picture.nodes)
        return belongs and seen.node not in refused and not any(one.silent for one in picture.nodes)
    if condition.kind == "peer_refused" and _is_known_peer(seen, picture):
        return False
    if condition.kind in ("clocks_differ", "token_refused"):
        # Several nodes may report it.
        reports = [
            one
            for one in picture.conditions
            if (one.condition.kind, one.condition.about) == (condition.kind, condition.about)
        ]
        return next((one for one in reports if one.node == condition.about), reports[0]) is seen
    return condition.kind not in WORDED


def _is_known_peer(seen: SeenCondition, picture: ClusterPicture) -> bool:
    """Whether a condition about a refused process at a host is also reported by name, by a node at
    that host.
    """
    hosts = {one.node.name: one.node.peer_address.rpartition(":")[0] for one in picture.nodes}
    reports = {
        hosts.get(one.node, "")
        for one in picture.conditions
        if one.node != seen.node
        and (
            (one.condition.kind == "peer_refused" and one.condition.about == seen.node)
            or (one.condition.kind == "token_refused" and one.node == one.condition.about)
        )
    }
    return seen.condition.about in reports


def _damage(seen: SeenDamage) -> str:
    return (
        f"{seen.queue}/{seen.partition}: {count(seen.items, 'item')} in "
        f"{count(seen.blocks, 'block')} damaged on node {seen.node}. The node does not deliver "
        "them until another replica has sent them whole; its log has the result. If no replica "
        f"has them whole: querator queue give-up {seen.queue}"
    )


def _held(partitions: Sequence[PartitionView]) -> Iterable[str]:
    """The reason why items of moved keys are held."""
    holding: dict[tuple[str, str], list[PartitionView]] = {}
    for one in partitions:
        if one.held:
            holding.setdefault((one.namespace, one.queue), []).append(one)
    for (_, queue), some in holding.items():
        before = sorted({number for one in some for number in one.waits_for})
        named = ", ".join(f"{queue}/{number}" for number in before[:NAMED_MAX])
        more = f" and {len(before) - NAMED_MAX:,} more" if len(before) > NAMED_MAX else ""
        items = sum(one.held for one in some)
        yield (
            f"Queue {queue}: {count(items, 'item')} held until the items that were in "
            f"{named}{more} before the number of partitions changed have been leased and "
            "completed: earlier items of the same keys may be among them."
        )


def _is_behind(replica: ClusterReplica, picture: ClusterPicture) -> bool:
    silent = any(seen.node.name == replica.node and seen.silent for seen in picture.nodes)
    return not silent and replica.voter and (replica.lag_entries or 0) > LAG_ENTRIES_MAX


def _pending(pending: ClusterPending) -> str:
    what = {
        "creating": "is being created",
        "updating": "is being given new settings",
        "changing": "is being given another number of partitions",
        "deleting": "is being deleted",
    }.get(pending.doing, pending.doing)
    waits = f"; waiting for {', '.join(pending.waits_for)}" if pending.waits_for else ""
    return f"Queue {pending.queue} {what}{waits}."


def _named(partitions: Sequence[PartitionView]) -> str:
    names = [one.name for one in partitions[:NAMED_MAX]]
    more = f" and {len(partitions) - NAMED_MAX:,} more" if len(partitions) > NAMED_MAX else ""
    noun = "Partition" if len(partitions) == 1 else f"{len(partitions):,} partitions:"
    return f"{noun} {', '.join(names)}{more}"


def _have(partitions: Sequence[PartitionView]) -> str:
    return "has" if len(partitions) == 1 else "have"
