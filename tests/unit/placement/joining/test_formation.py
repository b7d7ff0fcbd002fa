"""Decisions of a starting node: first the table, row by row, then whole clusters that form while
nodes stop, start in any order and lose their data at any step.
"""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querator.model.nodes import NodeKey, Replica, Replicas, node_key
from querator.model.placement_map import NodeState, PlacedNode
from querator.placement.joining.formation import (
    VERSION,
    Decision,
    Description,
    Found,
    Join,
    OldCopy,
    Refuse,
    Said,
    Start,
    Starter,
    Wait,
    WaitAsReplacement,
    decide,
    decode_description,
    encode_description,
)
from tests.unit.placement.conftest import node

NAMES = ("a", "b", "c")
FOUNDERS = tuple(node(name) for name in NAMES)
FOUNDING: Replicas = tuple(Replica(n, one.key) for n, one in enumerate(FOUNDERS, start=1))


def starter(name: str, incarnation: str = "1", boots: int = 2, **more: object) -> Starter:
    fields = {"founds_with": NAMES, **more}
    return Starter(node(name, incarnation, boots=boots), **fields)  # type: ignore[arg-type]


def empty(name: str, incarnation: str = "1", founds_with: tuple[str, ...] = NAMES) -> Description:
    return Description(VERSION, node(name, incarnation), founds_with)


def formed(
    name: str,
    *,
    cluster_id: str = "x",
    epoch: int = 0,
    nodes: tuple[PlacedNode, ...] = FOUNDERS,
    founders: tuple[PlacedNode, ...] = FOUNDERS,
    replicas: Replicas = (),
    removed: tuple[PlacedNode, ...] = (),
) -> Description:
    return Description(
        version=VERSION,
        node=node(name),
        founds_with=NAMES,
        cluster_id=cluster_id,
        epoch=epoch,
        nodes=nodes,
        founders=founders,
        replicas=replicas,
        removed=removed,
    )


def refused(decision: Decision, *words: str) -> None:
    assert isinstance(decision, Refuse), decision
    for word in words:
        assert word in decision.reason


def waits(decision: Decision, *words: str) -> None:
    assert isinstance(decision, Wait), decision
    for word in words:
        assert word in decision.reason


# --- the table ---------------------------------------------------------------------------


def test_the_founder_founds_when_all_are_there_and_empty():
    decision = decide(starter("a"), {"b": empty("b"), "c": empty("c")})
    assert decision == Found((node("a", boots=2), node("b"), node("c")))


@pytest.mark.parametrize("name", ["b", "c"])
def test_the_others_wait_for_the_founder(name: str):
    said = {other: empty(other) for other in NAMES if other != name}
    waits(decide(starter(name), said), "a is about to found")


def test_the_founder_waits_for_who_is_not_there():
    waits(decide(starter("a"), {"b": empty("b"), "c": "connection refused"}), "c (connection")
    waits(decide(starter("a"), {"b": empty("b")}), "c (it is not among the peers)")
    waits(decide(starter("a"), {"b": empty("b"), "c": empty("d")}), "c (node d answers")
    both = decide(starter("a"), {"b": "timed out", "c": "connection refused"})
    waits(both, "first nodes answer: b (timed out); c (connection refused)")


def test_all_must_agree_on_who_founds():
    said = {"b": empty("b"), "c": empty("c", founds_with=("b", "c", "d"))}
    waits(decide(starter("a"), said), "c (its settings would found a cluster of b, c, d")


def test_a_node_that_does_not_found_waits_for_the_cluster():
    said = {name: empty(name) for name in NAMES}
    waits(decide(starter("d"), said), "founded by a, b, c")


def test_a_cluster_of_two_and_of_one():
    one = ("a",)
    assert decide(starter("a", founds_with=one), {}) == Found((node("a", boots=2),))
    two = ("a", "b")
    decision = decide(starter("a", founds_with=two), {"b": empty("b", founds_with=two)})
    assert isinstance(decision, Found)


def test_who_is_on_the_list_joins():
    for name in NAMES:
        for other in NAMES:
            if other != name:
                decision = decide(starter(name), {other: formed(other)})
                assert decision == Join("x", FOUNDING, FOUNDERS, 0, FOUNDERS)


def test_lost_data_waits_for_an_operator():
    decision = decide(starter("b", "2"), {"a": formed("a"), "c": "no answer"})
    assert isinstance(decision, WaitAsReplacement)
    assert decision.cluster_id == "x"
    assert "querator node replace b" in decision.reason
    waiting = starter("b", "2", cluster_id="x")
    assert decide(waiting, {"a": formed("a")}) == decision
    alone = decide(waiting, {"a": "connection refused", "c": "connection refused"})
    assert isinstance(alone, WaitAsReplacement)
    assert "no node of cluster x answers: a (connection refused)" in alone.reason
    both = decide(waiting, {"a": empty("a"), "c": empty("c")})
    assert isinstance(both, WaitAsReplacement), "it founds nothing any more"


def test_the_founder_that_lost_its_data_founds_nothing_beside_who_waits():
    waiting = Description(VERSION, node("b", "2"), NAMES, cluster_id="x")
    waits(decide(starter("a", "2"), {"b": waiting, "c": empty("c")}), "also wait for")


def test_a_replacement_joins_when_the_map_names_it():
    nodes = (node("a"), node("b", "2"), node("c"))
    target = (FOUNDING[0], FOUNDING[2], Replica(4, NodeKey("b/2")))
    named = formed("a", epoch=9, nodes=nodes, replicas=target)
    stale = formed("c", epoch=8)
    for said in ({"a": named, "c": stale}, {"c": stale, "a": named}):
        decision = decide(starter("b", "2", cluster_id="x"), said)
        assert decision == Join(
            "x", (FOUNDING[0], FOUNDING[2], Replica(4, NodeKey("b/2"), voter=False)), (), 9, nodes
        )


def test_a_name_that_the_cluster_does_not_have_yet():
    decision = decide(starter("d"), {"a": formed("a")})
    assert isinstance(decision, Wait)
    assert "x (a, b, c) is about to accept node d" in decision.reason


def test_a_name_that_was_removed():
    said: Said = {"a": formed("a", removed=(node("d", "9", state=NodeState.REMOVED),))}
    decision = decide(starter("d"), said)
    refused(decision, "node d was removed from cluster x", "node readmit d")
    assert isinstance(decision, Refuse)
    assert "empty directory" not in decision.reason
    # Its directory is empty: it may start once the name is readmitted.
    assert not decision.removed
    said = {"a": formed("a", removed=(node("d", "9", state=NodeState.FORGOTTEN),))}
    assert isinstance(decide(starter("d"), said), Wait)
    said = {"a": formed("a", removed=(node("d", state=NodeState.FORGOTTEN),))}
    for own in (starter("d", cluster_id="x", member=True), starter("d", cluster_id="x")):
        decision = decide(own, said)
        refused(decision, "start with an empty directory; its name may be used again")
        assert isinstance(decision, Refuse)
        assert decision.removed
        assert "readmit" not in decision.reason
    said = {"a": formed("a", removed=(node("d", state=NodeState.REMOVED),))}
    decision = decide(starter("d", cluster_id="x"), said)
    refused(decision, "start with an empty directory and under another name", "node readmit d")


def test_peers_of_several_clusters():
    said = {"a": formed("a"), "b": formed("b", cluster_id="y")}
    refused(decide(starter("c"), said), "a of x", "b of y")
    refused(decide(starter("c", cluster_id="y"), {"a": formed("a")}), "this directory of y")


def test_a_member_starts():
    member = starter("b", cluster_id="x", member=True)
    everything: list[Said] = [
        {},
        {"a": "no answer", "c": "no answer"},
        {"a": formed("a"), "c": formed("c", cluster_id="y")},
        {"a": empty("a")},
        {"a": formed("z", cluster_id="y")},
        {"a": formed("a", epoch=3, nodes=(node("a"), node("c")))},
    ]
    for said in everything:
        assert isinstance(decide(member, said), Start)
    assert decide(member, {"a": "no answer"}) == Start()
    newer = tuple(node(name, "2") if name == "c" else node(name) for name in NAMES)
    told = {"a": formed("a", epoch=7, nodes=newer), "c": formed("c", epoch=6)}
    assert decide(member, told) == Start(7, newer)


def test_a_member_of_another_cluster_is_refused():
    member = starter("b", cluster_id="x", member=True)
    said: Said = {"a": formed("a", cluster_id="y"), "c": "no answer"}
    refused(decide(member, said), "node b of cluster x", "a is of cluster y", "--peers")


def test_a_member_that_was_replaced_is_refused():
    member = starter("b", cluster_id="x", member=True)
    nodes = (node("a"), node("b", "2"), node("c"))
    said = {"a": formed("a", epoch=5, nodes=nodes), "c": formed("c", epoch=4)}
    refused(decide(member, said), "has been replaced", "empty directory")


@pytest.mark.parametrize(("known", "starts"), [(1, True), (2, False), (3, False)])
def test_an_old_copy_of_the_data_is_refused(known: int, starts: bool):
    member = starter("b", cluster_id="x", member=True, boots=2)
    nodes = (node("a"), node("b", boots=known), node("c"))
    decision = decide(member, {"a": formed("a", epoch=5, nodes=nodes)})
    if starts:
        assert decision == Start(5, nodes)
    else:
        refused(decision, "old copy", f"start {known}", "querator node restore-from-copy")


def test_a_member_of_which_a_peer_knows_better_is_refused_for_good():
    said: Said = {"a": formed("a", epoch=3), "c": OldCopy("the data of node b is an old copy: c …")}
    decision = decide(starter("b", boots=9, cluster_id="x", member=True), said)
    refused(decision, "old copy: c …", "querator node restore-from-copy")
    assert isinstance(decision, Refuse)
    assert decision.for_good


def test_descriptions_on_the_wire():
    described = formed("a", epoch=4, replicas=FOUNDING)
    data = encode_description(described)
    assert decode_description(data) == described
    for broken in (b"", b"\x93", b"\x01", b"\x91\xa1x", b"\x90", data[:-1]):
        assert isinstance(decode_description(broken), str)
    later = msgspec.msgpack.encode([VERSION + 1, "?"])
    assert decode_description(later) == "it describes itself in version 2, and this node knows 1"


# --- whole clusters ------------------------------------------------------------------------


class Disk(msgspec.Struct):
    """The data that a node keeps."""

    incarnation: str
    cluster_id: str = ""
    founders: tuple[PlacedNode, ...] = ()
    boots: int = 0


class Machine:
    """A node that starts, asks one peer after the other, decides, stores its decision and reports
    it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk("1")
        self.losses = 0
        self.up = False
        self.said: dict[str, Description | str] = {}
        self.last: Decision | None = None

    def start(self) -> None:
        self.up = True
        self.disk.boots += 1
        self.said = {}

    def lose(self) -> None:
        self.up = False
        self.losses += 1
        self.disk = Disk(str(1 + self.losses))

    @property
    def me(self) -> PlacedNode:
        return node(self.name, self.disk.incarnation, boots=self.disk.boots)

    @property
    def member(self) -> bool:
        return bool(self.disk.founders)

    def described(self) -> Description:
        disk = self.disk
        return Description(
            version=VERSION,
            node=self.me,
            founds_with=NAMES,
            cluster_id=disk.cluster_id,
            epoch=0,
            nodes=disk.founders,
            founders=disk.founders,
        )


class World:
    def __init__(self) -> None:
        self.machines = {name: Machine(name) for name in NAMES}
        self.joined: dict[NodeKey, str] = {}
        self.ids = itertools.count(1)

    def ask(self, name: str, other: str) -> None:
        asked = self.machines[other]
        self.machines[name].said[other] = asked.described() if asked.up else "no answer"

    def decide(self, name: str, *, crash: str = "") -> None:
        """Decides, with a crash before or after the decision is stored."""
        machine = self.machines[name]
        own = Starter(machine.me, NAMES, machine.disk.cluster_id, machine.member)
        machine.last = decision = decide(own, machine.said)
        if crash == "before":
            machine.up = False
            return
        match decision:
            case Found(founders):
                self.join(machine, f"x{next(self.ids)}", founders)
            case Join(cluster_id, _, founders, _, _):
                self.join(machine, cluster_id, founders)
            case WaitAsReplacement(cluster_id, _):
                assert machine.disk.cluster_id in ("", cluster_id)
                machine.disk.cluster_id = cluster_id
            case Refuse():
                machine.up = False
        if crash == "after":
            machine.up = False

    def join(self, machine: Machine, cluster_id: str, founders: tuple[PlacedNode, ...]) -> None:
        assert not machine.member
        key = node_key(machine.name, machine.disk.incarnation)
        assert key in {founder.key for founder in founders}
        assert self.joined.setdefault(key, cluster_id) == cluster_id
        machine.disk.cluster_id = cluster_id
        machine.disk.founders = founders

    def members(self) -> dict[str, int]:
        """Living members of each cluster: a majority of three can work."""
        counts: dict[str, int] = {}
        for machine in self.machines.values():
            if machine.member:
                cluster = machine.disk.cluster_id
                counts[cluster] = counts.get(cluster, 0) + 1
        return counts

    def check(self) -> None:
        assert sum(count >= 2 for count in self.members().values()) <= 1

    def calm(self) -> None:
        """Starts all nodes, and lets them ask and decide until nothing changes any more."""
        for machine in self.machines.values():
            if not machine.up:
                machine.start()
        for _ in range(6):
            for name, machine in self.machines.items():
                if machine.up:
                    for other in NAMES:
                        if other != name:
                            self.ask(name, other)
                    self.decide(name)
                    self.check()


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)))
def test_any_order_of_starts_forms_one_cluster(order: tuple[str, ...]):
    world = World()
    for name in order:
        world.machines[name].start()
        for one in NAMES:
            if world.machines[one].up:
                for other in NAMES:
                    if other != one:
                        world.ask(one, other)
                world.decide(one)
    world.calm()
    assert world.members() == {"x1": 3}


ENDS = st.sampled_from(["", "", "", "before", "after"])
STEPS = st.one_of(
    st.tuples(st.just("ask all"), st.sampled_from(NAMES), st.just("")),
    st.tuples(st.just("ask"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("decide"), st.sampled_from(NAMES), ENDS),
    st.tuples(st.just("decide"), st.sampled_from(NAMES), ENDS),
    st.tuples(st.just("restart"), st.sampled_from(NAMES), st.just("")),
    st.tuples(st.just("stop"), st.sampled_from(NAMES), st.just("")),
)
LOSS = st.tuples(st.just("lose"), st.sampled_from(NAMES), st.just(""))


def play(steps: list[tuple[str, str, str]]) -> World:
    world = World()
    for machine in world.machines.values():
        machine.start()
    for action, name, more in steps:
        machine = world.machines[name]
        if action == "stop":
            machine.up = False
            continue
        if action == "lose":
            machine.lose()
        if action == "restart" or not machine.up:
            machine.start()
        if action == "ask all":
            for other in NAMES:
                if other != name:
                    world.ask(name, other)
        elif action == "ask" and more != name:
            world.ask(name, more)
        elif action == "decide":
            world.decide(name, crash=more)
        world.check()
    return world


@settings(max_examples=400)
@given(st.lists(STEPS, max_size=40))
def test_crashes_at_any_step_end_in_one_cluster(steps: list[tuple[str, str, str]]):
    world = play(steps)
    world.calm()
    assert list(world.members().values()) == [3]


@settings(max_examples=800)
@given(st.lists(st.one_of(STEPS, STEPS, STEPS, LOSS), max_size=40))
def test_lost_data_never_makes_two_clusters(steps: list[tuple[str, str, str]]):
    world = play(steps)
    world.calm()
    world.check()
    ends = [machine.last for machine in world.machines.values()]
    # Several clusters met: an operator must choose one of them. No cluster has a majority by
    # mistake.
    if any(isinstance(end, Refuse) for end in ends):
        return
    for machine, end in zip(world.machines.values(), ends, strict=True):
        assert machine.member or isinstance(end, Wait | WaitAsReplacement)
    assert len({machine.disk.cluster_id for machine in world.machines.values()} - {""}) <= 1
