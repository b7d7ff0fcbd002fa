"""Checks that every run makes at its end, whatever its nodes consist of."""

from collections.abc import Callable, Iterable, Mapping

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.raft.status import GroupStatus
from tests.checkers import report
from tests.checkers.history import History
from tests.simulation.clock import NodeClock
from tests.simulation.node import SimulatedNode

Leader = Callable[[GroupId], tuple[SimulatedNode, GroupStatus] | None]


def unequal(
    groups: Iterable[GroupId], leader_of: Leader, nodes: Mapping[NodeKey, SimulatedNode]
) -> str:
    """The replica that is not where its leader is; empty when all are equal."""
    for group in groups:
        found = leader_of(group)
        if found is None:
            return f"group {group} has no leader"
        leader, status = found
        if status.applied_index < status.commit_index:
            return f"group {group}: {leader.name} has not stored what is committed"
        for replica in status.replicas:
            node = nodes[replica.node]
            other = None if node.turns is None else node.turns.status(group)
            if other is None:
                return f"{node.name} does not serve group {group}"
            if other.applied_index != status.applied_index:
                return (
                    f"group {group}: {node.name} has applied {other.applied_index}, its leader "
                    f"{status.applied_index} of {status.log_last}"
                )
    return ""


def uncertainty_ms(clocks: list[NodeClock]) -> float:
    """How far clocks were apart at most, and what counts as now. The clients' own are right."""
    for clock in clocks:
        clock.step(0)
    earliest = min(0, *(clock.earliest_ms for clock in clocks))
    latest = max(0, *(clock.latest_ms for clock in clocks))
    return latest - earliest + 100


def check_history(
    history: History, clocks: list[NodeClock], found: Callable[[str], None], *, steps_max: int
) -> int:
    """Has all checkers check the history. Returns how much could not be decided, which is reported
    as a violation too.
    """
    history.clock_uncertainty_s = uncertainty_ms(clocks) / 1000
    checked = report.check(history, steps_max=steps_max)
    for text in checked.undecided:
        found(f"history, undecided: {text}")
    for text in checked.violations:
        found(f"history: {text}")
    return len(checked.undecided)
