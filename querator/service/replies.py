"""What a caller gets for its leases, read just when the reply is made.

Payloads are not carried through memory from the grant to the reply: they are read from a snapshot,
which the grant's commit precedes. A block that is gone by then (its lease has lapsed and the items
were completed by somebody else) is left out. A lease that has less than half of its time left is
not worth delivering: it is given back to be released politely.
"""

from collections.abc import Sequence

from querator.model.calls import LeasedBatch
from querator.model.ids import LeaseNumber, PartitionNumber, format_lease_id
from querator.model.queues import Queue
from querator.partition import queries
from querator.service.waiters import Grant
from querator.storage.environment import Environment


def load(
    environment: Environment, queue: Queue, grants: Sequence[Grant], *, now_s: float
) -> tuple[list[LeasedBatch], list[Grant]]:
    """The batches to deliver, and the leases to release instead. `now_s` by the monotonic clock."""
    batches: list[LeasedBatch] = []
    late: list[Grant] = []
    with environment.snapshot() as txn:
        for grant in grants:
            remaining_s = grant.expires_s - now_s
            if remaining_s * 2 < grant.length_s and not grant.repeated:
                late.append(grant)
                continue
            group = grant.view.group
            partition = PartitionNumber(queue.groups.index(group))
            lease_id = format_lease_id(group, partition, LeaseNumber(grant.lease))
            for segment in grant.segments:
                loaded = queries.load_segment(txn, group, segment.first_seq, segment.mask)
                if loaded is None:
                    continue
                batches.append(
                    LeasedBatch(
                        lease_id,
                        queue.name,
                        partition,
                        segment.attempt,
                        grant.deadline_ms,
                        max(0, int(remaining_s * 1000)),
                        grant.repeated,
                        loaded,
                    )
                )
    return batches, late
