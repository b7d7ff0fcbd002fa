"""What the rules work on while one entry is applied."""

from querator.model.commands import PartitionSettings, Refusal
from querator.model.errors import ErrorCode
from querator.partition.rows import Block, SettingsRow, State, encode
from querator.storage.environment import WriteTransaction
from querator.storage.tables import SETTINGS


class Turn:
    """The transaction, the clamped time and the state row of one entry.

    `state` is written once, when the entry is done.
    """

    __slots__ = (
        "blocks", "group", "index", "log_first", "now_ms", "row", "state", "txn",
    )  # fmt: skip

    def __init__(
        self,
        txn: WriteTransaction,
        group: int,
        state: State,
        *,
        index: int,
        log_first: int,
        row: SettingsRow | None,
    ) -> None:
        """`row` None: the partition has not got settings yet."""
        self.txn = txn
        self.group = group
        self.state = state
        self.index = index
        self.log_first = log_first
        self.now_ms = state.now_ms
        self.row = row
        self.blocks: dict[int, Block] = {}

    @property
    def queue(self) -> PartitionSettings:
        """The settings; only after `unconfigured` was ruled out."""
        return self.share.settings

    @property
    def share(self) -> SettingsRow:
        """The settings with the partition's share of the queue; as `queue`."""
        assert self.row is not None
        return self.row

    def put_share(self, row: SettingsRow) -> None:
        SETTINGS.put(self.txn, self.group, value=encode(row))
        self.row = row

    def count_ahead(self, position: int, items: int) -> None:
        """Items got this place, or gave it up (less than 0). Ready, held or leased, they keep it
        from others to which their slots have moved.
        """
        ahead = self.state.ahead
        if ahead:
            for nth, change in enumerate(self.share.changes):
                if position < change.boundary:
                    ahead[nth] += items


def unconfigured() -> Refusal:
    return Refusal(
        ErrorCode.UNAVAILABLE, "the partition has not got the settings of its queue yet; try again"
    )


def earlier(head_ms: int, at_ms: int) -> int:
    """The lower of a head (0: none) and an instant."""
    return at_ms if head_ms == 0 or at_ms < head_ms else head_ms
