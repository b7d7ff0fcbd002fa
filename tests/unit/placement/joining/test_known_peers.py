from querator.config import ClusterSettings
from querator.model.placement_map import NodeState, PlacementMap
from querator.placement.joining.known_peers import KnownPeers, removed_node, why_no_member
from querator.raft.tcp.hello import KnownPeer
from tests.unit.placement.conftest import node

SETTINGS = ClusterSettings(
    name="b",
    peers={"a": "h:1", "b": "h:2", "c": "h:3"},
    founds_with=("a", "b", "c"),
    token=b"t",
    listen_peers="h:2",
    client_address="",
)


def test_before_anything_is_known_the_names_count():
    assert KnownPeers(SETTINGS).peers() == {"a": KnownPeer("h:1"), "c": KnownPeer("h:3")}


def test_the_newest_list_counts():
    """A node that reads the map from its beginning meets names of data that has been replaced
    since.
    """
    known = KnownPeers(SETTINGS)
    assert known.learn(0, (node("a"), node("b"), node("c")))
    assert known.peers()["a"] == KnownPeer("h:1", incarnation="1")
    assert known.learn(9, (node("a", "2"), node("b"), node("c"), node("d", "5")))
    assert not known.learn(1, (node("a"), node("b"), node("c")))
    assert not known.learn(10, ())
    assert known.peers() == {
        "a": KnownPeer("h:1", incarnation="2"),
        "c": KnownPeer("h:3", incarnation="1"),
        "d": KnownPeer("d:4471", incarnation="5"),
    }
    assert known.learn(9, (node("a", "2"), node("b"), node("c")))


def test_a_node_that_the_map_does_not_name_as_it_is():
    placed = PlacementMap(4, nodes=(node("a", boots=3), node("b")))
    assert why_no_member(placed, node("a", boots=3)) == ""
    assert why_no_member(placed, node("a", boots=4)) == ""
    assert why_no_member(placed, node("x")) == ""
    gone = node("d", state=NodeState.REMOVED)
    placed = placed.evolve(placed.epoch + 1, nodes=(gone,))
    assert why_no_member(placed, node("d")) == removed_node("d")
    assert why_no_member(placed, node("d", "2")) == ""
    assert "has been replaced" in why_no_member(placed, node("a", "2", boots=9))
    assert "on a copy of its data" in why_no_member(placed, node("a", boots=2))
