"""Items by sequence, in any state."""

from querator.model.commands import Complete, LeaseItems
from querator.partition.item_queries import items_at
from querator.partition.queries import ItemPage
from querator.partition.rows import RowState
from tests.unit.partition.partition_log import GROUP, PartitionLog, lease_of


def read(log: PartitionLog, *seqs: int, bytes_max: int = 1 << 20) -> ItemPage:
    with log.environment.snapshot() as txn:
        return items_at(txn, GROUP, seqs, bytes_max=bytes_max)


def test_items_are_found_in_any_state_and_gone_ones_are_left_out():
    log = PartitionLog()
    log.configure()
    log.produce(5)
    [grant] = log.one(lease_of(2)).grants
    log.one(Complete((LeaseItems(grant.lease, ((1, 1),)),)))
    page = read(log, 1, 2, 3, 5, 99)
    assert [(one.seq, one.state) for one in page.items] == [
        (2, RowState.LEASED), (3, RowState.READY), (5, RowState.READY),
    ]  # fmt: skip
    assert (page.items[0].lease, page.items[0].attempt) == (grant.lease, 1)
    assert page.after_seq == 0
    assert read(log, 1, 99) == ItemPage((), 0)


def test_a_page_ends_at_its_bytes_but_has_an_item():
    log = PartitionLog()
    log.configure()
    log.produce([b"x" * 100] * 4)
    page = read(log, 1, 2, 3, 4, bytes_max=250)
    assert ([one.seq for one in page.items], page.after_seq) == ([1, 2], 2)
    page = read(log, 3, 4, bytes_max=1)
    assert ([one.seq for one in page.items], page.after_seq) == ([3], 3)
