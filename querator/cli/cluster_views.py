"""Views of a cluster: states of its nodes and partitions, and its problems in sentences.
`cluster_pictures` draws them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from querator.cli.shared.output import count
from querator.client.cluster import ClusterPicture, SeenCondition, SeenDamage, SeenNode
from querator.model.cluster import (
    ClusterGroup,
    ClusterPending,
    ClusterReplica,
    ClusterScrub,
    ClusterWaiting,
)
from querator.model.limits import CLOCK_SKEW_MS_MAX, STATE_TIME_JUMP_MS_MAX
from querator.model.placement_map import map_voters_wanted

LAG_ENTRIES_MAX = 10_000
"""Log entries: a replica that is further behind is reported."""
WORDED = frozenset({"clock_wrong", "clock_not_believed", "time_ahead", "blocks_damaged"})
"""Kinds of conditions of nodes that this module words itself, for all nodes together."""
NAMED_MAX = 5
MAP_NAME = "(map)"


class NodeView(msgspec.Struct, frozen=True):
    """`state`: up, handed off, or down, and whether the node is draining or leaving. `leads` and
    `replicas` are numbers of partitions. `scrub`: progress of the check of its payloads for damage.
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
    state = "down" if seen.silent else "handed off" if node.handed_off else "up"
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
    )


# --- problems ------------------------------------------------------------------------------


def _problems(picture: ClusterPicture, partitions: Sequence[PartitionView]) -> Iterable[str]:
    waiting = {one.name: one for one in picture.waiting}
    for seen in picture.nodes:
        refused = seen.node.name in _refused(picture)
        yield from _node_problems(seen, partitions, waiting.pop(seen.node.name, None), refused)
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
    leaderless = [one for one in partitions if not one.leader]
    # A leader notices a moment later that the other nodes are gone.
    lost = [
        one
        for one in partitions
        if 2 * sum(not one.leader or name in cut_off for name in one.silent) >= len(one.nodes)
    ]
    if lost:
        nodes = ", ".join(sorted({name for one in lost for name in one.silent}))
        yield (
            f"{_named(lost)} cannot be used: most of the replicas are on nodes that are down "
            f"({nodes}). Start them again."
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
        nodes = ", ".join(sorted({name for one in weak for name in one.silent}))
        yield (
            f"{_named(weak)} can be used, but {_have(weak)} fewer running replicas than "
            f"configured: {nodes} {'is' if ', ' not in nodes else 'are'} down."
        )


def _node_problems(
    seen: SeenNode,
    partitions: Sequence[PartitionView],
    waiting: ClusterWaiting | None,
    refused: bool,
) -> Iterable[str]:
    """`waiting`: a process with the node's name that waits without its data. `refused`: another
    sentence says that the others refuse the node.
    """
    name = seen.node.name
    if seen.node.state != "active":
        yield _retiring(seen, partitions)
    elif seen.fault:
        yield f"Node {name} cannot be asked. {seen.fault}"
    elif seen.silent and waiting is not None:
        yield (
            f"Node {name} was started at {waiting.peer_address} without its former data, and "
            f"waits. If that data is lost: querator node replace {name}. If it is not, start the "
            "node again on its former directory."
        )
    elif seen.silent and seen.node.connected:
        yield (
            f"Node {name} does not answer ({seen.silent.rstrip('.')}), and other nodes are "
            "connected to it. Its event loop may hang, or the network between it and the node "
            "that was asked is cut. If this lasts, restart the node."
        )
    elif seen.silent:
        yield (
            f"Node {name} is down: {seen.silent.rstrip('.')}. Start it again: it catches up by "
            "itself. If it ends or waits, its log says why. Only if its data is lost, start it "
            f"with an empty directory and then: querator node replace {name}"
        )
    elif seen.node.handed_off:
        yield f"Node {name} has handed off and leads nothing until it starts again."
    elif not seen.node.connected and not refused:
        yield (
            f"Node {name} answers, but the node that was asked has no connection to it at "
            f"{seen.node.peer_address}."
        )
    if seen.old_copy:
        yield f"A process that started as node {name} was refused: {seen.old_copy}."
    if abs(seen.clock_ahead_ms) > CLOCK_SKEW_MS_MAX:
        yield _clock(seen)


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


def _retiring(seen: SeenNode, partitions: Sequence[PartitionView]) -> str:
    name = seen.node.name
    left = sum(name in one.nodes for one in partitions if one.queue)
    down = " It is down." if seen.silent else ""
    if seen.node.state == "leaving":
        return f"Node {name} is being removed: {count(left, 'partition')} to go.{down}"
    if left:
        return f"Node {name} is being drained: {count(left, 'partition')} to go.{down}"
    return (
        f"Node {name} is drained: it can be stopped, and removed with: querator node remove "
        f"{name}.{down}"
    )


def _clock(seen: SeenNode) -> str:
    side = "ahead of" if seen.clock_ahead_ms > 0 else "behind"
    return (
        f"The clock of node {seen.node.name} is {abs(seen.clock_ahead_ms) / 1000:.1f} s {side} "
        f"that of the others; {CLOCK_SKEW_MS_MAX / 1000} s is allowed. Until it is set, the node "
        "leads nothing that another node can lead."
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
        return seen.node not in refused and not any(one.silent for one in picture.nodes)
    if condition.kind in ("clocks_differ", "token_refused"):
        # Several nodes may report it.
        reports = [
            one
            for one in picture.conditions
            if (one.condition.kind, one.condition.about) == (condition.kind, condition.about)
        ]
        return next((one for one in reports if one.node == condition.about), reports[0]) is seen
    return condition.kind not in WORDED


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
