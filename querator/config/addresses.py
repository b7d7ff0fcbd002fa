"""Parses and checks node names and addresses in settings."""

import ipaddress
import re
import socket
from typing import Final

from querator.config.errors import ConfigError
from querator.model.addresses import split_host_port
from querator.model.limits import NODE_NAME_CHARS_MAX

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


def parse_peers(text: str) -> dict[str, str]:
    """Addresses by name, in the order of the text. An exact repetition is ignored, so a text that
    is the same on all nodes can end with the node's own entry. Raises ConfigError.
    """
    peers: dict[str, str] = {}
    for part in text.split(","):
        name, equals, address = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"peers: {part.strip()!r} is not NAME=HOST:PORT")
        check_name("peers", name)
        if peers.get(name) == address:
            continue
        if name in peers:
            raise ConfigError(f"peers: {name} appears twice, with {peers[name]} and {address}")
        check_reachable("peers", address)
        if address in peers.values():
            raise ConfigError(f"peers: {address} appears twice")
        peers[name] = address
    return peers


def check_name(setting: str, name: str) -> None:
    if len(name) > NODE_NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{setting}: {name[:64]!r} is not a node name: letters, digits, '.', '-' and '_', at "
            f"most {NODE_NAME_CHARS_MAX}, the first a letter or digit"
        )


def check_reachable(setting: str, text: str) -> None:
    """Checks that others can connect to the address, as far as its text shows that."""
    host, port = parse_address(text, setting=setting)
    if not port or is_any(host):
        raise ConfigError(f"{setting}: {text!r} is not an address that others can connect to")


def is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


_WAY_OUT: Final = {
    "listen": "require client certificates (--tls-cert-file, --tls-key-file, "
    "--tls-client-ca-file), or add --insecure",
    "listen_admin": "add --insecure-admin",
}


def check_address(setting: str, text: str, *, insecure: bool) -> None:
    host, _ = parse_address(text, setting=setting)
    if not _is_loopback(host) and not insecure:
        raise ConfigError(
            f"{setting}: {text} can be reached from other machines, and there is no "
            f"authentication; {_WAY_OUT[setting]} if that is what you want"
        )


def parse_address(text: str, *, setting: str = "listen") -> tuple[str, int]:
    """Host (without brackets) and port of `HOST:PORT`. Raises ConfigError, naming `setting`."""
    try:
        return split_host_port(text)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from error


def _is_loopback(host: str) -> bool:
    """Whether the host is loopback; of the names only `localhost` is."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def with_port(listen: str) -> str:
    """The address, with port 0 replaced by a port that is free at the moment. Other nodes receive
    the address before the node listens on it.
    """
    host, port = parse_address(listen)
    if port:
        return listen
    with socket.create_server((host, 0)) as found:
        return f"{listen.rpartition(':')[0]}:{found.getsockname()[1]}"
