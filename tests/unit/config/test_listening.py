"""Addresses at which a node cannot listen, and the words for it."""

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from querator.config import ConfigError, ListenError, check_listening, listen_error

NOT_HERE = "192.0.2.1"
"""An address for documentation, which no machine has."""


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_free_addresses_are_free_after_the_check():
    address = free()
    check_listening({"listen": address, "listen_peers": "127.0.0.1:0"})
    check_listening({"listen": address, "listen_peers": "127.0.0.1:0"})


def test_a_port_in_use(taken: str):
    with pytest.raises(ListenError) as caught:
        check_listening({"listen": taken})
    port = taken.rpartition(":")[2]
    assert str(caught.value) == (
        f"listen: cannot listen on {taken}: another socket of this machine uses port {port}; "
        "choose another address with --listen"
    )


@pytest.mark.parametrize("setting", ["listen", "listen_peers"])
@pytest.mark.parametrize("port", [0, 4470])
def test_an_address_of_another_machine(setting: str, port: int):
    with pytest.raises(ListenError) as caught:
        check_listening({setting: f"{NOT_HERE}:{port}"})
    assert str(caught.value) == (
        f"{setting}: cannot listen on {NOT_HERE}:{port}: {NOT_HERE} is not an address of this "
        f"machine; choose another address with --{setting.replace('_', '-')}"
    )


def test_one_address_for_two_settings():
    address = free()
    with pytest.raises(ListenError, match=f"listen_peers: .*{address}: .*address of listen;"):
        check_listening({"listen": address, "listen_peers": address})


def test_one_address_with_two_names():
    address = free()
    port = address.rpartition(":")[2]
    with pytest.raises(ListenError, match=f"listen_peers: .*uses port {port};"):
        check_listening({"listen": address, "listen_peers": f"localhost:{port}"})


def test_an_address_that_is_none():
    with pytest.raises(ConfigError, match="listen_peers"):
        check_listening({"listen_peers": "here"})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(errno.EACCES, ""), "this user may not use port 80"),
        (socket.gaierror(socket.EAI_NONAME, "not known"), "'here' cannot be resolved (not known)"),
        (OSError(errno.EMFILE, ""), os.strerror(errno.EMFILE)),
    ],
)
def test_other_reasons(error: OSError, words: str):
    assert words in str(listen_error("listen", "here:80", error))


def test_a_node_can_do_without_an_admin_port():
    error = listen_error("listen_admin", "h:1", OSError(errno.EADDRINUSE, ""))
    assert str(error).endswith("or no admin port with --listen-admin ''")
