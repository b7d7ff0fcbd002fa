"""What the requests of a client wait for: refusals after which they are repeated."""

import re
from collections.abc import Callable
from typing import Final

from querator.client.errors import ConnectionFailed, RequestError
from querator.client.logs import CONNECTION

NO_LEADER = "has no leader"
"""In the message of each refusal for lack of a leader; such a refusal has no code of its own."""
AGAIN_S: Final = 30.0
"""A cause that was logged is logged again no sooner than this after the client's last line."""
QUIET_S: Final = 5.0
"""Refusals are over when the last one that belongs to no waiting request is this old. A stream of
a consumer has one about twice a second for each partition without a leader.
"""
_QUEUE: Final = re.compile(rf".*partition \d+ of (?P<queue>.*?) {NO_LEADER}")


class Waits:
    """The requests that were refused and are repeated. `now`: the clock of the event loop.

    A missing leader is logged at its first refusal, and then once in `AGAIN_S`, with the number of
    requests that wait. Refusals that differ only in the partition or in the missing nodes have the
    same cause. The end is logged when a request is executed and no other one waits.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[object, float] = {}
        self._reasons: dict[object, RequestError] = {}
        self._leaderless: set[object] = set()
        """The requests that wait for a leader."""
        self._causes: set[str] = set()
        """The causes that were logged in the last `AGAIN_S`, or since the last end."""
        self._logged_s = float("-inf")
        """When a missing leader was logged last."""
        self._told = False
        """Whether a missing leader has been logged, and not its end."""
        self._loose_s = float("-inf")
        """When a refusal was noticed last that belongs to no waiting request."""

    def noticed(self, error: RequestError, request: object = None) -> None:
        """A request was refused, whether it is repeated or not. `request` None: none is repeated,
        or it is not known which.
        """
        if NO_LEADER not in error.message:
            return
        now_s = self._now()
        due = now_s - self._logged_s >= AGAIN_S
        if due and (not self._told or self._are_over(now_s)):
            # The requests of an earlier outage may have given up without any end.
            self._causes.clear()
        if request is None:
            self._loose_s = now_s
        else:
            self._leaderless.add(request)
        cause = _cause(error.message)
        if cause not in self._causes:
            CONNECTION.warning("Waiting: %s", error.message)
        elif due:
            CONNECTION.warning("Still waiting%s: %s", self._number(), error.message)
        else:
            return
        self._causes.add(cause)
        self._logged_s = now_s
        self._told = True

    def _are_over(self, now_s: float) -> bool:
        return not self._leaderless and now_s - self._loose_s >= QUIET_S

    def _number(self) -> str:
        waiting = len(self._leaderless)
        if not waiting:
            return ""
        return ", 1 request" if waiting == 1 else f", {waiting} requests"

    def refused(self, request: object, error: RequestError) -> None:
        """Records why a request is repeated. A missing connection is not recorded: the client logs
        it, or gives up soon.
        """
        self.noticed(error, request)
        if not isinstance(error, ConnectionFailed):
            self._since.setdefault(request, self._now())
            self._reasons[request] = error

    def executed(self, request: object) -> None:
        """The request has its answer."""
        self._leaderless.discard(request)
        self.ended(request)
        if self._told and self._are_over(self._now()):
            self._told = False
            CONNECTION.warning("Requests are executed again")

    def ended(self, request: object) -> None:
        """The request has its answer, or has been given up."""
        if request in self._leaderless:
            self._leaderless.discard(request)
            self._loose_s = self._now()
        if self._since:
            self._since.pop(request, None)
            self._reasons.pop(request, None)

    def reason(self, seconds: float) -> RequestError | None:
        """Why a request has been repeated for this time; None: no request has."""
        if not self._since:
            return None
        first = min(self._since, key=self._since.__getitem__)
        return self._reasons[first] if self._now() - self._since[first] >= seconds else None


def _cause(message: str) -> str:
    """What refusals of the same cause have in common: the queue."""
    found = _QUEUE.match(message)
    return message.partition(NO_LEADER)[0] if found is None else found["queue"]
