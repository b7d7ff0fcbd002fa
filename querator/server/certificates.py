"""TLS: the certificates of a node's port and of its outgoing connections.

    the port                shows `tls_cert_file`; with `tls_client_ca_file` it accepts only
                            clients with a certificate of that authority (mutual TLS)
    outgoing connections    trust `tls_ca_file`, and show the same certificate

Changed files are read again at the next connection, so renewed certificates need no restart of the
node. A changed file that cannot be used is ignored, with a log event. A certificate that has
expired or expires soon is used, with a warning in the log each time that it is loaded.
"""

import asyncio
import time
from typing import Any

import grpc

from querator import telemetry
from querator.config import TlsSettings, expires_at_s, expiry_words, times_of
from querator.wire.tls import Tls, TlsError, check_authority, read_pem

_log = telemetry.logger(__name__)


class Dialing:
    """TLS of connections that the node opens to other nodes."""

    def __init__(self, settings: TlsSettings) -> None:
        """Blocks. Raises TlsError."""
        self._settings = settings
        self._seen = self._times()
        self._tls = self._read()

    async def newest(self) -> Tls:
        """Returns the settings for a new connection."""
        return await asyncio.to_thread(self._check_files)

    def _check_files(self) -> Tls:
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


def server_credentials(files: "CertificateFiles") -> grpc.ServerCredentials:
    """Blocks. Raises TlsError."""
    fetch: Any = files.changed  # It may return None, which the stubs do not allow.
    return grpc.dynamic_ssl_server_credentials(
        files.read(), fetch, require_client_authentication=files.mutual
    )


class CertificateFiles:
    """The certificate files of the node's port."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen: tuple[int, ...] = ()
        self.expires_at_s: float | None = None
        """Unix time at which the loaded certificate expires; None: not known."""

    @property
    def mutual(self) -> bool:
        """Whether clients must show a certificate."""
        return bool(self._settings.client_ca_file)

    def read(self) -> grpc.ServerCertificateConfiguration:
        settings = self._settings
        self._seen = self._times()
        tls = Tls.from_files(cert=settings.cert_file, key=settings.key_file)
        ca = read_pem("client_ca", settings.client_ca_file)
        if ca:
            check_authority("client_ca", settings.client_ca_file, ca)
        self.expires_at_s = expires_at_s(tls.cert)
        if words := expiry_words(self.expires_at_s, time.time()):
            _log.warning(
                "tls.certificate_expires",
                cert_file=settings.cert_file,
                reason=f"the certificate of the port for clients {words}: renew it",
            )
        return grpc.ssl_server_certificate_configuration(
            [(tls.key, tls.cert)], root_certificates=ca or None
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns changed certificates, or None. gRPC calls it in a thread, for each connection."""
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
