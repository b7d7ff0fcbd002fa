"""Recurrences through the service: calls of operators, and runs by the leader's clock."""

import asyncio
from collections import Counter
from datetime import datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from querator.model.calls import LeasedRun
from querator.model.errors import ErrorCode
from querator.model.flow_calls import ListGroupsCall
from querator.model.limits import RECURRENCE_ITEM_BYTES_MAX
from querator.model.queues import QueueKind
from querator.model.recurrence_calls import (
    CreateRecurrenceCall,
    ListRecurrencesCall,
    PauseRecurrenceCall,
    RecurrenceCall,
    RecurrenceTimesCall,
    UpdateRecurrenceCall,
)
from querator.model.recurrences import MissedRuns, Overlap, RecurrenceSpec, RecurrenceState
from querator.model.routing import slot_of_key
from querator.partition import recurrence_queries
from querator.raft.clock import SimulatedClock
from querator.storage.memory_environment import MemoryEnvironment
from querator.v1 import items_pb2, queue_service_pb2
from tests.unit.service.service_node import ServiceNode, refusal, service_node, whole

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
TEMPLATE = items_pb2.Item(payload=b"{{number}}").SerializeToString()
EVERY_MINUTE = RecurrenceSpec(interval_ms=MINUTE_MS, phase_ms=0, item=TEMPLATE)
NAMED = ("default", "q", "r")


def create(name: str = "r", **changes: Any) -> CreateRecurrenceCall:
    spec = msgspec.structs.replace(EVERY_MINUTE, **changes)
    return CreateRecurrenceCall("default", "q", name, spec=spec)


async def shown(node: ServiceNode, name: str = "r") -> Any:
    return (await node.admin.recurrences.get(RecurrenceCall("default", "q", name))).recurrence


def found(node: ServiceNode, name: str = "r") -> RecurrenceState:
    """The recurrence in the tables of the node."""
    queue = node.placement.map.find("default", "q")
    assert queue is not None
    with node.environment.snapshot() as txn:
        [one] = recurrence_queries.by_name(txn, queue.groups[0], name).recurrences
    return one


async def until_fired(node: ServiceNode, number: int, name: str = "r") -> None:
    await node.until(lambda: found(node, name).runs.fired >= number)


async def until_planned(node: ServiceNode, name: str = "r") -> int:
    """The next due time."""
    await node.until(lambda: bool(found(node, name).runs.place_ms))
    return found(node, name).runs.next_due_ms


def numbers(*batches: LeasedRun) -> list[int]:
    found = []
    for batch in batches:
        items = queue_service_pb2.ProduceRequest.FromString(batch.loaded.items).items
        found += [int(item.payload) for item in items]
        assert [item.attributes["recurrence-number"] for item in items] == [
            item.payload.decode() for item in items
        ]
    return found


async def test_items_come_when_the_clock_says_so():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partitions=3)
        made = await node.admin.recurrences.create(create())
        assert made.changed
        due_ms = await until_planned(node)
        for number in range(1, 6):
            clock.advance(due_ms - clock.wall_ms())
            await until_fired(node, number)
            assert await until_planned(node) == due_ms + MINUTE_MS
            due_ms += MINUTE_MS
        assert sorted(numbers(*(await node.lease()).batches)) == [1, 2, 3, 4, 5]


async def test_recurrences_are_in_the_first_partition_whatever_their_number_is():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        queue = await node.create(partitions=4)
        await node.admin.recurrences.create(create())
        settings = msgspec.structs.replace(queue.settings, partitions=1)
        await node.admin.update_queue("default", "q", settings, ("partitions",), 0)
        due_ms = await until_planned(node)
        clock.advance(due_ms - clock.wall_ms())
        await until_fired(node, 1)
        settings = msgspec.structs.replace(queue.settings, partitions=3)
        await node.admin.update_queue("default", "q", settings, ("partitions",), 0)
        clock.advance(MINUTE_MS)
        await until_fired(node, 2)
        assert sorted(numbers(*(await node.lease()).batches)) == [1, 2]


async def test_a_call_may_be_repeated():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        calls = node.admin.recurrences
        first, again = await calls.create(create()), await calls.create(create())
        assert (first.changed, again.changed) == (True, False)
        for paused in (True, True, False, False):
            await calls.pause(PauseRecurrenceCall(*NAMED, paused=paused))
        assert (await shown(node)).row.revision == 3
        await calls.delete(RecurrenceCall(*NAMED))
        error = await refusal(calls.delete(RecurrenceCall(*NAMED)))
        assert error.code is ErrorCode.RECURRENCE_NOT_FOUND


async def test_an_update_changes_what_its_mask_names():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        calls = node.admin.recurrences
        await calls.create(create())
        spec = RecurrenceSpec(jitter_ms=5_000, overlap=Overlap.SKIP)
        changed = await calls.update(UpdateRecurrenceCall(*NAMED, spec=spec, mask=("jitter_ms",)))
        row = changed.recurrence.row
        assert row.spec == msgspec.structs.replace(EVERY_MINUTE, jitter_ms=5_000)
        stale = UpdateRecurrenceCall(*NAMED, spec=spec, mask=("overlap",), expected_revision=1)
        error = await refusal(calls.update(stale))
        assert (error.code, error.field) == (ErrorCode.VERSION_CONFLICT, "expected_revision")
        both = RecurrenceSpec(cron="0 9 * * *")
        error = await refusal(calls.update(UpdateRecurrenceCall(*NAMED, spec=both, mask=("cron",))))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "spec.cron")
        mask = ("cron", "interval_ms", "phase_ms")
        changed = await calls.update(UpdateRecurrenceCall(*NAMED, spec=both, mask=mask))
        assert changed.recurrence.row.spec.cron == "0 9 * * *"


async def test_concurrent_updates_all_take_effect():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        calls = node.admin.recurrences
        await calls.create(create())
        spec = RecurrenceSpec(jitter_ms=5_000, overlap=Overlap.SKIP, missed=MissedRuns.ALL)
        await asyncio.gather(
            *(
                calls.update(UpdateRecurrenceCall(*NAMED, spec=spec, mask=(field,)))
                for field in ("jitter_ms", "overlap", "missed")
            )
        )
        row = (await shown(node)).row
        assert (row.spec.jitter_ms, row.spec.overlap, row.spec.missed) == (
            5_000, Overlap.SKIP, MissedRuns.ALL,
        )  # fmt: skip
        assert row.revision == 4


async def test_a_list_comes_in_pages():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        calls = node.admin.recurrences
        for number in range(5):
            await calls.create(create(f"r{number}"))
        names: list[str] = []
        token = ""
        while not names or token:
            page = await calls.page(ListRecurrencesCall("default", "q", 2, token))
            names += [one.recurrence.row.name for one in page.recurrences]
            token = page.next_page_token
        assert names == ["r0", "r1", "r2", "r3", "r4"]
        error = await refusal(calls.page(ListRecurrencesCall("default", "q", 2, "garbage")))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "page_token")


async def test_coming_times_are_those_at_which_items_come():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create()
        calls = node.admin.recurrences
        await calls.create(create(jitter_ms=30_000))
        await until_planned(node)
        coming = await calls.times(RecurrenceTimesCall(*NAMED))
        assert len(coming) == 10
        for number, run in enumerate(coming, 1):
            clock.advance(run.fire_ms - clock.wall_ms())
            await until_fired(node, number)
            runs = (await shown(node)).runs
            assert (runs.last_due_ms, runs.last_at_ms) == (run.due_ms, run.fire_ms)
        later = await calls.times(RecurrenceTimesCall(*NAMED, count=2, after_ms=coming[-1].due_ms))
        assert [run.due_ms for run in later] == [
            coming[-1].due_ms + MINUTE_MS, coming[-1].due_ms + 2 * MINUTE_MS,
        ]  # fmt: skip


async def test_coming_times_of_a_specification():
    async with service_node(clock=SimulatedClock(wall_ms=1_774_000_000_000)) as node:
        spec = RecurrenceSpec(cron="30 2 * * *", time_zone="Europe/Berlin")
        runs = await node.admin.recurrences.times(
            RecurrenceTimesCall(spec=spec, count=3, after_ms=1_774_660_000_000)
        )
        assert [run.due_ms for run in runs] == [
            1_774_661_400_000, 1_774_746_000_000, 1_774_830_600_000,
        ]  # fmt: skip


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no schedule": ({"interval_ms": 0}, "spec.cron", "INVALID_ARGUMENT"),
    "two schedules": ({"cron": "* * * * *"}, "spec.cron", "INVALID_ARGUMENT"),
    "a short interval": ({"interval_ms": 999}, "spec.interval", "LIMIT_EXCEEDED"),
    "a long interval": ({"interval_ms": 366 * DAY_MS + 1}, "spec.interval", "LIMIT_EXCEEDED"),
    "a phase beyond the interval": ({"phase_ms": MINUTE_MS}, "spec.phase", "LIMIT_EXCEEDED"),
    "a long jitter": ({"jitter_ms": DAY_MS + 1}, "spec.jitter", "LIMIT_EXCEEDED"),
    "a short patience": ({"missed_after_ms": 999}, "spec.missed_after", "LIMIT_EXCEEDED"),
    "too many missed runs": ({"missed_max": 1_001}, "spec.missed_max", "LIMIT_EXCEEDED"),
    "a zone of an interval": ({"time_zone": "UTC"}, "spec.time_zone", "INVALID_ARGUMENT"),
    "no expression": (
        {"interval_ms": 0, "phase_ms": -1, "cron": "every day"}, "spec.cron", "INVALID_ARGUMENT",
    ),
    "a day that never comes": (
        {"interval_ms": 0, "phase_ms": -1, "cron": "0 0 31 2 *"}, "spec.cron", "INVALID_ARGUMENT",
    ),
    "days that never meet": (
        {"interval_ms": 0, "phase_ms": -1, "cron": "* * */20 * 1L"},
        "spec.cron", "INVALID_ARGUMENT",
    ),
    "an unknown zone": (
        {"interval_ms": 0, "phase_ms": -1, "cron": "* * * * *", "time_zone": "Mars/Phobos"},
        "spec.time_zone", "INVALID_ARGUMENT",
    ),
    "a phase without interval": (
        {"interval_ms": 0, "phase_ms": 0, "cron": "* * * * *"}, "spec.phase", "INVALID_ARGUMENT",
    ),
    "a key": (
        {"item": items_pb2.Item(key="k").SerializeToString()},
        "spec.item.key", "INVALID_ARGUMENT",
    ),
    "a dedup key": (
        {"item": items_pb2.Item(dedup_key="k").SerializeToString()},
        "spec.item.dedup_key", "INVALID_ARGUMENT",
    ),
    "an attribute of runs": (
        {"item": items_pb2.Item(attributes={"recurrence": "x"}).SerializeToString()},
        "spec.item.attributes", "INVALID_ARGUMENT",
    ),
    "a large template": (
        {"item": items_pb2.Item(payload=bytes(RECURRENCE_ITEM_BYTES_MAX)).SerializeToString()},
        "spec.item", "LIMIT_EXCEEDED",
    ),
    "a template that grows": (
        {"item": items_pb2.Item(payload=b"{{due_at}}" * 6_000).SerializeToString()},
        "spec.item", "LIMIT_EXCEEDED",
    ),
    "a long kind": (
        {"item": items_pb2.Item(kind="k" * 256).SerializeToString()},
        "spec.item.kind", "LIMIT_EXCEEDED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_recurrence_is_refused(name):
    changes, field, code = BAD[name]
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        error = await refusal(node.admin.recurrences.create(create(**changes)))
        assert (error.field, error.code.name) == (field, code)
        assert field in error.message
        if code == "LIMIT_EXCEEDED":
            assert error.limit
            assert error.value


@pytest.mark.parametrize("name", ["", "a/b", "x" * 256])
async def test_names_are_checked(name):
    async with service_node() as node:
        await node.create()
        error = await refusal(node.admin.recurrences.create(create(name)))
        assert error.field == "name"


async def test_a_full_queue_delays_runs_and_takes_them_when_it_has_space():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partition_items_max=2)
        await node.produce(b"1", b"2")
        await node.admin.recurrences.create(create())
        due_ms = await until_planned(node)
        clock.advance(due_ms - clock.wall_ms())
        batches = (await node.lease()).batches
        await node.complete(*(whole(batch) for batch in batches))
        await until_fired(node, 1)


def keyed_item(key: str) -> bytes:
    return items_pb2.Item(payload=b"{{number}}", key=key).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "item", "more", "field"),
    [
        (QueueKind.PLAIN, {"key": "k"}, {}, "spec.item.key"),
        (QueueKind.FAIR, {"key": "k"}, {}, "spec.item.key"),
        (QueueKind.FAIR, {"group": "eu..de"}, {}, "spec.item.group"),
        (QueueKind.FAIR, {"group": "a.b.c.d.e.f.g.h.i"}, {}, "spec.item.group"),
        (QueueKind.KEYED, {"key": "k"}, {"overlap": Overlap.SKIP}, "spec.overlap"),
        (QueueKind.KEYED, {"key": "k" * 513}, {}, "spec.item.key"),
    ],
)
async def test_a_group_or_key_must_fit_the_queue(kind, item, more, field):
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(kind=kind)
        calls = node.admin.recurrences
        template = items_pb2.Item(**item).SerializeToString()
        error = await refusal(calls.create(create(item=template, **more)))
        assert error.field == field
        assert error.message.startswith(field)
        await calls.create(create())
        spec = RecurrenceSpec(item=template, **more)
        update = UpdateRecurrenceCall(*NAMED, spec=spec, mask=("item", *more))
        assert (await refusal(calls.update(update))).field == field
        assert (await shown(node)).row.revision == 1


async def test_items_with_a_key_cannot_begin_to_skip():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(kind=QueueKind.KEYED)
        calls = node.admin.recurrences
        await calls.create(create(item=keyed_item("k")))
        update = UpdateRecurrenceCall(
            *NAMED, spec=RecurrenceSpec(overlap=Overlap.SKIP), mask=("overlap",)
        )
        assert (await refusal(calls.update(update))).field == "spec.overlap"


async def test_items_of_a_fair_queue_have_their_group():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partitions=2, kind=QueueKind.FAIR)
        template = items_pb2.Item(payload=b"{{number}}", group="eu.de").SerializeToString()
        await node.admin.recurrences.create(create(item=template, overlap=Overlap.SKIP))
        due_ms = await until_planned(node)
        clock.advance(due_ms - clock.wall_ms())
        await until_fired(node, 1)
        listed = await node.admin.groups.list_groups(ListGroupsCall("default", "q"))
        assert "eu.de" in [one.path for one in listed.groups]


def keys_and_numbers(*batches: LeasedRun) -> dict[str, list[tuple[int, int]]]:
    """By key: partition and number of its items."""
    found: dict[str, list[tuple[int, int]]] = {}
    for batch in batches:
        for item in items_pb2.LeasedBatch.FromString(batch.loaded.items).items:
            found.setdefault(item.key, []).append((batch.partition, int(item.payload)))
    return found


@pytest.mark.parametrize("partitions", [1, 5])
async def test_items_go_to_the_partitions_of_their_keys_whatever_their_number_is(partitions: int):
    clock = SimulatedClock()
    keys = [f"key {number}" for number in range(8)]
    async with service_node(clock=clock) as node:
        queue = await node.create(partitions=3, kind=QueueKind.KEYED)
        for key in keys:
            name = key.replace(" ", ".")
            await node.admin.recurrences.create(create(name, item=keyed_item(key)))
        for count, number in ((3, 1), (partitions, 2)):
            settings = msgspec.structs.replace(queue.settings, partitions=count)
            await node.admin.update_queue("default", "q", settings, ("partitions",), 0)
            due_ms = max([await until_planned(node, key.replace(" ", ".")) for key in keys])
            clock.advance(due_ms - clock.wall_ms())
            for key in keys:
                await until_fired(node, number, key.replace(" ", "."))
            await node.until(lambda: not node.counts().moving and node.counts().ready >= len(keys))
            batches = (await node.lease()).batches
            homes = {key: slot_of_key(key.encode()) % count for key in keys}
            assert keys_and_numbers(*batches) == {key: [(homes[key], number)] for key in keys}
            assert not (await node.lease()).batches
            await node.complete(*(whole(batch) for batch in batches))


async def test_an_item_that_has_gone_to_its_partition_has_no_id_here():
    clock = SimulatedClock()
    away = next(key for key in "abcdefgh" if slot_of_key(key.encode()) % 2)
    async with service_node(clock=clock) as node:
        await node.create(partitions=2, kind=QueueKind.KEYED)
        await node.admin.recurrences.create(create(item=keyed_item(away)))
        due_ms = await until_planned(node)
        clock.advance(due_ms - clock.wall_ms())
        await until_fired(node, 1)
        runs = (await shown(node)).runs
        assert (runs.last_due_ms, runs.last_seq) == (due_ms, 0)


async def test_recurrences_end_with_their_queue():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create()
        await node.admin.recurrences.create(create())
        await until_planned(node)
        await node.admin.delete_queue("default", "q")
        error = await refusal(node.admin.recurrences.get(RecurrenceCall(*NAMED)))
        assert error.code in (ErrorCode.QUEUE_NOT_FOUND, ErrorCode.QUEUE_DELETING)
        clock.advance(10 * MINUTE_MS)
        await node.create("other")
        assert (await node.total("other")).ready == 0


async def test_a_node_that_starts_again_continues():
    environment, clock = MemoryEnvironment(), SimulatedClock()
    async with service_node(environment, clock) as node:
        await node.create()
        await node.admin.recurrences.create(create(missed=MissedRuns.ALL))
        await until_planned(node)
    clock.advance(10 * MINUTE_MS)
    async with service_node(environment, clock) as node:
        await until_fired(node, 10)
        await until_planned(node)
        assert numbers(*(await node.lease()).batches) == list(range(1, 11))


@pytest.mark.parametrize(
    ("zone", "cron", "spring", "autumn"),
    [
        ("America/New_York", "30 2 * * *", "2026-03-08T03:00-04:00", "2026-11-01T02:30-05:00"),
        ("America/New_York", "30 1 * * *", "2026-03-08T01:30-05:00", "2026-11-01T01:30-04:00"),
        ("Europe/Berlin", "30 2 * * *", "2026-03-29T03:00+02:00", "2026-10-25T02:30+02:00"),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04T02:30+11:00", "2026-04-05T02:15+10:30"),
    ],
)
async def test_both_changes_of_clocks_in_a_year(zone, cron, spring, autumn):
    """Each day has one item, and the clocks of two days differ from the others."""
    days = 250
    clock = SimulatedClock(wall_ms=_ms("2026-03-04T12:00+00:00"))
    async with service_node(clock=clock) as node:
        await node.create()
        call = create(cron=cron, time_zone=zone, interval_ms=0, phase_ms=-1)
        await node.admin.recurrences.create(call)
        due: list[int] = []
        for number in range(1, days + 1):
            due_ms = await until_planned(node)
            clock.advance(due_ms - clock.wall_ms())
            await until_fired(node, number)
            due.append(found(node).runs.last_due_ms)
            assert due[-1] == due_ms
    assert _ms(spring) in due
    assert _ms(autumn) in due
    dates = {datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).date() for at in due}
    assert len(dates) == len(due) == days
    apart = Counter(later - at for at, later in pairwise(due))
    assert apart[DAY_MS] >= days - 5


async def test_a_time_that_comes_twice_runs_twice_if_it_is_not_fixed():
    clock = SimulatedClock(wall_ms=_ms("2026-11-01T00:50-04:00"))
    async with service_node(clock=clock) as node:
        await node.create()
        call = create(cron="*/30 1 * * *", time_zone="America/New_York", interval_ms=0, phase_ms=-1)
        await node.admin.recurrences.create(call)
        due = []
        for number in range(1, 6):
            due_ms = await until_planned(node)
            clock.advance(due_ms - clock.wall_ms())
            await until_fired(node, number)
            due.append(due_ms)
    assert due == [
        _ms("2026-11-01T01:00-04:00"),
        _ms("2026-11-01T01:30-04:00"),
        _ms("2026-11-01T01:00-05:00"),
        _ms("2026-11-01T01:30-05:00"),
        _ms("2026-11-02T01:00-05:00"),
    ]


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
