"""Encoding of the rows of a group's log, term and vote (`raft.log.journal` describes them).

All are sealed (`storage.sealed`): damage in them is StorageCorrupt, and stops only this group.
`tests/unit/raft/log/test_damaged_rows.py` holds golden bytes.
"""

import struct

import msgspec

from querator.model.entries import Entry
from querator.model.ids import GroupId
from querator.model.limits import LOG_ENTRY_OVERHEAD_BYTES
from querator.model.nodes import Replicas
from querator.raft.messages import LogEntry
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.sealed import seal, unseal
from querator.storage.tables import APPLIED, LOG, MEMBERS

KIND_NO_OP = 1
KIND_COMMAND = 2
KIND_CONFIGURATION = 3
KIND_TIME_BACK = 4
"""A command whose time may be before the time of the previous entry."""

_HEAD = struct.Struct(">BIIQQQ")
_APPLIED = struct.Struct(">QQQ")
_MEMBER_FORMAT = 2


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log.

    `bytes` is the entry's size, attachments included; `log_bytes` is the sum of the sizes of this
    and all previous entries. `attachments_count` is the number of its attachments;
    `entry.attachments` holds them only while the record stays in memory. Only commands are for the
    machine: not the library's no-op, nor a configuration.
    """

    index: int
    term: int
    now_ms: int
    bytes: int
    log_bytes: int
    entry: Entry
    attachments_count: int
    kind: int

    @property
    def is_command(self) -> bool:
        return self.kind in (KIND_COMMAND, KIND_TIME_BACK)


class MemberRow(msgspec.Struct, frozen=True, array_like=True):
    """`runs`: where each term begins. `deleting`: some of the group's rows may be gone."""

    format: int
    deleting: bool
    term: int
    vote: int | None
    base_index: int
    base_term: int
    base_bytes: int
    base_ms: int
    runs: tuple[tuple[int, int], ...]
    replica: int = 0
    configurations: tuple[tuple[int, Replicas], ...] = ()


_decode_member = msgspec.msgpack.Decoder(MemberRow).decode
_encode_member = msgspec.msgpack.Encoder().encode


def put_record(txn: WriteTransaction, group: GroupId, record: Record) -> None:
    """Writes the entry's row; its attachments have rows of their own."""
    key = LOG.key(group, record.index)
    head = _HEAD.pack(
        record.kind,
        record.attachments_count,
        record.bytes,
        record.term,
        record.now_ms,
        record.log_bytes,
    )
    txn.put(key, seal(key, head + record.entry.command))


def decode_record(group: GroupId, key: bytes, value: bytes) -> Record:
    """Decodes a row, without the attachments. Raises StorageCorrupt."""
    (index,) = LOG.parts(key)
    assert isinstance(index, int)
    body = unseal(key, value, f"entry {index} in the log of group {group}")
    kind, parts, size, term, now_ms, log_bytes = _HEAD.unpack_from(body)
    return Record(
        index=index,
        term=term,
        now_ms=now_ms,
        bytes=size,
        log_bytes=log_bytes,
        entry=Entry(body[_HEAD.size :]),
        attachments_count=parts,
        kind=kind,
    )


def put_member(txn: WriteTransaction, group: GroupId, row: MemberRow) -> None:
    key = MEMBERS.key(group)
    txn.put(key, seal(key, _encode_member(row)))


def decode_member(group: GroupId, value: bytes) -> MemberRow:
    """Raises StorageCorrupt."""
    body = unseal(MEMBERS.key(group), value, f"member row of group {group}")
    row = _decode_member(body)
    if row.format != _MEMBER_FORMAT:
        raise StorageCorrupt(f"group {group}: member row of unknown format {row.format}")
    return row


def put_applied(txn: WriteTransaction, group: GroupId, applied: tuple[int, int, int]) -> None:
    """Writes index, term and time (ms) of the last applied entry."""
    key = APPLIED.key(group)
    txn.put(key, seal(key, _APPLIED.pack(*applied)))


def read_applied(txn: ReadTransaction, group: GroupId) -> tuple[int, int, int] | None:
    """The values of `put_applied`; None: nothing is applied. Raises StorageCorrupt."""
    key = APPLIED.key(group)
    stored = txn.get(key)
    if stored is None:
        return None
    index, term, now_ms = _APPLIED.unpack(unseal(key, stored, f"applied index of group {group}"))
    return index, term, now_ms


def mark_deleting(txn: WriteTransaction, group: GroupId) -> None:
    """Makes `Journal.open` refuse the group from here on: some of its rows may be gone."""
    put_member(
        txn,
        group,
        MemberRow(
            format=_MEMBER_FORMAT,
            deleting=True,
            term=0,
            vote=None,
            base_index=0,
            base_term=0,
            base_bytes=0,
            base_ms=0,
            runs=(),
        ),
    )


def is_being_deleted(txn: ReadTransaction, group: GroupId) -> bool:
    """Whether the group is being deleted, the only operation left to it. Raises StorageCorrupt."""
    stored = MEMBERS.get(txn, group)
    return stored is not None and decode_member(group, stored).deleting


def member_row(
    *,
    term: int,
    vote: int | None,
    base: tuple[int, int, int, int],
    runs: tuple[tuple[int, int], ...],
    replica: int,
    configurations: tuple[tuple[int, Replicas], ...],
) -> MemberRow:
    """`base`: index, term, bytes and time (ms) of the entry before the first."""
    return MemberRow(_MEMBER_FORMAT, False, term, vote, *base, runs, replica, configurations)


def entry_size(entry: Entry) -> int:
    """Size of an entry in the count of a log's bytes."""
    return LOG_ENTRY_OVERHEAD_BYTES + len(entry.command) + sum(map(len, entry.attachments))


def sent(record: Record, attachments: tuple[bytes, ...]) -> LogEntry:
    """The entry in the form that goes to another replica."""
    return LogEntry(record.term, record.now_ms, record.kind, record.entry.command, attachments)
