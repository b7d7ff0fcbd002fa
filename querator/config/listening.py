"""Checks that a node can listen at its addresses before it does anything that others notice."""

import contextlib
import errno
import os
import socket
from collections.abc import Mapping
from typing import Final

from querator.config.addresses import parse_address

_ADVICE: Final = {
    "listen_admin": "choose another address with --listen-admin, or no admin port with "
    "--listen-admin ''",
}


class ListenError(OSError):
    """The node cannot listen on an address. The message names the setting, the address and the
    reason.
    """


def check_listening(addresses: Mapping[str, str]) -> None:
    """Listens at all addresses (HOST:PORT by the name of the setting) at once for a moment, so that
    two equal addresses are found, too. Blocks while a name is resolved.

    Raises ListenError, and ConfigError when an address is not HOST:PORT. A program that takes a
    port after the check is not prevented from it.
    """
    with contextlib.ExitStack() as opened:
        taken: dict[str, str] = {}
        for setting, address in addresses.items():
            host, port = parse_address(address, setting=setting)
            if port and address in taken:
                raise ListenError(
                    f"{setting}: cannot listen on {address}: it is also the address of "
                    f"{taken[address]}; choose another address with {_flag(setting)}"
                )
            taken[address] = setting
            try:
                _listen_everywhere(host, port, opened)
            except OSError as error:
                raise listen_error(setting, address, error) from error


def listen_error(setting: str, address: str, error: OSError) -> ListenError:
    """The error of a socket in words for an operator."""
    host, port = parse_address(address, setting=setting)
    advice = _ADVICE.get(setting, f"choose another address with {_flag(setting)}")
    if isinstance(error, socket.gaierror):
        reason = f"the name {host!r} cannot be resolved ({error.strerror})"
    elif error.errno == errno.EADDRINUSE:
        reason = f"another socket of this machine uses port {port}"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason = f"{host} is not an address of this machine"
    elif error.errno in (errno.EACCES, errno.EPERM):
        reason = f"this user may not use port {port}"
    else:
        reason = os.strerror(error.errno) if error.errno else str(error)
    return ListenError(f"{setting}: cannot listen on {address}: {reason}; {advice}")


def _listen_everywhere(host: str, port: int, opened: contextlib.ExitStack) -> None:
    """Listens at each address of the host. An address that the machine does not have counts only if
    it has none of them. Raises OSError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    missing: OSError | None = None
    listens = False
    for family, _, _, _, target in found:
        try:
            made = socket.create_server(target[:2], family=family)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            missing = missing or error
        else:
            opened.enter_context(made)
            listens = True
    if not listens and missing is not None:
        raise missing


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"
