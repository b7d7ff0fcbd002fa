"""What a node remembers of other nodes' starts, in handshakes and in turns."""

import random
import threading
from collections.abc import Sequence

import msgspec
import pytest

from querator.model.limits import START_MARK_MS, STARTS_MET_MAX
from querator.model.nodes import NodeKey, node_key
from querator.model.starts import Met, NodeStart, Starts, marked, next_starts
from querator.raft.clock import SimulatedClock
from querator.raft.engine import library
from querator.raft.messages import Meetings, PeerMessage
from querator.raft.peers import Connected, Disconnected, Received
from querator.raft.refusals import Code, PeerRefused
from querator.raft.starts import StartMemory
from querator.raft.tcp.hello import PeerInfo
from querator.raft.tcp.local_hello import OLD_COPY_S
from querator.raft.tcp.query import QueryRefused, query
from querator.raft.turn.turn import Turns
from querator.storage import starts as rows
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.tcp_cluster import TOKEN, TcpNode, drive, info, tcp_nodes

A, B, C = (node_key(name, "1") for name in "abc")
ONCE = (NodeStart(1, 1),)
FIRST = (NodeStart(1, 11), NodeStart(2, 22))
LATER = (*FIRST, NodeStart(3, 33))
TWIN = (NodeStart(1, 11), NodeStart(2, 99))


def memory(node: NodeKey = A, *met: Met, own: Starts = ONCE) -> StartMemory:
    kept = {one.node.partition("/")[0]: one for one in (Met(node, own), *met)}
    return StartMemory(node, kept)


def refusal(starts: StartMemory, node: NodeKey, told: Starts) -> str:
    with pytest.raises(PeerRefused) as caught:
        starts.judge(node, told)
    assert caught.value.code is Code.OLD_COPY
    return caught.value.reason


# --- the judgement -----------------------------------------------------------------------------


def test_a_node_that_was_never_met_is_let_in_and_remembered():
    starts = memory()
    starts.judge(B, FIRST)
    starts.meet(B, FIRST)
    assert starts.known(B) == FIRST
    assert starts.changed
    starts.judge(B, FIRST)
    starts.judge(B, LATER)


def test_an_image_that_lacks_what_was_met_is_refused():
    starts = memory(A, Met(B, LATER))
    assert "old copy: a has seen start 3 of it, and this is start 2" in refusal(starts, B, FIRST)
    assert "old copy: a has seen another start 3 of it" in refusal(
        starts, B, (*FIRST, NodeStart(3, 99), NodeStart(4, 98))
    )
    assert "no record of its starts" in refusal(starts, B, ())
    assert starts.known(B) == LATER
    assert not starts.changed


def test_an_image_that_was_made_while_the_node_ran_is_refused():
    image = (*FIRST, NodeStart(3, 33, 4))
    starts = memory(A, Met(B, marked(image)))
    told = next_starts(image, boots=4, nonce=44)
    assert "seen start 3 of it after the copy was made" in refusal(starts, B, told)
    starts.judge(B, next_starts(marked(image), boots=4, nonce=44))


def test_other_data_under_the_same_name_is_not_judged_by_it():
    starts = memory(A, Met(B, LATER))
    other = node_key("b", "2")
    starts.judge(other, (NodeStart(1, 5),))
    starts.meet(other, (NodeStart(1, 5),))
    assert starts.known(other) == (NodeStart(1, 5),)
    assert starts.known(B) == ()


def test_what_others_have_met_counts_and_contradictions_end_the_same_way_everywhere():
    one, other = memory(A, Met(C, FIRST)), memory(B, Met(C, TWIN))
    one.learn([Met(C, TWIN)])
    other.learn([Met(C, FIRST)])
    assert one.known(C) == other.known(C)
    assert sorted((one.version, other.version)) == [0, 1]


def test_nobody_is_told_by_others_what_its_own_starts_are():
    starts = memory(A, own=FIRST)
    starts.learn([Met(A, LATER), Met(node_key("a", "2"), LATER), Met(B, ())])
    assert starts.own == FIRST
    assert starts.all() == (Met(A, FIRST),)
    assert not starts.changed


def test_what_is_remembered_is_bounded():
    starts = memory()
    for number in range(STARTS_MET_MAX + 5):
        starts.meet(node_key(f"n{number}", "1"), FIRST)
    environment = MemoryEnvironment()
    txn = environment.begin()
    starts.flush(txn)
    txn.commit(sync=True)
    with environment.snapshot() as snapshot:
        kept = rows.read(snapshot)
    assert len(starts.all()) == STARTS_MET_MAX
    assert starts.own == (NodeStart(1, 1),)
    assert f"n{STARTS_MET_MAX + 4}" in kept
    assert "n0" not in kept


# --- the handshake -----------------------------------------------------------------------------


def tcp_node(
    node: NodeKey,
    starts: StartMemory,
    told: list[str] | None = None,
    clock: SimulatedClock | None = None,
) -> TcpNode:
    on_old_copy = None if told is None else told.append
    return TcpNode(info(node[0]), starts=starts, on_old_copy=on_old_copy, clock=clock)


@pytest.mark.parametrize("names", ["ab", "ba"], ids=["it is dialed", "it dials"])
def test_an_old_copy_is_not_connected_and_is_told_why(names: str, caplog):
    knows, comes = (node_key(name, "1") for name in names)
    told: list[str] = []
    one = tcp_node(knows, memory(knows, Met(comes, LATER)))
    other = tcp_node(comes, memory(comes, own=FIRST), told)
    with tcp_nodes(one, other):
        one.knows(other)
        other.knows(one)
        drive(one, other, until=lambda: bool(told))
        reason = f"the data of node {comes[0]} is an old copy"
        assert reason in told[0]
        assert one.events == []
        assert other.links(one) in ([], [Connected], [Connected, Disconnected])
        assert reason in one.peers.old_copies()[comes[0]]
    assert "code=old_copy" in caplog.text


def test_whoever_is_let_in_is_remembered_and_says_its_own_starts():
    mine, theirs = memory(A, own=LATER), memory(B, own=FIRST)
    one, other = tcp_node(A, mine), tcp_node(B, theirs)
    with tcp_nodes(one, other):
        one.knows(other)
        other.knows(one)
        drive(one, other, until=lambda: one.sees(other) and other.sees(one))
    assert mine.known(B) == FIRST
    assert theirs.known(A) == LATER


def test_a_connection_ends_when_a_later_start_is_heard_of():
    mine, theirs = memory(A), memory(B, own=FIRST)
    one, other = tcp_node(A, mine), tcp_node(B, theirs)
    with tcp_nodes(one, other):
        one.knows(other)
        other.knows(one)
        drive(one, other, until=lambda: one.sees(other))
        mine.learn([Met(B, LATER)])
        drive(one, other, until=lambda: not one.sees(other))
        assert "old copy" in one.peers.old_copies()["b"]


def test_a_refused_copy_of_a_connected_node_is_reported_for_a_while():
    """The status named it for ever."""
    clock = SimulatedClock()
    one = tcp_node(A, memory(A, Met(B, LATER)), clock=clock)
    real = tcp_node(B, memory(B, own=LATER), clock=clock)
    copy = msgspec.structs.replace(info("b"), starts=FIRST)
    failures: list[QueryRefused] = []
    with tcp_nodes(one, real):
        one.knows(real)
        real.knows(one)
        drive(one, real, until=lambda: one.sees(real))
        thread = Asking(one.peers.address, copy, failures)
        thread.start()
        drive(one, real, until=lambda: not thread.is_alive())
        assert "old copy" in one.peers.old_copies()["b"]
        clock.advance(int(OLD_COPY_S * 1000) + 1)
        assert one.peers.old_copies() == {}
        drive(one, real, until=lambda: not one.sees(real))
        assert "old copy" in one.peers.old_copies()["b"], "no process has the newest data"


def test_one_that_asks_before_it_starts_is_told_as_well():
    starts = memory(A, Met(B, LATER))
    one = tcp_node(A, starts)
    asks = msgspec.structs.replace(info("b"), starts=FIRST)
    failures: list[QueryRefused] = []
    with tcp_nodes(one):
        thread = Asking(one.peers.address, asks, failures)
        thread.start()
        drive(one, until=lambda: not thread.is_alive())
        assert "old copy" in one.peers.old_copies()["b"]
    assert failures[0].code is Code.OLD_COPY


class Asking(threading.Thread):
    """Queries as a node does that starts."""

    def __init__(self, address: str, asks: PeerInfo, failures: list[QueryRefused]) -> None:
        super().__init__()
        self._address, self._asks, self._failures = address, asks, failures

    def run(self) -> None:
        try:
            query(self._address, TOKEN, 10, info=self._asks)
        except QueryRefused as refused:
            self._failures.append(refused)


# --- the turn ----------------------------------------------------------------------------------


class Post:
    """Records the messages that the turns send."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeKey, Meetings]] = []

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        for message in messages:
            assert isinstance(message, Meetings)
            self.sent.append((node, message))

    def room_bytes(self, node: NodeKey) -> int:
        return 1

    def flush(self) -> None:
        """There is nothing to do: all messages are sent."""


class Running:
    """The turns of node a."""

    def __init__(self, starts: StartMemory) -> None:
        self.environment = MemoryEnvironment()
        self.clock = SimulatedClock()
        self.post = Post()
        self.starts = starts
        library.bind(self.clock)
        self.turns = Turns(
            self.environment,
            clock=self.clock,
            chance=random.Random(1),
            node=A,
            peers=self.post,
            starts=starts,
        )

    def kept(self) -> dict[str, Met]:
        """The starts on disk after a crash, which ends the environment."""
        with self.environment.crash().snapshot() as snapshot:
            return rows.read(snapshot)


def test_a_start_is_on_disk_before_anything_of_it_counts_and_others_are_told():
    running = Running(memory(A, own=FIRST))
    running.turns.turn([], [Connected(B)])
    running.post.sent.clear()
    running.starts.meet(C, LATER)
    running.turns.turn([], [Connected(C)])
    own = Met(A, marked(marked(FIRST)))
    kept = running.kept()
    assert (kept["a"], kept["c"]) == (own, Met(C, LATER))
    assert running.post.sent == [
        (C, Meetings((own, Met(C, LATER)))),
        (B, Meetings((Met(C, LATER), own))),
    ]


def test_what_is_heard_of_others_is_kept():
    running = Running(memory(A))
    running.turns.turn([], [Connected(B), Received(B, [Meetings((Met(C, LATER),))])])
    assert running.turns.wait_s() == 0
    running.turns.turn([])
    assert running.kept()["c"] == Met(C, LATER)
    assert running.starts.known(C) == LATER


def test_a_start_is_marked_again_and_again_while_somebody_sees_it():
    def own(marks: int) -> Met:
        return Met(A, (FIRST[0], NodeStart(2, 22, marks)))

    running = Running(memory(A, own=FIRST))
    running.turns.turn([])
    assert running.turns.wait_s() is None
    running.turns.turn([], [Connected(B)])
    for marks in (2, 3):
        assert running.turns.wait_s() == START_MARK_MS / 1000
        running.clock.advance(START_MARK_MS)
        running.post.sent.clear()
        running.turns.turn([])
        assert running.post.sent == [(B, Meetings((own(marks),)))]
    running.turns.turn([], [Disconnected(B)])
    assert running.turns.wait_s() is None
    assert running.kept()["a"] == own(3)
