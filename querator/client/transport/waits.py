"""What the requests of a client wait for: refusals after which they are repeated."""

from collections.abc import Callable

from querator.client.errors import ConnectionFailed, RequestError
from querator.client.logs import CONNECTION

NO_LEADER = "has no leader"
"""In the message of each refusal for lack of a leader; such a refusal has no code of its own. The
client logs the first one.
"""


class Waits:
    """The requests that were refused and are repeated. `now`: the clock of the event loop.

    A missing leader is logged at its first refusal, and again only with other words; likewise that
    a request has been executed after that.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[object, float] = {}
        self._reasons: dict[object, RequestError] = {}
        self._logged = ""
        """The last logged refusal; empty if a request has been executed since."""

    def noticed(self, error: RequestError) -> None:
        """A request was refused, whether it is repeated or not."""
        if NO_LEADER in error.message and error.message != self._logged:
            self._logged = error.message
            CONNECTION.warning("Waiting: %s", error.message)

    def refused(self, request: object, error: RequestError) -> None:
        """Records why a request is repeated. A missing connection is not recorded: the client logs
        it, or gives up soon.
        """
        self.noticed(error)
        if not isinstance(error, ConnectionFailed):
            self._since.setdefault(request, self._now())
            self._reasons[request] = error

    def executed(self, request: object) -> None:
        """The request has its answer."""
        self.ended(request)
        if self._logged:
            self._logged = ""
            CONNECTION.warning("Requests are executed again")

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
