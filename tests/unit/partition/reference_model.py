"""The rules of a partition, written again item by item and as simply as possible, as a reference
for the machine. The model shares no code with the machine, and has no blocks, segments or tables.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

NEVER = 0
VOID = 4


class Waits(NamedTuple):
    """A retry policy without jitter."""

    delay: int
    most: int
    backoff: int


NO_WAITS = Waits(0, 0, 1)


class Plan(NamedTuple):
    """What a producer says about an item. None: as its queue."""

    delay: int
    expire: int
    lease: int
    priority: int
    max_attempts: int | None
    waits: Waits | None
    key: str = ""
    what: int = 1
    most: int = 0
    """A dedup key, an `OnDuplicate`, and the limit of a bumped item."""
    asks: bool = False
    """Whether the item asks for its result. One that replaces others does not."""


@dataclass
class Item:
    seq: int
    expire_at: int = NEVER
    state: str = "ready"
    attempt: int = 0
    releases: int = 0
    place: int = 0
    due: int = 0
    lease: int = 0
    timeout: int = 0
    expire: int = 0
    errors: tuple[str, ...] = ()
    priority: int = 0
    age: int = 0
    attributes: tuple[tuple[str, str], ...] | None = None
    checkpoint: bytes = b""
    saved: tuple[int, int] = (0, 0)
    max_attempts: int | None = None
    waits: Waits | None = None
    key: str = ""
    first: int = 0
    own: int = 0
    """When the first of the items was produced that replaced each other; a place for itself.
    `saved` has the lease and revision of the checkpoint.
    """


class End(NamedTuple):
    """How an item has ended that asked for its result."""

    how: int
    data: bytes = b""
    reason: int = 0
    error: str = ""
    attempts: int = 0


COMPLETED, DEAD, REMOVED = 1, 2, 3


class Leaving(NamedTuple):
    """An item on its way to the dead queue."""

    seq: int
    reason: int
    attempts: int
    errors: tuple[str, ...]
    priority: int
    attributes: tuple[tuple[str, str], ...] | None
    max_attempts: int | None
    waits: Waits | None
    checkpoint: bytes = b""


@dataclass
class Lease:
    client: str
    deadline: int
    items: dict[int, str]
    live: bool = True
    timeout: int = 0
    ended_by: str = ""


@dataclass
class Reader:
    epoch: int = 0
    acked: int = 0
    last: int = 0
    batch: list[int] = field(default_factory=list)
    replays: int = 0
    dead: int = 0


class BreakerRule(NamedTuple):
    percent: int
    least: int
    window: int
    open: int
    probes: int


@dataclass
class Breaker:
    rule: BreakerRule
    first_lease: int
    """Outcomes of leases before it do not count."""
    state: str = "closed"
    until: int = 0
    outcomes: list[tuple[int, bool]] = field(default_factory=list)
    """(instant, whether it is a failure) of each item."""
    opened_for: tuple[int, int] = (0, 0)
    probe: int = 0
    passed: int = 0

    def counted(self, now: int) -> tuple[int, int]:
        """Outcomes and failures of the window, which moves in tenths."""
        if self.state != "closed":
            return self.opened_for
        first = now * 10 // self.rule.window - 9
        found = [bad for at, bad in self.outcomes if at * 10 // self.rule.window >= first]
        return len(found), sum(found)

    def outcome(
        self, now: int, settled: list[tuple[int, int]], failed: bool | None, next_lease: int
    ) -> None:
        """(lease, items) that one command has settled. `failed` None: the attempts do not count."""
        if self.state == "half_open" and self.probe in dict(settled):
            self.probe = 0
            if failed:
                self.open(now)
            elif failed is False:
                self.passed += 1
                if self.passed == self.rule.probes:
                    self.close(next_lease)
        elif self.state == "closed" and failed is not None:
            items = sum(items for lease, items in settled if lease >= self.first_lease)
            self.outcomes += [(now, failed)] * items
            count, bad = self.counted(now)
            if items and count >= self.rule.least and bad / count >= self.rule.percent / 100:
                self.open(now, (count, bad))

    def may_lease(self) -> int | None:
        """How many items may be leased; None: any number."""
        if self.state == "closed":
            return None
        return int(self.state == "half_open" and not self.probe)

    def half_open(self, now: int) -> None:
        if self.state == "open" and self.until <= now:
            self.state, self.until = "half_open", 0

    def open(self, now: int, why: tuple[int, int] = (0, 0)) -> None:
        self.state, self.until, self.opened_for = "open", now + self.rule.open, why
        self.outcomes, self.probe, self.passed = [], 0, 0

    def close(self, next_lease: int) -> None:
        self.state, self.until, self.opened_for = "closed", 0, (0, 0)
        self.outcomes, self.probe, self.passed = [], 0, 0
        self.first_lease = next_lease


class LimitRule(NamedTuple):
    """Tokens in each interval, and how many gather; 0 tokens: no bucket. Most leased items; 0: any
    number.
    """

    items: int
    interval: int
    burst: int
    most: int


@dataclass
class Limits:
    rule: LimitRule
    filled: Fraction
    """Tokens at the instant `at`."""
    at: int

    def tokens(self, now: int) -> Fraction:
        come = Fraction((now - self.at) * self.rule.items, self.rule.interval)
        return min(Fraction(self.rule.burst), self.filled + come)

    def may(self, wanted: int, leased: int, now: int) -> int:
        """How many of the items may be leased."""
        if self.rule.most:
            wanted = max(0, min(wanted, self.rule.most - leased))
        return min(wanted, int(self.tokens(now))) if self.rule.items else wanted

    def took(self, items: int, now: int) -> None:
        if self.rule.items:
            self.filled, self.at = self.tokens(now) - items, now

    def set(self, rule: LimitRule, now: int) -> None:
        """A bucket keeps its tokens. What is less than a unit of the new interval is lost."""
        filled = Fraction(rule.burst)
        if self.rule.items and rule.items:
            there = int(self.tokens(now) * rule.interval)
            filled = min(filled, Fraction(there, rule.interval))
        self.rule, self.filled, self.at = rule, filled, now


@dataclass
class ReferenceModel:
    now: int
    max_attempts: int = 0
    expire_timeout: int = 0
    waits: Waits = NO_WAITS
    aging: int = 0
    aged: int = 0
    aged_at: int = 0
    dead: bool = False
    lease_paused: bool = False
    produce_paused: bool = False
    breaker: Breaker | None = None
    limits: Limits | None = None
    items: dict[int, Item] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    answers: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    outbox: list[Leaving] = field(default_factory=list)
    readers: dict[str, Reader] = field(default_factory=dict)
    ended_epoch: int = 0
    count: dict[str, int] = field(default_factory=dict)
    next_seq: int = 1
    next_place: int = 1
    asked: set[int] = field(default_factory=set)
    ends: dict[int, End] = field(default_factory=dict)
    """How those of the asked items have ended. One that is gone without it was removed."""
    replaced: list[tuple[int, int]] = field(default_factory=list)
    """Of the last produce: (position, sequence of the item that is gone)."""
    repeats: set[int] = field(default_factory=set)
    """Of the last produce: sequences that no item has, because it repeats a dedup key."""

    def add(self, name: str, number: int = 1) -> None:
        self.count[name] = self.count.get(name, 0) + number

    @property
    def next_lease(self) -> int:
        return max(self.leases, default=0) + 1

    def set_rule(self, rule: BreakerRule | None) -> None:
        breaker = self.breaker
        if rule is None:
            self.breaker = None
        elif breaker is None:
            self.breaker = Breaker(rule, self.next_lease)
        elif rule != breaker.rule:
            before, breaker.rule = breaker.rule, rule
            if breaker.state == "open":
                breaker.until += rule.open - before.open
            elif breaker.state == "closed":
                breaker.outcomes = []
            elif breaker.passed >= rule.probes:
                breaker.close(self.next_lease)

    def set_limits(self, rule: LimitRule | None) -> None:
        if rule is None:
            self.limits = None
        elif self.limits is None:
            self.limits = Limits(rule, Fraction(rule.burst), self.now)
        else:
            self.limits.set(rule, self.now)

    def leasable(self, wanted: int) -> int:
        """How many of the wanted items may be leased, but for the breaker."""
        if self.lease_paused or self.limits is None:
            return 0 if self.lease_paused else wanted
        leased = sum(item.state == "leased" for item in self.items.values())
        return self.limits.may(wanted, leased, self.now)

    def reported(self) -> tuple[int, bool]:
        """How many items consumers can lease, and whether some wait for tokens."""
        ready = len(self.ready())
        of_breaker = None if self.breaker is None else self.breaker.may_lease()
        ready = ready if of_breaker is None else min(ready, of_breaker)
        may = self.leasable(ready)
        limits = self.limits
        if limits is None or not limits.rule.items or self.lease_paused or may or not ready:
            return may, False
        return may, limits.tokens(self.now) < 1 and (
            not limits.rule.most
            or sum(item.state == "leased" for item in self.items.values()) < limits.rule.most
        )

    def set_breaker(self, *, opened: bool) -> int | str:
        """1: it was in another state."""
        breaker = self.breaker
        if breaker is None:
            return "INVALID_ARGUMENT"
        before = breaker.state
        if opened:
            breaker.open(self.now)
        else:
            breaker.close(self.next_lease)
        return int(breaker.state != before)

    def outcome(self, lease: int, items: int, failed: bool | None) -> None:
        """None: the attempts do not count."""
        if self.breaker is not None and items:
            self.breaker.outcome(self.now, [(lease, items)], failed, self.next_lease)

    def admitted(self, callers: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """The callers, with the numbers of items that they may lease."""
        left = None if self.breaker is None else self.breaker.may_lease()
        if left is None:
            return callers
        found = []
        for client, wish in callers:
            found.append((client, min(left, wish)))
            left -= min(left, wish)
        return found

    def ready(self) -> list[Item]:
        items = [item for item in self.items.values() if item.state == "ready"]
        return sorted(items, key=lambda item: (item.priority + item.age, item.place))

    def age(self) -> int:
        return self.aged + ((self.now - self.aged_at) // self.aging if self.aging else 0)

    def make_ready(self, item: Item, place: int = 0) -> None:
        if item.expire_at and item.expire_at <= self.now:
            self.die(item, 2)
            return
        if not place:
            place, self.next_place = self.next_place, self.next_place + 1
            item.age = self.age()
        item.state, item.place, item.lease, item.due = "ready", place, 0, 0

    def fail(self, item: Item, later: int | None = None) -> None:
        """An attempt at the item has failed. It returns at `later`, 0: at once; None: by the retry
        policy.
        """
        if later is None:
            waits = item.waits or self.waits
            wait = waits.delay * (1, item.attempt, 2 ** (item.attempt - 1))[waits.backoff - 1]
            later = self.now + min(wait, waits.most) if wait else 0
        if self.is_spent(item):
            self.die(item, 1)
        elif later and not 0 < item.expire_at <= self.now:
            item.state, item.due, item.lease = "scheduled", later, 0
        else:
            self.make_ready(item)

    def is_spent(self, item: Item) -> bool:
        most = self.max_attempts if item.max_attempts is None else item.max_attempts
        return 0 < most <= item.attempt

    def die(self, item: Item, reason: int) -> None:
        self.add("dead")
        self.add("expired", reason == 2)
        error = item.errors[-1] if item.errors else ""
        self.end(item.seq, End(DEAD, b"", reason, error, item.attempt))
        if self.dead:
            item.state, item.lease = "moving", 0
            self.outbox.append(
                Leaving(
                    item.seq,
                    reason,
                    item.attempt,
                    item.errors,
                    item.priority,
                    item.attributes,
                    item.max_attempts,
                    item.waits,
                    item.checkpoint,
                )
            )
        else:
            self.add("dropped")
            del self.items[item.seq]

    def end(self, seq: int, end: End) -> None:
        """The first end of an item counts."""
        if seq in self.asked:
            self.ends.setdefault(seq, end)

    def sweep(self) -> None:
        """What is gone without an end was removed."""
        for seq in self.asked - set(self.items):
            self.end(seq, End(REMOVED))

    def give_up(self, seqs: range) -> int:
        """Gives up the items of a block, except leased and reserved ones; returns their number."""
        waiting = [
            item
            for item in self.items.values()
            if item.seq in seqs and item.state in ("ready", "scheduled")
        ]
        for item in waiting:
            self.drop(item.seq)
        count = len(waiting)
        for place, leaving in enumerate(self.outbox):
            if leaving.seq in seqs and leaving.reason != VOID:
                self.outbox[place] = leaving._replace(reason=VOID)
                count += 1
        return count

    def drop(self, seq: int) -> None:
        self.add("dropped")
        self.add("given_up")
        del self.items[seq]

    def reschedule(
        self, seqs: list[int], delay: int, cancel: bool, since: int, until: int
    ) -> tuple[int, set[int]]:
        """The number of changed items, and the named ones that are not scheduled for a time in the
        span. `delay` below 100: now. `until` 0: no end.
        """
        due = self.now + delay if delay >= 100 else 0
        found = [
            item
            for item in self.items.values()
            if item.seq in seqs
            and item.state == "scheduled"
            and since <= item.due
            and (not until or item.due < until)
            and not 0 < item.expire_at <= self.now
        ]
        missing = set(seqs) - {item.seq for item in found}
        changed = [item for item in found if cancel or item.due != due]
        for item in sorted(changed, key=lambda item: (item.due, item.seq)):
            if cancel:
                del self.items[item.seq]
                self.add("cancelled")
                continue
            timeouts = [t for t in (item.expire, self.expire_timeout) if t]
            base = due or self.now
            item.expire_at = -(-(base + min(timeouts)) // 1000) * 1000 if timeouts else NEVER
            if due:
                item.due = due
            else:
                self.make_ready(item)
        return len(changed), missing

    def cancel(self, seqs: list[int]) -> tuple[int, set[int]]:
        """The number of removed items, and the named ones that do not wait."""
        waiting = {
            seq
            for seq in seqs
            if seq in self.items and self.items[seq].state in ("ready", "scheduled")
        }
        self.forget(waiting)
        return len(waiting), set(seqs) - waiting

    def purge(self, upto: int, *, scheduled: bool) -> int:
        states = ("ready", "scheduled") if scheduled else ("ready",)
        found = {i.seq for i in self.items.values() if i.seq <= upto and i.state in states}
        self.forget(found)
        return len(found)

    def forget(self, seqs: set[int]) -> None:
        for seq in seqs:
            del self.items[seq]
        self.add("cancelled", len(seqs))

    def prioritize(self, seqs: list[int], priority: int) -> tuple[int, set[int]]:
        """The number of changed items, and the named ones that do not wait."""
        found = [
            item
            for item in self.items.values()
            if item.seq in seqs and item.state in ("ready", "scheduled")
        ]
        changed = [item for item in found if item.priority != priority]
        for item in sorted(changed, key=lambda item: item.seq):
            item.priority = priority
            if item.state == "ready":
                self.make_ready(item)
        return len(changed), set(seqs) - {item.seq for item in found}

    def produce(self, plans: list[Plan], identity: tuple[int, int], ordered: bool) -> object:
        """`identity` is (producer, sequence); producer 0: none."""
        if identity in self.answers:
            self.next_seq += len(plans)
            self.add("duplicates", self.answers[identity][1])
            return self.answers[identity]
        if refused := self.refused(identity, ordered):
            self.next_seq += len(plans)
            return refused
        if identity[0]:
            self.answers[identity] = (self.next_seq, len(plans))
        first, count = self.store(plans)
        for seq, plan in enumerate(plans, first):
            if plan.asks and seq not in self.repeats:
                self.asked.add(seq)
        return first, count

    def store(self, plans: list[Plan]) -> tuple[int, int]:
        """Items come, by a produce or as follow-ups: the first sequence, and their number."""
        first, self.next_seq = self.next_seq, self.next_seq + len(plans)
        stored = 0
        self.replaced = []
        self.repeats = set()
        moved: set[int] = set()
        for seq, plan in enumerate(plans, first):
            delay, expire, lease, priority, max_attempts, waits, key, what, most, _ = plan
            holder = self.holder(key) if key else None
            if holder and what == 1:
                self.repeats.add(seq)
                self.add("duplicates")
                continue
            stored += 1
            since, place, age = self.now, 0, 0
            if what == 3:
                delay = min(delay, most)
            if holder and holder.state in ("ready", "scheduled"):
                since = holder.first
                delay = self.start_of(holder, plan)
                # An item of this request that took no place over has none yet.
                known = holder.seq < first or holder.seq in moved
                if known and delay < 100 and self.leaves_place(holder, priority):
                    place, age = holder.place, holder.age
                    moved.add(seq)
                del self.items[holder.seq]
                self.add("replaced")
                self.replaced.append((seq - first, holder.seq))
            elif holder:
                holder.key = ""
            delay = delay if delay >= 100 else 0
            timeouts = [t for t in (expire, self.expire_timeout) if t]
            item = Item(
                seq,
                timeout=lease,
                expire=expire,
                priority=priority,
                max_attempts=max_attempts,
                waits=waits,
                key=key,
                first=since,
                age=age,
            )
            if timeouts:
                item.expire_at = -(-(self.now + delay + min(timeouts)) // 1000) * 1000
            self.items[seq] = item
            if delay:
                item.state, item.due = "scheduled", self.now + delay
            else:
                self.make_ready(item, place)
                item.own = item.place if what > 1 else 0
        self.add("produced", stored)
        return (first, len(plans))

    def refused(self, identity: tuple[int, int], ordered: bool) -> str:
        highest = max((s for p, s in self.answers if p == identity[0]), default=0)
        if identity[0] and ordered and identity[1] != highest + 1:
            return "SEQUENCE_GAP" if identity[1] > highest else "PRODUCER_EXPIRED"
        return "QUEUE_PAUSED" if self.produce_paused else ""

    def start_of(self, holder: Item, plan: Plan) -> int:
        """In how many ms an item starts that replaces `holder`."""
        if plan.what == 2:
            return holder.due - self.now if holder.state == "scheduled" else 0
        return min(plan.delay, holder.first + plan.most - self.now)

    def leaves_place(self, holder: Item, priority: int) -> bool:
        if holder.state != "ready" or holder.priority != priority:
            return False
        return holder.own == holder.place

    def holder(self, key: str) -> Item | None:
        """The item with a dedup key, which it has until it is done."""
        found = [item for item in self.items.values() if item.key == key and item.state != "moving"]
        assert len(found) < 2
        return found[0] if found else None

    def take(self, wanted: int, named: Collection[int] | None = None) -> list[Item]:
        """Takes ready items from the head. Dead items that it meets on the way die."""
        if named is not None:
            return self.take_named(wanted, named)
        found: list[Item] = []
        for item in self.ready():
            if len(found) >= wanted:
                break
            if item.expire_at and item.expire_at <= self.now:
                self.die(item, 2)
            elif self.is_spent(item):
                self.die(item, 1)
            else:
                found.append(item)
        return found

    def take_named(self, wanted: int, named: Collection[int]) -> list[Item]:
        if not wanted:
            return []
        for seq in sorted(named):
            item = self.items.get(seq)
            if item is None or item.state != "ready":
                continue
            if item.expire_at and item.expire_at <= self.now:
                self.die(item, 2)
            elif self.is_spent(item):
                self.die(item, 1)
        return [item for item in self.ready() if item.seq in named][:wanted]

    def open_reader(self, name: str) -> Reader:
        reader = self.readers.setdefault(name, Reader(self.ended_epoch))
        reader.epoch += 1
        reader.replays += bool(reader.batch)
        return reader

    def advance(self, name: str, epoch: int, ack: int, wanted: int) -> Reader | str:
        reader = self.readers.get(name)
        if reader is None or epoch > reader.epoch:
            return "READER_NOT_FOUND"
        if epoch < reader.epoch:
            return "READER_FENCED"
        if not reader.acked <= ack <= reader.last:
            return "ACK_MISMATCH"
        done = reader.acked, reader.dead, reader.last if reader.batch else 0
        if ack not in done:
            return "BATCH_RELEASED"
        if reader.batch and ack == reader.last:
            for seq in reader.batch:
                self.end(seq, End(COMPLETED))
                del self.items[seq]
            self.add("acknowledged", len(reader.batch))
            reader.batch = []
        reader.acked = ack
        if not reader.batch and wanted and not self.lease_paused:
            taken = self.take(wanted)
            for item in taken:
                item.state = "reserved"
            reader.batch, reader.replays = [item.seq for item in taken], 0
            reader.last += bool(taken)
        return reader

    def release(self, name: str, seq: int, *, dead: bool) -> int | str:
        reader = self.readers.get(name)
        if reader is None:
            return "READER_NOT_FOUND"
        if not reader.batch or seq != reader.last:
            return 0
        items, reader.batch = [self.items[number] for number in reader.batch], []
        if dead:
            reader.dead = seq
        for item in items:
            item.attempt += 1
            if dead:
                self.die(item, 3)
            elif self.is_spent(item):
                self.die(item, 1)
            else:
                self.make_ready(item, item.place)
        return len(items)

    def remove(self, name: str, seq: int) -> int | str:
        reader = self.readers.get(name)
        if reader is None:
            return 0
        if reader.batch and seq != reader.last:
            return "ACK_MISMATCH"
        released = self.release(name, seq, dead=False)
        del self.readers[name]
        self.ended_epoch = max(self.ended_epoch, reader.epoch)
        return released

    def lease(
        self,
        number: int,
        callers: list[tuple[str, int]],
        timeout: int,
        named: Collection[int] | None = None,
    ) -> list[list[tuple[int, int]]]:
        """Grants of (item, lease). Each caller's items with the same lease timeout are under one
        lease; leases are numbered from `number` on. Dead items that the lease meets on the way die.
        `named`: only these items, for one caller that meets all of them; None: the first ones.
        """
        callers = self.admitted(callers)
        wanted = self.leasable(sum(wish for _, wish in callers))
        found = self.take(wanted, named) if wanted else []
        if self.limits is not None:
            self.limits.took(len(found), self.now)
        if found and self.breaker is not None and self.breaker.state == "half_open":
            self.breaker.probe = number
        shares = [0] * len(callers)
        left = len(found)
        while left:
            for place, (_, wish) in enumerate(callers):
                if left and shares[place] < wish:
                    shares[place] += 1
                    left -= 1
        grants = []
        for (client, _), share in zip(callers, shares, strict=True):
            mine, found = found[:share], found[share:]
            by_timeout: dict[int, int] = {}
            for item in mine:
                if item.timeout not in by_timeout:
                    ends = self.now + (item.timeout or timeout)
                    self.leases[number] = Lease(client, ends, {}, timeout=item.timeout)
                    by_timeout[item.timeout], number = number, number + 1
                item.lease = by_timeout[item.timeout]
                self.leases[item.lease].items[item.seq] = "held"
                item.state, item.attempt = "leased", item.attempt + 1
            grants.append([(item.seq, item.lease) for item in mine])
            self.add("delivered", share)
        return grants

    def settle(
        self, lease: int, seqs: list[int], verb: str, do: bool = True
    ) -> tuple[set[int], set[int], set[int], list[Item]]:
        """(done, repeated, lost, done items in the lease's order). Empty `seqs`: all items that the
        lease holds.
        """
        items = self.leases[lease].items if lease in self.leases else {}
        if not seqs and items and self.leases[lease].ended_by not in ("", verb):
            seqs = list(items)
        elif not seqs:
            seqs = [seq for seq, fate in items.items() if fate in ("held", "lapsed", verb)]
        done = [self.items[seq] for seq in items if seq in seqs and items[seq] == "held"]
        repeated = {seq for seq in seqs if items.get(seq) == verb}
        lost = set(seqs) - repeated - {item.seq for item in done}
        if do:
            for item in done:
                items[item.seq] = verb
            if items and self.leases[lease].live and "held" not in items.values():
                self.leases[lease].live, self.leases[lease].ended_by = False, verb
        return {item.seq for item in done}, repeated, lost, done

    def complete(self, done: list[Item], returned: dict[int, bytes]) -> None:
        for item in done:
            self.end(item.seq, End(COMPLETED, returned.get(item.seq, b"")))
            del self.items[item.seq]
        self.add("completed", len(done))
        self.outcome(done[0].lease, len(done), failed=False)

    def retry(
        self,
        done: list[Item],
        delay: int,
        *,
        dead: bool,
        error: str,
        counted: bool,
        priority: int | None,
        attributes: tuple[tuple[str, str], ...] | None,
        clear: bool = False,
    ) -> None:
        later = self.now + delay if delay >= 100 else 0
        self.outcome(done[0].lease, len(done), failed=dead or counted or None)
        self.add("retried" if dead or counted or delay else "released", len(done))
        for item in done:
            moves = priority is not None and priority != item.priority
            item.lease = 0
            item.priority = item.priority if priority is None else priority
            item.attributes = item.attributes if attributes is None else attributes
            if clear:
                item.checkpoint, item.saved = b"", (0, 0)
            if error:
                item.errors = (*item.errors, error)[-5:]
            if dead:
                self.die(item, 3)
                continue
            if counted:
                self.fail(item, later if delay else None)
                continue
            item.releases += 1
            item.attempt -= 1
            if later and not 0 < item.expire_at <= self.now:
                item.state, item.due = "scheduled", later
            else:
                self.make_ready(item, 0 if delay or moves else item.place)

    def extend(self, lease: int, timeout: int, queue_timeout: int) -> int:
        held = self.leases.get(lease)
        if held is None or not held.live:
            return 0
        timeout = timeout or held.timeout or queue_timeout
        held.deadline = max(held.deadline, self.now + timeout)
        return held.deadline

    def save(self, lease: int, seq: int, data: bytes, revision: int) -> bool:
        """Returns whether the lease may save a checkpoint for the item."""
        held = self.leases.get(lease)
        if held is None or not held.live or held.items.get(seq) != "held":
            return False
        item = self.items[seq]
        if item.saved[0] != lease or not 0 < revision <= item.saved[1]:
            item.checkpoint, item.saved = data, (lease, revision)
        return True

    def work_off(self) -> None:
        """Processes all that is due: lapses, expiries, schedules."""
        due = [(lease.deadline, number) for number, lease in self.leases.items() if lease.live]
        for deadline, number in sorted(due):
            if deadline <= self.now:
                lease = self.leases[number]
                lease.live = False
                held = list(lease.items.values()).count("held")
                self.outcome(number, held, failed=True)
                for seq, fate in lease.items.items():
                    if fate == "held":
                        lease.items[seq] = "lapsed"
                        self.add("lapsed")
                        item = self.items[seq]
                        self.fail(item)
        for item in sorted(self.items.values(), key=lambda item: item.seq):
            if item.state in ("ready", "scheduled") and item.expire_at:
                if item.expire_at <= self.now:
                    self.die(item, 2)
        waiting = [item for item in self.items.values() if item.state == "scheduled"]
        for item in sorted(waiting, key=lambda item: (item.due, item.seq)):
            if item.due <= self.now:
                self.make_ready(item)
        if self.breaker is not None:
            self.breaker.half_open(self.now)
