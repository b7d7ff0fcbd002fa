"""The parts of a node that the admin port observes, while they exist."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from querator.model.cluster import ClusterCertificate
from querator.storage.identity import DirectoryRefused

if TYPE_CHECKING:
    from querator.placement.placement import Placement
    from querator.raft.host import Host
    from querator.raft.tcp.tcp_peers import TcpPeers
    from querator.server.calls.call_counts import CallCounts
    from querator.server.incoming import Incoming
    from querator.service.conditions import Conditions
    from querator.service.queue_service import QueueService
    from querator.service.repair.scrub import Scrub
    from querator.storage.environment import Environment
    from querator.storage.identity import Identity


@dataclass(slots=True)
class Observed:
    """The node sets the parts. None: not started yet, or ended. On the event loop."""

    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    """When the node was created."""
    waits_for: str = ""
    """What the start waits for, as text; empty: nothing in particular."""
    identity: "Identity | None" = None
    environment: "Environment | None" = None
    peers: "TcpPeers | None" = None
    """None also for a single node."""
    host: "Host | None" = None
    placement: "Placement | None" = None
    service: "QueueService | None" = None
    conditions: "Conditions | None" = None
    scrub: "Scrub | None" = None
    calls: "CallCounts | None" = None
    """Set as soon as clients are served."""
    incoming: "Incoming | None" = None
    handed_off: bool = False
    certificates: dict[str, Callable[[], float | None]] = field(default_factory=dict)
    """By port (clients, nodes): Unix time at which its loaded certificate expires; None: not known.
    """
    stopping: bool = False
    failure: BaseException | None = None


def certificates(observed: Observed) -> tuple[ClusterCertificate, ...]:
    """The certificates of the node's ports whose expiry is known."""
    now_ms = time.time_ns() // 1_000_000
    found = {port: expires_at_s() for port, expires_at_s in observed.certificates.items()}
    return tuple(
        ClusterCertificate(port, int(at_s * 1000), int(at_s * 1000) - now_ms)
        for port, at_s in found.items()
        if at_s is not None
    )


def why_failed(failure: BaseException) -> str:
    """Why the node ends. A refusal of its data is a sentence by itself, and no failure of the
    node.
    """
    if isinstance(failure, DirectoryRefused):
        return str(failure)
    return f"the node has failed: {failure!r}"
