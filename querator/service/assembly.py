"""Builds the service of a node: every part with its dependencies, in the order that this requires.

Dependencies are passed to constructors only. The exception are the handlers in `QueryAnswers`:
queries about a group are answered by parts that send queries themselves.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from querator.model.commands import PartitionEffects
from querator.model.ids import GroupId, QueueId
from querator.model.limits import (
    EVENT_CALLS_MAX,
    EXECUTION_WAITS_MAX,
    LEASES_WAITING_MAX,
    PRODUCE_BYTES_HELD_MAX,
    PRODUCE_BYTES_WAITING_MAX,
    PRODUCES_HELD_MAX,
    PRODUCES_WAITING_MAX,
    RESULT_WAITS_MAX,
    SETTLES_WAITING_MAX,
)
from querator.service.admission import ConnectionBudget, PartitionBudget
from querator.service.departed import Departed
from querator.service.events import ServiceEvents
from querator.service.exchange.node_exchange import NodeExchange
from querator.service.execution_waits import ExecutionWaits
from querator.service.executions import ExecutionService
from querator.service.feed.calls import FeedService
from querator.service.feed.waits import FeedWaits
from querator.service.lease.calls import LeaseService
from querator.service.lease.dispatcher import LeaseDispatcher
from querator.service.lease.pinned import PinnedLeases
from querator.service.lease.replies import PayloadCache
from querator.service.lease.supply import Supplies
from querator.service.moves import Mover
from querator.service.produce.calls import ProduceService
from querator.service.queue_service import QueueService
from querator.service.rates import PartitionRates
from querator.service.reading.queries import Queries
from querator.service.reading.readers import ReaderService
from querator.service.recurring.driver import RecurrenceDriver
from querator.service.repair.aside import AsideBlocks
from querator.service.repair.damage import DamagedBlocks
from querator.service.results.calls import ResultService
from querator.service.results.waits import ResultWaits
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.router import Router
from querator.service.settle import SettleService
from querator.service.transactions.calls import TransactionService
from querator.service.transactions.driver import TransactionDriver

if TYPE_CHECKING:
    from querator.placement.placement import Placement
    from querator.raft.clock import Clock
    from querator.raft.host import Host
    from querator.service.routing.forwarder import Forwarder
    from querator.storage.environment import Environment


def assemble(
    *,
    host: "Host",
    placement: "Placement",
    environment: "Environment",
    clock: "Clock",
    forwarder: "Forwarder | None" = None,
    out_of_reach: Callable[[], Collection[str]] = frozenset,
    born: str = "",
    produces_max: int = PRODUCES_WAITING_MAX,
    produce_bytes_max: int = PRODUCE_BYTES_WAITING_MAX,
    settles_max: int = SETTLES_WAITING_MAX,
    leases_max: int = LEASES_WAITING_MAX,
) -> QueueService:
    """Called on the event loop that the service runs on. `forwarder`, `out_of_reach` and `born` as
    in `Router`.
    """

    def on_counted(group: GroupId, effects: PartitionEffects) -> None:
        events.on_counted(group, effects)

    durable, cache = environment.durable, PayloadCache()
    aside, answers = AsideBlocks(), QueryAnswers()
    dispatchers: dict[QueueId, LeaseDispatcher] = {}
    supplies = Supplies()
    router = Router(
        host,
        lambda: placement.map,
        forwarder,
        answers=answers,
        amend=aside.amend,
        on_leader_change=supplies.on_leader_change,
        out_of_reach=out_of_reach,
        born=born,
    )
    directory = QueueDirectory(lambda: placement.map, router)
    damage = DamagedBlocks(
        host, router, aside=aside, environment=environment, on_effects=on_counted
    )
    committer = TransactionDriver(router, directory, environment)
    rates = PartitionRates(host, environment, lambda: placement.map, clock=clock)
    reads = Queries(
        host=host,
        router=router,
        environment=environment,
        damage=damage,
        transactions=committer.answer,
        rates=rates.of,
        answers=answers,
    )
    waits = ResultWaits(host, router, environment=environment, damage=damage, answers=answers)
    followers = FeedWaits(host, router, environment=environment, answers=answers)
    awaiting = ExecutionWaits(host, router, environment=environment, damage=damage, answers=answers)
    mover = Mover(router, directory, environment, damage)
    departed = Departed(router, directory, environment)
    produces = ConnectionBudget(
        "produces", calls_max=PRODUCES_HELD_MAX, bytes_max=PRODUCE_BYTES_HELD_MAX
    )
    settles = ConnectionBudget("settles", calls_max=settles_max)
    leases = ConnectionBudget("lease calls and streams", calls_max=leases_max)
    producing = ProduceService(
        router,
        directory,
        budget=PartitionBudget("produces", calls_max=produces_max, bytes_max=produce_bytes_max),
        durable=durable,
    )
    settling = SettleService(
        router,
        directory,
        clock=clock,
        calls=settles,
        budget=PartitionBudget("settles", calls_max=settles_max),
        producing=producing,
        produces=produces,
    )
    exchange = None
    if forwarder is not None:
        exchange = NodeExchange(
            forwarder,
            host=host,
            router=router,
            supplies=supplies,
            environment=environment,
            cache=cache,
            damage=damage,
            aside=aside,
            answers=answers,
            dispatchers=dispatchers,
        )
    leasing = LeaseService(
        router=router,
        directory=directory,
        supplies=supplies,
        dispatchers=dispatchers,
        other_nodes=exchange,
        settling=settling,
        damage=damage,
        environment=environment,
        cache=cache,
        clock=clock,
        calls=leases,
    )
    events = ServiceEvents(
        router=router,
        directory=directory,
        supplies=supplies,
        reads=reads,
        leases=leasing,
        producing=producing,
        damage=damage,
        mover=mover,
        departed=departed,
        committer=committer,
        recurring=RecurrenceDriver(router, environment),
        results=waits,
        followers=followers,
        executions=awaiting,
        exchange=exchange,
    )
    return QueueService(
        router=router,
        directory=directory,
        reads=reads,
        rates=rates,
        events=events,
        exchange=exchange,
        damage=damage,
        mover=mover,
        readers=ReaderService(router=router, directory=directory, reads=reads, calls=leases),
        leasing=leasing,
        producing=producing,
        settling=settling,
        results=ResultService(
            router,
            directory,
            calls=ConnectionBudget("calls that wait for results", calls_max=RESULT_WAITS_MAX),
        ),
        feeds=FeedService(
            router,
            directory,
            calls=ConnectionBudget("calls that wait for events", calls_max=EVENT_CALLS_MAX),
        ),
        transactions=TransactionService(router, directory, producing, durable=durable),
        executions=ExecutionService(
            router=router,
            directory=directory,
            reads=reads,
            leasing=leasing,
            pinned=PinnedLeases(router, leasing, clock),
            producing=producing,
            calls=settles,
            waits=ConnectionBudget("calls that wait for executions", calls_max=EXECUTION_WAITS_MAX),
        ),
        admissions=(produces, settles, leases),
    )
