"""What the requests of a client wait for: refusals after which they are repeated."""

from collections.abc import Callable

from querator.client.errors import ConnectionFailed, RequestError

NO_LEADER = "has no leader"
"""In the message of each refusal for lack of a leader; such a refusal has no code of its own. The
client logs the first one.
"""


class Waits:
    """The requests that were refused and are repeated. `now`: the clock of the event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[object, float] = {}
        self._reasons: dict[object, RequestError] = {}

    def refused(self, request: object, error: RequestError) -> None:
        """Records why a request is repeated. A missing connection is not recorded: the client logs
        it, or gives up soon.
        """
        if not isinstance(error, ConnectionFailed):
            self._since.setdefault(request, self._now())
            self._reasons[request] = error

    def ended(self, request: object) -> None:
        """The request has its answer, or has been given up."""
        if self._since:
            self._since.pop(request, None)
            self._reasons.pop(request, None)

    def reason(self, seconds: float) -> RequestError | None:
        """Why a request has been repeated for this time; None: no request has."""
        if not self._since:
            return None
        first = min(self._since, key=self._since.__getitem__)
        return self._reasons[first] if self._now() - self._since[first] >= seconds else None
