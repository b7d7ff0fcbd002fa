"""Detects a hanging event loop of the node, from the raft thread.

The raft thread has a *beat* executed on the event loop, and sends the next one `BEAT_S` after it.
While a beat is not executed, the loop answers no client, although the raft thread continues to
lead. The loop then *hangs*. Until the beat is executed, the node gives its leaderships away, takes
none and leaves elections to the others, as a node with a wrong clock does (ADR 26).

Only time in which the raft thread itself has run counts as lateness: at most `BEAT_S` between two
checks. So a paused process, a suspended machine, a long sync and a call that held the interpreter
are not mistaken for a hanging loop.
"""

import math
from typing import Final

from querator import telemetry

BEAT_S: Final = 0.5
LOOP_HANGS_S: Final = 2.0
"""The loop hangs when a beat is late by more than this. Beats of busy nodes, on a machine with ten
times the load that it can carry, were late by at most half a second (ADR 26).
"""

_log = telemetry.logger(__name__)


class LoopWatch:
    """The raft thread calls `check`, the event loop executes the beats, any thread reads the
    rest.
    """

    __slots__ = ("_executed", "_late_s", "_looked_s", "_sent", "due_s", "hangs", "hung")

    def __init__(self) -> None:
        self._sent = 0
        self._executed = 0
        self._looked_s = math.inf
        self._late_s = 0.0
        self.due_s = -math.inf
        """Latest instant of the next check, by the monotonic clock."""
        self.hangs = False
        self.hung = 0
        """How often the loop has begun to hang."""

    def check(self, now_s: float) -> bool:
        """Checks the loop. Returns whether a beat must be sent, which calls `beat` on the event
        loop.
        """
        passed_s = min(max(0.0, now_s - self._looked_s), BEAT_S)
        self._looked_s = now_s
        if self._executed != self._sent:
            self.due_s = now_s + BEAT_S
            self._late_s += passed_s
            if self._late_s > LOOP_HANGS_S and not self.hangs:
                self.hangs = True
                self.hung += 1
                _log.warning("loop.hung", late_s=round(self._late_s, 1))
            return False
        if self.hangs:
            self.hangs = False
            _log.info("loop.resumed", late_s=round(self._late_s, 1))
        self._late_s = 0.0
        if now_s < self.due_s:
            return False
        self.due_s = now_s + BEAT_S
        self._sent += 1
        return True

    def beat(self) -> None:
        """Executes a beat; called on the event loop."""
        self._executed = self._sent
