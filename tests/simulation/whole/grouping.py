"""Programs at a fair queue: producers with backlogs of groups, nested and with limits; consumers
that take few or many items; an operator that changes weights and limits; deaths and redrives.

What the log of the partitions says goes to `fairness`, which has the rules.
"""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from querator.model.calls import ProduceCall
from querator.model.commands import FlowNames
from querator.model.queues import Fairness, GroupSettings, QueueKind, QueueSettings
from querator.wire.flow_names import flow_names
from tests.simulation.whole.pausing import Updating
from tests.simulation.whole.programs import Consuming, Producing, wire_item
from tests.simulation.whole.winding import Streaming

QUEUE = "grouped"
DEAD = "grouped.dead"
MAX_ATTEMPTS = 4
PATHS = ("", "a", "b", "b", "c", "c.x", "c.y", "d", "d.e", "d.f")
WEIGHTS = (1, 2, 3)
LIMITED = "d"
"""The group with a limit, which is paused at times. So no claim is made of the order of the groups
in it.
"""


def settings_of(seed: int) -> dict[str, Any]:
    """The settings of the queue in this seed."""
    chance = random.Random(f"grouped {seed}")
    fairness = chance.choice(tuple(Fairness))
    return {"kind": QueueKind.FAIR, "fairness": fairness, "groups": groups(chance)}


def groups(chance: random.Random, *, paused: bool = False) -> tuple[GroupSettings, ...]:
    return (
        GroupSettings("b", chance.choice(WEIGHTS)),
        GroupSettings("c", chance.choice(WEIGHTS)),
        GroupSettings("c.x", chance.choice(WEIGHTS)),
        GroupSettings(LIMITED, 1, chance.choice((1, 3, 8)), paused),
    )


def path_of(reference: str) -> str:
    return reference.partition("@")[2]


class Grouping(Producing):
    """Produces items of one group, or of several. Some calls bring a backlog."""

    counts = (1, 2, 5, 40)

    def _named(self, number: int) -> str:
        return f"{super()._named(number)}@{self._path()}"

    def _path(self) -> str:
        if self._chance.random() < 0.3:
            self._current = self._chance.choice(PATHS)
        return self._current

    _current = "a"

    def _item(self, reference: str) -> bytes:
        return wire_item(reference.encode(), group=path_of(reference).encode())

    def _sent(self, call: ProduceCall, references: Sequence[str]) -> ProduceCall:
        return msgspec.structs.replace(call, groups=_names(references))


def _names(references: Sequence[str]) -> FlowNames | None:
    paths = {n: path_of(one).encode() for n, one in enumerate(references) if path_of(one)}
    return flow_names(paths, len(references)) if paths else None


class Serving(Consuming):
    """Takes leases of different sizes."""

    most = (1, 2, 5, 30)
    rejects = 0.05
    later_ms = (0, 0, 500)


class ServingStream(Serving, Streaming):
    credit_items = 6


class Weighing(Updating):
    """The operator: other weights and limits, and a group that is paused for some time."""

    async def act(self) -> None:
        await self._weigh(paused=self._chance.random() < 0.3)

    async def finish(self) -> None:
        """Lets all groups continue, after the faults."""
        while not await self._weigh(paused=False):
            self._preferred = ""

    async def _weigh(self, *, paused: bool) -> bool:
        settings = QueueSettings(kind=QueueKind.FAIR, groups=groups(self._chance, paused=paused))
        return await self.update(settings, ("groups",))


def consumer(seed: int) -> type[Serving]:
    """The kind of consumer in this seed."""
    return random.Random(f"grouped consumer {seed}").choice((Serving, ServingStream))


def changes_partitions(seed: int) -> bool:
    """Whether the number of partitions of the queue is changed in this seed."""
    return random.Random(f"grouped resized {seed}").random() < 0.3
