"""What a Raft group replicates, as raft and the state machines both see it: neither imports the
other.
"""

from enum import IntEnum
from typing import Any

import msgspec


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """One client command for a group; `attachment` is stored once, by reference, and never
    re-encoded.
    """

    command: Any
    attachment: bytes = b""


class Tier(IntEnum):
    """What a command does to the disk; when space is short, the higher ones are refused first."""

    FREES = 0
    LEASES = 1
    ADDS = 2


class Need(msgspec.Struct, frozen=True, gc=False):
    """`bytes`: what applying a command may put at most, besides what its size tells."""

    tier: Tier
    bytes: int


class TimeBack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command that puts a group's time to the clock, if it is ahead of it, or far behind. The
    leader writes `to_ms` when it packs the command: the time from here on; 0: nothing is to be
    done. Where time is behind, the entry is the first of that time, as any other may be.
    """

    to_ms: int = 0


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What one log entry carries: a small command, and attachments that the journal stores in their
    own table.
    """

    command: bytes
    attachments: tuple[bytes, ...] = ()


class Applied(msgspec.Struct, frozen=True, gc=False):
    """What came of an entry: one result per proposal packed into it, in order; what the owner must
    know (`effects`, opaque to raft); the earliest instant at which the leader should propose
    `due_commands` (ms of state time; None: never); whether the effects, and those results of which
    the machine says so, may be known before the state can be read (`early`); the same instant
    without what a new leader lets wait for a while (`prompt_ms`).
    """

    results: tuple[Any, ...]
    effects: Any
    due_ms: int | None
    early: bool = False
    prompt_ms: int | None = None
