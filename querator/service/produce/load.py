"""Unanswered produces of one partition on this node."""


class PartitionLoad:
    """Written only by `produce.calls`."""

    __slots__ = ("payload_bytes", "produces")

    def __init__(self) -> None:
        self.produces = 0
        """Produce commands that are not answered yet."""
        self.payload_bytes = 0
        """Bytes of their items."""
