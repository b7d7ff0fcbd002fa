"""The only import of PySyncObj: checked, without its timers, and under the caller's clock and
randomness.

`pysyncobj.syncobj` reads time through the module global `monotonicTime`. A look-up of the clock
that the current thread is bound to replaces it, so that several nodes of one process (embedded
nodes, the simulator) each use their own clock. `raft.consensus.voter` draws election timeouts from
a source that its caller passes in.
"""

import threading
from typing import Any

from querator.raft.clock import Clock
from querator.raft.engine import pinned
from querator.raft.timing import ELECTION_TIMEOUT_S_MAX, ELECTION_TIMEOUT_S_MIN, HEARTBEAT_S

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
    """Makes the library use `clock` for the calls of this thread, until the thread is bound to
    another.
    """
    _bound.monotonic_s = clock.monotonic_s


def _monotonic_time() -> float:
    """Raises AttributeError in a thread that is bound to no clock."""
    now: float = _bound.monotonic_s()
    return now


_syncobj.monotonicTime = _monotonic_time


class NoPoller:
    """Replaces the library's poller: the raft thread waits for all groups in one place."""

    def subscribe(self, descriptor: int, callback: Any, event_mask: int) -> None:
        raise AssertionError("the library opens no descriptors")

    def unsubscribe(self, descriptor: int) -> None:
        raise AssertionError("the library opens no descriptors")

    def poll(self, timeout_s: float) -> None:
        """Does nothing: there is nothing to poll."""


def settings() -> Any:
    """Settings of every member: no thread, no file, no fork, no pipe, no forwarding.

    An election follows 1.2-2.4 s of silence; the library demands more than three heartbeats. A
    leader that hears no majority for 2.4 s steps down.
    """
    return SyncObjConf(
        autoTick=False,
        journalFile=None,
        fullDumpFile=None,
        useFork=False,
        appendEntriesUseBatch=True,
        dynamicMembershipChange=False,
        commandsWaitLeader=False,
        appendEntriesPeriod=HEARTBEAT_S,
        raftMinTimeout=ELECTION_TIMEOUT_S_MIN,
        raftMaxTimeout=ELECTION_TIMEOUT_S_MAX,
        leaderFallbackTimeout=ELECTION_TIMEOUT_S_MAX,
        connectionTimeout=3.5,
    )
