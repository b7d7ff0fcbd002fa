"""Ports that clients connect to by mistake: with and without TLS, and of other protocols."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from tests.certificates import Authority

Behave = Callable[[socket.socket], None]


@contextmanager
def odd_port(behave: Behave, *, number: int = 0) -> Iterator[str]:
    """A port (`number` 0: a free one) that does this with each connection; its address."""
    with socket.create_server(("127.0.0.1", number)) as listening:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listening.accept()
                except OSError:
                    return
                with sock:
                    try:
                        behave(sock)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def saying(words: bytes) -> Behave:
    def behave(sock: socket.socket) -> None:
        sock.recv(1_000)
        sock.sendall(words)

    return behave


@contextmanager
def grpc_port(
    papers: Authority | None, *, mutual: bool = False, host: str = "127.0.0.1"
) -> Iterator[str]:
    """The gRPC server of a node, without services."""
    server = grpc.server(thread_pool=None)  # type: ignore[arg-type]
    if papers is None:
        number = server.add_insecure_port(f"{host}:0")
    else:
        cert, key = papers.issue("node")
        number = server.add_secure_port(
            f"{host}:0",
            grpc.ssl_server_credentials(
                [(key.read_bytes(), cert.read_bytes())],
                root_certificates=papers.ca.read_bytes() if mutual else None,
                require_client_auth=mutual,
            ),
        )
    server.start()
    try:
        yield f"{host}:{number}"
    finally:
        server.stop(None).wait()
