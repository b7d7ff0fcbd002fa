"""Sentences about one node of a cluster: why it does not answer, what it waits for, its clock and
its certificates.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from querator.cli.shared.output import count
from querator.client.cluster import SeenNode
from querator.client.errors import ConnectionFault
from querator.model.cluster import ClusterWaiting
from querator.model.limits import CLOCK_SKEW_MS_MAX

CERTIFICATE_DAYS_MIN = 14
"""A certificate that expires sooner is reported."""
DAY_MS = 86_400_000
SILENT_STATES = ("down", "hangs", "starting", "unreachable", "not asked")
"""States of nodes that do not answer the client. `starting`: the other nodes are connected to it,
and nothing listens at its address for clients, as of a node that starts or stops.
"""
_OUT_OF_REACH = (ConnectionFault.UNREACHABLE, ConnectionFault.NAME_UNKNOWN)


def node_problems(
    seen: SeenNode,
    partitions_left: int,
    waiting: ClusterWaiting | None,
    refused: bool,
) -> Iterable[str]:
    """`partitions_left`: those with a replica on the node. `waiting`: a process with the node's
    name that waits without its data. `refused`: another sentence says that the others refuse the
    node.
    """
    name = seen.node.name
    if seen.node.state != "active":
        yield _retiring(seen, partitions_left)
    elif seen.fault:
        yield f"Node {name} cannot be asked. {seen.fault}"
    elif seen.silent and waiting is not None:
        yield (
            f"Node {name} was started at {waiting.peer_address} without its former data, and "
            f"waits. If that data is lost: querator node replace {name}. If it is not, start the "
            "node again on its former directory."
        )
    elif seen.silent:
        yield _silent(seen)
    elif seen.node.handed_off:
        yield f"Node {name} has handed off and leads nothing until it starts again."
    elif not seen.node.connected and not refused:
        yield (
            f"Node {name} answers, but the node that was asked has no connection to it at "
            f"{seen.node.peer_address}."
        )
    if seen.old_copy:
        yield f"A process that started as node {name} was refused: {seen.old_copy}."
    yield from _certificates(seen)
    if abs(seen.clock_ahead_ms) > CLOCK_SKEW_MS_MAX:
        yield _clock(seen)


def silent_state(seen: SeenNode) -> str:
    """One of `SILENT_STATES`."""
    if seen.fault:
        return "not asked"
    if seen.cause is ConnectionFault.SILENT:
        return "hangs"
    if seen.cause in _OUT_OF_REACH:
        return "unreachable"
    if seen.cause is ConnectionFault.REFUSED and seen.node.connected:
        return "starting"
    return "down"


def _silent(seen: SeenNode) -> str:
    """What a node that does not answer looks like, and what to do."""
    name, why = seen.node.name, seen.silent.rstrip(".")
    state = silent_state(seen)
    if state == "hangs":
        return (
            f"Node {name} hangs: {why}. Its process is there. It may be stopped, get no CPU or "
            "memory, or wait for its disk: its log and its machine say more. Do not start a second "
            "process. If this lasts, restart the node."
        )
    if state == "starting":
        return (
            f"Node {name} starts or stops: other nodes are connected to it, and it does not accept "
            f"clients ({why}). Wait. If this lasts, its log says what it waits for."
        )
    if seen.node.connected:
        return (
            f"Node {name} does not answer ({why}), and other nodes are connected to it. Its event "
            "loop may hang, or the network between it and this command is cut. If this lasts, "
            "restart the node."
        )
    if state == "unreachable":
        return (
            f"Node {name} is out of reach: {why}. Its machine is down, or the network to it is "
            "cut: check these. When the machine can be reached, start the node if it does not run. "
            "It catches up by itself."
        )
    return (
        f"Node {name} is down: {why}. Start it again: it catches up by itself. If it was started "
        "a moment ago, wait. If it ends or waits, its log says why. Only if its data is lost, "
        f"start it with an empty directory and then: querator node replace {name}"
    )


def _certificates(seen: SeenNode) -> Iterable[str]:
    for one in seen.certificates:
        day = datetime.fromtimestamp(one.expires_at_ms / 1000, UTC).date()
        days = one.left_ms // DAY_MS
        if one.left_ms <= 0:
            when = f"has expired on {day}: connections to that port fail"
        elif days < CERTIFICATE_DAYS_MIN:
            when = f"expires on {day}, in {count(days, 'day')}"
        else:
            continue
        yield (
            f"The certificate of node {seen.node.name} for {one.port} {when}. Renew the file; no "
            "restart is needed."
        )


def _retiring(seen: SeenNode, left: int) -> str:
    name = seen.node.name
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
