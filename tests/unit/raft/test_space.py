"""The log gives way when space is short: it is kept for nobody, and may not keep items out."""

from querator.model.ids import GroupId
from querator.model.limits import KIB, MIB
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.unit.raft.hosting import hosting
from tests.unit.raft.register import HELD, RegisterMachine

G1, G2 = GroupId(1), GroupId(2)
PAYLOAD = b"p" * (64 * KIB)


async def test_a_log_does_not_fill_the_storage_with_what_the_machine_let_go_of():
    environment = MemoryEnvironment(quota_bytes=4 * MIB)
    async with hosting(environment, RegisterMachine(1)) as host:
        for count in range(1, 200):
            assert (await host.propose(G1, 1, PAYLOAD))[0] == count


async def test_the_log_of_a_group_that_rests_gives_way_to_others():
    environment = MemoryEnvironment(quota_bytes=4 * MIB)
    async with hosting(environment, RegisterMachine(1), RegisterMachine(2)) as host:
        for _ in range(24):
            await host.propose(G1, 1, PAYLOAD)
        for count in range(1, 100):
            assert (await host.propose(G2, 1, PAYLOAD))[0] == count
        with environment.snapshot() as snapshot:
            rows = [key for key, _ in ATTACHMENTS.rows(snapshot, G1)]
        assert len(rows) == HELD
        status = host.status(G1)
        assert status is not None
        assert status.log_first == status.log_last
    async with hosting(environment.crash(), RegisterMachine(1), RegisterMachine(2)) as host:
        assert (await host.propose(G1, 1))[0] == 25
        assert (await host.propose(G2, 1))[0] == 100
