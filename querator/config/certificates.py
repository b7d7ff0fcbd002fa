"""When the certificates of a PEM file expire.

The standard library shows the fields of a certificate only after a handshake. RFC 5280 section 4.1
puts the validity at a fixed place: it is the fifth value of the signed part, after the version, the
serial number, the algorithm and the issuer. The version is optional.
"""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

EXPIRY_WARNED_S: Final = 30 * 86_400
"""A certificate that expires within this time is warned of when it is loaded."""
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_DAY_S: Final = 86_400


def expires_at_s(pem: bytes) -> float | None:
    """The Unix time at which the first of the certificates in `pem` expires. None: it has no
    certificate, or one that cannot be read.
    """
    try:
        return min(map(_expiry_s, _certificates(pem.decode("latin-1"))), default=None)
    except (ValueError, IndexError):
        return None


def expiry_words(expires_s: float | None, now_s: float) -> str:
    """`has expired` or `expires soon`, with the date; empty: it is valid for longer."""
    if expires_s is None or expires_s - now_s >= EXPIRY_WARNED_S:
        return ""
    day = datetime.fromtimestamp(expires_s, UTC).date()
    if expires_s <= now_s:
        return f"has expired on {day}"
    return f"expires on {day}, in {int((expires_s - now_s) // _DAY_S)} days"


def _certificates(pem: str) -> Iterator[bytes]:
    for part in pem.split(_BEGIN)[1:]:
        yield ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{part.partition(_END)[0]}{_END}")


def _expiry_s(der: bytes) -> float:
    """Raises ValueError or IndexError for what is no certificate."""
    [(_, certificate)] = _values(der)
    signed = next(_values(certificate))[1]
    fields = [(tag, value) for tag, value in _values(signed) if tag != _VERSION]
    tag, validity = fields[3]
    if tag != _SEQUENCE:
        raise ValueError("the validity is at another place")
    _, (tag, until) = _values(validity)
    text = until.decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280 section 4.1.2.5.1: the years 1950 to 2049.
        text = f"{'19' if text >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tags and contents of DER values that follow each other."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size]), at + size
        yield tag, data[at : at + length]
        at += length
