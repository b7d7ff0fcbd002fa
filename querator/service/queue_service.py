"""The calls that the transports make.

A call is refused before it is accepted (names, limits, admission), routed, proposed, and answered
when it is applied. Cancelling a call is always safe because its command continues: an unclaimed
lease is released, and the partition remembers a produce with an identity.
"""

from typing import TYPE_CHECKING, TypeVar

from querator.model.calls import (
    BrowseCall,
    CompleteCall,
    ExtendCall,
    ExtendReply,
    LeaseCall,
    LeaseReply,
    ProduceCall,
    ProduceReply,
    RetryCall,
    Routing,
    SettleReply,
    SubscribeCall,
)
from querator.model.event_calls import EventsReply, ReadEventsCall
from querator.model.queues import QueueKind
from querator.model.result_calls import ResultsReply, WaitResultsCall
from querator.model.transactions import ProducerTotals
from querator.model.txn_calls import (
    AbortCall,
    AbortReply,
    CommitCall,
    CommitReply,
    StageCall,
    StageReply,
    TxnList,
)
from querator.service.admission import ConnectionBudget
from querator.service.events import ServiceEvents
from querator.service.exchange.node_exchange import NodeExchange
from querator.service.executions import ExecutionService
from querator.service.feed.calls import FeedService
from querator.service.lease.calls import LeaseService
from querator.service.lease.subscriptions import Subscription
from querator.service.moves import Mover
from querator.service.produce.calls import ProduceService
from querator.service.rates import PartitionRates
from querator.service.reading.browsing import Browsing, scan_slots
from querator.service.reading.queries import Queries
from querator.service.reading.readers import ReaderService
from querator.service.repair.damage import DamagedBlocks
from querator.service.results.calls import ResultService
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.router import Router, deadline_after
from querator.service.settle import SettleService
from querator.service.transactions.calls import TransactionService, last_partition
from querator.service.validate import (
    check_on_duplicate,
    check_partition,
    not_of_items,
)

if TYPE_CHECKING:
    pass

T = TypeVar("T")


class QueueService:
    """Produce, lease, settle, subscribe, browse: one method for each call. `service.assembly`
    creates it on the event loop that every method runs on.
    """

    def __init__(
        self,
        *,
        router: Router,
        directory: QueueDirectory,
        reads: Queries,
        rates: PartitionRates,
        events: ServiceEvents,
        exchange: NodeExchange | None,
        damage: DamagedBlocks,
        mover: Mover,
        readers: ReaderService,
        leasing: LeaseService,
        producing: ProduceService,
        settling: SettleService,
        results: ResultService,
        feeds: FeedService,
        transactions: TransactionService,
        executions: ExecutionService,
        admissions: tuple[ConnectionBudget, ConnectionBudget, ConnectionBudget],
    ) -> None:
        """`admissions` count accepted calls that are not answered: produces, settles, and lease
        calls with streams. `exchange` handles requests of other nodes; None on a single node.
        """
        self.router = router
        self.directory = directory
        self.reads = reads
        self.rates = rates
        self.events = events
        self.exchange = exchange
        self.damage = damage
        self.mover = mover
        self.readers = readers
        self.executions = executions
        self.admissions = admissions
        self._leasing = leasing
        self._producing = producing
        self._settling = settling
        self._results = results
        self._feeds = feeds
        self._transactions = transactions
        self._browses = scan_slots()
        self._produces, self._settles, _ = admissions

    async def stop(self) -> None:
        """See `ServiceEvents.stop`."""
        await self.events.stop()

    async def routing(self, namespace: str, name: str) -> Routing:
        """Nodes of the cluster, and the leaders of the queue's partitions if a queue is named."""
        leaders: tuple[str, ...] = ()
        if name:
            queue = await self.directory.find(namespace, name)
            leaders = tuple(
                self.router.name if route.local else route.leader
                for route in self.router.routes(queue)[: queue.routed_partitions]
            )
        placed = self.router.map
        nodes = tuple((node.name, node.client_address) for node in placed.nodes)
        return Routing(placed.epoch, self.router.name, nodes, leaders)

    # --- produce -----------------------------------------------------------------------------

    async def produce(self, call: ProduceCall) -> ProduceReply:
        """Produces to the partitions defined by `service.produce.split`. Raises QueratorError."""
        queue = await self.directory.find(call.namespace, call.queue)
        if queue.settings.kind is QueueKind.EXECUTIONS:
            raise not_of_items(queue)
        if call.takes_over:
            check_on_duplicate(queue, call)
        with self._produces.held(len(call.items)):
            return await self._producing.produce(
                queue, call, deadline=deadline_after(call.timeout_ms)
            )

    # --- transactions ------------------------------------------------------------------------

    async def stage(self, call: StageCall) -> StageReply:
        """See `service.transactions.calls`, also for the other calls. Raises QueratorError."""
        queue = await self.directory.find(call.namespace, call.queue, call.partition or 0)
        if queue.settings.kind is QueueKind.EXECUTIONS:
            raise not_of_items(queue)
        if call.takes_over:
            check_on_duplicate(queue, call)
        with self._produces.held(len(call.items)):
            deadline = deadline_after(call.timeout_ms)
            return await self._transactions.stage(queue, call, deadline=deadline)

    async def commit(self, call: CommitCall) -> CommitReply:
        queue = await self.directory.find(call.namespace, call.queue, last_partition(call))
        with self._settles.held():
            deadline = deadline_after(call.timeout_ms)
            return await self._transactions.commit(queue, call, deadline=deadline)

    async def abort(self, call: AbortCall) -> AbortReply:
        queue = await self.directory.find(call.namespace, call.queue)
        with self._settles.held():
            deadline = deadline_after(call.timeout_ms)
            return await self._transactions.abort(queue, call, deadline=deadline)

    async def staged(self, namespace: str, name: str, *, timeout_ms: int = 0) -> TxnList:
        deadline = deadline_after(timeout_ms)
        queue = await self.directory.find(namespace, name)
        return await self._transactions.staged(queue, deadline=deadline)

    async def producer_totals(
        self, namespace: str, name: str, producer: str, *, timeout_ms: int = 0
    ) -> ProducerTotals:
        deadline = deadline_after(timeout_ms)
        queue = await self.directory.find(namespace, name)
        return await self._transactions.totals(queue, producer, deadline=deadline)

    # --- lease and settle ------------------------------------------------------------------------

    async def lease(self, call: LeaseCall) -> LeaseReply:
        """See `service.lease.calls`. Raises QueratorError."""
        return await self._leasing.lease(call)

    async def subscribe(self, call: SubscribeCall) -> Subscription:
        """Opens a lease stream; its owner closes it. Raises QueratorError."""
        return await self._leasing.subscribe(call)

    async def complete(self, call: CompleteCall) -> SettleReply:
        """One outcome per lease, in order; see `service.settle`. Raises QueratorError."""
        return await self._settling.settle(call)

    async def retry(self, call: RetryCall) -> SettleReply:
        """As `complete`."""
        return await self._settling.settle(call)

    async def extend(self, call: ExtendCall) -> ExtendReply:
        """See `SettleService.extend`. Raises QueratorError."""
        return await self._settling.extend(call)

    async def wait_results(self, call: WaitResultsCall) -> ResultsReply:
        """See `service.results.calls`. Raises QueratorError."""
        return await self._results.wait(call)

    async def read_events(self, call: ReadEventsCall) -> EventsReply:
        """See `service.feed.calls`. Raises QueratorError."""
        return await self._feeds.read(call)

    # --- browse ------------------------------------------------------------------------------

    async def browse(self, call: BrowseCall, caller: str = "") -> Browsing:
        """Opens a scan for a connection, `caller`; its owner closes it. Raises QueratorError."""
        queue = await self.directory.find(call.namespace, call.queue, call.partition)
        if queue.settings.kind is QueueKind.EXECUTIONS:
            raise not_of_items(queue)
        check_partition(call.partition, queue)
        route = self.router.routes(queue)[call.partition]
        return Browsing(call, route, router=self.router, left=self._browses.enter(caller))
