"""Payload bytes, stored once: written with the log entry, referred to by the state machine.

An attachment is named by (group, index of its entry, part) and has two holders:

* the log, from the append of the entry until the entry leaves the log at either end;
* the state machine, from the apply of the entry until it drops the part (the block died, or the
  produce was refused).

An attachment is deleted with its last holder:

    `drop`       the machine drops a part; the log has dropped the entry   part deleted
    `drop`       the machine drops a part; the log keeps the entry         part marked dead
    `release`    the head of the log passes an applied entry               marked parts deleted
    `discard`    the tail of the log loses an entry before its apply       all parts deleted

The log's head passes only applied entries, so at `release` the machine has either dropped a part or
holds it. A part that no command of the entry refers to must be dropped in the apply of that entry,
or it stays for ever.

The row is sealed (`storage.sealed`), and every read checks the seal, because a flipped bit here
would reach a consumer.
"""

from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.sealed import seal, unseal
from querator.storage.tables import ATTACHMENTS, ATTACHMENTS_DEAD


class AttachmentDamaged(StorageCorrupt):
    """The checksum of an attachment does not match. Another replica may have it whole."""

    def __init__(self, group: int, index: int, part: int, why: str) -> None:
        super().__init__(f"attachment {part} of entry {index} in group {group}: {why}")
        self.group = group
        self.index = index
        self.part = part


def write(txn: WriteTransaction, group: int, index: int, part: int, data: bytes) -> None:
    """Writes a part, with the append of entry `index`. A part is written once."""
    key = ATTACHMENTS.key(group, index, part)
    txn.put(key, seal(key, data))


def read(txn: ReadTransaction, group: int, index: int, part: int) -> bytes | None:
    """The bytes, or None if there is no such attachment. Raises AttachmentDamaged."""
    key = ATTACHMENTS.key(group, index, part)
    stored = txn.get(key)
    return None if stored is None else check(group, index, part, stored)


def check(group: int, index: int, part: int, stored: bytes) -> bytes:
    """Returns the bytes of the stored row. Raises AttachmentDamaged."""
    try:
        return unseal(ATTACHMENTS.key(group, index, part), stored, "attachment")
    except StorageCorrupt:
        raise AttachmentDamaged(group, index, part, "wrong checksum") from None


def drop(txn: WriteTransaction, group: int, index: int, part: int, *, log_first: int) -> None:
    """The state machine drops a part. `log_first` is the oldest entry that the log keeps."""
    if index < log_first:
        ATTACHMENTS.delete(txn, group, index, part)
    else:
        ATTACHMENTS_DEAD.put(txn, group, index, part, value=b"")


def release(txn: WriteTransaction, group: int, index: int, parts_count: int) -> None:
    """The head of the log passes entry `index`, which was applied and had `parts_count` parts."""
    if parts_count == 0:
        return
    for mark, _ in list(ATTACHMENTS_DEAD.rows(txn, group, index)):
        _, part = ATTACHMENTS_DEAD.parts(mark)
        assert isinstance(part, int)
        assert part < parts_count
        ATTACHMENTS.delete(txn, group, index, part)
        txn.delete(mark)


def discard(txn: WriteTransaction, group: int, index: int) -> None:
    """Entry `index` leaves the tail of the log without having been applied."""
    assert next(ATTACHMENTS_DEAD.rows(txn, group, index), None) is None, "the entry was applied"
    for key in [key for key, _ in ATTACHMENTS.rows(txn, group, index)]:
        txn.delete(key)
