"""What passes between the asyncio thread and the raft thread.

In: requests through a deque, with an eventfd that is written only while the raft thread sleeps.
Out: one `Outcome` per turn, handed over by one `call_soon_threadsafe`. Neither side ever blocks
on the other; what may wait is bounded on the asyncio side, before it is put in.
"""

import asyncio
import os
import select
import threading
from collections import deque
from typing import Any

import msgspec

from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.raft.machine import Machine


class Call:
    """One proposal and who waits for it: nobody, when the group proposed it for itself."""

    __slots__ = ("appended", "bytes", "future", "group", "proposal")

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
        self.appended = False
        """Whether it may be in the log: from then on its outcome is never called a refusal."""


class Open(msgspec.Struct, frozen=True):
    """Recover the group, or create it."""

    group: GroupId
    machine: Machine
    future: "asyncio.Future[None]"


class Remove(msgspec.Struct, frozen=True):
    """Stop the group and delete its rows."""

    group: GroupId
    future: "asyncio.Future[None]"


class Stop(msgspec.Struct, frozen=True):
    """Finish what was taken on, then end."""


Request = Call | Open | Remove | Stop


class Effects(msgspec.Struct, frozen=True):
    group: GroupId
    effects: Any


class Leadership(msgspec.Struct, frozen=True):
    group: GroupId
    leads: bool


class Quarantine(msgspec.Struct, frozen=True):
    group: GroupId
    error: BaseException


Event = Effects | Leadership | Quarantine


class Outcome:
    """What came of one turn, to be made known only after its sync."""

    __slots__ = ("errors", "events", "opened", "results")

    def __init__(self) -> None:
        self.results: list[tuple[Call, Any]] = []
        self.errors: list[tuple[Call, BaseException]] = []
        self.opened: list[tuple[asyncio.Future[None], BaseException | None]] = []
        """Futures of `Open` and `Remove` that have ended, with the error if they failed."""
        self.events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(self.results or self.errors or self.opened or self.events)


class Inbox:
    """Requests on their way to the raft thread. One thread takes and waits; any thread puts."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Edge-triggered: each write wakes once, and nobody needs to read the count back. Beside a
        # busy thread every system call less is a wait for the interpreter less.
        self._poll = select.epoll()
        self._poll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)
        self._asleep = False
        self._closing = threading.Lock()
        self._closed = False

    def put(self, request: Request) -> None:
        self._requests.append(request)
        # The sleeper announces itself before it looks at the deque for the last time.
        if self._asleep:
            # Once for each sleep: more requests until it is over need no further call.
            self._asleep = False
            self.wake()

    def wake(self) -> None:
        """Ends the wait, or makes the next one short. Does nothing after `close`."""
        with self._closing:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def take(self, most: int) -> list[Request]:
        requests = self._requests
        return [requests.popleft() for _ in range(min(len(requests), most))]

    def __len__(self) -> int:
        return len(self._requests)

    def wait(self, timeout_s: float | None) -> None:
        """Until a request is there, `wake` is called or the timeout (None: never) has passed."""
        if timeout_s is not None and timeout_s <= 0:
            return
        self._asleep = True
        if not self._requests:
            self._poll.poll(timeout_s)
        self._asleep = False

    def close(self) -> None:
        """After the last `wait`. May be called again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._poll.close()
                os.close(self._wake_fd)
