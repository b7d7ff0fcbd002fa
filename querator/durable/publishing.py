"""What the code of an execution has published for readers outside: the last value of each key."""

from querator.durable.errors import DurableError
from querator.model.limits import PUBLISHED_BYTES_MAX, PUBLISHED_KEYS_MAX


class Published:
    """Published values that are not in the partition, with the sizes of all."""

    def __init__(self) -> None:
        self.pending: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}

    def add(self, key: str, data: bytes) -> None:
        """Raises DurableError beyond the limits."""
        sizes = self._sizes | {key: len(key.encode()) + len(data)}
        if len(sizes) > PUBLISHED_KEYS_MAX:
            raise DurableError(f"{key!r} would be published key {len(sizes)} of at most "
                               f"{PUBLISHED_KEYS_MAX}")  # fmt: skip
        if (total := sum(sizes.values())) > PUBLISHED_BYTES_MAX:
            raise DurableError(f"with {key!r}, what is published has {total} bytes, and at most "
                               f"{PUBLISHED_BYTES_MAX}")  # fmt: skip
        self._sizes = sizes
        self.pending[key] = data

    def were_sent(self) -> None:
        """A Record went out behind all that is pending: in a replay, one that is in the journal."""
        self.pending.clear()
