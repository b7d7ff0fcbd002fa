import pytest

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
    ClusterStatus,
    ClusterWaiting,
    NodeHandedOff,
    NodeReplaced,
    NodeRetired,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.v1 import cluster_service_pb2 as pb
from querator.wire import cluster

NODE = ClusterNode(
    name="a",
    incarnation="i",
    peer_address="p:1",
    client_address="c:2",
    zone="z",
    boots=3,
    version="v",
    connected=True,
    handed_off=False,
    state="draining",
    old_copy="an old copy",
)
GROUP = ClusterGroup(
    group=GroupId(7),
    namespace="n",
    queue="q",
    partition=2,
    leads=True,
    leader="a",
    preferred_leader="b",
    term=4,
    open=True,
    stopped=False,
    applied_index=99,
    replicas=(ClusterReplica(1, "a", "i", True, 0), ClusterReplica(2, "b", "j", False, 17)),
    target=(ClusterReplica(1, "a", "i", True),),
    moving=True,
    held=12,
    waits_for=(0, 5),
)
STATUS = ClusterStatus(
    cluster_id="x",
    epoch=5,
    node="a",
    nodes=(NODE,),
    groups=(GROUP,),
    pending=(ClusterPending("n", "q", "deleting", ("b", "c")),),
    clock_ahead_ms=-1_500,
    conditions=(ClusterCondition("disk_slow", "a", "The disk of node a is slow."),),
    scrub=ClusterScrub(True, 3, 4_096, 90_000),
    waiting=(ClusterWaiting("b", "k", "p:3"),),
    certificates=(
        ClusterCertificate("clients", 1_900_000_000_250, 86_400_000),
        ClusterCertificate("nodes", 1_700_000_000_000, -1_500),
    ),
)


def test_a_plan_there_and_back():
    plan = ClusterPlan(
        7,
        (
            ClusterMove(
                namespace="n",
                queue="q",
                partition=1,
                origin=("a", "b"),
                to=("a", "c"),
                leader="c",
                reason="it drains",
                moving=True,
            ),
        ),
    )
    data = cluster.encode_cluster_plan(plan)
    assert cluster.cluster_plan(pb.GetClusterPlanResponse.FromString(data)) == plan


def test_a_node_that_goes_there_and_back():
    retired = NodeRetired(NODE, 3)
    drained = pb.DrainNodeResponse.FromString(cluster.encode_drained(retired))
    removed = pb.RemoveNodeResponse.FromString(cluster.encode_removed(retired))
    assert cluster.node_retired(drained) == cluster.node_retired(removed) == retired
    request = pb.DrainNodeRequest(node="d", undo=True).SerializeToString()
    assert cluster.parse_drain(request) == ("d", True)
    assert cluster.parse_remove(pb.RemoveNodeRequest(node="d").SerializeToString()) == "d"
    for parse in (cluster.parse_drain, cluster.parse_remove):
        with pytest.raises(QueratorError, match="must not be empty"):
            parse(b"")


def test_a_status_there_and_back():
    data = cluster.encode_cluster_status(STATUS)
    assert cluster.cluster_status(pb.GetClusterStatusResponse.FromString(data)) == STATUS


def test_what_was_done_to_nodes():
    handed = NodeHandedOff("a", 3, (GroupId(1), GroupId(2)))
    message = pb.HandOffNodeResponse.FromString(cluster.encode_handed_off(handed))
    assert cluster.node_handed_off(message) == handed
    replaced = NodeReplaced(NODE, 4)
    answer = pb.ReplaceNodeResponse.FromString(cluster.encode_replaced(replaced))
    assert cluster.node_replaced(answer) == replaced


def test_requests():
    cluster.parse_cluster_status(b"")
    assert cluster.parse_hand_off(b"") == ""
    assert cluster.parse_hand_off(pb.HandOffNodeRequest(node="a").SerializeToString()) == "a"
    assert cluster.parse_replace(pb.ReplaceNodeRequest(node="a").SerializeToString()) == "a"


@pytest.mark.parametrize(
    ("node", "code"), [("", ErrorCode.INVALID_ARGUMENT), ("x" * 254, ErrorCode.LIMIT_EXCEEDED)]
)
def test_names_that_are_none(node: str, code: ErrorCode):
    with pytest.raises(QueratorError) as caught:
        cluster.parse_replace(pb.ReplaceNodeRequest(node=node).SerializeToString())
    assert (caught.value.code, caught.value.field) == (code, "node")
