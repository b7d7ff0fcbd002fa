"""TLS between nodes: certificates, trusted authorities, and the TLS of one connection in memory.

Only TLS 1.3. Both sides show certificates, and each must lead to an authority in the other side's
file. A certificate that names its uses must name both, server and client. Names in certificates are
not checked: a node proves that it belongs to the cluster by the cluster's token, and gives its name
in the handshake inside TLS (`raft.tcp.handshake`), which is bound to this connection. So neither a
certificate nor the token alone gives access. A holder of another certificate of the authority, as
clients may be, cannot relay the proofs of two nodes.

No session is resumed: each connection shows certificates again. The binding needs that, because it
is the client's Finished, an authenticator of the whole TLS handshake under keys of this connection.
Python cannot change keys: a connection is replaced before its keys have been used for too long
(PEER_TLS_RECORDS_MAX).

The next connection reads changed files again; unusable files are ignored, and logged. Open
connections continue. Lists of revoked certificates are not supported: replace the authority.

A node without TLS begins with a frame (`raft.tcp.frames`), a node with TLS with a TLS record. From
that each side recognises the other, and the dialed side reports it in an unencrypted REFUSED frame,
which both can read.
"""

import ssl
import threading
import time
from pathlib import Path
from typing import Final

from querator import telemetry
from querator.config import PeerTlsSettings, expires_at_s, expiry_words, times_of
from querator.raft.refusals import Code, PeerRefused

_log = telemetry.logger(__name__)

_ALERT: Final = "_ALERT_"
"""Part of the names of errors that the other side has reported."""


class PeerTlsError(Exception):
    """The files cannot be used; the message is one line with the file and the reason."""


class PeerTls:
    """TLS files of one node. Any thread may call it."""

    def __init__(self, settings: PeerTlsSettings) -> None:
        """Reads the files; blocks. Raises PeerTlsError."""
        self._settings = settings
        self._lock = threading.Lock()
        self._seen = self._times()
        self.expires_at_s: float | None = None
        """Unix time at which the loaded certificate expires; None: not known."""
        self._contexts = self._read()

    def dial(self) -> "Channel":
        """TLS for a connection that this node has begun."""
        return Channel(self._now()[0], dials=True)

    def accept(self) -> "Channel":
        """TLS for a connection that another node has begun."""
        return Channel(self._now()[1], dials=False)

    def _now(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        with self._lock:
            times = self._times()
            if times != self._seen:
                self._seen = times
                try:
                    self._contexts = self._read()
                except PeerTlsError as error:
                    _log.warning("peers.tls_not_renewed", error=str(error))
                else:
                    _log.info("peers.tls_renewed", cert_file=self._settings.cert_file)
            return self._contexts

    def _times(self) -> tuple[int, ...]:
        settings = self._settings
        return times_of((settings.cert_file, settings.key_file, settings.ca_file))

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Contexts for dialing and for accepting."""
        dials = self._context(ssl.PROTOCOL_TLS_CLIENT)
        accepts = self._context(ssl.PROTOCOL_TLS_SERVER)
        accepts.num_tickets = 0
        self._check_expiry()
        return dials, accepts

    def _check_expiry(self) -> None:
        cert_file = self._settings.cert_file
        try:
            self.expires_at_s = expires_at_s(Path(cert_file).read_bytes())
        except OSError:  # It was replaced at this moment: the next connection reads it again.
            self.expires_at_s = None
        if words := expiry_words(self.expires_at_s, time.time()):
            _log.warning(
                "peers.certificate_expires",
                cert_file=cert_file,
                reason=f"the certificate of the port for other nodes {words}: renew it",
            )

    def _context(self, protocol: int) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.ca_file)
        except (OSError, ValueError) as error:
            raise PeerTlsError(
                f"peer_tls_ca_file: {settings.ca_file} cannot be used: {_words(error)}"
            ) from error
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file, password="")
        except (OSError, ValueError) as error:
            raise PeerTlsError(
                f"peer_tls_cert_file: {settings.cert_file} and peer_tls_key_file: "
                f"{settings.key_file} cannot be used: {_words(error)}"
            ) from error
        return context


class Channel:
    """TLS of one connection. Bytes of the wire go in by `feed` and come out by `outgoing`; plain
    bytes go in by `write` and come out by `read`. No I/O here.

    `feed` and `read` raise Refused for the other side's bytes: TLS when it speaks another version,
    CERTIFICATE when one side does not accept the other's, DAMAGED for invalid bytes.
    """

    __slots__ = ("_incoming", "_outgoing", "_tls", "binding", "done", "records")

    def __init__(self, context: ssl.SSLContext, *, dials: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not dials)
        self.done = False
        """Whether the TLS handshake is done: before that, nothing can be written."""
        self.binding = b""
        """Identifies this connection to its two ends only; empty before `done`."""
        self.records = 0
        """Number of records written."""
        if dials:
            self._step()

    def feed(self, data: bytes | memoryview) -> None:
        """Takes bytes that have arrived."""
        self._incoming.write(data)
        if not self.done:
            self._step()

    def _step(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise _refused(error) from error
        self.done = True
        self.binding = self._tls.get_channel_binding("tls-unique") or b""
        assert self.binding, "a handshake that is done has its Finished"

    def read(self, into: memoryview) -> int:
        """Reads decrypted bytes that have arrived, as far as they fit; returns their number. Raises
        EOFError when the other side has ended its stream.
        """
        count = 0
        try:
            while count < len(into):
                # Bytes of one record, 16 KiB at most.
                read = self._tls.read(len(into) - count, into[count:])
                if not read:
                    break
                count += int(read)
        except ssl.SSLWantReadError:
            return count
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            raise _refused(error) from error
        if into and not count:
            raise EOFError
        return count

    def write(self, data: bytes) -> None:
        """Encrypts the bytes; only when `done`."""
        view = memoryview(data)
        while view:
            # One record at a time.
            view = view[self._tls.write(view) :]
            self.records += 1

    def outgoing(self) -> bytes:
        """The bytes to send: to be called after each of the other methods, also after a Refused."""
        return self._outgoing.read()


IN_THE_CLEAR: Final = (
    "it talks without TLS, which this node requires: give all nodes --peer-tls-cert-file, "
    "--peer-tls-key-file and --peer-tls-ca-file, or none"
)


def _refused(error: ssl.SSLError) -> PeerRefused:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = f"its certificate is not accepted: {error.verify_message}"
        return PeerRefused(Code.CERTIFICATE, said)
    if _ALERT in reason:
        said = reason.partition(_ALERT)[2].replace("_", " ").lower()
        return PeerRefused(Code.CERTIFICATE, f"it refuses this node: {said}", by_peer=True)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return PeerRefused(Code.CERTIFICATE, "it shows no certificate")
    if reason in ("WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"):
        return PeerRefused(Code.TLS, "it does not speak TLS 1.3, which this node requires")
    return PeerRefused(Code.DAMAGED, f"it sends malformed TLS: {_words(error)}")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error)
