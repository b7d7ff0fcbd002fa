"""The time of a partition is set back while the number of partitions changes."""

from typing import Any

import pytest

from querator.model.commands import RepairTime, Route
from querator.model.ids import GroupId
from querator.model.limits import HOUR_MS
from querator.partition import dedup_export
from querator.partition.dedup_export import ClosureQuery, FactsPage, FactsQuery
from querator.placement.tasks.partition_calls import here
from querator.raft.clock import SimulatedClock
from tests.unit.service.service_node import ServiceNode, service_node
from tests.unit.service.test_undone_partition_changes import change, placed

PAGE_ROWS = 4
KEYS = [b"k%d" % number for number in range(5 * PAGE_ROWS)]


class Repairing:
    """The path from the leader of group 0 to the partitions.

    A change reads the facts of a partition twice. Keys are stored between the two reads. Time is
    set back during the second read, after its first page.
    """

    def __init__(self, node: ServiceNode, clock: SimulatedClock, *, waits: bool) -> None:
        """`waits`: whether the second read waits until all rows have been dated again."""
        self._node = node
        self._clock = clock
        self._waits = waits
        self._closed = False
        self.repaired = 0
        self._ask = here(node.host, node.environment)
        node.placement._repartitioner.telling.propose = self.propose
        node.placement._repartitioner.telling.ask = self.ask

    async def propose(self, group: GroupId, command: Any) -> Any:
        if isinstance(command, Route) and not command.open and not self._closed:
            self._closed = True
            for key in KEYS:
                self._clock.advance(1)
                await self._node.produce(b"x", keys=[key])
        return await self._node.host.propose(group, command)

    async def ask(self, group: GroupId, query: Any) -> Any:
        answer = await self._ask(group, query)
        if self._closed and isinstance(query, FactsQuery) and query.after and not self.repaired:
            assert isinstance(answer, FactsPage)
            self._clock.step_wall(-HOUR_MS)
            for each in placed(self._node).groups:
                self.repaired += (await self._node.host.propose(each, RepairTime())).changed
            while self._waits and (await self._ask(group, ClosureQuery(group))).pinned:
                self._clock.advance(1)
        return answer


@pytest.mark.parametrize("waits", [True, False])
async def test_what_is_remembered_is_read_anew_when_time_goes_back_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, waits: bool
):
    monkeypatch.setattr(dedup_export, "PAGE_ROWS_MAX", PAGE_ROWS)
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partitions=1)
        await node.produce(b"x", keys=[b"first"])
        clock.advance(HOUR_MS)
        road = Repairing(node, clock, waits=waits)
        assert (await change(node, 2)).routed_partitions == 2
        assert road.repaired > 0
        for key in KEYS:
            await node.produce(b"x", keys=[key])
        assert (await node.total()).produced == 1 + len(KEYS)
