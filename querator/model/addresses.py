"""The text form of an address, `HOST:PORT`."""

from typing import Final

PORT_MAX: Final = 65_535
EXAMPLE: Final = "127.0.0.1:4470"
_NOT_IN_A_HOST: Final = frozenset("/\\@?#=,; \t\r\n")


def split_host_port(text: str) -> tuple[str, int]:
    """Host (without brackets) and port of `HOST:PORT` or `[IPV6]:PORT`. Raises ValueError with a
    sentence that has the text and an example.
    """
    if "://" in text:
        raise ValueError(f"{text!r} is a URL; write HOST:PORT, for example {EXAMPLE}")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address as [ADDRESS]:PORT")
    if not colon or not host or _NOT_IN_A_HOST & set(host) or not _is_number(port):
        raise ValueError(f"{text!r} is not HOST:PORT, for example {EXAMPLE}")
    if len(port) > 5 or int(port) > PORT_MAX:
        raise ValueError(f"{text!r}: a port is at most {PORT_MAX}, as in {EXAMPLE}")
    return host, int(port)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
