"""Leases of items by name, and the look-ahead that finds items by kind and attributes."""

from typing import Any

import pytest

from querator.model.commands import (
    Cancel,
    Complete,
    FlowSettings,
    Lease,
    LeaseItems,
    Refusal,
    Retry,
    SetBreaker,
)
from querator.model.errors import ErrorCode
from querator.model.queues import BreakerSettings, QueueKind
from querator.partition import invariants
from querator.partition.look_ahead import Sought, look_ahead
from querator.v1.items_pb2 import Item, LeasedBatch
from tests.unit.partition.partition_log import GROUP, PartitionLog, caller, lease_of, seqs


@pytest.fixture
def log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    return log


def wire_items(*items: Item) -> list[bytes]:
    return [LeasedBatch(items=[item]).SerializeToString() for item in items]


def named(*ranges: tuple[int, int], items: int = 100, **changes: Any) -> Lease:
    return Lease((caller(items, **changes),), named=ranges)


def got(log: PartitionLog, command: Lease) -> list[int]:
    [grant] = log.one(command).grants
    assert not isinstance(grant, Refusal), grant
    return seqs(grant)


def sighted(log: PartitionLog, limit: int = 100, **sought: Any) -> list[int]:
    with log.environment.snapshot() as txn:
        return list(look_ahead(txn, GROUP, Sought(**sought), limit=limit))


def test_a_named_item_is_leased_and_the_others_keep_their_places(log: PartitionLog):
    log.produce(5)
    assert got(log, named((3, 1))) == [3]
    assert got(log, lease_of(2)) == [1, 2]
    assert got(log, lease_of()) == [4, 5]


def test_items_that_are_not_ready_are_left_out(log: PartitionLog):
    log.produce(5)
    assert got(log, lease_of(1)) == [1]
    log.one(Cancel(((2, 1),)))
    assert got(log, named((1, 3), (99, 2))) == [3]
    assert got(log, named((1, 3))) == []


def test_named_items_are_leased_in_the_order_of_leasing(log: PartitionLog):
    log.produce(4)
    [grant] = log.one(lease_of(2)).grants
    log.one(Retry((LeaseItems(grant.lease, ((1, 1),)),)))
    log.one(Retry((LeaseItems(grant.lease),), count_attempt=False))
    assert got(log, named((1, 4), items=3)) == [2, 3, 4]
    assert got(log, named((1, 4))) == [1]


def test_what_a_caller_has_no_space_for_stays_ready(log: PartitionLog):
    log.produce([b"x" * 100] * 4)
    [grant] = log.one(named((2, 3), max_bytes=150)).grants
    assert seqs(grant) == [2]
    [refused] = log.one(named((3, 1), max_bytes=10)).grants
    assert (refused.code, refused.field) == (ErrorCode.ITEM_TOO_LARGE, "max_bytes")
    assert got(log, lease_of()) == [1, 3, 4]


def test_a_repeat_gets_the_same_lease(log: PartitionLog):
    log.produce(3)
    command = named((2, 1), request_id="once")
    assert got(log, command) == [2]
    [again] = log.one(command).grants
    assert (seqs(again), again.repeated) == ([2], True)
    log.one(Complete((LeaseItems(again.lease),)))
    [ended] = log.one(command).grants
    assert ended.code is ErrorCode.LEASE_ENDED


def test_named_items_that_have_expired_or_are_spent_die() -> None:
    log = PartitionLog()
    log.configure(expire_timeout_ms=1_000, max_attempts=0)
    log.produce(3)
    log.advance(2_000)
    assert got(log, named((2, 1))) == []
    with log.environment.snapshot() as txn:
        assert invariants.check(txn, GROUP) == []


def test_paused_leases_and_an_open_breaker_give_nothing() -> None:
    log = PartitionLog()
    log.configure(lease_paused=True)
    log.produce(3)
    assert got(log, named((2, 1))) == []
    log.configure(2, breaker=BreakerSettings())
    log.one(SetBreaker(True))
    assert got(log, named((2, 1))) == []
    log.one(SetBreaker(False))
    assert got(log, named((2, 1))) == [2]


@pytest.mark.parametrize(("kind", "word"), [(QueueKind.FAIR, "fair"), (QueueKind.KEYED, "keyed")])
def test_queues_with_an_order_of_their_own_refuse(kind: QueueKind, word: str):
    log = PartitionLog()
    log.configure(flows=FlowSettings(kind))
    [refused] = log.one(named((1, 1))).grants
    assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, "queue")
    assert f"is {word}" in refused.message


def test_more_items_than_a_request_has_are_refused(log: PartitionLog):
    log.produce(1)
    [refused] = log.one(named((1, 1_001))).grants
    assert (refused.code, refused.limit) == (ErrorCode.LIMIT_EXCEEDED, "1000 items")


def test_blocks_that_the_leader_cannot_read_are_passed_over(log: PartitionLog):
    log.produce(2)
    log.produce(2)
    assert got(log, Lease((caller(),), aside=(1,), named=((1, 4),))) == [3, 4]


def test_a_look_ahead_finds_kinds_and_attributes(log: PartitionLog):
    log.produce(
        wire_items(
            Item(payload=b"1", kind="mail", attributes={"to": "ann", "size": "l"}),
            Item(payload=b"2"),
            Item(payload=b"3", kind="fax", attributes={"to": "ann"}),
            Item(payload=b"4", kind="mail", attributes={"to": "ben"}),
        )
    )
    assert sighted(log, kinds=("mail",)) == [1, 4]
    assert sighted(log, kinds=("fax", "")) == [2, 3]
    assert sighted(log, attributes=(("to", "ann"),)) == [1, 3]
    assert sighted(log, kinds=("mail",), attributes=(("to", "ann"), ("size", "l"))) == [1]
    assert sighted(log, attributes=(("to", ""),)) == []
    assert sighted(log, limit=1, kinds=("mail",)) == [1]


def test_a_look_ahead_goes_by_the_order_of_leasing_and_by_the_attributes_of_retries(
    log: PartitionLog,
):
    log.produce(wire_items(*(Item(payload=b"x", attributes={"page": "1"}) for _ in range(3))))
    [grant] = log.one(lease_of(1)).grants
    log.one(Retry((LeaseItems(grant.lease),), attributes=(("page", "2"),)))
    assert sighted(log, attributes=(("page", "1"),)) == [2, 3]
    assert sighted(log, attributes=(("page", "2"),)) == [1]
    assert sighted(log) == [2, 3, 1]


def test_a_look_ahead_has_a_bound(log: PartitionLog, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("querator.partition.look_ahead.LOOK_AHEAD_ITEMS_MAX", 5)
    plain = wire_items(*(Item(payload=b"x") for _ in range(4)))
    wanted = wire_items(*(Item(payload=b"x", kind="mail") for _ in range(4)))
    log.produce(plain + wanted)
    assert sighted(log, kinds=("mail",)) == [5]
    monkeypatch.setattr("querator.partition.look_ahead.LOOK_AHEAD_BYTES_MAX", 1)
    log.produce(wanted)
    log.one(named((1, 8)))
    assert sighted(log, kinds=("mail",)) == [9, 10, 11, 12]


def test_a_look_ahead_finds_nothing_while_leases_are_paused(log: PartitionLog):
    log.produce(wire_items(Item(payload=b"x", kind="mail")))
    log.configure(2, lease_paused=True)
    assert sighted(log, kinds=("mail",)) == []


def test_a_leased_item_that_was_named_returns_to_its_place(log: PartitionLog):
    log.produce(3)
    [grant] = log.one(named((2, 1))).grants
    assert [part.attempt for part in grant.segments] == [1]
    log.one(Retry((LeaseItems(grant.lease),), count_attempt=False))
    assert got(log, lease_of()) == [1, 2, 3]
    with log.environment.snapshot() as txn:
        assert invariants.check(txn, GROUP) == []
