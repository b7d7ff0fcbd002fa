"""Recurrences while leaders are killed, one after the other, in virtual time."""

import random

import pytest

from querator.model.ids import GroupId
from tests.simulation.test_whole_mutants import RECURRING
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole import recurring
from tests.simulation.whole.programs import Consuming
from tests.simulation.whole.runs import QUEUE
from tests.simulation.whole.world import WholeWorld

KILLS = 20


class Keeping(recurring.Setting):
    """Makes recurrences, and leaves them alone."""

    async def act(self) -> None:
        if len(self._live) < recurring.LIVE_MAX:
            await self._make()
        else:
            await self._look(self._chance.choice(self._live))


class KilledLeaders(WholeWorld):
    """Kills the leader of the recurrences again and again, soon after it has begun to lead."""

    killed = 0

    def _under_load(self) -> None:
        self._add(Keeping, f"{QUEUE}.operator", QUEUE)
        self._add(Consuming, f"{QUEUE}.c", QUEUE)
        self._run_for(2 * SECOND)
        chance = random.Random(f"kills {self.seed}")
        queue = self.queue(QUEUE)
        assert queue is not None
        for _ in range(KILLS):
            self._kill(queue.groups[0], chance)

    def _kill(self, group: GroupId, chance: random.Random) -> None:
        if not self._until(lambda: self.leader(group), within_us=10 * SECOND):
            self.found("there is no leader")
            return
        self._run_for(chance.randrange(1_500) * MS)
        found = self.leader(group)
        if found is None:
            return
        found[0].crash(silent=chance.random() < 0.3)
        self.killed += 1
        self._run_for(chance.randrange(700) * MS)
        found[0].start()


@pytest.mark.parametrize("seed", range(1, 4))
def test_each_due_time_has_one_item_while_twenty_leaders_are_killed(seed: int):
    world = KilledLeaders(seed, profile=RECURRING)
    verdict = world.run()
    assert verdict.violations == []
    assert world.killed >= KILLS - 2
    assert verdict.figures["compared recurrences"] == recurring.LIVE_MAX
