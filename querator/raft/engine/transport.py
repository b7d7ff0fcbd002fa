"""The messages that the library itself sends: requests for votes. `raft.consensus.member` sends all
others.
"""

from collections.abc import Callable
from typing import Any

from querator.raft.engine.library import Transport


class VoteTransport(Transport):  # type: ignore[misc]
    """The library's transport, always ready. `request` asks one replica for its vote."""

    def __init__(self, request: Callable[[int], None]) -> None:
        super().__init__(None, None, ())
        self._request = request

    def send(self, node: Any, message: Any) -> bool:
        assert message["type"] == "request_vote", "the library sends nothing else"
        self._request(int(node.id))
        return True
