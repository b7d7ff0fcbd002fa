"""TLS between nodes: which peers are accepted, what a refused peer learns, and that nothing else
changes.
"""

import contextlib
import os
import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querator.config import PeerTlsSettings
from querator.model.limits import MIB, PEER_SEND_BYTES_MAX, REQUEST_BYTES_CAP
from querator.raft.peers import Connected, Disconnected
from querator.raft.refusals import Code, PeerRefused
from querator.raft.tcp import connection
from querator.raft.tcp.channel import Channel, PeerTls, PeerTlsError
from querator.raft.tcp.frames import NONCE_BYTES
from querator.raft.tcp.handshake import Handshake
from querator.raft.tcp.query import QueryFailed, query
from tests.certificates import Authority
from tests.unit.raft.tcp.test_peer_refusals import refusals, undisturbed
from tests.unit.raft.tcp.test_query import Asker
from tests.unit.raft.tcp.test_tcp_peers import append
from tests.unit.raft.tcp_cluster import (
    TOKEN,
    TcpNode,
    beat,
    caller,
    drive,
    info,
    read_to_end,
    restarted,
    tcp_cluster,
    tcp_nodes,
)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("papers")


@pytest.fixture(scope="module")
def papers(room: Path) -> Authority:
    return Authority(room / "ours")


@pytest.fixture(scope="module")
def shown(papers: Authority) -> PeerTlsSettings:
    return papers.peer("node")


@pytest.fixture(scope="module")
def strangers(room: Path) -> Authority:
    return Authority(room / "theirs")


# --- nodes that belong together ----------------------------------------------------------------


def test_large_and_small_messages_arrive_whole_both_ways(shown: PeerTlsSettings):
    chance = random.Random(1)
    sizes = [REQUEST_BYTES_CAP, 1, 5 * MIB, 0, *(chance.randrange(300_000) for _ in range(50))]
    sent = [append(size, index) for index, size in enumerate(sizes)]
    with tcp_cluster("a", "b", "c", tls=shown) as made:
        a, b, c = made
        for one, other in ((a, b), (b, a), (c, a)):
            for message in sent:
                one.peers.send(other.key, [message])
            one.peers.flush()
        wanted = len(sent)
        drive(
            *made,
            until=lambda: len(b.messages(a)) == len(a.messages(b)) == len(a.messages(c)) == wanted,
        )
        assert b.messages(a) == a.messages(b) == a.messages(c) == sent
        assert a.peers.room_bytes(b.key) == PEER_SEND_BYTES_MAX
        assert a.links(b) == b.links(a) == [Connected]


def test_what_is_sent_is_not_to_be_read(shown: PeerTlsSettings):
    """The bytes as an observer between the two nodes sees them."""
    b = TcpNode(info("b"), tls=shown)
    with tcp_nodes(b), socket.create_server(("127.0.0.1", 0)) as between:
        between.setblocking(False)
        a = TcpNode(info("a"), tls=shown)
        a.knows(b=f"127.0.0.1:{between.getsockname()[1]}")
        b.knows(a)
        with tcp_nodes(a), Between(between, b) as way:
            drive(a, b, until=lambda: a.sees(b) and b.sees(a), after_each=way.carry)
            a.peers.send(b.key, [append(0)])
            a.peers.flush()
            drive(a, b, until=lambda: bool(b.messages(a)), after_each=way.carry)
            assert b"a.example:4470" not in way.seen
            assert b"command" not in way.seen


class Between:
    """Relays bytes between a client of a listening socket and a node, and records them."""

    def __init__(self, listener: socket.socket, to: TcpNode) -> None:
        self._listener = listener
        host, _, port = to.peers.address.rpartition(":")
        self._there = socket.create_connection((host, int(port)))
        self._there.setblocking(False)
        self._here: socket.socket | None = None
        self.seen = bytearray()

    def __enter__(self) -> "Between":
        return self

    def __exit__(self, *_: object) -> None:
        self._there.close()
        if self._here is not None:
            self._here.close()

    def carry(self) -> None:
        if self._here is None:
            try:
                self._here, _ = self._listener.accept()
            except BlockingIOError:
                return
            self._here.setblocking(False)
        for source, target in ((self._here, self._there), (self._there, self._here)):
            try:
                data = source.recv(1000)
            except BlockingIOError:
                continue
            self.seen += data
            target.sendall(data)


def test_renewed_certificates_are_shown_and_asked_for_by_later_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    papers, newer = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = papers.peer("node")
    with tcp_cluster("a", "b", tls=files) as (a, b):
        cert, key = newer.issue("node")
        os.replace(key, files.key_file)
        after = TcpNode(info("b", "2"), tls=newer.peer("other"))
        a.say(b, 99)
        drive(a, b, until=lambda: bool(b.messages(a)))
        assert b.links(a) == [Connected], "what is open goes on"
        b.peers.close()
        with tcp_nodes(after):
            after.knows(a)
            a.knows(after)
            # The certificate of the new key is not there yet: the node keeps the old pair.
            drive(a, after, until=lambda: "peers.tls_not_renewed" in caplog.text)
            os.replace(cert, files.cert_file)
            os.replace(newer.ca, files.ca_file)
            drive(a, after, until=lambda: a.sees(after) and after.sees(a))
    assert "peers.tls_renewed" in caplog.text


def test_a_connection_whose_keys_are_worn_is_made_anew(
    shown: PeerTlsSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level("INFO")
    with tcp_cluster("a", "b", tls=shown) as (a, b):
        a.say(b, *range(200))
        drive(a, b, until=lambda: len(b.messages(a)) == 200)
        with monkeypatch.context() as few:
            few.setattr(connection, "PEER_TLS_RECORDS_MAX", 100)
            drive(a, b, until=lambda: not a.sees(b) or not b.sees(a))
        drive(a, b, until=lambda: a.sees(b) and b.sees(a))
        assert "its keys have reached their age limit" in caplog.text
        a.say(b, 1000)
        drive(a, b, until=lambda: beat(1000) in b.messages(a))
        assert a.links(b) == b.links(a) == [Connected, Disconnected, Connected]


# --- nodes that are refused --------------------------------------------------------------------


def at_odds(
    dialer: PeerTlsSettings | None,
    acceptor: PeerTlsSettings | None,
    caplog: pytest.LogCaptureFixture,
) -> tuple[str, str]:
    """The lines that nodes c and d log about each other; c dials d."""
    c, d = TcpNode(info("c"), tls=dialer), TcpNode(info("d"), tls=acceptor)
    with tcp_nodes(c, d):
        c.knows(d)
        d.knows(c)

        def lines() -> list[str]:
            return sorted(refusals(caplog), key=lambda line: "name=d" not in line)

        drive(c, d, until=lambda: len(lines()) == 2)
        by_c, by_d = lines()
        assert "name=d" in by_c
        assert not c.events
        assert not d.events
        return by_c, by_d


def test_another_authority(
    shown: PeerTlsSettings,
    strangers: Authority,
    papers: Authority,
    caplog: pytest.LogCaptureFixture,
):
    theirs = strangers.peer("node")
    by_c, by_d = at_odds(theirs, shown, caplog)
    assert "peers.refused " in by_c
    assert "code=certificate reason=its certificate is not accepted: " in by_c
    assert "code=certificate reason=it refuses this node: unknown ca" in by_d
    caplog.clear()
    # Its node trusts the others, and they do not trust it.
    by_c, by_d = at_odds(strangers.peer("other", trusts=papers), shown, caplog)
    assert "peers.refused_by_peer " in by_c
    assert "it refuses this node: unknown ca" in by_c
    assert "its certificate is not accepted: " in by_d


@pytest.mark.parametrize("dials", [True, False])
def test_an_expired_certificate(
    dials: bool, shown: PeerTlsSettings, papers: Authority, caplog: pytest.LogCaptureFixture
):
    old = papers.peer("old", expired=True)
    by_c, by_d = at_odds(*((old, shown) if dials else (shown, old)), caplog)
    theirs, ours = (by_c, by_d) if dials else (by_d, by_c)
    assert "its certificate is not accepted: certificate has expired" in ours
    assert "it refuses this node: certificate expired" in theirs


def test_tls_on_one_side_alone(shown: PeerTlsSettings, caplog: pytest.LogCaptureFixture):
    by_c, by_d = at_odds(None, shown, caplog)
    for line in (by_c, by_d):
        assert "code=tls reason=it talks without TLS, which this node requires: give all" in line
    assert "refused_by_peer" in by_c
    caplog.clear()
    by_c, by_d = at_odds(shown, None, caplog)
    for line in (by_c, by_d):
        assert (
            "code=tls reason=it asks for TLS, which this node does not have at the port for" in line
        )
    assert "refused_by_peer" in by_c


@pytest.mark.parametrize("kind", ["no certificate", "TLS 1.2"])
def test_a_tls_client_that_is_no_node(
    kind: str, shown: PeerTlsSettings, caplog: pytest.LogCaptureFixture
):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if kind == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(shown.cert_file, shown.key_file)
    with tcp_cluster("a", "b", tls=shown) as (a, b), caller(a) as sock:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing)
        done = False

        def talk() -> None:
            nonlocal done
            try:
                incoming.write(sock.recv(65_536))
            except BlockingIOError:
                pass
            except ConnectionError:
                done = True
            try:
                client.do_handshake()
                client.read()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                done = True
            sock.send(outgoing.read())

        drive(a, b, until=lambda: done and bool(refusals(caplog)), also=sock, after_each=talk)
        (line,) = refusals(caplog)
        words = {"no certificate": "it shows no certificate", "TLS 1.2": "it does not speak TLS"}
        assert words[kind] in line
        undisturbed(a, b)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it sends malformed TLS"),
        (b"\xff" * 100, "code="),
        (b"QP" + bytes(200), "it talks without TLS"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "code="),
    ],
)
def test_strangers(
    said: bytes, words: str, shown: PeerTlsSettings, caplog: pytest.LogCaptureFixture
):
    with tcp_cluster("a", "b", tls=shown) as (a, b), caller(a) as sock:
        sock.send(said)
        read_to_end(sock, a, b)
        (line,) = refusals(caplog)
        assert words in line
        undisturbed(a, b)


def test_the_token_is_asked_for_inside_tls(
    shown: PeerTlsSettings, caplog: pytest.LogCaptureFixture
):
    c = TcpNode(info("c"), tls=shown, token=b"another token")
    d = TcpNode(info("d"), tls=shown)
    with tcp_nodes(c, d):
        c.knows(d)
        d.knows(c)
        drive(c, d, until=lambda: len(refusals(caplog)) == 2)
    assert all("code=token" in line for line in refusals(caplog))


def test_a_node_that_restarts_without_tls_is_not_let_in_and_with_it_again(
    shown: PeerTlsSettings, caplog: pytest.LogCaptureFixture
):
    with tcp_cluster("a", "b", tls=shown) as (a, b):
        clear = restarted(b)
        with tcp_nodes(clear):
            clear.knows(a)
            drive(a, clear, until=lambda: "code=tls" in caplog.text)
            assert not clear.events
        back = TcpNode(clear.info, listen=b.peers.address, tls=shown)
        with tcp_nodes(back):
            back.knows(a)
            drive(a, back, until=lambda: a.sees(back) and back.sees(a))


# --- the channel by itself ---------------------------------------------------------------------


def pair(one: PeerTls, other: PeerTls) -> tuple[Channel, Channel]:
    return one.dial(), other.accept()


def shake(dialer: Channel, acceptor: Channel) -> None:
    while not (dialer.done and acceptor.done):
        for source, target in ((dialer, acceptor), (acceptor, dialer)):
            if data := source.outgoing():
                target.feed(data)


@pytest.fixture(scope="module")
def tls(shown: PeerTlsSettings) -> PeerTls:
    return PeerTls(shown)


def test_the_binding_is_known_to_both_ends_and_to_no_other_connection(tls: PeerTls):
    bindings = set()
    for _ in range(3):
        dialer, acceptor = pair(tls, tls)
        assert dialer.binding == b""
        shake(dialer, acceptor)
        assert dialer.binding == acceptor.binding
        assert len(dialer.binding) >= 32
        bindings.add(dialer.binding)
    assert len(bindings) == 3


@pytest.mark.parametrize("acceptors", [b"", b"another connection"])
def test_a_proof_that_was_passed_on_from_another_connection_proves_nothing(acceptors: bytes):
    dialer, opening = Handshake.dial(TOKEN, b"d" * NONCE_BYTES, b"hello")
    acceptor = Handshake.accept(TOKEN, b"a" * NONCE_BYTES)
    dialer.binding, acceptor.binding = b"one connection", acceptors
    challenge = acceptor.receive(*opening)
    assert challenge is not None
    proof = dialer.receive(*challenge)
    assert proof is not None
    with pytest.raises(PeerRefused) as refused:
        acceptor.receive(*proof)
    assert refused.value.code is Code.TOKEN


@settings(max_examples=50, deadline=None)
@given(
    said=st.lists(st.binary(max_size=40_000), max_size=6),
    cuts=st.lists(st.integers(1, 30_000), min_size=1),
    room=st.integers(1, 50_000),
)
def test_bytes_arrive_as_they_were_said_however_they_are_cut(
    tls: PeerTls, said: list[bytes], cuts: list[int], room: int
):
    dialer, acceptor = pair(tls, tls)
    shake(dialer, acceptor)
    for data in said:
        dialer.write(data)
    wire, heard, into = dialer.outgoing(), bytearray(), memoryview(bytearray(room))
    number = 0
    while wire:
        cut = cuts[number % len(cuts)]
        number += 1
        acceptor.feed(wire[:cut])
        wire = wire[cut:]
        while count := acceptor.read(into):
            heard += into[:count]
    assert heard == b"".join(said)


@settings(max_examples=200, deadline=None)
@given(flight=st.integers(0, 4), place=st.integers(0, 1 << 16), by=st.integers(1, 255))
def test_what_is_bent_on_the_way_is_never_heard_as_something_else(
    tls: PeerTls, flight: int, place: int, by: int
):
    """A change in the handshake or after it leads to Refused, or to no message."""
    dialer, acceptor = pair(tls, tls)
    into = memoryview(bytearray(100_000))

    def carry() -> None:
        for number in range(5):
            source, target = (dialer, acceptor) if number % 2 == 0 else (acceptor, dialer)
            if source.done:
                source.write(b"what is said")
            wire = bytearray(source.outgoing())
            if number == flight and wire:
                wire[place % len(wire)] ^= by
            target.feed(memoryview(wire))
            if target.done:
                heard = bytes(into[: target.read(into)])
                assert heard in (b"", b"what is said")

    with contextlib.suppress(PeerRefused):
        carry()
    assert not (dialer.done and acceptor.done) or dialer.binding == acceptor.binding


@settings(max_examples=200, deadline=None)
@given(wire=st.lists(st.binary(max_size=200), max_size=5), begun=st.booleans())
def test_nonsense_is_refused(tls: PeerTls, wire: list[bytes], begun: bool):
    dialer, acceptor = pair(tls, tls)
    if begun:
        shake(dialer, acceptor)
    into = memoryview(bytearray(1000))
    try:
        for each in wire:
            acceptor.feed(each)
            if acceptor.done:
                assert acceptor.read(into) == 0
    except PeerRefused:
        pass
    assert acceptor.done is begun


# --- asking ----------------------------------------------------------------------------------


def asked(a: TcpNode, ask: Callable[[str], bytes]) -> bytes | str:
    asker = Asker(a.peers.address, ask=ask)
    drive(a, until=lambda: asker.answer is not None, also=asker.rings)
    answer = asker.wait()
    assert answer is not None
    return str(answer) if isinstance(answer, QueryFailed) else answer


def test_a_question_inside_tls(
    shown: PeerTlsSettings, tls: PeerTls, strangers: Authority, caplog: pytest.LogCaptureFixture
):
    described = bytes(range(256)) * 900
    a = TcpNode(info("a"), tls=shown, description=described)
    with tcp_nodes(a):
        assert asked(a, lambda at: query(at, TOKEN, 60.0, tls=tls)) == described
        assert not caplog.records
        assert "it talks without TLS" in str(asked(a, lambda at: query(at, TOKEN, 60.0)))
        theirs = PeerTls(strangers.peer("asker"))
        failed = str(asked(a, lambda at: query(at, TOKEN, 60.0, tls=theirs)))
        assert "its certificate is not accepted" in failed
    clear = TcpNode(info("a"), description=described)
    with tcp_nodes(clear):
        failed = str(asked(clear, lambda at: query(at, TOKEN, 60.0, tls=tls)))
        assert "it refuses: it asks for TLS, which this node does not have" in failed


# --- files -------------------------------------------------------------------------------------


def test_files_that_cannot_be_used(papers: Authority, tmp_path: Path):
    shown = papers.peer("here")
    other_key = papers.peer("there").key_file
    missing = str(tmp_path / "missing.pem")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(PeerTlsError, match=r"peer_tls_ca_file: .*missing.pem.*No such file"):
        PeerTls(PeerTlsSettings(shown.cert_file, shown.key_file, missing))
    with pytest.raises(PeerTlsError, match=r"peer_tls_ca_file: .*nonsense.pem cannot be used"):
        PeerTls(PeerTlsSettings(shown.cert_file, shown.key_file, str(nonsense)))
    with pytest.raises(PeerTlsError, match=r"peer_tls_cert_file: .*missing.pem and .*No such"):
        PeerTls(PeerTlsSettings(missing, shown.key_file, shown.ca_file))
    with pytest.raises(PeerTlsError, match=r"peer_tls_key_file: .* cannot be used: key values"):
        PeerTls(PeerTlsSettings(shown.cert_file, other_key, shown.ca_file))


def test_a_certificate_between_nodes_that_has_expired_is_warned_of(
    papers: Authority, shown: PeerTlsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    assert PeerTls(shown).expires_at_s is not None
    assert "certificate_expires" not in caplog.text
    PeerTls(papers.peer("old", expired=True))
    assert "peers.certificate_expires" in caplog.text
    assert "the certificate of the port for other nodes has expired on" in caplog.text
