"""Items that executions produce: stored with their records, and brought to their queues once."""

from typing import Any

import pytest

from querator.model.commands import (
    FollowTarget,
    Move,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    ResumeMoves,
)
from querator.model.entries import Tier
from querator.model.errors import ErrorCode
from querator.model.execution_commands import RecordProgress, SentItems
from querator.model.executions import Close, NewRun, RecordKind
from querator.model.item_options import ItemSpecial
from querator.model.limits import BLOCK_ITEMS_MAX
from querator.model.routing import slot_of_key
from querator.partition import execution_items, queries
from querator.partition.needs import need
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.unit.partition.execution_queue import (
    ExecutionQueue,
    Worker,
    recorded,
    refused,
    spawn,
    step,
)
from tests.unit.partition.partition_log import PartitionLog, lease_of, seqs
from tests.unit.partition.test_follow_ups import batch_of, carry, payloads, send, stats

MAIL, AUDIT = 9, 11
PRODUCED = step(1, kind=RecordKind.PRODUCED, name="mail", payload=b"")


class Shop:
    """A queue of executions, and two queues of items."""

    def __init__(self) -> None:
        environment = MemoryEnvironment()
        self.executions = ExecutionQueue(log=PartitionLog(environment))
        self.log = self.executions.log
        self.mail = PartitionLog(environment, group=MAIL)
        self.mail.configure(queue="mail")
        self.audit = PartitionLog(environment, group=AUDIT)
        self.audit.configure(queue="audit")
        self.worker = self.executions.worker()

    def produce(self, *items: bytes, audit: int = 0, records: Any = (PRODUCED,),
                worker: Worker | None = None, **changes: Any) -> Any:  # fmt: skip
        """A Record that produces items: the last `audit` ones for audit, the others for mail."""
        targets = [FollowTarget("mail", 0, MAIL, len(items) - audit)]
        if audit:
            targets.append(FollowTarget("audit", 0, AUDIT, audit))
        return self.executions.record(
            worker or self.worker, *records, items=items, targets=tuple(targets), **changes
        )

    def attachments(self) -> int:
        """How many there are when the log has passed what is not needed any more."""
        for _ in range(6):
            self.log.advance(0)
            self.executions.signal("tick")
        with self.log.environment.snapshot() as txn:
            return sum(1 for _ in ATTACHMENTS.rows(txn, self.log.group))


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_items_and_their_record_are_one_step(shop: Shop) -> None:
    assert recorded(shop.produce(b"one", b"two", b"kept", audit=1)).first_index == 1
    assert shop.executions.kinds() == ["STARTED", "PRODUCED"]
    assert shop.log.applied.effects.outbox
    assert (carry(shop.log, shop.mail), carry(shop.log, shop.audit)) == (2, 1)
    assert (payloads(shop.mail), payloads(shop.audit)) == ([b"one", b"two"], [b"kept"])
    counts = stats(shop.log)
    assert (counts.moving, counts.moved_out, counts.ready) == (0, 3, 0)
    assert seqs(shop.mail.one(lease_of(9)).grants[0]) == [1, 2]


def test_a_repeat_of_the_record_produces_nothing(shop: Shop) -> None:
    shop.produce(b"one")
    again = recorded(shop.produce(b"one", number=1))
    assert again.repeated
    assert carry(shop.log, shop.mail) == 1
    assert batch_of(shop.log) is None
    assert shop.attachments() == 0


def test_a_worker_without_the_lease_produces_nothing(shop: Shop) -> None:
    shop.log.advance(60_000)
    assert refused(shop.produce(b"one")) == (ErrorCode.LEASE_LOST, "lease")
    assert batch_of(shop.log) is None
    assert shop.attachments() == 0


def test_a_refused_record_produces_nothing(shop: Shop) -> None:
    late = step(1, after=7)
    assert refused(shop.produce(b"one", records=(late,)))[1] == "records[0].after"
    assert batch_of(shop.log) is None
    assert shop.attachments() == 0


def test_large_payloads_and_items_do_not_mix(shop: Shop) -> None:
    large = b"x" * 3_000
    result = step(2, payload=b"", place=1)
    recorded(shop.produce(b"one", b"two", records=(PRODUCED, result), large=(large,)))
    assert [each.note.payload for each in shop.executions.journal()][2] == large
    carry(shop.log, shop.mail)
    assert payloads(shop.mail) == [b"one", b"two"]
    assert shop.attachments() == 1


def test_the_last_record_may_produce(shop: Shop) -> None:
    close = Close(RecordKind.COMPLETED, b"done")
    recorded(shop.produce(b"one", then=close))
    assert shop.executions.view().closed_ms
    assert carry(shop.log, shop.mail) == 1


def test_the_last_record_of_a_run_may_produce(shop: Shop) -> None:
    recorded(shop.produce(b"one", then=NewRun(b"again")))
    assert shop.executions.view().run == 2
    assert carry(shop.log, shop.mail) == 1


def test_activations_of_the_same_entry_keep_their_sequences(shop: Shop) -> None:
    """A child starts, and its parent produces, in one Record."""
    recorded(shop.produce(b"one", b"two", children=(spawn(2),)))
    child = shop.executions.leased("a/1")
    recorded(shop.produce(b"three", worker=child))
    carry(shop.log, shop.mail)
    assert payloads(shop.mail) == [b"one", b"two", b"three"]


def test_more_items_than_a_block_has(shop: Shop) -> None:
    items = tuple(b"%d" % number for number in range(2 * BLOCK_ITEMS_MAX + 5))
    recorded(shop.produce(*items, audit=7))
    assert carry(shop.log, shop.mail) == len(items) - 7
    assert carry(shop.log, shop.audit) == 7
    assert payloads(shop.mail) + payloads(shop.audit) == list(items)


def test_times_priorities_and_keys_go_along(shop: Shop) -> None:
    key = slot_of_key(b"k").to_bytes(2, "little")
    later = ItemSpecial(0, enqueue_at_ms=shop.log.now_ms + 60_000, priority=5, dedup_key=b"once")
    for _ in range(2):
        recorded(shop.produce(b"one", specials=(later,), slots=key))
    shop.mail.now_ms = shop.log.now_ms
    batch = batch_of(shop.log, MAIL)
    assert batch is not None
    send(shop.log, shop.mail, routing=0, homes=(MAIL,))
    assert (stats(shop.mail).scheduled, stats(shop.mail).duplicates) == (1, 1)
    shop.mail.advance(61_000)
    assert payloads(shop.mail) == [b"one"]


def test_items_of_a_queue_that_was_deleted_are_dropped(shop: Shop) -> None:
    recorded(shop.produce(b"one", b"two", b"kept", audit=1))
    assert shop.log.one(MoveReturn(MAIL)).changed == 2
    assert stats(shop.log).dropped == 2
    assert carry(shop.log, shop.audit) == 1
    assert shop.attachments() == 0


def test_items_go_elsewhere_from_a_partition_that_closes(shop: Shop) -> None:
    recorded(shop.produce(b"one"))
    assert shop.log.one(MoveElsewhere(MAIL, 0, AUDIT)).changed == 1
    assert carry(shop.log, shop.audit) == 1


def test_a_target_that_takes_moves_again_is_known(shop: Shop) -> None:
    recorded(shop.produce(b"one"))
    assert shop.log.one(ResumeMoves(MAIL, 4)).changed == 1
    batch = batch_of(shop.log, MAIL)
    assert batch is not None
    assert batch.since == 4


def test_they_wait_for_a_full_queue_and_the_execution_goes_on(shop: Shop) -> None:
    shop.mail.configure(version=2, queue="mail", items_max=1)
    shop.mail.produce([b"there"])
    recorded(shop.produce(b"one"))
    assert refused(send(shop.log, shop.mail))[0] == ErrorCode.QUEUE_FULL
    recorded(shop.executions.record(shop.worker, step(3)))
    shop.mail.configure(version=3, queue="mail")
    assert carry(shop.log, shop.mail) == 1


def test_the_items_that_wait_are_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_items, "EXECUTION_ITEMS_WAITING_MAX", 3)
    recorded(shop.produce(b"one", b"two"))
    refusal = shop.produce(b"three", b"four", number=2)
    assert refused(refusal) == (ErrorCode.OVERLOADED, "produced")
    assert (refusal.limit, refusal.value) == ("3", "4")
    recorded(shop.executions.record(shop.worker, step(3)))
    carry(shop.log, shop.mail)
    recorded(shop.produce(b"three", b"four"))
    assert shop.executions.kinds() == ["STARTED", "PRODUCED", "STEP_DONE", "PRODUCED"]


def test_a_full_disk_refuses_what_adds_items_first(shop: Shop) -> None:
    command = RecordProgress(
        *shop.worker, 1, records=(PRODUCED,), then=Close(RecordKind.COMPLETED),
        sent=SentItems(b"\1\0\0\0", (FollowTarget("mail", 0, MAIL, 1),)),
    )  # fmt: skip
    with shop.log.environment.snapshot() as txn:
        assert need(txn, shop.log.group, command).tier is Tier.ADDS


def test_moves_are_not_for_queues_of_executions(shop: Shop) -> None:
    shop.mail.produce([b"one"])
    recorded(shop.produce(b"two"))
    batch = batch_of(shop.log, MAIL)
    assert batch is not None
    move = Move(MAIL, 1, batch.lengths, batch.items)
    assert refused(shop.log.one(move, batch.attachment))[0] == ErrorCode.QUEUE_KIND
    assert shop.log.one(MoveDone(MAIL, 0)).changed == 0
    with shop.log.environment.snapshot() as txn:
        assert queries.outbox_targets(txn, shop.log.group) == (MAIL,)
