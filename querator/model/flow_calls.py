"""The calls of operators about groups and keys, and their replies; as in `model.calls`."""

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
    paused: bool = False
    next_ms: int = 0


class GroupPage(msgspec.Struct, frozen=True):
    groups: tuple[GroupCounts, ...]
    next_page_token: str


class ListKeysCall(msgspec.Struct, frozen=True):
    """A page of the keys of a keyed queue: `key` (empty: all), those with a head that waits for its
    retry if `blocked`, and those whose head has had `head_attempts_min` attempts or more.
    `page_size` 0: the default.
    """

    namespace: str
    queue: str
    page_size: int = 0
    page_token: str = ""
    stale: bool = False
    key: str = ""
    blocked: bool = False
    head_attempts_min: int = 0
    timeout_ms: int = 0


class KeyCounts(msgspec.Struct, frozen=True):
    """The counts of a key over all partitions; the fields are those of the protocol."""

    key: str
    waiting: int
    leased: int
    head_item_id: str
    head_attempts: int
    oldest_ready_at_ms: int
    blocked_until_ms: int
    next_ms: int = 0


class KeyPage(msgspec.Struct, frozen=True):
    keys: tuple[KeyCounts, ...]
    next_page_token: str


class SkipKeyCall(msgspec.Struct, frozen=True):
    """Removes the item, if it is the head of the key; `dead`: it becomes a dead letter."""

    namespace: str
    queue: str
    key: str
    item_id: str
    dead: bool = False
    timeout_ms: int = 0
