"""Requests and outcomes between the asyncio thread and the raft thread.

In: requests through a deque, with an eventfd that is written only while the raft thread sleeps.
Out: one `Outcome` per turn, delivered by one `call_soon_threadsafe`. Neither side ever blocks on
the other. The asyncio side bounds waiting requests before it puts them in.
"""

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, Replicas
from querator.raft.configuration import Change
from querator.raft.machine import Machine
from querator.storage.environment import ReadTransaction


class Call:
    """One proposal and the future of its caller: None, when the group proposed it for itself."""

    __slots__ = ("appended", "bytes", "deadline_s", "ended", "future", "group", "proposal")

    def __init__(
        self,
        group: GroupId,
        proposal: Proposal,
        future: "asyncio.Future[Any] | None",
        bytes_: int,
    ) -> None:
        self.group = group
        self.proposal = proposal
        self.future = future
        self.bytes = bytes_
        self.deadline_s = float("inf")
        """On the raft thread's clock, which sets it when it accepts the call; the call ends by
        then.
        """
        self.ended = False
        """Whether it has its answer, although its entry may yet be applied."""
        self.appended = False
        """Whether it may be in the log: from then on its outcome is never a refusal."""


class Open(msgspec.Struct, frozen=True):
    """Recover the replica of this node, or create it with `replicas` as the first configuration,
    which names it. Without `replicas` it is on disk.
    """

    group: GroupId
    machine: Machine
    future: "asyncio.Future[None]"
    replicas: Replicas


class Remove(msgspec.Struct, frozen=True):
    """Stop the group for good, and delete its rows. With `rows` False the future is done when the
    stop is on disk, and the rows stay.
    """

    group: GroupId
    future: "asyncio.Future[None]"
    rows: bool = True


class Read(msgspec.Struct, frozen=True):
    """Ends when a snapshot shows everything that was acknowledged before (Ongaro, section 6.4)."""

    group: GroupId
    future: "asyncio.Future[None]"


class Transfer(msgspec.Struct, frozen=True):
    """Hand the leadership to the replica on a node. `future` is None when the group does so
    itself.
    """

    group: GroupId
    to: NodeKey
    future: "asyncio.Future[None] | None"


class Reconfigure(msgspec.Struct, frozen=True):
    """Change the replicas; answered when the change is committed."""

    group: GroupId
    change: Change
    future: "asyncio.Future[None]"


class Mend(msgspec.Struct, frozen=True):
    """Write the bytes of an attachment again, which are damaged here and came from another replica.
    They are written only if `is_wanted` says, from a transaction on the group's rows, that they
    still belong there.
    """

    group: GroupId
    index: int
    part: int
    data: bytes
    is_wanted: "Callable[[ReadTransaction], bool]"
    future: "asyncio.Future[None]"


class Stop(msgspec.Struct, frozen=True):
    """Finish the accepted requests, then end."""


Request = Call | Open | Remove | Read | Transfer | Reconfigure | Mend | Stop


class Effects(msgspec.Struct, frozen=True):
    group: GroupId
    effects: Any


class Leadership(msgspec.Struct, frozen=True):
    group: GroupId
    leads: bool


class Leader(msgspec.Struct, frozen=True):
    """The leader as far as this node knows; None: this node knows of none."""

    group: GroupId
    node: NodeKey | None


class Quarantine(msgspec.Struct, frozen=True):
    group: GroupId
    error: BaseException


class Damaged(msgspec.Struct, frozen=True):
    """An attachment that another replica needs cannot be read here."""

    group: GroupId
    index: int
    part: int


Event = Effects | Leadership | Leader | Quarantine | Damaged


class Outcome:
    """Results of one turn, which may be published only after its sync."""

    __slots__ = ("done", "errors", "events", "results")

    def __init__(self) -> None:
        self.results: list[tuple[Call, Any]] = []
        self.errors: list[tuple[Call, BaseException]] = []
        self.done: list[tuple[asyncio.Future[None], BaseException | None]] = []
        """Futures of other requests that have ended, with the error if they failed."""
        self.events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(self.results or self.errors or self.done or self.events)


class Inbox:
    """Requests on their way to the raft thread. One thread takes and waits; any thread puts."""

    def __init__(self, *descriptors: int) -> None:
        """The wait also ends when one of `descriptors` is readable."""
        self._requests: deque[Request] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Edge-triggered: each write wakes once, and no thread needs to read the count back. Beside
        # a busy thread each avoided system call avoids a wait for the interpreter.
        self._poll = select.epoll()
        self._poll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)
        for descriptor in descriptors:
            self._poll.register(descriptor, select.EPOLLIN)
        self._asleep = False
        self._closing = threading.Lock()
        self._closed = False

    def put(self, request: Request) -> None:
        self._requests.append(request)
        # The sleeper sets `_asleep` before it checks the deque for the last time.
        if self._asleep:
            # Once for each sleep: later requests during it need no further call.
            self._asleep = False
            self.wake()

    def wake(self) -> None:
        """Ends the wait, or makes the next one short. Does nothing after `close`."""
        with self._closing:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def take_all(self, most: int) -> list[Request]:
        requests = self._requests
        return [requests.popleft() for _ in range(min(len(requests), most))]

    def __len__(self) -> int:
        return len(self._requests)

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until a request is there, `wake` is called or the timeout (None: never) has
        passed. Returns whether a descriptor may be readable.
        """
        if timeout_s is not None and timeout_s <= 0:
            return True
        readable = True
        self._asleep = True
        if not self._requests:
            ready = self._poll.poll(timeout_s)
            readable = any(descriptor != self._wake_fd for descriptor, _ in ready)
        self._asleep = False
        return readable

    def close(self) -> None:
        """To be called after the last `wait`. May be called again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._poll.close()
                os.close(self._wake_fd)
