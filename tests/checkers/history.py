"""Histories: every operation of every client, with its begin, its end and its outcome.

Instants are seconds of one clock that all clients of the history share (monotonic or virtual).
Items are named by queue, partition and sequence, and by a *reference* that their producer makes
unique in the history. Lease ids are unique in the history. An operation ends in one of three ways:
an answer; `Refused`, which means certainly not executed; `Unknown`, which means that it may take
effect at any later point, or never. A client that repeats a call by itself records one operation,
from its first try to the final answer.

A history is written to a file, to be kept and checked again: `python -m tests.checkers FILE`.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

Ranges = tuple[tuple[int, int], ...]
"""Runs of sequences: (first sequence, count)."""


# --- what was asked ---------------------------------------------------------------------------


class Produce(msgspec.Struct, frozen=True, array_like=True, tag="produce"):
    """`producer` and `sequence`: the request's identity; empty and 0: none."""

    references: tuple[str, ...]
    producer: str = ""
    sequence: int = 0
    ordered: bool = False
    delay_s: float = 0.0
    """The item is not leased until this long after `begin_s`; 0: it may be leased at once."""


class Lease(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """`request_id` (with the operation's client): the request's identity; empty: none.
    `lease_timeout_s` 0: the queue's.
    """

    max_items: int
    request_id: str = ""
    lease_timeout_s: float = 0.0


class Named(msgspec.Struct, frozen=True, array_like=True):
    """Items under one lease; no `ranges`: all that it still holds."""

    lease: str
    ranges: Ranges = ()


class Complete(msgspec.Struct, frozen=True, array_like=True, tag="complete"):
    leases: tuple[Named, ...]
    all_or_nothing: bool = False


class Retry(msgspec.Struct, frozen=True, array_like=True, tag="retry"):
    leases: tuple[Named, ...]
    delay_s: float = 0.0
    dead: bool = False
    count_attempt: bool = True
    all_or_nothing: bool = False


class Extend(msgspec.Struct, frozen=True, array_like=True, tag="extend"):
    leases: tuple[str, ...]
    lease_timeout_s: float = 0.0


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """A full read of what the queue holds. It is exact, so no other operation may run meanwhile."""


class Count(msgspec.Struct, frozen=True, array_like=True, tag="count"):
    """A linearizable read of the queue's counters."""


Request = Produce | Lease | Complete | Retry | Extend | Look | Count


# --- what came of it --------------------------------------------------------------------------


class ProducedPart(msgspec.Struct, frozen=True, array_like=True):
    """The partition that a part of a request went to. `indexes`: its positions in the request;
    empty: all.
    """

    partition: int
    first_seq: int
    count: int
    indexes: tuple[int, ...] = ()
    repeated: bool = False


class Produced(msgspec.Struct, frozen=True, array_like=True, tag="produced"):
    parts: tuple[ProducedPart, ...]


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Items of one partition under one lease with one attempt: (sequence, reference)."""

    lease: str
    partition: int
    attempt: int
    items: tuple[tuple[int, str], ...]
    repeated: bool = False


class Leased(msgspec.Struct, frozen=True, array_like=True, tag="leased"):
    """`unseen`: number of items that the server may have granted to this call without the client
    ever seeing them, for instance to an earlier try. They lapse, or are given back politely.
    """

    grants: tuple[Grant, ...]
    unseen: int = 0


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome for the items named for one lease."""

    lease: str
    done: Ranges = ()
    repeated: Ranges = ()
    lost: Ranges = ()


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="settled"):
    """`again`: the client has tried more than once, so a repeated outcome may be its own doing."""

    outcomes: tuple[Outcome, ...]
    again: bool = False


class Extended(msgspec.Struct, frozen=True, array_like=True, tag="extended"):
    """(lease, whether it is live)."""

    outcomes: tuple[tuple[str, bool], ...]


class DeadItem(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter, by its place in the queue in which it died."""

    partition: int
    seq: int
    reference: str
    attempts: int = 0
    reason: str = ""


class Looked(msgspec.Struct, frozen=True, array_like=True, tag="looked"):
    """`present`: (partition, sequence, reference)."""

    present: tuple[tuple[int, int, str], ...] = ()
    dead: tuple[DeadItem, ...] = ()


class Counted(msgspec.Struct, frozen=True, array_like=True, tag="counted"):
    """(partition, items ever produced, items ever completed)."""

    partitions: tuple[tuple[int, int, int], ...]


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Certainly not executed."""

    code: str = ""


class Unknown(msgspec.Struct, frozen=True, array_like=True, tag="unknown"):
    """`end_s` is then when the client gave up."""


Result = Produced | Leased | Settled | Extended | Looked | Counted | Refused | Unknown


class Operation(msgspec.Struct, array_like=True):
    client: str
    queue: str
    begin_s: float
    end_s: float
    request: Request
    outcome: Result = Unknown()

    def __str__(self) -> str:
        return (
            f"{self.begin_s:.4f}-{self.end_s:.4f} {self.client} {self.queue}: "
            f"{self.request} -> {self.outcome}"
        )


class QueueRules(msgspec.Struct, frozen=True):
    """What the checkers must know of a queue. `max_attempts` 0: no limit."""

    partitions: int = 1
    lease_timeout_s: float = 30.0
    max_attempts: int = 0
    dead_queue: str = ""


class Aside(msgspec.Struct, frozen=True, array_like=True):
    """A damaged block: from then on leases pass over its items for a while. `items` is their
    number.
    """

    queue: str
    from_s: float
    items: int


class History(msgspec.Struct):
    """`clock_uncertainty_s`: by how much a lease may end before its timeout as clients measure it.
    `hold_s`: how long items that were granted unseen may stay away at most after the end of the
    call (or after it was given up); infinite: for ever.
    """

    queues: dict[str, QueueRules] = {}
    operations: list[Operation] = []
    clock_uncertainty_s: float = 0.5
    hold_s: float = float("inf")
    asides: list[Aside] = []
    notes: list[tuple[float, str]] = []
    """Other events, for human readers: (when, what)."""

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def read(cls, path: Path) -> "History":
        """Raises msgspec.DecodeError when the file is not a history."""
        return msgspec.msgpack.decode(path.read_bytes(), type=cls)


class Pending:
    """An operation that has begun; ended once. One that is never ended has an unknown outcome."""

    def __init__(self, operation: Operation, clock: Callable[[], float]) -> None:
        self.operation = operation
        self._clock = clock

    def ended(self, outcome: Result) -> None:
        self.operation.end_s = self._clock()
        self.operation.outcome = outcome


class Recorder:
    """Records the history while it happens."""

    def __init__(self, history: History, clock: Callable[[], float]) -> None:
        self.history = history
        self.clock = clock

    def begin(self, client: str, queue: str, request: Request) -> Pending:
        now_s = self.clock()
        operation = Operation(client, queue, now_s, float("inf"), request)
        self.history.operations.append(operation)
        return Pending(operation, self.clock)

    def note(self, text: str) -> None:
        self.history.notes.append((self.clock(), text))


def ranges(seqs: "list[int] | tuple[int, ...] | set[int]") -> Ranges:
    """Sequences as runs."""
    runs: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if runs and runs[-1][0] + runs[-1][1] == seq:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((seq, 1))
    return tuple(runs)


def spread(runs: Ranges) -> list[int]:
    """Runs as sequences."""
    return [seq for first, count in runs for seq in range(first, first + count)]
