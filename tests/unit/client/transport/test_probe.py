"""Each cause of a missing connection, at real sockets."""

import socket
import ssl
from pathlib import Path

import pytest

from querator import Tls
from querator.client.errors import ConnectionFault
from querator.client.transport.probe import probe
from tests.certificates import Authority
from tests.unit.client.ports import grpc_port, odd_port, saying


@pytest.fixture
def papers(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "papers")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "stranger")


def found(address: str, tls: Tls | None) -> tuple[ConnectionFault | None, str]:
    fault = probe(address, tls)
    if fault is None:
        return None, ""
    assert fault.address == address
    return fault.kind, fault.text


def test_nothing_is_wrong(papers: Authority):
    with grpc_port(None) as address:
        assert found(address, None) == (None, "")
    with grpc_port(papers) as address:
        assert found(address, papers.client()) == (None, "")
    with grpc_port(papers, mutual=True) as address:
        assert found(address, papers.client(shows=True)) == (None, "")


def test_a_name_that_is_unknown():
    kind, text = found("nosuchhost.invalid:4470", None)
    assert kind is ConnectionFault.NAME_UNKNOWN
    assert text == "The name nosuchhost.invalid cannot be resolved."
    assert found("a" * 70 + ":1", None)[0] is ConnectionFault.NAME_UNKNOWN


def test_a_refused_connection():
    assert found("127.0.0.1:1", None) == (
        ConnectionFault.REFUSED,
        "Connection refused at 127.0.0.1:1.",
    )


def test_a_node_that_requires_tls(papers: Authority):
    for mutual in (False, True):
        with grpc_port(papers, mutual=mutual) as address:
            assert found(address, None) == (
                ConnectionFault.TLS_REQUIRED,
                f"{address} requires TLS.",
            )


def test_a_node_without_tls(papers: Authority):
    with grpc_port(None) as address:
        assert found(address, papers.client()) == (
            ConnectionFault.NO_TLS,
            f"{address} does not use TLS.",
        )


def test_a_certificate_of_another_authority(papers: Authority, stranger: Authority):
    with grpc_port(papers) as address:
        kind, text = found(address, stranger.client())
        assert kind is ConnectionFault.UNTRUSTED
        assert text.startswith(f"The certificate of {address} is not trusted: ")
        assert found(address, Tls())[0] is ConnectionFault.UNTRUSTED


def test_a_certificate_for_other_names(papers: Authority):
    with grpc_port(papers, host="127.0.0.2") as address:
        assert found(address, papers.client()) == (
            ConnectionFault.WRONG_NAME,
            f"The certificate of {address} is not trusted: not valid for 127.0.0.2 "
            "(valid for 127.0.0.1, localhost).",
        )


def test_a_client_without_a_certificate_or_with_a_wrong_one(papers: Authority, stranger: Authority):
    cert, key = stranger.issue("client")
    theirs = Tls(papers.ca.read_bytes(), cert.read_bytes(), key.read_bytes())
    with grpc_port(papers, mutual=True) as address:
        assert found(address, papers.client()) == (
            ConnectionFault.CERTIFICATE_REQUIRED,
            f"{address} requires a client certificate.",
        )
        kind, text = found(address, theirs)
        assert kind is ConnectionFault.CERTIFICATE_REFUSED
        assert text.startswith(f"{address} does not accept the client's certificate")


def test_a_server_that_sends_alerts(papers: Authority):
    """Servers other than gRPC's name the cause in an alert."""
    cert, key = papers.issue("node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(papers.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    def behave(sock: socket.socket) -> None:
        context.wrap_socket(sock, server_side=True).close()

    with odd_port(behave) as address:
        assert found(address, papers.client())[0] is ConnectionFault.CERTIFICATE_REQUIRED
        assert found(address, None)[0] is ConnectionFault.TLS_REQUIRED


def test_tls_that_is_not_for_grpc(papers: Authority):
    cert, key = papers.issue("node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def behave(sock: socket.socket) -> None:
        context.wrap_socket(sock, server_side=True).close()

    with odd_port(behave) as address:
        for tls in (papers.client(), None):
            assert found(address, tls) == (
                ConnectionFault.FOREIGN,
                f"{address} speaks TLS, but not gRPC: is it the port for other nodes? Clients use "
                "4470 by default.",
            )


def test_files_of_the_client_that_cannot_be_used(papers: Authority):
    with grpc_port(papers) as address:
        kind, text = found(address, Tls(ca=b"nonsense"))
        assert kind is ConnectionFault.TLS_UNUSABLE
        assert text.startswith("The client's authorities or certificate cannot be used: ")
        broken = Tls(papers.ca.read_bytes(), b"nonsense", b"nonsense")
        assert found(address, broken)[0] is ConnectionFault.TLS_UNUSABLE


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            ConnectionFault.HTTP,
            "{} speaks HTTP: is it the admin port? Clients use 4470 by default.",
        ),
        (
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
            ConnectionFault.CLOSED,
            "{} answers HTTP 503.",
        ),
        (
            b"SSH-2.0-OpenSSH_9.2\r\nmore",
            ConnectionFault.FOREIGN,
            "{} does not speak gRPC; it answers 'SSH-2.0-OpenSSH_9.2'.",
        ),
        (
            b"",
            ConnectionFault.CLOSED,
            "{} closes the connection: is it the port for other nodes? Clients use 4470 by "
            "default.",
        ),
    ],
)
def test_a_port_that_speaks_something_else(
    papers: Authority, secure: bool, words: bytes, kind: ConnectionFault, text: str
):
    with odd_port(saying(words)) as address:
        assert found(address, papers.client() if secure else None) == (kind, text.format(address))


@pytest.mark.parametrize("secure", [False, True])
def test_a_port_that_says_nothing(papers: Authority, secure: bool):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        fault = probe(address, papers.client() if secure else None, seconds=0.05)
        assert fault is not None
        assert fault.kind is ConnectionFault.SILENT
        assert fault.text == f"{address} accepts connections and does not answer."


def test_what_may_pass_by_itself():
    assert {kind for kind in ConnectionFault if not kind.certain} == {
        ConnectionFault.UNKNOWN,
        ConnectionFault.NAME_UNKNOWN,
        ConnectionFault.REFUSED,
        ConnectionFault.UNREACHABLE,
        ConnectionFault.SILENT,
        ConnectionFault.CLOSED,
    }


def test_a_status_that_is_not_a_text():
    with odd_port(saying(b"HTTP/1.1 5\xff\xfe\r\n\r\n")) as address:
        assert found(address, None)[0] is ConnectionFault.CLOSED
