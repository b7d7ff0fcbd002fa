"""Faults: each begins at a random instant, and most end by themselves.

A world without faults for a while must come to rest: `heal` ends all faults.
"""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from querator.model.limits import DAY_MS
from tests.simulation.network import Network
from tests.simulation.node import SimulatedNode
from tests.simulation.profile import Profile
from tests.simulation.timeline import MS, SECOND, Timeline


class Grounds(Protocol):
    """What faults happen to."""

    timeline: Timeline
    network: Network[bytes]
    profile: Profile

    def all_nodes(self) -> list[SimulatedNode]: ...

    def alive(self) -> list[SimulatedNode]: ...

    def may_lose_a_disk(self) -> bool: ...

    def lose_disk(self, node: SimulatedNode) -> None: ...

    def leader_of_any(self) -> SimulatedNode | None: ...


class Faults:
    def __init__(self, grounds: Grounds, chance: random.Random) -> None:
        self._grounds = grounds
        self._chance = chance
        self._timeline = grounds.timeline
        self._over = False
        self._jumped: SimulatedNode | None = None
        self.happened: dict[str, int] = {}

    def begin(self) -> None:
        self._plan()

    def heal(self) -> None:
        """Ends all faults, at once or in the next moments."""
        self._over = True
        self._timeline.note("heal")
        self._timeline.tell("WORLD", "HEALS")
        self._grounds.network.heal()
        self._jump_back()
        for node in self._grounds.all_nodes():
            node.disk.armed = ""
            node.disk.hangs_us = 0
            node.disk.sync_us = self._grounds.profile.sync_us
            node.disk.empty()
            if node.paused:
                node.resume()
            self._start(node, at_most_us=500 * MS)

    # --- when and whom -----------------------------------------------------------------

    def _plan(self) -> None:
        profile = self._grounds.profile
        if profile.faults:
            pause_us = int(self._chance.expovariate(1 / profile.fault_every_us)) + 1
            self._timeline.after(pause_us, self._strike)

    def _strike(self) -> None:
        if self._over:
            return
        kind = self._chance.choice(self._grounds.profile.faults)
        self.happened[kind] = self.happened.get(kind, 0) + 1
        self._timeline.note("fault", kind)
        self._timeline.tell("WORLD", f"fault: {kind}")
        getattr(self, "_" + kind.replace(" ", "_"))()
        self._plan()

    def _node(self) -> SimulatedNode:
        """Chooses a node, often one that leads."""
        leader = self._grounds.leader_of_any()
        if leader is not None and self._chance.random() < 0.5:
            return leader
        return self._chance.choice(self._grounds.all_nodes())

    def _pair(self) -> tuple[str, str]:
        one = self._node()
        others = [node for node in self._grounds.all_nodes() if node is not one]
        other = self._chance.choice(others) if others else one
        if self._chance.random() < 0.5:
            return one.key, other.key
        return other.key, one.key

    def _lasting(self, most_us: int = 6 * SECOND) -> int:
        """Draws a duration. Short ones are frequent."""
        return int(most_us * self._chance.random() ** 2) + 1

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        """Does it after `delay_us`, unless everything has been healed before."""
        self._timeline.after(delay_us, lambda: None if self._over else action())

    def _start(self, node: SimulatedNode, *, at_most_us: int) -> None:
        def start() -> None:
            if not node.up and not node.gone:
                node.start()

        self._timeline.after(self._chance.randrange(at_most_us) + 1, start)

    # --- the network ---------------------------------------------------------------------

    def _cut(self) -> None:
        one, other = self._pair()
        if one != other:
            self._grounds.network.cut(one, other)

    def _block_ways(self, ways: Sequence[tuple[str, str]], lasting_us: int) -> None:
        network = self._grounds.network
        for sender, receiver in ways:
            network.block(sender, receiver)

        def end() -> None:
            for sender, receiver in ways:
                network.unblock(sender, receiver)

        self._later(lasting_us, end)

    def _block(self) -> None:
        one, other = self._pair()
        if one != other:
            self._block_ways([(one, other)], self._lasting())

    def _part(self) -> None:
        """Two halves that do not hear each other, or one half that does not hear the other."""
        keys = [node.key for node in self._grounds.all_nodes()]
        self._chance.shuffle(keys)
        if len(keys) < 2:
            return
        place = self._chance.randrange(1, len(keys))
        ways = [(one, other) for one in keys[:place] for other in keys[place:]]
        if self._chance.random() < 0.7:
            ways += [(other, one) for one, other in ways]
        if self._chance.random() < 0.5:
            for one, other in ways:
                self._grounds.network.cut(one, other)
        self._block_ways(ways, self._lasting())

    def _slow_link(self) -> None:
        one, other = self._pair()
        if one == other:
            return
        network = self._grounds.network
        network.slow(
            one,
            other,
            extra_us=self._chance.choice((50, 500, 3_000)) * MS,
            bytes_per_s=self._chance.choice((20_000, 200_000, 0)),
        )
        self._later(self._lasting(), lambda: network.slow(one, other))

    def _away(self) -> None:
        """One node is away for long, while the others work."""
        node = self._node()
        others = [other.key for other in self._grounds.all_nodes() if other is not node]
        ways = [(node.key, other) for other in others] + [(other, node.key) for other in others]
        for other in others:
            self._grounds.network.cut(node.key, other)
        self._block_ways(ways, self._chance.randrange(6, 15) * SECOND)

    # --- processes and machines ------------------------------------------------------------

    def _crash(self) -> None:
        node = self._node()
        node.crash(silent=self._chance.random() < 0.3)
        self._start(node, at_most_us=self._lasting() + 1)

    def _crash_at_sync(self) -> None:
        node = self._node()
        node.disk.armed = self._chance.choice(("sync", "synced"))
        # An idle node makes no commit that could fail, so it is stopped here anyway.
        self._later(self._lasting(SECOND), lambda: self._down(node))

    def _down(self, node: SimulatedNode) -> None:
        if node.up:
            node.crash(silent=True)
            self.stopped(node)

    def stopped(self, node: SimulatedNode) -> None:
        """The node stopped by a fault. It is started again."""
        self._start(node, at_most_us=self._lasting() + 1)

    def _pause(self) -> None:
        node = self._node()
        node.pause()
        self._later(self._lasting(), node.resume)

    def _restart_all(self) -> None:
        for node in self._grounds.all_nodes():
            node.crash()
            self._start(node, at_most_us=self._chance.choice((1, 100 * MS, 2 * SECOND)))

    def _power_loss(self) -> None:
        """All nodes stop. Each keeps what was synced, or also what it was about to sync."""
        for node in self._grounds.all_nodes():
            node.disk.armed = self._chance.choice(("sync", "synced"))

        def off() -> None:
            for node in self._grounds.all_nodes():
                self._down(node)

        self._later(self._chance.randrange(1, 30 * MS), off)

    # --- clocks and disks ------------------------------------------------------------------

    def _step_clock(self) -> None:
        difference_ms = self._chance.choice((-1_500, -100, 100, 1_500))
        self._node().clock.step(difference_ms)

    def _jump_clock(self) -> None:
        """A clock jumps by weeks or years, and back; one clock at a time. Often the node starts
        with it.
        """
        if self._jumped is not None:
            return
        node = self._jumped = self._node()
        node.clock.jump(self._chance.choice((-400, -30, 30, 400)) * DAY_MS)
        self._later(self._chance.randrange(1, 8) * SECOND, self._jump_back)
        if node.up and self._chance.random() < 0.6:
            node.crash()
            self._start(node, at_most_us=500 * MS)

    def _jump_back(self) -> None:
        if self._jumped is not None:
            self._jumped.clock.jump(0)
            self._jumped = None

    def _drift(self) -> None:
        self._node().clock.set_drift(self._chance.randrange(-20_000, 20_000))

    def _slow_disk(self) -> None:
        node = self._node()
        node.disk.sync_us = self._chance.choice((20, 200, 1_000)) * MS
        usual_us = self._grounds.profile.sync_us

        def end() -> None:
            node.disk.sync_us = usual_us

        self._later(self._lasting(), end)

    def _failing_disk(self) -> None:
        self._node().disk.armed = "failed"

    def _full_disk(self) -> None:
        node = self._node()
        node.disk.fill(free_bytes=self._chance.choice((1_000, 80_000, 300_000)))
        self._later(self._lasting(), node.disk.empty)

    def _lost_disk(self) -> None:
        """An empty machine replaces one. Only when everything is whole: one at a time."""
        if self._grounds.may_lose_a_disk():
            self._grounds.lose_disk(self._node())
