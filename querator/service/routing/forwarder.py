"""Interface of the service package to the other nodes: its requests to them, and their events.

The production implementation is `server.link.forwarding`; tests have one that joins services in one
process. Nodes are identified by their names alone: an answer proves by itself that the right node
gave it.
"""

import asyncio
from typing import Any, Protocol

import msgspec

from querator.model.calls import LoadedItems
from querator.model.commands import LeaseResult, LetterFilter
from querator.model.execution_calls import KnownJournal
from querator.model.ids import GroupId, QueueId
from querator.model.readers import AdvanceReader
from querator.partition.dedup_export import SharingQuery
from querator.partition.look_ahead import Sought
from querator.partition.schedule_queries import DuePlace, DueSpan
from querator.partition.txn_steps import TransactionQuery


class CarriedLease(LeaseResult, frozen=True, gc=False):
    """A lease granted on another node, with its items: `loaded[i][j]` are the items of segment j of
    grant i, None when their block is gone. `ready`: items that the node still has for this one;
    `elsewhere`: another group of the queue that it leads, and its ready items.
    """

    loaded: tuple[tuple[LoadedItems | None, ...], ...] = ()
    ready: int = 0
    elsewhere: tuple[GroupId, int] | None = None


class StatsQuery(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Counts of a partition: a `PartitionCounts`. `stale`: those of the asked node's replica."""

    group: GroupId
    stale: bool = False


class PeekQuery(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """An `ItemPage` of items; `state` 0: any state."""

    group: GroupId
    state: int
    after_seq: int
    limit: int
    bytes_max: int
    stale: bool = False


class ItemsQuery(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    """An `ItemPage` of the items of these sequences, in any state."""

    group: GroupId
    seqs: tuple[int, ...]
    bytes_max: int
    stale: bool = False


class AheadQuery(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Sequences of the first `limit` items that are sought, as `partition.look_ahead` finds
    them.
    """

    group: GroupId
    sought: Sought
    limit: int


class LettersQuery(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """An `ItemPage` of dead letters; `origin_queue` None: any queue."""

    group: GroupId
    origin_queue: str | None
    after_seq: int
    limit: int
    bytes_max: int
    stale: bool = False


class LetterCountsQuery(msgspec.Struct, frozen=True, array_like=True, tag="L"):
    """(letters, next sequence): a page of the count of the letters that a redrive of all chosen
    ones would redrive. `stale` as in `StatsQuery`.
    """

    group: GroupId
    origin_queue: str
    chosen: LetterFilter
    after_seq: int
    stale: bool = False


class DueKeysQuery(msgspec.Struct, frozen=True, array_like=True, tag="K"):
    """A `DuePage`: keys of scheduled items of a span after a place."""

    group: GroupId
    span: DueSpan
    after: DuePlace
    limit: int
    stale: bool = False


class DueItemsQuery(msgspec.Struct, frozen=True, array_like=True, tag="I"):
    """The scheduled items at these places, by sequence: `BrowsedItem`s."""

    group: GroupId
    places: tuple[DuePlace, ...]
    stale: bool = False


class DueCountsQuery(msgspec.Struct, frozen=True, array_like=True, tag="C"):
    """`DueCounts` of the scheduled items after a place. `interval_ms` 0: the span is one."""

    group: GroupId
    span: DueSpan
    interval_ms: int
    after: DuePlace
    stale: bool = False


DueQuery = DueKeysQuery | DueItemsQuery | DueCountsQuery


class FlowsQuery(msgspec.Struct, frozen=True, array_like=True, tag="G"):
    """A `FlowPage`: the next flows of a fair or keyed queue, in the order of the hashes of their
    names, after a hash (empty: from the first on). `stale` as in `StatsQuery`.
    """

    group: GroupId
    after: bytes
    limit: int
    stale: bool = False


class BrowseQuery(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """A `BrowsedPage`; the fields are those of `BrowseCall`."""

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


class LeasesQuery(msgspec.Struct, frozen=True, array_like=True, tag="V"):
    """`LeaseSummaries`: live leases of a client (empty: of all), granted this long ago or earlier,
    after a number. `stale` as in `StatsQuery`.
    """

    group: GroupId
    client_id: str
    older_than_ms: int
    after_lease: int
    limit: int
    stale: bool = False


class ReadyQuery(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Items of a queue that the node could give now: (group, items) of the partitions it leads."""

    queue: QueueId


class PayloadQuery(msgspec.Struct, frozen=True, array_like=True, tag="P"):
    """A `Payload`: an attachment as stored by a replica that has applied its entry. Any replica may
    answer, also one that does not lead.
    """

    group: GroupId
    index: int
    part: int


class DamageQuery(msgspec.Struct, frozen=True, array_like=True, tag="D"):
    """The `BlockDamage`s of a partition that its leader cannot repair, after one more attempt."""

    group: GroupId


class Payload(msgspec.Struct, frozen=True, array_like=True):
    """`crc` covers the row's key and the data; it is the same on all nodes."""

    crc: int
    data: bytes


class EpochQuery(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The epoch of the map, linearizable: read at the leader of the placement group."""


class ReadersQuery(msgspec.Struct, frozen=True, array_like=True, tag="R"):
    """All readers of a partition: `ReaderState`s. `stale` as in `StatsQuery`."""

    group: GroupId
    stale: bool = False


class AdvanceQuery(msgspec.Struct, frozen=True, array_like=True, tag="A"):
    """The `Outlook` of a command. While the command would have no effect, the answer waits up to
    `wait_ms`.
    """

    group: GroupId
    command: AdvanceReader
    wait_ms: int = 0


class BatchQuery(msgspec.Struct, frozen=True, array_like=True, tag="B"):
    """A `BatchPage`; the fields are those of `ReadBatchCall`."""

    group: GroupId
    partition: int
    reader_id: str
    batch_seq: int
    from_index: int
    upto_index: int
    with_value: bool


class RecurrencesQuery(msgspec.Struct, frozen=True, array_like=True, tag="U"):
    """A `RecurrencePage`: the recurrence with this name, or else those after a number."""

    group: GroupId
    name: str = ""
    after: int = 0
    limit: int = 1


class ExecutionsQuery(msgspec.Struct, frozen=True, array_like=True, tag="X"):
    """An `ExecutionPage`: the execution with this id; or else those after a number, of a function
    (empty: any) and in a state (0: any).
    """

    group: GroupId
    id: str = ""
    after: int = 0
    function: str = ""
    state: int = 0
    limit: int = 1


class ActivationsQuery(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """`ReadActivation`s of these activations, which were leased by this lease: of those that are
    still there.
    """

    group: GroupId
    lease: int
    seqs: tuple[int, ...]


class JournalQuery(msgspec.Struct, frozen=True, array_like=True, tag="J"):
    """A `JournalPage` of an execution, from a record on."""

    group: GroupId
    number: int
    first: int
    count_max: int
    bytes_max: int


class EndedQuery(msgspec.Struct, frozen=True, array_like=True, tag="E"):
    """An `EndedPage` of these executions. While none of them has ended, the answer waits up to
    `wait_ms`.
    """

    group: GroupId
    ids: tuple[str, ...]
    wait_ms: int = 0


class PublishedQuery(msgspec.Struct, frozen=True, array_like=True, tag="y"):
    """A `PublishedPage` of an execution; `key` and `after` are as in `PublishedCall`. While there
    is no value, the answer waits up to `wait_ms`, or until the execution ends.
    """

    group: GroupId
    id: str
    key: str
    after: int
    wait_ms: int = 0


class PinsQuery(msgspec.Struct, frozen=True, array_like=True, tag="z"):
    """A `PinsPage`: up to `limit` pins that a worker with these versions, by function, may run.
    While there are none, the answer waits up to `wait_ms`.
    """

    group: GroupId
    versions: tuple[tuple[str, str], ...]
    limit: int
    wait_ms: int = 0


class NewsQuery(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """A `NewsPage` of executions at work; while it is empty, the answer waits up to `wait_ms`."""

    group: GroupId
    known: tuple[KnownJournal, ...]
    wait_ms: int = 0


class ResultsQuery(msgspec.Struct, frozen=True, array_like=True, tag="W"):
    """A `ResultsPage` of these items. While none of them has ended, the answer waits up to
    `wait_ms`.
    """

    group: GroupId
    seqs: tuple[int, ...]
    wait_ms: int = 0


class EventsQuery(msgspec.Struct, frozen=True, array_like=True, tag="v"):
    """An `EventsPage` from a position on (0: from the first one that is kept; -1: behind the last
    one). While there is no event of one of `kinds` (empty: of any), the answer waits up to
    `wait_ms`.
    """

    group: GroupId
    position: int
    kinds: frozenset[int] = frozenset()
    events_max: int = 1
    wait_ms: int = 0


Query = (
    StatsQuery
    | PeekQuery
    | ItemsQuery
    | AheadQuery
    | LettersQuery
    | LetterCountsQuery
    | DueQuery
    | FlowsQuery
    | BrowseQuery
    | StreamLeasesQuery
    | LeasesQuery
    | ReadersQuery
    | AdvanceQuery
    | BatchQuery
    | PayloadQuery
    | DamageQuery
    | RecurrencesQuery
    | ExecutionsQuery
    | ActivationsQuery
    | JournalQuery
    | EndedQuery
    | PublishedQuery
    | PinsQuery
    | NewsQuery
    | ResultsQuery
    | EventsQuery
    | ReadyQuery
    | EpochQuery
    | SharingQuery
    | TransactionQuery
)


class ForwarderEvents(Protocol):
    """Events for the owner, on the event loop."""

    def on_reach(self, node: str) -> None:
        """The answer of `reaches(node)` has changed."""
        ...

    def on_offer(self, node: str, group: GroupId, items: int) -> None:
        """The node leads the group and reserves this number of items for this node, for
        a moment.
        """
        ...


class Forwarder(Protocol):
    """The other nodes. Every method is called on the event loop.

    Futures end with the answer of the other node, or with a QueratorError: the node's own error
    (NOT_LEADER carries the name of the leader as `value`, if the node knows one); UNAVAILABLE when
    nothing was sent; OUTCOME_UNKNOWN when something was sent and no answer can come any more.
    Cancelling a future withdraws a request that has not been sent.
    """

    @property
    def name(self) -> str:
        """Name of this node."""
        ...

    def watch(self, events: ForwarderEvents) -> None:
        """Sets the receiver of events; called once."""
        ...

    def reaches(self, node: str) -> bool:
        """Whether a request makes sense: the node is known, and not known to be out of reach."""
        ...

    def propose(
        self, node: str, group: GroupId, command: Any, attachment: bytes = b""
    ) -> "asyncio.Future[Any]":
        """Sends a command for a group that the node leads; a lease is answered by a `CarriedLease`.
        Commands for one group arrive in the order of the calls.
        """
        ...

    def query(self, node: str, query: Query) -> "asyncio.Future[Any]": ...

    def demand(self, node: str, queue: QueueId, *, waiters: int, items: int) -> None:
        """Reports the number of waiters here, and of items they want of the queue: the node offers
        its items for some seconds. No waiters: offered items go to other nodes. A report may get
        lost.
        """
        ...
