"""A connection that is refused at the peer port causes one log line, and disturbs no other
connection.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from querator.model.limits import (
    PEER_HANDSHAKE_MS_MAX,
    PEER_REFUSAL_LOG_MS,
    PEER_REFUSALS_KEPT_MAX,
    PEER_UNPROVEN_MAX,
)
from querator.raft.clock import SimulatedClock
from querator.raft.peers import Connected, Disconnected, PeerEvent, Received
from querator.raft.refusals import (
    LASTING_S,
    TOKEN_S,
    Code,
    LastingRefusal,
    LastingRefusals,
    OtherTokens,
    PeerRefused,
    RefusalLog,
    TokenMemory,
)
from querator.raft.tcp.frames import NONCE_BYTES, FrameKind, FrameReader, frame
from querator.raft.tcp.handshake import Handshake, HandshakeState, refusal_text
from querator.raft.tcp.hello import Hello, Query, encode_hello
from querator.raft.tcp.local_hello import WAITING_S
from querator.storage.sealed import checksum
from tests.unit.raft.tcp_cluster import (
    TOKEN,
    TcpNode,
    beat,
    caller,
    drive,
    info,
    read_to_end,
    restarted,
    settle,
    tcp_cluster,
    tcp_nodes,
)

NONCE = b"n" * NONCE_BYTES


def joined(*frames: list[bytes]) -> bytes:
    return b"".join(b"".join(buffers) for buffers in frames)


def undisturbed(a: TcpNode, b: TcpNode) -> None:
    """Checks that the two nodes exchange messages over their first connection."""
    a.say(b, 99)
    b.say(a, 98)
    drive(a, b, until=lambda: bool(a.messages(b) and b.messages(a)))
    assert a.links(b) == b.links(a) == [Connected]
    assert (a.messages(b), b.messages(a)) == ([beat(98)], [beat(99)])


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("peers.refused")
    ]


def other_version(kind: FrameKind, body: bytes) -> bytes:
    front = b"QP\x02" + joined(frame(kind, body))[3:12]
    return front + checksum(b"", front).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("said", "code", "answered"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), "stranger", False),
        (b"GET /metrics HTTP/1.1\r\nHost: querator\r\n\r\n", "stranger", False),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls", True),
        (b"\xff", "stranger", False),
        (b"QP" + bytes(range(200)), "damaged", False),
        (other_version(FrameKind.OPEN, NONCE), "version", True),
        (joined(frame(FrameKind.MESSAGES, b"hello")), "unexpected", True),
        (joined(frame(FrameKind.READY)), "unexpected", True),
        (joined(frame(FrameKind.OPEN, b"short")), "unexpected", True),
        (joined(frame(FrameKind.OPEN, NONCE), frame(FrameKind.OPEN, NONCE)), "unexpected", True),
        (joined(frame(FrameKind.OPEN, NONCE), frame(FrameKind.PROOF, b"p" * 99)), "token", True),
        (joined(frame(FrameKind.OPEN, NONCE), frame(FrameKind.PROOF, b"")), "token", True),
        (joined(frame(FrameKind.OPEN, bytes(99))), "too_large", False),
        (joined(frame(FrameKind.PROOF, bytes(99_999))), "too_large", False),
    ],
)
def test_strangers_at_the_peer_port(said, code, answered, caplog):
    with tcp_cluster("a", "b") as (a, b), caller(a) as sock:
        sock.send(said)
        answer = read_to_end(sock, a, b)
        (line,) = refusals(caplog)
        host, port = sock.getsockname()
        assert line.startswith(f"peers.refused address={host}:{port} code={code} reason=")
        assert last_refusal(answer) == (Code(code) if answered else None)
        undisturbed(a, b)


def last_refusal(answer: bytes) -> Code | None:
    reader = FrameReader()
    space = reader.space()
    space[: len(answer)] = answer
    reader.received(len(answer))
    refused = None
    while (arrived := reader.next()) is not None:
        if arrived[0] is FrameKind.REFUSED:
            refused = refusal_text(bytes(arrived[1])).code
    return refused


def test_who_says_nothing_is_let_go_after_a_while(caplog):
    clock = SimulatedClock()
    with tcp_cluster("a", "b", clock=clock) as (a, b), caller(a) as sock:
        settle(a, b)
        clock.advance(PEER_HANDSHAKE_MS_MAX // 2)
        settle(a, b)
        clock.advance(PEER_HANDSHAKE_MS_MAX // 2)
        assert read_to_end(sock, a, b) == b""
        (line,) = refusals(caplog)
        assert "code=timeout reason=its handshake was not done within 2 s" in line
        undisturbed(a, b)


def test_a_probe_that_only_connects_is_no_news(caplog):
    with tcp_cluster("a", "b") as (a, b):
        with caller(a):
            settle(a, b)
        settle(a, b)
        undisturbed(a, b)
        assert refusals(caplog) == []


def test_who_goes_away_in_the_middle_is_named(caplog):
    opening = joined(frame(FrameKind.OPEN, NONCE))
    with tcp_cluster("a", "b") as (a, b):
        for said in (opening[:7], opening):
            with caller(a) as sock:
                sock.send(said)
                settle(a, b)
            drive(a, b, until=lambda: bool(refusals(caplog)))
        (line,) = refusals(caplog)
        assert "code=closed reason=it went away in the middle of the handshake" in line
        undisturbed(a, b)


def test_many_who_prove_nothing_do_not_keep_a_node_out(caplog):
    a, b = TcpNode(info("a")), TcpNode(info("b"))
    with tcp_nodes(a, b):
        callers = [caller(b) for _ in range(PEER_UNPROVEN_MAX + 10)]
        socks = [one.__enter__() for one in callers]
        settle(b)
        a.knows(b)
        b.knows(a)
        drive(a, b, until=lambda: a.sees(b) and b.sees(a))
        for one in callers:
            one.__exit__(None, None, None)
        assert len(socks) > PEER_UNPROVEN_MAX
        (line,) = refusals(caplog)
        assert f"code=crowded reason={PEER_UNPROVEN_MAX} connections have not finished" in line
        settle(a, b)
        undisturbed(a, b)


@contextmanager
def meeting(one: TcpNode, other: TcpNode, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Two nodes that must not talk, each knowing the other. The log lines in which both gave a
    reason.
    """
    lines: list[str] = []
    with tcp_nodes(one, other):
        if one.name == other.name:
            one.knows(b=other.peers.address)
        else:
            one.knows(other)
        other.knows(one)
        drive(one, other, until=lambda: len(refusals(caplog)) == 2)
        # It is refused again and again, without further log lines.
        wait_s = one.peers.wait_s() or 0
        drive(one, other, until=lambda: (one.peers.wait_s() or 0) > wait_s)
        assert one.events == other.events == []
        lines += refusals(caplog)
        assert len(lines) == 2
        yield lines


@pytest.mark.parametrize(
    ("one", "other", "token", "code", "reason"),
    [
        ("a", info("b"), b"guess", "token", "it has another cluster token than this node"),
        ("a", info("b", "1", "e"), TOKEN, "cluster", "node a belongs to cluster cluster, and b to"),
    ],
)
def test_both_sides_say_why_they_do_not_talk(one, other, token, code, reason, caplog):
    with meeting(TcpNode(info(one)), TcpNode(other, token=token), caplog) as lines:
        for line in lines:
            assert f"code={code} reason={reason}" in line
        here, told_by = sorted(lines, key=lambda line: "by_peer" in line)
        assert here.startswith("peers.refused address=127.0.0.1:")
        assert told_by.startswith("peers.refused_by_peer address=127.0.0.1:")
        assert "name=b" in told_by
        assert ("name=a" in here) is (code != "token")


def test_which_nodes_have_another_token_is_known_for_a_while():
    """The smaller name dials, so that the other one does not know the name."""
    clock = SimulatedClock()
    a = TcpNode(info("a"), clock=clock)
    b = TcpNode(info("b"), token=b"guess", clock=clock)
    with tcp_nodes(a, b):
        assert a.peers.other_tokens() == OtherTokens()
        a.knows(b)
        b.knows(a)
        drive(a, b, until=lambda: bool(a.peers.other_tokens().names))
        assert a.peers.other_tokens() == OtherTokens(frozenset({"b"}))
        assert b.peers.other_tokens() == OtherTokens(unnamed=True)
        assert sum(a.peers.refused().values()) + sum(b.peers.refused().values()) > 0
        assert set(a.peers.refused()) | set(b.peers.refused()) == {"token"}
        clock.advance(int(TOKEN_S * 1000) + 1)
        assert a.peers.other_tokens() == b.peers.other_tokens() == OtherTokens()


@pytest.mark.parametrize("dialed", ["b", None])
def test_refusals_that_last_are_known_until_they_end(dialed: str | None):
    memory = LastingRefusals()

    def refused(now_s: float, code: Code = Code.TLS) -> None:
        refusal = PeerRefused(code, "because")
        memory.refused(refusal, dialed=dialed, address="10.0.0.9:4711", now_s=now_s)

    refused(1.0)
    refused(1.0 + LASTING_S / 2)
    assert memory.lately(2.0 + LASTING_S) == (), "it did not last"
    refused(1.0 + LASTING_S)
    expected = LastingRefusal(dialed or "10.0.0.9", dialed is not None, False, "because")
    last_s = 1.0 + LASTING_S + TOKEN_S
    assert memory.lately(last_s) == (expected,)
    assert memory.lately(last_s + 1) == ()
    refused(last_s + 1)
    assert memory.lately(last_s + 1) == (), "another series"
    refused(last_s + 1 + LASTING_S)
    assert len(memory.lately(last_s + 1 + LASTING_S)) == 1
    memory.agreed("b")
    assert bool(memory.lately(last_s + 1 + LASTING_S)) is (dialed is None)


def test_refusals_that_need_no_operator_are_not_kept():
    memory = LastingRefusals()
    for now_s in (0.0, LASTING_S):
        for code in (Code.OVERTAKEN, Code.NOT_FORMED, Code.STRANGER, Code.OLD_COPY):
            refusal = PeerRefused(code, "because")
            memory.refused(refusal, dialed=None, address="10.0.0.9:4711", now_s=now_s)
        token = PeerRefused(Code.TOKEN, "because")
        memory.refused(token, dialed="b", address="10.0.0.9:4711", now_s=now_s)
    assert memory.lately(LASTING_S) == ()


def test_a_strangers_refusals_are_bounded():
    memory = LastingRefusals()
    for number in range(2 * PEER_REFUSALS_KEPT_MAX):
        for now_s in (0.0, LASTING_S):
            refusal = PeerRefused(Code.TOKEN, "because")
            memory.refused(refusal, dialed=None, address=f"host-{number}:1", now_s=now_s)
    assert len(memory.lately(LASTING_S)) == PEER_REFUSALS_KEPT_MAX


def test_a_stranger_with_another_token_is_reported_while_it_tries():
    clock = SimulatedClock()
    a = TcpNode(info("a"), clock=clock)
    stranger = TcpNode(info("Z"), token=b"guess", clock=clock)
    with tcp_nodes(a, stranger):
        stranger.knows(a)
        for times in range(1, 6):
            while a.peers.refused().get("token", 0) < times:
                drive(a, stranger, until=lambda: True)
            clock.advance(1_500)
        [found] = a.peers.lasting_refusals()
        assert (found.peer, found.dialed, found.by_peer) == ("127.0.0.1", False, False)
        assert "another cluster token" in found.reason
        clock.advance(int(TOKEN_S * 1000) + 1)
        assert a.peers.lasting_refusals() == ()


def test_a_node_that_connects_has_the_same_token():
    memory = TokenMemory()
    memory.refused(PeerRefused(Code.TOKEN, "because"), dialed="b", now_s=1.0)
    memory.refused(PeerRefused(Code.TLS, "because"), dialed="c", now_s=1.0)
    assert memory.lately(1.0) == OtherTokens(frozenset({"b"}))
    memory.agreed("b")
    assert memory.lately(1.0) == OtherTokens()


def test_a_node_with_this_nodes_name(caplog):
    a, impostor = TcpNode(info("a")), TcpNode(info("a", "2"))
    with tcp_nodes(a, impostor):
        # The address list confuses one node with the other.
        a.knows(b=impostor.peers.address)
        drive(a, impostor, until=lambda: len(refusals(caplog)) == 2)
        for line in refusals(caplog):
            assert "code=own_name reason=it is named a, as this node is" in line


def test_an_address_of_another_node_that_leads_back(caplog):
    a = TcpNode(info("a"))
    with tcp_nodes(a):
        a.knows(b=a.peers.address)
        drive(a, until=lambda: len(refusals(caplog)) == 2)
        for line in refusals(caplog):
            assert "code=own_name reason=it is this node itself" in line


def test_a_node_under_anothers_address(caplog):
    a, c = TcpNode(info("a")), TcpNode(info("c"))
    with tcp_nodes(a, c):
        c.knows(a)
        a.knows(c, b=c.peers.address)
        drive(a, c, until=lambda: len(refusals(caplog)) == 2 and a.sees(c) and c.sees(a))
        assert all(
            "code=wrong_node reason=node b was dialed, but c answered" in line
            for line in refusals(caplog)
        )
        undisturbed(a, c)


def test_a_name_that_is_not_known(caplog):
    a, b = TcpNode(info("a")), TcpNode(info("b"))
    with tcp_nodes(a, b):
        a.knows(b)
        drive(a, b, until=lambda: len(refusals(caplog)) == 2)
        for line in refusals(caplog):
            assert "code=unknown_name reason=node a is not one of the peers of b" in line


@pytest.mark.parametrize(
    ("incarnation", "code", "reason"),
    [
        ("1", "second", "another process with the name and the data of node a is connected"),
        ("2", "incarnation", "a node a of incarnation 1 is connected, and this is 2: names must"),
    ],
)
def test_the_second_of_two_nodes_with_one_name(incarnation, code, reason, caplog):
    with tcp_cluster("a", "b") as (a, b):
        second = TcpNode(msgspec.structs.replace(a.info, incarnation=incarnation))
        second.knows(b)
        with tcp_nodes(second):
            drive(a, b, second, until=lambda: len(refusals(caplog)) == 2)
            for line in refusals(caplog):
                assert f"code={code} reason={reason}" in line
            assert second.events == []
            undisturbed(a, b)
        # When the first node has gone, the second one may connect: it is the only one.
        caplog.clear()
        successor = restarted(a, incarnation=incarnation)
        successor.knows(b)
        with tcp_nodes(successor):
            drive(b, successor, until=lambda: b.sees(successor) and successor.sees(b))
        assert refusals(caplog) == []


def test_while_a_cluster_forms_nobody_is_alarmed(caplog):
    caplog.set_level("DEBUG")
    a, b = TcpNode(info("a")), TcpNode(info("b", cluster_id=None))
    with tcp_nodes(a, b):
        a.knows(b)
        b.knows(a)
        drive(a, b, until=lambda: len(refusals(caplog)) == 2)
        assert {record.levelname for record in caplog.records} == {"DEBUG"}
        b.peers.set_cluster_id("cluster")
        drive(a, b, until=lambda: a.sees(b) and b.sees(a))


def shaken(sock: socket.socket, tcp_node: TcpNode, hello: Hello | Query, *driven: TcpNode) -> bytes:
    """Shakes hands as the dialer, up to READY, and returns the bytes that arrived behind the
    handshake.
    """
    handshake, opening = Handshake.dial(TOKEN, NONCE, encode_hello(hello))
    reader = FrameReader()
    sock.send(joined(frame(*opening)))

    def step() -> None:
        try:
            reader.received(sock.recv_into(reader.space()))
        except BlockingIOError:
            return
        while (
            handshake.state is not HandshakeState.PROVEN and (arrived := reader.next()) is not None
        ):
            reply = handshake.receive(arrived[0], bytes(arrived[1]))
            if reply is not None:
                sock.send(joined(frame(*reply)))

    drive(
        tcp_node,
        *driven,
        until=lambda: handshake.state is HandshakeState.PROVEN,
        also=sock,
        after_each=step,
    )
    return joined(frame(*handshake.agree()))


def hello_of(name: str, to: str, *, run: str = "run", dial: int = 1) -> Hello:
    own = msgspec.structs.replace(info(name), peer_address="127.0.0.1:9")
    return Hello(own, to, run, dial)


def ends(tcp_node: TcpNode, name: str) -> list[type[PeerEvent]]:
    return [type(event) for event in tcp_node.events if event.node == info(name).key]


@pytest.mark.parametrize(
    "said",
    [
        b"garbage in the middle of a connection",
        joined(frame(FrameKind.MESSAGES, b"no messages")),
        joined(frame(FrameKind.MESSAGES, b"\x91" * 5000)),
        joined(frame(FrameKind.MESSAGES, msgspec.msgpack.encode([["h", 1, 2]]))),
        joined(frame(FrameKind.MESSAGES, msgspec.msgpack.encode([["h", 1, 2, "text"]]))),
        joined(frame(FrameKind.MESSAGES, b"\x91\x92\xa2\xff\xfe\x01")),
        joined(
            frame(
                FrameKind.MESSAGES,
                b"\x91\x95\xa1e\x01\x02\x01\x97\xa1r\x01\x01\x02\x00\x00\xa2\xff\xfe",
            )
        ),
        joined(frame(FrameKind.OPEN, NONCE)),
        joined(frame(FrameKind.PING, b"x")),
        other_version(FrameKind.PING, b""),
    ],
)
def test_what_makes_no_sense_on_an_open_connection_ends_it_and_nothing_else(said, caplog):
    with tcp_cluster("a", "c") as (a, c), caller(c) as sock:
        c.knows(a, b="127.0.0.1:9")
        ready = shaken(sock, c, hello_of("b", "c"), a)
        good = joined(
            frame(FrameKind.PING),
            frame(FrameKind.MESSAGES, msgspec.msgpack.encode([["h", 1, 0, []]])),
        )
        sock.send(ready + good + said)
        read_to_end(sock, a, c)
        assert ends(c, "b")[0] is Connected
        assert ends(c, "b")[-1] is Disconnected
        assert [e.messages for e in c.events if isinstance(e, Received)] == [[beat(1)]]
        assert len(refusals(caplog)) == 1
        assert "name=b" in refusals(caplog)[0]
        undisturbed(a, c)


def test_a_later_connection_of_the_same_process_takes_the_place_of_the_one_before():
    b = TcpNode(info("b"))
    with tcp_nodes(b), caller(b) as first, caller(b) as second, caller(b) as late:
        b.knows(a="127.0.0.1:9")
        late_ready = shaken(late, b, hello_of("a", "b", dial=1))
        first.send(shaken(first, b, hello_of("a", "b", dial=2)))
        drive(b, until=lambda: ends(b, "a") == [Connected])
        second.send(shaken(second, b, hello_of("a", "b", dial=3)))
        read_to_end(first, b)
        drive(b, until=lambda: ends(b, "a") == [Connected, Disconnected, Connected])
        # The first attempt gets through at last, and is obsolete.
        late.send(late_ready)
        read_to_end(late, b)
        assert ends(b, "a") == [Connected, Disconnected, Connected]


def test_the_one_with_the_larger_name_does_not_dial(caplog):
    a = TcpNode(info("a"))
    with tcp_nodes(a), caller(a) as sock:
        a.knows(b="127.0.0.1:9")
        with pytest.raises(PeerRefused) as caught:
            shaken(sock, a, hello_of("b", "a"))
        assert caught.value.code is Code.DIRECTION


def test_who_asks_a_question_cannot_go_on_as_a_peer(caplog):
    clock = SimulatedClock()
    a = TcpNode(info("a"), description=b"I am a", clock=clock)
    with tcp_nodes(a), caller(a) as sock:
        sock.send(shaken(sock, a, Query(info("d", cluster_id=None))))
        read_to_end(sock, a)
        assert a.events == []
        assert a.peers.newcomers() == (info("d", cluster_id=None),)
        assert a.peers.newcomers() == (), "told once for each question"
        assert a.peers.waiting() == (info("d", cluster_id=None),)
        clock.advance(round(WAITING_S * 1000) + 1)
        assert a.peers.waiting() == (), "it has not asked for long"
        assert "a connection with a question sends nothing else" in caplog.text


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=100),
        st.binary(max_size=100).map(lambda garbage: b"QP\x01" + garbage),
        st.lists(
            st.tuples(st.sampled_from(list(FrameKind)), st.binary(max_size=80)), max_size=4
        ).map(lambda frames: joined(*(frame(*each) for each in frames))),
    )
)
def test_whatever_is_said_at_the_port_disturbs_nobody(data, pair):
    a, b = pair
    a.events.clear(), b.events.clear()
    with caller(b) as sock:
        sock.send(data)
        sock.shutdown(socket.SHUT_WR)
        read_to_end(sock, a, b)
    settle_now(a, b)
    assert a.events == b.events == []


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_handshake_cut_or_bent_anywhere_connects_nobody(data, pair):
    a, b = pair
    a.events.clear(), b.events.clear()
    opening = joined(frame(FrameKind.OPEN, NONCE))
    hello = encode_hello(hello_of("aa", "b"))
    handshake, _ = Handshake.dial(b"guess", NONCE, hello)
    proof = handshake.receive(FrameKind.CHALLENGE, b"c" * NONCE_BYTES)
    assert proof is not None
    said = bytearray(opening + joined(frame(*proof)))
    cut = data.draw(st.integers(0, len(said)))
    bit = data.draw(st.none() | st.integers(0, 8 * len(said) - 1))
    if bit is not None:
        said[bit // 8] ^= 1 << bit % 8
    with caller(b) as sock:
        sock.send(said[:cut])
        sock.shutdown(socket.SHUT_WR)
        read_to_end(sock, a, b)
    settle_now(a, b)
    assert a.events == b.events == []


def settle_now(*driven: TcpNode) -> None:
    for tcp_node in driven:
        tcp_node.events.extend(tcp_node.peers.receive())


@pytest.fixture(scope="module")
def pair() -> Iterator[list[TcpNode]]:
    with tcp_cluster("a", "b", clock=SimulatedClock()) as made:
        made[1].knows(made[0], aa="127.0.0.1:9")
        settle(*made)
        yield made


def test_repeats_are_counted_and_told_later(caplog):
    log = RefusalLog()

    def refuse(now_s: float, address: str = "10.0.0.1:1", code: Code = Code.TOKEN) -> None:
        log.refused(PeerRefused(code, "because"), address=address, name="", now_s=now_s)

    for second in range(50):
        refuse(float(second), f"10.0.0.1:{second}")
    assert refusals(caplog) == ["peers.refused address=10.0.0.1:0 code=token reason=because"]
    refuse(50.0, code=Code.CLUSTER)
    refuse(50.0, "[::1]:5")
    assert len(refusals(caplog)) == 3
    refuse(PEER_REFUSAL_LOG_MS / 1000, "10.0.0.1:99")
    assert refusals(caplog)[3:] == [
        "peers.refused address=10.0.0.1:99 repeated=49 code=token reason=because"
    ]
    for host in range(2 * PEER_REFUSALS_KEPT_MAX):
        refuse(100.0, f"10.1.{host}:1")
    assert len(refusals(caplog)) == 4 + 2 * PEER_REFUSALS_KEPT_MAX
