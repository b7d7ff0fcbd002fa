"""The checker of keyed queues: each of its rules finds what breaks it, and nothing else."""

from querator.model.commands import FlowSettings
from querator.model.queues import QueueKind
from querator.partition.rows import RowState
from tests.simulation.whole.key_order import KeyOrderChecker, There

STRICT = FlowSettings(QueueKind.KEYED)


class Log:
    """Entries of the partitions of one queue."""

    def __init__(self, settings: FlowSettings = STRICT) -> None:
        self.checker = KeyOrderChecker()
        self.settings = settings
        self.items: dict[int, dict[int, There]] = {5: {}, 6: {}}

    def produce(self, key: str, *seqs: int, group: int = 5) -> None:
        self._become(group, RowState.READY, 0, {seq: key for seq in seqs}, ())

    def lease(self, number: int, *seqs: int, group: int = 5) -> None:
        keys = {seq: self.items[group][seq].key for seq in seqs}
        self._become(group, RowState.LEASED, number, keys, seqs)

    def retry(self, *seqs: int, later: bool = False, group: int = 5) -> None:
        keys = {seq: self.items[group][seq].key for seq in seqs}
        self._become(group, RowState.SCHEDULED if later else RowState.READY, 0, keys, ())

    def complete(self, *seqs: int, group: int = 5) -> None:
        for seq in seqs:
            del self.items[group][seq]
        self._applied(group, ())

    def _become(
        self,
        group: int,
        state: RowState,
        lease: int,
        keys: dict[int, str],
        granted: tuple[int, ...],
    ) -> None:
        self.items[group] |= {seq: There(key, state, lease) for seq, key in keys.items()}
        self._applied(group, granted)

    def _applied(self, group: int, granted: tuple[int, ...]) -> None:
        self.checker.applied(group, self.settings, self.items[group], granted)

    @property
    def found(self) -> list[str]:
        return list(self.checker.judge())


def test_one_after_the_other_is_right() -> None:
    log = Log()
    log.produce("k", 1, 2)
    log.produce("l", 3)
    log.lease(1, 1)
    log.lease(2, 3)
    log.retry(1)
    log.lease(3, 1)
    log.complete(1)
    log.lease(4, 2)
    assert log.found == []
    assert log.checker.compared == 2


def test_two_of_a_key_at_a_time_are_found() -> None:
    log = Log()
    log.produce("k", 1, 2)
    log.lease(1, 1, 2)
    assert log.found == ["2 items of key k are leased, and 1 may be"]


def test_more_than_the_queue_allows_together_are_found() -> None:
    log = Log(FlowSettings(QueueKind.KEYED, key_leased_max=2))
    log.produce("k", 1, 2, 3)
    log.lease(1, 1, 2)
    assert log.found == []
    log.complete(1, 2)
    log.produce("k", 4, 5)
    log.lease(2, 3, 4, 5)
    assert log.found == ["3 items of key k are leased, and 2 may be"]


def test_two_leases_of_a_key_are_found() -> None:
    log = Log(FlowSettings(QueueKind.KEYED, key_leased_max=2))
    log.produce("k", 1, 2)
    log.lease(1, 1)
    log.lease(2, 2)
    assert log.found[0].startswith("items of key k are under several leases")


def test_an_item_before_an_earlier_one_is_found() -> None:
    log = Log()
    log.produce("k", 1, 2)
    log.lease(1, 2)
    assert log.found == [
        "item 2 of group 5 was leased, and item 1 of group 5, an earlier one of key k, is READY"
    ]


def test_an_item_before_one_that_is_retried_later_is_found() -> None:
    log = Log()
    log.produce("k", 1, 2)
    log.lease(1, 1)
    log.retry(1, later=True)
    log.lease(2, 2)
    assert len(log.found) == 1
    assert log.found[0].endswith("is SCHEDULED")


def test_an_item_may_step_aside_if_the_queue_says_so() -> None:
    log = Log(FlowSettings(QueueKind.KEYED, key_retry_blocks=False))
    log.produce("k", 1, 2, 3)
    log.lease(1, 1)
    log.retry(1, later=True)
    log.lease(2, 2)
    log.complete(2)
    log.retry(1)
    log.lease(3, 1)
    assert log.found == []
    log.lease(4, 3)
    assert log.found[0].startswith("2 items of key k are leased")


def test_an_item_whose_key_becomes_known_later_is_not_a_later_one() -> None:
    log = Log()
    log.produce("", 1)
    log.produce("k", 2)
    log.produce("k", 1)
    log.lease(1, 1)
    assert log.found == []
    log.complete(1)
    log.lease(2, 2)
    assert log.found == []
    assert log.checker.compared == 1


def test_another_partition_has_an_earlier_item() -> None:
    log = Log()
    log.produce("k", 1)
    log.produce("k", 7, group=6)
    log.lease(1, 7, group=6)
    assert log.found == [
        "item 7 of group 6 was leased, and item 1 of group 5, an earlier one of key k, is READY"
    ]


def test_two_partitions_have_leased_of_a_key() -> None:
    log = Log()
    log.produce("k", 1)
    log.produce("k", 7, group=6)
    log.lease(1, 1)
    log.lease(1, 7, group=6)
    assert "2 items of key k are leased, and 1 may be" in log.found
    assert any("under several leases" in text for text in log.found)


def test_the_same_numbers_in_two_partitions_are_two_items() -> None:
    log = Log()
    log.produce("k", 1)
    log.produce("l", 1, group=6)
    log.lease(1, 1)
    log.lease(1, 1, group=6)
    assert log.found == []
