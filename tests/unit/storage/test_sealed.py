import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.storage.environment import StorageCorrupt
from querator.storage.sealed import checksum, seal, unseal


@given(key=st.binary(max_size=40), body=st.binary(max_size=100), times=st.integers(0, 300))
def test_the_sum_is_that_of_zlib(key: bytes, body: bytes, times: int):
    body *= times
    assert checksum(key, body) == checksum(key, memoryview(body)) == zlib.crc32(key + body)


@pytest.mark.parametrize("size", [0, 1, 5_120, 5_121, 100_000])
def test_what_is_sealed_is_unsealed(size):
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert unseal(b"key", seal(b"key", body), "it") == body


def test_golden_bytes():
    """CRC-32 of b"keybody", as any other program computes it."""
    assert seal(b"key", b"body").hex() == "42ca0f98" + b"body".hex()


@pytest.mark.parametrize("position", [0, 3, 4, -1])
def test_a_flipped_bit_is_found(position):
    value = bytearray(seal(b"key", b"body" * 3_000))
    value[position] ^= 1
    with pytest.raises(StorageCorrupt, match="the row"):
        unseal(b"key", bytes(value), "the row")


@pytest.mark.parametrize("length", [0, 3, 4, 7])
def test_a_value_cut_short_is_found(length):
    with pytest.raises(StorageCorrupt):
        unseal(b"key", seal(b"key", b"body")[:length], "the row")


def test_a_value_in_anothers_place_is_found():
    with pytest.raises(StorageCorrupt):
        unseal(b"other", seal(b"key", b"body"), "the row")
