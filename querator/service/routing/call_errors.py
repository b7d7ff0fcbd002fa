"""Errors of calls without an answer, with reasons that a client can act on: the partition, the node
that should lead it, and the missing nodes.
"""

import asyncio
from collections.abc import Callable, Collection

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP
from querator.model.limits import LEADER_WAIT_MS_MAX, OVERLOADED_RETRY_MS
from querator.model.nodes import node_name
from querator.model.placement_map import PlacementMap
from querator.model.queues import QueueState
from querator.service.routing.outcomes import NOT_EXECUTED, deleting_error
from querator.service.routing.route import PartitionRoute

_FAILED = (ErrorCode.STORAGE_FAILED, ErrorCode.INTERNAL)


class CallErrors:
    """`out_of_reach` returns the nodes that this node's raft package has no connection to;
    `others`: whether there are other nodes at all.
    """

    def __init__(
        self,
        placed: Callable[[], PlacementMap],
        out_of_reach: Callable[[], Collection[str]],
        *,
        others: bool,
    ) -> None:
        self._placed = placed
        self._out_of_reach = out_of_reach
        self._others = others

    def is_alive(self, route: PartitionRoute) -> bool:
        """Whether the group is in the map, and its queue is not being deleted."""
        if route.group == PLACEMENT_GROUP:
            return True
        owner = self._placed().by_group(route.group)
        return owner is not None and owner[0].state is not QueueState.DELETING

    def name(self, route: PartitionRoute) -> str:
        if route.group == PLACEMENT_GROUP:
            return "the placement group"
        owner = self._placed().by_group(route.group)
        if owner is None:
            return "a partition of a deleted queue"
        queue, partition = owner
        return f"partition {partition} of queue {queue.name}"

    def _number(self, route: PartitionRoute) -> str:
        owner = self._placed().by_group(route.group)
        return "" if owner is None else str(owner[1])

    def unanswered(self, route: PartitionRoute) -> QueratorError:
        """The deadline passed after the command was accepted."""
        return QueratorError(
            ErrorCode.OUTCOME_UNKNOWN,
            f"{self.name(route)} did not answer before the deadline{self._missing(route)}; repeat "
            "the request with the same identity",
            field="partition",
            value=self._number(route),
        )

    def unproved(self, route: PartitionRoute, node: str) -> QueratorError:
        """The deadline passed before the node confirmed that it leads."""
        return QueratorError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"node {node} did not say before the deadline whether it leads {self.name(route)}; not "
            f"executed",
        )

    def leaderless(
        self, route: PartitionRoute, deadline: float | None, unknown: QueratorError | None
    ) -> QueratorError:
        """No leader appeared to which a call could send its command; `unknown`: outcome of an
        earlier attempt.
        """
        reason = f"{self.name(route)} has no leader{self._missing(route)}"
        if route.leader:
            reason = f"{self.name(route)} is led by {route.leader}, which cannot be reached"
        if unknown is not None:
            return QueratorError(
                unknown.code,
                f"{unknown.message}; after that {reason}",
                field=unknown.field,
                value=unknown.value,
            )
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            message = f"{reason}; not executed before the deadline"
            return QueratorError(ErrorCode.DEADLINE_EXCEEDED, message)
        return QueratorError(ErrorCode.NOT_LEADER, reason, retry_delay_ms=LEADER_WAIT_MS_MAX // 10)

    def is_cut_off(self, route: PartitionRoute) -> bool:
        """Whether too many replicas are out of reach for this node to hear of a leader."""
        replicas, missing = self._replicas(route)
        return replicas - len(missing) <= replicas // 2 < replicas - 1

    def cut_off(self, route: PartitionRoute, unknown: QueratorError | None) -> QueratorError:
        """This node cannot reach a leader of the partition; nodes on the other side of the network
        split may. `unknown`: outcome of an earlier attempt.
        """
        if unknown is not None:
            return self.leaderless(route, None, unknown)
        message = f"{self.name(route)} has no leader{self._missing(route)}; not executed"
        return QueratorError(ErrorCode.UNAVAILABLE, message)

    def hangs(self, route: PartitionRoute) -> QueratorError:
        """This node led the partition, and its raft thread hangs."""
        message = (
            f"the node that led {self.name(route)} hangs: its disk does not answer; not executed"
        )
        return QueratorError(ErrorCode.UNAVAILABLE, message)

    def _missing(self, route: PartitionRoute) -> str:
        """What follows the partition's lack in a sentence: the nodes with replicas that are out of
        reach.
        """
        missing = self._replicas(route)[1]
        return f" ({', '.join(missing)} unreachable)" if missing else ""

    def _replicas(self, route: PartitionRoute) -> tuple[int, list[str]]:
        """Number of replicas, and the nodes of those that are out of reach."""
        nodes = [node_name(replica.node) for replica in self._placed().replicas(route.group)]
        return len(nodes), sorted(set(nodes).intersection(self._out_of_reach()))

    def located(self, route: PartitionRoute, error: QueratorError) -> QueratorError:
        """The error, completed with the partition, the delay before a retry, or the deletion of the
        queue. A failed replica is no reason to give up where there are others: another node will
        lead.
        """
        if self._others and error.code in _FAILED:
            message = f"a replica of {self.name(route)} has failed; not executed: {error.message}"
            return QueratorError(ErrorCode.UNAVAILABLE, message)
        if error.code in NOT_EXECUTED and not self.is_alive(route):
            return deleting_error()
        if error.code is ErrorCode.OUTCOME_UNKNOWN and error.field != "partition":
            message = f"{self.name(route)}: {error.message}"
            return QueratorError(error.code, message, field="partition", value=self._number(route))
        if error.code is ErrorCode.OVERLOADED and error.retry_delay_ms is None:
            return QueratorError(error.code, error.message, retry_delay_ms=OVERLOADED_RETRY_MS)
        return error
