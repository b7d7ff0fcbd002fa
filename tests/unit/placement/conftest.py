from collections.abc import Sequence
from typing import Any

import pytest

from querator.model.entries import Proposal
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.placement.map.commands import Command, FormCluster
from querator.placement.map.machine import PlacementEffects, PlacementMachine
from querator.storage.memory_environment import MemoryEnvironment


def node(name: str, incarnation: str = "1", **more: Any) -> PlacedNode:
    fields = {"peer_address": f"{name}:4471", "client_address": f"{name}:4470", **more}
    return PlacedNode(name, incarnation, **fields)


class Group:
    """The placement machine with a log of its own, without raft: the class takes raft's place.

    `nodes` are the names of the founding nodes; empty: the cluster is not formed.
    """

    def __init__(self, nodes: str = "a") -> None:
        self.environment = MemoryEnvironment()
        self.machine = PlacementMachine()
        self.log: list[bytes] = []
        self.now_ms = 1_000
        self.effects: PlacementEffects = self.recovered()
        if nodes:
            self.propose(FormCluster("c", tuple(node(name) for name in nodes)))

    @property
    def map(self) -> PlacementMap:
        return self.effects.map

    def recovered(self) -> PlacementEffects:
        with self.environment.snapshot() as snapshot:
            effects = self.machine.recover(snapshot).effects
        assert isinstance(effects, PlacementEffects)
        return effects

    def propose(self, command: Command) -> Any:
        """Proposes a command alone in its entry, and returns its result."""
        return self.propose_all([command])[0]

    def propose_all(self, commands: Sequence[Command]) -> tuple[Any, ...]:
        proposals = [Proposal(command) for command in commands]
        return self.apply(self.machine.pack(proposals, self.now_ms).command)

    def apply(self, entry: bytes) -> tuple[Any, ...]:
        self.log.append(entry)
        txn = self.environment.begin()
        applied = self.machine.apply(txn, len(self.log), 1, entry, log_first=1)
        txn.commit(sync=True)
        assert applied.due_ms is None
        self.effects = applied.effects
        return applied.results

    def restart(self) -> None:
        """Opens the same rows with a machine that has no memory."""
        self.machine = PlacementMachine()
        self.effects = self.recovered()

    def digest(self) -> bytes:
        with self.environment.snapshot() as snapshot:
            return self.machine.digest(snapshot)


@pytest.fixture
def group() -> Group:
    return Group()
