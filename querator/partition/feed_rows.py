"""Layouts of the rows of events. The conventions are those of `partition.rows`."""

import msgspec


class FeedRow(msgspec.Struct, array_like=True, gc=False):
    """The feed of a partition, in its state row. It keeps positions from `first` up to before
    `next`. The table has `rows`, with `bytes` of values; the oldest is at position `head`, and
    of `head_ms` (0: there is none). Rows of positions before `first` are being deleted.
    """

    first: int = 1
    next: int = 1
    rows: int = 0
    bytes: int = 0
    head: int = 1
    head_ms: int = 0


class EventRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event. Items are those of `mask` in the block that begins at `first_seq`. The other fields
    are as in `model.event_calls.RecordedEvent`; `flow` is the number of the flow.
    """

    kind: int
    first_seq: int = 0
    mask: bytes = b""
    lease: int = 0
    attempt: int = 0
    produced_at_ms: int = 0
    due_ms: int = 0
    detail: int = 0
    flow: int = 0
    dropped: bool = False


class EventsRow(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive events of one entry, whose time is before them in the value. `clients` names the
    holders of leases that were granted, and `flows` the flows of the events.
    """

    events: tuple[EventRow, ...]
    clients: tuple[tuple[int, str], ...] = ()
    flows: tuple[tuple[int, bytes], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(EventsRow).decode
_TIME_BYTES = 8


def encode_events(at_ms: int, row: EventsRow) -> bytes:
    return at_ms.to_bytes(_TIME_BYTES, "big") + _encoder.encode(row)


def time_of(value: bytes) -> int:
    """The time of the entry, without reading the events."""
    return int.from_bytes(value[:_TIME_BYTES], "big")


def decode_events(value: bytes) -> EventsRow:
    return _decode(memoryview(value)[_TIME_BYTES:])
