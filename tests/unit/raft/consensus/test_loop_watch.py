"""A node whose event loop hangs hands its leaderships over, and takes none until the loop works
again.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from querator.model.ids import GroupId
from querator.model.nodes import Replica
from querator.raft.clock import RealClock
from querator.raft.consensus import loop_watch
from querator.raft.consensus.loop_watch import BEAT_S, LOOP_HANGS_S, LoopWatch
from querator.raft.group.leadership import TRANSFER_TIMEOUT_S
from querator.raft.host import Host
from querator.raft.requests import Leadership, Transfer
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.fake_machine import EventRecorder, RegisterMachine
from tests.unit.raft.raft_cluster import RaftCluster, future, key
from tests.unit.raft.tcp_cluster import TcpNode, info, tcp_nodes

G = GroupId(1)


class Watched:
    """A raft thread that checks, and a loop that executes beats unless it is blocked."""

    def __init__(self) -> None:
        self.watch = LoopWatch()
        self.now_s = 1_000.0
        self.blocked = False
        self.waiting = False

    def look(self) -> None:
        if self.watch.check(self.now_s):
            assert not self.waiting, "there is one beat at a time"
            self.waiting = True
        if self.waiting and not self.blocked:
            self.waiting = False
            self.watch.beat()

    def passes(self, seconds: float, *, step_s: float = BEAT_S) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += step_s
            self.look()


def blocked_for(seconds: float, *, step_s: float = BEAT_S) -> Watched:
    watched = Watched()
    watched.look()
    watched.passes(5)
    watched.blocked = True
    watched.passes(seconds, step_s=step_s)
    return watched


@pytest.mark.parametrize("step_s", [0.001, 0.1, BEAT_S])
def test_a_loop_that_is_blocked_hangs_until_it_goes_on(step_s: float) -> None:
    assert not blocked_for(LOOP_HANGS_S - BEAT_S, step_s=step_s).watch.hangs
    watched = blocked_for(LOOP_HANGS_S + 2 * BEAT_S, step_s=step_s)
    assert watched.watch.hangs
    watched.passes(60)
    assert (watched.watch.hangs, watched.watch.hung) == (True, 1)
    watched.blocked = False
    watched.passes(2 * BEAT_S)
    assert (watched.watch.hangs, watched.watch.hung) == (False, 1)


def test_a_loop_that_is_late_again_and_again_does_not_hang() -> None:
    watched = Watched()
    for _ in range(20):
        watched.blocked = True
        watched.passes(LOOP_HANGS_S - BEAT_S)
        watched.blocked = False
        watched.passes(2 * BEAT_S)
    assert watched.watch.hung == 0


@pytest.mark.parametrize("paused_s", [1, 20, 86_400])
def test_a_process_that_was_paused_has_no_loop_that_hangs(paused_s: float) -> None:
    watched = blocked_for(BEAT_S)
    # Neither thread has run meanwhile; the beat is executed when both run again.
    watched.now_s += paused_s
    watched.look()
    watched.blocked = False
    watched.passes(2 * BEAT_S)
    assert watched.watch.hung == 0


def test_turns_that_take_long_say_nothing_about_the_loop() -> None:
    assert not blocked_for(30, step_s=10).watch.hangs


def hang(cluster: RaftCluster, name: str, *, hangs: bool = True) -> None:
    turns = cluster.nodes[name].turns
    assert turns is not None
    turns.loop_watch.hangs = hangs
    cluster.turn(cluster.nodes[name])


def test_a_leader_whose_loop_hangs_gives_its_leadership_away() -> None:
    cluster = RaftCluster("a", "b", "c")
    hung = cluster.leader()
    cluster.pass_s(1)
    hang(cluster, hung)
    cluster.until(lambda: cluster.leaders and hung not in cluster.leaders, within_s=1)
    assert cluster.added(1)[0] == 1


def took_office(cluster: RaftCluster, name: str) -> bool:
    return (name, Leadership(G, True)) in cluster.events


def test_it_takes_no_leadership_that_is_given_to_it_until_it_goes_on() -> None:
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.pass_s(1)
    hung = next(name for name in cluster.nodes if name != leader)
    hang(cluster, hung)
    cluster.ask(leader, Transfer(G, key(hung), future()))
    cluster.pass_s(TRANSFER_TIMEOUT_S + 1)
    assert cluster.leaders == [leader]
    assert not took_office(cluster, hung)
    hang(cluster, hung, hangs=False)
    cluster.ask(leader, Transfer(G, key(hung), future()))
    cluster.until(lambda: cluster.leaders == [hung], within_s=1)


@pytest.mark.parametrize("seed", range(6))
def test_it_leaves_elections_to_the_others(seed: int) -> None:
    cluster = RaftCluster("a", "b", "c", seed=seed)
    gone = cluster.leader()
    cluster.pass_s(1)
    hung, other = (name for name in cluster.nodes if name != gone)
    hang(cluster, hung)
    cluster.stop(gone)
    cluster.until(lambda: cluster.leaders)
    assert cluster.leaders == [other]
    assert not took_office(cluster, hung)


def test_when_it_alone_has_the_whole_log_it_brings_another_one_up_to_date() -> None:
    cluster = RaftCluster("a", "b", "c")
    first = cluster.leader()
    cluster.pass_s(1)
    hung, behind = (name for name in cluster.nodes if name != first)
    cluster.separate(behind)
    cluster.added(1)
    hang(cluster, hung)
    cluster.stop(first)
    cluster.heal()
    cluster.until(lambda: cluster.leaders == [behind])
    assert took_office(cluster, hung)
    assert cluster.added(2)[0] == 3


class Running:
    """A host on an event loop of its own, in a thread of its own."""

    def __init__(self, tcp_node: TcpNode, replicas: tuple[Replica, ...]) -> None:
        self.owner = EventRecorder()
        self._station = tcp_node
        self._replicas = replicas
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self.host: Host | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        self.host = host = Host(
            MemoryEnvironment(),
            clock=RealClock(),
            events=self.owner,
            node=self._station.key,
            peers=self._station.peers,
        )
        await host.start()
        await host.create_group(G, RegisterMachine(G), self._replicas)
        await self._ended.wait()
        await host.stop()

    def leads(self) -> bool:
        """Whether the group leads by the status of the raft thread: the loop may hang."""
        status = None if self.host is None else self.host.status(G)
        return status is not None and status.leads

    def on_loop(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        self.on_loop(self._ended.set)
        self._thread.join()
        self._loop.close()


@contextmanager
def three() -> Iterator[list[Running]]:
    made = [TcpNode(info(name)) for name in "abc"]
    for tcp_node in made:
        tcp_node.knows(*made)
    replicas = tuple(Replica(number, tcp_node.key) for number, tcp_node in enumerate(made, 1))
    running = [Running(tcp_node, replicas) for tcp_node in made]
    with tcp_nodes(*made):
        for one in running:
            one.start()
        try:
            yield running
        finally:
            for one in running:
                one.stop()


def wait_until(what: Callable[[], object]) -> None:
    """Waits until `what()` is true. The test's timeout bounds the wait."""
    while not what():
        threading.Event().wait(0.01)


def test_a_real_loop_that_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "LOOP_HANGS_S", 0.3)
    monkeypatch.setattr(loop_watch, "BEAT_S", 0.1)
    with three() as running:
        wait_until(lambda: any(one.leads() for one in running))
        blocked = next(one for one in running if one.leads())
        gate = threading.Event()
        blocked.on_loop(gate.wait)
        try:
            wait_until(lambda: any(one.leads() for one in running if one is not blocked))
            wait_until(lambda: not blocked.leads())
            assert blocked.host is not None
            assert blocked.host.loop_hangs == 1
        finally:
            gate.set()
        wait_until(lambda: (G, False) in blocked.owner.leadership)
