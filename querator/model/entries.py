"""What a Raft group replicates, as raft and the state machines both see it: neither imports the
other.
"""

from typing import Any

import msgspec


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """One client command for a group; `attachment` is stored once, by reference, and never
    re-encoded.
    """

    command: Any
    attachment: bytes = b""


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
