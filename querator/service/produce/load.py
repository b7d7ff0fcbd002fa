"""How many produces of one partition are unanswered at this node."""


class PartitionLoad:
    """Only `produce.calls` writes it."""

    __slots__ = ("payload_bytes", "produces")

    def __init__(self) -> None:
        self.produces = 0
        """Produce commands that are not answered yet."""
        self.payload_bytes = 0
        """Bytes of their items."""
