"""Layouts of the rows of flows. The conventions are those of `partition.rows`."""

from typing import Final

import msgspec

from querator.partition.limit_rows import LimitRow

PAUSED: Final = -1
"""`leased_max` of a group that is paused: nothing of it may be leased."""


class Turn(msgspec.Struct, array_like=True, gc=False):
    """The turn of a flow among those with one parent. If `listed`, the flow has a row in FLOW_TURNS
    at (rank, load, at). `start` is its start tag now; -1: it has had no turn yet.
    """

    listed: bool = False
    rank: int = 0
    load: int = 0
    at: int = 0
    start: int = -1


class FlowBucket(LimitRow):
    """The token bucket of a flow. When the flow was last written, there were `reckoned` tokens. It
    has a row in FLOW_DUE at `due_at_ms` (0: none): while its items wait for tokens (`waits`), or
    while it has no items and its bucket is not full.
    """

    reckoned: int = 0
    due_at_ms: int = 0
    waits: bool = False


class FlowRow(msgspec.Struct, array_like=True, gc=False):
    """A flow. The root has number ROOT, no parent and no name; its own items are those without a
    group or key. `depth` is the number of flows above it.

    `items` counts its own items in any state, `ready`, `leased` (also reserved) and `blocking` some
    of them. `children` counts the flows whose parent it is. `items_below`, `ready_below`,
    `leased_below` and `leasable_below` are the sums of what these pass on. `passes` is what the
    flow passes on to its own parent: items in any state, ready, leased and leasable ones, with
    those of the flows below it. `leased_max` 0: there is no limit.

    `virtual` is the virtual time among its children: the highest start tag of the items
    that were served. `turn` is that of the flow itself, and `own` that of its own items among its
    children. `bucket` None: any number may be leased in a time.
    """

    hashed: bytes
    parent: int
    depth: int
    weight: int = 1
    leased_max: int = 0
    items: int = 0
    ready: int = 0
    leased: int = 0
    blocking: int = 0
    children: int = 0
    items_below: int = 0
    ready_below: int = 0
    leased_below: int = 0
    leasable_below: int = 0
    passes: tuple[int, int, int, int] = (0, 0, 0, 0)
    virtual: int = 0
    turn: Turn = msgspec.field(default_factory=Turn)
    own: Turn = msgspec.field(default_factory=Turn)
    bucket: FlowBucket | None = None

    @property
    def ready_in_all(self) -> int:
        return self.ready + self.ready_below

    @property
    def leased_in_all(self) -> int:
        return self.leased + self.leased_below

    @property
    def room(self) -> int:
        """How many more of its items may be leased; negative: there is no limit."""
        return max(0, self.leased_max - self.leased_in_all) if self.leased_max else -1

    def room_at(self, now_ms: int) -> int:
        """As `room`, and no more than there are tokens."""
        if self.bucket is None:
            return self.room
        tokens = self.bucket.tokens(now_ms)
        return min(self.room, tokens) if self.leased_max else tokens


_encoder = msgspec.msgpack.Encoder()
encode_flow = _encoder.encode
decode_flow = msgspec.msgpack.Decoder(FlowRow).decode
