"""What the code of an execution has published for readers outside: the last value of each key.

A value leaves the worker with a Record, behind all that the code had been given before it: readers
see nothing that a crash can undo. So each value knows how many records of the worker were given
before it (`made`). In a replay, what was published before a record of the journal is in the
partition.

A call that is folded does not publish again in a replay, so its keys are not counted there. The
limits of all keys together therefore make the execution stuck, here or at the partition, and are no
exception: code could take another way in a replay.
"""

from querator.durable.errors import ValueTooLarge
from querator.model.limits import PUBLISHED_BYTES_MAX, PUBLISHED_KEYS_MAX

Pending = dict[tuple[int, str], bytes]
"""Values in the order in which they were published, by `made` and key."""


class Publishing:
    """Published values that are not in the partition, with the sizes of all."""

    def __init__(self) -> None:
        self._pending: Pending = {}
        self._sizes: dict[str, int] = {}

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    def add(self, key: str, data: bytes, made: int) -> str:
        """Returns why there is no room; empty: there is. Raises ValueTooLarge."""
        size = len(key.encode()) + len(data)
        if size > PUBLISHED_BYTES_MAX:
            raise ValueTooLarge(
                f"the published value {key!r} has {size} bytes with its key, and at most "
                f"{PUBLISHED_BYTES_MAX}"
            )
        sizes = self._sizes | {key: size}
        if len(sizes) > PUBLISHED_KEYS_MAX:
            return f"{key!r} would be published key {len(sizes)} of at most {PUBLISHED_KEYS_MAX}"
        if (total := sum(sizes.values())) > PUBLISHED_BYTES_MAX:
            return (
                f"with {key!r}, what is published has {total} bytes, and at most "
                f"{PUBLISHED_BYTES_MAX}"
            )
        self._sizes = sizes
        self._pending[made, key] = data
        return ""

    def take(self, before: int | None) -> Pending:
        """The values that go with a Record: those before record `before`, which is the first one
        that does not go with it. None: all.
        """
        taken = {
            (made, key): data
            for (made, key), data in self._pending.items()
            if before is None or made < before
        }
        for place in taken:
            del self._pending[place]
        return taken

    def put_back(self, values: Pending) -> None:
        """The Record of these values was not applied."""
        self._pending = values | self._pending

    def clear(self) -> None:
        """All that is pending is in the partition, or never goes there."""
        self._pending.clear()
