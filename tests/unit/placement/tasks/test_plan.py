"""Plans are checked against their rules, and small plans against all possible arrangements."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, node_key
from querator.placement.tasks.plan import CandidateNode, CurrentReplicas, Placing, plan

Groups = dict[GroupId, CurrentReplicas]
Homes = list[CandidateNode]


def key(name: str) -> NodeKey:
    return node_key(name, "1")


def homes(names: str, *, zones: str = "", drained: str = "") -> Homes:
    """One home for each letter; `zones` has their zones in the same order."""
    named = zones or " " * len(names)
    return [
        CandidateNode(key(name), zone.strip(), name not in drained)
        for name, zone in zip(names, named, strict=True)
    ]


def held(nodes: Iterable[str], *, replicas: int = 3) -> CurrentReplicas:
    """A group whose leader is on the first of the nodes."""
    keys = tuple(key(name) for name in nodes)
    return CurrentReplicas(keys, keys[0] if keys else None, replicas)


def numbered(several: Iterable[CurrentReplicas]) -> Groups:
    return {GroupId(number): one for number, one in enumerate(several, start=1)}


def carried_out(groups: Groups, changes: Mapping[GroupId, Placing]) -> Groups:
    return groups | {
        group: CurrentReplicas(to.nodes, to.leader, groups[group].replicas)
        for group, to in changes.items()
    }


def planned(where: Sequence[CandidateNode], groups: Groups) -> Groups:
    return carried_out(groups, plan(where, groups))


def takers(where: Iterable[CandidateNode]) -> dict[NodeKey, str]:
    return {home.node: home.zone for home in where if home.takes}


def replicas_on(where: Iterable[CandidateNode], groups: Groups) -> dict[NodeKey, int]:
    """Numbers of replicas on the nodes that take replicas."""
    count = Counter(node for one in groups.values() for node in one.nodes)
    return {node: count[node] for node in takers(where)}


def leads(where: Iterable[CandidateNode], groups: Groups) -> dict[NodeKey, int]:
    count = Counter(one.leader for one in groups.values())
    return {node: count[node] for node in takers(where)}


def moved_leads(before: Groups, after: Groups) -> int:
    return sum(before[group].leader != one.leader for group, one in after.items())


def apart(numbers: Mapping[NodeKey, int]) -> int:
    return max(numbers.values()) - min(numbers.values())


def unevenness(numbers: Iterable[int]) -> int:
    return sum(number * number for number in numbers)


def placed_anew(before: Groups, after: Groups) -> int:
    return sum(len(set(after[group].nodes) - set(before[group].nodes)) for group in before)


# --- strategies ------------------------------------------------------------------

LOST = [key("lost"), node_key("a", "0")]


@st.composite
def some_homes(draw, *, most: int = 7, zones: str = " xyz") -> Homes:
    """The first home takes replicas."""
    count = draw(st.integers(1, most))
    drained = draw(st.sets(st.integers(1, most)))
    return [
        CandidateNode(key(name), draw(st.sampled_from(zones)).strip(), number not in drained)
        for number, name in enumerate("abcdefg"[:count])
    ]


@st.composite
def some_groups(
    draw, where: Homes, *, most: int = 10, lost: Sequence[NodeKey] = LOST, counts=(1, 3, 5)
) -> Groups:
    """Replicas are anywhere, too few or too many. A leader is any of the replicas, or there is
    none.
    """
    nodes = [home.node for home in where] + list(lost)
    several = []
    for _ in range(draw(st.integers(1, most))):
        there = tuple(draw(st.lists(st.sampled_from(nodes), unique=True, max_size=5)))
        leader = draw(st.sampled_from([*there, None]))
        several.append(CurrentReplicas(there, leader, draw(st.sampled_from(counts))))
    return numbered(several)


@st.composite
def some_cluster(draw) -> tuple[Homes, Groups]:
    where = draw(some_homes())
    return where, draw(some_groups(where))


@st.composite
def large_cluster(draw) -> tuple[Homes, Groups]:
    """Up to nine nodes and eighty groups. Groups of one replica crowd on the first nodes."""
    chance = Random(draw(st.integers(0, 2**32)))
    names = "abcdefghi"[: chance.randint(3, 9)]
    zones = "wxyz"[: chance.randint(1, 4)]
    where = [CandidateNode(key(name), chance.choice(zones)) for name in names]
    several = []
    for _ in range(chance.randint(10, 80)):
        replicas = chance.choice([1, 1, 3, 5])
        among = names[: len(names) // 2] if replicas == 1 else names
        several.append(held(chance.sample(among, min(replicas, len(among))), replicas=replicas))
    return where, numbered(several)


@st.composite
def small_cluster(draw) -> tuple[Homes, Groups]:
    """A cluster that is small enough to try all arrangements."""
    where = draw(some_homes(most=5))
    return where, draw(some_groups(where, most=5, lost=LOST[:1]))


# --- the rules, each by itself ---------------------------------------------------


@given(some_cluster() | large_cluster())
def test_every_group_has_its_replicas_on_nodes_that_take_them(cluster):
    where, groups = cluster
    for one in planned(where, groups).values():
        assert len(one.nodes) == min(one.replicas, len(takers(where)))
        assert len(set(one.nodes)) == len(one.nodes)
        assert set(one.nodes) <= set(takers(where))
        assert one.leader in one.nodes


def allowed(where: Homes, replicas: int) -> list[tuple[NodeKey, ...]]:
    """All sets of nodes with as many zones as possible. Of these, sets with a majority of the
    replicas in one zone count only if there are no others.
    """
    zone = takers(where)
    sets = list(combinations(sorted(zone), min(replicas, len(zone))))
    most = max(len({zone[node] for node in nodes}) for nodes in sets)
    spread = [nodes for nodes in sets if len({zone[node] for node in nodes}) == most]
    minority = (len(sets[0]) - 1) // 2
    fullest = [max(Counter(zone[node] for node in nodes).values()) for nodes in spread]
    return [one for one, full in zip(spread, fullest, strict=True) if full <= minority] or spread


@given(some_cluster(), st.booleans())
def test_zones_are_used_as_far_as_they_go(cluster, settled):
    """Also zones that nodes get later."""
    where, groups = cluster
    if settled:
        groups = planned([CandidateNode(home.node, "", home.takes) for home in where], groups)
    for one in planned(where, groups).values():
        assert tuple(sorted(one.nodes)) in allowed(where, one.replicas)


@given(st.data())
def test_without_zones_numbers_differ_by_one(data):
    """The numbers of leaderships also differ by at most one, if groups are of one size."""
    where = data.draw(some_homes(zones=" "))
    counts = data.draw(st.sampled_from([(1, 3, 5), (1,), (3,), (5,)]))
    after = planned(where, data.draw(some_groups(where, counts=counts)))
    assert apart(replicas_on(where, after)) <= 1
    assert len(counts) > 1 or apart(leads(where, after)) <= 1


@given(some_cluster() | large_cluster())
def test_a_plan_that_is_carried_out_is_followed_by_none(cluster):
    where, groups = cluster
    assert plan(where, planned(where, groups)) == {}


@given(some_cluster(), st.randoms(use_true_random=False))
def test_order_does_not_matter(cluster, chance):
    where, groups = cluster
    others = []
    for group, one in groups.items():
        nodes = tuple(chance.sample(one.nodes, len(one.nodes)))
        others.append((group, CurrentReplicas(nodes, one.leader, one.replicas)))
    chance.shuffle(others)
    again = plan(chance.sample(where, len(where)), dict(others))
    assert list(again.items()) == list(plan(where, groups).items())


@given(some_cluster())
def test_only_changes_are_named(cluster):
    where, groups = cluster
    changes = plan(where, groups)
    assert list(changes) == sorted(changes)
    for group, to in changes.items():
        assert (set(to.nodes), to.leader) != (set(groups[group].nodes), groups[group].leader)
        assert to.nodes == tuple(sorted(to.nodes))
        same = set(to.nodes) == set(groups[group].nodes)
        assert (to.reason == "only the leadership moves") == same


# --- against all arrangements ----------------------------------------------------


Options = Iterable[tuple[tuple[NodeKey, ...], int]]
"""The nodes that something may be on, and the cost of each choice."""


def best(where: Homes, several: Iterable[Options]) -> tuple[int, int]:
    """The least unevenness of any choice of options, and the lowest cost of a choice that is as
    even.
    """
    nodes = sorted(takers(where))
    cheapest = {(0,) * len(nodes): 0}
    for options in several:
        following: dict[tuple[int, ...], int] = {}
        for (chosen, price), (numbers, cost) in product(options, cheapest.items()):
            after = tuple(n + (node in chosen) for n, node in zip(numbers, nodes, strict=True))
            following[after] = min(following.get(after, cost + price), cost + price)
        cheapest = following
    least = min(map(unevenness, cheapest))
    return least, min(cost for numbers, cost in cheapest.items() if unevenness(numbers) == least)


def best_replicas(where: Homes, groups: Groups) -> tuple[int, int]:
    """The cost is the number of replicas that are placed on other nodes."""
    return best(
        where,
        [
            [(nodes, len(set(nodes) - set(one.nodes))) for nodes in allowed(where, one.replicas)]
            for one in groups.values()
        ],
    )


def best_leads(where: Homes, groups: Groups, before: Groups) -> tuple[int, int]:
    """Replicas stay where they are. The cost is the number of leaderships that move."""
    return best(
        where,
        [
            [((node,), int(node != before[group].leader)) for node in one.nodes]
            for group, one in groups.items()
        ],
    )


@given(small_cluster())
def test_no_arrangement_is_more_even(cluster):
    where, groups = cluster
    after = planned(where, groups)
    assert unevenness(replicas_on(where, after).values()) == best_replicas(where, groups)[0]
    least, fewest = best_leads(where, after, groups)
    assert unevenness(leads(where, after).values()) == least
    assert moved_leads(groups, after) <= fewest + 1


@given(small_cluster(), st.sampled_from([1, 3, 5]))
def test_hardly_an_arrangement_as_even_takes_fewer_moves(cluster, replicas):
    """No such arrangement exists in 399 of 400 random clusters. Each path of moves is shortest by
    itself, but not all paths together. The groups are of one size and do not shrink, because even
    leaderships and leaders that stay are worth additional moves.
    """
    where, groups = cluster
    groups = {
        group: CurrentReplicas(one.nodes[:replicas], one.leader, replicas)
        for group, one in groups.items()
    }
    assert placed_anew(groups, planned(where, groups)) <= best_replicas(where, groups)[1] + 2


# --- sequences -------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(st.sampled_from(["grow", "drain", "lose"]), st.integers(0, 50)), max_size=8
)


class Settled:
    """A settled cluster that changes by one node at a time."""

    def __init__(self, where: Homes, replicas: int, groups: int) -> None:
        self.where = where
        self.groups = planned(where, numbered([held("", replicas=replicas)] * groups))
        self._names = iter("mnopqrstu")

    def grow(self, zone: str = "") -> tuple[int, int]:
        """Numbers of replicas placed on other nodes, and of leaderships that moved."""
        self.where = [*self.where, CandidateNode(key(next(self._names)), zone)]
        return self._follow(self.where)

    def leave(self, leaver: CandidateNode, *, drained: bool = True) -> tuple[int, int, int, int]:
        """Numbers of replicas and leaderships that the node had, and the numbers of `grow`."""
        had = replicas_on(self.where, self.groups)[leaver.node]
        led = leads(self.where, self.groups)[leaver.node]
        self.where = [home for home in self.where if home is not leaver]
        leaving = [CandidateNode(leaver.node, leaver.zone, False)] if drained else []
        return had, led, *self._follow(self.where + leaving)

    def _follow(self, during: Homes) -> tuple[int, int]:
        before, self.groups = self.groups, planned(during, self.groups)
        assert plan(self.where, self.groups) == {}
        return placed_anew(before, self.groups), moved_leads(before, self.groups)


@given(CHANGES, st.integers(3, 7), st.sampled_from([1, 3, 5]), st.integers(1, 60))
def test_one_node_more_or_less_moves_its_share(changes, nodes, replicas, count):
    """The share is what the added node should have in the end, or what was on the node that leaves.
    When groups are on most nodes, a replica that they lose may fit only on nodes that lack none,
    and other replicas make room. A difference of one between the numbers then takes a few more
    moves, rarely (see the next test).
    """
    cluster = Settled(homes("abcdefg"[:nodes]), replicas, count)
    for what, number in changes:
        nodes = len(cluster.where)
        if what == "grow":
            placed, led = cluster.grow()
            assert placed <= -(-count * min(replicas, nodes + 1) // (nodes + 1))
            assert led <= count // (nodes + 1) + 2 * nodes
        elif nodes > 1:
            leaver = cluster.where[number % nodes]
            had, had_led, placed, led = cluster.leave(leaver, drained=what == "drain")
            share = had if nodes > replicas else 0
            assert share <= placed <= share + nodes
            assert had_led <= led <= had_led + nodes


def test_hardly_more_moves_than_must():
    """Nodes leave clusters of 9, 8, … and 5 nodes with 20 to 50 groups of three replicas. The test
    adds up all moves.
    """
    must, more, must_lead, more_lead = 0, 0, 0, 0
    for nodes, count in product(range(5, 10), (20, 35, 50)):
        cluster = Settled(homes("abcdefghi"[:nodes]), 3, count)
        while len(cluster.where) >= 5:
            had, had_led, placed, led = cluster.leave(cluster.where[0])
            must, must_lead = must + had, must_lead + had_led
            more, more_lead = more + placed - had, more_lead + led - had_led
    assert more <= must // 1000
    assert more_lead <= must_lead // 100


@given(CHANGES, st.integers(1, 60))
def test_one_node_more_or_less_moves_its_share_of_its_zone(changes, count):
    """With three replicas in three zones, each zone has one replica of each group, whatever its
    nodes are.
    """
    cluster = Settled(homes("abc", zones="xyz"), 3, count)
    for what, number in changes:
        zones = Counter(home.zone for home in cluster.where)
        if what == "grow":
            zone = "xyz"[number % 3]
            placed, _ = cluster.grow(zone)
            assert placed <= -(-count // (zones[zone] + 1))
        elif several := [home for home in cluster.where if zones[home.zone] > 1]:
            had, _, placed, _ = cluster.leave(several[number % len(several)])
            assert placed == had


@given(st.integers(3, 7), st.integers(1, 60))
def test_more_replicas_leave_those_that_are_there(nodes, count):
    where = homes("abcdefg"[:nodes])
    ones = planned(where, numbered([held("", replicas=1)] * count))
    raised = {group: CurrentReplicas(one.nodes, one.leader, 3) for group, one in ones.items()}
    changes = plan(where, raised)
    assert set(changes) == set(ones)
    for group, to in changes.items():
        assert set(ones[group].nodes) < set(to.nodes)
        assert to.leader == ones[group].leader
        assert to.reason == "2 replicas more: 3 instead of 1"


@given(st.integers(5, 7), st.integers(1, 60), st.sampled_from([1, 3]))
def test_fewer_replicas_leave_the_leaders(nodes, count, replicas):
    """The other replicas leave full nodes, one after another, so that hardly any has to be placed
    again.
    """
    where = homes("abcdefg"[:nodes])
    fives = planned(where, numbered([held("", replicas=5)] * count))
    lowered = {
        group: CurrentReplicas(one.nodes, one.leader, replicas) for group, one in fives.items()
    }
    changes = plan(where, lowered)
    assert set(changes) == set(fives)
    assert placed_anew(fives, carried_out(lowered, changes)) <= 2
    for group, to in changes.items():
        assert to.leader == fives[group].leader
        assert to.reason.startswith(f"{5 - replicas} replicas fewer: {replicas} instead of 5")


# --- examples --------------------------------------------------------------------


def told(where: Homes, *several: CurrentReplicas) -> list[tuple[str, str, str]]:
    """The node names, leader first, and the reason of each group that changes."""
    return [
        ("".join(node[0] for node in to.nodes), to.leader[0], to.reason)
        for to in plan(where, numbered(several)).values()
    ]


def test_nothing_to_plan():
    assert plan([], {}) == {}
    assert plan(homes("abc"), {}) == {}
    assert plan([], numbered([held("abc")])) == {}
    assert plan(homes("abc", drained="abc"), numbered([held("ab")])) == {}
    assert plan(homes("abc"), numbered([held("abc"), held("bca"), held("cab")])) == {}


def test_nodes_that_leave():
    assert told(homes("abcd", drained="d"), held("abd")) == [
        ("abc", "a", "node d is being drained")
    ]
    assert told(homes("abc"), held("dab")) == [("abc", "a", "node d is gone")]
    assert told(homes("abc", drained="c"), held("abc")) == [
        ("ab", "a", "node c is being drained; one replica fewer: 2 instead of 3")
    ]
    assert told(homes("abcd", drained="d"), held("xyd")) == [
        ("abc", "a", "nodes x, y are gone; node d is being drained")
    ]


def test_numbers_of_replicas():
    assert told(homes("abc"), held("b", replicas=1), held("a", replicas=3)) == [
        ("abc", "a", "2 replicas more: 3 instead of 1"),
    ]
    assert told(homes("abcd", drained="d"), held("dab", replicas=1)) == [
        ("b", "b", "node d is being drained; 2 replicas fewer: 1 instead of 3")
    ]
    full = CurrentReplicas((key("a"), key("b")), None, 1)
    assert told(homes("abc"), held("a", replicas=1), full, held("c", replicas=1)) == [
        ("b", "b", "one replica fewer: 1 instead of 2")
    ]
    assert told(homes("a"), held("")) == [("a", "a", "it has no replicas")]


def test_a_node_that_comes():
    ones = numbered([held("a", replicas=1), held("b", replicas=1)] * 10)
    reasons = [to.reason for to in plan(homes("abe"), ones).values()]
    assert set(reasons) == {
        "balances the nodes: node e has 0 replicas and node a 10",
        "balances the nodes: node e has 0 replicas and node b 10",
    }
    assert len(reasons) == 6


def test_zones():
    where = homes("abcd", zones="xxyz")
    assert told(where, held("abc")) == [("acd", "a", "spreads over 3 zones instead of 2")]
    two = homes("abcd", zones="xxxy")
    assert told(two, held("abc")) == [("acd", "a", "spreads over 2 zones instead of 1")]
    five = homes("abcdef", zones="xxxyyz")
    assert told(five, held("abcdf", replicas=5)) == [
        ("acdef", "a", "no zone keeps a majority of its replicas")
    ]


def test_leaderships():
    assert sorted(told(homes("abc"), held("abc"), held("abc"), held("abc"))) == [
        ("abc", "b", "only the leadership moves"),
        ("abc", "c", "only the leadership moves"),
    ]
    nobody = CurrentReplicas(held("abc").nodes, None, 3)
    assert told(homes("abc"), held("abc"), held("bac"), nobody) == [
        ("abc", "c", "only the leadership moves")
    ]


def test_replicas_change_places_when_only_that_evens_out_leaderships():
    """All nodes have three replicas. Node a has only groups of one replica, and must lead all of
    them.
    """
    ones = [held("a", replicas=1)] * 3
    groups = numbered([*ones, held("bcd"), held("cbd"), held("dbc")])
    where = homes("abcd")
    after = planned(where, groups)
    assert set(replicas_on(where, after).values()) == {3}
    assert apart(leads(where, after)) == 1
    assert placed_anew(groups, after) == 2
    assert [to.reason for to in plan(where, groups).values() if len(to.nodes) == 3] == [
        "changes places with a replica of another group, which balances the nodes"
    ]


def test_neighbours_are_scattered():
    """Partitions of a queue are neighbours. They should not move together. They should not lie on
    few nodes when these nodes have other groups to share with.
    """
    where = homes("abcdef")
    ones = planned(where[:5], numbered([held("", replicas=1)] * 150))
    moved = plan(where, ones)
    assert len(moved) == 25
    assert all(sum(start <= group < start + 15 for group in moved) <= 5 for start in range(1, 136))
    pairs = Counter(
        pair
        for one in planned(where, numbered([held("")] * 60)).values()
        for pair in combinations(sorted(one.nodes), 2)
    )
    assert len(pairs) == 15
    assert min(pairs.values()) >= 6, "of twelve on average"
