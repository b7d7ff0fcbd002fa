"""Views of a cluster for operators, with and without problems."""

import msgspec
import pytest
from click.testing import CliRunner

from querator.cli import cluster, querator
from querator.cli.cluster_pictures import picture, plan_picture
from querator.cli.cluster_views import ClusterView, cluster_view
from querator.cli.shared.output import Picture, picture_lines
from querator.client.cluster import ClusterPicture, SeenCondition, SeenNode
from querator.client.errors import ConnectionFault
from querator.model.cluster import (
    ClusterCertificate,
    ClusterCondition,
    ClusterGroup,
    ClusterMove,
    ClusterNode,
    ClusterPending,
    ClusterPlan,
    ClusterReplica,
    ClusterScrub,
    ClusterWaiting,
)
from querator.model.ids import GroupId
from querator.model.limits import CLOCK_SKEW_MS_MAX, MIB
from querator.v1 import cluster_service_pb2
from tests.unit.cli.scripted_cluster import scripted_cluster

NAMES = "abc"


def seen(name: str, silent: str = "", state: str = "active", **more: bool) -> SeenNode:
    flags = {"connected": not silent, "handed_off": False, **more}
    place = "abcd".index(name)
    node = ClusterNode(
        name=name,
        incarnation="1",
        peer_address=f"peer:{place}",
        client_address=f"client:{place}",
        zone="",
        boots=1,
        version="0.1.0",
        connected=flags["connected"],
        handed_off=flags["handed_off"],
        state=state,
    )
    return SeenNode(node, silent)


def replicas(**lags: int) -> tuple[ClusterReplica, ...]:
    """Replicas on all nodes with the lags that the leader knows. No lags: there is no leader."""
    return tuple(
        ClusterReplica(number, name, "1", True, lags.get(name))
        for number, name in enumerate(NAMES, start=1)
    )


def group(number: int, leader: str = "a", queue: str = "q", **lags: int) -> ClusterGroup:
    told = dict.fromkeys(NAMES, 0) | lags if leader else {}
    return ClusterGroup(
        group=GroupId(number),
        namespace="default" if queue else "",
        queue=queue,
        partition=max(0, number - 1),
        leads=bool(leader),
        leader=leader,
        preferred_leader="a",
        term=1,
        open=True,
        stopped=False,
        applied_index=10,
        replicas=replicas(**told),
        target=replicas(),
        moving=False,
    )


def view(
    *groups: ClusterGroup,
    nodes: tuple[SeenNode, ...] = tuple(map(seen, NAMES)),
    pending: tuple[ClusterPending, ...] = (),
) -> ClusterView:
    told = groups or (group(0, queue=""), group(1, "b"), group(2, "c"))
    return cluster_view(ClusterPicture("x", 3, nodes, told, pending))


def shown(of: ClusterView, *, partitions: bool = False) -> str:
    return text_of(picture(of, partitions=partitions))


def text_of(shown: Picture) -> str:
    return "\n".join(line.text for line in picture_lines(shown, 200))


def test_a_node_that_came_with_an_old_copy_is_named():
    old = msgspec.structs.replace(seen("b", "nobody answers"), old_copy="the data is old")
    problems = view(nodes=(seen("a"), old, seen("c"))).problems
    assert "A process that started as node b was refused: the data is old." in problems
    assert any("Node b is down" in problem for problem in problems)


def test_a_cluster_that_is_well():
    well = view()
    assert well.problems == ()
    text = shown(well)
    assert "Cluster x: 3 nodes, 1 queue, 2 partitions. All is well." in text
    assert "b 1, c 1" in text
    assert [(node.state, node.leads, node.replicas) for node in well.nodes] == [("up", 1, 3)] * 3
    assert "q/1" in shown(well, partitions=True)


def test_partitions_that_are_closing_are_counted_apart():
    closing = msgspec.structs.replace(group(2, "c"), closing=True)
    told = view(group(0, queue=""), group(1, "b"), closing)
    assert told.problems == ()
    assert "1 (1 closing)" in shown(told)
    assert "q/1 (closing)" in shown(told, partitions=True)
    pending = (ClusterPending("default", "q", "changing", ()),)
    (problem,) = view(pending=pending).problems
    assert problem == "Queue q is being given another number of partitions."
    pending = (ClusterPending("default", "q", "changing", ("q/1", "q/3")),)
    (problem,) = view(pending=pending).problems
    assert problem.endswith("another number of partitions; waiting for q/1, q/3.")


def test_items_that_wait_for_others_of_their_keys():
    holding = [
        msgspec.structs.replace(group(number, "b"), held=700, waits_for=(0, number - 1))
        for number in (3, 4)
    ]
    told = view(group(0, queue=""), group(1, "b"), *holding)
    assert told.problems == (
        "Queue q: 1,400 items held until the items that were in q/0, q/2, q/3 before the number of "
        "partitions changed have been leased and completed: earlier items of the same keys may be "
        "among them.",
    )


def test_a_node_that_nobody_can_join():
    node = msgspec.structs.replace(seen("a").node, peer_address="")
    lone = view(nodes=(SeenNode(node, ""),))
    assert "Other nodes cannot join: a was started" in shown(lone)
    assert "cannot join" not in shown(view())


DOWN_B = (seen("a"), seen("b", "no node answers at client:1"), seen("c"))


def test_a_node_that_is_down():
    told = view(group(0, queue=""), group(1, "c", b=7), nodes=DOWN_B)
    assert told.problems == (
        "Node b is down: no node answers at client:1. Start it again: it catches up by itself. "
        "If it was started a moment ago, wait. If it ends or waits, its log says why. Only if its "
        "data is lost, start it with an empty directory and then: querator node replace b",
        "2 partitions: (map), q/0 can be used, but have fewer running replicas than configured: b "
        "is down.",
    )
    assert told.partitions[1].lag_entries == 0, "of those that answer"
    assert "2 of 3" in shown(told)
    assert "b (down)" in shown(told, partitions=True)


def test_a_node_that_answers_nobody_while_others_hear_it():
    hung = seen("b", "no node answers at client:1", connected=True)
    problems = view(nodes=(seen("a"), hung, seen("c"))).problems
    assert problems[0] == (
        "Node b does not answer (no node answers at client:1), and other nodes are connected to "
        "it. "
        "Its event loop may hang, or the network between it and this command is "
        "cut. If this lasts, restart the node."
    )


@pytest.mark.parametrize(
    ("cause", "connected", "state", "words"),
    [
        (ConnectionFault.SILENT, False, "hangs", "Do not start a second process."),
        (ConnectionFault.SILENT, True, "hangs", "Its process is there."),
        (ConnectionFault.REFUSED, True, "starting", "Wait. If this lasts, its log says what"),
        (ConnectionFault.REFUSED, False, "down", "Start it again: it catches up by itself."),
        (ConnectionFault.UNREACHABLE, False, "unreachable", "Its machine is down, or the network"),
        (ConnectionFault.NAME_UNKNOWN, False, "unreachable", "out of reach: it fails."),
        (ConnectionFault.UNREACHABLE, True, "unreachable", "between it and this command is cut"),
    ],
)
def test_the_advice_depends_on_why_a_node_does_not_answer(
    cause: ConnectionFault, connected: bool, state: str, words: str
):
    """Nodes that hang or start were said to be down, with the advice to start them."""
    silent = msgspec.structs.replace(seen("b", "it fails.", connected=connected), cause=cause)
    told = view(nodes=(seen("a"), silent, seen("c")))
    assert told.nodes[1].state == state
    assert told.problems[0].startswith("Node b ")
    assert words in told.problems[0]
    assert ("Start it again" in " ".join(told.problems)) is (state == "down")
    are = "is down" if state == "down" else "does not answer"
    assert told.problems[1].endswith(f"fewer running replicas than configured: b {are}.")
    third = seen("c", "gone", connected=connected).node
    nodes = (seen("a"), silent, msgspec.structs.replace(silent, node=third))
    [lost] = [one for one in view(group(1, ""), nodes=nodes).problems if "q/0" in one]
    assert ("Start them again." in lost) is (state == "down")
    assert ("See above what to do" in lost) is (state != "down")


def peer_refused(by: str, about: str) -> SeenCondition:
    return SeenCondition(by, ClusterCondition("peer_refused", about, f"{by} about {about}."))


def test_a_refused_process_is_named_once():
    """A node that another one refuses is reported by name by itself, and as a host by the other."""
    told = msgspec.structs.replace(
        ClusterPicture("x", 3, tuple(map(seen, NAMES)), (group(0, queue=""),), ()),
        conditions=(peer_refused("a", "b"), peer_refused("b", "peer"), peer_refused("b", "else")),
    )
    assert cluster_view(told).problems == ("a about b.", "b about else.")


def test_a_node_whose_clock_is_wrong():
    def told(ahead_ms: int) -> tuple[str, ...]:
        b = msgspec.structs.replace(seen("b"), clock_ahead_ms=ahead_ms)
        return view(nodes=(seen("a"), b, seen("c"))).problems

    assert told(CLOCK_SKEW_MS_MAX) == told(-CLOCK_SKEW_MS_MAX) == ()
    assert told(3_040) == (
        "The clock of node b is 3.0 s ahead of that of the others; 0.5 s is allowed. Until it is "
        "set, the node leads nothing that another node can lead.",
    )
    assert "b is 0.6 s behind that of the others" in told(-600)[0]


def test_most_nodes_are_down():
    nodes = (seen("a"), seen("b", "gone"), seen("c", "gone"))
    told = view(group(0, "", queue=""), group(1, ""), nodes=nodes)
    assert told.problems[-1] == (
        "2 partitions: (map), q/0 cannot be used: most of the replicas are on nodes that are down "
        "(b, c). Start them again."
    )
    assert "none 1" in shown(told)


def test_most_nodes_are_down_and_the_leader_has_not_noticed():
    nodes = (seen("a"), seen("b", "gone"), seen("c", "gone"))
    problems = view(group(0, queue=""), group(1, "a"), nodes=nodes).problems
    assert problems[-1] == (
        "2 partitions: (map), q/0 cannot be used: most of the replicas are on nodes that are down "
        "(b, c). Start them again."
    )
    assert not any("can be used" in problem for problem in problems)


def test_most_nodes_do_not_answer_and_are_connected_to_the_leader():
    hung = seen("b", "gone", connected=True)
    problems = view(group(1, "a"), nodes=(seen("a"), hung, seen("c", "gone"))).problems
    assert problems[-1] == (
        "Partition q/0 may not be usable: most of the replicas are on nodes that do not answer "
        "(b, c)."
    )
    assert not any("can be used" in problem for problem in problems)


def test_a_node_to_which_the_command_cannot_connect():
    text = "The certificate of client:1 is not trusted: certificate has expired."
    wrong = msgspec.structs.replace(seen("b", "no node answers at client:1"), fault=text)
    problems = view(nodes=(seen("a"), wrong, seen("c"))).problems
    assert problems[0] == f"Node b cannot be asked. {text}"
    assert not any("Node b is down" in problem for problem in problems)


def test_partitions_of_a_node_to_which_only_the_command_cannot_connect_have_a_leader():
    text = "The certificate of client:1 is not trusted: certificate has expired."
    wrong = msgspec.structs.replace(seen("b", "cannot be asked", connected=True), fault=text)
    followed = msgspec.structs.replace(group(1, "b"), leads=False)
    told = view(group(0, queue=""), followed, nodes=(seen("a"), wrong, seen("c")))
    assert told.problems == (f"Node b cannot be asked. {text}",)
    assert told.partitions[1].leader == "b"


def test_no_leader_for_a_moment():
    told = view(group(0, queue=""), group(1, ""))
    assert told.problems == ("Partition q/0 has no leader at the moment; one is being elected.",)


def test_a_leader_that_does_not_serve_yet():
    elected = msgspec.structs.replace(group(1, "b"), leads=False)
    told = view(group(0, queue=""), elected)
    assert told.problems == (
        "Partition q/0 has no leader that serves yet: node b was elected, and applies the rest of "
        "the log first.",
    )
    assert (told.partitions[1].leader, told.partitions[1].elected) == ("", "b")
    gone = view(group(0, queue=""), elected, nodes=(seen("a"), seen("b", "gone"), seen("c")))
    assert gone.partitions[1].elected == ""
    assert "Partition q/0 has no leader at the moment; one is being elected." in gone.problems


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((seen("a"), seen("b", handed_off=True), seen("c")), "Node b has handed off"),
        ((seen("a"), seen("b", connected=False), seen("c")), "no connection to it at peer:1"),
    ],
)
def test_what_a_node_is_like(nodes: tuple[SeenNode, ...], words: str):
    (problem,) = view(nodes=nodes).problems
    assert words in problem


def test_a_replica_that_is_rebuilt():
    whole = group(1)
    learning = msgspec.structs.replace(
        whole,
        replicas=(
            *whole.replicas[::2],
            ClusterReplica(4, "b", "2", False, 900),
        ),
        target=(*whole.target[::2], ClusterReplica(4, "b", "2", True)),
    )
    told = view(group(0, queue=""), learning)
    assert told.problems == ("Node b is getting replicas: 1 partition to go.",)
    assert "b (learning)" in shown(told, partitions=True)


def test_a_replica_that_was_rebuilt_and_whose_forerunner_still_counts():
    whole = group(1)
    rebuilt = ClusterReplica(4, "b", "2", True, 0)
    leaving = msgspec.structs.replace(
        whole, replicas=(*whole.replicas, rebuilt), target=(*whole.target[::2], rebuilt)
    )
    told = view(group(0, queue=""), leaving)
    assert told.problems == ("Old replicas of node b are being removed: 1 partition to go.",)


@pytest.mark.parametrize(
    ("silent", "state", "words"),
    [
        ("", "draining", "Node c is being drained: 2 partitions to go."),
        ("", "leaving", "Node c is being removed: 2 partitions to go."),
        ("gone", "leaving", "Node c is being removed: 2 partitions to go. It is down."),
    ],
)
def test_a_node_that_goes(silent: str, state: str, words: str):
    told = view(nodes=(seen("a"), seen("b"), seen("c", silent, state)))
    assert told.problems[0] == words
    assert told.nodes[2].state == f"{'down' if silent else 'up'}, {state}"


def test_a_node_that_is_drained():
    elsewhere = msgspec.structs.replace(
        group(1), replicas=replicas(a=0, b=0, c=0)[:2], target=replicas()[:2]
    )
    told = view(
        group(0, queue=""), elsewhere, nodes=(seen("a"), seen("b"), seen("c", state="draining"))
    )
    assert told.problems == (
        "Node c is drained: it can be stopped, and removed with: querator node remove c.",
    )


def test_learners_of_the_map_do_not_count():
    map_ = group(0, queue="")
    learner = ClusterReplica(4, "d", "1", False, 0)
    follows = msgspec.structs.replace(
        map_, replicas=(*map_.replicas, learner), target=(*map_.target, learner)
    )
    told = view(follows, group(1), nodes=tuple(map(seen, "abcd")))
    assert told.problems == ()
    assert told.partitions[0].nodes == ("a", "b", "c")


def test_a_map_that_a_lone_node_has_until_the_others_vote():
    map_ = group(0, queue="")
    learners = tuple(msgspec.structs.replace(one, voter=False) for one in map_.target[1:])
    young = msgspec.structs.replace(
        map_, replicas=(map_.replicas[0], *learners), target=(map_.target[0], *learners)
    )
    assert view(young, group(1)).problems == (
        "Partition (map) should have 3 voting replicas, and has 1.",
    )
    assert view(young, group(1), nodes=tuple(map(seen, "ab"))).problems == ()
    said = msgspec.structs.replace(young, target=map_.target)
    assert view(said, group(1)).problems == (
        "Node b is getting replicas: 1 partition to go.",
        "Node c is getting replicas: 1 partition to go.",
    )


def test_the_plan():
    moves = (
        ClusterMove(
            namespace="n",
            queue="q",
            partition=0,
            origin=(),
            to=("a", "b", "d"),
            leader="a",
            reason="under way",
            moving=True,
        ),
        ClusterMove(
            namespace="n",
            queue="q",
            partition=1,
            origin=("a", "b", "c"),
            to=("a", "b", "d"),
            leader="d",
            reason="evens out",
            moving=False,
        ),
    )
    text = text_of(plan_picture(ClusterPlan(7, moves)))
    assert "1 partition under way, 1 to come." in text
    assert "q/1 a, b, c a, b, d d evens out" in " ".join(text.split())
    assert text_of(plan_picture(ClusterPlan(8, ()))) == "Everything is where it should be."


def test_replicas_that_are_behind():
    assert view(group(1, c=10_000)).problems == ()
    (problem,) = view(group(1, c=10_001)).problems
    assert problem == "Node c is behind, by up to 10,001 log entries; it catches up by itself."


def test_what_a_node_says_of_itself_and_of_others():
    def told(kind: str, about: str, nodes: tuple[SeenNode, ...]) -> tuple[str, ...]:
        condition = SeenCondition("a", ClusterCondition(kind, about, "It is so."))
        return cluster_view(
            ClusterPicture("x", 3, nodes, (group(0, queue=""),), (), conditions=(condition,))
        ).problems

    nodes = tuple(map(seen, NAMES))
    assert told("partition_stopped", "q", nodes) == ("It is so.",), "on a follower as well"
    assert told("copy_behind", "b", nodes) == ("It is so.",)
    assert "It is so." not in told("copy_behind", "b", DOWN_B), "it is down, and that is told"
    assert told("no_majority", "a", nodes) == ("It is so.",)
    assert "It is so." not in told("no_majority", "a", DOWN_B), "partitions are named"
    assert told("no_majority", "a", nodes[1:]) == (), "a node that was removed a moment ago"
    assert told("time_ahead", "q", nodes) == (), "the view has a sentence for all nodes together"


def test_nodes_that_wait_are_named():
    told = cluster_view(
        ClusterPicture(
            "x",
            3,
            DOWN_B,
            (group(0, queue=""),),
            (),
            waiting=(ClusterWaiting("b", "2", "peer:1"), ClusterWaiting("d", "1", "peer:3")),
        )
    ).problems
    assert told[:2] == (
        "Node b was started at peer:1 without its former data, and waits. If that data is lost: "
        "querator node replace b. If it is not, start the node again on its former directory.",
        "Node d at peer:3 asks to join, and waits: its log says for what (formation.waiting).",
    )


def test_a_node_with_another_token_is_not_said_to_be_slow():
    conditions = tuple(
        SeenCondition(node, ClusterCondition(kind, about, f"{kind} of {about} by {node}."))
        for node, kind, about in (
            ("a", "token_refused", "c"),
            ("a", "copy_behind", "c"),
            ("b", "token_refused", "c"),
            ("c", "token_refused", "c"),
            ("c", "no_majority", "c"),
        )
    )
    nodes = (seen("a"), seen("b"), seen("c", connected=False))
    for number, by in ((5, "c"), (3, "a")):
        picture = ClusterPicture(
            "x", 3, nodes, (group(0, queue=""),), (), conditions=conditions[:number]
        )
        assert cluster_view(picture).problems == (f"token_refused of c by {by}.",)


def test_of_two_nodes_whose_clocks_differ_one_is_quoted():
    conditions = tuple(
        SeenCondition(node, ClusterCondition("clocks_differ", about, f"{about} by {seconds} s."))
        for node, about, seconds in (("a", "a and b", 3), ("b", "a and b", 4), ("c", "b and c", 5))
    )
    picture = ClusterPicture(
        "x", 3, tuple(map(seen, NAMES)), (group(0, queue=""),), (), conditions=conditions
    )
    assert cluster_view(picture).problems == ("a and b by 3 s.", "b and c by 5 s.")


def test_queues_for_which_something_is_left_to_do():
    pending = (
        ClusterPending("default", "new", "creating", ()),
        ClusterPending("default", "old", "deleting", ("b", "c")),
    )
    assert view(pending=pending).problems == (
        "Queue new is being created.",
        "Queue old is being deleted; waiting for b, c.",
    )


def test_one_entry_behind():
    told = view(group(0, queue=""), group(1, "a", b=1), group(2, "a", c=2))
    assert "1 entry" in shown(told)
    assert "2 entries" in shown(told)
    assert "1 entries" not in shown(told)


DAY_MS = 86_400_000
EXPIRES_MS = 1_900_000_000_000


@pytest.mark.parametrize(
    ("left_ms", "cell", "says"),
    [
        (700 * DAY_MS, "700 d", None),
        (14 * DAY_MS, "14 d", None),
        (14 * DAY_MS - 1, "13 d", "expires on 2030-03-17, in 13 days. Renew the file; no restart"),
        (DAY_MS, "1 d", "expires on 2030-03-17, in 1 day. Renew"),
        (-1, "expired", "has expired on 2030-03-17: connections to that port fail. Renew"),
    ],
)
def test_certificates_of_a_node(left_ms: int, cell: str, says: str | None):
    """Their expiry was in the logs and metrics alone."""
    shows = (
        ClusterCertificate("clients", EXPIRES_MS, 800 * DAY_MS),
        ClusterCertificate("nodes", EXPIRES_MS, left_ms),
    )
    node = msgspec.structs.replace(seen("a"), certificates=shows)
    told = view(group(0, queue=""), nodes=(node, seen("b"), seen("c")))
    assert any(line.startswith("a ") and line.endswith(cell) for line in shown(told).splitlines())
    assert [one.port for one in told.nodes[0].certificates] == ["clients", "nodes"]
    if says is None:
        assert told.problems == ()
    else:
        [problem] = told.problems
        assert problem.startswith(f"The certificate of node a for nodes {says}")
    assert "certificate" not in shown(view())


def test_how_long_ago_the_payloads_of_a_node_were_checked():
    def told(scrub: ClusterScrub) -> str:
        return shown(view(nodes=(msgspec.structs.replace(seen("a"), scrub=scrub),)))

    assert " ago" not in told(ClusterScrub())
    assert "5.0 MiB so far" in told(ClusterScrub(True, 0, 5 * MIB, 1_000))
    assert "just now" in told(ClusterScrub(True, 2, 5 * MIB, 999))
    assert "1h30m ago" in told(ClusterScrub(True, 2, 5 * MIB, 90 * 60_000))


def test_many_partitions_are_not_all_named():
    told = view(*(group(number, "") for number in range(1, 9)))
    assert told.problems[0].startswith(
        "8 partitions: q/0, q/1, q/2, q/3, q/4 and 3 more have no leader"
    )


def test_there_is_no_plan_without_a_leader_of_the_placement_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "PLACEMENT_RESTS_S", (0.0, 0.0))
    with scripted_cluster() as nodes:
        nodes.answers = {
            "GetClusterStatus": cluster_service_pb2.GetClusterStatusResponse(
                cluster_id="c",
                node="a",
                nodes=[cluster_service_pb2.ClusterNode(name="a", state="active")],
                groups=[cluster_service_pb2.ClusterGroup(group=0)],
            ),
            "GetClusterPlan": cluster_service_pb2.GetClusterPlanResponse(),
        }
        outcome = CliRunner().invoke(querator, ["cluster", "plan", "--address", nodes.address])
    assert outcome.exit_code == 4
    assert "Error: Cannot tell: the placement group has no leader." in outcome.stderr


@pytest.mark.parametrize(
    ("epochs", "code", "words"),
    [
        ([8, 9], 0, "Everything is where it should be."),
        ([8, 8, 8], 4, "the node that was asked has version 8 of the map, and another node 9"),
    ],
)
def test_the_plan_of_a_node_with_an_older_map_than_the_picture_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, epochs: list[int], code: int, words: str
) -> None:
    monkeypatch.setattr(cluster, "PLACEMENT_RESTS_S", (0.0, 0.0, 0.0))
    plans = iter(epochs)
    with scripted_cluster() as nodes:
        nodes.answers = {
            "GetClusterStatus": cluster_service_pb2.GetClusterStatusResponse(
                cluster_id="c",
                epoch=9,
                node="a",
                nodes=[cluster_service_pb2.ClusterNode(name="a", state="active")],
                groups=[cluster_service_pb2.ClusterGroup(group=0, leader="a", leads=True)],
            ),
            "GetClusterPlan": lambda _: cluster_service_pb2.GetClusterPlanResponse(
                epoch=next(plans)
            ),
        }
        outcome = CliRunner().invoke(querator, ["cluster", "plan", "--address", nodes.address])
    assert outcome.exit_code == code
    assert words in outcome.output
    assert not list(plans)
