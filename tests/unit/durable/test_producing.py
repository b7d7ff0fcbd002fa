"""`produce`: items that leave the worker with the record that says so."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from querator import Item
from querator.durable import (
    NonDeterminism,
    NotInExecution,
    ValueTooLarge,
    call,
    durable,
    now,
    outbox,
    produce,
    publish,
    receive,
    sleep,
    step,
)
from querator.durable.machine import living
from querator.durable.outbox import Sending
from querator.local import Harness
from querator.model.executions import Close, GiveBack, RecordKind
from tests.unit.durable.memory_partition import MemoryPartition, Worker, replay, run_straight

LATE = datetime(2100, 1, 1, tzinfo=UTC)


@step
async def charge(number: int = 1) -> int:
    return number


@step(effects=False)
async def price(number: int = 1) -> int:
    return number


@durable
async def report(number: int) -> str:
    await price(number)
    await price(number)
    return "x" * 900_000


@durable
async def reports(with_items: bool) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(report(number))
    await charge()
    if with_items:
        produce("mail", *[b"x" * 1_000_000] * 4)
    await charge()


@durable(name="checkout")
async def checkout() -> str:
    produce("mail", "begun")
    await charge()
    produce("mail", "charged", b"receipt")
    produce("audit", "charged")
    return "done"


def test_items_leave_with_their_records_and_once():
    run = run_straight(checkout)
    assert run.kinds == [
        "STARTED", "PRODUCED mail", "STEP_DONE charge", "PRODUCED mail", "PRODUCED audit",
    ]  # fmt: skip
    assert run.partition.produced == {
        "mail": ["begun", "charged", "b'receipt'"], "audit": ["charged"],
    }  # fmt: skip
    replay(checkout, run.partition.journal)


def test_nothing_waits_for_them():
    @durable
    async def main() -> list[int]:
        produce("mail", "one")
        found = await price()
        produce("mail", "two")
        return [found, await price(2)]

    worker = Worker(MemoryPartition().start(main), main)
    try:
        [effect] = worker.begin()
        worker.finish(effect)
        [effect] = worker.begin()
        worker.finish(effect)
        sending = worker.send()
        assert sending is not None
        assert isinstance(sending.then, Close)
        [items] = sending.produced
        assert [item.payload for item in items.items] == ["one", "two"]
    finally:
        assert worker.machine.put_away()


def test_an_effect_waits_until_what_was_produced_before_it_is_durable():
    worker = Worker(MemoryPartition().start(checkout), checkout)
    try:
        assert worker.begin() == []
        assert worker.machine.is_urgent
        worker.send()
        assert [effect.name for effect in worker.begin()] == ["charge"]
    finally:
        assert worker.machine.put_away()


@pytest.mark.parametrize("applied", [False, True])
def test_a_worker_that_dies_at_its_record_produces_once(applied: bool):
    partition = MemoryPartition().start(checkout)
    first = Worker(partition, checkout)
    sending = first.machine.take()
    assert sending is not None
    if applied:
        partition.record(first.lease, sending)
    assert first.machine.put_away()
    run_straight(checkout, partition=partition)
    assert partition.produced["mail"] == ["begun", "charged", "b'receipt'"]
    assert living() == 0


async def test_every_crash():
    async def shop(h: Harness) -> list[object]:
        assert await h.run(checkout) == "done"
        return [item.payload for item in h.produced("mail") + h.produced("audit")]

    assert await Harness([checkout]).every_crash(shop) == [
        "begun",
        "charged",
        b"receipt",
        "charged",
    ]


async def test_a_sync_function_produces():
    @durable
    def main() -> None:
        produce("mail", "from a thread")

    h = Harness([main])
    await h.run(main)
    assert h.produced("mail") == [Item("from a thread")]


async def test_it_produces_while_it_waits():
    @durable
    async def main() -> str:
        produce("mail", "question")
        return str(await receive("answer"))

    h = Harness([main])
    handle = await h.start(main)
    assert h.produced("mail") == [Item("question")]
    await handle.signal("answer", "42")
    assert await handle.result() == "42"
    assert len(h.produced("mail")) == 1


async def test_each_attempt_of_a_loop_produces():
    @durable
    async def main() -> None:
        for day in range(3):
            produce("mail", f"day {day}")
            await sleep(timedelta(days=1))

    h = Harness([main])
    await h.run(main)
    assert [item.payload for item in h.produced("mail")] == ["day 0", "day 1", "day 2"]


async def test_a_delay_counts_from_the_time_of_the_code():
    @durable
    async def main() -> str:
        produce("mail", Item("later", delay=timedelta(hours=2)))
        return (now() + timedelta(hours=2)).isoformat()

    h = Harness([main])
    due = await h.run(main)
    [item] = h.produced("mail")
    assert item.delay is None
    assert item.enqueue_at is not None
    assert item.enqueue_at.isoformat() == due


# --- calls ----------------------------------------------------------------------------------------


@durable
async def notify(number: int) -> int:
    produce("mail", f"before {number}")
    await charge(number)
    await charge(number)
    produce("mail", f"after {number}")
    return number


def test_what_a_call_has_produced_folds_with_it():
    @durable
    async def main() -> list[int]:
        found = [await call(notify, number) for number in range(3)]
        await charge()
        return found

    run = run_straight(main)
    assert run.kinds.count("CALL_DONE notify") == 3
    assert "PRODUCED mail" not in run.kinds
    assert run.partition.produced["mail"] == [
        f"{word} {number}" for number in range(3) for word in ("before", "after")
    ]
    replay(main, run.partition.journal)


def test_a_call_that_ends_by_a_cancellation_keeps_its_records():
    """It has produced something in that turn, which is no event of its own."""

    @durable
    async def part() -> str:
        await charge()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            produce("mail", "cancelled")
        return "left"

    @durable
    async def main() -> str:
        return await call(part)

    run = run_straight(main, happens=[(5, lambda partition, now: partition.cancel(at_ms=now))])
    assert "PRODUCED mail" in run.kinds
    assert run.partition.produced["mail"] == ["cancelled"]
    assert replay(main, run.partition.journal) == run.partition.close


# --- changed code ---------------------------------------------------------------------------------


@durable(name="checkout")
async def to_another_queue() -> str:
    produce("letters", "begun")
    await charge()
    return "done"


@durable(name="checkout")
async def produces_less() -> str:
    await charge()
    return "done"


@durable(name="checkout")
async def produces_nothing() -> str:
    return "done"


@durable(name="checkout")
async def produces_more() -> str:
    produce("mail", "begun")
    produce("mail", "again")
    await charge()
    return "done"


@pytest.mark.parametrize(
    ("function", "now_it_does"),
    [
        (to_another_queue, "produce letters"),
        (produces_less, "step charge"),
        (produces_nothing, "checkout has ended"),
        (produces_more, "produce mail"),
    ],
)
def test_changed_code_is_named_by_both_lines(function, now_it_does: str):
    journal = run_straight(checkout).partition.journal[:3]
    with pytest.raises(NonDeterminism) as caught:
        replay(function, journal)
    text = str(caught.value)
    assert now_it_does in text
    assert ("produced mail" in text) != ("step charge  " in text.partition("now")[0])
    assert "test_producing.py:" in text


# --- what is refused ------------------------------------------------------------------------------


def sent(worker: Worker) -> Sending:
    sending = worker.machine.take()
    assert sending is not None
    return sending


def test_a_refused_queue_makes_it_stuck_and_loses_nothing_else():
    @durable
    async def main() -> int:
        found = await charge()
        produce("mail", "one")
        produce("missing", "two")
        return found

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    [effect] = worker.begin()
    worker.finish(effect)
    worker.machine.refused_items(sent(worker).number, "missing", "there is no such queue")
    sending = worker.send()
    assert sending is not None
    assert sending.then == GiveBack(stuck=True, reason="there is no such queue")
    assert [RecordKind(each.note.kind).name for each in partition.journal] == [
        "STARTED", "STEP_DONE", "PRODUCED",
    ]  # fmt: skip
    assert worker.machine.put_away()
    # There is one now, and the execution is retried.
    run = run_straight(main, partition=partition)
    assert run.effects == []
    assert partition.produced == {"mail": ["one"], "missing": ["two"]}


def test_a_full_journal_makes_it_stuck():
    @durable
    async def main() -> None:
        while True:
            produce("mail", "more")
            await price()

    worker = Worker(MemoryPartition().start(main), main, records_max=140)
    try:
        for _ in range(200):
            for effect in worker.begin():
                worker.finish(effect)
            worker.send()
        assert "full" in worker.machine.stuck or worker.machine.end is not None
    finally:
        assert worker.machine.put_away()


@pytest.mark.parametrize(
    ("queue", "items", "error", "text"),
    [
        (7, ("one",), TypeError, "the queue is 7"),
        ("no queue", ("one",), ValueError, "queue"),
        ("mail", (7,), TypeError, "item 0 is 7"),
        ("mail", ("one", {"two": 2}), TypeError, "item 1 is {'two': 2}"),
        ("mail", (Item("a", keep_result=timedelta(1)),), ValueError, "keep_result"),
        ("mail", (Item("a", on_duplicate="replace"),), ValueError, "on_duplicate='replace'"),
        ("mail", (Item("a", delay=timedelta(-1)),), ValueError, "must not be negative"),
        ("mail", (Item("a", delay=timedelta(days=4_000)),), ValueError, "delay of item 0 is 4000"),
        ("mail", ("a", Item("b", enqueue_at=LATE)), ValueError, "enqueue_at of item 1 is"),
        ("mail", ("one",) * 1_001, ValueTooLarge, "1001 items, of at most 1000"),
        ("mail", (b"x" * 1_000_000,) * 5, ValueTooLarge, "of at most 4194304"),
        ("mail", ("one", "ä" * 600_000), ValueTooLarge, "item 1 has 1200000 bytes, of at most"),
    ],
)
async def test_what_it_does_not_take(queue, items, error, text: str):
    @durable
    async def main() -> str:
        try:
            produce(queue, *items)
        except error as raised:
            return str(raised)
        return "taken"

    h = Harness([main])
    assert text in await h.run(main)
    assert h.produced("mail") == []


def test_it_needs_an_execution():
    with pytest.raises(NotInExecution, match="produce"):
        produce("mail", "one")


async def test_a_step_produces_by_a_client():
    @step
    async def work() -> None:
        produce("mail", "one")

    @durable
    async def main() -> str:
        try:
            await work()
        except NotInExecution as error:
            return str(error)
        return "produced"

    assert "in a step" in await Harness([main], errors=[NotInExecution]).run(main)


def test_a_record_takes_what_fits():
    """Of many calls in one turn: 1,000 items, 100 queues, 4 MiB."""

    @durable
    async def main() -> None:
        for _ in range(3):
            produce("mail", *["x"] * 600)
        for number in range(150):
            produce(f"queue-{number}", "x")
        for _ in range(3):
            produce("mail", *[b"x" * 1_000_000] * 3)
        await price()

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    try:
        sizes = []
        while (sending := worker.send()) is not None:
            items = [len(one.items) for one in sending.produced]
            sizes.append((sum(items), len(items)))
            assert sum(len(one.encoded) for one in sending.produced) <= 4_200_000
        assert sizes == [(600, 1), (600, 1), (699, 100), (54, 52), (3, 1), (3, 1)]
        assert len(partition.produced["mail"]) == 1_809
    finally:
        assert worker.machine.put_away()


@pytest.mark.parametrize("with_items", [False, True])
def test_a_record_takes_the_folds_that_fit(with_items: bool):
    worker = Worker(MemoryPartition().start(reports, with_items), reports)
    try:
        folds = []
        while not worker.machine.is_closed:
            for effect in worker.begin():
                worker.finish(effect)
            sending = worker.send()
            assert sending is not None
            payloads = [each.payload for each in sending.notes]
            payloads += [each.note.payload for each in sending.folds]
            payloads += [each.encoded for each in sending.produced]
            assert sum(map(len, payloads)) < 8_000_000
            folds.append(len(sending.folds))
        assert sum(folds) > 4
    finally:
        assert worker.machine.put_away()


def test_what_was_published_behind_a_call_that_the_journal_has_is_published(
    monkeypatch: pytest.MonkeyPatch,
):
    """The worker died when the record of the first call was in the journal, alone."""
    monkeypatch.setattr(outbox, "RECORD_NOTES_MAX", 1)

    @durable
    async def main() -> None:
        await receive("word")
        produce("mail", "one")
        publish("state", 1)
        produce("mail", "two")
        publish("state", 2)

    partition = MemoryPartition().start(main)
    first = Worker(partition, main)
    partition.signal("word", b'"now"')
    first.hear()
    first.send()
    assert partition.published == {"state": b"1"}
    assert first.machine.put_away()
    run_straight(main, partition=partition)
    assert partition.published == {"state": b"2"}
    assert partition.produced["mail"] == ["one", "two"]
