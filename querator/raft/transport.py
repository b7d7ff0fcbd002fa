"""How members of a group reach each other."""

from typing import Any

from querator.raft.library import Transport


class NoPeers(Transport):  # type: ignore[misc]
    """The transport of a group with one member: always ready, and nobody to send to."""

    def __init__(self) -> None:
        super().__init__(None, None, ())

    def send(self, node: Any, message: Any) -> bool:
        raise AssertionError("a group with one member has nobody to send to")
