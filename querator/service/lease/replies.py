"""Replies to lease calls: leased items, read just before the reply is made.

Payloads are not kept in memory between grant and reply. They are read from a snapshot that is
younger than the commit of the grant. (A grant of another node carries its payloads.) A block that
is gone by then is left out: its lease has lapsed, and another consumer has completed the items. A
lease with less than half of its time left is not delivered, but released without counting an
attempt. Items of a damaged block cannot be read and are not delivered (`service.repair.damage`);
the other items are.

A block is often leased in several pieces, one after the other, and is read and checked as a whole.
So the attachments read last are cached, within PAYLOAD_CACHE_BYTES.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from querator.model.calls import LeasedRun, LoadedItems
from querator.model.commands import LeaseGrant
from querator.model.ids import LeaseNumber, PartitionNumber, format_lease_id
from querator.model.limits import PAYLOAD_CACHE_BYTES
from querator.model.queues import Queue
from querator.partition import queries
from querator.service.lease.waiter import Grant
from querator.service.repair.damage import Unread
from querator.service.routing.route import PartitionRoute
from querator.storage import attachments, generations
from querator.storage.environment import Environment, ReadTransaction, StorageCorrupt


class PayloadCache:
    """Cache of the attachments of blocks that were read last. The attachments of a block never
    change, and groups are never reused, so entries are evicted for space only.
    """

    def __init__(self, bytes_max: int = PAYLOAD_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._held: OrderedDict[tuple[int, int, int], bytes] = OrderedDict()

    def read(self, txn: ReadTransaction, group: int, index: int, part: int) -> bytes | None:
        """As `storage.attachments.read`."""
        name = (group, index, part)
        data = self._held.get(name)
        if data is not None:
            self._held.move_to_end(name)
            return data
        data = attachments.read(txn, group, index, part)
        if data is None or len(data) > self._bytes_max:
            return data
        self._held[name] = data
        self._bytes += len(data)
        while self._bytes > self._bytes_max:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= len(oldest)
        return data


class Loaded(msgspec.Struct, frozen=True):
    """Batches to deliver, leases to release instead, and items of the other leases that are not
    among the batches.
    """

    batches: list[LeasedRun]
    late: list[Grant]
    unread: list[Unread]


def load_segments(
    txn: ReadTransaction, route: PartitionRoute, grant: LeaseGrant | Grant, *, cache: PayloadCache
) -> tuple[tuple[LoadedItems | None, ...], list[Unread]]:
    """Items of each segment of a lease, None for those that cannot be read; and a list of the
    latter.

    `txn` is a view of the generation in use.
    """
    loaded: list[LoadedItems | None] = []
    unread: list[Unread] = []
    known = grant.loaded if isinstance(grant, Grant) else None
    for place, segment in enumerate(grant.segments):
        items, error = None, None
        if known is not None:
            items = known[place]
        else:
            try:
                items = queries.load_segment(
                    txn, route.group, segment.first_seq, segment.mask, read=cache.read
                )
            except StorageCorrupt as corrupt:
                error = corrupt
        loaded.append(items)
        if items is None:
            unread.append(
                Unread(
                    route=route,
                    lease=segment.lease or grant.lease,
                    first_seq=segment.first_seq,
                    mask=segment.mask,
                    items=segment.count,
                    bytes=segment.bytes,
                    repeated=grant.repeated,
                    error=error,
                )
            )
    return tuple(loaded), unread


def load(
    environment: Environment,
    cache: PayloadCache,
    queue: Queue,
    grants: Sequence[Grant],
    *,
    now_s: float,
) -> Loaded:
    """Loads the items of the grants that are to be delivered. `now_s` is by the monotonic clock.
    Batches of leases of one answer are in the order of that answer.
    """
    batches: list[LeasedRun] = []
    late: list[Grant] = []
    unread: list[Unread] = []
    places: list[tuple[int, int]] = []
    answers: dict[tuple[int, int], int] = {}
    with environment.snapshot() as txn:
        for grant in grants:
            remaining_s = grant.expires_s - now_s
            group = grant.route.group
            is_late = remaining_s * 2 < grant.length_s and not grant.repeated
            if is_late or remaining_s <= 0 or group not in queue.groups:
                late.append(grant)
                continue
            view = generations.view(txn, group)
            partition = PartitionNumber(queue.groups.index(group))
            lease_id = format_lease_id(group, partition, LeaseNumber(grant.lease))
            segments, left = load_segments(view, grant.route, grant, cache=cache)
            unread += left
            for place, segment in enumerate(grant.segments):
                loaded = segments[place]
                if loaded is None:
                    continue
                if grant.places:
                    answer = answers.setdefault((group, grant.first), len(batches))
                    places.append((answer, grant.places[place]))
                else:
                    places.append((len(batches), 0))
                batches.append(
                    LeasedRun(
                        lease_id=lease_id,
                        queue=queue.name,
                        partition=partition,
                        attempt=segment.attempt,
                        deadline_ms=grant.deadline_ms,
                        remaining_ms=max(0, int(remaining_s * 1000)),
                        repeated=grant.repeated,
                        loaded=loaded,
                        priority=segment.priority,
                    )
                )
    if answers:
        order = sorted(range(len(batches)), key=places.__getitem__)
        batches = [batches[number] for number in order]
    return Loaded(batches, late, unread)
