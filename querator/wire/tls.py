"""TLS of gRPC: what an end of a connection shows, and whom it trusts, from PEM files.

    the node's port         shows `tls_cert_file`; with `tls_client_ca_file` it lets in only who
                            shows a certificate of that authority (mutual TLS)
    a client, and a node    trusts `ca`, or what gRPC trusts by default; shows `cert` if it has one
    to another node's port

The files of a node's port are read again when they have changed, at the next connection: whoever
renews certificates need not restart it. What cannot be used then is passed over, and logged. Where
a node connects to others it shows what it had at its start.
"""

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from querator import telemetry
from querator.config import TlsSettings

_log = telemetry.logger(__name__)


class TlsError(ValueError):
    """A certificate or key cannot be used; the message is one line that says which and why."""


class Tls(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What a client trusts and shows, as PEM. `ca` empty: the authorities that gRPC knows; `cert`
    and `key` empty: it shows nothing.
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
        """Reads them; blocks. Raises TlsError."""
        if bool(os.fspath(cert)) != bool(os.fspath(key)):
            raise TlsError("a certificate and its key go together: give both or none")
        tls = cls(_read("ca", ca), _read("cert", cert), _read("key", key))
        if tls.cert:
            _check_pair(os.fspath(cert), os.fspath(key))
        if tls.ca:
            _check_authority("ca", os.fspath(ca), tls.ca)
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
    """To `host:port`; `tls` None: in the clear."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def dialing(settings: TlsSettings) -> Tls:
    """How a node reaches the ports of others. Blocks. Raises TlsError."""
    return Tls.from_files(ca=settings.ca_file, cert=settings.cert_file, key=settings.key_file)


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials:
    """Blocks. Raises TlsError."""
    files = _Files(settings)
    fetch: Any = files.changed  # What it returns may be None, which the stubs do not know.
    return grpc.dynamic_ssl_server_credentials(
        files.read(), fetch, require_client_authentication=bool(settings.client_ca_file)
    )


class _Files:
    """Of the node's port."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen: tuple[int, ...] = ()

    def read(self) -> grpc.ServerCertificateConfiguration:
        settings = self._settings
        self._seen = self._times()
        tls = Tls.from_files(cert=settings.cert_file, key=settings.key_file)
        ca = _read("client_ca", settings.client_ca_file)
        if ca:
            _check_authority("client_ca", settings.client_ca_file, ca)
        return grpc.ssl_server_certificate_configuration(
            [(tls.key, tls.cert)], root_certificates=ca or None
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC asks at each new connection, on a thread of its own; None: nothing has."""
        if self._times() == self._seen:
            return None
        try:
            read = self.read()
        except TlsError as error:
            _log.warning("tls.not_renewed", error=str(error))
            return None
        _log.info("tls.renewed", cert_file=self._settings.cert_file)
        return read

    def _times(self) -> tuple[int, ...]:
        settings = self._settings
        names = (settings.cert_file, settings.key_file, settings.client_ca_file)
        times = []
        for name in names:
            try:
                times.append(os.stat(name).st_mtime_ns if name else 0)
            except OSError:
                times.append(-1)
        return tuple(times)


def _read(what: str, path: str | os.PathLike[str]) -> bytes:
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


def _check_authority(what: str, name: str, pem: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"{what}: {name} holds no certificates: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error)
