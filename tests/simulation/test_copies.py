"""A node's disk is an older image of itself, in the simulator. The turns, the memory of starts and
its judgement are the real ones.
"""

from dataclasses import replace

import pytest

from querator.model.commands import Produce
from querator.model.entries import Proposal
from querator.raft.requests import Call
from querator.raft.starts import StartMemory
from tests.simulation.disk import PowerLoss
from tests.simulation.node import Ticket
from tests.simulation.test_schedules import THREE, G
from tests.simulation.timeline import MS, SECOND
from tests.simulation.world import World

ITEMS = 30


class Copied:
    """Of three nodes one has an image from before its last start, or from while it ran."""

    def __init__(self, *, running: bool) -> None:
        self.world = World(1, profile=replace(THREE, starts=True))
        self.world._begin()
        found = self.world.leader(G)
        assert found is not None
        self.leader = found[0]
        self.copied, self.third = (
            node for node in self.world.all_nodes() if node is not self.leader
        )
        if running:
            image = self.copied.disk.image()
        else:
            self.copied.crash()
            image = self.copied.disk.image()
            self.copied.start()
        self.acknowledged = 0
        # Longer than the interval between two marks.
        self.world._run_for(12 * SECOND)
        self.third.crash()
        self._load()
        self.leader.crash()
        self.copied.crash()
        self.copied.disk.put_back(image)
        self.world.checks.put_back(self.copied)
        self.copied.start()
        self.third.start()
        self.world._run_for(10 * SECOND)

    def _load(self) -> None:
        for number in range(ITEMS):
            payload = b"item %d, which is not long\n" % number
            command = Produce(len(payload).to_bytes(4, "little"))
            ticket = Ticket("produce", self._answered)
            self.leader.request(Call(G, Proposal(command, payload), ticket.future, 256))
            self.world._run_for(20 * MS)
        assert self.acknowledged == ITEMS

    def _answered(self, _: object, error: BaseException | None) -> None:
        self.acknowledged += error is None

    def end(self) -> None:
        """The former leader comes back. It has everything that was acknowledged."""
        self.leader.start()
        self.world._until(lambda: self.world.leader(G) is not None, within_us=20 * SECOND)


@pytest.mark.parametrize("running", [False, True], ids=["before a start", "while it ran"])
def test_an_older_image_of_a_disk_is_refused_and_nothing_is_lost(running: bool):
    trial = Copied(running=running)
    assert "old copy" in trial.copied.refused
    assert not trial.copied.up
    assert trial.world.leader(G) is None
    trial.end()
    assert trial.world.checks.violations == []
    found = trial.world.leader(G)
    assert found is not None
    assert found[0] is trial.leader


@pytest.mark.parametrize("running", [False, True], ids=["before a start", "while it ran"])
def test_without_the_judgement_promises_are_broken_and_it_is_seen(
    running: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(StartMemory, "judge", lambda self, node, starts: None)
    trial = Copied(running=running)
    # A vote was forgotten, or acknowledged entries were.
    assert any(
        "two leaders in term" in found or "is committed" in found
        for found in trial.world.checks.violations
    )


def test_a_power_loss_that_is_armed_waits_for_a_process():
    disk = Copied(running=False).copied.disk
    for armed in ("sync", "synced"):
        disk.armed = armed
        disk.put_back(disk.image())
        txn = disk.environment.begin()
        txn.put(b"key", b"value")
        with pytest.raises(PowerLoss):
            txn.commit(sync=True)
