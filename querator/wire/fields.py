"""The part of the protobuf wire format that is needed to find fields without copying them.

A message is a sequence of fields: a tag (varint of number × 8 + wire type), then a value. Fields of
a message may come in any order and may repeat, and unknown fields must be skipped. A varint may be
longer than necessary. So this module does not assume the usual output of encoders.
https://protobuf.dev/programming-guides/encoding/
"""

VARINT, I64, LEN, GROUP, GROUP_END, I32 = range(6)
_VARINT_BYTES_MAX = 10


class MalformedError(ValueError):
    """The bytes are not a protobuf message."""


def read_varint(buffer: bytes, pos: int, stop: int) -> tuple[int, int]:
    """Returns the varint at `pos` and the position after it. Raises `MalformedError`."""
    value = shift = 0
    last = min(stop, pos + _VARINT_BYTES_MAX)
    at = pos
    while at < last:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise MalformedError(f"truncated or endless varint at byte {pos}")


def next_field(buffer: bytes, pos: int, stop: int) -> tuple[int, int, int, int]:
    """Returns the field whose tag is at `pos`: (number, wire type, start of the value, end of the
    field).

    For LEN the start of the value is that of the content, after its length. A group ends after its
    end tag. Raises `MalformedError`.
    """
    if pos + 1 < stop and (tag := buffer[pos]) < 0x80 and (size := buffer[pos + 1]) < 0x80:
        # Most fields of a request: one byte for the tag, one for the length or the value.
        body = pos + 2
        if tag & 7 == LEN and body + size <= stop and tag >= 8:
            return tag >> 3, LEN, body, body + size
        if tag & 7 == VARINT and tag >= 8:
            return tag >> 3, VARINT, pos + 1, body
    tag, body = read_varint(buffer, pos, stop)
    number, wire_type = tag >> 3, tag & 7
    if wire_type == LEN:
        size, body = read_varint(buffer, body, stop)
        end = body + size
    elif wire_type == VARINT:
        end = read_varint(buffer, body, stop)[1]
    elif wire_type == I64:
        end = body + 8
    elif wire_type == I32:
        end = body + 4
    elif wire_type == GROUP:
        end = _group_end(buffer, body, stop, number)
    else:
        raise MalformedError(f"wire type {wire_type} at byte {pos}")
    if end > stop or number == 0:
        raise MalformedError(f"field {number} at byte {pos} is cut off")
    return number, wire_type, body, end


def _group_end(buffer: bytes, pos: int, stop: int, number: int) -> int:
    """Returns the end of the group `number` that was opened just before `pos`. Groups nest, and the
    sender chooses their depth, so this uses an explicit stack.
    """
    opened = [number]
    while opened:
        tag, body = read_varint(buffer, pos, stop)
        if tag & 7 == GROUP:
            opened.append(tag >> 3)
            pos = body
        elif tag & 7 == GROUP_END:
            if opened.pop() != tag >> 3:
                raise MalformedError(f"end of a group that is not open at byte {pos}")
            pos = body
        else:
            pos = next_field(buffer, pos, stop)[3]
    return pos


def varint(value: int) -> bytes:
    """The shortest encoding of a number from 0 to 2**64 - 1."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def prefix(number: int, size: int) -> bytes:
    """The tag and length before `size` bytes of content of the LEN field `number`."""
    return varint(number << 3 | LEN) + varint(size)
