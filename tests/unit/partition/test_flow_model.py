"""Fair and keyed queues compared with a model item by item. The model does not know whose turn it
is: it follows the machine's choice, and checks that the choice is a permitted one.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from querator.model.commands import (
    Cancel,
    Complete,
    FlowSettings,
    ItemSpecial,
    Lease,
    LeaseGrant,
    LeaseItems,
    MoveReturn,
    Prioritize,
    Purge,
    Refusal,
    Reschedule,
    Retry,
)
from querator.model.item_options import OnDuplicate
from querator.model.queues import DedupUntil, Fairness, GroupSettings, QueueKind
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import masks, queries, reader_queries
from querator.partition.rows import RowState
from tests.unit.partition.flow_queue import FlowQueue
from tests.unit.partition.partition_log import GROUP, caller, dead_to

LEASE_MS = 10_000
BUMPED_MS = 9_000
GROUPS = ["", "a", "b", "c", "c.x", "c.y", "c.y.deep", "d"]
KEYS = ["", "k1", "k2", "k3", "k4"]
group_settings = st.lists(
    st.builds(GroupSettings, st.sampled_from(GROUPS[1:]), st.sampled_from([1, 2, 7]),
              st.sampled_from([0, 0, 1, 3]), st.sampled_from([False, False, False, True])),
    max_size=4,
    unique_by=lambda one: one.path,
).map(lambda some: tuple(sorted(some, key=lambda one: one.path)))  # fmt: skip
fair_settings = st.builds(
    FlowSettings,
    st.just(QueueKind.FAIR),
    st.sampled_from(Fairness),
    st.sampled_from([0, 0, 2, 5]),
    group_settings,
)
keyed_settings = st.builds(
    FlowSettings,
    st.just(QueueKind.KEYED),
    key_leased_max=st.sampled_from([1, 1, 3]),
    key_retry_blocks=st.booleans(),
)


@dataclass
class Item:
    seq: int
    name: str
    priority: int = 0
    state: str = "ready"
    place: int = 0
    due: int = 0
    lease: int = 0
    blocks: bool = False
    dedup: str = ""
    since: int = 0
    own: int = -1
    """A dedup key, when the first item was produced of those that replaced each other, and a place
    for itself.
    """


@dataclass
class Model:
    flows: FlowSettings
    now: int
    max_attempts: int = 0
    items: dict[int, Item] = field(default_factory=dict)
    next_place: int = 1

    @property
    def keyed(self) -> bool:
        return self.flows.kind is QueueKind.KEYED

    def tail(self, item: Item) -> None:
        item.state, item.place, item.lease, item.due = "ready", self.next_place, 0, 0
        item.blocks = False
        self.next_place += 1

    def head(self, item: Item) -> None:
        item.state, item.lease, item.due, item.blocks = "ready", 0, 0, False

    def ordered(self, item: Item) -> bool:
        return self.keyed and item.name != ""

    def those(self, name: str, *states: str) -> list[Item]:
        return [one for one in self.items.values() if one.name == name and one.state in states]

    def queue_of(self, name: str) -> list[Item]:
        """The ready items of a flow, in the order of leasing."""
        return sorted(self.those(name, "ready"), key=lambda one: (one.priority, one.place))

    def room(self, path: str) -> int:
        """How many more items of a group may be leased, with those below it."""
        most = self.flows.group_leased_max
        for one in self.flows.groups:
            if one.path == path and one.paused:
                return 0
            if one.path == path and one.leased_max:
                most = one.leased_max
        leased = sum(
            one.state in ("leased", "reserved") and f"{one.name}.".startswith(f"{path}.")
            for one in self.items.values()
        )
        return max(0, most - leased) if most else 10**9

    def leasable(self, name: str = "", depth: int = 0) -> int:
        """How many items of a group and of those below it may be leased now; of all, at depth 0."""
        if self.keyed:
            return sum(self._of_key(key) for key in KEYS)
        own = len(self.those(name, "ready"))
        below = {
            ".".join(one.name.split(".")[: depth + 1])
            for one in self.items.values()
            if one.name and len(one.name.split(".")) > depth
            and (not depth or one.name.startswith(f"{name}."))
        }  # fmt: skip
        total = own + sum(self.leasable(path, depth + 1) for path in sorted(below))
        return min(total, self.room(name)) if depth else total

    def _of_key(self, key: str) -> int:
        ready = len(self.those(key, "ready"))
        if not key:
            return ready
        if self.those(key, "leased", "reserved") or any(
            one.blocks for one in self.those(key, "scheduled")
        ):
            return 0
        return min(ready, self.flows.key_leased_max)


class FlowComparison(RuleBasedStateMachine):
    def begin(self, flows: FlowSettings, max_attempts: int) -> None:
        self.max_attempts = max_attempts
        self.options: dict[str, Any] = {
            "max_attempts": max_attempts,
            "lease_timeout_ms": LEASE_MS,
            "dead_targets": dead_to(9) if max_attempts else (),
            "dedup_until": DedupUntil.DONE,
        }
        self.queue = FlowQueue(flows, all_events=True, **self.options)
        self.model = Model(flows, self.queue.now_ms, max_attempts)
        self.attempts: dict[int, int] = {}
        self.leases: dict[int, tuple[int, list[int]]] = {}
        self.batch: tuple[int, list[int]] | None = None
        self.reader = (0, 0)
        self.moving: list[Item] = []

    def name(self, choice: int) -> str:
        names = KEYS if self.model.keyed else GROUPS
        return names[choice % len(names)]

    @rule(
        choices=st.lists(st.integers(0, 7), min_size=1, max_size=12),
        delays=st.lists(st.sampled_from([0, 0, 0, 1000]), min_size=12, max_size=12),
        priorities=st.lists(st.sampled_from([0, 0, 0, -3, 4]), min_size=12, max_size=12),
    )
    def produce(self, choices: list[int], delays: list[int], priorities: list[int]) -> None:
        names = [self.name(choice) for choice in choices]
        specials = tuple(
            ItemSpecial(
                n, self.queue.now_ms + delays[n] if delays[n] else 0, priority=priorities[n]
            )
            for n in range(len(names))
            if delays[n] or priorities[n]
        )
        for n, seq in enumerate(self.queue.put(*names, specials=specials)):
            item = self.model.items[seq] = Item(seq, names[n])
            item.priority = 0 if self.model.keyed else priorities[n]
            self.attempts[seq] = 0
            if delays[n]:
                item.state, item.due = "scheduled", self.queue.now_ms + delays[n]
            else:
                self.model.tail(item)

    @rule(
        choice=st.integers(0, 7),
        dedup=st.sampled_from("xyz"),
        delay=st.sampled_from([None, None, 1, 3000]),
        priority=st.sampled_from([0, 0, 0, 4]),
    )
    def replace(self, choice: int, dedup: str, delay: int | None, priority: int) -> None:
        """An item replaces the one that has its dedup key, or is bumped (`delay`)."""
        now, name = self.queue.now_ms, self.name(choice)
        what = OnDuplicate.REPLACE if delay is None else OnDuplicate.BUMP
        special = ItemSpecial(
            0, now + delay if delay else 0, dedup_key=dedup.encode(), priority=priority,
            on_duplicate=what, debounce_max_ms=BUMPED_MS if delay else 0,
        )  # fmt: skip
        items = self.model.items
        holder = next((item for item in items.values() if item.dedup == dedup), None)
        [seq] = self.queue.put(name, specials=(special,))
        item = Item(seq, name, 0 if self.model.keyed else priority, dedup=dedup, since=now)
        self.attempts[seq] = 0
        if holder is not None:
            holder.dedup = ""
            if holder.state in ("ready", "scheduled"):
                del items[holder.seq]
                item.since, item.due = holder.since, holder.due
                self._take_place(item, holder)
        if delay:
            item.due = min(now + delay, item.since + BUMPED_MS)
        items[seq] = item
        if item.due - now >= 100:
            item.state, item.blocks = "scheduled", item.blocks and not delay
            item.own = item.place if item.blocks else -1
        elif item.own < 0:
            self.model.tail(item)
            item.own = item.place
        else:
            self.model.head(item)

    def _take_place(self, item: Item, holder: Item) -> None:
        alike = (holder.name, holder.priority) == (item.name, item.priority)
        if alike and holder.own == holder.place and (holder.state == "ready" or holder.blocks):
            item.place = item.own = holder.place
            item.blocks = holder.blocks

    @rule(wishes=st.lists(st.integers(1, 9), min_size=1, max_size=3))
    def lease(self, wishes: list[int]) -> None:
        leasable = self.model.leasable()
        before = {name: self.model.queue_of(name) for name in {*KEYS, *GROUPS}}
        grants = self.queue.one(
            Lease(tuple(caller(wish, client_id="abc"[n]) for n, wish in enumerate(wishes)))
        ).grants
        taken: list[Item] = []
        keys: set[str] = set()
        for grant, wish in zip(grants, wishes, strict=True):
            mine = [self.model.items[seq] for seq in self._granted(grant)]
            assert len(mine) <= wish
            named = {item.name for item in mine if self.model.ordered(item)}
            assert not named & keys, "all leased items of a key are one consumer's"
            keys |= named
            for name in named:
                together = [item for item in mine if item.name == name]
                assert len(together) <= self.model.flows.key_leased_max
                assert together == before[name][: len(together)]
            taken += mine
        for name, waiting in before.items():
            mine = [item for item in taken if item.name == name]
            assert sorted(item.seq for item in mine) == sorted(
                item.seq for item in waiting[: len(mine)]
            )
        if self.model.keyed:
            # What a caller leaves of a key is not for the next one.
            assert bool(taken) == bool(leasable)
        else:
            assert len(taken) == min(leasable, sum(wishes))
        if taken and not self.model.keyed:
            self._strict(taken)
        for item in taken:
            item.state = "leased"
            self.attempts[item.seq] += 1
        assert all(self.model.room(path) >= 0 for path in GROUPS[1:])

    def _strict(self, taken: list[Item]) -> None:
        """Nothing was taken while an item of a lower rank could be: checked without limits."""
        if self.model.flows.group_leased_max or any(
            one.leased_max or one.paused for one in self.model.flows.groups
        ):
            return
        left = [
            item.priority
            for item in self.model.items.values()
            if item.state == "ready" and item not in taken
        ]
        assert not left or max(item.priority for item in taken) <= min(left)

    def _granted(self, grant: LeaseGrant | Refusal) -> list[int]:
        assert isinstance(grant, LeaseGrant)
        found = []
        for segment in grant.segments:
            lease = segment.lease or grant.lease
            seqs = [segment.first_seq + n for n in masks.ordinals(segment.mask)]
            self.leases.setdefault(lease, (self.queue.now_ms + LEASE_MS, []))[1].extend(seqs)
            for seq in seqs:
                self.model.items[seq].lease = lease
            found += seqs
        return found

    @rule(
        data=st.data(),
        how=st.sampled_from(["complete", "complete", "retry", "later", "release", "reject"]),
        priority=st.sampled_from([None, None, None, 2]),
    )
    def settle(self, data: st.DataObject, how: str, priority: int | None) -> None:
        if not self.leases:
            return
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        seqs = sorted(data.draw(st.sets(st.sampled_from(self.leases[lease][1]), min_size=1)))
        named = (LeaseItems(lease, masks.merge_ranges((seq, 1) for seq in seqs)),)
        if how == "complete":
            self.queue.one(Complete(named))
        else:
            self.queue.one(
                Retry(
                    named,
                    retry_at_ms=self.queue.now_ms + 2000 if how == "later" else 0,
                    dead=how == "reject",
                    count_attempt=how != "release",
                    priority=priority,
                )
            )
        order = [seq for seq in self.leases[lease][1] if seq in seqs]
        left = [seq for seq in self.leases[lease][1] if seq not in seqs]
        del self.leases[lease]
        if left:
            self.leases[lease] = (self.queue.now_ms + LEASE_MS, left)
        for seq in order:
            self._settled(self.model.items[seq], how, None if self.model.keyed else priority)

    def _settled(self, item: Item, how: str, priority: int | None) -> None:
        moves = priority not in (None, item.priority)
        if how == "complete":
            del self.model.items[item.seq]
            return
        if priority is not None:
            item.priority = priority
        if how == "reject" or (how != "release" and self._spent(item)):
            self._dies(item)
        elif how == "later":
            item.state, item.due, item.lease = "scheduled", self.queue.now_ms + 2000, 0
            item.blocks = self.model.ordered(item) and self.model.flows.key_retry_blocks
        elif self.model.ordered(item) or (how == "release" and not moves):
            self.model.head(item)
        else:
            self.model.tail(item)
        if how == "release":
            self.attempts[item.seq] -= 1

    def _spent(self, item: Item) -> bool:
        return 0 < self.max_attempts <= self.attempts[item.seq]

    def _dies(self, item: Item) -> None:
        item.dedup = ""
        if self.options["dead_targets"]:
            item.state, item.lease, item.blocks = "moving", 0, False
            self.moving.append(item)
        else:
            del self.model.items[item.seq]

    @rule(milliseconds=st.sampled_from([500, 1000, 5000, 12_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.queue.advance(milliseconds)
        now = self.queue.now_ms
        for lease in sorted(self.leases):
            if self._deadline(lease) <= now:
                for seq in self.leases.pop(lease)[1]:
                    self._settled(self.model.items[seq], "retry", None)
        waiting = [item for item in self.model.items.values() if item.state == "scheduled"]
        for item in sorted(waiting, key=lambda item: (item.due, item.seq)):
            if item.due <= now:
                if item.blocks:
                    self.model.head(item)
                else:
                    self.model.tail(item)

    def _deadline(self, lease: int) -> int:
        with self.queue.environment.snapshot() as txn:
            page = queries.peek(txn, GROUP, None, after_seq=0, limit=10_000, bytes_max=10**9)
        return 0 if all(item.lease != lease for item in page.items) else 1 << 62

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.model.items:
            names = data.draw(st.sets(st.sampled_from(sorted(self.model.items)), max_size=4))
            self.queue.one(Cancel(masks.merge_ranges((seq, 1) for seq in names)))
            for seq in names:
                if self.model.items[seq].state in ("ready", "scheduled"):
                    del self.model.items[seq]

    @rule(back=st.integers(0, 9))
    def purge(self, back: int) -> None:
        upto = max([0, *self.model.items]) - back
        self.queue.one(Purge(0, max(0, upto), scheduled=True))
        for seq in [seq for seq in self.model.items if seq <= upto]:
            if self.model.items[seq].state in ("ready", "scheduled"):
                del self.model.items[seq]

    @rule(data=st.data(), priority=st.sampled_from([0, -3, 4]))
    def prioritize(self, data: st.DataObject, priority: int) -> None:
        if not self.model.items:
            return
        names = sorted(data.draw(st.sets(st.sampled_from(sorted(self.model.items)), min_size=1)))
        result = self.queue.one(Prioritize(masks.merge_ranges((seq, 1) for seq in names), priority))
        if self.model.keyed:
            assert result.field == "priority"
            return
        for seq in names:
            item = self.model.items[seq]
            if item.state in ("ready", "scheduled") and item.priority != priority:
                item.priority = priority
                if item.state == "ready":
                    self.model.tail(item)

    @rule(data=st.data(), delay=st.sampled_from([0, 1000, 3000]))
    def reschedule(self, data: st.DataObject, delay: int) -> None:
        waiting = [item for item in self.model.items.values() if item.state == "scheduled"]
        if not waiting:
            return
        seqs = data.draw(st.sets(st.sampled_from([item.seq for item in waiting]), min_size=1))
        due = self.queue.now_ms + delay if delay else 0
        self.queue.one(Reschedule(masks.merge_ranges((seq, 1) for seq in sorted(seqs)), due))
        for item in sorted(waiting, key=lambda item: (item.due, item.seq)):
            if item.seq in seqs:
                if due:
                    item.due = due
                elif item.blocks:
                    self.model.head(item)
                else:
                    self.model.tail(item)

    @rule(wanted=st.sampled_from([1, 3, 20]))
    def reserve(self, wanted: int) -> None:
        if self.batch is not None:
            return
        epoch, acked = self.reader
        if not epoch:
            self.reader = epoch, acked = self.queue.one(OpenReader("lake")).epoch, 0
        command = AdvanceReader("lake", epoch, acked, wanted, 10**6)
        with self.queue.environment.snapshot() as txn:
            outlook = reader_queries.outlook(txn, GROUP, command)
        assert outlook.ready == self.model.leasable()
        result = self.queue.one(command)
        assert (result.batch is not None) == (self.model.leasable() > 0)
        if result.batch is None:
            return
        with self.queue.environment.snapshot() as txn:
            page = queries.peek(txn, GROUP, None, after_seq=0, limit=10_000, bytes_max=10**9)
        seqs = [item.seq for item in page.items if item.state == RowState.RESERVED]
        assert 0 < len(seqs) <= wanted
        before = {name: self.model.queue_of(name) for name in {*KEYS, *GROUPS}}
        for name, waiting in before.items():
            mine = sorted(seq for seq in seqs if self.model.items[seq].name == name)
            assert mine == sorted(item.seq for item in waiting[: len(mine)])
            if mine and name and self.model.keyed:
                assert not self.model.those(name, "leased")
        for seq in seqs:
            self.model.items[seq].state = "reserved"
        self.batch = result.batch.seq, seqs

    @rule(acknowledges=st.booleans())
    def finish_batch(self, acknowledges: bool) -> None:
        if self.batch is None:
            return
        seq, seqs = self.batch
        epoch, acked = self.reader
        if acknowledges:
            self.queue.one(AdvanceReader("lake", epoch, seq, 0, 0))
            self.reader = epoch, seq
            for one in seqs:
                del self.model.items[one]
        else:
            self.queue.one(ReleaseReader("lake", seq))
            for one in seqs:
                self.attempts[one] += 1
                if self._spent(self.model.items[one]):
                    self._dies(self.model.items[one])
                else:
                    self.model.head(self.model.items[one])
            self.queue.one(AdvanceReader("lake", epoch, acked, 0, 0))
        self.batch = None

    @rule()
    def letters_return(self) -> None:
        self.queue.one(MoveReturn(9))
        for item in self.moving:
            self.attempts[item.seq] = 0
            self.model.tail(item)
        self.moving = []

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        with self.queue.environment.snapshot() as txn:
            page = queries.peek(txn, GROUP, None, after_seq=0, limit=10_000, bytes_max=10**9)
        assert [
            (item.seq, RowState(item.state).name.lower(), item.priority) for item in page.items
        ] == [
            (item.seq, item.state, item.priority)
            for item in sorted(self.model.items.values(), key=lambda item: item.seq)
        ]
        assert self.queue.applied.effects.ready == self.model.leasable()


class FairComparison(FlowComparison):
    @initialize(flows=fair_settings, max_attempts=st.sampled_from([0, 2]))
    def start(self, flows: FlowSettings, max_attempts: int) -> None:
        self.begin(flows, max_attempts)

    @rule(flows=fair_settings)
    def configure(self, flows: FlowSettings) -> None:
        self.queue.set(flows, **self.options)
        self.queue.advance(0)
        self.model.flows = flows


class KeyedComparison(FlowComparison):
    @initialize(flows=keyed_settings, max_attempts=st.sampled_from([0, 2]))
    def start(self, flows: FlowSettings, max_attempts: int) -> None:
        self.begin(flows, max_attempts)

    @rule(flows=keyed_settings)
    def configure(self, flows: FlowSettings) -> None:
        self.queue.set(flows, **self.options)
        self.queue.advance(0)
        self.model.flows = flows


_settings = hypothesis_settings(max_examples=40, stateful_step_count=40, deadline=None)
FairComparison.TestCase.settings = _settings
KeyedComparison.TestCase.settings = _settings
TestFairComparison = FairComparison.TestCase
TestKeyedComparison = KeyedComparison.TestCase
