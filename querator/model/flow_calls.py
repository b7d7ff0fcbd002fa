"""The calls of operators about groups, and their replies; as in `model.calls`."""

import msgspec


class ListGroupsCall(msgspec.Struct, frozen=True):
    """A page of the groups of a fair queue. `page_size` 0: the default."""

    namespace: str
    queue: str
    page_size: int = 0
    page_token: str = ""
    stale: bool = False
    timeout_ms: int = 0


class GroupCounts(msgspec.Struct, frozen=True):
    """The counts of a group over all partitions; the fields are those of the protocol. `path`
    empty: all items.
    """

    path: str
    weight: int
    leased_max: int
    items: int
    ready: int
    leased: int
    oldest_ready_at_ms: int


class GroupPage(msgspec.Struct, frozen=True):
    groups: tuple[GroupCounts, ...]
    next_page_token: str
