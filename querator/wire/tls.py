"""TLS of outgoing gRPC connections: trusted authorities and the own certificate, from PEM files."""

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import msgspec

RESOLVING: Final = ("grpc.dns_min_time_between_resolutions_ms", 1_000)
"""gRPC option: least time between two resolutions of a name, in ms. A node may come back with
another address under its name, as pods do. By default gRPC tries the old address for 30 s.
"""


class TlsError(ValueError):
    """A certificate or key cannot be used. The message is one line that names it and the reason."""


class Tls(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """TLS of a client, as PEM: trusted authorities, certificate and key. `ca` empty: the
    authorities that gRPC knows. `cert` and `key` empty: the client presents no certificate.
    """

    ca: bytes = b""
    cert: bytes = b""
    key: bytes = b""

    @classmethod
    def from_files(
        cls,
        *,
        ca: str | os.PathLike[str] = "",
        cert: str | os.PathLike[str] = "",
        key: str | os.PathLike[str] = "",
    ) -> "Tls":
        """Reads the PEM files; blocks. Raises TlsError if one cannot be read or used, or if only
        one of `cert` and `key` is given.
        """
        if bool(os.fspath(cert)) != bool(os.fspath(key)):
            raise TlsError("a certificate and its key go together: give both or none")
        tls = cls(read_pem("ca", ca), read_pem("cert", cert), read_pem("key", key))
        if tls.cert:
            _check_pair(os.fspath(cert), os.fspath(key))
        if tls.ca:
            check_authority("ca", os.fspath(ca), tls.ca)
        return tls

    def __repr__(self) -> str:
        """Without the key."""
        return f"Tls(ca={len(self.ca)} bytes, cert={len(self.cert)} bytes)"

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca or None,
            private_key=self.key or None,
            certificate_chain=self.cert or None,
        )


def open_channel(
    address: str, tls: Tls | None, options: Sequence[tuple[str, int]]
) -> grpc.aio.Channel:
    """Opens a channel to `host:port`. `tls` None: no encryption."""
    options = [*options, RESOLVING]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def read_pem(what: str, path: str | os.PathLike[str]) -> bytes:
    """Reads a file; blocks. Empty if there is no path. Raises TlsError, which calls it `what`."""
    name = os.fspath(path)
    if not name:
        return b""
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise TlsError(f"{what}: {name}: {error.strerror}") from error


def _check_pair(cert: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"cert: {cert} and key: {key} cannot be used: {_reason(error)}") from error


def check_authority(what: str, name: str, pem: bytes) -> None:
    """Raises TlsError unless `pem` has certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"{what}: {name} holds no certificates: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error)
