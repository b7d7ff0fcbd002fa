"""One node that a client knows: its connection, and what is known of its health."""

from querator.client.errors import RequestError, StorageFailed
from querator.client.logs import CONNECTION
from querator.client.transport.backoff import Backoff
from querator.client.transport.channel import Connection
from querator.wire.tls import Tls

REFUSAL_LOG_SECONDS = 60.0
"""Interval of lines about a node that answers and refuses."""
UNUSED_SECONDS = 5.0
"""A lost node that was not tried for this long may have been there again before."""


class KnownNode:
    """A node of the cluster, as one client sees it. The connection is made at its first use."""

    __slots__ = (
        "_connection",
        "_refusal_due",
        "_tls",
        "_tried_at",
        "_works",
        "address",
        "alone_until",
        "backoff",
        "given",
        "lost_at",
        "name",
    )

    def __init__(self, address: str, tls: Tls | None, *, name: str, given: bool) -> None:
        self.address = address
        self._tls = tls
        self._connection: Connection | None = None
        self._works = False
        self._tried_at = 0.0
        """When the lost node was last tried without success."""
        self.lost_at: float | None = None
        """When the connection was lost; None while it is not, or was never used."""
        self.name = name
        """Empty while it is not known."""
        self.given = given
        """Whether the program gave the address; else another node did."""
        self.alone_until = 0.0
        self._refusal_due = 0.0
        self.backoff = Backoff()

    @property
    def connection(self) -> Connection:
        """The connection, which is made at its first use."""
        if self._connection is None:
            self._connection = Connection(self.address, tls=self._tls)
        return self._connection

    @property
    def opened(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def release(self) -> Connection | None:
        """Returns the connection, if there is one, and forgets it."""
        released, self._connection = self._connection, None
        return released

    def has(self, connection: Connection) -> bool:
        return self._connection is connection

    def lost(self, error: RequestError, now: float) -> None:
        """Logs the first failure after success, or that the node refuses."""
        self.missed(now)
        if error.request_id and not isinstance(error, StorageFailed):
            self._refuses(error, now)
        elif self._works and not isinstance(error, StorageFailed):
            self._works = False
            self.lost_at = now
            cause = error.message.removeprefix(f"no answer from {self.address}: ")
            CONNECTION.warning("Lost the connection to %s: %s", self.address, cause)

    def missed(self, now: float) -> None:
        """Records that the node was tried without success."""
        self._tried_at = now

    def _refuses(self, error: RequestError, now: float) -> None:
        """The connection is there: the node has answered, for example that a partition has no
        leader. Before its first success, the caller gets the refusal itself.
        """
        if self._works and now >= self._refusal_due:
            self._refusal_due = now + REFUSAL_LOG_SECONDS
            CONNECTION.warning(
                "%s cannot serve requests at present: %s", self.address, error.message
            )

    def works(self, now: float) -> None:
        """Logs the first success after a failure."""
        self._works = True
        if self.lost_at is not None:
            unused = now - self._tried_at
            if unused < UNUSED_SECONDS:
                CONNECTION.warning(
                    "Connected to %s again after %.1f s", self.address, now - self.lost_at
                )
            else:
                CONNECTION.warning(
                    "Connected to %s again: it was lost %.1f s ago, and not tried in the last "
                    "%.1f s",
                    self.address,
                    now - self.lost_at,
                    unused,
                )
            self.lost_at = None
