"""Errors of calls without a result: certainly not executed, or with an unknown outcome."""

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import OVERLOADED_RETRY_MS
from querator.model.nodes import NodeKey, node_name
from querator.model.shares import Excess


def unknown(group: GroupId, why: str, error: BaseException | None = None) -> QueratorError:
    """For a call in the log whose outcome this node will not learn."""
    message = f"group {group}: {why}; the command may be applied later"
    ending = QueratorError(ErrorCode.OUTCOME_UNKNOWN, message)
    ending.__cause__ = error
    return ending


def superseded(group: GroupId, leader: NodeKey | None) -> QueratorError:
    """For a call whose entry another leader has replaced."""
    message = f"group {group} changed its leader; not executed"
    return QueratorError(ErrorCode.NOT_LEADER, message, value=_name(leader))


def stopped(group: GroupId, error: BaseException) -> QueratorError:
    """For a call to a group that a defect has stopped."""
    ending = QueratorError(ErrorCode.INTERNAL, f"group {group} is stopped by {error!r}")
    ending.__cause__ = error
    return ending


def not_leader(group: GroupId, leader: NodeKey | None) -> QueratorError:
    """For a call to a group that another node may lead."""
    message = f"this node does not lead group {group}"
    return QueratorError(ErrorCode.NOT_LEADER, message, field="leader", value=_name(leader))


def starting(group: GroupId) -> QueratorError:
    """For a call to a group that this node will lead soon."""
    return QueratorError(ErrorCode.UNAVAILABLE, f"group {group} is starting up")


def no_replica(group: GroupId) -> QueratorError:
    """For a call to a group of which this node has no replica."""
    return QueratorError(ErrorCode.NOT_LEADER, f"this node has no replica of group {group}")


def full(excess: Excess, group: GroupId, what: str) -> QueratorError:
    """For a call that is not accepted: the calls of the group, or of all groups, fill their
    share.
    """
    whose = "this node" if excess.whole else f"group {group}"
    unit = "commands" if excess.unit == "calls" else "bytes"
    value, limit = f"{excess.value} {unit}", f"{excess.limit} {unit}"
    return QueratorError(
        ErrorCode.OVERLOADED,
        f"commands of {whose} that {what} would be {value}; the limit is {limit}",
        field="node" if excess.whole else "partition",
        limit=limit,
        value=value,
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )


def being_deleted(group: GroupId) -> QueratorError:
    return QueratorError(ErrorCode.UNAVAILABLE, f"group {group} is being deleted")


def _name(leader: NodeKey | None) -> str:
    return "" if leader is None else node_name(leader)
