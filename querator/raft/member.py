"""One member of a Raft group: PySyncObj's class with everything but its elections and commit rule
taken out.

What the library still does: terms and votes, the states follower, candidate and leader,
randomised election timeouts, the no-op of a new leader, and the leader's commit rule (an entry is
committed when a majority holds it and it is of the leader's own term; Ongaro, section 3.6.2).

What it never does here, because as shipped it loses acknowledged writes:

    stock                               here
    ----------------------------------  ------------------------------------------------------------
    journal in a file, never synced     `raft.journal`, in the turn's synced transaction
    apply inside the tick, a raising    `raft.group` applies after the tick, with index and term, in
    callback applies an entry twice     one transaction with the applied index
    command queue, drained by time      `append`, called by the turn
    forwarding to the leader            the leader's node is asked by the caller
    compaction by dump file             `raft.journal` lets the head of the log go
    pickle                              commands are bytes of the machine
    TCP, poller, pipe, thread           the raft thread drives every member

Order in a turn. The library counts its own log in the commit rule as soon as an entry is in
memory. A group with one voter may use that: append, tick (commits up to the end of the open
transaction), apply, sync, and only then answer. With more voters an entry must be durable before
the tick that counts it: `tick` asserts it.
"""

import random
from typing import Any

from querator.model.ids import GroupId
from querator.raft.journal import Journal, Stamped
from querator.raft.library import Node, NoPoller, SyncObj, configuration
from querator.raft.transport import NoPeers

_NO_POLLER = NoPoller()


class Member(SyncObj):  # type: ignore[misc]
    """`replica` is this member's id in the group; it is what votes name.

    The thread must be bound to a clock (`library.bind`). `chance` draws election timeouts.
    """

    def __init__(
        self,
        group: GroupId,
        journal: Journal,
        *,
        replica: int,
        applied_index: int,
        chance: random.Random,
    ) -> None:
        self.group = group
        self._journal = journal
        self._chance = chance
        super().__init__(Node(replica), (), conf=configuration(), transport=NoPeers())
        assert applied_index <= journal.last_index
        self._poller = _NO_POLLER
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = journal.getCurrentTerm()
        self._SyncObj__votedForNodeId = journal.getVotedForNodeId()
        self._SyncObj__raftCommitIndex = applied_index
        self._SyncObj__raftLastApplied = applied_index
        # Nobody else could lead: a lone member stands for election with its first tick.
        self._SyncObj__raftElectionDeadline = float("-inf")

    # --- what the turn calls -------------------------------------------------------

    @property
    def leads(self) -> bool:
        return bool(self._isLeader())

    @property
    def term(self) -> int:
        return int(self.raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self.raftCommitIndex)

    def office_index(self) -> int:
        """Index of the no-op of the own term; a leader is in office when it is applied."""
        assert self.leads
        index: int = self._SyncObj__noopIDx
        return index

    @property
    def leader(self) -> int | None:
        """Replica id of the leader as far as this member knows."""
        node = self._getLeader()
        return None if node is None else int(node.id)

    def append(self, stamped: Stamped) -> int:
        """Puts an entry into the log and returns its index. Only the leader's member."""
        assert self.leads
        index = self._journal.last_index + 1
        self._journal.add(stamped, index, self.term)
        return index

    def tick(self) -> None:
        """Once per turn: elections, and the commit index."""
        term, commit = self.term, self.commit_index
        self.doTick(0.0)
        assert self.term >= term
        assert commit <= self.commit_index <= self._journal.last_index
        alone = not self._SyncObj__otherNodes
        assert alone or self.commit_index <= self._journal.durable_index

    def applied(self, index: int) -> None:
        """Entries up to `index` are applied in the open transaction."""
        assert self._SyncObj__raftLastApplied <= index <= self.commit_index
        self._SyncObj__raftLastApplied = index

    # --- what the library calls, replaced ---------------------------------------------

    def _SyncObj__generateRaftTimeout(self) -> float:
        conf = self._getConf()
        spread: float = conf.raftMaxTimeout - conf.raftMinTimeout
        return float(conf.raftMinTimeout) + spread * self._chance.random()

    def __dir__(self) -> list[str]:
        """Nothing: the library looks through all names of each member for replicated methods, which
        is most of the time it takes to make one."""
        return []

    def _SyncObj__onSetCodeVersion(self, version: int) -> None:
        assert version == 0, "versions of replicated methods are never used"

    def _SyncObj__applyLogEntries(self) -> bool:
        """Applied after the tick, by `raft.group`. False: no message is wanted because of it."""
        return False

    def _checkCommandsToApply(self) -> None:
        """Nothing waits in the library's queue."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """The journal bounds itself."""

    def _SyncObj__sendAppendEntries(self) -> None:
        assert not self._SyncObj__otherNodes, "replication to others needs its own protocol"

    def _refused(self, *_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("a stock path of PySyncObj that is never used")

    _applyCommand = _refused
    _SyncObj__onMessageReceived = _refused
    _SyncObj__doApplyCommand = _refused
    _SyncObj__loadDumpFile = _refused
    _SyncObj__changeCluster = _refused
    _SyncObj__doChangeCluster = _refused
    forceLogCompaction = _refused
    setCodeVersion = _refused
    addNodeToCluster = _refused
    removeNodeFromCluster = _refused
    transferLeadership = _refused
    destroy = _refused
