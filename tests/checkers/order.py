"""Attempts and order: the attempt numbers of deliveries, and which item comes first."""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from sortedcontainers import SortedList

from tests.checkers.history import DeadItem, Lease, Leased, Operation, Produce, Retry, Unknown
from tests.checkers.lives import Birth, Delivery, Home, Lives, Place
from tests.checkers.safety import name


def attempts(lives: Lives) -> Iterator[str]:
    """Attempts grow with each lease and stay within the limit. A repeated answer has the same
    attempt.
    """
    for place, deliveries in lives.deliveries.items():
        most = lives.rules(place[0]).max_attempts
        by_end = sorted(deliveries, key=lambda d: d.operation.end_s)
        for delivery in by_end:
            if delivery.attempt < 1 or 0 < most < delivery.attempt:
                yield f"{name(place)}: attempt {delivery.attempt} of {most or 'any'}"
        for before, after in pairwise(by_end):
            yield from _grows(lives, place, before, after)


def _grows(lives: Lives, place: Place, before: Delivery, after: Delivery) -> Iterator[str]:
    if before.lease == after.lease:
        if before.attempt != after.attempt:
            yield f"{name(place)}: attempts {before.attempt} and {after.attempt} under one lease"
        return
    if lives.tenures[after.lease].begin_s <= lives.tenures[before.lease].known_s:
        return
    if after.attempt < before.attempt:
        yield f"{name(place)}: attempt {after.attempt} after attempt {before.attempt}"


def dead_letters(lives: Lives) -> Iterator[str]:
    """An item dies once, and for a reason that clients can see."""
    for op, looked in lives.looks:
        present = {(partition, seq) for partition, seq, _ in looked.present}
        counted: dict[tuple[int, int], int] = defaultdict(int)
        for dead in looked.dead:
            counted[dead.partition, dead.seq] += 1
            place = (op.queue, dead.partition, dead.seq)
            if (dead.partition, dead.seq) in present:
                yield f"{name(place)}: dead, but still there"
            yield from _reason(lives, place, dead)
        for (partition, seq), times in counted.items():
            if times > 1:
                yield f"{name((op.queue, partition, seq))}: {times} dead letters"


def _reason(lives: Lives, place: Place, dead: DeadItem) -> Iterator[str]:
    most = lives.rules(place[0]).max_attempts
    if dead.reason == "ATTEMPTS" and not 0 < most <= dead.attempts:
        yield f"{name(place)}: dead after {dead.attempts} attempts of {most or 'any'}"
    if dead.reason == "REJECTED" and not any(
        isinstance(settle.operation.request, Retry)
        and settle.operation.request.dead
        and settle.may_touch(place[2])
        for delivery in lives.deliveries.get(place, ())
        for settle in lives.tenures[delivery.lease].settles
    ):
        yield f"{name(place)}: dead by a rejection that nobody made"


class Unseen:
    """Items that the server may hold back, with the interval and their number: for calls that never
    saw them, or because they cannot be read. Other leases may skip such items.
    """

    def __init__(self, lives: Lives) -> None:
        self._spans: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        self._timeouts: dict[str, float] = {}
        self._firsts: dict[str, float] = {}
        for aside in lives.history.asides:
            self._spans[aside.queue].append((aside.from_s, float("inf"), aside.items))
        for op in lives.history.operations:
            if count := unseen_items(op):
                assert isinstance(op.request, Lease)
                own_s = op.request.lease_timeout_s or lives.rules(op.queue).lease_timeout_s
                self._timeouts[op.queue] = min(own_s, self._timeouts.get(op.queue, own_s))
                until_s = op.end_s + lives.history.hold_s
                self._spans[op.queue].append((op.begin_s, until_s, count))
                self._firsts[op.queue] = min(op.begin_s, self._firsts.get(op.queue, op.begin_s))

    def most(self, queue: str, begin_s: float, end_s: float) -> int:
        """How many items of a partition may be held back at some time in the interval."""
        spans = self._spans.get(queue, ())
        return sum(count for start, stop, count in spans if start <= end_s and begin_s <= stop)

    def timeout_s(self, queue: str) -> float:
        """The shortest lease that may have been granted unseen."""
        return self._timeouts.get(queue, 0.0)

    def first_s(self, queue: str) -> float:
        """No item was granted unseen before this instant."""
        return self._firsts.get(queue, float("inf"))


def unseen_items(op: Operation) -> int:
    if not isinstance(op.request, Lease):
        return 0
    if isinstance(op.outcome, Unknown):
        return op.request.max_items
    return op.outcome.unseen if isinstance(op.outcome, Leased) else 0


def first_in_first_out(lives: Lives) -> Iterator[str]:
    """Items that were never leased are leased in the order of their sequences. Once the grant of an
    item is certain, no earlier item is granted, except for items that may be held back unseen.
    """
    unseen = Unseen(lives)
    firsts: dict[Home, dict[int, tuple[float, float]]] = defaultdict(dict)
    for (queue, partition, seq), deliveries in lives.deliveries.items():
        birth = lives.birth_of.get(deliveries[0].reference)
        if birth is None or birth.request.delay_s:
            continue
        tenures = [lives.tenures[d.lease] for d in deliveries if d.attempt == 1]
        if tenures:
            first = min(tenures, key=lambda tenure: tenure.begin_s)
            firsts[queue, partition][seq] = (first.begin_s, first.known_s)
    for (queue, partition), grants in firsts.items():
        begins = SortedList()
        for seq in sorted(grants):
            begin_s, known_s = grants[seq]
            skipped = len(begins) - begins.bisect_right(known_s)
            if skipped and skipped > unseen.most(queue, begin_s, known_s):
                yield (
                    f"{name((queue, partition, seq))}: leased by {known_s:.4f}, before {skipped} "
                    "that were there earlier"
                )
            begins.add(begin_s)


def produced_in_order(lives: Lives) -> Iterator[str]:
    """A request that began after another was acknowledged gets later sequences; an ordered
    producer's requests are stored in its order.
    """
    by_home: dict[Home, list[tuple[int, int, Birth]]] = defaultdict(list)
    for birth in lives.births:
        seqs: dict[Home, list[int]] = defaultdict(list)
        for queue, partition, seq in birth.places.values():
            seqs[queue, partition].append(seq)
        for home, there in seqs.items():
            by_home[home].append((min(there), max(there), birth))
    for home, births in by_home.items():
        yield from _real_time(home, births)
        yield from _by_producer(home, births)


def _real_time(home: Home, births: list[tuple[int, int, Birth]]) -> Iterator[str]:
    ending: list[tuple[float, int]] = []
    highest = 0
    for first, last, birth in sorted(births, key=lambda b: b[2].begin_s):
        while ending and ending[0][0] < birth.begin_s:
            highest = max(highest, heapq.heappop(ending)[1])
        if first <= highest:
            yield (
                f"{home[0]} {home[1]}-{first}: produced after {home[1]}-{highest} was acknowledged"
            )
        heapq.heappush(ending, (birth.known_s, last))


def _by_producer(home: Home, births: list[tuple[int, int, Birth]]) -> Iterator[str]:
    highest: dict[str, int] = {}

    def request_of(entry: tuple[int, int, Birth]) -> Produce:
        return entry[2].request

    for entry in sorted(births, key=lambda entry: request_of(entry).sequence):
        request = request_of(entry)
        if request.ordered and request.producer:
            if entry[0] <= highest.get(request.producer, 0):
                yield (
                    f"{home[0]} {home[1]}-{entry[0]}: request {request.sequence} of an ordered "
                    "producer was stored before an earlier one"
                )
            highest[request.producer] = max(entry[1], highest.get(request.producer, 0))
