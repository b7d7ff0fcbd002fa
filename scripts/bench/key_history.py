"""Whether what consumers of a keyed queue saw is allowed: each key in order, one item at a time.

The consumers record each delivery of an item: when they got it, until when its lease lasts at
least, and when and how they ended it. All times are of one clock, in seconds. They do not see when
a partition grants a lease, executes a complete or lets a lease end. So only what is certain counts:

- A lease was granted before its items came.
- A complete or retry that was accepted was executed between its call and its answer, and the lease
  held until then. One without a known outcome was executed after its call, or never.
- A lease that its consumer has not ended lasts until its deadline. It may last longer.

These rules follow from that, and what breaks one of them is a defect of the queue:

    lost      an item whose produce was acknowledged is completed
    twice     no item has two accepted completes
    early     an item comes after the calls that completed all earlier items of its key
    together  the certain times of two leases of a key do not overlap
    again     an item does not come again after the answer that it is completed
    short     a complete or retry is not refused before the deadline of the lease
    strange   an item that comes was produced

`early` includes the order of completions, because an item is completed after it has come.
"""

import enum
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from querator.client import LeasedItem
from querator.client.errors import RequestError
from querator.client.values import PartitionStats

PAYLOAD_BYTES = 100
TOLD = 5
"""Examples of each rule in a verdict."""


class End(enum.IntEnum):
    """How a delivery ended, as its consumer knows."""

    LEFT = enum.auto()
    COMPLETED = enum.auto()
    RETRIED = enum.auto()
    REFUSED = enum.auto()
    """A complete or retry was refused, because the lease had ended."""
    UNKNOWN_COMPLETE = enum.auto()
    UNKNOWN_RETRY = enum.auto()


class Delivery(msgspec.Struct, gc=False):
    """`number`: the place of the item in its key, from 0. The deadline is the one that is known
    when the item comes.
    """

    number: int
    lease: str
    got_s: float
    deadline_s: float
    end: End = End.LEFT
    sent_s: float = math.inf
    answered_s: float = math.inf

    @property
    def held_until_s(self) -> float:
        """Until when the lease held for certain."""
        if self.end in (End.COMPLETED, End.RETRIED):
            return self.sent_s
        return min(self.sent_s, self.deadline_s)

    @property
    def completes_from_s(self) -> float:
        """The earliest instant at which this delivery can have completed the item."""
        if self.end in (End.COMPLETED, End.UNKNOWN_COMPLETE):
            return self.sent_s
        return math.inf


class Books:
    """What was produced and delivered. Keys and their items are numbers."""

    def __init__(self, keys: int, per_key: int) -> None:
        self.count = keys * per_key
        self.per_key = per_key
        self.produced = 0
        """Items that are acknowledged."""
        self.done = 0
        """Deliveries whose complete was accepted."""
        self.ends: Counter[End] = Counter()
        self.errors: list[str] = []
        self.unknown: list[str] = []
        """Errors of completes and retries without a known outcome."""
        self.came_s = time.time()
        self.histories: list[list[Delivery]] = [[] for _ in range(keys)]

    def payload(self, key: int, number: int) -> bytes:
        return f"{key} {number} ".encode().ljust(PAYLOAD_BYTES, b".")

    def deliver(self, item: LeasedItem, got_s: float, deadline_s: float) -> Delivery:
        key, number, _ = item.payload.split(b" ", 2)
        one = Delivery(int(number), item.lease_id, got_s, deadline_s)
        self.histories[int(key)].append(one)
        self.came_s = got_s
        return one

    def ended(self, one: Delivery, end: End) -> None:
        one.end, one.answered_s = end, time.time()
        self.ends[end] += 1
        self.done += end is End.COMPLETED

    def failed(self, what: str, error: RequestError) -> None:
        self.errors.append(f"{what}: {error}")
        print(self.errors[-1], flush=True)

    @property
    def left(self) -> int:
        """Deliveries that were never settled."""
        return sum(one.end is End.LEFT for each in self.histories for one in each)

    def problems(self, total: PartitionStats) -> list[str]:
        """A sentence for each rule and count that is wrong."""
        verdict = judge(
            (str(key), self.per_key, deliveries) for key, deliveries in enumerate(self.histories)
        )
        left = total.ready + total.leased + total.scheduled + total.moving + total.held
        checks = (
            (not self.errors, f"{len(self.errors)} errors, first: {self.errors[:3]}"),
            (self.produced == self.count, f"{self.produced} of {self.count} were acknowledged"),
            (total.produced == self.count, f"the nodes count {total.produced} items"),
            (total.completed == self.count, f"the nodes count {total.completed} completed"),
            (not left, f"{left} items are left in the queue"),
            (not total.dead, f"{total.dead} items died"),
        )
        return verdict.problems() + [sentence for holds, sentence in checks if not holds]


class Verdict:
    """Counts by rule, and a few sentences for each."""

    def __init__(self) -> None:
        self.broken: Counter[str] = Counter()
        self.examples: list[str] = []

    def add(self, rule: str, sentence: str) -> None:
        self.broken[rule] += 1
        if self.broken[rule] <= TOLD:
            self.examples.append(f"{rule}: {sentence}")

    def problems(self) -> list[str]:
        return [f"{count} times {rule}" for rule, count in self.broken.items()] + self.examples


def judge(histories: Iterable[tuple[str, int, Sequence[Delivery]]]) -> Verdict:
    """Of each key its name, the number of its items, and its deliveries in any order."""
    verdict = Verdict()
    for key, count, deliveries in histories:
        _judge_key(verdict, key, count, sorted(deliveries, key=lambda one: one.got_s))
    return verdict


def _judge_key(verdict: Verdict, key: str, count: int, deliveries: Sequence[Delivery]) -> None:
    known = [one for one in deliveries if 0 <= one.number < count]
    if len(known) < len(deliveries):
        verdict.add("strange", f"key {key} has {count} items, and others came")
    done_from_s = [math.inf] * count
    done_s = [math.inf] * count
    accepted = [0] * count
    for one in known:
        done_from_s[one.number] = min(done_from_s[one.number], one.completes_from_s)
        if one.end is End.COMPLETED:
            accepted[one.number] += 1
            done_s[one.number] = min(done_s[one.number], one.answered_s)
    for number in range(count):
        item = f"item {number} of key {key}"
        if done_from_s[number] == math.inf:
            verdict.add("lost", f"{item} was never completed")
        if accepted[number] > 1:
            verdict.add("twice", f"{item} was completed {accepted[number]} times")
    earlier_s = _latest_before(done_from_s)
    for one in known:
        item = f"item {one.number} of key {key} came at {one.got_s:.3f}"
        if one.got_s < earlier_s[one.number]:
            first = next(i for i, from_s in enumerate(done_from_s) if from_s > one.got_s)
            verdict.add("early", f"{item}, and item {first} was completed after that")
        if done_s[one.number] < one.got_s < one.deadline_s:
            verdict.add("again", f"{item}, and was completed at {done_s[one.number]:.3f}")
        if one.end is End.REFUSED and one.answered_s < one.deadline_s:
            verdict.add(
                "short",
                f"{item} with a lease until {one.deadline_s:.3f}, which had ended at "
                f"{one.answered_s:.3f}",
            )
    _judge_overlaps(verdict, key, known)


def _latest_before(instants_s: Sequence[float]) -> list[float]:
    """For each place the latest of the instants before it."""
    latest_s = -math.inf
    found = []
    for instant_s in instants_s:
        found.append(latest_s)
        latest_s = max(latest_s, instant_s)
    return found


def _judge_overlaps(verdict: Verdict, key: str, deliveries: Sequence[Delivery]) -> None:
    """`deliveries` by the times at which they came. An answer that is repeated brings an item again
    with the same lease.
    """
    held: Delivery | None = None
    for one in deliveries:
        if held is not None and one.got_s < held.held_until_s and one.got_s < one.held_until_s:
            if (one.lease, one.number) != (held.lease, held.number):
                verdict.add(
                    "together",
                    f"key {key}: item {held.number} was leased from {held.got_s:.3f} to "
                    f"{held.held_until_s:.3f}, and item {one.number} from {one.got_s:.3f}",
                )
        if held is None or one.held_until_s > held.held_until_s:
            held = one
