"""The format of the entries of a partition's log: many commands in one entry.

    entry = version byte (1) · msgpack [now_ms, parts, commands]

`commands` are arrays that start with their number (`model.commands`). Payload is not in the entry:
the items of its Produce, Move, Stage, Follow, Fire and RecordProgress commands are its attachments.
`parts` holds the number of items of each attachment, and each attachment becomes one block. First
come the blocks of all Produce commands of the entry, joined in order; then those of each other
command. A command that fits into a block is never cut, so that a batch stays one segment. Each
checkpoint of a SaveCheckpoints or Move, each result of an Answer, and each large payload of a
command of executions is an attachment of its own, after the blocks of the command (those of a
RecordProgress before its blocks), and counts as one item.

Every later version must be able to read what a released version wrote. Golden bytes of every
command are in the tests.
"""

from collections.abc import Sequence
from itertools import accumulate
from struct import unpack

import msgspec

from querator.model.commands import Answer, Command, Follow, Move, Produce, SaveCheckpoints
from querator.model.entries import Entry, Proposal
from querator.model.execution_commands import Arrive, RecordProgress, StartExecution
from querator.model.limits import BLOCK_BYTES_MAX, BLOCK_ITEMS_MAX
from querator.model.recurrences import Fire
from querator.model.transactions import Stage

_EACH = frozenset((SaveCheckpoints, Answer, StartExecution, RecordProgress, Arrive))
"""Commands each of whose attachments has one thing."""

ENTRY_VERSION = 1
_VERSION = bytes([ENTRY_VERSION])


class Body(msgspec.Struct, frozen=True, array_like=True):
    now_ms: int
    parts: tuple[int, ...]
    commands: tuple[Command, ...]


class UnknownEntryVersion(Exception):
    """A later version of Querator wrote the entry. The group must stop instead of guessing."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Body)


def pack(proposals: Sequence[Proposal], now_ms: int) -> Entry:
    produced = _Cutter()
    moved = _Cutter()
    for proposal in proposals:
        if isinstance(proposal.command, Produce):
            produced.add(proposal.command.lengths, proposal.attachment)
        elif isinstance(proposal.command, Stage | Follow | Fire):
            moved.add(proposal.command.lengths, proposal.attachment)
            moved.close()
        elif isinstance(proposal.command, Move):
            sizes = [size for _, size in proposal.command.checkpoints]
            items_end = len(proposal.attachment) - sum(sizes)
            moved.add(proposal.command.lengths, proposal.attachment[:items_end])
            moved.close()
            moved.add_each(sizes, proposal.attachment[items_end:])
        elif type(proposal.command) in _EACH:
            lengths = proposal.command.lengths
            each = unpack(f"<{len(lengths) >> 2}I", lengths)
            if isinstance(proposal.command, RecordProgress) and proposal.command.sent:
                items_begin = sum(each)
                moved.add_each(each, proposal.attachment[:items_begin])
                moved.add(proposal.command.sent.lengths, proposal.attachment[items_begin:])
                moved.close()
            else:
                moved.add_each(each, proposal.attachment)
    produced.close()
    body = Body(
        now_ms,
        tuple(produced.counts + moved.counts),
        tuple(proposal.command for proposal in proposals),
    )
    return Entry(_VERSION + _encoder.encode(body), tuple(produced.blocks + moved.blocks))


def unpack_entry(command: bytes) -> Body:
    if command[:1] != _VERSION:
        raise UnknownEntryVersion(f"entry starts with {command[:1]!r}; known is {_VERSION!r}")
    return _decoder.decode(memoryview(command)[1:])


class _Cutter:
    """Joins the items of requests into blocks."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.blocks: list[bytes] = []
        self._pieces: list[bytes] = []
        self._count = 0
        self._bytes = 0

    def add(self, lengths: bytes, data: bytes) -> None:
        count = len(lengths) >> 2
        if count <= BLOCK_ITEMS_MAX and len(data) <= BLOCK_BYTES_MAX:
            self._append(data, count)
            return
        ends = list(accumulate(unpack(f"<{count}I", lengths)))
        assert ends[-1:] == [len(data)], "lengths must add up to the attachment"
        start = begin = 0
        for ordinal in range(count):
            base = ends[begin - 1] if begin else 0
            if ordinal > begin and (
                ordinal - begin == BLOCK_ITEMS_MAX or ends[ordinal] - base > BLOCK_BYTES_MAX
            ):
                self._append(data[start : ends[ordinal - 1]], ordinal - begin)
                start, begin = ends[ordinal - 1], ordinal
        self._append(data[start:], count - begin)

    def add_each(self, sizes: Sequence[int], data: bytes) -> None:
        """Adds blocks of one item each, of these sizes, which may be 0."""
        start = 0
        for size in sizes:
            self.counts.append(1)
            self.blocks.append(data[start : start + size])
            start += size
        assert start == len(data), "sizes must add up to the attachment"

    def _append(self, data: bytes, count: int) -> None:
        if self._count + count > BLOCK_ITEMS_MAX or self._bytes + len(data) > BLOCK_BYTES_MAX:
            self.close()
        self._pieces.append(data)
        self._count += count
        self._bytes += len(data)

    def close(self) -> None:
        if self._count:
            self.counts.append(self._count)
            self.blocks.append(b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0])
        self._pieces = []
        self._count = self._bytes = 0
