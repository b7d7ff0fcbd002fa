"""Pins: executions that wait for a worker with a version that fits.

A worker that leases an execution and cannot run it gives it back as pinned: it does not have the
function, or its version of the function does not do what the journal says. Then the execution has
no activation. It waits under a *pin* with all others of its function that have run with the same
version and do not fit the same ones, which are *refused*. So one look at a pin says of all of them
whether a worker may run them: it may if it has the function, in a version that is not refused. That
may be the version of the execution, or one that was not tried. The number of pins follows from the
number of deployments, and not from the number of executions.

Nothing here remembers workers. A worker says in each lease which versions it has, the leader looks
for pins that fit (`fitting_pins`), and LeasePinned leases what waits under them (`pinned_leases`).
So nothing is to be announced again after any failure, and what waits is found by each later lease.

The key of a pin are two hashes: of the function, and of what is refused. Those that wait under a
pin are in the order in which they were pinned. A pin that nothing waits for has no row.
"""

from collections.abc import Mapping
from hashlib import blake2b

from querator.partition.execution_rows import (
    HASH_BYTES,
    ExecutionRow,
    PinRow,
    decode_pin,
    name_hash,
)
from querator.partition.rows import encode
from querator.storage.environment import ReadTransaction, WriteTransaction
from querator.storage.tables import PINNED_EXECUTIONS, PINS

PIN_BYTES = 2 * HASH_BYTES


def pin_of(row: ExecutionRow) -> PinRow:
    """The pin under which an execution waits, without its count."""
    return PinRow(row.function, row.version, tuple(sorted(row.refused)))


def pin_key(pin: PinRow) -> bytes:
    refused = encode((pin.version, pin.refused))
    what = blake2b(refused, digest_size=HASH_BYTES, person=b"pin").digest()
    return name_hash(pin.function) + what


def parts_of_key(key: bytes) -> tuple[bytes, bytes]:
    return key[:HASH_BYTES], key[HASH_BYTES:]


def add_pin(txn: WriteTransaction, group: int, number: int, row: ExecutionRow) -> None:
    _count(txn, group, pin_of(row), 1)
    parts = parts_of_key(pin_key(pin_of(row)))
    PINNED_EXECUTIONS.put(txn, group, *parts, row.pin, value=number.to_bytes(8, "big"))


def remove_pin(txn: WriteTransaction, group: int, row: ExecutionRow) -> None:
    _count(txn, group, pin_of(row), -1)
    parts = parts_of_key(pin_key(pin_of(row)))
    found = PINNED_EXECUTIONS.delete(txn, group, *parts, row.pin)
    assert found, "a pinned execution waits under its pin"


def _count(txn: WriteTransaction, group: int, pin: PinRow, change: int) -> None:
    parts = parts_of_key(pin_key(pin))
    raw = PINS.get(txn, group, *parts)
    count = change + (0 if raw is None else decode_pin(raw).count)
    assert count >= 0
    if count:
        counted = PinRow(pin.function, pin.version, pin.refused, count)
        PINS.put(txn, group, *parts, value=encode(counted))
    else:
        PINS.delete(txn, group, *parts)


def waiting_under(txn: ReadTransaction, group: int, key: bytes, most: int) -> list[int]:
    """The numbers of the first executions that wait under a pin."""
    found: list[int] = []
    for _, raw in PINNED_EXECUTIONS.rows(txn, group, *parts_of_key(key)):
        if len(found) == most:
            break
        found.append(int.from_bytes(raw, "big"))
    return found


def fitting_pins(
    txn: ReadTransaction, group: int, versions: Mapping[str, str], most: int
) -> tuple[bytes, ...]:
    """The keys of pins that a worker with these versions, by function, may run: those whose first
    execution waits longest.
    """
    found: list[tuple[int, bytes]] = []
    for function, version in versions.items():
        for key, raw in PINS.rows(txn, group, name_hash(function)):
            pin = decode_pin(raw)
            if pin.function != function or version in pin.refused:
                continue
            mine = key[-PIN_BYTES:]
            first, _ = next(PINNED_EXECUTIONS.rows(txn, group, *parts_of_key(mine)))
            found.append((int.from_bytes(first[-8:], "big"), mine))
    return tuple(key for _, key in sorted(found)[:most])
