"""Power loss at every commit point of a short workload: every answer still holds afterwards.

The real host and two real partitions (a queue and its dead queue) run on the environment in memory,
which forgets what was not synced. The power fails at the n-th commit, before or after it is
durable, for every n. Then the client continues where it was, and repeats unanswered calls with the
same identity.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from querator.model.commands import (
    Complete,
    Configure,
    DeadTarget,
    Lease,
    LeaseCaller,
    LeaseGrant,
    LeaseItems,
    LeaseResult,
    Move,
    MoveDone,
    PartitionSettings,
    Produce,
    ProduceResult,
    Retry,
    SettleResult,
)
from querator.model.errors import QueratorError
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.partition import invariants, queries
from querator.partition.machine import PartitionMachine
from querator.partition.outbox import outbox_batch
from querator.raft.clock import SimulatedClock
from querator.raft.host import Host
from querator.storage.memory_environment import MemoryEnvironment

QUEUE, DEAD = GroupId(1), GroupId(2)
PRODUCER = bytes.fromhex("018bcfe5680070008000000000000001")
"""A UUIDv7 born when the simulated clock starts."""
ITEM = b"\x7a\x03\x0a\x01x"
ITEMS = 10
POINTS = ("commit", "sync", "synced")
"""Before anything changes; before the commit is durable; when it is durable, but not yet
reported.
"""


class PowerLoss(Exception):
    pass


class PowerLossAt:
    """Cuts the power the n-th time that a commit comes to `point`."""

    def __init__(self, point: str, number: int) -> None:
        self._point = point
        self._left = number

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                raise PowerLoss


class Node:
    """Host and partitions between two power losses."""

    def __init__(self, environment: MemoryEnvironment, clock: SimulatedClock) -> None:
        self.environment = environment
        self.failed = asyncio.Event()
        self.host = Host(environment, clock=clock, events=self)

    def on_effects(self, group: GroupId, effects: Any) -> None: ...
    def on_leadership(self, group: GroupId, leads: bool) -> None: ...
    def on_leader(self, group: GroupId, node: NodeKey | None) -> None: ...
    def on_damage(self, group: GroupId, index: int, part: int) -> None: ...

    def on_quarantine(self, group: GroupId, error: BaseException) -> None: ...
    def on_hang(self, hangs: bool) -> None: ...
    def on_failure(self, error: BaseException) -> None:
        self.failed.set()

    async def start(self) -> None:
        await self.host.start()
        for group in (QUEUE, DEAD):
            await self.host.create_group(group, PartitionMachine(group))

    async def ask(self, group: GroupId, command: Any, attachment: bytes = b"") -> Any:
        return await self.host.propose(group, command, attachment)


class Client:
    """Lives through power losses. `answers` holds the answers it received; a step with an answer is
    done.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}

    async def live(self, node: Node) -> None:
        """Continues until the end of the workload, or raises QueratorError when the power fails."""
        for name, step in self.steps():
            if name not in self.answers:
                self.answers[name] = await step(node)

    def steps(self) -> list[tuple[str, Callable[[Node], Awaitable[Any]]]]:
        return [
            ("configure", self._configure),
            ("produce 1", lambda node: self._produce(node, 1)),
            ("lease 1", lambda node: self._lease(node, 1, 6)),
            ("produce 2", lambda node: self._produce(node, 2)),
            ("complete 1", lambda node: self._settle(node, 1, Complete, slice(0, 3))),
            ("retry 1", lambda node: self._settle(node, 1, Retry, slice(3, 4))),
            ("reject 1", lambda node: self._settle(node, 1, Retry, slice(4, 6), dead=True)),
            ("move", self._move),
            ("lease 2", lambda node: self._lease(node, 2, 100)),
            ("complete 2", lambda node: self._settle(node, 2, Complete, slice(None))),
        ]

    async def _configure(self, node: Node) -> None:
        for group, targets in ((QUEUE, (DeadTarget("dead", 0, DEAD),)), (DEAD, ())):
            settings = PartitionSettings(
                namespace="default",
                queue="q",
                queue_id=1,
                partition=0,
                lease_timeout_ms=30_000,
                expire_timeout_ms=0,
                max_attempts=0,
                dedup_window_ms=3_600_000,
                items_max=0,
                dead_targets=targets,
            )
            await node.ask(group, Configure(1, settings))

    async def _produce(self, node: Node, sequence: int) -> ProduceResult:
        command = Produce(len(ITEM).to_bytes(4, "little") * ITEMS, PRODUCER, sequence, ordered=True)
        answer = await node.ask(QUEUE, command, ITEM * ITEMS)
        assert isinstance(answer, ProduceResult)
        return answer

    async def _lease(self, node: Node, number: int, items: int) -> LeaseGrant:
        caller = LeaseCaller("client", f"request {number}", items, 1 << 20)
        answer = await node.ask(QUEUE, Lease((caller,)))
        assert isinstance(answer, LeaseResult)
        (grant,) = answer.grants
        assert isinstance(grant, LeaseGrant)
        return grant

    async def _settle(
        self, node: Node, lease: int, verb: Any, which: slice, **options: Any
    ) -> list[int]:
        grant: LeaseGrant = self.answers[f"lease {lease}"]
        seqs = sequences(grant)[which]
        named = LeaseItems(grant.lease, tuple((seq, 1) for seq in seqs))
        answer = await node.ask(QUEUE, verb((named,), **options))
        assert isinstance(answer, SettleResult)
        (outcome,) = answer.outcomes
        settled = [
            seq
            for first, count in (*outcome.done, *outcome.repeated)
            for seq in range(first, first + count)
        ]
        assert sorted(settled) == sorted(seqs)
        assert not outcome.lost
        return seqs

    async def _move(self, node: Node) -> None:
        """Moves items as the mover does, until the outbox is empty."""
        while True:
            with node.environment.snapshot() as snapshot:
                batch = outbox_batch(snapshot, QUEUE)
            if batch is None:
                return
            move = Move(QUEUE, batch.first_move, batch.lengths, batch.items)
            await node.ask(DEAD, move, batch.attachment)
            await node.ask(QUEUE, MoveDone(DEAD, batch.first_move + len(batch.items) - 1))


def sequences(grant: LeaseGrant) -> list[int]:
    return [
        segment.first_seq + bit
        for segment in grant.segments
        for bit in range(segment.mask.bit_length())
        if segment.mask >> bit & 1
    ]


async def live_until_loss(environment: MemoryEnvironment, client: Client) -> bool:
    """Whether the power failed before the end."""
    node = Node(environment, SimulatedClock())
    try:
        await node.start()
        await client.live(node)
    except QueratorError:
        await node.failed.wait()
    await node.host.stop()
    return node.failed.is_set()


def check_state(environment: MemoryEnvironment, client: Client) -> None:
    """Every answer to the client holds after the power loss, and the tables are whole."""
    with environment.snapshot() as snapshot:
        for group in (QUEUE, DEAD):
            assert invariants.check(snapshot, group) == []
        page = queries.peek(snapshot, QUEUE, None, after_seq=0, limit=1000, bytes_max=1 << 20)
        there = {item.seq for item in page.items}
        dead = queries.stats(snapshot, DEAD).ready
    told = client.answers
    for sequence in (1, 2):
        if f"produce {sequence}" in told:
            first = told[f"produce {sequence}"].first_seq
            produced = set(range(first, first + ITEMS))
            ended = {
                seq
                for name in ("complete 1", "reject 1", "complete 2")
                for seq in named(told, name)
            }
            assert produced - ended <= there, "an acknowledged item is gone"
    for name in ("complete 1", "complete 2"):
        assert not set(told.get(name, ())) & there, "a completed item came back"
    if "move" in told:
        assert dead == 2, "each dead letter arrives exactly once"


def named(told: dict[str, Any], name: str) -> list[int]:
    """The items that a settle step names. An unanswered step counts too, because its items may be
    gone.
    """
    lease = told.get(f"lease {name[-1]}")
    parts = {"complete 1": slice(0, 3), "reject 1": slice(4, 6), "complete 2": slice(None)}
    return sequences(lease)[parts[name]] if lease is not None else []


@pytest.mark.parametrize("point", POINTS)
async def test_power_loss_at_every_commit_point(point: str) -> None:
    whole = MemoryEnvironment()
    assert not await live_until_loss(whole, Client())
    commits = whole.commit_points
    assert commits > len(Client().steps()), "each step is a commit of its own"
    losses = 0
    for number in range(1, commits + 1):
        client = Client()
        environment = MemoryEnvironment(faults=PowerLossAt(point, number))
        losses += await live_until_loss(environment, client)
        environment = environment.crash()
        check_state(environment, client)
        assert not await live_until_loss(environment, client)
        after = environment.crash()
        check_state(after, client)
        with after.snapshot() as snapshot:
            stats = queries.stats(snapshot, QUEUE)
        assert (stats.produced, stats.completed, stats.moved_out) == (20, 18, 2)
        assert (stats.ready, stats.leased, stats.moving) == (0, 0, 0)
    assert losses >= commits - 2, "group commit may join a commit or two, not more"
