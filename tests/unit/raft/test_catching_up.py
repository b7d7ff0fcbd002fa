"""A follower that needs entries which the log no longer has receives the state."""

from functools import partial

import pytest

from querator.model.entries import Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import LOG_CACHE_BYTES, LOG_UNAPPLIED_CACHE_BYTES, MIB
from querator.raft.configuration import AddLearner, Change, Promote, RemoveReplica
from querator.raft.consensus.replication import UNREAD_S
from querator.raft.group import snapshot_schedule
from querator.raft.group.group import Group
from querator.raft.group.snapshot_schedule import SnapshotStats
from querator.raft.log.journal import PINNED_WINDOWS
from querator.raft.log.rows import mark_deleting
from querator.raft.messages import Append, LogEntry, SnapshotOffer, SnapshotReply
from querator.raft.requests import (
    Call,
    Damaged,
    Leader,
    Leadership,
    Mend,
    Open,
    Reconfigure,
    Remove,
)
from querator.raft.snapshot.sender import SnapshotSender
from querator.storage import attachments, generations
from querator.storage.keys import ALL
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.sealed import SEAL_BYTES
from querator.storage.tables import ATTACHMENTS
from tests.unit.raft.fake_machine import HELD, RegisterMachine
from tests.unit.raft.raft_cluster import ClusterNode, G, RaftCluster, future, key

WINDOW = 4_000


def behind(*, entries: int = 60, seed: int = 1) -> tuple[RaftCluster, str, str]:
    """A cluster, its leader, and a follower that was away for longer than the log reaches back."""
    cluster = RaftCluster("a", "b", "c", seed=seed, log_bytes_kept=WINDOW)
    cluster.added(1)
    leader = cluster.leader()
    other = next(name for name in cluster.nodes if name != leader)
    cluster.until(cluster.alike)
    cluster.separate(other)
    for _ in range(entries):
        cluster.added(1, b"x" * 1_000)
    # The log waits for followers that were heard from recently.
    cluster.pass_s(12)
    cluster.added(1, b"x" * 1_000)
    assert cluster.nodes[leader].status.log_first > cluster.nodes[other].status.log_last + 1
    return cluster, leader, other


def stats(cluster: RaftCluster, name: str) -> SnapshotStats:
    turns = cluster.nodes[name].turns
    assert turns is not None
    return turns.traffic.stats()


def generations_of(node: ClusterNode) -> set[int]:
    """The generations that have rows on the node."""
    with node.environment.snapshot() as snapshot:
        return {
            int.from_bytes(row[1:9], "big") >> 48
            for row, _ in snapshot.scan(b"\0", b"\xff")
            if ALL[row[:1]].in_generations
        }


def test_a_follower_that_the_log_does_not_reach_gets_the_state_and_goes_on_with_the_log():
    cluster, leader, other = behind()
    cluster.heal()
    cluster.until(cluster.alike, within_s=5)
    assert stats(cluster, leader).sent == 1
    assert stats(cluster, other).installed == 1
    assert stats(cluster, other).bytes_received == stats(cluster, leader).bytes_sent > 0
    assert generations_of(cluster.nodes[other]) == {1}
    assert cluster.added(1)[0] == 63
    cluster.until(cluster.alike, within_s=1)
    # The follower keeps its state after a restart, and as the leader.
    cluster.stop(other)
    cluster.start(other)
    cluster.until(cluster.alike, within_s=5)
    for name in cluster.nodes:
        if name != other:
            cluster.stop(name)
    cluster.start(next(name for name in cluster.nodes if name != other))
    cluster.until(lambda: cluster.leaders, within_s=10)
    assert cluster.added(1)[0] == 64


def test_the_group_serves_meanwhile():
    cluster, leader, other = behind(entries=200)
    cluster.heal()
    while not stats(cluster, other).installed:
        cluster.add(leader, 1, b"y" * 1_000)
        cluster.pass_s(0.01)
    cluster.until(cluster.alike, within_s=5)
    assert (leader, Leadership(G, False)) not in cluster.events
    assert cluster.errors == []


@pytest.mark.parametrize("steps", [*range(1, 16), 20, 30])
@pytest.mark.parametrize("who", ["leader", "other", "both"])
def test_a_crash_at_any_step_of_it_loses_nothing_and_leaves_nothing(steps, who):
    cluster, leader, other = behind()
    cluster.heal()
    for _ in range(steps):
        cluster.step()
    names = {"leader": [leader], "other": [other], "both": [leader, other]}[who]
    for name in names:
        cluster.stop(name)
    for name in names:
        cluster.start(name)
    assert cluster.added(1)[0] == 63
    cluster.until(cluster.alike, within_s=20)
    cluster.until(lambda: all(len(generations_of(node)) == 1 for node in cluster.nodes.values()))


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_a_connection_that_breaks_in_the_middle_does_no_harm(steps):
    cluster, _, other = behind(entries=300)
    for _ in range(20):
        cluster.heal()
        for _ in range(steps):
            cluster.step()
        cluster.separate(other)
    cluster.heal()
    cluster.until(cluster.alike, within_s=20)
    cluster.until(lambda: len(generations_of(cluster.nodes[other])) == 1)


def test_a_tail_that_was_never_committed_goes_and_its_calls_end_as_unknown():
    cluster = RaftCluster("a", "b", "c", log_bytes_kept=WINDOW)
    cluster.added(1)
    old = cluster.leader()
    cluster.until(cluster.alike)
    cluster.separate(old)
    for _ in range(3):
        cluster.add(old, 1_000)
    cluster.until(lambda: [name for name in cluster.leaders if name != old], within_s=3)
    cluster.until(lambda: old not in cluster.leaders, within_s=5)
    for _ in range(60):
        cluster.added(1, b"x" * 1_000)
    cluster.pass_s(5)
    for _ in range(5):
        cluster.added(1, b"x" * 1_000)
    cluster.heal()
    cluster.until(cluster.alike, within_s=5)
    assert stats(cluster, old).installed == 1
    codes = [error.code for error in cluster.errors if isinstance(error, QueratorError)]
    assert codes == [ErrorCode.OUTCOME_UNKNOWN] * 3


def test_a_new_replica_gets_the_state_as_a_learner_and_is_promoted():
    cluster, leader, other = behind()
    node = cluster.nodes[other]
    assert node.turns is not None
    node.turns = None
    node.environment = MemoryEnvironment()
    # The node comes back as another incarnation would: with another replica id.
    (old_id,) = (replica.id for replica in cluster.replicas if replica.node == key(other))
    change(cluster, leader, RemoveReplica(old_id))
    change(cluster, leader, AddLearner(9, key(other)))
    cluster.replicas = cluster.nodes[leader].status.replicas
    assert len(cluster.replicas) == 3
    cluster.cut.clear()
    cluster.start(other)
    cluster.until(cluster.alike, within_s=5)
    assert stats(cluster, other).installed == 1
    assert node.status.replicas == cluster.nodes[leader].status.replicas
    change(cluster, leader, Promote(9))
    cluster.until(lambda: all(replica.voter for replica in node.status.replicas))


def test_a_learner_that_hears_nothing_of_its_leader_does_not_name_it_any_more():
    """Otherwise its node would send requests for the group to the former leader, which refuses
    them.
    """
    cluster, leader, other = behind()
    cluster.heal()
    cluster.until(cluster.alike, within_s=5)
    node = cluster.nodes[other]
    (own,) = (replica.id for replica in cluster.replicas if replica.node == key(other))
    change(cluster, leader, RemoveReplica(own))
    node.turns = None
    node.environment = MemoryEnvironment()
    change(cluster, leader, AddLearner(9, key(other)))
    cluster.replicas = cluster.nodes[leader].status.replicas
    cluster.start(other)
    cluster.until(lambda: node.status.leader == key(leader), within_s=5)
    cluster.stop(leader)
    cluster.until(lambda: node.status.leader is None, within_s=5)


def change(cluster: RaftCluster, leader: str, what: Change) -> None:
    """Returns when the change is committed."""
    asked = future()
    cluster.ask(leader, Reconfigure(G, what, asked))
    cluster.until(lambda: (asked, None) in cluster.done)


def test_the_log_waits_for_a_follower_that_is_heard_up_to_a_bound():
    cluster = RaftCluster("a", "b", "c", log_bytes_kept=WINDOW)
    cluster.added(1)
    leader = cluster.leader()
    other = next(name for name in cluster.nodes if name != leader)
    cluster.until(cluster.alike)
    cluster.separate(other)
    sizes = []
    for _ in range(60):
        cluster.added(1, b"x" * 1_000)
        sizes.append(cluster.nodes[leader].status.log_bytes)
    assert WINDOW < max(sizes) <= PINNED_WINDOWS * WINDOW + 3_000
    cluster.pass_s(12)
    cluster.added(1, b"x" * 1_000)
    assert cluster.nodes[leader].status.log_bytes <= WINDOW + 2_000
    # A follower that is back soon needs no snapshot.
    cluster.heal()
    cluster.until(cluster.alike, within_s=5)
    cluster.separate(other)
    for _ in range(8):
        cluster.added(1, b"x" * 1_000)
    cluster.heal()
    cluster.until(cluster.alike, within_s=5)
    assert stats(cluster, leader).sent == 1


def test_a_group_is_deleted_with_all_its_generations():
    cluster, _, other = behind(entries=300)
    cluster.heal()
    while not stats(cluster, other).installed:
        cluster.step()
    cluster.separate(other)
    node = cluster.nodes[other]
    removed = future()
    cluster.ask(other, Remove(G, removed))
    cluster.until(lambda: removed in [one for one, _ in cluster.done])
    with node.environment.snapshot() as snapshot:
        assert list(snapshot.scan(b"\0", b"\xff")) == []


def test_a_deletion_that_was_interrupted_can_only_go_on():
    cluster, _, other = behind()
    cluster.heal()
    cluster.until(cluster.alike)
    node = cluster.nodes[other]
    txn = node.environment.begin()
    current = generations.read(txn, G).current
    assert not generations.delete_generations(txn, G, rows_max=2, bytes_max=1 << 20)
    mark_deleting(generations.write_view(txn, G, current), G)
    txn.commit(sync=True)
    cluster.stop(other)
    cluster.start(other)
    assert node.turns is not None
    assert node.turns.status(G) is None
    assert isinstance(cluster.done[-1][1], QueratorError)


def test_snapshots_of_many_groups_stand_in_line(monkeypatch):
    monkeypatch.setattr(snapshot_schedule, "SENT_MAX", 1)
    cluster = RaftCluster("a", "b", "c", log_bytes_kept=WINDOW)
    groups = [GroupId(number) for number in range(2, 8)]
    for group in groups:
        for name in cluster.nodes:
            request = Open(group, RegisterMachine(group), future(), cluster.replicas)
            cluster.ask(name, request)
    cluster.separate("c")

    def leads(group: GroupId) -> str | None:
        for name, node in cluster.nodes.items():
            status = None if node.turns is None else node.turns.status(group)
            if status is not None and status.leads:
                return name
        return None

    def applied(group: GroupId) -> set[int]:
        found = set()
        for node in cluster.nodes.values():
            status = None if node.turns is None else node.turns.status(group)
            assert status is not None
            found.add(status.applied_index)
        return found

    for group in groups:
        cluster.until(partial(leads, group))
    for _ in range(12):
        for group in groups:
            leader = leads(group)
            assert leader is not None
            cluster.ask(leader, Call(group, Proposal(1, b"x" * 1_000), future(), 2_000))
        cluster.pass_s(1)
    cluster.pass_s(2)
    # The leaders do not retry without need while the node is away.
    turns = cluster.turns
    cluster.pass_s(10)
    assert cluster.turns - turns < 10 * 3 * 20
    cluster.heal()
    cluster.until(lambda: all(len(applied(group)) == 1 for group in groups), within_s=3)
    assert stats(cluster, "c").installed == len(groups)


def sent_to(cluster: RaftCluster, name: str, leader: str) -> int:
    """Sends the leader's whole state to the follower by hand, and returns the state's index."""
    node = cluster.nodes[leader]
    assert node.turns is not None
    group = node.turns._groups[G]
    sender = SnapshotSender(
        node.environment,
        G,
        0,
        group.journal.position,
        term=node.status.term,
        number=1,
        now_s=cluster.clock.monotonic_s(),
    )
    while not sender.over:
        cluster.said(name)
        cluster.hear(name, leader, *sender.step(cluster.clock.monotonic_s(), MIB))
        for message in cluster.said(name):
            if isinstance(message, SnapshotReply):
                sender.on_reply(message, cluster.clock.monotonic_s())
    assert sender.failed is None
    assert sender.end is not None
    assert sender.done == sender.end.index
    return sender.done


def lagging() -> tuple[RaftCluster, str, str, list[LogEntry]]:
    """A follower that lacks the leader's last entry. Returned with that entry and one more, which
    only the leader may have later.
    """
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    cluster.until(cluster.alike)
    other = next(name for name in cluster.nodes if name != leader)
    cluster.separate(other)
    cluster.added(1, b"x" * 10)
    node = cluster.nodes[leader]
    cluster.until(lambda: node.status.applied_index == node.status.log_last)
    assert node.turns is not None
    journal = node.turns._groups[G].journal
    (last,) = journal.entries(node.environment.snapshot, node.status.log_last, MIB)
    return cluster, leader, other, [last, LogEntry(last.term, last.now_ms, last.kind, last.command)]


def appended(cluster: RaftCluster, name: str, leader: str, *entries: LogEntry) -> None:
    """The follower receives entries, and no news of what is committed."""
    status = cluster.nodes[name].status
    message = Append(
        term=cluster.nodes[leader].status.term,
        sequence=1_000,
        read_round=0,
        prev_index=status.log_last,
        prev_term=status.term,
        commit_index=0,
        entries=entries,
    )
    cluster.hear(name, leader, message)


def test_what_is_acknowledged_behind_the_place_of_a_snapshot_stays():
    cluster, leader, other, entries = lagging()
    appended(cluster, other, leader, *entries)
    before = cluster.nodes[other].status
    assert before.commit_index < before.log_last - 1
    index = sent_to(cluster, other, leader)
    after = cluster.nodes[other].status
    assert index == before.log_last - 1
    assert (after.log_last, after.commit_index) == (before.log_last, index)
    assert stats(cluster, other).installed == 0
    cluster.until(lambda: len(generations_of(cluster.nodes[other])) == 1)


def test_a_log_that_ends_before_that_place_is_replaced():
    cluster, leader, other, _ = lagging()
    index = sent_to(cluster, other, leader)
    after = cluster.nodes[other].status
    assert (after.log_first, after.log_last, after.commit_index) == (index + 1, index, index)
    assert stats(cluster, other).installed == 1


def test_a_snapshot_of_what_is_committed_already_changes_nothing():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    cluster.until(cluster.alike)
    other = next(name for name in cluster.nodes if name != leader)
    before = cluster.nodes[other].status
    assert sent_to(cluster, other, leader) == before.applied_index
    assert stats(cluster, other).installed == 0
    assert cluster.nodes[other].status.log_first == before.log_first


def test_what_a_deposed_leader_sends_is_not_heard():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    other = next(name for name in cluster.nodes if name != leader)
    cluster.said(other)
    cluster.hear(other, leader, SnapshotOffer(cluster.nodes[other].status.term - 1, 9))
    assert not [said for said in cluster.said(other) if isinstance(said, SnapshotReply)]


def test_what_a_leader_cannot_send_is_told_and_sent_when_it_is_mended():
    cluster, leader, other = behind()
    environment = cluster.nodes[leader].environment
    with environment.snapshot() as txn:
        row, stored = list(ATTACHMENTS.rows(txn, G))[-1]
    index, part = map(int, ATTACHMENTS.parts(row))
    environment._rows[row] = stored[:-1] + b"?"
    cluster.heal()

    def told() -> bool:
        return (leader, Damaged(G, index, part)) in cluster.events

    cluster.until(told, within_s=60)
    assert not cluster.nodes[leader].status.quarantined
    data = stored[SEAL_BYTES:]
    cluster.ask(
        leader,
        Mend(
            group=G, index=index, part=part, data=data, is_wanted=lambda txn: True, future=future()
        ),
    )
    cluster.until(cluster.alike, within_s=60)
    with cluster.nodes[other].environment.snapshot() as txn:
        view = generations.view(txn, G)
        assert attachments.read(view, G, index, part) == data


def damaged_in_the_log() -> tuple[RaftCluster, str, str, tuple[int, int], bytes]:
    """A cluster, its leader, a follower that needs an attachment which is damaged on the leader,
    the attachment's index and part, and its row before the damage.
    """
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    other = next(name for name in cluster.nodes if name != leader)
    cluster.until(cluster.alike)
    cluster.separate(other)
    # More entries than the leader keeps in memory.
    for _ in range(LOG_CACHE_BYTES // MIB + 2):
        cluster.added(1, b"x" * MIB)
    environment = cluster.nodes[leader].environment
    with environment.snapshot() as txn:
        row, stored = next(iter(ATTACHMENTS.rows(txn, G)))
    index, part = map(int, ATTACHMENTS.parts(row))
    environment._rows[row] = stored[:-1] + b"?"
    return cluster, leader, other, (index, part), stored


def test_what_is_found_to_be_damaged_with_a_heartbeat_is_told(monkeypatch):
    cluster, leader, _, place, _ = damaged_in_the_log()
    monkeypatch.setattr(Group, "_send", lambda _: None)
    cluster.heal()
    cluster.until(lambda: (leader, Damaged(G, *place)) in cluster.events, within_s=60)


def test_what_a_leader_cannot_send_of_its_log_is_told_and_sent_when_it_is_mended():
    cluster, leader, other, (index, part), stored = damaged_in_the_log()
    last = cluster.nodes[leader].status.log_last
    cluster.heal()
    cluster.until(lambda: (leader, Damaged(G, index, part)) in cluster.events, within_s=60)
    data = stored[SEAL_BYTES:]
    cluster.ask(
        leader,
        Mend(
            group=G, index=index, part=part, data=data, is_wanted=lambda txn: True, future=future()
        ),
    )
    cluster.until(lambda: cluster.nodes[other].status.applied_index >= last, within_s=60)
    with cluster.nodes[other].environment.snapshot() as txn:
        assert attachments.read(txn, G, index, part) == data
    assert cluster.leaders == [leader]
    assert not stats(cluster, other).installed


def damaged_before_it_is_committed(
    names: str, *, having: int
) -> tuple[RaftCluster, str, list[str]]:
    """A cluster after a power loss, with a last entry that no node knows to be committed. Returned
    with the former leader, on which the entry's attachment is damaged, and the other nodes. The
    first `having` of these have the entry intact. All other nodes are off.
    """
    cluster = RaftCluster(*names)
    cluster.added(1)
    leader = cluster.leader()
    cluster.until(cluster.alike)
    others = [name for name in names if name != leader]
    cluster.muted |= {(name, leader) for name in others}
    cluster.muted |= {(leader, name) for name in others[having:]}
    cluster.add(leader, 10, b"x" * 100)
    cluster.pass_s(0.1)
    last = cluster.nodes[leader].status.log_last
    assert cluster.nodes[leader].status.applied_index == last - 1
    have = [name for name in others if cluster.nodes[name].status.log_last == last]
    assert have == others[:having]
    for name in names:
        cluster.stop(name)
    cluster.muted.clear()
    environment = cluster.nodes[leader].environment
    with environment.snapshot() as txn:
        row, stored = list(ATTACHMENTS.rows(txn, G))[-1]
    assert ATTACHMENTS.parts(row) == (last, 0)
    environment._rows[row] = stored[:-1] + b"?"
    cluster.start(leader)
    return cluster, leader, others


def cannot_be_sent(cluster: RaftCluster, leader: str) -> int:
    """Waits until the leader has found that it cannot send the entry before its no-op, and returns
    that entry's index.
    """
    index = cluster.nodes[leader].status.log_last
    cluster.until(lambda: (leader, Damaged(G, index, 0)) in cluster.events)
    assert cluster.nodes[leader].status.log_last == index + 1
    return index


def mended(cluster: RaftCluster, name: str, index: int) -> None:
    request = Mend(
        group=G, index=index, part=0, data=b"x" * 100, is_wanted=lambda txn: True, future=future()
    )
    cluster.ask(name, request)


def test_what_may_be_committed_and_cannot_be_sent_is_waited_for():
    """The node that has the entry is away. No other node could be elected without it: the leader
    stays.
    """
    cluster, leader, (having, lacking) = damaged_before_it_is_committed("abc", having=1)
    cluster.start(lacking)
    index = cannot_be_sent(cluster, leader)
    term = cluster.nodes[leader].status.term
    cluster.pass_s(2 * UNREAD_S)
    cluster.start(having)
    assert cluster.leader() == leader
    assert cluster.nodes[leader].status.term == term
    cluster.until(lambda: cluster.nodes[leader].status.applied_index > index)
    mended(cluster, leader, index)
    cluster.until(cluster.alike)
    assert cluster.added(1)[0] == 12
    with cluster.nodes[lacking].environment.snapshot() as txn:
        assert attachments.read(txn, G, index, 0) == b"x" * 100
    # No snapshot would have helped: no state contained the entry.
    assert (stats(cluster, leader).sent, stats(cluster, leader).failed) == (0, 0)


def test_who_cannot_send_what_nobody_else_has_lets_another_lead():
    """The entry was not acknowledged to any client, and is replaced."""
    cluster, leader, (one, other) = damaged_before_it_is_committed("abc", having=0)
    cluster.start(one)
    cannot_be_sent(cluster, leader)
    cluster.start(other)
    assert cluster.leader() != leader
    cluster.until(cluster.alike)
    assert cluster.added(1)[0] == 2
    cluster.until(cluster.alike)
    assert not cluster.nodes[leader].status.quarantined


def test_what_a_follower_has_is_committed_when_its_acknowledgement_was_lost():
    """The leader can no longer read the entry. A third replica is away."""
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    cluster.until(cluster.alike)
    having, away = [name for name in cluster.nodes if name != leader]
    cluster.stop(away)
    cluster.muted.add((having, leader))
    index = cluster.nodes[leader].status.log_last + 1
    for _ in range(LOG_UNAPPLIED_CACHE_BYTES // MIB + 2):
        cluster.add(leader, 1, b"x" * MIB)
    last = cluster.nodes[leader].status.log_last
    cluster.until(lambda: cluster.nodes[having].status.log_last == last)
    rows = cluster.nodes[leader].environment._rows
    row = ATTACHMENTS.key(G, index, 0)
    rows[row] = rows[row][:-1] + b"?"
    cluster.separate(leader)
    cluster.pass_s(0.05)
    cluster.heal()
    cluster.until(lambda: cluster.nodes[leader].status.commit_index >= last)
    assert cluster.leaders == [leader]


def test_who_gives_way_with_calls_in_its_log_answers_them():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    cluster.until(cluster.alike)
    others = [name for name in cluster.nodes if name != leader]
    index = cluster.nodes[leader].status.log_last + 1
    cluster.muted |= {(leader, name) for name in others}
    # More than the leader keeps of its log in memory, committed or not.
    calls = LOG_UNAPPLIED_CACHE_BYTES // MIB + 2
    for _ in range(calls):
        cluster.add(leader, 1, b"x" * MIB)
    row = ATTACHMENTS.key(G, index, 0)
    rows = cluster.nodes[leader].environment._rows
    rows[row] = rows[row][:-1] + b"?"
    cluster.muted.clear()
    cluster.until(lambda: (leader, Damaged(G, index, 0)) in cluster.events)
    assert cluster.leaders == [leader]
    cluster.until(lambda: (leader, Leadership(G, False)) in cluster.events)
    assert (leader, Leader(G, None)) in cluster.events
    assert cluster.leader() != leader
    cluster.until(lambda: len(cluster.errors) == calls)
    cluster.until(cluster.alike)
    assert cluster.added(1)[0] == 2
    assert not cluster.nodes[leader].status.quarantined


def test_who_cannot_send_what_another_has_lets_that_one_lead():
    """Two of five nodes have the entry, which is no majority; one of the two has it intact."""
    cluster, leader, (having, *lacking) = damaged_before_it_is_committed("abcde", having=1)
    for name in lacking[:2]:
        cluster.start(name)
    index = cannot_be_sent(cluster, leader)
    cluster.start(having)
    assert cluster.leader() == having
    assert cluster.added(1)[0] == 12
    mended(cluster, leader, index)
    cluster.start(lacking[2])
    cluster.until(cluster.alike)
    assert not cluster.nodes[leader].status.quarantined


def test_what_is_damaged_in_the_log_and_not_in_the_state_is_not_waited_for():
    """The attachment is not repaired. The follower receives the state, which does not have it."""
    cluster, leader, other, (index, part), _ = damaged_in_the_log()
    for _ in range(HELD):
        cluster.added(1, b"y")
    last = cluster.nodes[leader].status.log_last
    cluster.heal()
    cluster.until(lambda: cluster.nodes[other].status.applied_index >= last, within_s=60)
    assert (leader, Damaged(G, index, part)) in cluster.events
    assert cluster.leaders == [leader]
    assert stats(cluster, other).installed == 1
