"""How much unanswered work a node takes on. Beyond it a call is refused before anything is stored.

Kinds of work are bounded apart, so that a flood of one leaves room for the others: completes get
in while produces are refused. Within a kind, keys share the bound (`model.shares`): connections
share what the node holds, partitions share what is on its way to their leaders. So a partition that
does not answer, and a client that sends too much, leave room for the others.

A call that waits for its partition's leader is counted apart, in a smaller budget, until it is
sent. It goes when there is a leader, whether or not the other budget has room then.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Generic

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import LEADERLESS_BYTES_MAX, LEADERLESS_CALLS_MAX, OVERLOADED_RETRY_MS
from querator.model.shares import K, Shares

CONNECTION: ContextVar[str] = ContextVar("connection", default="this node")
"""The connection that a call came by, in the task of the call."""


class Admission(Generic[K]):
    """Counts calls of one kind, and their bytes, between `enter` and `leave`, by key."""

    __slots__ = ("_bytes_shares", "_calls_shares", "_kind", "_scope")

    def __init__(self, kind: str, scope: str, *, calls_max: int, bytes_max: int = 0) -> None:
        """`kind` in the plural and `scope` (what a key is), for people; `bytes_max` 0: not bounded
        by bytes.
        """
        self._kind = kind
        self._scope = scope
        self._calls_shares: Shares[K] = Shares(calls_max)
        self._bytes_shares: Shares[K] | None = Shares(bytes_max) if bytes_max else None

    @property
    def calls(self) -> int:
        return self._calls_shares.total

    @property
    def bytes(self) -> int:
        return 0 if self._bytes_shares is None else self._bytes_shares.total

    def check(self, key: K, size: int = 0, *, named: Callable[[], str]) -> None:
        """Raises OVERLOADED if there is no room; `named`: what the key is, for people. A call
        larger than its share gets in when its key has no other.
        """
        if not self._calls_shares.has_room(key, 1):
            raise self._overloaded(self._calls_shares, key, 1, "calls", named)
        if self._bytes_shares is not None and not self._bytes_shares.has_room(key, size):
            raise self._overloaded(self._bytes_shares, key, size, "bytes", named)

    @contextmanager
    def admitted(self, key: K, size: int = 0, *, named: Callable[[], str]) -> Iterator[None]:
        """From `enter` to `leave`. Raises OVERLOADED."""
        self.check(key, size, named=named)
        self.enter(key, size)
        try:
            yield
        finally:
            self.leave(key, size)

    def enter(self, key: K, size: int = 0) -> None:
        """Whether or not there is room."""
        self._calls_shares.add(key, 1)
        if self._bytes_shares is not None:
            self._bytes_shares.add(key, size)

    def leave(self, key: K, size: int = 0) -> None:
        self._calls_shares.remove(key, 1)
        if self._bytes_shares is not None:
            self._bytes_shares.remove(key, size)

    def _overloaded(
        self, shares: Shares[K], key: K, size: int, unit: str, named: Callable[[], str]
    ) -> QueratorError:
        value, limit, whose = shares.used(key) + size, shares.share(key), named()
        field = self._scope
        if shares.total + size > shares.limit:
            value, limit, whose = shares.total + size, shares.limit, "this node"
            field = "node"
        return QueratorError(
            ErrorCode.OVERLOADED,
            f"unanswered {self._kind} of {whose} would be {value} {unit}; the limit is {limit} "
            f"{unit}; wait and repeat",
            field=field,
            limit=f"{limit} {unit}",
            value=f"{value} {unit}",
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )


class Held(Admission[str]):
    """What a node holds of one kind of work, by connection."""

    __slots__ = ()

    def __init__(self, kind: str, *, calls_max: int, bytes_max: int = 0) -> None:
        super().__init__(kind, "connection", calls_max=calls_max, bytes_max=bytes_max)

    def held(self, size: int = 0) -> "AbstractContextManager[None]":
        """While a call of this connection is answered. Raises OVERLOADED."""
        connection = CONNECTION.get()
        return self.admitted(connection, size, named=lambda: f"connection {connection}")

    def hold(self) -> Callable[[], None]:
        """As `held`, until the returned function is called."""
        connection = CONNECTION.get()
        self.check(connection, named=lambda: f"connection {connection}")
        self.enter(connection)
        return partial(self.leave, connection)


class Ticket:
    """One call on its way to a partition; `leave` at its end."""

    __slots__ = ("_budget", "_desk", "_group", "_size")

    def __init__(self, desk: "Sending", group: GroupId, size: int, *, waits: bool) -> None:
        self._desk = desk
        self._group = group
        self._size = size
        self._budget = desk.waiting if waits else desk.sent
        self._budget.enter(group, size)

    def wait(self) -> None:
        """The call waits for a leader."""
        self._move(self._desk.waiting)

    def go(self) -> None:
        """The call is sent."""
        self._move(self._desk.sent)

    def _move(self, budget: "Admission[GroupId]") -> None:
        if budget is not self._budget:
            self.leave()
            budget.enter(self._group, self._size)
            self._budget = budget

    def leave(self) -> None:
        self._budget.leave(self._group, self._size)


class Sending:
    """What is on its way to partitions, of one kind of work."""

    def __init__(self, kind: str, *, calls_max: int, bytes_max: int = 0) -> None:
        """`bytes_max` as of `Admission`."""
        self.sent: Admission[GroupId] = Admission(
            kind, "partition", calls_max=calls_max, bytes_max=bytes_max
        )
        self.waiting: Admission[GroupId] = Admission(
            f"{kind} that wait for a leader",
            "partition",
            calls_max=LEADERLESS_CALLS_MAX,
            bytes_max=LEADERLESS_BYTES_MAX if bytes_max else 0,
        )

    @property
    def calls(self) -> int:
        return self.sent.calls + self.waiting.calls

    @property
    def bytes(self) -> int:
        return self.sent.bytes + self.waiting.bytes

    def enter(self, group: GroupId, size: int, *, waits: bool, named: Callable[[], str]) -> Ticket:
        """`waits`: for a leader of the group. Raises OVERLOADED."""
        (self.waiting if waits else self.sent).check(group, size, named=named)
        return Ticket(self, group, size, waits=waits)


class Slots:
    """Counts what is open of one kind, for each caller and together. A caller has a part of the
    whole, so that one that opens many leaves room for the others.
    """

    __slots__ = ("_callers", "_kind", "_most", "_most_of_one", "_open")

    def __init__(self, kind: str, *, most: int, most_of_one: int) -> None:
        """`kind` in the plural, for people."""
        self._kind = kind
        self._most = most
        self._most_of_one = most_of_one
        self._open = 0
        self._callers: dict[str, int] = {}

    def enter(self, caller: str) -> Callable[[], None]:
        """What gives the slot back, called once. Raises OVERLOADED."""
        mine = self._callers.get(caller, 0)
        if mine >= self._most_of_one:
            raise self._overloaded("this connection", mine, self._most_of_one)
        if self._open >= self._most:
            raise self._overloaded("this node", self._open, self._most)
        self._open += 1
        self._callers[caller] = mine + 1
        return partial(self._leave, caller)

    def _leave(self, caller: str) -> None:
        self._open -= 1
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    def _overloaded(self, whose: str, value: int, limit: int) -> QueratorError:
        return QueratorError(
            ErrorCode.OVERLOADED,
            f"open {self._kind} of {whose} are {value}; the limit is {limit}; read those that are "
            "open to their end or cancel them, and repeat",
            limit=f"{limit} {self._kind}",
            value=f"{value} {self._kind}",
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )
