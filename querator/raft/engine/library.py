"""The one door to PySyncObj: checked, without its timers, and under the caller's clock and chance.

`pysyncobj.syncobj` reads time through the module global `monotonicTime`. It is replaced by a
look-up of the clock that the current thread is bound to, so that several nodes of one process
(embedded nodes, the simulator) each live under their own. Election timeouts are drawn by
`raft.consensus.voter` from a source handed to it.
"""

import threading
from typing import Any

from querator.raft.clock import Clock
from querator.raft.engine import pinned

pinned.check(pinned.directory())

# The files must be checked before the first of them is run.
import pysyncobj.syncobj as _syncobj  # noqa: E402
from pysyncobj.config import SyncObjConf  # noqa: E402
from pysyncobj.journal import Journal as LibraryJournal  # noqa: E402
from pysyncobj.node import Node  # noqa: E402
from pysyncobj.syncobj import SyncObj  # noqa: E402
from pysyncobj.transport import Transport  # noqa: E402

__all__ = [
    "CANDIDATE",
    "FOLLOWER",
    "LEADER",
    "NO_OP",
    "LibraryJournal",
    "NoPoller",
    "Node",
    "SyncObj",
    "Transport",
    "bind",
    "settings",
]

NO_OP: bytes = bytes([_syncobj._COMMAND_TYPE.NO_OP])
"""The command that the library appends to the log when a member becomes leader."""

FOLLOWER: int = _syncobj._RAFT_STATE.FOLLOWER
CANDIDATE: int = _syncobj._RAFT_STATE.CANDIDATE
LEADER: int = _syncobj._RAFT_STATE.LEADER

_bound = threading.local()


def bind(clock: Clock) -> None:
    """Puts the library under `clock` for the calls of this thread, until it is bound to another."""
    _bound.monotonic_s = clock.monotonic_s


def _monotonic_time() -> float:
    """Raises AttributeError in a thread that is bound to no clock."""
    now: float = _bound.monotonic_s()
    return now


_syncobj.monotonicTime = _monotonic_time


class NoPoller:
    """The raft thread waits for all groups in one place; a group never waits for itself."""

    def subscribe(self, descriptor: int, callback: Any, event_mask: int) -> None:
        raise AssertionError("the library opens no descriptors")

    def unsubscribe(self, descriptor: int) -> None:
        raise AssertionError("the library opens no descriptors")

    def poll(self, timeout_s: float) -> None:
        """Nothing to look at."""


def settings() -> Any:
    """Settings of every member: no thread, no file, no fork, no pipe, no forwarding.

    Elections come after 1.2-2.4 s of silence; the library demands that they are more than three
    heartbeats away. A leader that hears no majority for as long steps down.
    """
    return SyncObjConf(
        autoTick=False,
        journalFile=None,
        fullDumpFile=None,
        useFork=False,
        appendEntriesUseBatch=True,
        dynamicMembershipChange=False,
        commandsWaitLeader=False,
        appendEntriesPeriod=0.35,
        raftMinTimeout=1.2,
        raftMaxTimeout=2.4,
        leaderFallbackTimeout=2.4,
        connectionTimeout=3.5,
    )
