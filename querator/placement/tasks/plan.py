"""Plans where the replicas and leaderships of all groups should be, given where they are. Pure.

The goals, each only as far as the earlier ones allow:

    1  replicas     each group has its number of replicas, or one per node that takes any; one
                    on a node, none on nodes that are lost or being drained
    2  zones        a group's replicas are in as many zones as possible, and no majority of them
                    is in one zone if that can be avoided
    3  evenness     of the numbers of replicas on the nodes
    4  leaderships  even as well; the leader is one of the group's replicas
    5  few moves

First, replicas that have to go are removed, from the fullest nodes and the leader's replica last.
Missing replicas are added on the emptiest nodes. Then the fullest node gives single replicas to
emptier ones, directly or through others (a to b, and of another group b to c), until no node can.
Replicas that are only planned move first, then the existing ones. Leaderships are evened out in the
same way, over the replicas of their groups; where that is not enough, replicas of two groups change
places.

The result is the most even distribution possible, not only a good one. The sets of nodes that a
group may be on are the bases of a matroid (between `low` and `high` nodes of each zone, a fixed
number in all). For sums of such sets, an arrangement that no path of exchanges makes more even is
the most even one (Frank, Murota: Decreasing minimization on M-convex sets, 2022). A shortest path
is used, because its exchanges can all be made even if a group is in several of them. Whether
anything moves depends on what a node could still give, so the plan after a completed plan is empty.

A set of nodes is an int with a bit for each (a mask): bit n is the n-th by key of the nodes that
take replicas. Groups are processed in an order that scatters neighbours, because the partitions of
a queue should not move together.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Final

import msgspec

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, node_name


class CandidateNode(msgspec.Struct, frozen=True):
    """A node that may hold replicas. `takes` False: it is being drained and keeps none."""

    node: NodeKey
    zone: str = ""
    takes: bool = True


class CurrentReplicas(msgspec.Struct, frozen=True):
    """A group's current replicas (its target), its preferred leader, and its wanted number of
    replicas (at least 1).
    """

    nodes: tuple[NodeKey, ...]
    leader: NodeKey | None
    replicas: int


class Placing(msgspec.Struct, frozen=True):
    """The planned nodes of a group's replicas (by key), its planned leader, and the reason of the
    change.
    """

    nodes: tuple[NodeKey, ...]
    leader: NodeKey
    reason: str


def plan(
    homes: Sequence[CandidateNode], groups: Mapping[GroupId, CurrentReplicas]
) -> dict[GroupId, Placing]:
    """The groups that change, by id; none when no home takes replicas. The order of homes and
    groups does not matter. Pass all groups, because every group counts for evenness.

    50 nodes and 10,000 groups of three cost under half a second, and up to one and a half if nearly
    all replicas move.
    """
    ground = _Ground(homes)
    if not ground.nodes:
        return {}
    layout = _Layout(ground, groups)
    layout.settle_replicas()
    layout.settle_leaders()
    explain = _Reasons(ground, groups)
    changes = {}
    for group, nodes, leader in sorted(layout.placed()):
        held = groups[group]
        if leader != held.leader or set(nodes) != set(held.nodes):
            changes[group] = Placing(nodes, leader, explain.reason(held, nodes))
    return changes


_SCATTER: Final = 0x9E3779B1
"""Multiples of 2³² over the golden ratio, modulo 2³², lie far from their neighbours."""
_ORDERS: Final = 61
"""Number of orders in which equally empty nodes are chosen, so that groups share few of their
nodes. It is a prime, so that no number of partitions repeats the same orders.
"""


def _scattered(number: int) -> int:
    return number * _SCATTER & 0xFFFFFFFF


@cache
def _order(number: int, nodes: int) -> tuple[int, ...]:
    def mixed(node: int) -> int:
        once = _scattered(number << 16 | node)
        return _scattered(once ^ once >> 15)

    return tuple(sorted(range(nodes), key=mixed))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class _Ground:
    """The nodes that take replicas, and the rules of goals 1 and 2 of the table above."""

    def __init__(self, homes: Sequence[CandidateNode]) -> None:
        self.zone_names = {home.node: home.zone for home in homes}
        assert len(self.zone_names) == len(homes), "a node is one home"
        self.nodes = sorted(home.node for home in homes if home.takes)
        self.index = {node: number for number, node in enumerate(self.nodes)}
        self.all = (1 << len(self.nodes)) - 1
        names = [self.zone_names[node] for node in self.nodes]
        masks = {
            name: self.mask(n for n in self.nodes if self.zone_names[n] == name) for name in names
        }
        self._zones = sorted(masks.values())
        self._zone = [masks[name] for name in names]
        """For each node, the nodes in its zone, itself included."""
        self._limits = [self._limit(replicas) for replicas in range(len(self.nodes) + 1)]

    def mask(self, nodes: Iterable[NodeKey]) -> int:
        """The mask of those nodes that take replicas."""
        return sum(1 << self.index[node] for node in set(nodes) if node in self.index)

    def _limit(self, replicas: int) -> tuple[int, int]:
        """The least and the most of a group's `replicas` replicas in each zone, if the zone has the
        nodes.
        """
        if replicas <= len(self._zones):
            return 0, 1
        minority = (replicas - 1) // 2
        reached = sum(min(zone.bit_count(), minority) for zone in self._zones)
        return 1, minority if reached >= replicas else replicas

    def surplus(self, members: int, replicas: int) -> int:
        """The members of which one must go before nodes can be added to reach `replicas` replicas
        with proper zones; 0 when none must go.
        """
        low, high = self._limits[replicas]
        over = doubled = 0
        for node in _bits(members):
            there = (members & self._zone[node]).bit_count()
            over |= (there > high) << node
            doubled |= (there > 1) << node
        if over:
            return over
        empty = sum(not members & zone for zone in self._zones) if low else 0
        return (doubled or members) if members.bit_count() + empty > replicas else 0

    def room(self, members: int, replicas: int) -> int:
        """The nodes where the next of `replicas` replicas may be placed, when there are too few
        members.
        """
        low, high = self._limits[replicas]
        if low:
            empty = sum(zone for zone in self._zones if not members & zone)
            if empty:
                return empty
        return self._below(members, high)

    def targets(self, members: int, node: int, replicas: int) -> int:
        """The nodes to which the replica on `node` may move."""
        low, high = self._limits[replicas]
        zone = self._zone[node]
        if (members & zone).bit_count() <= low:
            return zone & ~members
        return (self._below(members, high) | zone) & ~members

    def _below(self, members: int, high: int) -> int:
        full = members
        for node in _bits(members):
            zone = self._zone[node]
            if (members & zone).bit_count() >= high:
                full |= zone
        return self.all & ~full


class _Spread:
    """The distribution of replicas or leaderships: the load of each node, and the nodes to which
    its groups can move them. `targets` maps a group and one of its nodes to such nodes.
    """

    _RANKS: Final = 3

    def __init__(self, ground: _Ground, targets: Callable[[int, int], int]) -> None:
        self._targets = targets
        self._all = ground.all
        self.load = [0] * len(ground.nodes)
        self._pools: list[list[OrderedDict[int, None]]] = [
            [OrderedDict() for _ in range(self._RANKS)] for _ in ground.nodes
        ]
        self._ranks = 0
        self._reach = [ground.all] * len(ground.nodes)
        """For each node, at least the nodes to which a group of it, of lower rank than `_ranks`,
        can go.
        """

    def add(self, group: int, node: int, rank: int) -> None:
        """Adds a group to a node. Groups of lower rank move first, those of rank 0 at no cost."""
        self._pools[node][rank][group] = None
        self.load[node] += 1

    def remove(self, group: int, node: int) -> None:
        pool = next(pool for pool in self._pools[node] if group in pool)
        del pool[group]
        self.load[node] -= 1

    def on(self, node: int) -> Iterator[int]:
        """The groups of the node, by rank."""
        return chain(*self._pools[node])

    def changed(self, group: int, nodes: int) -> None:
        """A group on these nodes may have other targets than before."""
        for node in _bits(nodes):
            if self._reach[node] != self._all:
                self._reach[node] |= self._targets(group, node)

    def even_out(self, move: Callable[[int, int, int], None]) -> None:
        """Moves groups until no node can give one to a node that has two fewer, directly or through
        others. Tries groups of rank 0 first, then all. `move` is called with group, start and end.
        """
        for ranks in (1, self._RANKS):
            if ranks > self._ranks:
                self._ranks = ranks
                self._reach = [self._all] * len(self.load)
            if ranks == self._ranks:
                self._even_out(move)

    def _even_out(self, move: Callable[[int, int, int], None]) -> None:
        open_ = self._all
        while open_:
            start = max(_bits(open_), key=self.load.__getitem__)
            path, seen = self._path(start, open_)
            if not path:
                # Nothing can leave these nodes, and the remaining nodes are not fuller: nothing
                # comes either.
                open_ &= ~seen
                continue
            steps = [(self._find(one, other), one, other) for one, other in pairwise(path)]
            found = [(group, *way) for group, *way in steps if group is not None]
            if len(found) == len(steps):
                for group, one, other in found:
                    move(group, one, other)

    def _path(self, start: int, within: int) -> tuple[list[int], int]:
        """A shortest known path from the node to one that has two fewer, and the nodes that were
        visited.
        """
        few = self.load[start] - 2
        came_from = {start: start}
        seen = 1 << start
        layer = [start]
        while layer:
            following = []
            for node in layer:
                fresh = self._reach[node] & within & ~seen
                seen |= fresh
                for other in _bits(fresh):
                    came_from[other] = node
                    following.append(other)
            end = min(following, key=self.load.__getitem__, default=start)
            if self.load[end] <= few:
                path = [end]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1], seen
            layer = following
        return [], seen

    def _find(self, start: int, end: int) -> int | None:
        """A group that can move from one node to the other. Groups that cannot are tried last the
        next time.
        """
        reach = 0
        for pool in self._pools[start][: self._ranks]:
            for _ in range(len(pool)):
                group = next(iter(pool))
                targets = self._targets(group, start)
                if targets >> end & 1:
                    return group
                reach |= targets
                pool.move_to_end(group)
        self._reach[start] = reach
        return None


class _Layout:
    """The groups, numbered in scattered order, while they are being placed."""

    def __init__(self, ground: _Ground, groups: Mapping[GroupId, CurrentReplicas]) -> None:
        self._ground = ground
        self._ids = sorted(groups, key=lambda group: (_scattered(group), group))
        held = [groups[group] for group in self._ids]
        assert all(one.replicas >= 1 for one in held)
        self._wanted = [min(one.replicas, len(ground.nodes)) for one in held]
        self._held = [ground.mask(one.nodes) for one in held]
        self._held_leader = [
            -1 if one.leader is None else ground.index.get(one.leader, -1) for one in held
        ]
        self._members = self._held.copy()
        self._leader = self._held_leader.copy()
        self._replicas = _Spread(ground, self._replica_targets)
        self._leaders = _Spread(ground, self._leader_targets)

    def placed(self) -> Iterator[tuple[GroupId, tuple[NodeKey, ...], NodeKey]]:
        nodes = self._ground.nodes
        for group, members, leader in zip(self._ids, self._members, self._leader, strict=True):
            yield group, tuple(nodes[node] for node in _bits(members)), nodes[leader]

    # --- replicas ----------------------------------------------------------------

    def settle_replicas(self) -> None:
        ground, load = self._ground, self._replicas.load
        for group, members in enumerate(self._members):
            for node in _bits(members):
                self._add(group, node)
        for group, wanted in enumerate(self._wanted):
            leader = self._held_leader[group]
            while surplus := ground.surplus(self._members[group], wanted):
                node = max(_bits(surplus), key=lambda node: (node != leader, load[node]))
                self._members[group] ^= 1 << node
                self._replicas.remove(group, node)
        for group, wanted in enumerate(self._wanted):
            while self._members[group].bit_count() < wanted:
                node = self._emptiest(ground.room(self._members[group], wanted), self._ids[group])
                self._members[group] |= 1 << node
                self._add(group, node)
        self._replicas.even_out(self._move)

    def _emptiest(self, nodes: int, group: GroupId) -> int:
        order = _order(group % _ORDERS, len(self._ground.nodes))
        return min(
            [node for node in order if nodes >> node & 1], key=self._replicas.load.__getitem__
        )

    def _add(self, group: int, node: int) -> None:
        """Ranks the group on the node: replicas that move anyway go first, one that leads last."""
        stays = self._held[group] >> node & 1
        self._replicas.add(group, node, stays + (stays and self._held_leader[group] == node))

    def _move(self, group: int, start: int, end: int) -> None:
        assert self._replica_targets(group, start) >> end & 1
        self._members[group] ^= 1 << start | 1 << end
        self._replicas.remove(group, start)
        self._add(group, end)
        self._replicas.changed(group, self._members[group])

    def _replica_targets(self, group: int, node: int) -> int:
        return self._ground.targets(self._members[group], node, self._wanted[group])

    # --- leaderships -------------------------------------------------------------

    def settle_leaders(self) -> None:
        load = self._leaders.load
        homeless = []
        for group, leader in enumerate(self._held_leader):
            if leader >= 0 and self._members[group] >> leader & 1:
                self._lead(group, leader)
            else:
                homeless.append(group)
        for group in homeless:
            self._lead(group, min(_bits(self._members[group]), key=load.__getitem__))
        self._leaders.even_out(self._relead)
        while self._exchange():
            self._leaders.even_out(self._relead)

    def _lead(self, group: int, node: int) -> None:
        self._leader[group] = node
        self._leaders.add(group, node, int(self._held_leader[group] == node))
        self._leaders.changed(group, 1 << node)

    def _relead(self, group: int, start: int, end: int) -> None:
        self._leaders.remove(group, start)
        self._lead(group, end)

    def _leader_targets(self, group: int, node: int) -> int:
        return self._members[group] & ~(1 << node)

    def _exchange(self) -> bool:
        """Moves one leadership with its replica to a node that leads two fewer groups, and a
        replica of another group back; whether that was possible.
        """
        load = self._leaders.load
        backward: dict[int, int] = {}
        for start in sorted(range(len(load)), key=lambda node: -load[node]):
            fewer = sum(1 << node for node, led in enumerate(load) if led <= load[start] - 2)
            for group in self._leaders.on(start) if fewer else ():
                for end in _bits(self._replica_targets(group, start) & fewer):
                    other = self._find_back(end, start, backward)
                    if other is not None:
                        self._move(group, start, end)
                        self._move(other, end, start)
                        self._relead(group, start, end)
                        self._leaders.changed(other, 1 << self._leader[other])
                        return True
        return False

    def _find_back(self, start: int, end: int, reach: dict[int, int]) -> int | None:
        """A group that `start` does not lead and whose replica can move to `end`. `reach` collects
        what is known of nodes for which no group was found.
        """
        if not reach.get(start, self._ground.all) >> end & 1:
            return None
        reached = 0
        for group in self._replicas.on(start):
            if self._leader[group] != start:
                targets = self._replica_targets(group, start)
                if targets >> end & 1:
                    return group
                reached |= targets
        reach[start] = reached
        return None


class _Reasons:
    """The reasons of changes, for operators. Their numbers are those before the plan."""

    def __init__(self, ground: _Ground, groups: Mapping[GroupId, CurrentReplicas]) -> None:
        self._ground = ground
        self._before = Counter(node for held in groups.values() for node in held.nodes)

    def reason(self, held: CurrentReplicas, nodes: tuple[NodeKey, ...]) -> str:
        zone_names = self._ground.zone_names
        old, new = set(held.nodes), set(nodes)
        left, came = sorted(old - new), sorted(new - old)
        gone = [node for node in left if node not in zone_names]
        drained = [node for node in left if node in zone_names and node not in self._ground.index]
        moved = [node for node in left if node in self._ground.index]
        parts = []
        if gone:
            parts.append(f"{_names(gone)} gone")
        if drained:
            parts.append(f"{_names(drained)} being drained")
        if old and len(old) != len(new):
            parts.append(_count(len(old), len(new)))
        if not old:
            parts.append("it has no replicas")
        if moved and came:
            parts.append(self._why_moved(held, nodes, moved, came))
        return "; ".join(parts) or "only the leadership moves"

    def _why_moved(
        self,
        held: CurrentReplicas,
        nodes: tuple[NodeKey, ...],
        moved: list[NodeKey],
        came: list[NodeKey],
    ) -> str:
        ground, before = self._ground, self._before
        stayed = ground.mask(held.nodes)
        if ground.surplus(stayed, len(nodes)):
            zones = len({ground.zone_names[node] for node in nodes})
            were = len({ground.zone_names[n] for n in held.nodes if n in ground.index})
            if zones > were:
                return f"spreads over {zones} zones instead of {were}"
            if stayed.bit_count() <= len(nodes):
                return "no zone keeps a majority of its replicas"
        full = max(moved, key=lambda node: before[node])
        empty = min(came, key=lambda node: before[node])
        if before[empty] >= before[full]:
            return "changes places with a replica of another group, which balances the nodes"
        return (
            f"balances the nodes: node {node_name(empty)} has {_replicas(before[empty])} and node "
            f"{node_name(full)} {before[full]}"
        )


def _names(nodes: Sequence[NodeKey]) -> str:
    names = [node_name(node) for node in nodes]
    return f"node {names[0]} is" if len(names) == 1 else f"nodes {', '.join(names)} are"


def _count(old: int, new: int) -> str:
    return f"{_replicas(abs(new - old))} {'more' if new > old else 'fewer'}: {new} instead of {old}"


def _replicas(number: int) -> str:
    return "one replica" if number == 1 else f"{number} replicas"
