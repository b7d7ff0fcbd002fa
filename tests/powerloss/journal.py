"""The journal of shadow.c: what a process did to the files below one directory, in order.

A journal ends where the process was killed, perhaps in the middle of a record.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<IIQQQ")


class Kind(IntEnum):
    WRITE = 1
    """`inode` from offset `a`; the text is the bytes."""
    RESULT = 2
    """The result of the write before: only the first `a` bytes were taken."""
    SYNC = 3
    """`inode`, everything before position `a` of the journal. Of a directory: its names."""
    SYNC_RANGE = 4
    """`inode`, from offset `a`, `b` bytes."""
    LENGTH = 5
    """`inode` has `a` bytes."""
    MADE = 6
    """The text is a name in directory `inode`, of inode `a`; `b` is 1 for a directory."""
    GONE = 7
    RENAMED = 8
    """The text is the old name, a zero byte, and the new one."""
    NOT_FOLLOWED = 9


class Record(NamedTuple):
    position: int
    kind: Kind
    inode: int
    a: int
    b: int
    text: bytes


class NotFollowed(AssertionError):
    """The process did what the model of a disk does not know, so it is unknown what would
    be kept.
    """


def read(path: Path) -> Iterator[Record]:
    """The whole records, with the results of writes applied. Raises NotFollowed."""
    write: Record | None = None
    for record in _raw(path):
        if record.kind is Kind.NOT_FOLLOWED:
            raise NotFollowed(record.text.decode())
        if write is not None:
            if record.kind is Kind.RESULT:
                yield write._replace(text=write.text[: record.a])
                write = None
                continue
            yield write
            write = None
        if record.kind is Kind.WRITE:
            write = record
        else:
            yield record
    if write is not None:
        yield write


def _raw(path: Path) -> Iterator[Record]:
    if not path.exists():
        return
    with path.open("rb") as file:
        position = 0
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            kind, size, inode, a, b = _HEADER.unpack(header)
            text = file.read(size)
            if len(text) < size:
                return
            yield Record(position=position, kind=Kind(kind), inode=inode, a=a, b=b, text=text)
            position += _HEADER.size + size
