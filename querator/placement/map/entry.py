"""The log's file format of the placement group.

An entry is one version byte, then msgpack of [now_ms, [command, …]]; a command is [tag, field, …]
with the tags of `placement.map.commands`. The meaning of released bytes never changes. Fields are
only added at the end, with defaults; anything else takes another version.
`tests/unit/placement/map/test_entry.py` holds golden bytes of every command.
"""

from collections.abc import Sequence

import msgspec

from querator.placement.map.commands import Command

VERSION = 1


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Commands of one entry with the time of the leader that packed them (ms since the epoch)."""

    now_ms: int
    commands: tuple[Command, ...]


class UnknownEntryError(Exception):
    """The entry has a version or shape that this release does not know, and it must not guess."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def encode(now_ms: int, commands: Sequence[Command]) -> bytes:
    return bytes((VERSION,)) + _encoder.encode(Batch(now_ms, tuple(commands)))


def decode(data: bytes) -> Batch:
    """Raises UnknownEntryError."""
    if data[:1] != bytes((VERSION,)):
        raise UnknownEntryError(f"placement entry of version {data[:1].hex() or '(none)'}")
    try:
        return _decoder.decode(data[1:])
    except msgspec.MsgspecError as error:
        raise UnknownEntryError(f"placement entry: {error}") from error
