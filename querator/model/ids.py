"""Identifiers, and their text forms for clients.

* An item id is `partition-seq`: stable for the item's life in its queue.
* A lease id is opaque to clients. It carries the group (never reused, so an id of a deleted queue
  never matches its successor), the partition (for routing) and the lease number, which the
  partition counts.
* The request id of a lease for a consumer's stream names both, so that the partition knows what was
  leased for the stream.
"""

import re
from functools import lru_cache
from typing import Final, NewType

from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.limits import NAME_CHARS_MAX

QueueId = NewType("QueueId", int)
"""Names one incarnation of a queue; never reused."""
GroupId = NewType("GroupId", int)
"""Names one Raft group; never reused. Group 0 is the placement group."""
PartitionNumber = NewType("PartitionNumber", int)
"""Position of a partition in its queue, from 0."""
Seq = NewType("Seq", int)
"""Position of an item in its partition, from 1; never reused."""
LeaseNumber = NewType("LeaseNumber", int)
"""Number of a lease in its partition, from 1; never reused. With the group it is the fencing
token.
"""

PLACEMENT_GROUP = GroupId(0)
DEFAULT_NAMESPACE = "default"

_U64_MAX = 2**64 - 1
_NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]+", re.ASCII)
_ITEM_ID = re.compile(r"(0|[1-9][0-9]{0,3})-([1-9][0-9]{0,19})", re.ASCII)
_STREAM_REQUEST_ID = re.compile(r"(.+)/([1-9][0-9]{0,9})/[^/]*", re.ASCII | re.DOTALL)
_LEASE_ID = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{1,4})\.([0-9a-f]{1,16})", re.ASCII)
_LEASE_ID_LENGTH_MAX: Final = 38
_LEASE_IDS_KEPT: Final = 4_096


def check_name(text: str, *, field: str) -> str:
    """Returns the name of a queue or a namespace. Raises INVALID_ARGUMENT and LIMIT_EXCEEDED that
    name `field`.
    """
    if not text:
        raise invalid(field, "must not be empty")
    if len(text) > NAME_CHARS_MAX:
        raise over_limit(field, value=len(text), limit=NAME_CHARS_MAX, unit="characters")
    if _NAME.fullmatch(text) is None:
        rule = "a name is made of A-Z a-z 0-9 . _ -, and is not . or .."
        raise invalid(field, f"is {text[:64]!r}; {rule}", value=text)
    return text


def format_item_id(partition: PartitionNumber, seq: Seq) -> str:
    return f"{partition}-{seq}"


def parse_item_id(text: str, *, field: str) -> tuple[PartitionNumber, Seq]:
    """Raises INVALID_ARGUMENT naming `field`."""
    match = _ITEM_ID.fullmatch(text)
    if match is None or int(match[2]) > _U64_MAX:
        raise QueratorError(
            ErrorCode.INVALID_ARGUMENT,
            f"{field}: {text[:64]!r} is not an item id (partition-seq, for example 0-17)",
            field=field,
            value=text[:64],
        )
    return PartitionNumber(int(match[1])), Seq(int(match[2]))


def format_lease_id(group: GroupId, partition: PartitionNumber, lease: LeaseNumber) -> str:
    return f"{group:x}.{partition:x}.{lease:x}"


def parse_lease_id(text: str, *, field: str) -> tuple[GroupId, PartitionNumber, LeaseNumber]:
    """Raises INVALID_ARGUMENT naming `field`."""
    found = _lease_id(text) if len(text) <= _LEASE_ID_LENGTH_MAX else None
    if found is None:
        raise QueratorError(
            ErrorCode.INVALID_ARGUMENT,
            f"{field}: {text[:64]!r} is not a lease id",
            field=field,
            value=text[:64],
        )
    return found


@lru_cache(_LEASE_IDS_KEPT)
def _lease_id(text: str) -> tuple[GroupId, PartitionNumber, LeaseNumber] | None:
    # Cached: a lease id is parsed at delivery, at settlement and in the answer to that.
    match = _LEASE_ID.fullmatch(text)
    if match is None:
        return None
    group, partition, lease = (int(part, 16) for part in match.groups())
    return GroupId(group), PartitionNumber(partition), LeaseNumber(lease)


def stream_request_id(consumer_id: str, stream_number: int, name: str) -> str:
    """The request id of a stream's lease. `name` has no slash."""
    return f"{consumer_id}/{stream_number}/{name}"


def parse_stream_request_id(text: str) -> tuple[str, int] | None:
    """The consumer and the number of its stream; None if it is another kind of request id."""
    match = _STREAM_REQUEST_ID.fullmatch(text)
    return None if match is None else (match[1], int(match[2]))
