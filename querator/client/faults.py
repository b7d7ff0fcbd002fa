"""Why no connection to an address is made."""

from enum import StrEnum
from typing import Final

import msgspec


class ConnectionFault(StrEnum):
    """Why no connection is made. The first six may pass without a change by the caller."""

    UNKNOWN = "unknown"
    NAME_UNKNOWN = "name unknown"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    """The port accepts connections and does not answer."""
    CLOSED = "closed"
    """The port accepts connections and closes them."""
    TLS_REQUIRED = "TLS required"
    """The port requires TLS, and the client has none."""
    NO_TLS = "no TLS"
    """The client has TLS, and the node does not use it."""
    TLS_UNUSABLE = "TLS unusable"
    """The client's own authorities or certificate cannot be used."""
    UNTRUSTED = "untrusted"
    """The certificate of the node is of an authority that the client does not trust, or expired."""
    WRONG_NAME = "wrong name"
    """The certificate of the node is not valid for the host in the address."""
    CERTIFICATE_REQUIRED = "certificate required"
    """The node requires a client certificate, and the client has none."""
    CERTIFICATE_REFUSED = "certificate refused"
    """The node does not accept the client's certificate."""
    HTTP = "HTTP"
    """The port speaks HTTP, as the admin port does."""
    FOREIGN = "foreign"
    """The port speaks another protocol."""

    @property
    def certain(self) -> bool:
        """Whether another attempt fails in the same way, until a setting is changed."""
        return self not in _TRANSIENT


_TRANSIENT: Final = frozenset(
    (
        ConnectionFault.UNKNOWN,
        ConnectionFault.NAME_UNKNOWN,
        ConnectionFault.REFUSED,
        ConnectionFault.UNREACHABLE,
        ConnectionFault.SILENT,
        ConnectionFault.CLOSED,
    )
)


class AddressFault(msgspec.Struct, frozen=True):
    """Why no connection to `address` is made. `text` is one sentence."""

    address: str
    kind: ConnectionFault
    text: str
