"""One run: load and faults, then calm, a drain, a final check, and the verdict of all checkers.

    load      programs with the SDK (and some with plain stubs) on three queues
    faults    one after the other, until the time is up
    calm      the network is whole and all nodes run: within CALM_S everything is well
    drain     the load ends; within DRAIN_S all remaining items can be leased and completed
    look      only dead letters remain; the nodes stop, and `querator verify` passes

The queues:

    fifo      one partition; consumers with plain stubs, whose tries are known one by one, so that
              the order of items is checked strictly
    many      six partitions, attempts limited, a dead queue; single calls of the SDK
    streams   three partitions; producer and consumer streams of the SDK
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from querator import Client
from tests.chaos.faults import Faults
from tests.chaos.users import LEASE_TIMEOUT_S, User, seqs_of
from tests.checkers.history import (
    DeadItem,
    History,
    Look,
    Looked,
    Operation,
    Produce,
    Produced,
    QueueRules,
    Recorder,
)
from tests.checkers.report import Report, check
from tests.integration import stub_load as plain
from tests.integration.faulty_cluster import FaultyCluster, faulty_cluster
from tests.integration.processes import verify

PAUSE_S = 0.08
CALM_S = 60.0
DRAIN_S = 120.0
HOLD_S = 40.0


@dataclass(frozen=True)
class Queues:
    """Names of the queues of one run. With several runs on one cluster, each has its `suffix`."""

    suffix: str = ""

    @property
    def fifo(self) -> str:
        return f"fifo{self.suffix}"

    @property
    def many(self) -> str:
        return f"many{self.suffix}"

    @property
    def streams(self) -> str:
        return f"streams{self.suffix}"

    @property
    def dead(self) -> str:
        return f"dead{self.suffix}"

    def rules(self) -> dict[str, QueueRules]:
        return {
            self.fifo: QueueRules(1, plain.LEASE_TIMEOUT_S),
            self.many: QueueRules(6, LEASE_TIMEOUT_S, 5, self.dead),
            self.streams: QueueRules(3, LEASE_TIMEOUT_S),
        }


class Wrong(Protocol):
    """Faults under load."""

    done: Counter[str]

    async def run(self, until_s: float) -> None:
        """Runs until the loop's clock is `until_s`."""
        ...


@dataclass
class Run:
    seed: int
    minutes: float
    history: History
    report: Report = field(default_factory=Report)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    unavailable: tuple[float, str, float] = (0.0, "", 0.0)
    """Longest time without an acknowledged produce: (seconds, queue, when it began)."""
    calm_s: float = 0.0
    """Time from the last fault until all was well."""

    def summary(self) -> str:
        faults = ", ".join(f"{name} {times}" for name, times in sorted(self.faults.items()))
        errors = ", ".join(f"{name} {times}" for name, times in sorted(self.errors.items()))
        seconds, queue, _ = self.unavailable
        return (
            f"chaos: seed {self.seed}, {self.minutes:g} min: "
            f"{self.report.operations.total()} operations; faults: {faults or 'none'}; "
            f"{len(self.report.violations)} violations, {len(self.report.undecided)} undecided; "
            f"longest unavailability {seconds:.1f} s ({queue}); well {self.calm_s:.1f} s after the "
            f"last fault; errors that users saw: {errors or 'none'}"
        )


async def chaos(home: Path, *, minutes: float, seed: int, faults: bool = True) -> Run:
    """Raises AssertionError when the nodes do not come to rest. From the end of the load on the
    history is in `home`, whatever happens then.
    """
    async with faulty_cluster(home) as cluster:
        await cluster.start()
        wrong = partial(Faults, cluster, seed=seed) if faults else None
        run = await bout(cluster, home / "history", minutes=minutes, seed=seed, faults=wrong)
        await _stop(cluster)
    return run


async def bout(
    cluster: FaultyCluster,
    kept: Path,
    *,
    minutes: float,
    seed: int,
    faults: Callable[[Recorder], Wrong] | None,
    queues: Queues = Queues(),
) -> Run:
    """Puts load and faults on a running cluster until all is drained. The history goes to `kept`.
    The queues stay. Raises AssertionError when the nodes do not come to rest.
    """
    recorder = Recorder(
        History(queues.rules(), [], clock_uncertainty_s=0.5, hold_s=HOLD_S), time.monotonic
    )
    run = Run(seed, minutes, recorder.history)
    try:
        await _create_queues(cluster, queues)
        await cluster.until_well()
        await _load(cluster, recorder, run, queues, faults=faults)
        await _end(cluster, recorder, queues)
    finally:
        for op in recorder.history.operations:
            op.end_s = min(op.end_s, time.monotonic())
        recorder.history.write(kept)
    run.unavailable = max(unavailable(recorder.history), default=(0.0, "", 0.0))
    run.report = check(recorder.history)
    return run


async def _create_queues(cluster: FaultyCluster, queues: Queues) -> None:
    async with Client(cluster.addresses) as client:
        await client.create_queue(queues.dead)
        for name, rules in queues.rules().items():
            await client.create_queue(
                name,
                partitions=rules.partitions,
                max_attempts=rules.max_attempts,
                dead_queue=rules.dead_queue,
                lease_timeout=timedelta(seconds=rules.lease_timeout_s),
            )


async def _load(
    cluster: FaultyCluster,
    recorder: Recorder,
    run: Run,
    queues: Queues,
    *,
    faults: Callable[[Recorder], Wrong] | None,
) -> None:
    """Load and faults, then load without faults until all is well."""
    gone = asyncio.Event()
    until_s = asyncio.get_running_loop().time() + run.minutes * 60
    async with AsyncExitStack() as stack:

        async def user(name: str) -> User:
            client = await stack.enter_async_context(Client(cluster.addresses, client_id=name))
            return User(
                name, client, recorder, run.errors, seed=run.seed, pause_s=PAUSE_S, gone=gone
            )

        users = {name: await user(name) for name in ("p1", "p2", "c1", "c2", "c3", "s1", "s2")}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(users["p1"].produce(queues.many))
            tasks.create_task(users["p2"].produce_on_a_stream(queues.fifo, ordered=True))
            tasks.create_task(users["p1"].produce_on_a_stream(queues.streams, ordered=False))
            for name in ("c1", "c2", "c3"):
                tasks.create_task(users[name].consume(queues.many))
            for name in ("s1", "s2"):
                tasks.create_task(users[name].consume_on_a_stream(queues.streams))
            for queue in queues.rules():
                tasks.create_task(users["c1"].count(queue))
            for n, load in enumerate(_plain_loads(cluster, recorder, queues, run.seed, gone)):
                tasks.create_task(load.consume(f"plain{n}"))
            if faults is not None:
                wrong = faults(recorder)
                await wrong.run(until_s)
                run.faults = wrong.done
            else:
                await asyncio.sleep(run.minutes * 60)
            cluster.heal()
            calm_s = time.monotonic()
            async with asyncio.timeout(CALM_S):
                await cluster.until_well()
            run.calm_s = time.monotonic() - calm_s
            gone.set()


def _plain_loads(
    cluster: FaultyCluster, recorder: Recorder, queues: Queues, seed: int, gone: asyncio.Event
) -> Iterator[plain.StubLoad]:
    """One plain load at each node."""
    for proxy in cluster.clients.values():
        address = partial(getattr, proxy, "address")
        load = plain.StubLoad(queues.fifo, address, seed, recorder, pause_s=PAUSE_S)
        load.gone = gone
        yield load


async def _end(cluster: FaultyCluster, recorder: Recorder, queues: Queues) -> None:
    async with Client(cluster.addresses) as client:
        user = User(
            "drain",
            client,
            recorder,
            Counter(),
            seed=0,
            pause_s=0,
            gone=asyncio.Event(),
        )
        for queue in queues.rules():
            async with asyncio.timeout(DRAIN_S):
                await _drain(user, queue)
        for queue, rules in queues.rules().items():
            await _look(client, recorder, queue, rules)


async def _stop(cluster: FaultyCluster) -> None:
    """The nodes stop in order, and the data on their disks is whole."""
    for name in cluster.names:
        code = await cluster[name].stop()
        assert code == 0, f"node {name} ended with {code}:\n{cluster[name].said()[-4000:]}"
    for name in cluster.names:
        await verify(cluster[name].data_dir)


async def _drain(user: User, queue: str) -> None:
    """Leases and completes until no item is there or in flight."""
    while True:
        for batch in await user.lease(queue, 100, wait_s=0.5):
            await user.complete(queue, batch.lease_id, seqs_of(batch))
        total = (await user.client.stats(queue)).total
        if not (total.ready or total.leased or total.scheduled or total.moving):
            return


async def _look(client: Client, recorder: Recorder, queue: str, rules: QueueRules) -> None:
    pending = recorder.begin("look", queue, Look())
    present = [
        (peeked.id.partition, peeked.id.seq, peeked.item.reference)
        async for peeked in client.peek(queue)
    ]
    dead: list[DeadItem] = []
    if rules.dead_queue:
        async for peeked in client.dead_letters(queue):
            letter = peeked.dead_letter
            assert letter is not None
            dead.append(
                DeadItem(
                    letter.origin_id.partition,
                    letter.origin_id.seq,
                    peeked.item.reference,
                    letter.attempts,
                    letter.reason.name,
                )
            )
    pending.ended(Looked(tuple(present), tuple(dead)))


def unavailable(history: History) -> Iterator[tuple[float, str, float]]:
    """For each queue the longest time in which producers tried and no produce was acknowledged:
    (seconds, queue, from when).
    """
    for queue in history.queues:
        produces = [op for op in history.operations if _is_produce(op, queue)]
        if not produces:
            continue
        ends = sorted(op.end_s for op in produces if isinstance(op.outcome, Produced))
        first_s, last_s = produces[0].begin_s, max(op.end_s for op in produces)
        instants = [first_s, *ends, last_s]
        gap_s, from_s = max((after - before, before) for before, after in pairwise(instants))
        yield gap_s, queue, from_s


def _is_produce(op: Operation, queue: str) -> bool:
    return op.queue == queue and isinstance(op.request, Produce)


def new_seed() -> int:
    return random.SystemRandom().randrange(1, 10**6)
