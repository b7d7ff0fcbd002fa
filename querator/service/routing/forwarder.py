"""The seam to the other nodes: what the service room wants of them, and what it is told by them.

The real form is `server.link.forwarding`; tests have one that joins services in one process. Nodes
are named here by their names alone: an answer says by itself whether the right one gave it.
"""

import asyncio
from typing import Any, Protocol

import msgspec

from querator.model.calls import LoadedItems
from querator.model.commands import LeaseResult
from querator.model.ids import GroupId, QueueId
from querator.model.readers import AdvanceReader
from querator.partition.facts import ClosureQuery, FactsQuery
from querator.partition.txn_steps import TransactionQuery


class CarriedLease(LeaseResult, frozen=True, gc=False):
    """A lease granted on another node, with what is leased: `loaded[i][j]` are the items of segment
    j of grant i, None when their block is gone. `ready`: what that node has left for this one;
    `elsewhere`: another group of the queue that it leads, and what is ready there.
    """

    loaded: tuple[tuple[LoadedItems | None, ...], ...] = ()
    ready: int = 0
    elsewhere: tuple[GroupId, int] | None = None


class StatsQuery(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Counts of a partition: a `PartitionStats`. `stale`: as the node's replica has them."""

    group: GroupId
    stale: bool = False


class PeekQuery(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """An `ItemPage` of items; `state` 0: of any."""

    group: GroupId
    state: int
    after_seq: int
    limit: int
    bytes_max: int
    stale: bool = False


class LettersQuery(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """An `ItemPage` of dead letters; `origin_queue` None: of any."""

    group: GroupId
    origin_queue: str | None
    after_seq: int
    limit: int
    bytes_max: int
    stale: bool = False


class BrowseQuery(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """A `BrowsedPage`; fields as of `BrowseCall`."""

    group: GroupId
    partition: int
    from_seq: int
    upto_seq: int
    states: int
    kinds: tuple[str, ...]
    produced_from_ms: int
    produced_before_ms: int
    with_value: bool


class StreamLeasesQuery(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A `LeasePage` of live leases of a consumer's streams with numbers less than `before`."""

    group: GroupId
    client_id: str
    consumer_id: str
    before: int
    after_lease: int
    limit: int


class ReadyQuery(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """What the node could give of a queue just now: (group, items) of the partitions it leads."""

    queue: QueueId


class PayloadQuery(msgspec.Struct, frozen=True, array_like=True, tag="P"):
    """A `Payload`: an attachment as a replica has it that has applied its entry. Of any replica,
    also one that does not lead.
    """

    group: GroupId
    index: int
    part: int


class DamageQuery(msgspec.Struct, frozen=True, array_like=True, tag="D"):
    """The `DamagedBlock`s of a partition that its leader cannot mend, after one more try."""

    group: GroupId


class Payload(msgspec.Struct, frozen=True, array_like=True):
    """`crc` is that of the row's key and the data, which is the same on all nodes."""

    crc: int
    data: bytes


class EpochQuery(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The epoch of the map, linearizable: at the leader of the placement group."""


class ReadersQuery(msgspec.Struct, frozen=True, array_like=True, tag="R"):
    """All readers of a partition: `ReaderState`s. `stale` as of `StatsQuery`."""

    group: GroupId
    stale: bool = False


class AdvanceQuery(msgspec.Struct, frozen=True, array_like=True, tag="A"):
    """The `Outlook` of a command; while nothing can come of it, after `wait_ms` at most."""

    group: GroupId
    command: AdvanceReader
    wait_ms: int = 0


class BatchQuery(msgspec.Struct, frozen=True, array_like=True, tag="B"):
    """A `BatchPage`; fields as of `ReadBatchCall`."""

    group: GroupId
    partition: int
    reader_id: str
    batch_seq: int
    from_index: int
    upto_index: int
    with_value: bool


Query = (
    StatsQuery
    | PeekQuery
    | LettersQuery
    | BrowseQuery
    | StreamLeasesQuery
    | ReadersQuery
    | AdvanceQuery
    | BatchQuery
    | PayloadQuery
    | DamageQuery
    | ReadyQuery
    | EpochQuery
    | FactsQuery
    | ClosureQuery
    | TransactionQuery
)


class ForwarderEvents(Protocol):
    """What the owner is told, on the event loop."""

    def on_reach(self, node: str) -> None:
        """`reaches(node)` has another answer."""
        ...

    def on_offer(self, node: str, group: GroupId, items: int) -> None:
        """The node leads the group and keeps so many items for this one, for a moment."""
        ...


class Forwarder(Protocol):
    """The other nodes. Every method is called on the event loop.

    Futures end with what the other node answered, or with a QueratorError: its own (NOT_LEADER
    carries the name of the leader as `value`, if it knows one); UNAVAILABLE, when nothing was sent;
    OUTCOME_UNKNOWN, when something was sent and no answer can come any more. Cancelling a future
    takes back what has not been sent.
    """

    @property
    def name(self) -> str:
        """Of this node."""
        ...

    def watch(self, events: ForwarderEvents) -> None:
        """Whom to tell; once."""
        ...

    def reaches(self, node: str) -> bool:
        """Whether to try: the node is known, and it is not known to be out of reach."""
        ...

    def propose(
        self, node: str, group: GroupId, command: Any, attachment: bytes = b""
    ) -> "asyncio.Future[Any]":
        """A command for a group that the node leads; a lease comes as `CarriedLease`. What is
        proposed for one group arrives in its order.
        """
        ...

    def query(self, node: str, query: Query) -> "asyncio.Future[Any]": ...

    def demand(self, node: str, queue: QueueId, *, waiters: int, items: int) -> None:
        """So many wait here for so many items of the queue: the node offers what it has, for some
        seconds. None: they wait no longer, what was offered goes to others. May get lost.
        """
        ...
