"""The call of a producer that waits for results of items, and its reply.

`wire` decodes the call and encodes the reply; `service` answers the call.
"""

from enum import IntEnum

import msgspec


class ItemEnd(IntEnum):
    """How an item with a result has ended. WAITS: it has not. NONE: it has no result. The wire uses
    the same numbers, but for WAITS.
    """

    WAITS = 0
    COMPLETED = 1
    DEAD = 2
    REMOVED = 3
    NONE = 4


class WaitResultsCall(msgspec.Struct, frozen=True):
    """`items` are (partition, sequence), each once. `wait_ms` 0: does not wait."""

    namespace: str
    queue: str
    items: tuple[tuple[int, int], ...]
    wait_ms: int = 0


class EndedItem(msgspec.Struct, frozen=True, array_like=True):
    """An item that has ended. `outcome` is an `ItemEnd`. `reason` is a `DeadReason` of the
    protocol, `error` the last words of a consumer; of an item without a result, why it has none.
    """

    seq: int
    outcome: int
    data: bytes = b""
    reason: int = 0
    error: str = ""
    attempts: int = 0
    ended_ms: int = 0


class ResultsReply(msgspec.Struct, frozen=True):
    """The items that have ended, each with its partition; empty: none has in time."""

    items: tuple[tuple[int, EndedItem], ...]
