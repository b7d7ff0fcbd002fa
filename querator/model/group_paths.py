"""Paths of groups in fair queues: parts with dots between them, the parent first."""

from querator.model.errors import QueratorError, invalid, over_limit
from querator.model.limits import GROUP_BYTES_MAX, GROUP_DEPTH_MAX

_SHOWN_CHARS = 128
"""Part of a refused path that its error shows."""


def check_group_path(path: str, *, field: str) -> None:
    """Raises INVALID_ARGUMENT, LIMIT_EXCEEDED. An empty path is refused: it is no group."""
    size = len(path.encode())
    if size > GROUP_BYTES_MAX:
        raise over_limit(field, value=size, limit=GROUP_BYTES_MAX, unit="bytes")
    depth = path.count(".") + 1
    if depth > GROUP_DEPTH_MAX:
        raise over_limit(field, value=depth, limit=GROUP_DEPTH_MAX, unit="levels")
    if not all(path.split(".")):
        raise invalid(field, "has an empty part", value=path[:_SHOWN_CHARS])


def is_group_path(path: str) -> bool:
    try:
        check_group_path(path, field="group")
    except QueratorError:
        return False
    return True
