"""The partition of an identified request: pure functions of the identity, so that a repeat reaches
the partition of its first attempt, on whichever client or node they are computed.

    dedup key    slot = hash(key) mod 4,096; partition = slot mod n
    ordered      partition = hash(producer_id) mod n: one partition sees all of the producer's
                 sequences, so it can accept only the last one + 1
    unordered    partition = (hash(producer_id) + sequence) mod n: one producer uses all partitions;
                 each sees every n-th sequence, in any order of arrival

`n` is the queue's number of partitions. `hash` is BLAKE2b with a digest of 8 bytes (RFC 7693; not a
longer digest cut short), without key, salt or personalisation, read as a big-endian integer.
"""

from hashlib import blake2b

SLOTS = 4_096
"""Keys hash to slots, and slots belong to partitions: a slot can move, a key cannot."""

_HASH_BYTES = 8


def hash_bytes(data: bytes) -> int:
    """The hash, 0 to 2**64 - 1."""
    return int.from_bytes(blake2b(data, digest_size=_HASH_BYTES).digest(), "big")


def slot_of_key(key: bytes) -> int:
    """The slot, 0 to 4,095, of a dedup key or an ordering key in UTF-8."""
    return hash_bytes(key) % SLOTS


def partition_of_key(key: bytes, partitions: int) -> int:
    return slot_of_key(key) % partitions


def partitions_sharing(partition: int, partitions: int, others: int) -> set[int]:
    """The partitions to which the slots of `partition` belong when the number changes from
    `partitions` to `others`; none when it has no slots.
    """
    if partition >= partitions:
        return set()
    return {slot % others for slot in range(partition, SLOTS, partitions)}


def partition_of_producer(
    producer_id: bytes, sequence: int, *, ordered: bool, partitions: int
) -> int:
    start = hash_bytes(producer_id)
    return (start if ordered else start + sequence) % partitions
