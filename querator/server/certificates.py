"""What a node's port shows, and whom it lets in.

    the port              shows `tls_cert_file`; with `tls_client_ca_file` it lets in only who shows
                          a certificate of that authority (mutual TLS)
    where the node dials  it trusts `tls_ca_file`, and shows the same certificate

The files are read again when they have changed, at the next connection: whoever renews certificates
need not restart the node. What cannot be used then is passed over, and logged.
"""

import asyncio
from typing import Any

import grpc

from querator import telemetry
from querator.config import TlsSettings, times_of
from querator.wire.tls import Tls, TlsError, check_authority, read_pem

_log = telemetry.logger(__name__)


class Dialing:
    """How a node reaches the ports of others."""

    def __init__(self, settings: TlsSettings) -> None:
        """Blocks. Raises TlsError."""
        self._settings = settings
        self._seen = self._times()
        self._tls = self._read()

    async def newest(self) -> Tls:
        """For a connection that begins."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> Tls:
        times = self._times()
        if times != self._seen:
            self._seen = times
            try:
                self._tls = self._read()
            except TlsError as error:
                _log.warning("tls.not_renewed", error=str(error))
        return self._tls

    def _read(self) -> Tls:
        settings = self._settings
        return Tls.from_files(ca=settings.ca_file, cert=settings.cert_file, key=settings.key_file)

    def _times(self) -> tuple[int, ...]:
        settings = self._settings
        return times_of((settings.ca_file, settings.cert_file, settings.key_file))


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials:
    """Blocks. Raises TlsError."""
    files = Files(settings)
    fetch: Any = files.changed  # What it returns may be None, which the stubs do not know.
    return grpc.dynamic_ssl_server_credentials(
        files.read(), fetch, require_client_authentication=bool(settings.client_ca_file)
    )


class Files:
    """Of the node's port."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen: tuple[int, ...] = ()

    def read(self) -> grpc.ServerCertificateConfiguration:
        settings = self._settings
        self._seen = self._times()
        tls = Tls.from_files(cert=settings.cert_file, key=settings.key_file)
        ca = read_pem("client_ca", settings.client_ca_file)
        if ca:
            check_authority("client_ca", settings.client_ca_file, ca)
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
        return times_of((settings.cert_file, settings.key_file, settings.client_ca_file))
