"""Follow-ups: items that a complete or a retry produces in the same step."""

from struct import pack

import pytest

from querator.model.commands import (
    NO_SLOT,
    Complete,
    Follow,
    FollowTarget,
    LeaseItems,
    Move,
    Moved,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Refusal,
    Retry,
    Route,
)
from querator.model.entries import Proposal, Tier
from querator.model.errors import ErrorCode
from querator.model.item_options import ItemSpecial
from querator.model.limits import BLOCK_ITEMS_MAX, DEDUP_KEYS_MAX
from querator.model.queues import DedupUntil
from querator.model.routing import slot_of_key
from querator.partition import queries
from querator.partition.needs import need
from querator.partition.rows import RowState
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.unit.partition.partition_log import (
    GROUP,
    PartitionLog,
    dead_to,
    lease_of,
    seqs,
)

NEXT = 9
DEAD = 11
HERE = "here"


def chain(**changes) -> tuple[PartitionLog, PartitionLog]:
    """The partitions of two queues, `work` and `next`."""
    environment = MemoryEnvironment()
    work = PartitionLog(environment)
    work.configure(**changes)
    after = PartitionLog(environment, group=NEXT)
    after.configure(queue="next")
    return work, after


def leased(log: PartitionLog, items: int) -> int:
    log.produce(items)
    lease: int = log.one(lease_of(items)).grants[0].lease
    return lease


def follow(
    log: PartitionLog,
    settle: Complete | Retry,
    *items: bytes,
    here: int = 0,
    partition: int = 0,
    group: int = NEXT,
    **changes,
):
    """Settles, and adds follow-ups: the first `here` to this partition, the others elsewhere."""
    targets = []
    if here:
        targets.append(FollowTarget("work", 0, 0, here))
    if len(items) > here:
        targets.append(FollowTarget("next", partition, group, len(items) - here))
    lengths = pack(f"<{len(items)}I", *map(len, items))
    return log.one(Follow(settle, lengths, tuple(targets), **changes), b"".join(items))


def completing(lease: int, *ranges: tuple[int, int]) -> Complete:
    return Complete((LeaseItems(lease, ranges),), all_or_nothing=True)


def batch_of(log: PartitionLog, target: int | None = None, items_max: int = 1_000):
    with log.environment.snapshot() as txn:
        return queries.outbox_batch(txn, log.group, target, items_max=items_max)


def send(source: PartitionLog, target: PartitionLog, *, routing: int = 0, homes=()):
    batch = batch_of(source, target.group)
    return target.one(
        Move(source.group, batch.first_move, batch.lengths, batch.items, None, routing, homes),
        batch.attachment,
    )


def carry(source: PartitionLog, target: PartitionLog, **changes) -> int:
    batch = batch_of(source, target.group)
    moved = send(source, target, **changes)
    assert moved.upto_move == batch.first_move + len(batch.items) - 1
    source.one(MoveDone(target.group, moved.upto_move))
    changed: int = moved.changed
    return changed


def stats(log: PartitionLog):
    with log.environment.snapshot() as txn:
        return queries.stats(txn, log.group)


def payloads(log: PartitionLog) -> list[bytes]:
    """The items of the partition in the order of sequence."""
    with log.environment.snapshot() as txn:
        page = queries.peek(txn, log.group, None, after_seq=0, limit=1_000, bytes_max=10**9)
    return [item.item for item in page.items if item.state != RowState.LEASED]


def attachments(log: PartitionLog) -> int:
    with log.environment.snapshot() as txn:
        return sum(1 for _ in ATTACHMENTS.rows(txn, log.group))


def test_a_complete_and_its_follow_ups_are_one_step():
    work, after = chain()
    lease = leased(work, 2)
    result = follow(work, completing(lease), b"local", b"one", b"two", here=1)
    assert result.outcomes[0].done == ((1, 2),)
    assert work.applied.effects.outbox == 2
    assert (stats(work).completed, stats(work).produced, stats(work).ready) == (2, 5, 1)
    assert carry(work, after) == 2
    assert payloads(work) == [b"local"]
    assert payloads(after) == [b"one", b"two"]
    assert (stats(after).moved_in, stats(work).moved_out) == (2, 2)
    assert seqs(after.one(lease_of(9)).grants[0]) == [1, 2]


def test_a_repeat_stores_nothing_also_when_the_lease_has_ended():
    work, _ = chain()
    lease = leased(work, 2)
    for ranges in (((1, 1),), ((2, 1),)):
        assert follow(work, completing(lease, *ranges), b"x", here=1).outcomes[0].done == ranges
        again = follow(work, completing(lease, *ranges), b"x", here=1)
        assert again.outcomes[0].repeated == ranges
        assert not again.outcomes[0].done
    assert follow(work, completing(lease), b"x", here=1).outcomes[0].repeated == ((1, 2),)
    assert payloads(work) == [b"x", b"x"]


def test_a_repeat_keeps_no_attachment():
    work, _ = chain()
    lease = leased(work, 1)
    for _ in range(3):
        follow(work, completing(lease), b"x", here=1)
    for _ in range(6):
        work.one(Complete(()))
    assert attachments(work) == 1


def test_a_verb_with_follow_ups_is_a_verb_of_its_own():
    work, _ = chain()
    lease = leased(work, 2)
    work.one(completing(lease, (1, 1)))
    lost = follow(work, completing(lease, (1, 1)), b"x", here=1)
    assert lost.outcomes[0].lost == ((1, 1),)
    follow(work, completing(lease, (2, 1)), b"x", here=1)
    assert work.one(completing(lease, (2, 1))).outcomes[0].lost == ((2, 1),)
    assert payloads(work) == [b"x"]


def test_of_a_lost_item_nothing_is_settled_and_nothing_is_stored():
    work, _ = chain()
    lease = leased(work, 2)
    work.one(completing(lease, (1, 1)))
    result = follow(work, completing(lease, (1, 2)), b"x", here=1)
    assert (result.outcomes[0].done, result.outcomes[0].lost) == ((), ((1, 1),))
    assert (stats(work).leased, stats(work).completed, stats(work).produced) == (1, 1, 2)
    work.advance(60_000)
    result = follow(work, completing(lease, (2, 1)), b"x", here=1)
    assert result.outcomes[0].lost == ((2, 1),)
    assert stats(work).produced == 2
    unknown = follow(work, completing(lease + 5, (2, 1)), b"x", here=1)
    assert unknown.outcomes[0].unknown


def test_a_request_of_which_a_part_was_settled_before_is_refused():
    work, _ = chain()
    lease = leased(work, 3)
    follow(work, completing(lease, (1, 1)), b"x", here=1)
    refusal = follow(work, completing(lease, (1, 3)), b"y", here=1)
    assert (refusal.code, refusal.field) == (ErrorCode.INVALID_ARGUMENT, "leases")
    assert "1 of the named items were settled with follow-ups before, and 2 were not" in (
        refusal.message
    )
    assert stats(work).leased == 2
    assert payloads(work).count(b"y") == 0


@pytest.mark.parametrize(
    ("settle", "named"),
    [
        (Complete((LeaseItems(1),)), "1 leases"),
        (Complete((LeaseItems(1), LeaseItems(2)), all_or_nothing=True), "2 leases"),
        (Retry((), all_or_nothing=True), "0 leases"),
    ],
)
def test_follow_ups_belong_to_one_lease(settle, named):
    work, _ = chain()
    lease = leased(work, 1)
    refusal = follow(work, settle, b"x", here=1)
    assert (refusal.code, refusal.field) == (ErrorCode.INVALID_ARGUMENT, "leases")
    assert named in refusal.message
    assert work.one(completing(lease)).outcomes[0].done == ((1, 1),)


def test_targets_must_name_all_items():
    work, _ = chain()
    lease = leased(work, 1)
    refusal = work.one(
        Follow(completing(lease), pack("<2I", 1, 1), (FollowTarget("work", 0, 0, 1),)), b"ab"
    )
    assert refusal.message == "the targets name 1 follow-ups; the command has 2"
    assert work.one(Follow(completing(lease), b"", ())).code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "verb", [{}, {"dead": True}, {"count_attempt": False}, {"retry_at_ms": 2_000_000_000_000}]
)
def test_retries_and_rejects_have_follow_ups(verb):
    work, _ = chain()
    lease = leased(work, 1)
    settle = Retry((LeaseItems(lease),), all_or_nothing=True, error="no", **verb)
    assert follow(work, settle, b"x", here=1).outcomes[0].done == ((1, 1),)
    assert follow(work, settle, b"x", here=1).outcomes[0].repeated == ((1, 1),)
    assert payloads(work).count(b"x") == 1


def test_follow_ups_are_scheduled_prioritized_and_deduplicated_here():
    work, _ = chain()
    lease = leased(work, 2)
    due_ms = work.now_ms + 5_000
    specials = (
        ItemSpecial(0, enqueue_at_ms=due_ms),
        ItemSpecial(1, priority=-3),
        ItemSpecial(2, dedup_key=b"k"),
    )
    follow(work, completing(lease, (1, 1)), b"later", b"first", b"once", here=3, specials=specials)
    again = (ItemSpecial(0, dedup_key=b"k"),)
    follow(work, completing(lease, (2, 1)), b"twice", here=1, specials=again)
    assert (stats(work).scheduled, stats(work).ready, stats(work).duplicates) == (1, 2, 1)
    assert [segment.priority for segment in work.one(lease_of(9)).grants[0].segments] == [-3, 0]
    work.advance(6_000)
    assert stats(work).ready == 1


def test_follow_ups_keep_their_fields_on_the_way():
    work, after = chain()
    lease = leased(work, 2)
    due_ms = work.now_ms + 5_000
    specials = (
        ItemSpecial(0, enqueue_at_ms=due_ms, expire_timeout_ms=3_600_000, lease_timeout_ms=7_000),
        ItemSpecial(1, priority=-3, max_attempts=1),
        ItemSpecial(2, dedup_key=b"k"),
    )
    items = (b"later", b"first", b"once", b"plain")
    follow(work, completing(lease, (1, 1)), *items, specials=specials)
    again = (ItemSpecial(0, dedup_key=b"k"),)
    follow(work, completing(lease, (2, 1)), b"twice", specials=again)
    assert carry(work, after) == 4
    assert (stats(after).scheduled, stats(after).ready, stats(after).duplicates) == (1, 3, 1)
    assert (stats(work).moved_out, stats(after).moved_in) == (5, 4)
    assert sorted(payloads(after)) == [b"first", b"later", b"once", b"plain"]
    grant = after.one(lease_of(9)).grants[0]
    assert [(one.priority, one.count) for one in grant.segments] == [(-3, 1), (0, 2)]
    after.advance(6_000)
    grant = after.one(lease_of(9)).grants[0]
    assert grant.deadline_ms == after.now_ms + 7_000


def test_a_move_sent_again_brings_no_follow_up_twice():
    work, after = chain()
    follow(work, completing(leased(work, 1)), b"a", b"b", b"c")
    assert send(work, after) == Moved(3, 3)
    assert send(work, after) == Moved(0, 3)
    work.one(MoveDone(NEXT, 2))
    assert send(work, after) == Moved(0, 3)
    assert payloads(after) == [b"a", b"b", b"c"]


def test_a_settled_item_frees_its_key_for_its_follow_up():
    work, after = chain(dedup_until=DedupUntil.DONE)
    again = (ItemSpecial(0, dedup_key=b"k"),)
    work.produce([b"1"], specials=again)
    for number in (2, 3, 4):
        lease = work.one(lease_of(1)).grants[0].lease
        follow(work, completing(lease), b"%d" % number, here=1, specials=again)
        assert payloads(work) == [b"%d" % number]
    after.configure(2, queue="next", dedup_until=DedupUntil.DONE)
    lease = work.one(lease_of(1)).grants[0].lease
    follow(work, completing(lease), b"a", b"b", specials=(*again, ItemSpecial(1, dedup_key=b"k")))
    carry(work, after)
    assert (payloads(after), stats(after).duplicates) == ([b"a"], 1)


def test_more_follow_ups_than_a_block_holds():
    work, after = chain()
    count = BLOCK_ITEMS_MAX + 44
    items = [b"%d" % number for number in range(count)]
    specials = (ItemSpecial(260, priority=4), ItemSpecial(270, dedup_key=b"k"))
    follow(work, completing(leased(work, 1)), *items, here=250, specials=specials)
    assert carry(work, after) == count - 250
    assert payloads(work) == items[:250]
    assert sorted(payloads(after)) == sorted(items[250:])


def test_a_target_that_is_gone_makes_dead_letters():
    work, _ = chain(dead_targets=dead_to(DEAD))
    dead = PartitionLog(work.environment, group=DEAD)
    dead.configure(queue="dead")
    special = (ItemSpecial(0, enqueue_at_ms=work.now_ms + 60_000, dedup_key=b"k", priority=3),)
    lease = leased(work, 1)
    follow(work, completing(lease), b"a", b"b", partition=2, specials=special)
    assert work.one(MoveReturn(NEXT)).changed == 2
    assert (stats(work).ready, stats(work).dead, stats(work).moving) == (0, 2, 2)
    assert carry(work, dead) == 2
    with dead.environment.snapshot() as txn:
        letters = queries.dead_letters(
            txn, DEAD, "next", after_seq=0, limit=9, bytes_max=10**6
        ).items
    assert sorted(letter.item for letter in letters) == [b"a", b"b"]
    for letter in letters:
        origin = letter.dead_letter
        assert origin is not None
        assert (origin.reason, origin.origin_partition) == (5, 2)
        assert origin.errors == ("queue next was deleted before this follow-up of work arrived",)


def test_a_dead_queue_that_is_gone_too_gets_them_again_under_the_next_settings():
    work, _ = chain(dead_targets=dead_to(DEAD))
    follow(work, completing(leased(work, 1)), b"a")
    work.one(MoveReturn(NEXT))
    assert batch_of(work).target_group == DEAD
    work.configure(2)
    assert work.one(MoveReturn(DEAD)).changed == 1
    assert (stats(work).dropped, stats(work).moving, stats(work).ready) == (1, 0, 0)


def test_a_closing_target_sends_them_elsewhere():
    work, _ = chain()
    follow(work, completing(leased(work, 1)), b"a", b"b", specials=(ItemSpecial(1, 0, 0, 0, b"k"),))
    assert work.one(MoveElsewhere(NEXT, 0, DEAD)).changed == 2
    other = PartitionLog(work.environment, group=DEAD)
    other.configure(queue="next")
    assert carry(work, other) == 2


def test_a_command_that_adds_more_than_it_completes_is_refused_by_a_full_partition():
    work, _ = chain(items_max=3)
    lease = leased(work, 3)
    refusal = follow(work, completing(lease, (1, 1)), b"a", b"b")
    assert (refusal.code, refusal.field, refusal.limit) == (
        ErrorCode.QUEUE_FULL, "follow_ups", "3",
    )  # fmt: skip
    assert stats(work).leased == 3
    assert follow(work, completing(lease, (1, 1)), b"a").outcomes[0].done
    retry = Retry((LeaseItems(lease, ((2, 1),)),), all_or_nothing=True)
    assert follow(work, retry, b"a").code is ErrorCode.QUEUE_FULL
    assert follow(work, completing(lease, (2, 2)), b"a", b"b").outcomes[0].done
    assert stats(work).moving == 3


def test_two_full_queues_that_send_to_each_other_keep_moving():
    work, after = chain(items_max=4)
    after.configure(2, queue="next", items_max=4)
    for source, target in ((work, NEXT), (after, GROUP)):
        lease = leased(source, 4)
        follow(source, completing(lease), *(b"x" * 4 for _ in range(4)), group=target)
        assert isinstance(source.produce(1), Refusal)
    assert carry(work, after) == 4
    assert carry(after, work) == 4
    assert (stats(work).ready, stats(after).ready) == (4, 4)


def test_a_full_target_takes_the_first_ones():
    work, after = chain()
    after.configure(2, queue="next", items_max=2)
    follow(work, completing(leased(work, 1)), b"a", b"b", b"c")
    assert send(work, after) == Moved(2, 2)
    work.one(MoveDone(NEXT, 2))
    refusal = send(work, after)
    assert refusal.code is ErrorCode.QUEUE_FULL
    after.one(completing(after.one(lease_of(1)).grants[0].lease))
    assert send(work, after) == Moved(1, 3)


def test_a_target_without_room_for_dedup_keys_takes_what_comes_before(monkeypatch):
    work, after = chain()
    monkeypatch.setattr("querator.partition.dedup.DEDUP_KEYS_MAX", 1)
    specials = tuple(ItemSpecial(at, dedup_key=b"k%d" % at) for at in (1, 2))
    follow(work, completing(leased(work, 1)), b"a", b"b", b"c", specials=specials)
    assert send(work, after) == Moved(2, 2)
    work.one(MoveDone(NEXT, 2))
    assert send(work, after).code is ErrorCode.TOO_MANY_DEDUP_KEYS
    after.advance(3_700_000)
    assert send(work, after) == Moved(1, 3)
    assert DEDUP_KEYS_MAX > 1


def keyed(*keys: str) -> bytes:
    return pack(f"<{len(keys)}H", *(slot_of_key(key.encode()) if key else NO_SLOT for key in keys))


def test_a_target_with_another_routing_takes_no_keyed_follow_ups():
    work, after = chain()
    after.one(Route(3, 1, open=True))
    follow(work, completing(leased(work, 1)), b"plain", b"keyed", slots=keyed("", "a"))
    assert send(work, after, routing=2, homes=(NEXT,)) == Moved(1, 1)
    work.one(MoveDone(NEXT, 1))
    refusal = send(work, after, routing=2, homes=(NEXT,))
    assert (refusal.code, refusal.field) == (ErrorCode.UNAVAILABLE, "routing")
    after.one(Route(4, 1, open=False))
    assert send(work, after, routing=3, homes=(NEXT,)).code is ErrorCode.UNAVAILABLE
    after.one(Route(4, 1, open=True))
    assert send(work, after, routing=4, homes=(NEXT,)) == Moved(1, 2)


def test_a_target_sends_on_what_belongs_to_another_partition():
    work, after = chain()
    after.one(Route(1, 2, open=True))
    other = PartitionLog(work.environment, group=DEAD)
    other.configure(queue="next", partition=1)
    other.one(Route(1, 2, open=True))
    keys = [f"k{number}" for number in range(8)]
    specials = tuple(
        ItemSpecial(at, dedup_key=key.encode(), priority=at % 3) for at, key in enumerate(keys)
    )
    items = [key.encode() for key in keys]
    follow(work, completing(leased(work, 1)), *items, slots=keyed(*keys), specials=specials)
    homes = (NEXT, DEAD)
    assert carry(work, after, routing=1, homes=homes) == 8
    second = [key.encode() for key in keys if slot_of_key(key.encode()) % 2]
    assert second
    assert len(second) < 8
    assert carry(after, other, routing=1, homes=homes) == len(second)
    assert sorted(payloads(other)) == sorted(second)
    assert sorted(payloads(after)) == sorted(set(items) - set(second))
    # Both partitions know the keys that are theirs.
    follow(work, completing(leased(work, 1)), *items, slots=keyed(*keys), specials=specials)
    carry(work, after, routing=1, homes=homes)
    carry(after, other, routing=1, homes=homes)
    assert (stats(after).duplicates, stats(other).duplicates) == (8 - len(second), len(second))


def test_keyed_follow_ups_for_this_partition_need_its_routing():
    work, _ = chain()
    lease = leased(work, 1)
    work.one(Route(3, 1, open=True))
    refusal = follow(work, completing(lease), b"a", here=1, slots=keyed("a"), routing=2)
    assert refusal.code is ErrorCode.ROUTING_CHANGED
    assert stats(work).leased == 1
    assert (
        follow(work, completing(lease), b"a", here=1, slots=keyed("a"), routing=3).outcomes[0].done
    )


def test_a_closing_partition_sends_follow_ups_and_takes_none():
    work, after = chain(partition=1)
    lease = leased(work, 2)
    work.one(Route(1, 1, open=True))
    refusal = follow(work, completing(lease, (1, 1)), b"a", here=1)
    assert refusal.code is ErrorCode.ROUTING_CHANGED
    assert follow(work, completing(lease, (1, 1)), b"a").outcomes[0].done
    assert carry(work, after) == 1


def test_expiry_does_not_touch_what_is_on_its_way():
    work, after = chain(expire_timeout_ms=10_000)
    after.configure(2, queue="next", expire_timeout_ms=20_000)
    special = (ItemSpecial(0, expire_timeout_ms=5_000),)
    follow(work, completing(leased(work, 1)), b"a", b"b", specials=special)
    work.advance(60_000)
    assert (stats(work).expired, stats(work).moving) == (0, 2)
    after.now_ms = work.now_ms
    carry(work, after)
    after.advance(6_000)
    assert payloads(after) == [b"b"]


def test_follow_ups_need_space_like_produced_items():
    work, _ = chain()
    lease = leased(work, 1)
    with work.environment.snapshot() as txn:
        plain = need(txn, GROUP, completing(lease))
        command = Follow(completing(lease), pack("<I", 1), (FollowTarget("next", 0, NEXT, 1),))
        needs = need(txn, GROUP, command)
    assert (plain.tier, needs.tier) == (Tier.FREES, Tier.ADDS)
    assert needs.bytes > plain.bytes


def test_commands_of_one_entry_keep_their_own_items():
    work, after = chain()
    first, second = leased(work, 1), leased(work, 1)
    targets = (FollowTarget("work", 0, 0, 1), FollowTarget("next", 0, NEXT, 1))
    results = work.entry(
        *(
            Proposal(Follow(completing(lease), pack("<2I", 2, 2), targets), items)
            for lease, items in ((first, b"a1a2"), (first, b"b1b2"), (second, b"c1c2"))
        )
    )
    assert [bool(result.outcomes[0].done) for result in results] == [True, False, True]
    carry(work, after)
    assert (payloads(work), payloads(after)) == ([b"a1", b"c1"], [b"a2", b"c2"])
