"""Finds out why gRPC makes no connection to an address, by a short attempt with plain sockets.

gRPC reports most causes as "Socket closed". The probe resolves the name, connects, makes the TLS
handshake, opens HTTP/2 and reads the first bytes of the answer. What it cannot decide it leaves
open: a connection may have been lost at this moment only.

    connection closed       without TLS: a handshake that ignores certificates shows whether the
                            port speaks TLS
    closed after handshake  by TLS 1.3 a server refuses a certificate, or its absence, only after
                            the client's part is complete; by TLS 1.2 before that
    TLS is not understood   an attempt without TLS shows what the port speaks
"""

import os
import pkgutil
import socket
import ssl
import time
from typing import Final

from querator.client.faults import AddressFault, ConnectionFault
from querator.model.addresses import split_host_port
from querator.wire.tls import Tls

PROBE_SECONDS: Final = 1.0
"""Limit of a probe, apart from the resolution of the name, which the system bounds."""

_OPENING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The beginning of every HTTP/2 connection, and a frame of settings without settings."""
_FRAME_BYTES: Final = 9
_SETTINGS: Final = 4
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
_SHOWN_BYTES: Final = 40
_MISMATCHES: Final = (62, 64)
"""OpenSSL's numbers of the verification errors for another host name, and for another IP."""
_ALERT: Final = "_ALERT_"
_ROOTS_VARIABLE: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"


def probe(address: str, tls: Tls | None, *, seconds: float = PROBE_SECONDS) -> AddressFault | None:
    """Returns why no connection to `address` is made. None: the probe has found nothing wrong, or
    nothing that it can name. Blocks for at most `seconds`, and until the name is resolved.
    """
    return _Probe(address, tls, seconds).run()


class _Probe:
    def __init__(self, address: str, tls: Tls | None, seconds: float) -> None:
        self._address = address
        self._host, self._port = split_host_port(address)
        self._tls = tls
        self._seconds = seconds
        self._deadline = 0.0

    def run(self) -> AddressFault | None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return self._fault(
                ConnectionFault.NAME_UNKNOWN, f"The name {self._host} cannot be resolved."
            )
        self._deadline = time.monotonic() + self._seconds
        self._targets = [(str(entry[4][0]), self._port) for entry in found]
        try:
            self._connect().close()
        except ConnectionRefusedError:
            return self._fault(ConnectionFault.REFUSED, f"Connection refused at {self._address}.")
        except TimeoutError:
            return self._fault(
                ConnectionFault.UNREACHABLE, f"{self._address} cannot be reached: no answer."
            )
        except OSError as error:
            return self._fault(
                ConnectionFault.UNREACHABLE,
                f"{self._address} cannot be reached: {error.strerror or error}.",
            )
        return self._without_tls() if self._tls is None else self._with_tls(self._tls)

    # --- a client without TLS ---------------------------------------------------------------

    def _without_tls(self) -> AddressFault | None:
        said = self._plain_answer()
        if said is None:
            return self._silent()
        if not said or said.startswith(_TLS_RECORDS):
            return self._tls_required() or self._foreign(said)
        return None if _is_http2(said) else self._foreign(said)

    def _tls_required(self) -> AddressFault | None:
        """None: the port does not speak TLS."""
        context = _context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with self._shake(context) as secure:
                if secure.selected_alpn_protocol() != "h2":
                    return self._other_tls()
        except ssl.SSLError as error:
            if _ALERT not in (error.reason or ""):
                return None
        except OSError:
            return None
        return self._fault(ConnectionFault.TLS_REQUIRED, f"{self._address} requires TLS.")

    def _other_tls(self) -> AddressFault:
        return self._fault(
            ConnectionFault.FOREIGN,
            f"{self._address} speaks TLS, but not gRPC: is it the port for other nodes? Clients "
            "use 4470 by default.",
        )

    # --- a client with TLS -------------------------------------------------------------------

    def _with_tls(self, tls: Tls) -> AddressFault | None:
        context = _context()
        try:
            _trust(context, tls.ca)
            if tls.cert:
                _load_pair(context, tls)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            return self._fault(
                ConnectionFault.TLS_UNUSABLE,
                f"The client's authorities or certificate cannot be used: {reason}.",
            )
        try:
            with self._shake(context) as secure:
                if secure.selected_alpn_protocol() != "h2":
                    return self._other_tls()
                said = self._answer(secure)
        except ssl.SSLCertVerificationError as error:
            return self._not_trusted(context, error)
        except TimeoutError:
            return self._silent()
        except ssl.SSLError as error:
            reason = error.reason or ""
            return self._refused_by_alert(reason) if _ALERT in reason else self._no_tls()
        except OSError:
            return self._no_tls()
        if said is None:
            return self._silent()
        if said or not self._refuses_certificate(context):
            return None if _is_http2(said) else self._foreign(said)
        return self._certificate_refused("")

    def _not_trusted(
        self, context: ssl.SSLContext, error: ssl.SSLCertVerificationError
    ) -> AddressFault:
        kind, why = ConnectionFault.UNTRUSTED, error.verify_message.rstrip(".")
        if error.verify_code in _MISMATCHES:
            kind = ConnectionFault.WRONG_NAME
            names = ", ".join(self._names(context))
            why = f"not valid for {self._host}" + (f" (valid for {names})" if names else "")
        return self._fault(kind, f"The certificate of {self._address} is not trusted: {why}.")

    def _names(self, context: ssl.SSLContext) -> list[str]:
        """The names of the certificate, which is trusted apart from them."""
        context.check_hostname = False
        try:
            with self._shake(context) as secure:
                shown = secure.getpeercert() or {}
        except OSError:
            return []
        return [str(entry[1]) for entry in shown.get("subjectAltName", ())]

    def _refused_by_alert(self, reason: str) -> AddressFault:
        why = reason.rpartition(_ALERT)[2].lower().replace("_", " ")
        if "certificate" in why or "unknown ca" in why:
            return self._certificate_refused(why)
        return self._fault(
            ConnectionFault.FOREIGN, f"{self._address} refuses the TLS handshake: {why}."
        )

    def _certificate_refused(self, why: str) -> AddressFault:
        if self._tls is not None and self._tls.cert:
            return self._fault(
                ConnectionFault.CERTIFICATE_REFUSED,
                f"{self._address} does not accept the client's certificate"
                f"{f': {why}' if why else ''}.",
            )
        return self._fault(
            ConnectionFault.CERTIFICATE_REQUIRED, f"{self._address} requires a client certificate."
        )

    def _refuses_certificate(self, context: ssl.SSLContext) -> bool:
        """Whether a handshake by TLS 1.2 fails, although one by TLS 1.3 does not."""
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._shake(context).close()
        except TimeoutError:
            return False
        except OSError:
            return True
        return False

    def _no_tls(self) -> AddressFault | None:
        said = self._plain_answer()
        if said is None:
            return self._silent()
        if _is_http2(said):
            return self._fault(ConnectionFault.NO_TLS, f"{self._address} does not use TLS.")
        return self._foreign(said)

    # --- what the port speaks ----------------------------------------------------------------

    def _foreign(self, said: bytes) -> AddressFault:
        """`said` is not HTTP/2. Empty: the connection was closed."""
        if not said:
            return self._fault(
                ConnectionFault.CLOSED,
                f"{self._address} closes the connection: is it the port for other nodes? Clients "
                "use 4470 by default.",
            )
        if said.startswith(b"HTTP/"):
            status = said.split(maxsplit=2)[1:2]
            if status and status[0].startswith(b"5"):
                return self._fault(
                    ConnectionFault.CLOSED,
                    f"{self._address} answers HTTP {status[0].decode('latin-1')}.",
                )
            return self._fault(
                ConnectionFault.HTTP,
                f"{self._address} speaks HTTP: is it the admin port? Clients use 4470 by default.",
            )
        shown = said[:_SHOWN_BYTES].decode("latin-1").splitlines()[0]
        return self._fault(
            ConnectionFault.FOREIGN, f"{self._address} does not speak gRPC; it answers {shown!r}."
        )

    def _silent(self) -> AddressFault:
        return self._fault(
            ConnectionFault.SILENT,
            f"{self._address} accepts connections and does not answer.",
        )

    def _fault(self, kind: ConnectionFault, text: str) -> AddressFault:
        return AddressFault(self._address, kind, text)

    # --- sockets -----------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        """Raises TimeoutError and other kinds of OSError, of the last of several addresses."""
        failure: OSError = TimeoutError()
        for target in self._targets:
            try:
                return socket.create_connection(target, timeout=self._left())
            except OSError as error:
                failure = error
        raise failure

    def _shake(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Raises ssl.SSLError and other kinds of OSError."""
        plain = self._connect()
        try:
            return context.wrap_socket(plain, server_hostname=self._host)
        except BaseException:
            plain.close()
            raise

    def _plain_answer(self) -> bytes | None:
        """The first bytes that the port answers. None: nothing in time. Empty: it has closed."""
        try:
            with self._connect() as plain:
                return self._answer(plain)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def _answer(self, connected: socket.socket) -> bytes | None:
        """As `_plain_answer`. Raises ssl.SSLError for an alert."""
        said = b""
        try:
            connected.sendall(_OPENING)
            while len(said) < _FRAME_BYTES:
                connected.settimeout(self._left())
                if not (more := connected.recv(_SHOWN_BYTES)):
                    break
                said += more
        except TimeoutError:
            return said or None
        except OSError as error:
            if isinstance(error, ssl.SSLError) and _ALERT in (error.reason or ""):
                raise
        return said

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _is_http2(said: bytes) -> bool:
    return len(said) >= _FRAME_BYTES and said[:2] == b"\x00\x00" and said[3] == _SETTINGS


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    return context


def _trust(context: ssl.SSLContext, ca: bytes) -> None:
    """Trusts the authorities that gRPC would trust."""
    if ca:
        context.load_verify_locations(cadata=ca.decode("ascii", "replace"))
    elif file := os.environ.get(_ROOTS_VARIABLE):
        context.load_verify_locations(cafile=file)
    elif roots := pkgutil.get_data("grpc._cython", "_credentials/roots.pem"):
        context.load_verify_locations(cadata=roots.decode("ascii", "replace"))


def _load_pair(context: ssl.SSLContext, tls: Tls) -> None:
    # ssl reads a certificate and its key from files only. This one is in memory, so that the key
    # is not written to a disk.
    with os.fdopen(os.memfd_create("querator-client"), "wb") as file:
        file.write(b"\n".join((tls.cert, tls.key)))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
