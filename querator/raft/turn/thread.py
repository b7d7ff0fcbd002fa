"""The raft thread: it sleeps until there is something to do, makes a turn, and delivers the
outcome.

`TurnLoop` is the interface between the host and the component that makes the turns: `RaftThread` is
the real form, and the simulator has another one, whose turns take virtual time.
"""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from querator.model.limits import STOP_WAIT_MS_MAX
from querator.model.nodes import NodeKey
from querator.raft.clock import Clock
from querator.raft.engine import library
from querator.raft.peers import NoPeers, PeerLink
from querator.raft.requests import Inbox, Outcome, Request, Stop
from querator.raft.turn.liveness import Liveness
from querator.raft.turn.turn import Turns
from querator.storage.environment import Environment

REQUESTS_TURN_MAX = 8_192
"""Most requests sorted in one turn, so that accepting them never delays the turn."""

Deliver = Callable[[Outcome], None]
Failed = Callable[[BaseException], None]


class TurnLoop(Protocol):
    """Makes the turns of a node's groups. Only the event loop calls it; `put` may be called before
    `start`.
    """

    @property
    def turns(self) -> Turns: ...

    @property
    def liveness(self) -> Liveness: ...

    @property
    def watched(self) -> bool:
        """Whether other nodes can take over the work while the thread hangs: on a node of
        several.
        """
        ...

    def start(self, deliver: Deliver, failed: Failed) -> None:
        """Makes turns from here on, until a `Stop` is put. Both functions are called on the running
        event loop: `deliver` with each outcome, in order; `failed` once, with the error that ended
        the turns for good.
        """
        ...

    def put(self, request: Request) -> None:
        """Lets the next turn take the request."""
        ...

    async def ended(self) -> None:
        """Returns when the last turn has ended. May be called again."""
        ...


class RaftThread:
    """A `TurnLoop` on a thread of its own."""

    def __init__(
        self,
        environment: Environment,
        *,
        clock: Clock,
        node: NodeKey,
        peers: PeerLink | None,
        chance: random.Random,
        log_bytes_kept: int,
    ) -> None:
        self._clock = clock
        self._peers = peers
        self.watched = peers is not None
        self.liveness = Liveness(clock)
        self.turns = Turns(
            environment,
            clock=clock,
            chance=chance,
            node=node,
            peers=NoPeers() if peers is None else peers,
            log_bytes_kept=log_bytes_kept,
            early=self._hand_over,
            starts=None if peers is None else peers.starts,
        )
        self._inbox = Inbox() if peers is None else Inbox(peers.fileno())
        self.put = self._inbox.put
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver | None = None
        self._failed: Failed | None = None
        self._outcomes: deque[Outcome] = deque()
        self._told = False
        """Whether the loop is going to take the outcomes."""
        self._idle_at_s: float | None = None
        """The last instant at which nothing was due."""

    # --- on the event loop -----------------------------------------------------------------

    def start(self, deliver: Deliver, failed: Failed) -> None:
        assert self._loop is None
        self._loop = asyncio.get_running_loop()
        self._deliver, self._failed = deliver, failed
        self._clock.on_step(self._inbox.wake, self._is_idle)
        self._thread.start()

    def _take_outcomes(self) -> None:
        assert self._loop is not None
        assert self._deliver is not None
        # Before the outcomes are taken: a later one needs another call.
        self._told = False
        try:
            while self._outcomes:
                self._deliver(self._outcomes.popleft())
        finally:
            if self._outcomes:
                self._loop.call_soon(self._take_outcomes)

    async def ended(self) -> None:
        assert self._loop is not None
        await self._loop.run_in_executor(None, self._thread.join)
        self._inbox.close()

    # --- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        assert self._failed is not None
        library.bind(self._clock)
        try:
            self._turn_until_stopped()
        except BaseException as error:  # noqa: BLE001 - the thread's top: no caller would report it
            self._loop.call_soon_threadsafe(self._failed, error)
        finally:
            self.turns.end()
            self.liveness.begin_wait(None)

    def _turn_until_stopped(self) -> None:
        turns, inbox, peers = self.turns, self._inbox, self._peers
        stop_s: float | None = None
        readable = True
        while True:
            self.liveness.begin_turn()
            if peers is not None:
                self._look_at_loop()
            requests = inbox.take_all(REQUESTS_TURN_MAX)
            if requests and isinstance(requests[-1], Stop):
                stop_s = self._clock.monotonic_s() + STOP_WAIT_MS_MAX / 1000
                requests.pop()
            # Each system call that is avoided avoids a wait for the interpreter.
            events = () if peers is None else peers.receive(readable=readable)
            outcome = turns.turn(requests, events)
            readable = True
            if outcome:
                self._hand_over(outcome)
            if stop_s is not None and (turns.all_answered or self._clock.monotonic_s() > stop_s):
                return
            if not inbox:
                now_s = self._clock.monotonic_s()
                wait_s = self._wait_s(stop_s)
                if wait_s is None or wait_s > 0:
                    self._idle_at_s = now_s
                self.liveness.begin_wait(wait_s)
                readable = inbox.wait(wait_s)

    def _is_idle(self) -> bool:
        """Whether nothing is due now, for another thread. Once the thread has ended, nothing is."""
        return not self._thread.is_alive() or self._idle_at_s == self._clock.monotonic_s()

    def _look_at_loop(self) -> None:
        assert self._loop is not None
        watch = self.turns.loop_watch
        if watch.check(self._clock.monotonic_s()):
            self._loop.call_soon_threadsafe(watch.beat)

    def _hand_over(self, outcome: Outcome) -> None:
        assert self._loop is not None
        self._outcomes.append(outcome)
        if not self._told:
            # Once for all outcomes that the loop has not taken yet.
            self._told = True
            self._loop.call_soon_threadsafe(self._take_outcomes)

    def _wait_s(self, stop_s: float | None) -> float | None:
        waits = [self.turns.wait_s()]
        if self._peers is not None:
            waits.append(self._peers.wait_s())
            due_s = self.turns.loop_watch.due_s
            waits.append(max(0.0, due_s - self._clock.monotonic_s()))
        if stop_s is not None:
            waits.append(max(0.0, stop_s - self._clock.monotonic_s()))
        return min((wait for wait in waits if wait is not None), default=None)
