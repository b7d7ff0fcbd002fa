"""What the rules work on while one entry is applied."""

from querator.model.commands import PartitionSettings, Refusal
from querator.model.errors import ErrorCode
from querator.partition.rows import Block, State
from querator.storage.environment import WriteTransaction


class Turn:
    """The transaction, the clamped time and the state row of one entry.

    `state` is written once, when the entry is done.
    """

    __slots__ = (
        "blocks", "group", "index", "log_first", "now_ms", "settings", "settings_version",
        "state", "txn",
    )  # fmt: skip

    def __init__(
        self,
        txn: WriteTransaction,
        group: int,
        state: State,
        *,
        index: int,
        log_first: int,
        settings: PartitionSettings | None,
        settings_version: int,
    ) -> None:
        self.txn = txn
        self.group = group
        self.state = state
        self.index = index
        self.log_first = log_first
        self.now_ms = state.now_ms
        self.settings = settings
        self.blocks: dict[int, Block] = {}
        self.settings_version = settings_version

    @property
    def queue(self) -> PartitionSettings:
        """The settings; only after `unconfigured` was ruled out."""
        assert self.settings is not None
        return self.settings


def unconfigured() -> Refusal:
    return Refusal(
        ErrorCode.UNAVAILABLE, "the partition has not got the settings of its queue yet; try again"
    )


def earlier(head_ms: int, at_ms: int) -> int:
    """The lower of a head (0: none) and an instant."""
    return at_ms if head_ms == 0 or at_ms < head_ms else head_ms
