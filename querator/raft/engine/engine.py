"""PySyncObj's class, reduced to its terms, states and commit rule.

The library as published loses acknowledged writes or does not recover. So it never does the
following here:

    stock                               here
    ----------------------------------  ------------------------------------------------------------
    journal in a file, never synced     `raft.log.journal`, in the turn's synced transaction
    every message cuts the log          only an entry of another term cuts it, and never a committed
                                        one: that stops the group
    commit index up to the log's end    up to the entry that was checked with this leader's message
    replies without term                term and number of the message they answer
    progress moved back by successes    `raft.consensus.replication`
    votes counted                       voters counted, by the ids of the configuration
    an election at each timeout         only after a majority has said that it would vote
                                        (pre-vote), and never while a leader is heard (section 9.6)
    apply inside the tick               `raft.group.group` applies after it, in one transaction
    command queue, forwarding, pickle,  none
    dump file, TCP, poller, thread

A call of a stock path is an AssertionError, which stops the node.
"""

from collections.abc import Callable
from typing import Any

from querator.raft.engine.library import Node, NoPoller, SyncObj, settings
from querator.raft.engine.transport import VoteTransport

_NO_POLLER = NoPoller()


class PySyncObjEngine(SyncObj):  # type: ignore[misc]
    """Base class of `raft.consensus.voter.Voter`. The library calls `request_vote` to ask one
    replica for its vote.
    """

    def __init__(self, replica: int, request_vote: Callable[[int], None]) -> None:
        super().__init__(Node(replica), (), conf=settings(), transport=VoteTransport(request_vote))
        self._poller = _NO_POLLER

    def __dir__(self) -> list[str]:
        """Returns no names. The library searches all names of each member for replicated methods,
        which takes most of the time of its construction.
        """
        return []

    def _SyncObj__onSetCodeVersion(self, version: int) -> None:
        assert version == 0, "versions of replicated methods are never used"

    def _SyncObj__applyLogEntries(self) -> bool:
        """Does nothing: `raft.group.group` applies after the tick. False: the library need not send
        anything because of it.
        """
        return False

    def _checkCommandsToApply(self) -> None:
        """Does nothing: the library's queue is always empty."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """Does nothing: the journal bounds itself."""

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
