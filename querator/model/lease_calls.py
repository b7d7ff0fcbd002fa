"""Calls of operators about live leases, and their replies. Times are ms since the epoch."""

import msgspec


class ListLeasesCall(msgspec.Struct, frozen=True):
    """A page of the live leases of a queue: those of a client (empty: of all), that were granted
    `older_than_ms` ago or earlier by the clock of their partition. `page_size` 0: the default.
    """

    namespace: str
    queue: str
    page_size: int = 0
    page_token: str = ""
    stale: bool = False
    client_id: str = ""
    older_than_ms: int = 0
    timeout_ms: int = 0


class LeaseSummary(msgspec.Struct, frozen=True):
    """A live lease of a partition. `items`: those that it holds. `granted_at_ms` 0: not known."""

    lease: int
    client_id: str
    granted_at_ms: int
    extended_at_ms: int
    deadline_ms: int
    items: int


class ListedLease(msgspec.Struct, frozen=True):
    """A live lease; the fields are those of the protocol."""

    lease_id: str
    client_id: str
    granted_at_ms: int
    extended_at_ms: int
    deadline_ms: int
    items: int


class LeaseListPage(msgspec.Struct, frozen=True):
    leases: tuple[ListedLease, ...]
    next_page_token: str


class ReleaseLeasesCall(msgspec.Struct, frozen=True):
    """Ends leases, whose items return to their places; `count_attempt`: as if they had failed."""

    namespace: str
    queue: str
    lease_ids: tuple[str, ...]
    count_attempt: bool = False
    timeout_ms: int = 0


class ReleaseLeasesReply(msgspec.Struct, frozen=True):
    """`released`: the number of items that have returned. `ended`: leases that had ended before."""

    released: int
    ended: tuple[str, ...] = ()
