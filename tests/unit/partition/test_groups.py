"""Groups of fair queues: limits, priorities, names, lists, and how they go with everything else."""

import sys
from types import FrameType

import pytest

from querator.model import limits
from querator.model.commands import (
    Complete,
    ItemSpecial,
    Lease,
    LeaseItems,
    Move,
    MoveReturn,
    Refusal,
    Retry,
)
from querator.model.errors import ErrorCode
from querator.model.item_options import FlowNames
from querator.model.queues import Fairness, GroupSettings
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import flows as flow_rules
from querator.partition import queries, reader_queries
from querator.partition.flow_queries import flow_page
from tests.unit.partition.flow_queue import FlowQueue, fair, names_of, weights
from tests.unit.partition.partition_log import GROUP, PartitionLog, caller, dead_to, seqs


def counts(queue: FlowQueue) -> dict[str, tuple[int, int, int]]:
    """(items, ready, leased) of each group that has a row."""
    with queue.environment.snapshot() as txn:
        page = flow_page(txn, GROUP, after=b"", limit=10_000)
    return {one.name.decode(): (one.items, one.ready, one.leased) for one in page.flows}


# --- limits of leased items ------------------------------------------------------------------


def test_a_group_at_its_limit_gets_nothing_until_something_is_settled():
    queue = FlowQueue(fair(groups=(GroupSettings("a", 1, 2),)))
    queue.put("a", "a", "a", "b")
    grant = queue.lease()
    assert seqs(grant) == [1, 2, 4]
    assert queue.applied.effects.ready == 0
    queue.one(Complete((LeaseItems(grant.lease, ((1, 1),)),)))
    assert queue.applied.effects.ready == 1
    assert seqs(queue.lease()) == [3]


@pytest.mark.parametrize("how", ["retry", "release", "reject", "lapse"])
def test_whatever_ends_a_lease_makes_space(how: str):
    queue = FlowQueue(fair(group_leased_max=1), dead_targets=dead_to(9))
    queue.put("a", "a")
    grant = queue.lease()
    assert queue.applied.effects.ready == 0
    if how == "lapse":
        queue.advance(60_000)
    else:
        items = (LeaseItems(grant.lease),)
        queue.one(Retry(items, dead=how == "reject", count_attempt=how != "release"))
    assert queue.applied.effects.ready == 1
    assert len(seqs(queue.lease())) == 1


def test_a_limit_holds_at_each_level():
    limited = (GroupSettings("eu", 1, 3), GroupSettings("eu.de", 1, 1))
    queue = FlowQueue(fair(groups=limited))
    queue.fill({"eu.de": 5, "eu.fr": 5, "eu": 5, "us": 2})
    assert queue.applied.effects.ready == 5
    grant = queue.lease()
    names = [queue.names[seq] for seq in seqs(grant)]
    assert names.count("us") == 2
    assert names.count("eu.de") <= 1
    assert len(names) == 5


def test_several_callers_of_one_command_keep_to_the_limit():
    queue = FlowQueue(fair(group_leased_max=3))
    queue.fill({"a": 10})
    callers = tuple(caller(2, client_id=client) for client in "xyz")
    grants = queue.one(Lease(callers)).grants
    assert sum(len(seqs(grant)) for grant in grants) == 3


@pytest.mark.parametrize(("before", "after"), [(1, 4), (1, 0), (4, 2)])
def test_a_limit_that_is_changed_takes_effect(before: int, after: int):
    queue = FlowQueue(fair(group_leased_max=before))
    queue.fill({"a": 6, "b.c": 6})
    queue.set(fair(group_leased_max=after))
    queue.advance(0)
    assert queue.applied.effects.ready == (2 * after or 12)
    assert len(seqs(queue.lease())) == (2 * after or 12)


def test_a_limit_of_one_group_takes_effect_with_the_entry():
    queue = FlowQueue(fair(groups=(GroupSettings("a", 1, 1),)))
    queue.fill({"a": 6})
    queue.lease()
    assert queue.applied.effects.ready == 0
    queue.set(fair(groups=(GroupSettings("a", 1, 4),)))
    assert queue.applied.effects.ready == 3


def test_all_groups_are_reviewed_in_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("querator.partition.expire.APPLY_SEGMENTS_MAX", 4)
    queue = FlowQueue(fair(group_leased_max=1))
    queue.fill({f"g{number}": 3 for number in range(10)})
    queue.set(fair(group_leased_max=2))
    entries = queue.index
    queue.advance(0)
    assert queue.index - entries >= 3
    assert queue.applied.effects.ready == 20


def test_the_mode_can_be_changed():
    queue = FlowQueue(fair(Fairness.TURNS))
    queue.fill({"a": 60})
    held = queue.lease(40)
    queue.fill({"b": 60})
    queue.set(fair(Fairness.IN_FLIGHT))
    queue.advance(0)
    assert queue.take(30) == ["b"] * 30
    queue.complete(held)


def test_the_kind_of_a_partition_stays():
    queue = FlowQueue(fair())
    queue.put("a")
    queue.configure(7, flows=None)
    queue.put("b")
    assert set(counts(queue)) == {"", "a", "b"}
    plain = PartitionLog()
    plain.configure()
    plain.configure(2, flows=fair())
    plain.produce(2, flows=names_of(["a", "b"]))
    assert plain.applied.effects.ready == 2


# --- priorities ------------------------------------------------------------------------------


def test_priorities_are_strict_over_groups():
    queue = FlowQueue(fair())
    queue.fill({"a": 3, "b": 3})
    urgent = queue.put("b", "b", specials=tuple(ItemSpecial(n, priority=-1) for n in range(2)))
    later = queue.put("c", specials=(ItemSpecial(0, priority=5),))
    assert seqs(queue.lease(2)) == list(urgent)
    assert sorted(queue.take(6)) == ["a"] * 3 + ["b"] * 3
    assert seqs(queue.lease()) == list(later)


def test_a_group_that_had_urgent_items_does_not_wait_for_them():
    """Its other items take turns as if it had not had any."""
    queue = FlowQueue(fair())
    for _ in range(5):
        queue.put(*["a"] * 100, specials=tuple(ItemSpecial(n, priority=-1) for n in range(100)))
        queue.take(100)
    queue.fill({"a": 20, "b": 20})
    assert queue.served(items=1, of=20) == {"a": 10, "b": 10}


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a..b", ".a", "a.", ".", ".".join("abcdefghi"), ".".join(["x"] * 200)]
)
def test_a_path_that_is_none_is_refused(name: str):
    queue = FlowQueue(fair())
    refusal = queue.produce(1, flows=FlowNames((name.encode(),), b"\0\0"))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.field, refusal.value) == (
        ErrorCode.INVALID_ARGUMENT, "items.group", name,
    )  # fmt: skip
    assert counts(queue) == {"": (0, 0, 0)}


@pytest.mark.parametrize("items", [b"", b"\0\0\0\0", b"\x07\0"])
def test_names_that_do_not_belong_to_the_items_are_refused(items: bytes):
    queue = FlowQueue(fair())
    refusal = queue.produce(1, flows=FlowNames((b"a",), items))
    assert refusal.code is ErrorCode.INVALID_ARGUMENT


def test_more_groups_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch):
    assert limits.FLOWS_MAX >= 100_000
    monkeypatch.setattr(flow_rules, "FLOWS_MAX", 3)
    queue = FlowQueue(fair())
    queue.put("a", "b.c")
    refusal = queue.produce(2, flows=names_of(["a", "d"]))
    assert (refusal.code, refusal.field, refusal.limit, refusal.value) == (
        ErrorCode.LIMIT_EXCEEDED, "items.group", "3", "4",
    )  # fmt: skip
    queue.put("a", "b.c")
    queue.complete(queue.lease())
    queue.put("d", "e", "f")


def test_moved_items_are_never_refused_for_their_group(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flow_rules, "FLOWS_MAX", 1)
    source = FlowQueue(fair(), dead_targets=dead_to(GROUP))
    source.put("a", "a")
    source.one(Retry((LeaseItems(source.lease().lease),), dead=True))
    with source.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, GROUP)
    assert batch is not None
    target = FlowQueue(fair())
    names = names_of(["b", "c"])
    moved = target.one(Move(9, 1, batch.lengths, batch.items, flows=names), batch.attachment)
    assert moved.changed == 2
    assert counts(target) == {"": (2, 2, 0), "b": (1, 1, 0)}


# --- everything else ---------------------------------------------------------------------------


def test_counts_include_the_groups_below():
    queue = FlowQueue(fair())
    queue.put("eu.de", "eu.de", "eu", "us", "")
    queue.lease(2)
    found = counts(queue)
    assert found["eu"][0] == 3
    assert found[""] == (5, 3, 2)
    with queue.environment.snapshot() as txn:
        pages = [flow_page(txn, GROUP, after=b"", limit=2)]
        while pages[-1].after:
            pages.append(flow_page(txn, GROUP, after=pages[-1].after, limit=2))
    assert {one.name for page in pages for one in page.flows} == {b"", b"eu", b"eu.de", b"us"}
    assert len(pages) == 2


def test_returned_letters_return_to_their_group():
    queue = FlowQueue(fair(), dead_targets=dead_to(9))
    queue.put("a", "b")
    queue.one(Retry((LeaseItems(queue.lease().lease),), dead=True))
    assert counts(queue)["a"] == (1, 0, 0)
    queue.one(MoveReturn(9))
    assert counts(queue) == {"": (2, 2, 0), "a": (1, 1, 0), "b": (1, 1, 0)}


def test_scheduled_items_come_due_in_their_group():
    queue = FlowQueue(fair())
    at_ms = queue.now_ms + 1000
    queue.put("a", "b", "a", specials=tuple(ItemSpecial(n, at_ms) for n in range(3)))
    queue.put("b")
    queue.advance(1000)
    assert counts(queue) == {"": (4, 4, 0), "a": (2, 2, 0), "b": (2, 2, 0)}
    assert sorted(queue.take(2)) == ["a", "b"]


def test_a_reader_takes_what_the_limits_permit_up_to_its_position():
    queue = FlowQueue(fair(group_leased_max=2))
    queue.fill({"a": 3})
    queue.fill({"b": 3})
    epoch = queue.one(OpenReader("lake")).epoch
    command = AdvanceReader("lake", epoch, 0, 10, 10**6, upto_position=1)
    with queue.environment.snapshot() as txn:
        assert reader_queries.outlook(txn, GROUP, command).ready
    batch = queue.one(command).batch
    assert batch.count == 2
    assert counts(queue)["a"] == (3, 1, 2)
    with queue.environment.snapshot() as txn:
        again = AdvanceReader("lake", epoch, batch.seq, 10, 10**6, upto_position=1)
        assert reader_queries.outlook(txn, GROUP, again).acknowledges
    queue.one(ReleaseReader("lake", batch.seq))
    assert counts(queue)["a"] == (3, 3, 0)


def test_a_lease_costs_the_same_with_many_groups():
    """Counted in calls of the partition's functions, not in time."""
    few, many = (_calls_of_a_lease(groups) for groups in (30, 900))
    assert many <= few * 1.05


def _calls_of_a_lease(groups: int) -> int:
    queue = FlowQueue(fair(groups=weights(g3=2)), checked=False)
    for start in range(0, groups, 300):
        names = [f"g{number}" for number in range(start, min(groups, start + 300))]
        queue.put(*names, *names)
    queue.lease(10)
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "/partition/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        queue.lease(10)
    finally:
        sys.setprofile(None)
    return calls
