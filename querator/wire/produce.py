"""Produce requests and answers.

An item is never re-encoded. The bytes of field 15 of a request are stored, replicated and
delivered, because `LeasedBatch` has its items under the same field number. A request is read twice.
First upb parses it, which proves that it is well-formed and that its strings are UTF-8. Then the
bytes are walked to find the items. The walk measures each item. An item whose fields are all plain
and small by their bytes needs no further check. Any other item is checked field by field, as upb
has parsed it. So a batch of plain items needs no access to a parsed item.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from querator.model import limits
from querator.model.calls import ProduceCall, ProduceReply
from querator.model.commands import NO_SLOT, ItemSpecial
from querator.model.errors import invalid, over_limit
from querator.model.ids import check_name
from querator.model.item_options import FlowNames
from querator.model.routing import slot_of_key
from querator.v1 import items_pb2, queue_service_pb2, transaction_service_pb2
from querator.wire import field_checks
from querator.wire.duplicates import check_on_duplicate
from querator.wire.field_checks import DEFAULT_LIMITS, RequestLimits
from querator.wire.fields import LEN, MalformedError, next_field, prefix, read_varint
from querator.wire.flow_names import flow_names
from querator.wire.results import check_keep_result
from querator.wire.retry_policies import check_retry_policy

ITEMS_FIELD = 15
_ITEM_TAG = ITEMS_FIELD << 3 | LEN
assert _ITEM_TAG < 0x80, "the tag of an item is one byte"
_TAIL_BYTES_MAX = 512

# Tags of an item's fields, as encoders write them.
_PAYLOAD, _KIND, _ENCODING, _REFERENCE, _ATTRIBUTES = 0x0A, 0x12, 0x1A, 0x22, 0x2A
_PRIORITY, _GROUP, _KEY, _DEDUP_KEY = 0x30, 0x3A, 0x42, 0x62

_INT32_HALF = 1 << 31
Span = tuple[int, int]
_Note = tuple[bytes, bytes, int, bytes]
"""Key, dedup key, priority and group of an item; empty and 0 if it has none."""


def parse_produce(
    data: bytes, *, now_ms: int, request_limits: RequestLimits = DEFAULT_LIMITS
) -> ProduceCall:
    """Parses a `ProduceRequest`. `now_ms` bounds how far ahead items may be scheduled."""
    check_request_bytes(len(data), request_limits)
    message = field_checks.parse_message(queue_service_pb2.ProduceRequest, data)
    return check_produce(message, data, ((0, len(data)),), now_ms, request_limits)


class CheckedItems(msgspec.Struct, frozen=True):
    """Items of a request: the fields are those of `ProduceCall`."""

    items: bytes
    lengths: bytes
    specials: tuple[ItemSpecial, ...]
    slots: bytes
    groups: FlowNames | None
    keys: FlowNames | None
    takes_over: bool


def check_produce(
    message: queue_service_pb2.ProduceRequest,
    buffer: bytes,
    spans: Sequence[Span],
    now_ms: int,
    request_limits: RequestLimits,
) -> ProduceCall:
    """Checks `message`, whose bytes are `spans` of `buffer`, and returns the call.

    More than one span: the message came in pieces, which protobuf merges. Raises `QueratorError`.
    """
    check_request_bytes(sum(stop - start for start, stop in spans), request_limits)
    _check_count(len(message.items), request_limits)
    namespace = field_checks.check_namespace(message.namespace)
    queue = check_name(message.queue, field="queue")
    _check_producer(message)
    timeout_ms = 0
    if message.HasField("request_timeout"):
        timeout_ms = field_checks.duration_ms(
            message.request_timeout,
            field="request_timeout",
            least_ms=0,
            most_ms=limits.REQUEST_TIMEOUT_MS_MAX,
        )
    items = check_items(message, buffer, spans, now_ms, request_limits)
    return ProduceCall(
        namespace=namespace,
        queue=queue,
        items=items.items,
        lengths=items.lengths,
        producer_id=message.producer_id,
        sequence=message.sequence,
        ordered=message.ordered,
        specials=items.specials,
        timeout_ms=timeout_ms,
        slots=items.slots,
        groups=items.groups,
        keys=items.keys,
        takes_over=items.takes_over,
    )


def check_request_bytes(value: int, request_limits: RequestLimits) -> None:
    """Raises LIMIT_EXCEEDED."""
    if value > request_limits.request_bytes_max:
        most = request_limits.request_bytes_max
        raise over_limit("request", value=value, limit=most, unit="bytes")


def _check_count(count: int, request_limits: RequestLimits) -> None:
    if not count:
        raise invalid("items", "must not be empty")
    if count > request_limits.request_items_max:
        raise over_limit("items", value=count, limit=request_limits.request_items_max, unit="items")


def check_items(
    message: queue_service_pb2.ProduceRequest
    | queue_service_pb2.FollowUps
    | transaction_service_pb2.StageRequest,
    buffer: bytes,
    spans: Sequence[Span],
    now_ms: int,
    request_limits: RequestLimits,
) -> CheckedItems:
    """Checks the items of `message`. Arguments and errors are those of `check_produce`."""
    count = len(message.items)
    _check_count(count, request_limits)
    walk = _Walk(buffer, request_limits.payload_bytes_max)
    try:
        for start, stop in spans:
            walk.span(start, stop)
    except (MalformedError, IndexError) as error:
        raise field_checks.malformed(type(message)) from error
    if len(walk.lengths) != count:
        raise field_checks.malformed(type(message))
    specials = []
    slots: dict[int, int] = {}
    groups: dict[int, bytes] = {}
    keys: dict[int, bytes] = {}
    takes_over = False
    for ordinal, note in walk.notes:
        if note is None:
            item = message.items[ordinal]
            special = _check_item(item, ordinal, now_ms, request_limits)
            key, dedup_key = item.key.encode(), item.dedup_key.encode()
            group = item.group.encode()
            takes_over = takes_over or item.on_duplicate > items_pb2.ON_DUPLICATE_KEEP
        else:
            key, dedup_key, priority, group = note
            special = None
            if dedup_key or priority:
                special = ItemSpecial(ordinal, dedup_key=dedup_key, priority=priority)
        if special is not None:
            specials.append(special)
        if key or dedup_key:
            slots[ordinal] = slot_of_key(key or dedup_key)
            if key:
                keys[ordinal] = key
        if group:
            groups[ordinal] = group
    return CheckedItems(
        items=walk.items(),
        lengths=struct.pack(f"<{count}I", *walk.lengths),
        specials=tuple(specials),
        slots=_packed(slots, count),
        groups=flow_names(groups, count) if groups else None,
        keys=flow_names(keys, count) if keys else None,
        takes_over=takes_over,
    )


def _packed(slots: dict[int, int], count: int) -> bytes:
    """The slots of all items; empty if no item has one."""
    if not slots:
        return b""
    return struct.pack(f"<{count}H", *(slots.get(ordinal, NO_SLOT) for ordinal in range(count)))


def encode_produced(reply: ProduceReply) -> bytes:
    """A `ProduceResponse`."""
    message = queue_service_pb2.ProduceResponse(durable=reply.durable, leader_address=reply.leader)
    for batch in reply.batches:
        message.batches.add(
            partition=batch.partition,
            first_seq=batch.first_seq,
            count=batch.count,
            indexes=batch.indexes,
            repeated_answer=batch.repeated,
            duplicates=[
                queue_service_pb2.DuplicateItem(index=index, partition=partition, seq=seq)
                for index, partition, seq in batch.duplicates
            ],
            replaced=[
                queue_service_pb2.ReplacedItem(index=index, partition=partition, seq=seq)
                for index, partition, seq in batch.replaced
            ],
        )
    return message.SerializeToString()


def _check_producer(message: queue_service_pb2.ProduceRequest) -> None:
    producer_id = message.producer_id
    if not producer_id:
        if message.sequence:
            raise invalid("sequence", "must be 0 without producer_id", value=message.sequence)
        if message.ordered:
            raise invalid("ordered", "needs a producer_id")
        return
    if len(producer_id) != limits.PRODUCER_ID_BYTES:
        raise invalid(
            "producer_id",
            f"is {len(producer_id)} bytes; a UUIDv7 is {limits.PRODUCER_ID_BYTES} bytes",
            value=producer_id.hex(),
        )
    if producer_id[6] >> 4 != 7 or producer_id[8] >> 6 != 0b10:
        raise invalid("producer_id", "is not a UUIDv7", value=producer_id.hex())
    if not message.sequence:
        raise invalid("sequence", "must be at least 1 with a producer_id", value=0)


class _Plain:
    """Tables for the check of plain fields under one limit of payloads."""

    def __init__(self, payload_bytes_max: int) -> None:
        table = [-1] * 256
        table[_PAYLOAD] = payload_bytes_max
        table[_KIND] = limits.KIND_CHARS_MAX
        table[_ENCODING] = limits.ENCODING_CHARS_MAX
        table[_REFERENCE] = limits.REFERENCE_CHARS_MAX
        table[_GROUP] = limits.GROUP_BYTES_MAX
        table[_KEY] = limits.KEY_BYTES_MAX
        table[_DEDUP_KEY] = limits.DEDUP_KEY_BYTES_MAX
        self.bytes_max = tuple(table)
        """By the first byte of a field: the number of bytes up to which its content is certainly
        within its limit (a character has at least one byte); -1 if it is not a plain field.
        """
        self.heads: dict[bytes, int] = {}
        """Length of an item that has only a payload, by its first bytes: tag, length, payload tag,
        length. When both lengths take one byte (four bytes together) or two (six), these bytes are
        all that must be checked. Filled on demand: an entry for each length below 2**14.
        """


_plain_of = lru_cache(maxsize=8)(_Plain)


class _Walk:
    """Finds the items in the bytes of a message that upb has parsed.

    `lengths` has the length of each item including its tag and length. `notes` has the items that
    are not plain, ascending: (ordinal, note) when only what is in the note makes the item special,
    (ordinal, None) when the parsed item must be checked. `MalformedError` and `IndexError` mean
    that the bytes are malformed, which upb would have detected before.
    """

    def __init__(self, buffer: bytes, payload_bytes_max: int) -> None:
        self.lengths: list[int] = []
        self.notes: list[tuple[int, _Note | None]] = []
        self._buffer = buffer
        self._known = _plain_of(payload_bytes_max)
        self._pieces: list[bytes] = []
        self._tail = b""
        self._note_of_tail: _Note | None = None
        """What the fields `_tail` are noted as. None: they are plain."""

    def items(self) -> bytes:
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def span(self, pos: int, stop: int) -> None:
        """Walks the fields from `pos` to `stop`. Consecutive items stay one piece."""
        buffer, lengths = self._buffer, self.lengths
        head_length = self._known.heads.get
        run = pos
        while pos < stop:
            known = head_length(buffer[pos : pos + 6]) or head_length(buffer[pos : pos + 4])
            if known:
                pos += known
                lengths.append(known)
                continue
            end = self._item(pos, stop)
            if end is None:
                if run < pos:
                    self._pieces.append(buffer[run:pos])
                end = run = self._other(pos, stop)
            pos = end
        if pos != stop:
            raise MalformedError("the last item is cut off")
        if run < pos:
            self._pieces.append(buffer[run:pos])

    def _item(self, begin: int, stop: int) -> int | None:
        """Notes the item at `begin` and returns its end. None when there is another field, or an
        item whose length is not in its shortest encoding.
        """
        buffer = self._buffer
        if buffer[begin] != _ITEM_TAG:
            return None
        size, pos = buffer[begin + 1], begin + 2
        if size >= 0x80:
            if 0 < (high := buffer[pos]) < 0x80:
                size += (high - 1) << 7
                pos += 1
            else:
                size, pos = read_varint(buffer, begin + 1, stop)
                if buffer[pos - 1] == 0:
                    return None
        end = pos + size
        if end > stop:
            raise MalformedError(f"item at byte {begin} is cut off")
        if size:
            self._note_item(begin, pos, end)
        self.lengths.append(end - begin)
        return end

    def _note_item(self, begin: int, pos: int, end: int) -> None:
        """Notes the item with content from `pos` to `end`, if it is not plain; its prefix is at
        `begin`.

        The bytes after the payload are the same in many items of a batch: they are checked once.
        """
        buffer, rest = self._buffer, pos
        if buffer[pos] == _PAYLOAD:
            size, rest = buffer[pos + 1], pos + 2
            if size >= 0x80:
                if (high := buffer[rest]) < 0x80:
                    size += (high - 1) << 7
                    rest += 1
                else:
                    size, rest = read_varint(buffer, pos + 1, end)
            if size > self._known.bytes_max[_PAYLOAD]:
                self.notes.append((len(self.lengths), None))
                return
            head, rest = rest, rest + size
            if rest == end:
                if head - begin in (4, 6) and head - pos == pos - begin:
                    self._known.heads[buffer[begin:head]] = end - begin
                return
        if rest > end:
            raise MalformedError(f"payload at byte {pos} is cut off")
        tail = buffer[rest:end] if end - rest <= _TAIL_BYTES_MAX else None
        if tail is not None and tail == self._tail:
            if self._note_of_tail is not None:
                self.notes.append((len(self.lengths), self._note_of_tail))
            return
        note = self._fields(rest, end)
        plain = note is not None and not any(note)
        if note is not None:
            self._tail, self._note_of_tail = tail or b"", None if plain else note
        if not plain:
            self.notes.append((len(self.lengths), note))

    def _fields(self, pos: int, end: int) -> _Note | None:
        """What these fields of an item say. None when a field may exceed its limit, or is of a kind
        that needs a check of the parsed item.
        """
        buffer, bytes_max = self._buffer, self._known.bytes_max
        attributes = attributes_bytes = priority = 0
        key = dedup_key = group = b""
        while pos < end:
            tag = buffer[pos]
            size = buffer[pos + 1]
            pos += 2
            if size >= 0x80:
                size, pos = read_varint(buffer, pos - 1, end)
            if size <= bytes_max[tag]:
                pos += size
                if tag == _DEDUP_KEY:
                    dedup_key = buffer[pos - size : pos]
                elif tag == _KEY:
                    key = buffer[pos - size : pos]
                elif tag == _GROUP:
                    group = buffer[pos - size : pos]
            elif tag == _ATTRIBUTES:
                attributes += 1
                attributes_bytes += size
                pos += size
            elif tag == _PRIORITY:
                # As protobuf reads an int32: its lowest 32 bits.
                priority = (size + _INT32_HALF) % (2 * _INT32_HALF) - _INT32_HALF
            else:
                return None
        few = attributes <= limits.ATTRIBUTES_MAX
        small = attributes_bytes <= limits.ATTRIBUTES_BYTES_MAX
        if pos != end or not (few and small):
            return None
        return key, dedup_key, priority, group

    def _other(self, pos: int, stop: int) -> int:
        """Skips a field that is not an item and returns its end. An item whose tag or length is not
        in its shortest encoding gets the usual prefix, so that all stored items have it.
        """
        buffer = self._buffer
        number, wire_type, body, end = next_field(buffer, pos, stop)
        if number == ITEMS_FIELD and wire_type == LEN:
            self.notes.append((len(self.lengths), None))
            piece = prefix(ITEMS_FIELD, end - body) + buffer[body:end]
            self._pieces.append(piece)
            self.lengths.append(len(piece))
        return end


def _check_item(
    item: items_pb2.Item, ordinal: int, now_ms: int, request_limits: RequestLimits
) -> ItemSpecial | None:
    """Checks all fields of an item; returns its special fields, or None if it has none."""
    path = f"items[{ordinal}]."
    if len(item.payload) > request_limits.payload_bytes_max:
        raise over_limit(
            path + "payload",
            value=len(item.payload),
            limit=request_limits.payload_bytes_max,
            unit="bytes",
        )
    field_checks.check_chars(item.kind, limits.KIND_CHARS_MAX, field=path + "kind")
    field_checks.check_chars(item.encoding, limits.ENCODING_CHARS_MAX, field=path + "encoding")
    field_checks.check_chars(item.reference, limits.REFERENCE_CHARS_MAX, field=path + "reference")
    field_checks.check_attributes(item.attributes, field=path + "attributes")
    field_checks.check_bytes(item.group, limits.GROUP_BYTES_MAX, field=path + "group")
    field_checks.check_bytes(item.key, limits.KEY_BYTES_MAX, field=path + "key")
    dedup_key = field_checks.check_bytes(
        item.dedup_key, limits.DEDUP_KEY_BYTES_MAX, field=path + "dedup_key"
    )
    enqueue_at_ms = expire_timeout_ms = lease_timeout_ms = 0
    if item.HasField("enqueue_at"):
        enqueue_at_ms = field_checks.scheduled_ms(
            item.enqueue_at, field=path + "enqueue_at", now_ms=now_ms
        )
    if item.HasField("expire_timeout"):
        expire_timeout_ms = field_checks.duration_ms(
            item.expire_timeout,
            field=path + "expire_timeout",
            least_ms=1,
            most_ms=limits.EXPIRE_TIMEOUT_MS_MAX,
        )
    if item.HasField("lease_timeout"):
        lease_timeout_ms = field_checks.lease_timeout_ms(
            item.lease_timeout, field=path + "lease_timeout"
        )
    max_attempts = None
    if item.HasField("max_attempts"):
        max_attempts = field_checks.check_range(
            item.max_attempts, field=path + "max_attempts", least=0, most=limits.ATTEMPTS_MAX
        )
    retry = None
    if item.HasField("retry"):
        retry = check_retry_policy(item.retry, field=path + "retry")
    on_duplicate, debounce_max_ms = check_on_duplicate(item, path)
    keep_result_ms = check_keep_result(item, path) if item.HasField("keep_result") else 0
    timed = enqueue_at_ms or expire_timeout_ms or lease_timeout_ms
    retries = max_attempts is not None or retry is not None
    if not (timed or retries or dedup_key or item.priority or keep_result_ms):
        return None
    return ItemSpecial(
        ordinal=ordinal,
        enqueue_at_ms=enqueue_at_ms,
        expire_timeout_ms=expire_timeout_ms,
        lease_timeout_ms=lease_timeout_ms,
        dedup_key=dedup_key,
        priority=item.priority,
        max_attempts=max_attempts,
        retry=retry,
        on_duplicate=on_duplicate,
        debounce_max_ms=debounce_max_ms,
        keep_result_ms=keep_result_ms,
    )
