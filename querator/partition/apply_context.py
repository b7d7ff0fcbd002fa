"""The context in which the rules apply one entry."""

from querator.model.commands import PartitionSettings, Refusal
from querator.model.errors import ErrorCode
from querator.partition.feed import EventNotes
from querator.partition.flows import Flows
from querator.partition.rows import Block, PartitionState, SettingsRow, encode
from querator.storage.environment import WriteTransaction
from querator.storage.tables import SETTINGS


class ApplyContext:
    """The transaction, the clamped time and the state row of one entry.

    `state` is written once, at the end of the entry.
    """

    __slots__ = (
        "activations",
        "answered",
        "arrived_numbers",
        "blocks",
        "ended_ids",
        "feed",
        "flows",
        "group",
        "index",
        "log_first",
        "now_ms",
        "pinned_functions",
        "published_ids",
        "row",
        "state",
        "txn",
    )  # fmt: skip

    def __init__(
        self,
        txn: WriteTransaction,
        group: int,
        state: PartitionState,
        *,
        index: int,
        log_first: int,
        row: SettingsRow | None,
    ) -> None:
        """`row` is None while the partition has no settings."""
        self.txn = txn
        self.group = group
        self.state = state
        self.index = index
        self.log_first = log_first
        self.now_ms = state.now_ms
        self.row = row
        self.blocks: dict[int, Block] = {}
        self.answered: list[int] = []
        """Items with a result that have ended in this entry."""
        self.ended_ids: list[str] = []
        """Executions that have ended in this entry."""
        self.published_ids: list[str] = []
        """Executions whose published values have changed in this entry, once for each Record."""
        self.arrived_numbers: list[int] = []
        """Executions with an activation for which something has arrived in this entry, or which
        have lost it to a call from outside; once for each time.
        """
        self.pinned_functions: list[str] = []
        """The functions of executions that were pinned in this entry, once for each of them."""
        self.activations: list[tuple[int, int, int]] | None = None
        """Activations that are not placed yet: sequence, priority, when they begin. None: the queue
        has items of producers.
        """
        self.feed: EventNotes | None = None
        """None: the queue does not ask for events."""
        self.flows: Flows | None = None
        """Those of a fair or keyed queue; None: the queue is plain."""
        if row is not None:
            if row.settings.flows is not None:
                self.flows = Flows(txn, group, state, row.settings.flows)
            if row.settings.executions is not None:
                self.activations = []
            if row.settings.events_retention_ms:
                self.feed = EventNotes(self.flows)

    def begin_flows(self, settings: PartitionSettings) -> None:
        """The partition gets its first settings, which decide on the kind of its queue."""
        if settings.flows is not None:
            self.flows = Flows(self.txn, self.group, self.state, settings.flows)
            self.flows.begin()

    @property
    def queue(self) -> PartitionSettings:
        """The settings. The partition must have settings."""
        return self.share.settings

    @property
    def share(self) -> SettingsRow:
        """The partition's settings and its share of the queue. The partition must have settings."""
        assert self.row is not None
        return self.row

    @property
    def age(self) -> int:
        """The steps by which waiting items have gained priority over items that become ready now,
        since the partition was made. It grows by one in each interval of the queue's setting, and
        not at all without the setting.
        """
        interval_ms = self.queue.priority_aging_ms
        age = self.state.age_steps
        if interval_ms:
            age += max(0, self.now_ms - self.state.age_since_ms) // interval_ms
        return age

    @property
    def keyed(self) -> bool:
        return self.flows is not None and self.flows.keyed

    def put_share(self, row: SettingsRow) -> None:
        SETTINGS.put(self.txn, self.group, value=encode(row))
        self.row = row

    def count_ahead(self, position: int, items: int) -> None:
        """Counts items that took this position, or left it (`items` < 0). Ready, held, leased and
        reserved items keep their position; items of moved slots in other partitions wait for them.
        """
        ahead = self.state.ahead
        if ahead:
            for nth, change in enumerate(self.share.changes):
                if position < change.boundary:
                    ahead[nth] += items


def unconfigured() -> Refusal:
    return Refusal(
        ErrorCode.UNAVAILABLE,
        "the partition does not have the settings of its queue yet; try again",
    )


def producers_paused(queue: PartitionSettings) -> Refusal:
    """For a producer while the producers of the queue are paused."""
    message = f"producers of queue {queue.queue} are paused"
    return Refusal(ErrorCode.QUEUE_PAUSED, message, field="queue", value=queue.queue)


def earlier(head_ms: int, at_ms: int) -> int:
    """The earlier of a head (0: none) and an instant."""
    return at_ms if head_ms == 0 or at_ms < head_ms else head_ms
