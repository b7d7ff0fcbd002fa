"""Requests and answers of ClusterService: nodes, leaders of groups, progress of replicas. Answers
are converted in both directions, because the SDK reads them with this module.
"""

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
from querator.model.errors import invalid, over_limit
from querator.model.ids import GroupId
from querator.model.limits import NODE_NAME_CHARS_MAX
from querator.v1 import cluster_service_pb2 as pb
from querator.wire import field_checks


def parse_cluster_status(data: bytes) -> None:
    field_checks.parse_message(pb.GetClusterStatusRequest, data)


def parse_cluster_plan(data: bytes) -> None:
    field_checks.parse_message(pb.GetClusterPlanRequest, data)


def parse_hand_off(data: bytes) -> str:
    """The name of the node; empty: the node that is asked."""
    return _check_name(field_checks.parse_message(pb.HandOffNodeRequest, data).node)


def parse_replace(data: bytes) -> str:
    """The name of the node."""
    return _required_name(field_checks.parse_message(pb.ReplaceNodeRequest, data).node)


def parse_drain(data: bytes) -> tuple[str, bool]:
    """The name of the node, and whether to undo its draining."""
    request = field_checks.parse_message(pb.DrainNodeRequest, data)
    return _required_name(request.node), request.undo


def parse_remove(data: bytes) -> str:
    """The name of the node."""
    return _required_name(field_checks.parse_message(pb.RemoveNodeRequest, data).node)


def parse_readmit(data: bytes) -> str:
    """The name of the node."""
    return _required_name(field_checks.parse_message(pb.ReadmitNodeRequest, data).node)


def _required_name(name: str) -> str:
    if not name:
        raise invalid("node", "must not be empty")
    return _check_name(name)


def _check_name(name: str) -> str:
    if len(name) > NODE_NAME_CHARS_MAX:
        raise over_limit("node", value=len(name), limit=NODE_NAME_CHARS_MAX, unit="characters")
    return name


def encode_cluster_status(status: ClusterStatus) -> bytes:
    return pb.GetClusterStatusResponse(
        cluster_id=status.cluster_id,
        epoch=status.epoch,
        node=status.node,
        nodes=map(_node_message, status.nodes),
        groups=map(_group_message, status.groups),
        pending=[
            pb.ClusterPending(
                namespace=one.namespace,
                queue=one.queue,
                doing=one.doing,
                waits_for=one.waits_for,
            )
            for one in status.pending
        ],
        clock_ahead=field_checks.signed_duration(status.clock_ahead_ms),
        conditions=[
            pb.ClusterCondition(kind=one.kind, about=one.about, sentence=one.sentence)
            for one in status.conditions
        ],
        scrub=pb.ClusterScrub(
            on=status.scrub.on,
            rounds=status.scrub.rounds,
            round_bytes=status.scrub.round_bytes,
            age=field_checks.signed_duration(status.scrub.age_ms),
        ),
        waiting=[
            pb.ClusterWaiting(
                name=one.name, incarnation=one.incarnation, peer_address=one.peer_address
            )
            for one in status.waiting
        ],
        certificates=[
            pb.ClusterCertificate(
                port=one.port,
                expires_at=field_checks.timestamp(one.expires_at_ms),
                left=field_checks.signed_duration(one.left_ms),
            )
            for one in status.certificates
        ],
    ).SerializeToString()


def encode_cluster_plan(plan: ClusterPlan) -> bytes:
    return pb.GetClusterPlanResponse(
        epoch=plan.epoch,
        moves=[
            pb.ClusterMove(
                namespace=move.namespace,
                queue=move.queue,
                partition=move.partition,
                origin=move.origin,
                to=move.to,
                leader=move.leader,
                reason=move.reason,
                moving=move.moving,
            )
            for move in plan.moves
        ],
    ).SerializeToString()


def encode_handed_off(handed: NodeHandedOff) -> bytes:
    return pb.HandOffNodeResponse(
        node=handed.node, moved=handed.moved, left=handed.left
    ).SerializeToString()


def encode_replaced(replaced: NodeReplaced) -> bytes:
    return pb.ReplaceNodeResponse(
        node=_node_message(replaced.node), partitions=replaced.partitions
    ).SerializeToString()


def encode_drained(retired: NodeRetired) -> bytes:
    node = _node_message(retired.node)
    return pb.DrainNodeResponse(node=node, partitions=retired.partitions).SerializeToString()


def encode_removed(retired: NodeRetired) -> bytes:
    node = _node_message(retired.node)
    return pb.RemoveNodeResponse(node=node, partitions=retired.partitions).SerializeToString()


def encode_readmitted() -> bytes:
    return pb.ReadmitNodeResponse().SerializeToString()


def _node_message(node: ClusterNode) -> pb.ClusterNode:
    return pb.ClusterNode(
        name=node.name,
        incarnation=node.incarnation,
        peer_address=node.peer_address,
        client_address=node.client_address,
        zone=node.zone,
        boots=node.boots,
        version=node.version,
        connected=node.connected,
        handed_off=node.handed_off,
        state=node.state,
        old_copy=node.old_copy,
    )


def _group_message(group: ClusterGroup) -> pb.ClusterGroup:
    return pb.ClusterGroup(
        group=group.group,
        namespace=group.namespace,
        queue=group.queue,
        partition=group.partition,
        leads=group.leads,
        leader=group.leader,
        preferred_leader=group.preferred_leader,
        term=group.term,
        open=group.open,
        stopped=group.stopped,
        applied_index=group.applied_index,
        replicas=map(_replica_message, group.replicas),
        target=map(_replica_message, group.target),
        moving=group.moving,
        closing=group.closing,
        held=group.held,
        waits_for=group.waits_for,
        damaged_blocks=group.damaged_blocks,
        damaged_items=group.damaged_items,
        time_ahead=field_checks.signed_duration(group.time_ahead_ms),
        waits_for_clock=group.waits_for_clock,
    )


def _replica_message(replica: ClusterReplica) -> pb.ClusterReplica:
    return pb.ClusterReplica(
        id=replica.id,
        node=replica.node,
        incarnation=replica.incarnation,
        voter=replica.voter,
        followed=replica.lag_entries is not None,
        lag_entries=replica.lag_entries or 0,
    )


# --- decoding of answers, for the SDK ------------------------------------------------------


def cluster_status(message: pb.GetClusterStatusResponse) -> ClusterStatus:
    return ClusterStatus(
        cluster_id=message.cluster_id,
        epoch=message.epoch,
        node=message.node,
        nodes=tuple(map(_node, message.nodes)),
        groups=tuple(map(_group, message.groups)),
        pending=tuple(
            ClusterPending(one.namespace, one.queue, one.doing, tuple(one.waits_for))
            for one in message.pending
        ),
        clock_ahead_ms=message.clock_ahead.ToMilliseconds(),
        conditions=tuple(
            ClusterCondition(one.kind, one.about, one.sentence) for one in message.conditions
        ),
        scrub=ClusterScrub(
            message.scrub.on,
            message.scrub.rounds,
            message.scrub.round_bytes,
            message.scrub.age.ToMilliseconds(),
        ),
        waiting=tuple(
            ClusterWaiting(one.name, one.incarnation, one.peer_address) for one in message.waiting
        ),
        certificates=tuple(
            ClusterCertificate(one.port, one.expires_at.ToMilliseconds(), one.left.ToMilliseconds())
            for one in message.certificates
        ),
    )


def cluster_plan(message: pb.GetClusterPlanResponse) -> ClusterPlan:
    return ClusterPlan(
        epoch=message.epoch,
        moves=tuple(
            ClusterMove(
                namespace=move.namespace,
                queue=move.queue,
                partition=move.partition,
                origin=tuple(move.origin),
                to=tuple(move.to),
                leader=move.leader,
                reason=move.reason,
                moving=move.moving,
            )
            for move in message.moves
        ),
    )


def node_handed_off(message: pb.HandOffNodeResponse) -> NodeHandedOff:
    return NodeHandedOff(message.node, message.moved, tuple(map(GroupId, message.left)))


def node_replaced(message: pb.ReplaceNodeResponse) -> NodeReplaced:
    return NodeReplaced(_node(message.node), message.partitions)


def node_retired(message: pb.DrainNodeResponse | pb.RemoveNodeResponse) -> NodeRetired:
    return NodeRetired(_node(message.node), message.partitions)


def _node(message: pb.ClusterNode) -> ClusterNode:
    return ClusterNode(
        name=message.name,
        incarnation=message.incarnation,
        peer_address=message.peer_address,
        client_address=message.client_address,
        zone=message.zone,
        boots=message.boots,
        version=message.version,
        connected=message.connected,
        handed_off=message.handed_off,
        state=message.state,
        old_copy=message.old_copy,
    )


def _group(message: pb.ClusterGroup) -> ClusterGroup:
    return ClusterGroup(
        group=GroupId(message.group),
        namespace=message.namespace,
        queue=message.queue,
        partition=message.partition,
        leads=message.leads,
        leader=message.leader,
        preferred_leader=message.preferred_leader,
        term=message.term,
        open=message.open,
        stopped=message.stopped,
        applied_index=message.applied_index,
        replicas=tuple(map(_replica, message.replicas)),
        target=tuple(map(_replica, message.target)),
        moving=message.moving,
        closing=message.closing,
        held=message.held,
        waits_for=tuple(message.waits_for),
        damaged_blocks=message.damaged_blocks,
        damaged_items=message.damaged_items,
        time_ahead_ms=message.time_ahead.ToMilliseconds(),
        waits_for_clock=message.waits_for_clock,
    )


def _replica(message: pb.ClusterReplica) -> ClusterReplica:
    return ClusterReplica(
        id=message.id,
        node=message.node,
        incarnation=message.incarnation,
        voter=message.voter,
        lag_entries=message.lag_entries if message.followed else None,
    )
