"""Golden vectors: clients in other languages compute these numbers, and stored data depends on
them.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.routing import (
    SLOTS,
    hash_bytes,
    partition_of_key,
    partition_of_producer,
    slot_of_key,
)

PRODUCER = bytes(range(16))


@pytest.mark.parametrize(
    ("data", "number", "slot"),
    [
        (b"", 0xE4A6A0577479B2B4, 692),
        (b"order-17", 0x78E9AE0C8E445BB0, 2992),
        ("Grüße".encode(), 0x06AB58B78490A392, 914),
        (PRODUCER, 0xF49644867B0897EA, 2026),
    ],
)
def test_golden_vectors(data, number, slot):
    assert hash_bytes(data) == number
    assert slot_of_key(data) == slot


def test_partition_of_a_key_is_its_slot_modulo_the_partitions():
    assert partition_of_key(b"order-17", 4) == 2992 % 4
    assert partition_of_key(b"order-17", 7) == 2992 % 7


def test_an_unordered_producer_uses_all_partitions_in_turn():
    used = [
        partition_of_producer(PRODUCER, sequence, ordered=False, partitions=3)
        for sequence in range(1, 7)
    ]
    first = (0xF49644867B0897EA + 1) % 3
    assert used == [(first + step) % 3 for step in range(6)]


def test_an_ordered_producer_stays_in_one_partition():
    used = {
        partition_of_producer(PRODUCER, sequence, ordered=True, partitions=5)
        for sequence in range(1, 50)
    }
    assert used == {0xF49644867B0897EA % 5}


@given(st.binary(max_size=64), st.integers(1, 1024))
def test_keys_stay_in_range(key, partitions):
    assert 0 <= slot_of_key(key) < SLOTS
    assert 0 <= partition_of_key(key, partitions) < partitions
