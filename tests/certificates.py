"""Certificates of an authority of the test's own, as files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from querator import Tls
from querator.config import PeerTlsSettings


class Authority:
    """An authority, and what it has issued."""

    def __init__(self, room: Path) -> None:
        room.mkdir()
        self._room = room
        self._authority = trustme.CA()
        self.ca = room / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *, expired: bool = False) -> tuple[Path, Path]:
        """Certificate and key, for loopback."""
        ended = datetime.now(UTC) - timedelta(days=1)
        issued = self._authority.issue_cert(
            "127.0.0.1",
            "localhost",
            not_before=ended - timedelta(days=1) if expired else None,
            not_after=ended if expired else None,
        )
        cert, key = self._room / f"{name}.pem", self._room / f"{name}.key"
        cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return cert, key

    def shown_by_nodes(self, *, mutual: bool) -> list[str]:
        """Options of the port for clients."""
        cert, key = self.issue("node")
        asks = ["--tls-client-ca-file", str(self.ca)] if mutual else []
        return ["--tls-cert-file", str(cert), "--tls-key-file", str(key), *asks]

    def peer(
        self, name: str, *, expired: bool = False, trusts: "Authority | None" = None
    ) -> PeerTlsSettings:
        """TLS settings of the port for other nodes."""
        cert, key = self.issue(name, expired=expired)
        return PeerTlsSettings(str(cert), str(key), str((trusts or self).ca))

    def client(self, *, shows: bool = False) -> Tls:
        tls = Tls(ca=self.ca.read_bytes())
        if not shows:
            return tls
        cert, key = self.issue("client")
        return Tls(tls.ca, cert.read_bytes(), key.read_bytes())


def shown_to_nodes(peer: PeerTlsSettings) -> list[str]:
    """Options of the port for other nodes."""
    return [
        *("--peer-tls-cert-file", peer.cert_file),
        *("--peer-tls-key-file", peer.key_file),
        *("--peer-tls-ca-file", peer.ca_file),
    ]
