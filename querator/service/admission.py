"""Limits of the unanswered work that a node accepts. A call beyond them is refused before anything
is stored.

Each kind of work has its own limit, so that a flood of one kind leaves capacity for the others:
completes are accepted while produces are refused. Within a kind, keys share the limit
(`model.shares`): connections share the work that the node holds, partitions share the work on its
way to their leaders. So a partition that does not answer, and a client that sends too much, leave
capacity for the others.

A call that waits for its partition's leader is counted in a separate, smaller budget until it is
sent. It is sent when there is a leader, whether or not the other budget has capacity then.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import LEADERLESS_BYTES_MAX, LEADERLESS_CALLS_MAX, OVERLOADED_RETRY_MS
from querator.model.shares import Excess, K, Shares

CONNECTION: ContextVar[str] = ContextVar("connection", default="this node")
"""The connection of a call, set in the task of the call."""


class Admission(Shares[K]):
    """Counts calls of one kind, and their bytes, by key: `enter` or `add` begins, `remove` ends."""

    __slots__ = ("_kind", "_scope")

    def __init__(self, kind: str, scope: str, *, calls_max: int, bytes_max: int = 0) -> None:
        """`kind` (in the plural) and `scope` (the kind of key) are used in messages; `bytes_max` 0:
        no limit of bytes.
        """
        super().__init__(calls_max=calls_max, bytes_max=bytes_max)
        self._kind = kind
        self._scope = scope

    def enter(self, key: K, size: int, *, named: Callable[[], str]) -> None:
        """Raises OVERLOADED if the limit is reached; `named` returns the name of the key for
        messages. A call larger than its share is accepted when its key has no other call.
        """
        excess = self.try_add(key, size)
        if excess is not None:
            raise self._overloaded(excess, named)

    def _overloaded(self, excess: Excess, named: Callable[[], str]) -> QueratorError:
        whose = "this node" if excess.whole else named()
        value, limit = f"{excess.value} {excess.unit}", f"{excess.limit} {excess.unit}"
        return QueratorError(
            ErrorCode.OVERLOADED,
            f"unanswered {self._kind} of {whose} would be {value}; the limit is {limit}; wait and "
            "repeat",
            field="node" if excess.whole else self._scope,
            limit=limit,
            value=value,
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )


class ConnectionBudget(Admission[str]):
    """Unanswered work of one kind that a node holds, by connection."""

    __slots__ = ()

    def __init__(self, kind: str, *, calls_max: int, bytes_max: int = 0) -> None:
        super().__init__(kind, "connection", calls_max=calls_max, bytes_max=bytes_max)

    def held(self, size: int = 0) -> "CountedCall":
        """Counts a call of this connection until the returned context ends. Raises OVERLOADED."""
        connection = CONNECTION.get()
        self.enter(connection, size, named=lambda: f"connection {connection}")
        return CountedCall(self, connection, size)


class CountedCall:
    """One call that is counted until the end of its `with` statement."""

    __slots__ = ("_connection", "_held", "_size")

    def __init__(self, held: ConnectionBudget, connection: str, size: int) -> None:
        self._held = held
        self._connection = connection
        self._size = size

    def __enter__(self) -> None:
        """The call is counted already."""

    def __exit__(self, *_: object) -> None:
        self._held.remove(self._connection, self._size)

    def leave(self) -> None:
        """Ends the call without a `with` statement."""
        self._held.remove(self._connection, self._size)


class Ticket:
    """One call on its way to a partition; `leave` ends it."""

    __slots__ = ("_budget", "_budgets", "_group", "_size")

    def __init__(
        self, budgets: "PartitionBudget", budget: "Admission[GroupId]", group: GroupId, size: int
    ) -> None:
        """`budget`: the budget of `budgets` that the call has entered."""
        self._budgets = budgets
        self._budget = budget
        self._group = group
        self._size = size

    def wait(self) -> None:
        """The call waits for a leader."""
        self._move(self._budgets.waiting)

    def go(self) -> None:
        """The call is sent."""
        if self._budget is not self._budgets.sent:
            self._move(self._budgets.sent)

    def _move(self, budget: "Admission[GroupId]") -> None:
        if budget is not self._budget:
            self.leave()
            budget.add(self._group, self._size)
            self._budget = budget

    def leave(self) -> None:
        self._budget.remove(self._group, self._size)


class PartitionBudget:
    """Work of one kind on its way to partitions."""

    def __init__(self, kind: str, *, calls_max: int, bytes_max: int = 0) -> None:
        """`bytes_max` as in `Admission`."""
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
        """`waits`: whether the call waits for a leader of the group. Raises OVERLOADED."""
        budget = self.waiting if waits else self.sent
        budget.enter(group, size, named=named)
        return Ticket(self, budget, group, size)


class Slots:
    """Counts open objects of one kind, for each caller and in total. A caller may hold only a part
    of the total, so that one caller with many leaves capacity for the others.
    """

    __slots__ = ("_callers", "_kind", "_most", "_most_of_one", "_open")

    def __init__(self, kind: str, *, most: int, most_of_one: int) -> None:
        """`kind` in the plural, for messages."""
        self._kind = kind
        self._most = most
        self._most_of_one = most_of_one
        self._open = 0
        self._callers: dict[str, int] = {}

    def enter(self, caller: str) -> Callable[[], None]:
        """Takes a slot, and returns a function that frees it, to be called once. Raises
        OVERLOADED.
        """
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
