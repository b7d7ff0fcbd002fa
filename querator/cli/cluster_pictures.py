"""Views of a cluster in a terminal: tables, and the plan of a rebalance."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from querator.cli.cluster_views import MAP_NAME, ClusterView, NodeView, PartitionView
from querator.cli.shared.output import BULLET, Picture, count
from querator.cli.shared.tables import FittedTable
from querator.cli.shared.texts import size_text, whole_duration
from querator.model.cluster import ClusterPlan

_JUST_NOW = timedelta(seconds=1)


def picture(view: ClusterView, *, partitions: bool) -> Picture:
    """The state of the cluster on one screen; with `partitions` one line for each partition."""
    data = [one for one in view.partitions if one.queue]
    queues = len({(one.namespace, one.queue) for one in data})
    title = (
        f"Cluster {view.cluster_id}: {count(len(view.nodes), 'node')}, {count(queues, 'queue')}, "
        f"{count(len(data), 'partition')}."
    )
    well = "All is well." if not view.problems else f"{count(len(view.problems), 'thing')} to know:"
    return [
        f"{title} {well}",
        *(f"{BULLET}{problem}" for problem in view.problems),
        *_hints(view),
        "",
        _nodes_table(view),
        "",
        _partitions_table(view) if partitions else _queues_table(view),
    ]


def _hints(view: ClusterView) -> Iterable[str]:
    """Hints about limits of a cluster without problems."""
    for node in view.nodes:
        if not node.peer_address:
            yield (
                f"Other nodes cannot join: {node.name} was started without an address for them. "
                f"To grow the cluster start it with --name {node.name}, --cluster-token-file and "
                "--listen-peers."
            )


def plan_picture(plan: ClusterPlan) -> Picture:
    """The moves, and their reasons."""
    if not plan.moves:
        return ["Everything is where it should be."]
    under_way = sum(move.moving for move in plan.moves)
    title = f"{count(under_way, 'partition')} under way, {len(plan.moves) - under_way:,} to come."
    table = FittedTable(
        ["partition", "replicas on", "will be on", "led by", "why"],
        [
            [
                f"{move.queue}/{move.partition}",
                ", ".join(move.origin),
                ", ".join(move.to),
                move.leader,
                move.reason,
            ]
            for move in plan.moves
        ],
    )
    return [title, "", table]


def _nodes_table(view: ClusterView) -> FittedTable:
    secured = any(node.certificates for node in view.nodes)
    return FittedTable(
        [
            "node",
            "state",
            "clients at",
            "nodes at",
            "zone",
            "leads",
            "replicas",
            "behind",
            "checked",
            *(["certificate"] if secured else []),
        ],
        [
            [
                node.name,
                node.state,
                node.address,
                node.peer_address,
                node.zone,
                node.leads,
                node.replicas,
                _lag(node.lag_entries),
                _checked(node),
                *([_certificate(node)] if secured else []),
            ]
            for node in view.nodes
        ],
    )


def _checked(node: NodeView) -> str:
    """The age of the node's last complete check of payload checksums, or the progress of its first
    one.
    """
    scrub = node.scrub
    if node.why or not scrub.on:
        return ""
    if scrub.rounds:
        age = timedelta(milliseconds=scrub.age_ms)
        return "just now" if age < _JUST_NOW else f"{whole_duration(age)} ago"
    return f"{size_text(scrub.round_bytes)} so far"


def _certificate(node: NodeView) -> str:
    """The time that is left of the certificate that expires first."""
    days = min((one.days_left for one in node.certificates), default=None)
    if days is None:
        return ""
    return "expired" if days < 0 else f"{days:,} d"


def _queues_table(view: ClusterView) -> FittedTable:
    rows: dict[tuple[str, str], list[PartitionView]] = {}
    for one in view.partitions:
        rows.setdefault((one.namespace, one.queue), []).append(one)
    return FittedTable(
        ["queue", "partitions", "led by", "replicas", "behind"],
        [
            [
                queue or MAP_NAME,
                _number(group),
                _leaders(group),
                _replicas(group),
                _lag(max((one.lag_entries or 0 for one in group), default=None)),
            ]
            for (_, queue), group in rows.items()
        ],
    )


def _partitions_table(view: ClusterView) -> FittedTable:
    return FittedTable(
        ["partition", "leader", "replicas on", "behind"],
        [
            [_whole_name(one), one.leader or "none", _places(one), _lag(one.lag_entries)]
            for one in view.partitions
        ],
    )


def _number(partitions: Sequence[PartitionView]) -> str:
    """`6 (2 closing)`."""
    closing = sum(one.closing for one in partitions)
    return f"{len(partitions) - closing}" + (f" ({closing} closing)" if closing else "")


def _whole_name(one: PartitionView) -> str:
    return f"{one.name} (closing)" if one.closing else one.name


def _leaders(partitions: Sequence[PartitionView]) -> str:
    """`a 3, b 2, none 1`: number of partitions by leader."""
    counts = Counter(one.leader or "none" for one in partitions)
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))


def _replicas(partitions: Sequence[PartitionView]) -> str:
    """`3`, or `2 of 3` for the partition with the fewest replicas that answer."""
    worst = min(partitions, key=lambda one: len(one.nodes) - len(one.silent))
    whole = len(worst.nodes)
    there = whole - len(worst.silent)
    return str(whole) if there == whole else f"{there} of {whole}"


def _places(one: PartitionView) -> str:
    def place(name: str) -> str:
        if name in one.silent:
            return f"{name} (down)"
        return f"{name} (learning)" if name in one.learning else name

    return ", ".join(place(name) for name in dict.fromkeys((*one.nodes, *one.learning)))


def _lag(entries: int | None) -> str:
    if not entries:
        return ""
    return "1 entry" if entries == 1 else f"{entries:,} entries"
