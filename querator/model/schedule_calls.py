"""The calls of operators about scheduled items, and their replies; as in `model.calls`."""

import msgspec


class DueFilter(msgspec.Struct, frozen=True):
    """Items that are due from an instant up to before another one (0: no end), of one kind (empty:
    of any).
    """

    from_ms: int = 0
    until_ms: int = 0
    kind: str = ""


class ListScheduledCall(msgspec.Struct, frozen=True):
    """A page of scheduled items by (due time, partition, sequence). `page_size` 0: the default."""

    namespace: str
    queue: str
    due: DueFilter = DueFilter()
    page_size: int = 0
    page_token: str = ""
    stale: bool = False
    timeout_ms: int = 0


class CountScheduledCall(msgspec.Struct, frozen=True):
    """Counts of scheduled items by intervals. `from_ms` None: the last multiple of the interval
    that is not after the first due time. `until_ms` 0: SCHEDULE_BUCKETS_MAX intervals later.
    """

    namespace: str
    queue: str
    from_ms: int | None = None
    until_ms: int = 0
    kind: str = ""
    interval_ms: int = 0
    stale: bool = False
    timeout_ms: int = 0


class ScheduledCounts(msgspec.Struct, frozen=True):
    """`buckets` are (begin of the interval, items) of the intervals with items. `total` is their
    sum.
    """

    buckets: tuple[tuple[int, int], ...]
    total: int
    before: int
    after: int


class RescheduleCall(msgspec.Struct, frozen=True):
    """Changes scheduled items: those of `item_ids`, or else of `due`. They are cancelled, or due at
    `due_at_ms`; 0: at once. `dry_run` counts them, and needs a filter.
    """

    namespace: str
    queue: str
    item_ids: tuple[str, ...] = ()
    due: DueFilter | None = None
    due_at_ms: int = 0
    cancel: bool = False
    dry_run: bool = False
    timeout_ms: int = 0


class RescheduleReply(msgspec.Struct, frozen=True):
    """The number of changed items, and the ids that name no scheduled item."""

    changed: int
    not_scheduled: tuple[str, ...] = ()
