"""Peers over TCP: connections, their order and their ends, bounds."""

import errno
import random
import resource
import select
import socket
import threading

import pytest

from querator.model.ids import GroupId
from querator.model.limits import (
    MIB,
    PEER_CONNECT_MS_MAX,
    PEER_FRAME_BYTES_MAX,
    PEER_PING_MS,
    PEER_SEND_BYTES_CAP,
    PEER_SEND_BYTES_MAX,
    PEER_SILENCE_MS_MAX,
    REQUEST_BYTES_CAP,
)
from querator.model.nodes import NodeKey
from querator.raft.clock import SimulatedClock
from querator.raft.messages import Append, Envelope, LogEntry
from querator.raft.peers import Connected, Disconnected, Received
from querator.raft.tcp.connection import PeerConnection
from querator.raft.tcp.dialing import Target, numeric
from querator.raft.tcp.hello import KnownPeer
from tests.unit.raft.tcp_cluster import (
    TcpNode,
    beat,
    caller,
    drive,
    info,
    read_to_end,
    reserved,
    restarted,
    settle,
    tcp_cluster,
    tcp_nodes,
)


def append(size: int, index: int = 0) -> Envelope:
    entries = (LogEntry(1, 0, 0, b"command", (bytes(size),)),)
    return Envelope(
        GroupId(1),
        2,
        1,
        Append(
            term=1,
            sequence=1,
            read_round=0,
            prev_index=index,
            prev_term=1,
            commit_index=0,
            entries=entries,
        ),
    )


def targets(address: str) -> list[Target]:
    host, _, port = address.rpartition(":")
    return numeric(host, int(port)) or []


def readable(tcp_node: TcpNode) -> bool:
    return bool(select.select([tcp_node.peers.fileno()], [], [], 0)[0])


def test_three_nodes_talk_in_order():
    with tcp_cluster("a", "b", "c") as made:
        for one in made:
            for other in made:
                if one is not other:
                    one.say(other, *range(100))
        pairs = [(one, other) for one in made for other in made if one is not other]
        drive(*made, until=lambda: all(len(x.messages(y)) == 100 for x, y in pairs))
        for one, other in pairs:
            assert one.messages(other) == [beat(number) for number in range(100)]
            assert one.links(other) == [Connected]
            assert one.peers.connected()[other.key].client_address == f"{other.name}.example:4470"
            assert one.peers.connected()[other.key].peer_address == other.peers.address


def test_what_is_said_to_nobody_is_dropped():
    with tcp_cluster("a", "b") as (a, b):
        a.peers.send(NodeKey("c/1"), [beat(1)])
        assert a.peers.room_bytes(NodeKey("c/1")) == 0
        assert a.peers.room_bytes(b.key) == PEER_SEND_BYTES_MAX
        a.peers.send(b.key, [])
        a.say(b, 2)
        drive(a, b, until=lambda: bool(b.messages(a)))
        assert b.messages(a) == [beat(2)]


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_node_that_restarts_is_connected_again(name):
    with tcp_cluster("a", "b") as (a, b):
        before, other = (a, b) if name == "a" else (b, a)
        after = restarted(before)
        after.knows(other)
        with tcp_nodes(after):
            drive(after, other, until=lambda: after.links(other) == [Connected])
            drive(after, other, until=lambda: other.links(before)[1:] == [Disconnected, Connected])
            other.say(after, 1)
            after.say(other, 2)
            drive(after, other, until=lambda: after.messages(other) == [beat(1)])
            drive(after, other, until=lambda: other.messages(after) == [beat(2)])


def test_nobody_listens_yet_and_then_somebody_does():
    a = TcpNode(info("a"))
    with tcp_nodes(a), reserved() as address:
        a.knows(b=address)
        settle(a)
        b = TcpNode(info("b"), listen=address)
        b.knows(a)
        with tcp_nodes(b):
            drive(a, b, until=lambda: a.sees(b) and b.sees(a))


def test_attempts_wait_longer_each_time_and_never_long(caplog):
    caplog.set_level("INFO")
    clock = SimulatedClock()
    a = TcpNode(info("a"), clock=clock)
    waits: list[float] = []

    def look() -> None:
        wait_s = a.peers.wait_s()
        if wait_s and wait_s != PEER_CONNECT_MS_MAX / 1000:
            waits.append(wait_s)
            clock.advance(int(wait_s * 1000) + 1)

    with tcp_nodes(a), reserved() as address:
        a.knows(b=address)
        drive(a, until=lambda: len(waits) > 12, after_each=look)
    assert 0.02 <= waits[0] <= 0.05
    assert all(0.5 <= wait <= 1.0 for wait in waits[-3:])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"peers.unreachable name=b address={address} reason=Connection refused"


def test_a_link_that_is_silent_ends_and_begins_again(caplog):
    caplog.set_level("INFO")
    clock = SimulatedClock()
    with tcp_cluster("a", "b", clock=clock) as (a, b):
        # Neither b nor its kernel reports the silence: b does not run.
        for _ in range(PEER_SILENCE_MS_MAX // 100 - 1):
            clock.advance(100)
            settle(a)
        assert a.sees(b)
        clock.advance(100)
        drive(a, until=lambda: not a.sees(b))
        assert "silent for 2 s" in caplog.text
        clock.advance(1000)
        drive(a, b, until=lambda: b.links(a) == [Connected, Disconnected, Connected])
        a.say(b, 1)
        drive(a, b, until=lambda: bool(b.messages(a)))


def test_nodes_with_nothing_to_say_ping():
    clock = SimulatedClock()
    with tcp_cluster("a", "b", clock=clock) as (a, b):
        settle(a, b)
        rested = pytest.approx(PEER_PING_MS / 1000)
        for _ in range(10 * PEER_SILENCE_MS_MAX // PEER_PING_MS):
            clock.advance(PEER_PING_MS)
            drive(a, b, until=lambda: a.peers.wait_s() == b.peers.wait_s() == rested)
            settle(a, b)
        assert a.links(b) == b.links(a) == [Connected]


def test_a_node_that_was_held_up_reads_before_it_judges():
    clock = SimulatedClock()
    with tcp_cluster("a", "b", clock=clock) as (a, b):
        b.say(a, 1)
        clock.advance(10 * PEER_SILENCE_MS_MAX)
        assert a.peers.wait_s() == 0
        select.select([a.peers.fileno()], [], [])
        a.events.extend(a.peers.receive())
        assert a.messages(b) == [beat(1)]
        assert a.sees(b)


def test_large_and_small_messages_arrive_whole():
    chance = random.Random(1)
    with tcp_cluster("a", "b") as (a, b):
        sizes = [REQUEST_BYTES_CAP, 1, 5 * MIB, 0, *(chance.randrange(300_000) for _ in range(50))]
        sent = [append(size, index) for index, size in enumerate(sizes)]
        for message in sent:
            a.peers.send(b.key, [message])
        a.peers.flush()
        drive(a, b, until=lambda: len(b.messages(a)) == len(sent))
        assert b.messages(a) == sent
        assert a.peers.room_bytes(b.key) == PEER_SEND_BYTES_MAX


def test_messages_that_are_together_too_large_for_a_frame_travel_in_several():
    count = PEER_FRAME_BYTES_MAX // (12 * MIB) + 1
    sent = [append(12 * MIB, index) for index in range(count)]
    with tcp_cluster("a", "b") as (a, b):
        a.peers.send(b.key, sent)
        a.peers.flush()
        drive(a, b, until=lambda: len(b.messages(a)) == count)
        assert b.messages(a) == sent


def test_room_shrinks_with_what_waits_and_a_queue_beyond_the_cap_ends_the_connection(caplog):
    caplog.set_level("INFO")
    with tcp_cluster("a", "b") as (a, b):
        rooms = []
        while a.sees(b):
            rooms.append(a.peers.room_bytes(b.key))
            a.peers.send(b.key, [append(MIB)])
            assert len(rooms) <= PEER_SEND_BYTES_CAP // MIB + 1
        assert rooms == sorted(rooms, reverse=True)
        assert (rooms[0], rooms[-1]) == (PEER_SEND_BYTES_MAX, 0)
        assert PEER_SEND_BYTES_CAP // MIB - 1 <= len(rooms)
        assert a.peers.wait_s() == 0
        assert a.peers.receive() == [Disconnected(b.key)]
        assert "wait to be sent" in caplog.text
        a.events.append(Disconnected(b.key))
        drive(a, b, until=lambda: b.links(a) == a.links(b) == [Connected, Disconnected, Connected])


def test_a_peer_that_does_not_read_holds_nobody_up():
    with tcp_cluster("a", "b", "c") as (a, b, c):
        for index in range(40):
            a.peers.send(b.key, [append(MIB, index)])
        a.say(c, 1)
        drive(a, c, until=lambda: bool(c.messages(a)))
        assert a.peers.room_bytes(b.key) == 0
        drive(a, b, until=lambda: len(b.messages(a)) == 40)
        assert a.peers.room_bytes(b.key) == PEER_SEND_BYTES_MAX


def test_nothing_of_an_old_connection_arrives_after_the_next_one(caplog):
    with tcp_cluster("a", "b") as (a, b):
        # b is delayed: it has read neither the last messages of the old connection nor its end.
        a.say(b, 1, 2, 3)
        a.knows()
        drive(a, until=lambda: not a.sees(b))
        a.knows(b)
        drive(a, b, until=lambda: b.links(a)[-2:] == [Disconnected, Connected])
        a.say(b, 4)
        drive(a, b, until=lambda: beat(4) in b.messages(a))
        last = max(i for i, event in enumerate(b.events) if isinstance(event, Connected))
        after = [event for event in b.events[last:] if isinstance(event, Received)]
        assert [message for event in after for message in event.messages] == [beat(4)]


def test_a_peer_that_may_no_longer_connect_is_cut_off(caplog):
    with tcp_cluster("a", "b") as (a, b):
        a.peers.set_peers({"b": KnownPeer(b.peers.address, "2")})
        drive(a, b, until=lambda: not a.sees(b) and not b.sees(a))
        assert "known as incarnation 2, and this is 1" in caplog.text
        a.knows(b)
        drive(a, b, until=lambda: a.sees(b) and b.sees(a))


def test_a_node_connects_once_it_is_a_member():
    a, b = TcpNode(info("a", cluster_id=None)), TcpNode(info("b"))
    with tcp_nodes(a, b):
        a.knows(b)
        b.knows(a)
        settle(a, b)
        assert a.events == b.events == []
        a.peers.set_cluster_id("cluster")
        drive(a, b, until=lambda: a.sees(b) and b.sees(a))
        assert b.peers.connected()[a.key].cluster_id == "cluster"


def test_what_other_threads_say_wakes_the_thread_that_waits():
    with tcp_cluster("a", "b") as (a, b):
        settle(a, b)
        setter = threading.Thread(target=a.peers.set_peers, args=({},))
        setter.start()
        drive(a, b, until=lambda: not a.sees(b) and not b.sees(a))
        setter.join()


def test_a_name_is_resolved_at_each_attempt_without_waiting_for_it():
    answers: list[list[Target]] = []
    asked: list[tuple[str, int]] = []
    may_answer = threading.Event()

    def resolve(host: str, port: int) -> list[Target]:
        asked.append((host, port))
        may_answer.wait()
        if not answers:
            raise OSError(-2, "Name or service not known")
        return answers.pop(0)

    a, b = TcpNode(info("a"), resolve=resolve), TcpNode(info("b"))
    with tcp_nodes(a, b), reserved() as nobody:
        closed, open_ = targets(nobody), targets(b.peers.address)
        answers.append(closed)
        answers.append(closed + open_)
        b.knows(a)
        a.knows(b="b.example:99")
        drive(a, b, until=lambda: bool(asked))
        settle(a, b)
        assert not a.sees(b)
        may_answer.set()
        drive(a, b, until=lambda: a.sees(b) and b.sees(a))
        assert asked == [("b.example", 99)] * 2
        assert answers == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("b.invalid:99", "its name cannot be resolved: Name or service not known"),
        ("nonsense", "its address is not HOST:PORT"),
        ("[::1", "its address is not HOST:PORT"),
        ("b" * 70 + ".example:1", "its name cannot be resolved: "),
        ("255.255.255.255:9", ""),
    ],
)
def test_addresses_that_lead_nowhere_are_said_once(address, reason, caplog):
    def resolve(host: str, port: int) -> list[Target]:
        if len(host) > 63:
            raise UnicodeError("label too long")
        raise OSError(-2, "Name or service not known")

    caplog.set_level("INFO")
    a = TcpNode(info("a"), resolve=resolve)
    with tcp_nodes(a):
        a.knows(b=address)
        drive(a, until=lambda: bool(caplog.records))
        retry_s = a.peers.wait_s()
        assert retry_s is not None
        drive(a, until=lambda: (a.peers.wait_s() or 0) > 2 * retry_s)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"peers.unreachable name=b address={address} reason={reason}")


def test_a_resolver_that_hangs_is_not_waited_for_for_ever(caplog):
    caplog.set_level("INFO")
    clock, gate = SimulatedClock(), threading.Event()

    def resolve(host: str, port: int) -> list[Target]:
        gate.wait()
        return []

    a = TcpNode(info("a"), resolve=resolve, clock=clock)
    with tcp_nodes(a):
        a.knows(b="b.example:99")
        settle(a)
        assert a.peers.wait_s() == 2.0
        clock.advance(2_000)
        drive(a, until=lambda: bool(caplog.records))
        gate.set()
        settle(a)
    assert [record.getMessage() for record in caplog.records] == [
        "peers.unreachable name=b address=b.example:99 "
        "reason=its name takes too long to be resolved"
    ]


def test_numbers_of_ipv6_are_addresses_too():
    try:
        b = TcpNode(info("b"), listen="[::1]:0")
    except OSError:
        pytest.skip("no IPv6 on this machine")
    a = TcpNode(info("a"))
    with tcp_nodes(a, b):
        assert b.peers.address.startswith("[::1]:")
        a.knows(b)
        b.knows(a)
        drive(a, b, until=lambda: a.sees(b) and b.sees(a))


def test_closing_again_or_speaking_to_one_that_is_closed_does_nothing():
    with tcp_cluster("a", "b") as (a, b):
        a.peers.close()
        a.peers.close()
        a.knows(b)
        a.peers.set_cluster_id("cluster")
        a.peers.set_description(b"any")
        assert a.peers.connected() == {}
        drive(b, until=lambda: not b.sees(a))


def test_a_machine_without_descriptors_is_asked_again_later(caplog):
    clock = SimulatedClock()
    a = TcpNode(info("a"), clock=clock)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tcp_nodes(a):
        drive(a, until=lambda: not readable(a))
        with caller(a) as sock:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                drive(a, until=lambda: bool(caplog.records))
                # The node does not spin on connections that it cannot accept.
                spins = readable(a)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert not spins
            (line,) = [record.getMessage() for record in caplog.records]
            assert line == "peers.accept_failed reason=Too many open files"
            sock.send(b"GET / HTTP/1.1")
            clock.advance(1_000)
            read_to_end(sock, a)


def test_a_socket_that_is_connected_to_itself_is_not_connected():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        connection = PeerConnection(sock, "", dialed="b", now_s=0, deadline_s=1)
        assert connection.connect_error() == errno.ECONNREFUSED


def test_an_address_that_is_taken_cannot_be_listened_at():
    a = TcpNode(info("a"))
    with tcp_nodes(a), pytest.raises(OSError, match="uses port"):
        TcpNode(info("b"), listen=a.peers.address)
