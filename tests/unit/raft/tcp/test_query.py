"""Queries of a node's description, before there is a cluster."""

import socket
import threading
from collections.abc import Callable

import pytest

from querator.model.limits import PEER_DESCRIPTION_BYTES_MAX
from querator.raft.tcp.query import QueryFailed, query
from tests.unit.raft.tcp_cluster import TOKEN, TcpNode, drive, info, reserved, tcp_nodes


class Asker:
    """Queries in a thread of its own, as formation does."""

    def __init__(
        self,
        address: str,
        token: bytes = TOKEN,
        timeout_s: float = 60.0,
        *,
        ask: Callable[[str], bytes] | None = None,
    ) -> None:
        """`ask` replaces the plain query."""
        self.answer: bytes | QueryFailed | None = None
        self.rings, self._bell = socket.socketpair()
        """Readable when the answer has come."""
        ask = ask or (lambda at: query(at, token, timeout_s))
        self._thread = threading.Thread(target=self._ask, args=(address, ask))
        self._thread.start()

    def _ask(self, address: str, ask: Callable[[str], bytes]) -> None:
        try:
            self.answer = ask(address)
        except QueryFailed as failed:
            self.answer = failed
        self._bell.send(b"!")

    def wait(self) -> bytes | QueryFailed | None:
        self._thread.join()
        self.rings.close()
        self._bell.close()
        return self.answer


def answered(tcp_node: TcpNode, token: bytes = TOKEN) -> bytes | QueryFailed | None:
    asker = Asker(tcp_node.peers.address, token)
    drive(tcp_node, until=lambda: asker.answer is not None, also=asker.rings)
    return asker.wait()


@pytest.mark.parametrize("cluster_id", [None, "cluster"])
def test_a_node_describes_itself_whatever_it_is(cluster_id, caplog):
    a = TcpNode(info("a", cluster_id=cluster_id), description=b"I am a")
    with tcp_nodes(a):
        assert answered(a) == b"I am a"
        long = bytes(PEER_DESCRIPTION_BYTES_MAX)
        a.peers.set_description(long)
        assert answered(a) == long
        a.peers.set_description(b"")
        assert answered(a) == b""
        assert a.events == []
    assert caplog.records == []


def test_who_has_another_token_is_told_so(caplog):
    a = TcpNode(info("a"), description=b"I am a")
    with tcp_nodes(a):
        failed = answered(a, b"guess")
    assert isinstance(failed, QueryFailed)
    assert (
        str(failed) == f"{a.peers.address}: it refuses: it has another cluster token than this node"
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "'nonsense' is not HOST:PORT"),
        ("a.invalid:1", "a.invalid:1: "),
        ("b" * 70 + ".example:1", "label"),
    ],
)
def test_addresses_that_lead_nowhere_fail(address, words):
    with pytest.raises(QueryFailed, match=words):
        query(address, TOKEN, 5.0)


def test_nobody_is_there():
    with reserved() as address, pytest.raises(QueryFailed, match="Connection refused"):
        query(address, TOKEN, 5.0)


def test_a_node_that_does_not_answer_is_not_waited_for():
    a = TcpNode(info("a"))
    with tcp_nodes(a), pytest.raises(QueryFailed, match="timed out"):
        query(a.peers.address, TOKEN, 0.05)


def test_a_node_that_goes_away_is_no_answer():
    a = TcpNode(info("a"))
    asker = Asker(a.peers.address)
    a.peers.close()
    assert isinstance(asker.wait(), QueryFailed)
