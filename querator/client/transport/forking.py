"""Forks of a process that uses the SDK.

gRPC cannot be used in a child process if it was in use in the parent at the instant of the fork:
the child has the locks and queues of threads that it does not have, and hangs or aborts. There is
no way to tidy up in the child. It is safe if gRPC is not in use in the parent at that instant,
which means: it has no channel, no call and no thread.

So the connections of all clients are closed before a fork, and opened again in the parent after it.
For the parent's calls and streams that is a lost connection, and they continue. The child begins
without gRPC, and makes clients of its own.

If gRPC is still in use at the fork, the child may not open connections: `UsedAfterFork` says why.
That is so when an async client is open on the event loop of the thread that forks, because its
connections cannot be closed without that loop; and when other code in the process uses gRPC, such
as a node (`querator.Node`).

gRPC's own hooks may crash the child while `grpc.aio` is in use. `querator/__init__` turns them off.

A process that forks without Python's hooks (uwsgi) is found out by its process id. Then the child
may open connections only if the parent has never opened one.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from querator.client.errors import UsedAfterFork

SLEEP_SECONDS: Final = 1.0
"""Limit for closing the connections, and for the end of gRPC's threads. Both take milliseconds,
except where other code keeps gRPC in use.
"""
_COLLECT_SECONDS: Final = 0.02
"""gRPC's objects that are still in use after this time may be in reference cycles."""
_PAUSE_SECONDS: Final = 0.001
_POLLER: Final = "_poll_wrapper"
"""Part of the name of the thread that grpc.aio runs while it has a channel."""
_CORE_THREADS: Final = ("grpc_global_tim", "event_engine", "lifeguard", "grpc_shutdown")
"""Names of threads of gRPC's core, as far as Linux shows them. The last one ends gRPC when the last
use of it ended on one of its own threads, and begins with the name of that thread. It holds a lock
that every channel needs.
"""
_READINGS_MOST: Final = 20
"""Bound on reading the list of threads while threads begin and end."""
_TASKS: Final = Path("/proc/self/task")

_WAY_OUT: Final = (
    "Start the process with the start method spawn or forkserver, or close what uses gRPC before "
    "the fork (docs/sdk.md, Processes)"
)


class Sleeper(Protocol):
    """Connections on one event loop."""

    loop: asyncio.AbstractEventLoop

    @property
    def connected(self) -> bool:
        """Whether any connection is open."""

    async def sleep(self) -> None:
        """Closes the connections, and opens none before `wake`. Called on the event loop."""

    def drop(self) -> None:
        """Gives up the connections. Called while the event loop does not run."""

    def wake(self) -> None:
        """Called on the event loop."""


class _State:
    """What this process knows of forks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.turn = threading.Lock()
        """Held by the thread that forks, also while the connections are being closed."""
        self.lock = threading.Lock()
        """Held while a connection is opened, and at the instant of a fork."""
        self.sleepers: weakref.WeakSet[Sleeper] = weakref.WeakSet()
        self.asleep: list[Sleeper] = []
        self.forking = False
        self.forks = 0
        """Number of forks of this process that have begun."""
        self.used = False
        """Whether a connection was opened since gRPC was last known not to be in use."""
        self.reason = ""
        """Why the child of the fork that is in progress may not use gRPC; empty: it may."""
        self.blocked = ""
        """Why this process may not use gRPC; empty: it may."""


_state = _State()


def register(sleeper: Sleeper) -> bool:
    """Has the sleeper put to sleep before each fork. Returns whether it must begin asleep, because
    a fork is in progress.
    """
    _notice_child()
    with _state.lock:
        _state.sleepers.add(sleeper)
        if _state.forking:
            _state.asleep.append(sleeper)
        return _state.forking


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """For the time in which a connection is opened: no fork happens meanwhile. Raises
    `UsedAfterFork` where gRPC cannot be used.
    """
    _notice_child()
    with _state.lock:
        if _state.blocked:
            raise UsedAfterFork(_state.blocked)
        _state.used = True
        yield


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """For a moment in which no thread of the process may fork."""
    _notice_child()
    with _state.lock:
        yield


def check_process(pid: int, what: str) -> None:
    """Raises `UsedAfterFork` unless this is the process `pid`, in which `what` was used first."""
    here = os.getpid()
    if here != pid:
        raise UsedAfterFork(
            f"this {what} was used in process {pid} before a fork, and cannot be used in process "
            f"{here}: make one in each process, for example in post_fork of gunicorn, "
            "worker_process_init of Celery, or the initializer of a ProcessPoolExecutor"
        )


def _before_fork() -> None:
    _state.turn.acquire()
    with _state.lock:
        _state.forking = True
        _state.forks += 1
    try:
        reason = _put_to_sleep()
    except Exception as defect:  # noqa: BLE001  the locks are taken, and the fork happens anyway
        reason = f"the connections could not be closed: {defect!r}"
    _state.lock.acquire()
    used_by = "" if reason else _grpc_in_use()
    if not reason and not used_by:
        _state.used = False
    _state.reason = _state.blocked or reason or used_by


def _put_to_sleep() -> str:
    """Closes the connections of all clients. Returns the reason why that is impossible, or an empty
    text.
    """
    with _state.lock:
        open_ones = [sleeper for sleeper in _state.sleepers if sleeper.connected]
    here = _running_loop()
    if any(sleeper.loop is here for sleeper in open_ones):
        return "a Client was open on the event loop of the thread that forked"
    falling: list[concurrent.futures.Future[None]] = []
    for sleeper in open_ones:
        if sleeper.loop.is_running():
            _state.asleep.append(sleeper)
            falling.append(
                asyncio.run_coroutine_threadsafe(_sleep(sleeper, _state.forks), sleeper.loop)
            )
        else:
            sleeper.drop()
    concurrent.futures.wait(falling, timeout=SLEEP_SECONDS)
    if _state.used:
        _wait_for_grpc()
    return ""


async def _sleep(sleeper: Sleeper, fork: int) -> None:
    """Puts the sleeper to sleep for this fork. On an event loop that was busy, the fork may be over
    when this begins, or when it ends: then `wake` has been called already.
    """
    if _state.forking and _state.forks == fork:
        await sleeper.sleep()
        if not _state.forking:
            sleeper.wake()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wait_for_grpc() -> None:
    """Waits for the end of gRPC's threads."""
    began = time.monotonic()
    collected = False
    while _grpc_in_use():
        waited = time.monotonic() - began
        if waited > SLEEP_SECONDS:
            return
        if waited > _COLLECT_SECONDS and not collected:
            gc.collect()
            collected = True
        time.sleep(_PAUSE_SECONDS)


def _grpc_in_use() -> str:
    """The thread that shows that gRPC is in use; empty if it is not."""
    for thread in threading.enumerate():
        if _POLLER in thread.name:
            return "gRPC was in use: it had an open channel or server"
    return next(
        (
            f"gRPC was in use: it had the thread {name}"
            for name in _native_threads().values()
            if name in _CORE_THREADS
        ),
        "",
    )


def _native_threads() -> dict[str, str]:
    """Names of the process's threads by their ids; none where the system does not show them. The
    list may leave out others when a thread ends meanwhile, so it is read until it does not change.
    """
    names = _listed_threads()
    for _ in range(_READINGS_MOST):
        before, names = names, _listed_threads()
        if names == before:
            break
    return names


def _listed_threads() -> dict[str, str]:
    names: dict[str, str] = {}
    # A thread may end meanwhile; its empty name makes the next list another one.
    with contextlib.suppress(OSError):
        for task in os.listdir(_TASKS):
            names[task] = ""
            with contextlib.suppress(OSError):
                names[task] = (_TASKS / task / "comm").read_text().strip()
    return names


def _after_fork_in_parent() -> None:
    _state.forking = False
    asleep, _state.asleep = _state.asleep, []
    _state.lock.release()
    _state.turn.release()
    for sleeper in asleep:
        # A loop that has ended has no use for its connections.
        with contextlib.suppress(RuntimeError):
            sleeper.loop.call_soon_threadsafe(sleeper.wake)


def _after_fork_in_child() -> None:
    """Begins the state of this process, which has that of its parent."""
    here, former = os.getpid(), _state.pid
    if not _state.forking and _state.used:
        _state.reason = "gRPC was in use, and Python's hooks for a fork were not called"
    if _state.reason:
        _state.blocked = (
            f"gRPC cannot be used in process {here}, which process {former} has forked: "
            f"{_state.reason}. {_WAY_OUT}"
        )
    _state.pid = here
    _state.turn, _state.lock = threading.Lock(), threading.Lock()
    _state.sleepers = weakref.WeakSet()
    _state.asleep = []
    _state.forking = _state.used = False
    _state.reason = ""


def _notice_child() -> None:
    """Notices a fork that did not call Python's hooks."""
    if _state.pid != os.getpid():
        _after_fork_in_child()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
