"""The pinned library, and the member class over it."""

import random
import shutil
import threading

import pytest

from querator.model.entries import Entry
from querator.model.ids import GroupId
from querator.model.nodes import Replica, node_key
from querator.raft.clock import SimulatedClock
from querator.raft.configuration import AddLearner, Promote
from querator.raft.consensus.loop_watch import LoopWatch
from querator.raft.consensus.member import Member
from querator.raft.consensus.skew import Skew
from querator.raft.engine import library, pinned
from querator.raft.log.journal import Journal, Stamped
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.peers import NoPeers
from querator.storage.memory_environment import MemoryEnvironment


def member() -> tuple[Member, Journal]:
    clock = SimulatedClock()
    library.bind(clock)
    journal = Journal(GroupId(1), replicas=(Replica(1, node_key("a", "1")),))
    made = Member(
        GroupId(1),
        journal,
        applied_index=0,
        clock=clock,
        chance=random.Random(1),
        skew=Skew(clock),
        loop_watch=LoopWatch(),
        outbox=PeerOutbox(NoPeers()),
        snapshots=MemoryEnvironment().snapshot,
    )
    return made, journal


def test_the_installed_library_is_the_pinned_one():
    pinned.check(pinned.directory())


def test_a_changed_file_is_refused_by_name(tmp_path):
    copy = tmp_path / "pysyncobj"
    shutil.copytree(pinned.directory(), copy)
    pinned.check(copy)
    with (copy / "transport.py").open("a") as file:
        file.write("\n")
    with pytest.raises(pinned.WrongLibrary, match=r"transport\.py .*0\.3\.17"):
        pinned.check(copy)


def test_a_missing_file_is_refused_by_name(tmp_path):
    copy = tmp_path / "pysyncobj"
    shutil.copytree(pinned.directory(), copy)
    (copy / "node.py").unlink()
    with pytest.raises(pinned.WrongLibrary, match=r"node\.py .*absent"):
        pinned.check(copy)


def test_a_lone_member_leads_and_commits_with_its_first_tick():
    one, journal = member()
    one.tick()
    assert one.leads
    assert (one.term, one.leader) == (1, 1)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (1, 1)
    assert one.commit_index == one.no_op_index() == 1
    index = one.append(Stamped(Entry(b"command"), 0))
    assert one.commit_index == 1
    one.tick()
    assert one.commit_index == index == 2


def test_with_other_voters_its_own_copy_of_an_entry_counts_when_it_is_durable():
    one, journal = member()
    one.tick()
    one.reconfigure(AddLearner(2, node_key("b", "1")))
    index = one.reconfigure(Promote(2))
    # The other voter has the entry on its disk; the own voter has it in memory only.
    one.progress[2].match = index
    assert journal.durable_index == 0
    one.tick()
    assert one.commit_index == 1
    journal.durable_index = index
    one.tick()
    assert one.commit_index == one.certain_index == index


def test_a_majority_of_others_commits_what_the_leader_has_not_written():
    one, journal = member()
    one.tick()
    index = 0
    for id_ in (2, 3):
        one.reconfigure(AddLearner(id_, node_key("abc"[id_ - 1], "1")))
        index = one.reconfigure(Promote(id_))
    one.progress[2].match = index
    one.tick()
    assert one.commit_index == 1
    one.progress[3].match = index - 1
    one.tick()
    assert journal.durable_index == 0
    assert one.commit_index == one.certain_index == index - 1


@pytest.mark.parametrize(
    "path",
    ["setCodeVersion", "addNodeToCluster", "removeNodeFromCluster", "forceLogCompaction"],
)
def test_stock_paths_that_lose_data_are_shut(path):
    one, _ = member()
    with pytest.raises(AssertionError, match="never used"):
        getattr(one, path)(None)


def test_a_member_opens_no_thread():
    # A thread of an earlier test may end meanwhile.
    before = set(threading.enumerate())
    members = [member() for _ in range(10)]
    assert set(threading.enumerate()) <= before
    assert len(members) == 10


def test_threads_live_under_their_own_clocks():
    library.bind(SimulatedClock(monotonic_s=5))
    seen: list[float] = []

    def elsewhere() -> None:
        library.bind(SimulatedClock(monotonic_s=7))
        seen.append(library._monotonic_time())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [*seen, library._monotonic_time()] == [7, 5]
