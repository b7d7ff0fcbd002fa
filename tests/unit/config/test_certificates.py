"""When certificates expire, read from their files."""

from datetime import UTC, datetime, timedelta

import pytest
import trustme

from querator.config import EXPIRY_WARNED_S, expires_at_s, expiry_words

AUTHORITY = trustme.CA()
START = datetime(2020, 1, 1, tzinfo=UTC)


def issued(not_after: datetime) -> bytes:
    return (
        AUTHORITY.issue_cert("localhost", not_before=START, not_after=not_after)
        .cert_chain_pems[0]
        .bytes()
    )


@pytest.mark.parametrize("year", [2021, 2049, 2050, 2345])
def test_the_end_of_the_validity_is_read(year: int) -> None:
    until = datetime(year, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert expires_at_s(issued(until)) == until.timestamp()


def test_the_first_certificate_of_a_chain_that_expires_counts() -> None:
    late, early = START + timedelta(days=900), START + timedelta(days=30)
    chain = b"leaf\n" + issued(late) + b"\nintermediate\n" + issued(early)
    assert expires_at_s(chain) == early.timestamp()


def test_words_between_the_certificates_may_be_in_any_language() -> None:
    until = START + timedelta(days=900)
    assert expires_at_s("subject=O = Müller AG\n".encode() + issued(until)) == until.timestamp()


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"\xff",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n?\n",
    ],
)
def test_what_cannot_be_read_has_no_end(pem: bytes) -> None:
    assert expires_at_s(pem) is None


def test_words() -> None:
    now_s = START.timestamp()
    assert expiry_words(None, now_s) == ""
    assert expiry_words(now_s + EXPIRY_WARNED_S, now_s) == ""
    assert expiry_words(now_s + 2 * 86_400, now_s) == "expires on 2020-01-03, in 2 days"
    assert expiry_words(now_s, now_s) == "has expired on 2020-01-01"
