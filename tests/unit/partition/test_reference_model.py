"""The machine compared with the model: after every step both have the same items in the same states
and order.
"""

from struct import pack
from typing import Any

import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from querator.model.calls import PartitionCounts
from querator.model.commands import (
    Answer,
    AnsweredItem,
    Attributes,
    Cancel,
    Complete,
    Configure,
    DropLetters,
    Extend,
    Follow,
    FollowTarget,
    GiveUp,
    ItemCheckpoint,
    ItemSpecial,
    ItemsRemoved,
    Lease,
    LeaseGrant,
    LeaseItems,
    LetterFilter,
    Move,
    MoveDone,
    Prioritize,
    Purge,
    Refusal,
    Reschedule,
    Retry,
    SaveCheckpoints,
    SetBreaker,
)
from querator.model.entries import Proposal
from querator.model.item_options import OnDuplicate
from querator.model.lease_limits import LeaseLimits
from querator.model.queues import BreakerSettings, DedupUntil, RetryBackoff, RetryWaits
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import masks, queries, reader_queries
from querator.partition.result_queries import ended_items
from querator.partition.rows import RowState, decode_block, decode_segment, decode_state
from querator.partition.segments import ready_rows
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import BLOCKS, SEGMENTS, STATE
from tests.unit.partition.partition_log import (
    GROUP,
    START_MS,
    PartitionLog,
    caller,
    dead_to,
    settings,
)
from tests.unit.partition.reference_model import (
    VOID,
    BreakerRule,
    End,
    LimitRule,
    Plan,
    Reader,
    ReferenceModel,
    Waits,
)

DEAD_GROUP = 9
LEASE_MS = 10_000
KEEP_MS = 3_600_000
"""Longer than a run: the results stay."""
COUNTERS = (
    "produced", "completed", "retried", "released", "lapsed", "dead", "dropped", "delivered",
    "duplicates", "expired", "acknowledged", "given_up", "cancelled",
    "replaced",
)  # fmt: skip

priorities = st.sampled_from([0, 0, 0, 0, -5, 5, 2**31 - 1, -(2**31)])
plans = st.lists(
    st.builds(
        Plan,
        delay=st.sampled_from([0, 0, 0, 50, 1000, 1000, 4000]),
        expire=st.sampled_from([0, 0, 0, 2000]),
        lease=st.sampled_from([0, 0, 0, 0, 0, 3000, 15_000]),
        priority=priorities,
        max_attempts=st.sampled_from([None, None, None, None, 0, 1, 2, 4]),
        waits=st.sampled_from(
            [None, None, None, None, Waits(0, 0, 1), Waits(1000, 3000, 3), Waits(2000, 2000, 1)]
        ),
        key=st.sampled_from(["", "", "", "", "a", "b", "c"]),
        what=st.sampled_from(OnDuplicate),
        most=st.sampled_from([1000, 3000, 60_000]),
        asks=st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=12,
)


def spread(ranges: Any) -> set[int]:
    return {seq for first, count in ranges for seq in range(first, first + count)}


def leased(grant: LeaseGrant) -> list[tuple[int, int]]:
    """(sequence, lease) of each item, in the order in which they are delivered."""
    return [
        (segment.first_seq + ordinal, segment.lease or grant.lease)
        for segment in grant.segments
        for ordinal in masks.ordinals(segment.mask)
    ]


def specials_of(plans: list[Plan], now_ms: int) -> tuple[ItemSpecial, ...]:
    return tuple(
        ItemSpecial(
            ordinal,
            now_ms + plan.delay if plan.delay else 0,
            plan.expire,
            plan.lease,
            plan.key.encode(),
            on_duplicate=OnDuplicate(plan.what) if plan.key else OnDuplicate.KEEP,
            debounce_max_ms=plan.most,
            priority=plan.priority,
            max_attempts=plan.max_attempts,
            retry=policy_of(plan.waits),
            keep_result_ms=KEEP_MS if plan.asks else 0,
        )
        for ordinal, plan in enumerate(plans)
        if plan != Plan(0, 0, 0, 0, None, None)
    )


def _answer(command: Complete, lease: int, returned: dict[int, bytes]) -> Proposal:
    """The command, with results if there are some."""
    if not returned:
        return Proposal(command)
    lengths = pack(f"<{len(returned)}I", *map(len, returned.values()))
    items = tuple(AnsweredItem(lease, seq) for seq in returned)
    return Proposal(Answer(command, lengths, items), b"".join(returned.values()))


def _follow(command: Complete | Retry, following: list[Plan], now_ms: int) -> Proposal:
    """The command, with follow-ups for the same partition if there are some."""
    if not following:
        return Proposal(command)
    items = [b"item %d" % number for number in range(len(following))]
    lengths = pack(f"<{len(items)}I", *map(len, items))
    target = FollowTarget("work", 0, 0, len(items))
    specials = specials_of(following, now_ms)
    return Proposal(Follow(command, lengths, (target,), specials), b"".join(items))


def verb_of(
    completes: bool,
    delay: int,
    dead: bool,
    counted: bool,
    priority: int | None,
    attributes: Attributes | None,
) -> str:
    """The verb that a request must have to count as a repeat."""
    if completes:
        return "completed"
    verb = "rejected"
    if not dead:
        verb = ("retried" if counted else "released") + (" for later" if delay else "")
    verb = verb if priority is None else f"{verb} with a priority"
    return verb if attributes is None else f"{verb} and attributes"


def policy_of(waits: Waits | None) -> RetryWaits | None:
    if waits is None:
        return None
    return RetryWaits(waits.delay, waits.most, RetryBackoff(waits.backoff), jitter=False)


policies = st.builds(
    RetryWaits,
    st.sampled_from([0, 0, 500, 2000]),
    st.sampled_from([2000, 3000]),
    st.sampled_from(RetryBackoff),
    st.just(False),
)


agings = st.sampled_from([0, 0, 1000, 4000])
pauses = st.sampled_from([(False, False)] * 4 + [(True, False), (False, True), (True, True)])
"""Of leases, and of producers."""
rules = st.sampled_from(
    [None, None, None, BreakerRule(50, 2, 2000, 1000, 1), BreakerRule(100, 3, 9000, 4000, 2)]
)
"""Of breakers."""
limits = st.sampled_from(
    [None, None, LimitRule(3, 1000, 4, 0), LimitRule(1, 1500, 1, 5), LimitRule(0, 0, 0, 3)]
)


class Comparison(RuleBasedStateMachine):
    @initialize(
        max_attempts=st.sampled_from([0, 2, 3]),
        expire=st.sampled_from([0, 0, 7000]),
        dead=st.booleans(),
        dead_room=st.sampled_from([0, 0, 1, 3]),
        retry=policies,
        aging=agings,
        limit=limits,
    )
    def start(
        self,
        max_attempts: int,
        expire: int,
        dead: bool,
        dead_room: int,
        retry: RetryWaits,
        aging: int,
        limit: LimitRule | None,
    ) -> None:
        environment = MemoryEnvironment()
        self.log = PartitionLog(environment, group=GROUP, all_events=True)
        self.dead_log = PartitionLog(environment, group=DEAD_GROUP, all_events=True)
        self.dead_log.configure(queue="dead", items_max=dead_room)
        self.dead_room = dead_room
        self.model = ReferenceModel(START_MS)
        self.next_lease = 1
        self.version = 0
        self.arrived: list[int] = []
        self.ever_arrived: set[int] = set()
        self.letter_priority: dict[int, int] = {}
        self.letters: dict[int, tuple[int, int]] = {}
        self.letter_attributes: dict[int, Attributes | None] = {}
        self.letter_sizes: dict[int, int] = {}
        self.configure(max_attempts, expire, dead, retry, aging, limit=limit)

    @rule(
        max_attempts=st.sampled_from([0, 1, 2, 3]),
        expire=st.sampled_from([0, 7000]),
        dead=st.booleans(),
        retry=policies,
        aging=agings,
        paused=pauses,
        breaker=rules,
        limit=limits,
    )
    def configure(
        self,
        max_attempts: int,
        expire: int,
        dead: bool,
        retry: RetryWaits,
        aging: int,
        paused: tuple[bool, bool] = (False, False),
        breaker: BreakerRule | None = None,
        limit: LimitRule | None = None,
    ) -> None:
        self.version += 1
        changed = settings(
            max_attempts=max_attempts,
            expire_timeout_ms=expire,
            dead_targets=dead_to(DEAD_GROUP) if dead else (),
            lease_timeout_ms=LEASE_MS,
            retry=retry,
            priority_aging_ms=aging,
            dedup_until=DedupUntil.DONE,
            lease_paused=paused[0],
            produce_paused=paused[1],
            breaker=None if breaker is None else BreakerSettings(*breaker),
            limits=None if limit is None else LeaseLimits(*limit),
        )
        self.log.one(Configure(self.version, changed))
        model = self.model
        model.lease_paused, model.produce_paused = paused
        model.set_rule(breaker)
        model.set_limits(limit)
        if aging != model.aging:
            model.aged, model.aged_at, model.aging = model.age(), model.now, aging
        self.model.waits = Waits(retry.delay_ms, retry.delay_max_ms, int(retry.backoff))
        self.model.max_attempts, self.model.expire_timeout = max_attempts, expire
        self.model.dead = dead

    @rule(opened=st.booleans())
    def set_breaker(self, opened: bool) -> None:
        result = self.log.one(SetBreaker(opened))
        found = result.code.name if isinstance(result, Refusal) else result.changed
        assert found == self.model.set_breaker(opened=opened)

    @rule(
        plans=plans,
        producer=st.sampled_from([0, 0, 1, 2]),
        sequence=st.integers(1, 4),
        ordered=st.booleans(),
    )
    def produce(self, plans: list[Plan], producer: int, sequence: int, ordered: bool) -> None:
        identity: dict[str, Any] = {}
        if producer:
            producer_id = START_MS.to_bytes(6, "big") + bytes([producer] * 10)
            identity = {"producer_id": producer_id, "sequence": sequence, "ordered": ordered}
        plans = [plan if plan.key else plan._replace(what=1, most=0) for plan in plans]
        plans = [plan if plan.what == 1 else plan._replace(asks=False) for plan in plans]
        stored_keys = {seq: item.key for seq, item in self.model.items.items()}
        specials = specials_of(plans, self.log.now_ms)
        result = self.log.produce(len(plans), specials=specials, **identity)
        expected = self.model.produce(plans, (producer, sequence) if producer else (0, 0), ordered)
        if isinstance(result, Refusal):
            assert result.code.name == expected
        else:
            assert (result.first_seq, result.count) == expected
            if not result.repeated:
                assert list(result.replaced) == self.model.replaced
                keys = stored_keys | {
                    result.first_seq + ordinal: plan.key for ordinal, plan in enumerate(plans)
                }
                assert all(keys[seq] == plans[ordinal].key for ordinal, seq in result.duplicates)

    @rule(wishes=st.lists(st.integers(0, 12), min_size=1, max_size=3))
    def lease(self, wishes: list[int]) -> None:
        self._lease(wishes)

    @rule(data=st.data(), wish=st.integers(0, 5))
    def lease_named(self, data: st.DataObject, wish: int) -> None:
        known = [1, self.model.next_seq + 3, *self.model.items]
        names = data.draw(st.sets(st.sampled_from(known), min_size=1, max_size=5))
        ranges = masks.merge_ranges((seq, 1) for seq in names)
        [grant] = self.log.one(Lease((caller(wish, client_id="a"),), named=ranges)).grants
        [expected] = self.model.lease(self.next_lease, [("a", wish)], LEASE_MS, names)
        assert leased(grant) == expected
        self.next_lease += len({lease for _, lease in expected})

    def _lease(self, wishes: list[int]) -> None:
        callers = [("abc"[place], wish) for place, wish in enumerate(wishes)]
        grants = self.log.one(
            Lease(tuple(caller(wish, client_id=client) for client, wish in callers))
        ).grants
        expected = self.model.lease(self.next_lease, callers, LEASE_MS)
        assert [leased(grant) for grant in grants] == expected
        self.next_lease += len({lease for grant in expected for _, lease in grant})

    @rule(
        data=st.data(),
        completes=st.sampled_from([True, False, False]),
        all_or_nothing=st.booleans(),
        delay=st.sampled_from([0, 0, 50, 1000, 3000]),
        dead=st.sampled_from([False, False, False, True]),
        error=st.sampled_from(["", "", "slow"]),
        counted=st.booleans(),
        priority=st.none() | priorities,
        attributes=st.sampled_from([None, None, None, (), (("page", "7"),), (("page", "8"),)]),
        following=st.just([]) | st.just([]) | plans,
        clear=st.sampled_from([False, False, True]),
        returns=st.sampled_from([None, b"", b"result "]),
    )
    def settle(
        self,
        data: st.DataObject,
        completes: bool,
        all_or_nothing: bool,
        delay: int,
        dead: bool,
        error: str,
        counted: bool,
        priority: int | None,
        attributes: Attributes | None,
        following: list[Plan],
        clear: bool,
        returns: bytes | None,
    ) -> None:
        lease = data.draw(st.integers(1, self.next_lease))
        known = list(self.model.leases[lease].items) if lease in self.model.leases else [1]
        names = data.draw(st.sets(st.sampled_from([*known, self.model.next_seq + 3])))
        ranges = masks.merge_ranges((seq, 1) for seq in names)
        named = (LeaseItems(lease, ranges),)
        verb = verb_of(completes, delay, dead, counted, priority, attributes)
        verb += " and clears" if clear and not completes else ""
        following = [plan._replace(what=1, most=0) for plan in following]
        all_or_nothing = all_or_nothing or bool(following)
        command: Complete | Retry
        if completes:
            command = Complete(named, all_or_nothing)
        else:
            command = Retry(
                leases=named,
                retry_at_ms=self.log.now_ms + delay if delay else 0,
                dead=dead,
                error=error,
                count_attempt=counted,
                all_or_nothing=all_or_nothing,
                priority=priority,
                attributes=attributes,
                clear_checkpoint=clear,
            )
        if following:
            verb += " with follow-ups"
        returned: dict[int, bytes] = {}
        if completes and returns is not None and not following:
            returned = {seq: returns and returns + b"%d" % seq for seq in names or known}
        proposal = _follow(command, following, self.log.now_ms)
        if returned:
            assert isinstance(command, Complete)
            proposal = _answer(command, lease, returned)
        result = self.log.entry(proposal)[0]
        done, repeated, lost, _ = self.model.settle(lease, sorted(names), verb, do=False)
        if isinstance(result, Refusal):
            # It would be unclear whether the follow-ups are stored.
            assert following
            assert done
            assert repeated
            assert not lost
            self.model.next_seq += len(following)
            return
        assert not (following and done and repeated and not lost)
        refused = all_or_nothing and (lost or lease not in self.model.leases)
        done, repeated, lost, items = self.model.settle(lease, sorted(names), verb, do=not refused)
        outcome = result.outcomes[0]
        assert spread(outcome.done) == (set() if refused else done)
        assert (spread(outcome.repeated), spread(outcome.lost)) == (repeated, lost)
        if refused or not done:
            self.model.next_seq += len(following)
            return
        # The machine processes a lease block by block, which is the lease's order.
        if completes:
            self.model.complete(items, returned)
        else:
            self.model.retry(
                items,
                delay,
                dead=dead,
                error=error,
                counted=counted,
                priority=priority,
                attributes=attributes,
                clear=clear,
            )
        if following:
            self.model.store(following)

    @rule(name=st.sampled_from(["lake", "pond"]))
    def open_reader(self, name: str) -> None:
        result = self.log.one(OpenReader(name))
        reader = self.model.open_reader(name)
        assert (result.epoch, result.acked_seq) == (reader.epoch, reader.acked)
        assert result.dead_seq == reader.dead
        self._same_batch(result, reader)

    @rule(
        name=st.sampled_from(["lake", "pond"]),
        wanted=st.sampled_from([0, 1, 5, 30]),
        epoch=st.sampled_from([0, 0, 0, 0, -1, 1]),
        ack=st.sampled_from([0, 0, 0, 1, 1, -1, 2]),
    )
    def advance_reader(self, name: str, wanted: int, epoch: int, ack: int) -> None:
        """`epoch` and `ack` are relative to those of the reader."""
        reader = self.model.readers.get(name)
        if reader is not None:
            epoch, ack = reader.epoch + epoch, max(0, reader.acked + ack)
        command = AdvanceReader(name, epoch, max(0, ack), wanted, 10**6)
        with self.log.environment.snapshot() as txn:
            outlook = reader_queries.outlook(txn, GROUP, command)
        result = self.log.one(command)
        if outlook.result is not None:
            # The outlook has the time of the last entry; the command advances the clock.
            assert result == msgspec.structs.replace(outlook.result, now_ms=result.now_ms)
        expected = self.model.advance(name, epoch, max(0, ack), wanted)
        if isinstance(result, Refusal):
            assert result.code.name == expected
            assert outlook.refusal == result
            return
        assert isinstance(expected, Reader)
        assert (result.epoch, result.acked_seq) == (expected.epoch, expected.acked)
        self._same_batch(result, expected)

    def _same_batch(self, result: Any, reader: Reader) -> None:
        batch = result.batch
        found = None if batch is None else (batch.seq, batch.count, batch.replays)
        wanted = (reader.last, len(reader.batch), reader.replays)
        assert found == (wanted if reader.batch else None)

    @rule(
        name=st.sampled_from(["lake", "pond"]),
        wrong=st.sampled_from([0, 0, 0, 1]),
        dead=st.booleans(),
    )
    def release_reader(self, name: str, wrong: int, dead: bool) -> None:
        reader = self.model.readers.get(name)
        seq = wrong + (0 if reader is None else reader.last)
        result = self.log.one(ReleaseReader(name, seq, dead=dead))
        found = result.code.name if isinstance(result, Refusal) else result.changed
        assert found == self.model.release(name, seq, dead=dead)

    @rule(
        name=st.sampled_from(["lake", "pond"]),
        wrong=st.sampled_from([0, 1]),
        comes=st.sampled_from([False, False, True]),
    )
    def remove_reader(self, name: str, wrong: int, comes: bool) -> None:
        if not comes:
            return
        reader = self.model.readers.get(name)
        seq = wrong + (0 if reader is None else reader.last)
        result = self.log.one(ReleaseReader(name, seq, remove=True))
        found = result.code.name if isinstance(result, Refusal) else result.changed
        assert found == self.model.remove(name, seq)

    @rule(lease=st.integers(1, 6), timeout=st.sampled_from([0, 1000, 12_000]))
    def extend(self, lease: int, timeout: int) -> None:
        result = self.log.one(Extend((lease,), lease_timeout_ms=timeout))
        assert result.outcomes == ((lease, self.model.extend(lease, timeout, LEASE_MS)),)

    @rule(
        data=st.data(),
        saved=st.sampled_from([b"", b"half", b"nearly all"]),
        revisions=st.lists(st.sampled_from([0, 0, 1, 2, 3]), min_size=1, max_size=3),
        timeout=st.sampled_from([0, 1000, 12_000]),
    )
    def save(self, data: st.DataObject, saved: bytes, revisions: list[int], timeout: int) -> None:
        """Checkpoints of one lease in one command: the items may repeat."""
        lease = data.draw(st.integers(1, self.next_lease))
        known = list(self.model.leases[lease].items) if lease in self.model.leases else [1]
        named = [
            (data.draw(st.sampled_from([*known, self.model.next_seq + 3])), revision)
            for revision in revisions
        ]
        result = self.log.one(
            SaveCheckpoints(
                Extend((lease,), lease_timeout_ms=timeout),
                pack(f"<{len(named)}I", *[len(saved)] * len(named)),
                tuple(ItemCheckpoint(lease, *one) for one in named),
            ),
            saved * len(named),
        )
        assert result.outcomes == ((lease, self.model.extend(lease, timeout, LEASE_MS)),)
        lost = [seq for seq, revision in named if not self.model.save(lease, seq, saved, revision)]
        assert [seq for _, seq in result.lost] == lost

    @rule(milliseconds=st.sampled_from([1, 500, 1000, 5000, 10_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.log.advance(milliseconds)
        self.model.now += milliseconds
        self.model.work_off()

    @rule(milliseconds=st.sampled_from([2000, 8000]))
    def time_passes_without_a_leader(self, milliseconds: int) -> None:
        """A lease of all items meets every ready item, so the machine and the model find the same
        dead items.
        """
        self.log.now_ms += milliseconds
        self.model.now += milliseconds
        self._lease([10_000])
        self.log.advance(0)
        self.model.work_off()

    @rule(confirmed=st.booleans())
    def carry(self, confirmed: bool) -> None:
        """Sends dead letters over, as many as the target has room for. Unconfirmed ones are sent
        again, and arrive once.
        """
        with self.log.environment.snapshot() as txn:
            batch = queries.outbox_batch(txn, GROUP)
        if batch is None:
            assert not self.model.outbox
            return
        # The order in which items die of age is not promised.
        assert sorted(
            (item.origin_seq, item.reason, item.attempts, item.errors, item.priority)
            for item in batch.items
        ) == sorted(leaving[:5] for leaving in self.model.outbox)
        assert {
            item.origin_seq: (item.attributes, item.max_attempts, item.retry)
            for item in batch.items
        } == {
            leaving.seq: (leaving.attributes, leaving.max_attempts, policy_of(leaving.waits))
            for leaving in self.model.outbox
        }
        assert {batch.items[place].origin_seq: size for place, size in batch.checkpoints} == {
            leaving.seq: len(leaving.checkpoint)
            for leaving in self.model.outbox
            if leaving.checkpoint and leaving.reason != VOID
        }
        sizes = dict(batch.checkpoints)
        self.letter_sizes |= {
            item.origin_seq: sizes.get(place, 0) for place, item in enumerate(batch.items)
        }
        self.letter_attributes |= {item.origin_seq: item.attributes for item in batch.items}
        self.letter_priority |= {item.origin_seq: item.priority for item in batch.items}
        self.letters |= {item.origin_seq: (item.reason, item.died_at_ms) for item in batch.items}
        result = self.dead_log.one(
            Move(
                GROUP,
                batch.first_move,
                batch.lengths,
                batch.items,
                checkpoints=batch.checkpoints,
            ),
            batch.attachment,
        )
        sent = [item.origin_seq for item in batch.items]
        void = {item.origin_seq for item in batch.items if item.reason == VOID}
        fresh = [seq for seq in sent if seq not in self.ever_arrived]
        known = len(sent) - len(fresh)
        if self.dead_room:
            room = max(0, self.dead_room - len(self.arrived))
            if fresh and not room:
                assert result.code.name == "QUEUE_FULL"
                return
            fresh = fresh[:room]
        there = known + len(fresh)
        arriving = [seq for seq in fresh if seq not in void]
        assert (result.changed, result.upto_move) == (len(arriving), batch.first_move + there - 1)
        self.arrived += arriving
        self.ever_arrived |= set(fresh)
        if confirmed:
            self.log.one(MoveDone(DEAD_GROUP, result.upto_move))
            gone = set(sent[:there])
            for seq in gone - void:
                del self.model.items[seq]
            for seq in gone & void:
                self.model.drop(seq)
            self.model.outbox = [one for one in self.model.outbox if one[0] not in gone]

    @rule(nth=st.integers(0, 5))
    def give_up(self, nth: int) -> None:
        with self.log.environment.snapshot() as txn:
            blocks = list(BLOCKS.rows(txn, GROUP))
        if nth < len(blocks):
            key, row = blocks[nth]
            first_seq = int.from_bytes(key[-8:], "big")
            done = self.log.one(GiveUp((first_seq,)))
            seqs = range(first_seq, first_seq + decode_block(row).count)
            assert done.changed == self.model.give_up(seqs)

    @rule(
        data=st.data(),
        delay=st.sampled_from([0, 50, 1000, 3000, 3000, 4000]),
        cancel=st.sampled_from([False, False, True]),
        span=st.sampled_from([(0, 0), (0, 0), (1000, 0), (0, 2000), (1000, 3000)]),
    )
    def reschedule(
        self, data: st.DataObject, delay: int, cancel: bool, span: tuple[int, int]
    ) -> None:
        known = [seq for seq, item in self.model.items.items() if item.state == "scheduled"]
        others = [1, self.model.next_seq - 1, self.model.next_seq + 3]
        names = data.draw(st.sets(st.sampled_from([*known, *others]), min_size=1))
        since, until = (self.log.now_ms + ms if ms else 0 for ms in span)
        result = self.log.one(
            Reschedule(
                masks.merge_ranges((seq, 1) for seq in names),
                due_ms=self.log.now_ms + delay if delay else 0,
                cancel=cancel,
                due_from_ms=since,
                due_until_ms=until,
            )
        )
        expected = self.model.reschedule(sorted(names), delay, cancel, since, until)
        assert (result.changed, spread(result.missing)) == expected

    @rule(data=st.data(), priority=priorities)
    def prioritize(self, data: st.DataObject, priority: int) -> None:
        known = [1, self.model.next_seq + 3, *self.model.items]
        names = data.draw(st.sets(st.sampled_from(known), min_size=1))
        ranges = masks.merge_ranges((seq, 1) for seq in names)
        result = self.log.one(Prioritize(ranges, priority))
        expected = self.model.prioritize(sorted(names), priority)
        assert (result.changed, spread(result.missing)) == expected

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        known = [1, self.model.next_seq + 3, *self.model.items]
        names = data.draw(st.sets(st.sampled_from(known), min_size=1, max_size=3))
        result = self.log.one(Cancel(masks.merge_ranges((seq, 1) for seq in names)))
        assert (result.changed, spread(result.missing)) == self.model.cancel(sorted(names))

    @rule(back=st.integers(0, 9), scheduled=st.booleans())
    def purge(self, back: int, scheduled: bool) -> None:
        upto = max(0, self.model.next_seq - 1 - back)
        result = self.log.one(Purge(0, upto, scheduled))
        assert result.next_seq == 0
        assert result.removed == self.model.purge(upto, scheduled=scheduled)

    @rule(
        reasons=st.sets(st.integers(1, 3)),
        ago=st.sampled_from([(None, 0), (None, 2000), (5000, 0), (5000, 1000)]),
        queue=st.sampled_from(["work", "work", "other"]),
    )
    def drop_letters(self, reasons: set[int], ago: tuple[int | None, int], queue: str) -> None:
        """All letters in the dead queue are ready."""
        since = 0 if ago[0] is None else self.log.now_ms - ago[0]
        until = self.log.now_ms - ago[1] if ago[1] else 0
        chosen = LetterFilter(tuple(sorted(reasons)), since, until)
        gone = {
            seq
            for seq in self.arrived
            if queue == "work"
            and (not reasons or self.letters[seq][0] in reasons)
            and since <= self.letters[seq][1]
            and (not until or self.letters[seq][1] < until)
        }
        with self.dead_log.environment.snapshot() as txn:
            counted = queries.count_letters(txn, DEAD_GROUP, queue, chosen, after_seq=0)
        assert counted == (len(gone), 0)
        assert self.dead_log.one(DropLetters(queue, (), 0, chosen)) == ItemsRemoved(len(gone), 0)
        self.arrived = [seq for seq in self.arrived if seq not in gone]

    @rule(items=st.integers(1, 5))
    def drain_dead(self, items: int) -> None:
        grant = self.dead_log.one(Lease((caller(items),))).grants[0]
        if grant.lease:
            self.dead_log.one(Complete((LeaseItems(grant.lease),)))
        for seq in sorted(self.arrived, key=self.letter_priority.__getitem__)[:items]:
            self.arrived.remove(seq)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "log"):
            return
        with self.log.environment.snapshot() as txn:
            stats = queries.stats(txn, GROUP)
            effects = queries.effects(txn, GROUP)
            page = queries.peek(txn, GROUP, None, after_seq=0, limit=10_000, bytes_max=10**9)
            order = []
            raw = STATE.get(txn, GROUP)
            assert raw is not None
            for key, value in ready_rows(txn, GROUP, decode_state(raw)):
                first_seq = int.from_bytes(value, "big")
                row = SEGMENTS.get(txn, GROUP, first_seq, key[-1])
                assert row is not None
                order += [first_seq + n for n in masks.ordinals(decode_segment(row).mask)]
            letters = queries.dead_letters(
                txn, DEAD_GROUP, "work", after_seq=0, limit=10_000, bytes_max=10**9
            )
            asked = tuple(sorted(self.model.asked))
            ended = ended_items(txn, GROUP, asked, bytes_max=10**9).items
        model = self.model
        model.sweep()
        assert {
            one.seq: End(one.outcome, one.data, one.reason, one.error, one.attempts)
            for one in ended
        } == model.ends
        assert order == [item.seq for item in model.ready()]
        assert {name: getattr(stats, name) for name in COUNTERS} == {
            name: model.count.get(name, 0) for name in COUNTERS
        }
        assert [
            (item.seq, RowState(item.state).name.lower(), item.attempt, item.due_at_ms,
             item.lease, item.errors, item.priority, item.attributes, item.checkpoint_bytes)
            for item in page.items
        ] == [
            (item.seq, item.state, item.attempt, item.due if item.state == "scheduled" else 0,
             item.lease, item.errors, item.priority, item.attributes, len(item.checkpoint))
            for item in sorted(model.items.values(), key=lambda item: item.seq)
        ]  # fmt: skip
        assert (stats.breaker is None) == (model.breaker is None)
        if stats.breaker is not None and model.breaker is not None:
            assert (
                stats.breaker.state.name.lower(),
                stats.breaker.until_ms,
                (stats.breaker.outcomes, stats.breaker.failures),
                stats.breaker.probes_passed,
                stats.breaker.probing,
            ) == (
                model.breaker.state,
                model.breaker.until,
                model.breaker.counted(stats.state_ms),
                model.breaker.passed,
                model.breaker.probe > 0,
            )
        self.limits_agree(stats, effects.ready)
        arrived = [item.dead_letter.origin_seq for item in letters.items if item.dead_letter]
        assert arrived == self.arrived
        assert [item.attributes for item in letters.items] == [
            self.letter_attributes[seq] for seq in self.arrived
        ]
        assert [item.checkpoint_bytes for item in letters.items] == [
            self.letter_sizes[seq] for seq in self.arrived
        ]

    def limits_agree(self, stats: PartitionCounts, ready: int) -> None:
        model = self.model
        may, waits = model.reported()
        assert ready == may
        assert (stats.limits is None) == (model.limits is None)
        if stats.limits is None or model.limits is None:
            return
        there = model.limits
        assert stats.limits.tokens == (int(there.tokens(stats.state_ms)) if there.rule.items else 0)
        assert (stats.limits.burst, stats.limits.lease_limit) == (there.rule.burst, there.rule.most)
        assert (stats.limits.next_ms > stats.state_ms) == waits
        if waits:
            assert there.tokens(stats.limits.next_ms) >= 1 > there.tokens(stats.limits.next_ms - 1)


Comparison.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestComparison = Comparison.TestCase
