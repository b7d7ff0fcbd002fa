"""One caller that waits for items, and the leases granted to it."""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from querator.model.calls import LoadedItems
from querator.model.commands import LeasedSegment
from querator.model.errors import QueratorError
from querator.service.lease.supply import PartitionSupply
from querator.service.routing.route import PartitionRoute


class Grant(msgspec.Struct, frozen=True):
    """A lease that a partition has granted. Unless it is extended, it lasts `length_s` and ends at
    `expires_s` by the monotonic clock at the earliest.
    """

    route: PartitionRoute
    lease: int
    deadline_ms: int
    expires_s: float
    length_s: float
    segments: tuple[LeasedSegment, ...]
    repeated: bool
    loaded: tuple[LoadedItems | None, ...] | None = None
    """Items of each segment, None for those that are gone. The whole is None when this node has the
    items in its own storage.
    """
    first: int = 0
    places: tuple[int, ...] = ()
    """Position of each segment in the answer, if the answer granted several leases. `first` is the
    first of these leases.
    """


class Deficit:
    """Fairness account of a consumer, for which one waiter after the other waits; see
    `service.lease.fair_queue`.
    """

    __slots__ = ("owes",)

    def __init__(self) -> None:
        self.owes = 0.0
        """Number of turns that the consumer still has to pass."""

    def passes(self) -> bool:
        """Whether the consumer passes this turn; passing pays for one turn."""
        if self.owes < 1:
            return False
        self.owes -= 1
        return True


class WaiterState(Enum):
    """What a waiter waits for; see `Waiter`."""

    PARKED = auto()
    ASKING = auto()
    ENDING = auto()
    CLOSED = auto()


class Waiter:
    """One caller that waits for items. Only its dispatcher changes its state.

    state     meaning                                    left when
    PARKED    in a wait queue of the dispatcher          partitions are asked for items: ASKING
    ASKING    `asked` partitions have not answered       all have, and granted nothing: PARKED;
                                                         items came, or an error: CLOSED;
                                                         the wait ends: ENDING
    ENDING    as ASKING, but the wait has ended          all asked partitions have answered: CLOSED
    CLOSED    answered, or its caller is gone; grants    never
              that come later are released
    """

    __slots__ = (
        "account",
        "answer",
        "asked",
        "bytes_max",
        "client_id",
        "error",
        "grants",
        "home",
        "items_max",
        "lease_timeout_ms",
        "named",
        "on_asked",
        "patient",
        "pinned",
        "probe",
        "rename",
        "request_id",
        "state",
        "straggler",
    )

    def __init__(
        self,
        *,
        client_id: str,
        items_max: int,
        bytes_max: int,
        answer: Callable[["Waiter"], None],
        request_id: str = "",
        rename: Callable[[], str] | None = None,
        lease_timeout_ms: int = 0,
        patient: bool = True,
        pinned: PartitionSupply | None = None,
        on_asked: Callable[[], None] | None = None,
        account: Deficit | None = None,
    ) -> None:
        """`answer` is called once, when `grants` or `error` hold the outcome. A waiter that is not
        `patient` is answered with nothing as soon as nothing is available. `pinned`: the only
        partition to ask. `rename` makes another request id for this waiter; None: the request id is
        the client's own, and the client may have been granted something under it. `account`: of a
        consumer that waits repeatedly.
        """
        self.account = Deficit() if account is None else account
        self.client_id = client_id
        self.request_id = request_id
        self.rename = rename
        self.named = rename is None and bool(request_id)
        self.items_max = items_max
        self.bytes_max = bytes_max
        self.lease_timeout_ms = lease_timeout_ms
        self.patient = patient
        self.answer = answer
        self.on_asked = on_asked
        self.home = pinned
        self.pinned = pinned
        """The only partition it asks: `home`, or one whose next item needs all of its bytes."""
        self.probe = pinned is not None and self.named
        """Whether the partition is asked even if nothing is ready."""
        self.grants: list[Grant] = []
        self.error: QueratorError | None = None
        self.asked = 0
        """Number of partitions that have not answered yet."""
        self.state = WaiterState.PARKED
        self.straggler: asyncio.TimerHandle | None = None
