"""What a Raft group replicates. Raft and the state machines both use it, and neither imports the
other.
"""

from enum import IntEnum
from typing import Any

import msgspec


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """One client command for a group. `attachment` is stored once, by reference, and never
    re-encoded.
    """

    command: Any
    attachment: bytes = b""


class Tier(IntEnum):
    """What a command does to the disk. When space is short, higher tiers are refused first."""

    FREES = 0
    LEASES = 1
    ADDS = 2


class Need(msgspec.Struct, frozen=True, gc=False):
    """`bytes` is the most that applying a command may store, in addition to its own size."""

    tier: Tier
    bytes: int


class TimeBack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sets a group's time to the clock, if it is ahead of it, or far behind. When the leader packs
    the command, it writes the time from here on into `to_ms`; 0: nothing is to be done. If time is
    behind, the entry is the first of that time, like any other entry.
    """

    to_ms: int = 0


class Entry(msgspec.Struct, frozen=True, gc=False):
    """The content of one log entry: a small command, and attachments that the journal stores in
    their own table.
    """

    command: bytes
    attachments: tuple[bytes, ...] = ()


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The outcome of an entry. `results` has one result per proposal in it, in order. `effects` is
    what the owner must know, opaque to raft. `due_ms` is the earliest instant at which the leader
    should propose `due_commands` (ms of state time; None: never). `prompt_ms` is the same instant
    without what a new leader delays for a while. `early`: the effects, and the results for which
    the machine says so, may be known before the state can be read.
    """

    results: tuple[Any, ...]
    effects: Any
    due_ms: int | None
    early: bool = False
    prompt_ms: int | None = None
