"""Consumers of one partition get the same number of items, at whichever node they are, and however
long frames between nodes take.
"""

import pytest

from tests.simulation.timeline import MS
from tests.simulation.whole.sharing import SharingWorld


@pytest.mark.parametrize("work_us", [5 * MS, 20 * MS])
@pytest.mark.parametrize(("peers_us", "links_us"), [(10 * MS, 8 * MS), (20 * MS, 20 * MS)])
def test_consumers_at_the_leaders_node_get_no_more_of_a_backlog(
    peers_us: int, links_us: int, work_us: int
):
    world = SharingWorld(peers_us=peers_us, links_us=links_us, work_us=work_us, items=600)
    assert not world.run().violations
    assert world.uneven < 1.25, world.got
