"""Checkpoints across partitions, nodes and streams, and those that are damaged."""

from querator.model.calls import Checkpoint, ExtendCall, LeasedRun
from querator.model.errors import ErrorCode
from querator.model.limits import PRODUCE_BYTES_HELD_MAX
from querator.service.admission import CONNECTION
from querator.storage import attachments
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.unit.service.repair.test_damage import Whole
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, payloads, refusal, seqs, service_node
from tests.unit.service.storage_damage import damage, damaged


def checkpoints_of(*batches: LeasedRun) -> dict[int, bytes]:
    return {
        seqs(batch)[later.index]: later.checkpoint
        for batch in batches
        for later in batch.loaded.overlays
    }


def at(batch: LeasedRun, data: bytes, revision: int = 0) -> Checkpoint:
    """A checkpoint of the first item of a batch."""
    return Checkpoint(batch.lease_id, batch.loaded.first_seq, data, revision)


async def test_one_call_saves_in_several_partitions():
    async with service_node() as node:
        await node.create(partitions=3)
        for number in range(3):
            await node.produce(b"%d" % number)
        batches = (await node.lease()).batches
        assert len({batch.partition for batch in batches}) == 3
        ids = [batch.lease_id for batch in batches]
        saved = tuple(at(batch, b"part %d" % batch.partition) for batch in batches)
        reply = await node.extend(*ids, checkpoints=saved)
        assert [outcome.lease_id for outcome in reply.outcomes] == ids
        assert all(one.deadline_ms and not one.lost_checkpoints for one in reply.outcomes)
        assert (await node.total()).checkpoint_bytes == 3 * len(b"part 0")
        await node.retry(*batches)
        for batch in (await node.lease()).batches:
            assert list(checkpoints_of(batch).values()) == [b"part %d" % batch.partition]


async def test_each_lost_checkpoint_is_named_with_its_lease():
    async with service_node() as node:
        await node.create(partitions=2)
        await node.produce(b"a")
        await node.produce(b"b")
        first, second = (await node.lease()).batches
        await node.complete(first)
        reply = await node.extend(
            first.lease_id, second.lease_id, checkpoints=(at(first, b"x"), at(second, b"y"))
        )
        lost, held = reply.outcomes
        assert (lost.deadline_ms, lost.lost_checkpoints) == (0, (first.loaded.first_seq,))
        assert held.deadline_ms
        assert held.lost_checkpoints == ()


async def test_a_lease_of_another_queue_loses_its_checkpoints():
    async with service_node() as node:
        await node.create()
        await node.create(name="other")
        await node.produce(b"a")
        [batch] = (await node.lease()).batches
        saved = (Checkpoint(batch.lease_id, 1, b"x"), Checkpoint(batch.lease_id, 7, b"y"))
        extending = node.extend(batch.lease_id, queue="other", checkpoints=saved)
        [outcome] = (await extending).outcomes
        assert (outcome.deadline_ms, outcome.lost_checkpoints) == (0, (1, 7))


async def test_a_node_that_does_not_lead_saves_and_delivers_them():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        [batch] = (await cluster.lease("b", wait_ms=LONG_MS)).batches
        call = ExtendCall("default", "q", (batch.lease_id,), checkpoints=(at(batch, b"half", 7),))
        for _ in range(2):
            [outcome] = (await cluster.members["b"].extend(call)).outcomes
            assert outcome.deadline_ms
            assert outcome.lost_checkpoints == ()
        await cluster.retry("b", batch)
        [again] = (await cluster.lease("b", wait_ms=LONG_MS)).batches
        assert checkpoints_of(again) == {batch.loaded.first_seq: b"half"}


async def test_a_stream_saves_and_delivers_them():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a")
        stream = await node.subscribe()
        stream.grant(2, 0)
        [batch] = (await stream.next()).batches
        call = ExtendCall("", "", (batch.lease_id,), checkpoints=(at(batch, b"half"),))
        assert (await stream.extend(call)).outcomes[0].deadline_ms
        await node.retry(batch)
        [again] = (await stream.next()).batches
        assert checkpoints_of(again) == {1: b"half"}
        await stream.close(polite=True)


async def test_their_bytes_count_as_those_of_produces():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a")
        [batch] = (await node.lease()).batches
        held = node.queues._settling._produces
        held.add(CONNECTION.get(), PRODUCE_BYTES_HELD_MAX)
        saved = (at(batch, b"half"),)
        error = await refusal(node.extend(batch.lease_id, checkpoints=saved))
        assert error.code is ErrorCode.OVERLOADED
        assert (await node.extend(batch.lease_id)).outcomes[0].deadline_ms
        held.remove(CONNECTION.get(), PRODUCE_BYTES_HELD_MAX)
        assert (await node.extend(batch.lease_id, checkpoints=saved)).outcomes[0].deadline_ms


async def test_an_item_whose_checkpoint_is_damaged_is_set_aside_until_it_is_mended():
    async with service_node() as node:
        group = (await node.create()).groups[0]
        await node.produce(b"a")
        await node.produce(b"b")
        first, second = (await node.lease()).batches
        await node.extend(second.lease_id, checkpoints=(at(second, b"half"),))
        await node.retry(first, second)
        assert isinstance(node.environment, MemoryEnvironment)
        with node.environment.snapshot() as txn:
            assert len(list(ATTACHMENTS.rows(txn, group))) == 3
        with damaged(node.environment, group, 2):
            reply = await node.lease(wait_ms=LONG_MS)
            assert payloads(*reply.batches) == [b"a"]
            assert node.queues.damage.items(group) == (1, 1)
            assert not (await node.lease()).batches
        [batch] = (await node.lease(wait_ms=LONG_MS)).batches
        assert checkpoints_of(batch) == {second.loaded.first_seq: b"half"}
        # The delivery that failed has given its attempt back.
        assert batch.attempt == 2


async def test_another_replica_mends_a_checkpoint():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        [batch] = (await cluster.lease("a", wait_ms=LONG_MS)).batches
        call = ExtendCall("default", "q", (batch.lease_id,), checkpoints=(at(batch, b"half"),))
        await cluster.members["a"].extend(call)
        await cluster.retry("a", batch)
        other = whole_on_b(cluster, 1)
        [again] = (await cluster.lease("a", wait_ms=LONG_MS)).batches
        assert checkpoints_of(again) == {1: b"half"}
        assert other.asked == 1


def whole_on_b(cluster: ServiceCluster, nth: int) -> Whole:
    """Damages an attachment of node a, the leader. Node b has it whole."""
    environment = cluster.base.environment
    assert isinstance(environment, MemoryEnvironment)
    group = group_of(cluster)
    with environment.snapshot() as txn:
        key, _ = list(ATTACHMENTS.rows(txn, group))[nth]
        index, part = map(int, ATTACHMENTS.parts(key))
        data = attachments.read(txn, group, index, part)
    assert data is not None
    damage(environment, group, nth=nth)
    other = Whole(data)
    cluster.members["b"].damage.payload = other.payload  # type: ignore[method-assign]
    return other
