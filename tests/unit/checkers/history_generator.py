"""Random correct histories: clients with overlapping calls against a small correct partition. It
shares no code with the checkers' model.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from tests.checkers.history import (
    Complete,
    Count,
    Counted,
    DeadItem,
    Extend,
    Extended,
    Grant,
    History,
    Lease,
    Leased,
    Look,
    Looked,
    Named,
    Operation,
    Outcome,
    Produce,
    Produced,
    ProducedPart,
    QueueRules,
    Refused,
    Request,
    Result,
    Retry,
    Settled,
    Unknown,
    ranges,
    spread,
)

QUEUE = "work"
TIMEOUT_S = 2.0


@dataclass
class Held:
    client: str
    deadline_s: float
    items: dict[int, str]
    """Outcome of each item, by sequence."""


@dataclass
class Queue:
    """One partition, item by item."""

    partition: int
    max_attempts: int
    next_seq: int = 1
    ready: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    references: dict[int, str] = field(default_factory=dict)
    leases: dict[str, Held] = field(default_factory=dict)
    produced: dict[tuple[str, int], int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    dead: dict[int, str] = field(default_factory=dict)
    lease_numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def produce(self, request: Produce) -> Produced:
        identity = (request.producer, request.sequence)
        repeated = identity in self.produced
        first = self.produced.setdefault(identity, self.next_seq)
        if not repeated:
            for reference in request.references:
                self.attempts[self.next_seq] = 0
                self.references[self.next_seq] = reference
                self.ready.append(self.next_seq)
                self.next_seq += 1
        part = ProducedPart(self.partition, first, len(request.references), (), repeated)
        return Produced((part,))

    def lease(self, client: str, request: Lease, now_s: float) -> Leased:
        taken, self.ready = self.ready[: request.max_items], self.ready[request.max_items :]
        if not taken:
            return Leased(())
        lease = f"{self.partition}.{next(self.lease_numbers)}"
        self.leases[lease] = Held(client, now_s + TIMEOUT_S, dict.fromkeys(taken, "held"))
        by_attempt: dict[int, list[tuple[int, str]]] = {}
        for seq in taken:
            self.attempts[seq] += 1
            runs = by_attempt.setdefault(self.attempts[seq], [])
            runs.append((seq, self.references[seq]))
        return Leased(
            tuple(
                Grant(lease, self.partition, attempt, tuple(items))
                for attempt, items in by_attempt.items()
            )
        )

    def settle(self, request: Complete | Retry) -> Settled:
        verb = "completed"
        if isinstance(request, Retry):
            verb = f"retried {request.dead} {request.dead or request.count_attempt}"
        outcomes = []
        for named in request.leases:
            held = self.leases[named.lease]
            answers: dict[str, list[int]] = {"done": [], "repeated": [], "lost": []}
            for seq in spread(named.ranges):
                fate = held.items.get(seq)
                if fate == "held":
                    answers["done"].append(seq)
                    held.items[seq] = verb
                    self._settled(seq, request)
                else:
                    answers["repeated" if fate == verb else "lost"].append(seq)
            outcomes.append(
                Outcome(named.lease, *(ranges(answers[w]) for w in ("done", "repeated", "lost")))
            )
        return Settled(tuple(outcomes))

    def _settled(self, seq: int, request: Complete | Retry) -> None:
        if isinstance(request, Complete):
            self.gone.add(seq)
        elif request.dead:
            self.dead[seq] = "REJECTED"
        elif request.count_attempt:
            self.give_back(seq)
        else:
            self.attempts[seq] -= 1
            if self.attempts[seq]:
                self.ready.insert(0, seq)
            else:
                self.ready = sorted([seq, *[s for s in self.ready if not self.attempts[s]]]) + [
                    s for s in self.ready if self.attempts[s]
                ]

    def give_back(self, seq: int) -> None:
        if 0 < self.max_attempts <= self.attempts[seq]:
            self.dead[seq] = "ATTEMPTS"
        else:
            self.ready.append(seq)

    def extend(self, request: Extend, now_s: float) -> Extended:
        outcomes = []
        for lease in request.leases:
            held = self.leases[lease]
            live = "held" in held.items.values()
            if live:
                held.deadline_s = max(held.deadline_s, now_s + TIMEOUT_S)
            outcomes.append((lease, live))
        return Extended(tuple(outcomes))

    def lapse(self, now_s: float) -> None:
        for held in self.leases.values():
            if held.deadline_s <= now_s:
                for seq, fate in held.items.items():
                    if fate == "held":
                        held.items[seq] = "lapsed"
                        self.give_back(seq)

    def execute(self, client: str, request: Request, now_s: float) -> Result:
        match request:
            case Produce():
                return self.produce(request)
            case Lease():
                return self.lease(client, request, now_s)
            case Complete() | Retry():
                return self.settle(request)
            case Extend():
                return self.extend(request, now_s)
            case Count():
                return Counted(((self.partition, self.next_seq - 1, len(self.gone)),))
            case Look():
                there = [s for s in self.attempts if s not in self.gone and s not in self.dead]
                return Looked(
                    tuple((self.partition, s, self.references[s]) for s in there),
                    tuple(
                        DeadItem(self.partition, s, self.references[s], self.attempts[s], reason)
                        for s, reason in self.dead.items()
                    ),
                )


@dataclass
class Shape:
    """Parameters of a generated history."""

    seed: int = 0
    operations: int = 60
    clients: int = 4
    partitions: int = 1
    unknown: float = 0.1
    refused: float = 0.05
    max_attempts: int = 0
    batch: int = 4


class Generator:
    """Generates a history in virtual time.

    Each client makes one call at a time. Each call takes effect at its own instant between begin
    and end. A call with an unknown outcome may take effect at any later time, or never.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.chance = random.Random(shape.seed)
        self.history = History(
            queues={QUEUE: QueueRules(shape.partitions, TIMEOUT_S, shape.max_attempts, "dead")},
            clock_uncertainty_s=0.0,
        )
        self.queues = [Queue(n, shape.max_attempts) for n in range(shape.partitions)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._references = count(1)
        self._sequences = count(1)
        self._mine: dict[str, list[tuple[str, list[int]]]] = {}
        self._repeats: dict[str, list[Request]] = {}
        self.now_s = 0.0

    def run(self) -> History:
        for n in range(self.shape.clients):
            self._at(self.chance.random() * 0.01, lambda n=n: self._next(f"c{n}"))  # type: ignore[misc]
        self._at(0.1, self._lapse)
        while self._events:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s += 1.0
        self._look()
        return self.history

    def _at(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + after_s, next(self._order), event))

    def _lapse(self) -> None:
        for queue in self.queues:
            queue.lapse(self.now_s)
        if self._events:
            self._at(0.1, self._lapse)

    def _look(self) -> None:
        looks = [queue.execute("end", Look(), self.now_s) for queue in self.queues]
        found = Looked()
        for look in looks:
            assert isinstance(look, Looked)
            found = Looked(found.present + look.present, found.dead + look.dead)
        self.history.operations.append(
            Operation(
                client="end",
                queue=QUEUE,
                begin_s=self.now_s,
                end_s=self.now_s + 0.1,
                request=Look(),
                outcome=found,
            )
        )

    def _next(self, client: str) -> None:
        if len(self.history.operations) >= self.shape.operations:
            return
        queue, request = self._choose(client)
        op = Operation(client, QUEUE, self.now_s, self.now_s, request)
        self.history.operations.append(op)
        luck = self.chance.random()
        effect_s = self.chance.expovariate(100)
        answer_s = effect_s + self.chance.expovariate(100)
        if luck < self.shape.unknown:
            if self.chance.random() < 0.6:
                # It may take effect long after the client has given up.
                late_s = self.chance.choice([effect_s, effect_s * 20])
                self._at(late_s, lambda: self._unseen(queue, client, request))
            self._at(answer_s, lambda: self._unknown(op))
        elif luck < self.shape.unknown + self.shape.refused:
            self._at(answer_s, lambda: self._end(op, Refused("UNAVAILABLE")))
        else:
            self._at(effect_s, lambda: self._execute(op, queue, answer_s - effect_s))

    def _choose(self, client: str) -> tuple[Queue, Request]:
        queue = self.chance.choice(self.queues)
        kind = self.chance.random()
        mine = self._mine.setdefault(client, [])
        repeats = self._repeats.setdefault(client, [])
        if repeats and kind < 0.1:
            request = repeats.pop()
            home = self._home(request)
            return home, request
        if kind < 0.35:
            sequence = next(self._sequences)
            batch = self.chance.randint(1, self.shape.batch)
            references = tuple(f"i{next(self._references)}" for _ in range(batch))
            home = self.queues[sequence % len(self.queues)]
            return home, Produce(references, "p", sequence)
        if not mine or kind < 0.6:
            return queue, Lease(self.chance.randint(1, self.shape.batch))
        lease, seqs = self.chance.choice(mine)
        chosen = [seq for seq in seqs if self.chance.random() < 0.7] or seqs[:1]
        named = (Named(lease, ranges(chosen)),)
        home = self.queues[int(lease.split(".")[0])]
        if kind < 0.85:
            return home, Complete(named)
        if kind < 0.95:
            style = self.chance.random()
            return home, Retry(named, dead=style < 0.2, count_attempt=style < 0.6)
        if kind < 0.98:
            return home, Extend((lease,))
        return home, Count()

    def _home(self, request: Request) -> Queue:
        if isinstance(request, Produce):
            return self.queues[request.sequence % len(self.queues)]
        assert isinstance(request, Complete | Retry)
        return self.queues[int(request.leases[0].lease.split(".")[0])]

    def _unseen(self, queue: Queue, client: str, request: Request) -> None:
        if not isinstance(request, Count):
            queue.execute(client, request, self.now_s)

    def _execute(self, op: Operation, queue: Queue, answer_s: float) -> None:
        result = queue.execute(op.client, op.request, self.now_s)
        if isinstance(result, Leased):
            for grant in result.grants:
                self._mine[op.client].append((grant.lease, [seq for seq, _ in grant.items]))
        self._at(answer_s, lambda: self._end(op, result))

    def _unknown(self, op: Operation) -> None:
        if isinstance(op.request, Produce | Complete | Retry):
            self._repeats[op.client].append(op.request)
        self._end(op, Unknown())

    def _end(self, op: Operation, outcome: Result) -> None:
        op.end_s, op.outcome = self.now_s, outcome
        self._at(self.chance.expovariate(200), lambda: self._next(op.client))


def generate(shape: Shape) -> History:
    return Generator(shape).run()
