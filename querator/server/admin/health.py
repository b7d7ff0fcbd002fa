"""Whether the node lives, and whether it can serve; if not, the reasons as text.

A node is *not live* if only a restart helps: the raft thread hangs, or the node has failed and has
not ended. A node that waits for others, recovers, or has lost its majority is live. A node is
*ready* if clients should be sent to it. A partition that is stopped, or is being created, does not
make the node unready. A node that starts is not ready while its replicas are built: a rolling
restart that went on to the next node could take the majority from a partition.

A node with full storage is ready, too. It serves leases and completes, by which it gets space
again. In a cluster without space, all nodes would be unready, and no consumer could empty a queue.
`notes` says that it is full.
"""

from typing import Final

from querator.model.nodes import node_name
from querator.model.queues import QueueState
from querator.raft.status import GroupStatus
from querator.raft.turn.liveness import STALLED_S_MAX
from querator.server.admin.admin_view import Observed, why_failed

_NAMED_MAX: Final = 5
"""Limit of partitions that a reason names one by one."""


class Health:
    """Health of one node. On the event loop."""

    def __init__(self, observed: Observed, *, stalled_s_max: float = STALLED_S_MAX) -> None:
        self._observed = observed
        self._stalled_s_max = stalled_s_max
        self._opened = False
        """Whether all partitions have been open and built at once; later ones do not make it
        unready.
        """

    def stalled_s(self) -> float:
        """As `Liveness.stalled_s`; 0 while there is no raft thread."""
        host = self._observed.host
        return 0.0 if host is None else host.liveness.stalled_s()

    def dead(self) -> list[str]:
        """Reasons why the node must be restarted; empty: it lives."""
        reasons = []
        if self._observed.failure is not None:
            reasons.append(why_failed(self._observed.failure))
        stalled_s = self.stalled_s()
        if stalled_s > self._stalled_s_max:
            reasons.append(
                f"the raft thread has not ended its turn or wait for {stalled_s:.0f} s; "
                f"the limit is {self._stalled_s_max:.0f} s"
            )
        return reasons

    def missing(self) -> list[str]:
        """Conditions that are missing before the node can serve clients; empty: it is ready."""
        observed = self._observed
        missing = self.dead()
        if observed.stopping:
            missing.append("the node is stopping")
        elif observed.handed_off:
            missing.append("the node has handed off: it leads nothing until it starts again")
        if observed.waits_for:
            missing.append(f"the start waits for {observed.waits_for}")
        if observed.environment is None:
            missing.append("the storage is not open")
        elif observed.placement is None or observed.host is None:
            missing.append("the placement map is not known")
        elif observed.calls is None:
            missing.append("clients are not served yet")
        missing += self._incomplete_partitions()
        missing += self._wrong_token()
        if self._is_cut_off():
            missing.append("no group of this node knows a leader")
        return missing

    def _wrong_token(self) -> list[str]:
        conditions, host = self._observed.conditions, self._observed.host
        if conditions is None or host is None:
            return []
        own = node_name(host.node)
        return [
            one.sentence
            for one in conditions.present
            if one.kind == "token_refused" and one.about == own
        ]

    def notes(self) -> list[str]:
        """What a ready node cannot do."""
        conditions = self._observed.conditions
        present = () if conditions is None else conditions.present
        return [one.sentence for one in present if one.kind == "storage_full"]

    def _incomplete_partitions(self) -> list[str]:
        """Partitions of this node that are not open, or whose replica here does not vote yet, until
        there were none at once since the start.
        """
        observed = self._observed
        if self._opened or observed.placement is None or observed.host is None:
            return []
        placed, host = observed.placement.map, observed.host
        closed: list[str] = []
        building: list[str] = []
        for queue in placed:
            if queue.state is not QueueState.ACTIVE:
                continue
            for partition, group in enumerate(queue.groups):
                where = placed.placed(group)
                planned = None if where is None else where.replica_on(host.node)
                if planned is None:
                    continue
                status = host.status(group)
                if status is None:
                    closed.append(f"{queue.name}/{partition}")
                elif planned.voter and not _votes(status):
                    building.append(f"{queue.name}/{partition}")
        if not closed and not building:
            self._opened = observed.calls is not None
        return [
            *_listed("partitions are not open", closed),
            *_listed("replicas are being built", building),
        ]

    def _is_cut_off(self) -> bool:
        host = self._observed.host
        if host is None or self._observed.calls is None:
            return False
        statuses = [host.status(group) for group in host.groups()]
        return all(status is None or status.leader is None for status in statuses)


def _votes(status: GroupStatus) -> bool:
    """Whether this node's replica votes, by the last configuration in its log."""
    return any(one.id == status.replica and one.voter for one in status.replicas)


def _listed(what: str, partitions: list[str]) -> list[str]:
    if not partitions:
        return []
    more = len(partitions) - _NAMED_MAX
    also = f" and {more} more" if more > 0 else ""
    return [f"{what}: {', '.join(partitions[:_NAMED_MAX])}{also}"]
