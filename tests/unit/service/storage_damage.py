"""Helpers that damage rows of a node's storage and restore them."""

from collections.abc import Iterator
from contextlib import contextmanager

from querator.storage.keys import Table
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS


def flip(environment: MemoryEnvironment, table: Table, group: int, *, nth: int = 0) -> bytes:
    """Flips the last bit of the value of the table's `nth` row in a group.

    Returns the key of the row.
    """
    with environment._mutex:
        start, stop = table.bounds(group)
        rows = environment._rows.irange(start, stop, inclusive=(True, False))
        key: bytes = list(rows)[nth]
        value = environment._rows[key]
        environment._rows[key] = value[:-1] + bytes([value[-1] ^ 1])
    return key


def damage(environment: MemoryEnvironment, group: int, *, nth: int = 0) -> bytes:
    """Flips a bit of the payload of the group's `nth` block. Returns the key of its row."""
    return flip(environment, ATTACHMENTS, group, nth=nth)


@contextmanager
def damaged(environment: MemoryEnvironment, group: int, *nths: int) -> Iterator[None]:
    """Damages the payloads of these blocks of the group within the context."""
    with environment._mutex:
        keys = list(environment._rows.irange(*ATTACHMENTS.bounds(group)))
        values = {keys[nth]: environment._rows[keys[nth]] for nth in nths}
    for nth in nths:
        damage(environment, group, nth=nth)
    yield
    with environment._mutex:
        environment._rows.update({k: v for k, v in values.items() if k in environment._rows})


@contextmanager
def garbage(environment: MemoryEnvironment, table: Table, group: int) -> Iterator[None]:
    """Makes the table's first row in a group undecodable within the context."""
    with environment._mutex:
        key = next(environment._rows.irange(*table.bounds(group), inclusive=(True, False)))
        value = environment._rows[key]
        environment._rows[key] = b"\xc1"
    yield
    with environment._mutex:
        environment._rows[key] = value


@contextmanager
def gone(environment: MemoryEnvironment, table: Table, group: int) -> Iterator[None]:
    """Removes the table's rows in a group within the context."""
    with environment._mutex:
        start, stop = table.bounds(group)
        keys = list(environment._rows.irange(start, stop, inclusive=(True, False)))
        rows = {key: environment._rows.pop(key) for key in keys}
    yield
    with environment._mutex:
        environment._rows.update(rows)
