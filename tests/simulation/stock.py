"""PySyncObj's class as it ships, in the simulated network: the errors that the simulator must find.

Only what the library lets its users replace is replaced (transport, clock, chance, poller,
journal). The journal is perfect: it never loses anything, so every loss that is found here is the
protocol's. The state is the list of values put. A value is acknowledged when its callback reports
SUCCESS.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pysyncobj.syncobj as syncobj
from pysyncobj import FAIL_REASON, SyncObjConf, replicated
from pysyncobj.journal import MemoryJournal
from pysyncobj.pickle import loads

from querator.raft.engine import library
from querator.raft.engine.library import Node, NoPoller, SyncObj, Transport
from tests.simulation.network import Nature, Network
from tests.simulation.timeline import MS, Timeline

TICK_US = 10 * MS


class Value(SyncObj):  # type: ignore[misc]
    """A replicated list."""

    def __init__(self, number: int, others: list[int], conf: Any, transport: Transport) -> None:
        super().__init__(Node(number), [Node(other) for other in others], conf, transport=transport)
        self.values: list[str] = []

    @replicated  # type: ignore[untyped-decorator]
    def put(self, value: str) -> None:
        self.values.append(value)


class _Transport(Transport):  # type: ignore[misc]
    """Hands messages to the simulated network."""

    def __init__(self, member: "StockNode") -> None:
        super().__init__(None, None, [])
        self._member = member

    @property
    def ready(self) -> bool:
        return True

    def tryGetReady(self) -> None: ...

    def addNode(self, node: Node) -> None: ...

    def dropNode(self, node: Node) -> None: ...

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._member.send(node.id, message)
        return True

    def destroy(self) -> None: ...


class _Clock:
    """Each read takes a moment, because the library waits for time to pass inside some of its
    loops.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._spent_us = 0

    def wall_ms(self) -> int:
        return self._timeline.now_us // MS

    def monotonic_s(self) -> float:
        self._spent_us += 20
        return (self._timeline.now_us + self._spent_us) / 1_000_000

    def on_step(self, wake: Any, is_idle: Any) -> None: ...

    def rewind(self) -> None:
        self._spent_us = 0


class StockNode:
    """One process with one `Value`. Its journal outlives it."""

    def __init__(self, cluster: "StockCluster", number: int) -> None:
        self.number = number
        self.name = str(number)
        self._cluster = cluster
        self._journal = MemoryJournal()
        self._clock = _Clock(cluster.timeline)
        self._ticks = False
        self.value: Value | None = None

    @property
    def listening(self) -> bool:
        return self.value is not None

    @property
    def leads(self) -> bool:
        return self.value is not None and bool(self.value._isLeader())

    @property
    def last_index(self) -> int:
        return int(self._journal[-1][1])

    def start(self) -> None:
        cluster = self._cluster
        syncobj.createJournal = lambda _: self._journal
        self._bind()
        others = [number for number in cluster.numbers if number != self.number]
        self.value = Value(self.number, others, cluster.conf(), _Transport(self))
        cluster.network.came_up(self.name)
        self._tick()

    def crash(self) -> None:
        self.value = None
        self._cluster.network.went_down(self.name)

    def _bind(self) -> None:
        self._clock.rewind()
        library.bind(self._clock)

    def _tick(self) -> None:
        if self.value is None or self._ticks:
            return
        self._ticks = True
        self._cluster.timeline.after(TICK_US, self._run)

    def _run(self) -> None:
        self._ticks = False
        if self.value is not None:
            self._bind()
            self.value.doTick(0.0)
            self._tick()

    def put(self, value: str) -> None:
        """Puts a value, which the cluster acknowledges."""
        assert self.value is not None
        self._bind()

        def answered(_: object, reason: int) -> None:
            if reason == FAIL_REASON.SUCCESS:
                self._cluster.acknowledged.append(value)
                self._cluster.timeline.note("acknowledged", value)
                self._cluster.timeline.tell(self.name, f"acknowledges {value}")

        self.value.put(value, callback=answered)

    def held(self) -> set[str]:
        """Values that were applied, or are in the log."""
        assert self.value is not None
        regular = [command for command, _, _ in self._journal[:] if command[:1] == b"\0"]
        return {*self.value.values, *(loads(command[1:])[1][0] for command in regular)}

    def compact(self) -> None:
        assert self.value is not None
        self.value.forceLogCompaction()

    # --- the network's side ------------------------------------------------------------

    def send(self, receiver: int, message: dict[str, Any]) -> None:
        size = 60 + sum(len(entry[0]) for entry in message.get("entries", ()))
        self._cluster.network.send(self.name, str(receiver), message, size=size)

    def on_connected(self, peer: str) -> None:
        self._call("_onNodeConnected", peer)

    def on_disconnected(self, peer: str) -> None:
        self._call("_onNodeDisconnected", peer)

    def on_quiet(self, peer: str) -> None:
        """Does nothing: the library has no such call."""

    def on_message(self, peer: str, message: dict[str, Any]) -> None:
        self._call("_onMessageReceived", peer, message)

    def _call(self, name: str, peer: str, *message: dict[str, Any]) -> None:
        if self.value is not None:
            self._bind()
            transport = self.value._SyncObj__transport
            getattr(transport, name)(Node(int(peer)), *message)


class StockCluster:
    """Nodes 1 to `count`, started. Use it within `stock_library`."""

    def __init__(
        self, count: int, *, seed: int = 0, batch_bytes: int = 1 << 16, nature: Nature | None = None
    ) -> None:
        self.chance = random.Random(seed)
        self.timeline = Timeline()
        self.network: Network[dict[str, Any]] = Network(
            self.timeline, self.chance, nature or Nature()
        )
        self.network.digest = lambda message: message["type"]
        self.numbers = list(range(1, count + 1))
        self._batch_bytes = batch_bytes
        self.acknowledged: list[str] = []
        self.nodes = [StockNode(self, number) for number in self.numbers]
        for node in self.nodes:
            self.network.add(node.name, node)
        syncobj.random = random.Random(seed)
        for node in self.nodes:
            node.start()

    def conf(self) -> Any:
        """The library's defaults, except for what the simulation controls."""
        return SyncObjConf(
            autoTick=False,
            appendEntriesBatchSizeBytes=self._batch_bytes,
            commandsWaitLeader=False,
            logCompactionMinTime=1_000_000,
        )

    def run(self, duration_us: int) -> None:
        self.timeline.run(self.timeline.now_us + duration_us)

    def until(self, what: Any, *, within_us: int, step_us: int = MS) -> None:
        limit_us = self.timeline.now_us + within_us
        while not what():
            assert self.timeline.now_us < limit_us, "it did not come to that"
            self.run(step_us)

    def leader(self) -> StockNode | None:
        """The leader of the highest term."""
        leaders = [node for node in self.nodes if node.leads]
        return max(leaders, key=lambda node: node.value.raftCurrentTerm, default=None)  # type: ignore[union-attr]

    def elect(self, among: list[StockNode] | None = None) -> StockNode:
        """Waits for a leader (one of `among`)."""
        found: list[StockNode] = []

        def there() -> bool:
            leader = self.leader()
            if leader is not None and (among is None or leader in among):
                found.append(leader)
            return bool(found)

        self.until(there, within_us=60_000 * MS)
        return found[0]

    def isolate(self, node: StockNode) -> None:
        for other in self.nodes:
            if other is not node:
                self.network.block(node.name, other.name)
                self.network.block(other.name, node.name)
                self.network.cut(node.name, other.name)

    def values(self) -> list[list[str]]:
        return [[] if node.value is None else node.value.values for node in self.nodes]

    def violations(self) -> list[str]:
        """Violations after the network has healed and the nodes had time."""
        leader = self.leader()
        if leader is None:
            return ["there is no leader"]
        has = leader.held()
        found = [
            f"{value} was acknowledged, and the leader does not have it"
            for value in self.acknowledged
            if value not in has
        ]
        lists = [node.value.values for node in self.nodes if node.value is not None]
        longest = max(lists, key=len)
        if any(values != longest for values in lists):
            found.append("the replicas have not converged")
        if any(values != longest[: len(values)] for values in lists):
            found.append("replicas have applied different values at one place")
        return found


def random_run(seed: int, *, steps: int = 150) -> list[str]:
    """Puts load on the leaders under random cuts, blocks, crashes and compactions, then has 20 s of
    peace.

    Returns the violations.
    """
    chance = random.Random(f"stock {seed}")
    nature = Nature(jitter_us=chance.choice((200, 20_000)))
    cluster = StockCluster(3, seed=seed, batch_bytes=120, nature=nature)
    network = cluster.network
    compacts = chance.random() < 0.5
    for step in range(steps):
        one, other = chance.sample(cluster.nodes, 2)
        match chance.randrange(12):
            case 0:
                network.block(one.name, other.name)
            case 1 | 2:
                network.heal()
            case 3:
                network.cut(one.name, other.name)
            case 4:
                cluster.isolate(one)
            case 5 if not compacts and one.value is not None:
                one.crash()
                cluster.timeline.after(chance.randrange(3_000) * MS, one.start)
            case 6 if compacts and one.value is not None:
                one.compact()
        for node in cluster.nodes:
            if node.leads:
                for number in range(chance.randrange(8)):
                    node.put(f"{step}.{number} of {node.name}")
        cluster.run(chance.randrange(1, 500) * MS)
    network.heal()
    cluster.run(20_000 * MS)
    return cluster.violations()


@contextmanager
def stock_library() -> Iterator[None]:
    """Replaces the library's module globals during a run."""
    replaced = ("random", "createPoller", "createJournal")
    before = {name: getattr(syncobj, name) for name in replaced}
    syncobj.createPoller = lambda _: NoPoller()
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(syncobj, name, value)
