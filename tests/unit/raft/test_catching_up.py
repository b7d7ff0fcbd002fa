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
from tests.unit.raft.register import HELD, RegisterMachine
from tests.unit.raft.trio import G, Machine, World, future, key

WINDOW = 4_000


def behind(*, entries: int = 60, seed: int = 1) -> tuple[World, str, str]:
    """A world, its leader, and a follower that was away for longer than the log reaches back."""
    world = World("a", "b", "c", seed=seed, log_bytes_kept=WINDOW)
    world.added(1)
    leader = world.leader()
    other = next(name for name in world.nodes if name != leader)
    world.until(world.alike)
    world.separate(other)
    for _ in range(entries):
        world.added(1, b"x" * 1_000)
    # The log waits for followers that were heard from recently.
    world.pass_s(12)
    world.added(1, b"x" * 1_000)
    assert world.nodes[leader].status.log_first > world.nodes[other].status.log_last + 1
    return world, leader, other


def stats(world: World, name: str) -> SnapshotStats:
    turns = world.nodes[name].turns
    assert turns is not None
    return turns.traffic.stats()


def generations_of(node: Machine) -> set[int]:
    """The generations that have rows on the node."""
    with node.environment.snapshot() as snapshot:
        return {
            int.from_bytes(row[1:9], "big") >> 48
            for row, _ in snapshot.scan(b"\0", b"\xff")
            if ALL[row[:1]].in_generations
        }


def test_a_follower_that_the_log_does_not_reach_gets_the_state_and_goes_on_with_the_log():
    world, leader, other = behind()
    world.heal()
    world.until(world.alike, within_s=5)
    assert stats(world, leader).sent == 1
    assert stats(world, other).installed == 1
    assert stats(world, other).bytes_received == stats(world, leader).bytes_sent > 0
    assert generations_of(world.nodes[other]) == {1}
    assert world.added(1)[0] == 63
    world.until(world.alike, within_s=1)
    # The follower keeps its state after a restart, and as the leader.
    world.stop(other)
    world.start(other)
    world.until(world.alike, within_s=5)
    for name in world.nodes:
        if name != other:
            world.stop(name)
    world.start(next(name for name in world.nodes if name != other))
    world.until(lambda: world.leaders, within_s=10)
    assert world.added(1)[0] == 64


def test_the_group_serves_meanwhile():
    world, leader, other = behind(entries=200)
    world.heal()
    while not stats(world, other).installed:
        world.add(leader, 1, b"y" * 1_000)
        world.pass_s(0.01)
    world.until(world.alike, within_s=5)
    assert (leader, Leadership(G, False)) not in world.events
    assert world.errors == []


@pytest.mark.parametrize("steps", [*range(1, 16), 20, 30])
@pytest.mark.parametrize("who", ["leader", "other", "both"])
def test_a_crash_at_any_step_of_it_loses_nothing_and_leaves_nothing(steps, who):
    world, leader, other = behind()
    world.heal()
    for _ in range(steps):
        world.step()
    names = {"leader": [leader], "other": [other], "both": [leader, other]}[who]
    for name in names:
        world.stop(name)
    for name in names:
        world.start(name)
    assert world.added(1)[0] == 63
    world.until(world.alike, within_s=20)
    world.until(lambda: all(len(generations_of(node)) == 1 for node in world.nodes.values()))


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_a_connection_that_breaks_in_the_middle_does_no_harm(steps):
    world, _, other = behind(entries=300)
    for _ in range(20):
        world.heal()
        for _ in range(steps):
            world.step()
        world.separate(other)
    world.heal()
    world.until(world.alike, within_s=20)
    world.until(lambda: len(generations_of(world.nodes[other])) == 1)


def test_a_tail_that_was_never_committed_goes_and_its_calls_end_as_unknown():
    world = World("a", "b", "c", log_bytes_kept=WINDOW)
    world.added(1)
    old = world.leader()
    world.until(world.alike)
    world.separate(old)
    for _ in range(3):
        world.add(old, 1_000)
    world.until(lambda: [name for name in world.leaders if name != old], within_s=3)
    world.until(lambda: old not in world.leaders, within_s=5)
    for _ in range(60):
        world.added(1, b"x" * 1_000)
    world.pass_s(5)
    for _ in range(5):
        world.added(1, b"x" * 1_000)
    world.heal()
    world.until(world.alike, within_s=5)
    assert stats(world, old).installed == 1
    codes = [error.code for error in world.errors if isinstance(error, QueratorError)]
    assert codes == [ErrorCode.OUTCOME_UNKNOWN] * 3


def test_a_new_replica_gets_the_state_as_a_learner_and_is_promoted():
    world, leader, other = behind()
    node = world.nodes[other]
    assert node.turns is not None
    node.turns = None
    node.environment = MemoryEnvironment()
    # The node comes back as another incarnation would: with another replica id.
    (old_id,) = (replica.id for replica in world.replicas if replica.node == key(other))
    change(world, leader, RemoveReplica(old_id))
    change(world, leader, AddLearner(9, key(other)))
    world.replicas = world.nodes[leader].status.replicas
    assert len(world.replicas) == 3
    world.cut.clear()
    world.start(other)
    world.until(world.alike, within_s=5)
    assert stats(world, other).installed == 1
    assert node.status.replicas == world.nodes[leader].status.replicas
    change(world, leader, Promote(9))
    world.until(lambda: all(replica.voter for replica in node.status.replicas))


def test_a_learner_that_hears_nothing_of_its_leader_does_not_name_it_any_more():
    """Otherwise its node would send requests for the group to the former leader, which refuses
    them.
    """
    world, leader, other = behind()
    world.heal()
    world.until(world.alike, within_s=5)
    node = world.nodes[other]
    (own,) = (replica.id for replica in world.replicas if replica.node == key(other))
    change(world, leader, RemoveReplica(own))
    node.turns = None
    node.environment = MemoryEnvironment()
    change(world, leader, AddLearner(9, key(other)))
    world.replicas = world.nodes[leader].status.replicas
    world.start(other)
    world.until(lambda: node.status.leader == key(leader), within_s=5)
    world.stop(leader)
    world.until(lambda: node.status.leader is None, within_s=5)


def change(world: World, leader: str, what: Change) -> None:
    """Returns when the change is committed."""
    asked = future()
    world.ask(leader, Reconfigure(G, what, asked))
    world.until(lambda: (asked, None) in world.done)


def test_the_log_waits_for_a_follower_that_is_heard_up_to_a_bound():
    world = World("a", "b", "c", log_bytes_kept=WINDOW)
    world.added(1)
    leader = world.leader()
    other = next(name for name in world.nodes if name != leader)
    world.until(world.alike)
    world.separate(other)
    sizes = []
    for _ in range(60):
        world.added(1, b"x" * 1_000)
        sizes.append(world.nodes[leader].status.log_bytes)
    assert WINDOW < max(sizes) <= PINNED_WINDOWS * WINDOW + 3_000
    world.pass_s(12)
    world.added(1, b"x" * 1_000)
    assert world.nodes[leader].status.log_bytes <= WINDOW + 2_000
    # A follower that is back soon needs no snapshot.
    world.heal()
    world.until(world.alike, within_s=5)
    world.separate(other)
    for _ in range(8):
        world.added(1, b"x" * 1_000)
    world.heal()
    world.until(world.alike, within_s=5)
    assert stats(world, leader).sent == 1


def test_a_group_is_deleted_with_all_its_generations():
    world, _, other = behind(entries=300)
    world.heal()
    while not stats(world, other).installed:
        world.step()
    world.separate(other)
    node = world.nodes[other]
    removed = future()
    world.ask(other, Remove(G, removed))
    world.until(lambda: removed in [one for one, _ in world.done])
    with node.environment.snapshot() as snapshot:
        assert list(snapshot.scan(b"\0", b"\xff")) == []


def test_a_deletion_that_was_interrupted_can_only_go_on():
    world, _, other = behind()
    world.heal()
    world.until(world.alike)
    node = world.nodes[other]
    txn = node.environment.begin()
    current = generations.read(txn, G).current
    assert not generations.delete_generations(txn, G, rows_max=2, bytes_max=1 << 20)
    mark_deleting(generations.write_view(txn, G, current), G)
    txn.commit(sync=True)
    world.stop(other)
    world.start(other)
    assert node.turns is not None
    assert node.turns.status(G) is None
    assert isinstance(world.done[-1][1], QueratorError)


def test_snapshots_of_many_groups_stand_in_line(monkeypatch):
    monkeypatch.setattr(snapshot_schedule, "SENT_MAX", 1)
    world = World("a", "b", "c", log_bytes_kept=WINDOW)
    groups = [GroupId(number) for number in range(2, 8)]
    for group in groups:
        for name in world.nodes:
            request = Open(group, RegisterMachine(group), future(), world.replicas)
            world.ask(name, request)
    world.separate("c")

    def leads(group: GroupId) -> str | None:
        for name, node in world.nodes.items():
            status = None if node.turns is None else node.turns.status(group)
            if status is not None and status.leads:
                return name
        return None

    def applied(group: GroupId) -> set[int]:
        found = set()
        for node in world.nodes.values():
            status = None if node.turns is None else node.turns.status(group)
            assert status is not None
            found.add(status.applied_index)
        return found

    for group in groups:
        world.until(partial(leads, group))
    for _ in range(12):
        for group in groups:
            leader = leads(group)
            assert leader is not None
            world.ask(leader, Call(group, Proposal(1, b"x" * 1_000), future(), 2_000))
        world.pass_s(1)
    world.pass_s(2)
    # The leaders do not retry without need while the node is away.
    turns = world.turns
    world.pass_s(10)
    assert world.turns - turns < 10 * 3 * 20
    world.heal()
    world.until(lambda: all(len(applied(group)) == 1 for group in groups), within_s=3)
    assert stats(world, "c").installed == len(groups)


def sent_to(world: World, name: str, leader: str) -> int:
    """Sends the leader's whole state to the follower by hand, and returns the state's index."""
    node = world.nodes[leader]
    assert node.turns is not None
    group = node.turns._groups[G]
    sender = SnapshotSender(
        node.environment,
        G,
        0,
        group.journal.position,
        term=node.status.term,
        number=1,
        now_s=world.clock.monotonic_s(),
    )
    while not sender.over:
        world.said(name)
        world.hear(name, leader, *sender.step(world.clock.monotonic_s(), MIB))
        for message in world.said(name):
            if isinstance(message, SnapshotReply):
                sender.on_reply(message, world.clock.monotonic_s())
    assert sender.failed is None
    assert sender.end is not None
    assert sender.done == sender.end.index
    return sender.done


def lagging() -> tuple[World, str, str, list[LogEntry]]:
    """A follower that lacks the leader's last entry. Returned with that entry and one more, which
    only the leader may have later.
    """
    world = World("a", "b", "c")
    world.added(1)
    leader = world.leader()
    world.until(world.alike)
    other = next(name for name in world.nodes if name != leader)
    world.separate(other)
    world.added(1, b"x" * 10)
    node = world.nodes[leader]
    world.until(lambda: node.status.applied_index == node.status.log_last)
    assert node.turns is not None
    journal = node.turns._groups[G].journal
    (last,) = journal.entries(node.environment.snapshot, node.status.log_last, MIB)
    return world, leader, other, [last, LogEntry(last.term, last.now_ms, last.kind, last.command)]


def appended(world: World, name: str, leader: str, *entries: LogEntry) -> None:
    """The follower receives entries, and no news of what is committed."""
    status = world.nodes[name].status
    message = Append(
        term=world.nodes[leader].status.term,
        sequence=1_000,
        read_round=0,
        prev_index=status.log_last,
        prev_term=status.term,
        commit_index=0,
        entries=entries,
    )
    world.hear(name, leader, message)


def test_what_is_acknowledged_behind_the_place_of_a_snapshot_stays():
    world, leader, other, entries = lagging()
    appended(world, other, leader, *entries)
    before = world.nodes[other].status
    assert before.commit_index < before.log_last - 1
    index = sent_to(world, other, leader)
    after = world.nodes[other].status
    assert index == before.log_last - 1
    assert (after.log_last, after.commit_index) == (before.log_last, index)
    assert stats(world, other).installed == 0
    world.until(lambda: len(generations_of(world.nodes[other])) == 1)


def test_a_log_that_ends_before_that_place_is_replaced():
    world, leader, other, _ = lagging()
    index = sent_to(world, other, leader)
    after = world.nodes[other].status
    assert (after.log_first, after.log_last, after.commit_index) == (index + 1, index, index)
    assert stats(world, other).installed == 1


def test_a_snapshot_of_what_is_committed_already_changes_nothing():
    world = World("a", "b", "c")
    world.added(1)
    leader = world.leader()
    world.until(world.alike)
    other = next(name for name in world.nodes if name != leader)
    before = world.nodes[other].status
    assert sent_to(world, other, leader) == before.applied_index
    assert stats(world, other).installed == 0
    assert world.nodes[other].status.log_first == before.log_first


def test_what_a_deposed_leader_sends_is_not_heard():
    world = World("a", "b", "c")
    world.added(1)
    leader = world.leader()
    other = next(name for name in world.nodes if name != leader)
    world.said(other)
    world.hear(other, leader, SnapshotOffer(world.nodes[other].status.term - 1, 9))
    assert not [said for said in world.said(other) if isinstance(said, SnapshotReply)]


def test_what_a_leader_cannot_send_is_told_and_sent_when_it_is_mended():
    world, leader, other = behind()
    environment = world.nodes[leader].environment
    with environment.snapshot() as txn:
        row, stored = list(ATTACHMENTS.rows(txn, G))[-1]
    index, part = map(int, ATTACHMENTS.parts(row))
    environment._rows[row] = stored[:-1] + b"?"
    world.heal()

    def told() -> bool:
        return (leader, Damaged(G, index, part)) in world.events

    world.until(told, within_s=60)
    assert not world.nodes[leader].status.quarantined
    data = stored[SEAL_BYTES:]
    world.ask(
        leader,
        Mend(
            group=G, index=index, part=part, data=data, is_wanted=lambda txn: True, future=future()
        ),
    )
    world.until(world.alike, within_s=60)
    with world.nodes[other].environment.snapshot() as txn:
        view = generations.view(txn, G)
        assert attachments.read(view, G, index, part) == data


def damaged_in_the_log() -> tuple[World, str, str, tuple[int, int], bytes]:
    """A world, its leader, a follower that needs an attachment which is damaged on the leader, the
    attachment's index and part, and its row before the damage.
    """
    world = World("a", "b", "c")
    world.added(1)
    leader = world.leader()
    other = next(name for name in world.nodes if name != leader)
    world.until(world.alike)
    world.separate(other)
    # More entries than the leader keeps in memory.
    for _ in range(LOG_CACHE_BYTES // MIB + 2):
        world.added(1, b"x" * MIB)
    environment = world.nodes[leader].environment
    with environment.snapshot() as txn:
        row, stored = next(iter(ATTACHMENTS.rows(txn, G)))
    index, part = map(int, ATTACHMENTS.parts(row))
    environment._rows[row] = stored[:-1] + b"?"
    return world, leader, other, (index, part), stored


def test_what_is_found_to_be_damaged_with_a_heartbeat_is_told(monkeypatch):
    world, leader, _, place, _ = damaged_in_the_log()
    monkeypatch.setattr(Group, "_send", lambda _: None)
    world.heal()
    world.until(lambda: (leader, Damaged(G, *place)) in world.events, within_s=60)


def test_what_a_leader_cannot_send_of_its_log_is_told_and_sent_when_it_is_mended():
    world, leader, other, (index, part), stored = damaged_in_the_log()
    last = world.nodes[leader].status.log_last
    world.heal()
    world.until(lambda: (leader, Damaged(G, index, part)) in world.events, within_s=60)
    data = stored[SEAL_BYTES:]
    world.ask(
        leader,
        Mend(
            group=G, index=index, part=part, data=data, is_wanted=lambda txn: True, future=future()
        ),
    )
    world.until(lambda: world.nodes[other].status.applied_index >= last, within_s=60)
    with world.nodes[other].environment.snapshot() as txn:
        assert attachments.read(txn, G, index, part) == data
    assert world.leaders == [leader]
    assert not stats(world, other).installed


def damaged_before_it_is_committed(names: str, *, having: int) -> tuple[World, str, list[str]]:
    """A world after a power loss, with a last entry that no node knows to be committed. Returned
    with the former leader, on which the entry's attachment is damaged, and the other nodes. The
    first `having` of these have the entry intact. All other nodes are off.
    """
    world = World(*names)
    world.added(1)
    leader = world.leader()
    world.until(world.alike)
    others = [name for name in names if name != leader]
    world.muted |= {(name, leader) for name in others}
    world.muted |= {(leader, name) for name in others[having:]}
    world.add(leader, 10, b"x" * 100)
    world.pass_s(0.1)
    last = world.nodes[leader].status.log_last
    assert world.nodes[leader].status.applied_index == last - 1
    have = [name for name in others if world.nodes[name].status.log_last == last]
    assert have == others[:having]
    for name in names:
        world.stop(name)
    world.muted.clear()
    environment = world.nodes[leader].environment
    with environment.snapshot() as txn:
        row, stored = list(ATTACHMENTS.rows(txn, G))[-1]
    assert ATTACHMENTS.parts(row) == (last, 0)
    environment._rows[row] = stored[:-1] + b"?"
    world.start(leader)
    return world, leader, others


def cannot_be_sent(world: World, leader: str) -> int:
    """Waits until the leader has found that it cannot send the entry before its no-op, and returns
    that entry's index.
    """
    index = world.nodes[leader].status.log_last
    world.until(lambda: (leader, Damaged(G, index, 0)) in world.events)
    assert world.nodes[leader].status.log_last == index + 1
    return index


def mended(world: World, name: str, index: int) -> None:
    request = Mend(
        group=G, index=index, part=0, data=b"x" * 100, is_wanted=lambda txn: True, future=future()
    )
    world.ask(name, request)


def test_what_may_be_committed_and_cannot_be_sent_is_waited_for():
    """The node that has the entry is away. No other node could be elected without it: the leader
    stays.
    """
    world, leader, (having, lacking) = damaged_before_it_is_committed("abc", having=1)
    world.start(lacking)
    index = cannot_be_sent(world, leader)
    term = world.nodes[leader].status.term
    world.pass_s(2 * UNREAD_S)
    world.start(having)
    assert world.leader() == leader
    assert world.nodes[leader].status.term == term
    world.until(lambda: world.nodes[leader].status.applied_index > index)
    mended(world, leader, index)
    world.until(world.alike)
    assert world.added(1)[0] == 12
    with world.nodes[lacking].environment.snapshot() as txn:
        assert attachments.read(txn, G, index, 0) == b"x" * 100
    # No snapshot would have helped: no state contained the entry.
    assert (stats(world, leader).sent, stats(world, leader).failed) == (0, 0)


def test_who_cannot_send_what_nobody_else_has_lets_another_lead():
    """The entry was not acknowledged to any client, and is replaced."""
    world, leader, (one, other) = damaged_before_it_is_committed("abc", having=0)
    world.start(one)
    cannot_be_sent(world, leader)
    world.start(other)
    assert world.leader() != leader
    world.until(world.alike)
    assert world.added(1)[0] == 2
    world.until(world.alike)
    assert not world.nodes[leader].status.quarantined


def test_what_a_follower_has_is_committed_when_its_acknowledgement_was_lost():
    """The leader can no longer read the entry. A third replica is away."""
    world = World("a", "b", "c")
    world.added(1)
    leader = world.leader()
    world.until(world.alike)
    having, away = [name for name in world.nodes if name != leader]
    world.stop(away)
    world.muted.add((having, leader))
    index = world.nodes[leader].status.log_last + 1
    for _ in range(LOG_UNAPPLIED_CACHE_BYTES // MIB + 2):
        world.add(leader, 1, b"x" * MIB)
    last = world.nodes[leader].status.log_last
    world.until(lambda: world.nodes[having].status.log_last == last)
    rows = world.nodes[leader].environment._rows
    row = ATTACHMENTS.key(G, index, 0)
    rows[row] = rows[row][:-1] + b"?"
    world.separate(leader)
    world.pass_s(0.05)
    world.heal()
    world.until(lambda: world.nodes[leader].status.commit_index >= last)
    assert world.leaders == [leader]


def test_who_gives_way_with_calls_in_its_log_answers_them():
    world = World("a", "b", "c")
    world.added(1)
    leader = world.leader()
    world.until(world.alike)
    others = [name for name in world.nodes if name != leader]
    index = world.nodes[leader].status.log_last + 1
    world.muted |= {(leader, name) for name in others}
    # More than the leader keeps of its log in memory, committed or not.
    calls = LOG_UNAPPLIED_CACHE_BYTES // MIB + 2
    for _ in range(calls):
        world.add(leader, 1, b"x" * MIB)
    row = ATTACHMENTS.key(G, index, 0)
    rows = world.nodes[leader].environment._rows
    rows[row] = rows[row][:-1] + b"?"
    world.muted.clear()
    world.until(lambda: (leader, Damaged(G, index, 0)) in world.events)
    assert world.leaders == [leader]
    world.until(lambda: (leader, Leadership(G, False)) in world.events)
    assert (leader, Leader(G, None)) in world.events
    assert world.leader() != leader
    world.until(lambda: len(world.errors) == calls)
    world.until(world.alike)
    assert world.added(1)[0] == 2
    assert not world.nodes[leader].status.quarantined


def test_who_cannot_send_what_another_has_lets_that_one_lead():
    """Two of five nodes have the entry, which is no majority; one of the two has it intact."""
    world, leader, (having, *lacking) = damaged_before_it_is_committed("abcde", having=1)
    for name in lacking[:2]:
        world.start(name)
    index = cannot_be_sent(world, leader)
    world.start(having)
    assert world.leader() == having
    assert world.added(1)[0] == 12
    mended(world, leader, index)
    world.start(lacking[2])
    world.until(world.alike)
    assert not world.nodes[leader].status.quarantined


def test_what_is_damaged_in_the_log_and_not_in_the_state_is_not_waited_for():
    """The attachment is not repaired. The follower receives the state, which does not have it."""
    world, leader, other, (index, part), _ = damaged_in_the_log()
    for _ in range(HELD):
        world.added(1, b"y")
    last = world.nodes[leader].status.log_last
    world.heal()
    world.until(lambda: world.nodes[other].status.applied_index >= last, within_s=60)
    assert (leader, Damaged(G, index, part)) in world.events
    assert world.leaders == [leader]
    assert stats(world, other).installed == 1
