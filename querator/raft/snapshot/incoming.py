"""The row with the progress of an incoming snapshot; `raft.snapshot.receiver` writes it."""

import msgspec

from querator.raft.snapshot.protocol import End
from querator.storage.environment import ReadTransaction, StorageCorrupt
from querator.storage.sealed import unseal
from querator.storage.tables import INCOMING

_FORMAT = 1


class IncomingSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The snapshot `number` of the leader of `term`: chunks up to `sequence` are in the staging
    generation. `cleared`: of an earlier snapshot only attachments are left there.
    """

    term: int
    number: int
    sequence: int = 0
    crc: int = 0
    cleared: bool = False
    end: End | None = None

    @property
    def name(self) -> tuple[int, int]:
        return self.term, self.number


class Row(msgspec.Struct, frozen=True, array_like=True):
    """`installed`: term, number and index of the last snapshot that was received to its end."""

    format: int = _FORMAT
    incoming: IncomingSnapshot | None = None
    installed: tuple[int, int, int] | None = None


encode_row = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode


def read_row(txn: ReadTransaction, group: int) -> Row:
    key = INCOMING.key(group)
    stored = txn.get(key)
    if stored is None:
        return Row()
    row = _decode(unseal(key, stored, f"incoming snapshot of group {group}"))
    if row.format != _FORMAT:
        raise StorageCorrupt(f"group {group}: incoming snapshot of unknown format {row.format}")
    return row
