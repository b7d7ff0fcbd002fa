"""A hash of a partition's tables. Replicas at the same applied index have the same hash.

Attachments are left out: the log of each replica decides how long it keeps those that are not
needed any more.
"""

from hashlib import blake2b

from querator.storage.environment import ReadTransaction
from querator.storage.tables import PARTITION_TABLES


def digest(txn: ReadTransaction, group: int) -> bytes:
    """The hash: 16 bytes over all rows, in key order. Reads everything."""
    total = blake2b(digest_size=16)
    for table in PARTITION_TABLES:
        for key, value in table.rows(txn, group):
            total.update(len(value).to_bytes(4, "big"))
            total.update(key)
            total.update(value)
    return total.digest()
