"""The simulator finds what it is for: PySyncObj as it ships loses acknowledged writes in it.

S1, S2, S3 and L1 are the flaws that `querator.raft` exists to remove. Each is reproduced by the
shortest schedule that shows it, and once found by chance alone.
"""

import logging
from collections.abc import Iterator

import pytest

from querator.raft.engine.library import Node
from tests.simulation.network import Nature
from tests.simulation.stock import StockCluster, StockNode, random_run, stock_library
from tests.simulation.timeline import MS, SECOND

# Many clusters are run in one test, beside all other tests at the lowest priority.
pytestmark = pytest.mark.timeout(2700)

STEADY = Nature(jitter_us=0, keepalive_us=60 * SECOND)


@pytest.fixture(autouse=True)
def _library() -> Iterator[None]:
    library = logging.getLogger("pysyncobj")  # noqa: TID251 - the library's own log
    level = library.level
    library.setLevel(logging.CRITICAL + 1)
    with stock_library():
        yield
    library.setLevel(level)


def others(cluster: StockCluster, *nodes: StockNode) -> list[StockNode]:
    return [node for node in cluster.nodes if node not in nodes]


def test_it_works_without_faults():
    cluster = StockCluster(3)
    leader = cluster.elect()
    for number in range(100):
        leader.put(f"value {number}")
        cluster.run(20 * MS)
    cluster.run(SECOND)
    assert len(cluster.acknowledged) == 100
    assert cluster.violations() == []


def test_s1_a_snapshot_commits_what_only_a_deposed_leader_has():
    cluster = StockCluster(3)
    deposed = cluster.elect()
    cluster.run(SECOND)
    cluster.isolate(deposed)
    for number in range(5):
        deposed.put(f"lost {number}")
    leader = cluster.elect(others(cluster, deposed))
    for number in range(20):
        leader.put(f"kept {number}")
    cluster.run(SECOND)
    leader.compact()
    cluster.run(SECOND)
    cluster.network.heal()
    # The pieces of the snapshot arrive slowly, as those of a large one do.
    cluster.network.slow(leader.name, deposed.name, bytes_per_s=3_000)
    cluster.run(20 * SECOND)
    assert "lost 0 was acknowledged, and the leader does not have it" in cluster.violations()


def test_s2_an_older_ack_has_what_is_committed_sent_and_cut_off_again():
    cluster = StockCluster(3, nature=STEADY, batch_bytes=80)
    leader = cluster.elect()
    follower, away = others(cluster, leader)
    cluster.run(SECOND)
    cluster.isolate(away)
    # A batch and its ack take 27 ms each: two acks come before the next heartbeat, four after it.
    cluster.network.slow(leader.name, follower.name, bytes_per_s=5_700)
    cluster.network.slow(follower.name, leader.name, bytes_per_s=2_200)
    for number in range(24):
        leader.put(f"value {number}")
    cluster.until(
        lambda: len(cluster.acknowledged) == 24 and follower.last_index < leader.last_index,
        within_us=5 * SECOND,
    )
    # All are acknowledged, and the leader dies before it has sent all of them again.
    leader.crash()
    cluster.network.heal()
    cluster.elect([follower, away]).put("next")
    cluster.run(10 * SECOND)
    leader.start()
    cluster.run(10 * SECOND)
    assert "value 23 was acknowledged, and the leader does not have it" in cluster.violations()


def test_s3_an_ack_of_an_earlier_leadership_counts_in_a_later_one():
    cluster = StockCluster(5, nature=STEADY)
    network = cluster.network
    first = cluster.elect()
    slow, second, voter, absent = others(cluster, first)
    cluster.run(SECOND)
    # Five entries reach one follower, whose ack takes long. The other followers do not receive
    # them.
    network.slow(slow.name, first.name, extra_us=4 * SECOND)
    for node in (second, voter, absent):
        network.block(first.name, node.name)
    before = first.last_index
    for number in range(5):
        first.put(f"early {number}")
    cluster.until(lambda: slow.last_index == before + 5, within_us=SECOND)
    # The follower and the leader part. Another node leads, and overwrites the entries.
    network.block(first.name, slow.name)
    for node in (second, voter, absent):
        network.block(slow.name, node.name)
        network.block(node.name, slow.name)
    cluster.elect([second, voter, absent])
    for node in (second, voter, absent):
        network.unblock(first.name, node.name)
    cluster.until(lambda: not first.leads, within_us=2 * SECOND)
    cluster.run(300 * MS)
    # The first node leads again, with one real follower; then the old ack arrives.
    leader = cluster.leader()
    assert leader is not None
    assert leader.value is not None
    assert leader is not first
    leader.value.transferLeadership(Node(first.number))
    cluster.until(lambda: cluster.leader() is first, within_us=SECOND)
    cluster.run(100 * MS)
    for node in (second, absent):
        cluster.isolate(node)
    for number in range(3):
        first.put(f"late {number}")
    cluster.until(lambda: "late 2" in cluster.acknowledged, within_us=10 * SECOND)
    first.crash()
    voter.crash()
    network.heal()
    cluster.elect([slow, second, absent])
    cluster.run(10 * SECOND)
    assert "late 2 was acknowledged, and the leader does not have it" in cluster.violations()


def test_l1_a_diverged_follower_never_heals():
    cluster = StockCluster(3, batch_bytes=200)
    deposed = cluster.elect()
    cluster.run(SECOND)
    cluster.isolate(deposed)
    for number in range(10):
        deposed.put(f"lost {number}")
    leader = cluster.elect(others(cluster, deposed))
    for number in range(40):
        leader.put(f"kept {number} {'x' * 50}")
    cluster.run(2 * SECOND)
    assert len(cluster.acknowledged) == 40
    # The next leader assumes that every node has what it has.
    leader.crash()
    leader.start()
    cluster.elect(others(cluster, deposed))
    cluster.network.heal()
    cluster.run(120 * SECOND)
    assert "the replicas have not converged" in cluster.violations()


def test_chance_finds_lost_writes_and_logs_that_never_heal():
    found = [text for seed in range(76, 81) for text in random_run(seed)]
    assert any("was acknowledged, and the leader does not have it" in text for text in found)
    assert "the replicas have not converged" in found
