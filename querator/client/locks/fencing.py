"""Fencing tokens: one number for each time that a lock is held, which grows from holder to holder.

A lease id has the Raft group of the partition and the number of the lease in it. All tokens of a
lock are in partition 0 of its queue, also after the number of partitions was changed
(`tokens.TOKEN_KEY`). The partition counts its leases in its replicated state: a later lease has a
higher number on every leader. A queue that is deleted and made again has another group, and the
placement group counts those: a later one is higher, too. So (group, number) grows. Both are packed
into one number, so that a column of 64 bits, signed, has room for it.
"""

from typing import Final

from querator.model.ids import parse_lease_id

_NUMBER_BITS: Final = 40
"""A lock that changes its holder 1,000 times a second uses them up in 34 years."""
_GROUP_BITS: Final = 23
"""A cluster that makes a partition each minute uses them up in 15 years."""


def fencing_token(lease_id: str) -> int:
    """The number, from 1 to 2**63 - 1. Raises OverflowError rather than a number that is too low:
    the cluster has made more partitions, or the lock has had more holders, than a number has room
    for.
    """
    group, _, number = parse_lease_id(lease_id, field="lease_id")
    if group >> _GROUP_BITS or number >> _NUMBER_BITS:
        raise OverflowError(
            f"lease {lease_id} has no fencing token: its group must be below 2**{_GROUP_BITS}, and "
            f"its number below 2**{_NUMBER_BITS}"
        )
    return group << _NUMBER_BITS | number
