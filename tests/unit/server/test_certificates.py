"""PEM files: reading them, refusing them, and noticing their changes."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from querator.config import TlsSettings
from querator.server.certificates import CertificateFiles as PortFiles
from querator.server.certificates import Dialing, server_credentials
from querator.wire.tls import Tls, TlsError

AUTHORITY = trustme.CA()


class Files:
    """Files of a certificate, its key, and the certificate authority."""

    def __init__(self, room: Path) -> None:
        self.ca, self.cert, self.key = room / "ca.pem", room / "cert.pem", room / "key.pem"
        AUTHORITY.cert_pem.write_to_path(self.ca)
        self.issue()

    def issue(self, not_after: datetime | None = None) -> None:
        issued = AUTHORITY.issue_cert(
            "localhost", not_before=datetime(2020, 1, 1, tzinfo=UTC), not_after=not_after
        )
        issued.cert_chain_pems[0].write_to_path(self.cert)
        issued.private_key_pem.write_to_path(self.key)

    def settings(self, **changes: str) -> TlsSettings:
        given = {"cert_file": str(self.cert), "key_file": str(self.key), **changes}
        return TlsSettings(**given)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_what_a_client_shows_is_read_and_the_key_is_not_told(files: Files):
    tls = Tls.from_files(ca=files.ca, cert=files.cert, key=files.key)
    assert (tls.ca, tls.cert) == (files.ca.read_bytes(), files.cert.read_bytes())
    assert "PRIVATE" not in repr(tls)
    assert Tls.from_files() == Tls()


def test_what_cannot_be_used_is_named(files: Files, tmp_path: Path):
    missing = tmp_path / "missing.pem"
    with pytest.raises(TlsError, match=r"ca: .*missing\.pem: No such file"):
        Tls.from_files(ca=missing)
    with pytest.raises(TlsError, match="go together"):
        Tls.from_files(cert=files.cert)
    with pytest.raises(TlsError, match=r"cert: .* and key: .* cannot be used"):
        Tls.from_files(cert=files.key, key=files.cert)
    (tmp_path / "nonsense.pem").write_text("nonsense")
    with pytest.raises(TlsError, match=r"ca: .*nonsense\.pem holds no certificates"):
        Tls.from_files(ca=tmp_path / "nonsense.pem")


def test_a_key_of_another_certificate_is_refused(files: Files, tmp_path: Path):
    (tmp_path / "other").mkdir()
    other = Files(tmp_path / "other")
    with pytest.raises(TlsError, match=r"KEY_VALUES_MISMATCH"):
        server_credentials(PortFiles(files.settings(key_file=str(other.key))))


def test_an_authority_of_clients_that_is_none_is_refused(files: Files):
    with pytest.raises(TlsError, match=r"client_ca: .* holds no certificates"):
        server_credentials(PortFiles(files.settings(client_ca_file=str(files.key))))


def test_where_a_node_dials_it_shows_what_is_in_the_files(files: Files):
    dialing = Dialing(files.settings(ca_file=str(files.ca)))
    first = asyncio.run(dialing.newest())
    assert first.cert == files.cert.read_bytes()
    files.issue()
    os.utime(files.cert, (1, 1))
    second = asyncio.run(dialing.newest())
    assert first.cert != second.cert == files.cert.read_bytes()
    files.cert.write_text("nonsense")
    os.utime(files.cert, (2, 2))
    assert asyncio.run(dialing.newest()) == second
    files.issue()
    os.utime(files.cert, (3, 3))
    assert asyncio.run(dialing.newest()).cert == files.cert.read_bytes()
    with pytest.raises(TlsError, match="cannot be used"):
        Dialing(files.settings(key_file=str(files.ca)))


def test_renewed_files_are_read_and_broken_ones_passed_over(files: Files):
    kept = PortFiles(files.settings(client_ca_file=str(files.ca)))
    kept.read()
    assert kept.changed() is None
    files.issue()
    os.utime(files.cert, (1, 1))
    assert kept.changed() is not None
    assert kept.changed() is None
    files.cert.write_text("nonsense")
    os.utime(files.cert, (2, 2))
    assert kept.changed() is None
    files.issue()
    os.utime(files.cert, (3, 3))
    assert kept.changed() is not None


def test_a_certificate_that_expires_is_warned_of_when_it_is_loaded(
    files: Files, caplog: pytest.LogCaptureFixture
):
    port = PortFiles(files.settings())
    files.issue(datetime(2020, 2, 1, 12, 30, tzinfo=UTC))
    port.read()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    said = record.getMessage()
    assert "the certificate of the port for clients has expired on 2020-02-01: renew it" in said
    assert port.expires_at_s == datetime(2020, 2, 1, 12, 30, tzinfo=UTC).timestamp()
    caplog.clear()
    files.issue(datetime.now(UTC) + timedelta(days=10))
    os.utime(files.cert, (1, 1))
    assert port.changed() is not None
    assert "certificate_expires" in caplog.text
    assert "in 9 days" in caplog.text
    caplog.clear()
    files.issue(datetime.now(UTC) + timedelta(days=31))
    os.utime(files.cert, (2, 2))
    assert port.changed() is not None
    assert "certificate_expires" not in caplog.text
