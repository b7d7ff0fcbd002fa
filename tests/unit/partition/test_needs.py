"""The bytes that a command may need on disk are known before it is applied. `PartitionLog` checks
this for every entry of every test; the tests here have the commands that write most.
"""

from typing import Any

import pytest

from querator.model.commands import Complete, Expire, Extend, LeaseItems, Reschedule, Retry
from querator.model.entries import Tier
from querator.model.item_options import ItemSpecial
from querator.model.limits import (
    ATTEMPTS_MAX,
    ATTRIBUTES_BYTES_MAX,
    CLIENT_ID_CHARS_MAX,
    DEDUP_KEY_BYTES_MAX,
    ERROR_CHARS_MAX,
    EXPIRE_TIMEOUT_MS_MAX,
    LEASE_TIMEOUT_MS_MAX,
    REQUEST_ID_CHARS_MAX,
    RETRY_DELAY_MS_MAX,
)
from querator.model.queues import RetryBackoff, RetryWaits
from querator.model.transactions import Prepare, Publish, StageClaim
from querator.partition.needs import need
from tests.unit.partition.partition_log import PartitionLog, dead_to, lease_of, produce
from tests.unit.partition.transaction_queue import SPARK, attempt, stage_of

ITEMS = 256
WIDE = "\N{ROLLING ON THE FLOOR LAUGHING}"
CLIENT = {"client_id": WIDE * CLIENT_ID_CHARS_MAX, "request_id": WIDE * REQUEST_ID_CHARS_MAX}


def new_log(**settings: Any) -> PartitionLog:
    log = PartitionLog(checked=False)
    log.configure(**settings)
    return log


def scatter(log: PartitionLog, **changes: Any) -> None:
    """Produces items, and makes each of them ready in a segment of its own."""
    log.produce(ITEMS, **changes)
    lease = log.one(lease_of(ITEMS)).grants[0].lease
    log.one(Retry(tuple(LeaseItems(lease, ((seq, 1),)) for seq in range(1, ITEMS + 1))))


def test_items_with_timeouts_of_their_own_are_leased_one_by_one():
    specials = tuple(ItemSpecial(n, lease_timeout_ms=1_000 * (n + 1)) for n in range(ITEMS))
    log = new_log()
    log.produce(ITEMS, specials=specials)
    granted = log.one(lease_of(ITEMS, **CLIENT)).grants[0]
    leases = [segment.lease for segment in granted.segments]
    assert len(leases) == ITEMS
    log.one(Extend(tuple(leases), lease_timeout_ms=600_000))
    log.one(Extend((), str(CLIENT["client_id"]), 700_000))
    log.one(Complete(tuple(LeaseItems(lease) for lease in leases)))


@pytest.mark.parametrize("targets", [(), dead_to(9)])
def test_scattered_items_are_leased_lapse_and_die(targets):
    log = new_log(max_attempts=3, dead_targets=targets)
    scatter(log)
    log.one(lease_of(ITEMS, **CLIENT))
    log.advance(31_000)
    log.one(lease_of(ITEMS, lease_timeout_ms=1_000, **CLIENT | {"request_id": "2"}))
    log.advance(31_000)
    log.now_ms += 1
    log.one(Expire(lapses=True))


def test_scattered_items_die_when_they_are_leased():
    log = new_log(max_attempts=2, dead_targets=dead_to(9))
    scatter(log)
    log.configure(2, max_attempts=1, dead_targets=dead_to(9))
    assert log.one(lease_of(ITEMS)).grants[0].lease == 0


def test_every_second_item_goes_back_to_its_place():
    log = new_log()
    log.produce(ITEMS)
    lease = log.one(lease_of(ITEMS)).grants[0].lease
    for start in (2, 1):
        ranges = tuple((seq, 1) for seq in range(start, ITEMS + 1, 2))
        log.one(Retry((LeaseItems(lease, ranges),), count_attempt=False))


def test_the_longest_errors_of_every_item():
    log = new_log(dead_targets=dead_to(9))
    log.produce(ITEMS)
    for number in range(6):
        lease = log.one(lease_of(ITEMS, **CLIENT | {"request_id": str(number)})).grants[0].lease
        log.one(Retry((LeaseItems(lease),), error=WIDE * ERROR_CHARS_MAX))
    lease = log.one(lease_of(ITEMS)).grants[0].lease
    log.one(Retry((LeaseItems(lease),), dead=True, error=WIDE * ERROR_CHARS_MAX))


@pytest.mark.parametrize("length", [3, DEDUP_KEY_BYTES_MAX])
def test_every_item_has_times_and_a_key(length):
    keys = [(b"%03d" % n).rjust(length, b"k") for n in range(ITEMS)]
    specials = tuple(
        ItemSpecial(n, 1_900_000_000_000 + n, 5_000 + n, 1_000 + n, key)
        for n, key in enumerate(keys)
    )
    log = new_log(dedup_window_ms=600_000)
    identity = {"producer_id": log.now_ms.to_bytes(6, "big") + bytes(10), "sequence": 1}
    log.produce(ITEMS, specials=specials, **identity)
    log = new_log(dedup_window_ms=600_000)
    command, data = stage_of([b"x"] * ITEMS, specials=specials, slots=b"\1\0" * ITEMS)
    log.one(command, data)
    log.one(Prepare(1, SPARK, 0, (StageClaim(0, attempt(1), ITEMS, command.checksum),)))
    assert log.one(Publish(1)).changed == 0


def test_each_item_is_a_block():
    log = new_log()
    log.entry(*(produce([b"x" * 200_000]) for _ in range(20)))


def test_what_is_small_is_not_taken_for_much():
    log = new_log()
    log.produce(100)
    lease = log.one(lease_of(100)).grants[0].lease
    with log.environment.snapshot() as txn:
        found = need(txn, log.group, Complete((LeaseItems(lease),)))
        assert need(txn, log.group, Complete((LeaseItems(99),))).bytes == 0
    assert found.tier is Tier.FREES
    assert found.bytes < 16_000


def test_what_frees_and_what_does_not():
    log = new_log()
    with log.environment.snapshot() as txn:
        tiers = {
            command: need(txn, log.group, command).tier
            for command in (
                lease_of(), Retry(()), Retry((), dead=True), Complete(()), Extend(()),
                Expire(lapses=True), produce([b"x"]).command,
            )
        }  # fmt: skip
    assert list(tiers.values()) == [
        Tier.LEASES, Tier.LEASES, Tier.FREES, Tier.FREES, Tier.FREES, Tier.FREES, Tier.ADDS,
    ]  # fmt: skip


def test_a_change_in_blocks_whose_items_all_say_how_they_are_retried():
    """`PartitionLog` checks the bound."""
    log = new_log(expire_timeout_ms=EXPIRE_TIMEOUT_MS_MAX)
    retry = RetryWaits(RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MAX, RetryBackoff.LINEAR, jitter=False)
    specials = tuple(
        ItemSpecial(
            ordinal,
            log.now_ms + 60_000,
            EXPIRE_TIMEOUT_MS_MAX - 1,
            LEASE_TIMEOUT_MS_MAX,
            max_attempts=ATTEMPTS_MAX,
            retry=retry,
        )
        for ordinal in range(ITEMS)
    )
    for _ in range(30):
        log.produce(ITEMS, specials=specials)
    first = tuple((1 + ITEMS * block, 1) for block in range(30))
    changed = log.one(Reschedule(first, due_ms=log.now_ms + 90_000))
    assert changed.changed == 30


def test_attributes_of_the_most_items_beside_errors_and_a_letter():
    """Of one lease, whose items have a segment each."""
    log = new_log(dead_targets=dead_to(9))
    scatter(log)
    for number in range(7):
        lease = log.one(lease_of(ITEMS)).grants[0].lease
        half = ATTRIBUTES_BYTES_MAX // 4 // 2
        attributes = (("n" * half, WIDE * half), (str(number), WIDE * half))
        text = WIDE * ERROR_CHARS_MAX
        log.one(Retry((LeaseItems(lease),), error=text, attributes=attributes))
