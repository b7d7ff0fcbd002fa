"""Credit that a consumer grants on its lease stream, counted in items and in bytes.

`held` items are delivered and not settled. The server may send `prefetch_items - held - outstanding
credit` more. The consumer grants this credit in portions, so that deliveries stay whole and most of
them need no credit frame. Bytes are counted in the same way, but the bytes of a batch are held
until its last item is settled, as its memory is.
"""

from querator.v1 import queue_service_pb2


class CreditAccount:
    """The account of one consumer, whose streams follow each other."""

    def __init__(self, *, prefetch_items: int, prefetch_bytes: int, batch_items: int) -> None:
        """`prefetch_items` 0: no credit is granted before `hold`."""
        self._prefetch_bytes = prefetch_bytes
        self.hold(prefetch_items, batch_items)
        self.held = 0
        self.held_bytes = 0
        self._items = 0
        self._bytes = 0
        self._granted = False
        """Whether this stream may still deliver."""

    def hold(self, prefetch_items: int, batch_items: int) -> None:
        self._prefetch = prefetch_items
        batch_items = min(batch_items, prefetch_items)
        self._portion = min(max(batch_items, prefetch_items // 4), max(1, prefetch_items // 2))

    def opened(self) -> None:
        """A new stream has no credit."""
        self._items = self._bytes = 0
        self._granted = False

    def delivered(self, items: int, size: int) -> None:
        self.held += items
        self.held_bytes += size
        self._items -= items
        self._bytes -= size

    def is_worth_granting(self, *, reader_waits: bool) -> bool:
        """Whether the credit that can be granted is worth a frame: enough for a whole delivery, or
        any credit if a task waits for items.
        """
        if not self._prefetch:
            return False
        items = self._prefetch - self.held - self._items
        size = self._prefetch_bytes - self.held_bytes - self._bytes
        if items >= self._portion or size > self._prefetch_bytes // 4:
            return True
        if not reader_waits:
            return False
        return (items > 0 and not self._items) or (size > 0 and self._bytes <= 0)

    def grant(self) -> bytes:
        """Returns the frame that grants all credit that can be granted."""
        items = max(0, self._prefetch - self.held - self._items)
        # 0 would mean: as many bytes as the items have.
        size = max(1, self._prefetch_bytes - self.held_bytes - self._bytes)
        self._items += items
        self._bytes += size
        self._granted = True
        return queue_service_pb2.LeaseStreamRequest(
            credit=queue_service_pb2.Credit(items=items, bytes=size)
        ).SerializeToString()

    def withdraw(self, number: int) -> bytes | None:
        """Returns the frame that ends the deliveries of this stream; None if it has no credit, or
        was ended before.
        """
        if not self._granted:
            return None
        self._granted = False
        return queue_service_pb2.LeaseStreamRequest(
            request_number=number, end_deliveries=queue_service_pb2.EndDeliveries()
        ).SerializeToString()
