"""Marks: records of answers to the code, which are no events. They have paths of their own.

A mark is a record of the kind PATCHED. That of a patch has a path of three elements, and that of
`current().full` one of five. They begin with 0.0, below which nothing else is: what no task has
begun is below 0, numbered from 1.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from querator.durable.paths import Path
from querator.model.executions import Note, encode_path

FULL: Final = "current().full"
"""The name in the record."""
_MARKS: Final = (0, 0)


def patch_path(name: str) -> Path:
    """The path of a patch: it follows from the name alone."""
    number = int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big")
    return encode_path((*_MARKS, number))


def full_path(line: Path, reads: int) -> Path:
    """The path of the n-th read of `current().full` by a line."""
    hashed = blake2b(line, digest_size=8).digest()
    parts = (int.from_bytes(hashed[:4], "big"), int.from_bytes(hashed[4:], "big"))
    return encode_path((*_MARKS, *parts, reads))


def sorted_marks(notes: Iterable[Note]) -> tuple[set[str], set[Path]]:
    """The names of the patches, and the paths of the others."""
    patches: set[str] = set()
    others: set[Path] = set()
    for note in notes:
        if note.name == FULL and note.path != patch_path(FULL):
            others.add(note.path)
        else:
            patches.add(note.name)
    return patches, others
