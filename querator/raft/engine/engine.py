"""PySyncObj's class with everything but its terms, states and commit rule shut.

What it never does here, because as shipped it loses acknowledged writes or does not heal:

    stock                               here
    ----------------------------------  ------------------------------------------------------------
    journal in a file, never synced     `raft.log.journal`, in the turn's synced transaction
    every message cuts the log          only an entry of another term does, and never a committed
                                        one: that stops the group
    commit index up to the log's end    up to what a message of this leader has been checked for
    replies without term                term and number of the message they answer
    progress moved back by successes    `raft.consensus.replication`
    votes counted                       voters counted, by the ids of the configuration
    an election whenever time is up     only after a majority has said that it would vote
                                        (pre-vote), and never while a leader is heard (section 9.6)
    apply inside the tick               `raft.group.group` applies after it, in one transaction
    command queue, forwarding, pickle,  none
    dump file, TCP, poller, thread

A stock path that is called all the same is an AssertionError, which stops the node.
"""

from collections.abc import Callable
from typing import Any

from querator.raft.engine.library import Node, NoPoller, SyncObj, settings
from querator.raft.engine.transport import Votes

_NO_POLLER = NoPoller()


class Stock(SyncObj):  # type: ignore[misc]
    """What `raft.consensus.member` builds on. `request_vote` asks one replica, when the library
    says so.
    """

    def __init__(self, replica: int, request_vote: Callable[[int], None]) -> None:
        super().__init__(Node(replica), (), conf=settings(), transport=Votes(request_vote))
        self._poller = _NO_POLLER

    def __dir__(self) -> list[str]:
        """Nothing: the library looks through all names of each member for replicated methods, which
        is most of the time it takes to make one."""
        return []

    def _SyncObj__onSetCodeVersion(self, version: int) -> None:
        assert version == 0, "versions of replicated methods are never used"

    def _SyncObj__applyLogEntries(self) -> bool:
        """`raft.group.group` applies after the tick. False: no message is wanted because of it."""
        return False

    def _checkCommandsToApply(self) -> None:
        """Nothing waits in the library's queue."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """The journal bounds itself."""

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
