"""Children of executions: what the code sees of them, live and in replays, on a real partition."""

import asyncio
from typing import Any

import pytest

from querator.durable import (
    Child,
    ChildRefused,
    ExecutionCancelled,
    ExecutionTerminated,
    NotInExecution,
    RunTooLong,
    current,
    durable,
    sleep,
    spawn,
    step,
    sync,
)
from querator.durable.machine import living
from querator.model.executions import ArriveKind, ExecutionState
from querator.partition import execution_children
from tests.unit.durable.families import Family


@step
async def say(text: str) -> str:
    return text


@durable
async def ship(parcel: str) -> str:
    return await say(f"shipped {parcel}")


@durable
async def lose(parcel: str) -> str:
    raise ValueError(f"{parcel} is lost")


@durable
async def wait_long(parcel: str) -> str:
    await sleep(1_000_000)
    return parcel


def run(function: Any, *args: Any, others: Any = (), name: str = "a") -> Family:
    family = Family([function, ship, lose, wait_long, *others])
    family.start(name, function, *args)
    family.run()
    assert not living()
    return family


def kinds(family: Family, name: str = "a") -> list[str]:
    return family.queue.kinds(name)


def test_a_child_gives_its_result():
    @durable
    async def parent() -> str:
        child = await spawn(ship, "p1")
        assert isinstance(child, Child)
        await say("between")
        return await child

    family = run(parent)
    assert family.result("a") == "shipped p1"
    child = family.views()[1]
    assert child.id == "a/1-1"
    assert (child.parent_id, child.state) == ("a", ExecutionState.COMPLETED)
    assert sorted(kinds(family)[1:]) == [
        "CHILD_DONE", "CHILD_STARTED", "COMPLETED", "STEP_DONE",
    ]  # fmt: skip


def test_children_run_at_the_same_time():
    @durable
    async def parent() -> list[str]:
        children = await asyncio.gather(*(spawn(ship, f"p{nth}") for nth in range(20)))
        return list(await asyncio.gather(*children))

    family = run(parent)
    assert family.result("a") == [f"shipped p{nth}" for nth in range(20)]
    assert len(family.views()) == 21


def test_children_in_a_task_group():
    @durable
    async def parent() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task((await spawn(ship, f"p{nth}")).wait()) for nth in range(3)]
        return [task.result() for task in tasks]

    assert run(parent).result("a") == ["shipped p0", "shipped p1", "shipped p2"]


def test_an_exception_of_a_child_is_raised():
    @durable
    async def parent() -> str:
        try:
            return await (await spawn(lose, "p1"))
        except ValueError as error:
            return f"heard: {error}"

    assert run(parent).result("a") == "heard: p1 is lost"


def test_a_timeout_cancels_the_child():
    @durable
    async def parent() -> str:
        child = await spawn(wait_long, "p1", id="a/slow")
        try:
            async with asyncio.timeout(60):
                return await child
        except TimeoutError:
            try:
                return await child
            except ExecutionCancelled as error:
                return str(error)

    family = run(parent)
    assert family.result("a") == "child a/slow was cancelled: its parent a cancels it"
    assert family.result("a/slow") == "CANCELLED"


def test_a_child_that_is_shielded_survives_a_timeout():
    @durable
    async def parent() -> str:
        child = await spawn(wait_long, "p1", cancel=False)
        try:
            async with asyncio.timeout(60):
                return await child
        except TimeoutError:
            return await child

    assert run(parent).result("a") == "p1"


def test_a_detached_child_is_not_cancelled_for_an_await():
    @durable
    async def parent() -> str:
        child = await spawn(wait_long, "p1", id="a/detached", detached=True)
        async with asyncio.timeout(60):
            return await child

    family = run(parent)
    assert isinstance(family.result("a"), TimeoutError)
    assert family.result("a/detached") == "p1"


def test_a_child_is_cancelled_by_name():
    @durable
    async def parent() -> str:
        child = await spawn(wait_long, "p1", detached=True)
        child.cancel()
        try:
            await child
        except ExecutionCancelled:
            assert child.done
            child.cancel()
            return "cancelled"
        return "not cancelled"

    assert run(parent).result("a") == "cancelled"


def test_what_is_attached_ends_with_the_parent():
    @durable
    async def parent() -> str:
        await spawn(wait_long, "p1", id="a/attached")
        await spawn(wait_long, "p2", id="a/detached", detached=True)
        return "done"

    family = run(parent)
    assert family.result("a/attached") == "CANCELLED"
    assert family.result("a/detached") == "p2"


def test_a_cancelled_parent_cleans_up_with_another_child():
    @durable
    async def parent() -> str:
        child = await spawn(wait_long, "p1", id="a/first")
        try:
            return await child
        except asyncio.CancelledError:
            return await (await spawn(ship, "back", id="a/second"))

    family = Family([parent, wait_long, ship])
    family.start("a", parent)
    family.until_parked("a/first")
    family.end(ArriveKind.CANCEL, "a")
    family.run()
    assert family.result("a") == "shipped back"
    assert family.result("a/first") == "CANCELLED"


def test_a_terminated_child_raises():
    @durable
    async def parent() -> str:
        try:
            return await (await spawn(wait_long, "p1", id="a/1"))
        except ExecutionTerminated as error:
            return str(error)

    family = Family([parent, wait_long])
    family.start("a", parent)
    family.until_parked("a/1")
    family.end(ArriveKind.TERMINATE, "a/1")
    family.run()
    assert family.result("a") == "child a/1 was ended from outside: "


def test_the_same_child_is_started_once():
    @durable
    async def parent() -> list[str]:
        first = await spawn(ship, "p1", id="a/p1")
        second = await spawn(ship, "p1", id="a/p1")
        return [await first, await second]

    family = run(parent)
    assert family.result("a") == ["shipped p1", "shipped p1"]
    assert len(family.views()) == 2
    assert len(family.begun) == 1


def test_an_id_that_is_taken_raises():
    @durable
    async def parent() -> str:
        await spawn(ship, "p1", id="a/p1")
        try:
            await spawn(ship, "p2", id="a/p1")
        except ChildRefused as error:
            return error.code
        return "started"

    assert run(parent).result("a") == "EXECUTION_EXISTS"


def test_an_ancestor_is_no_child():
    @durable
    async def parent(deep: int) -> str:
        if deep == 2:
            await spawn(parent, 0, id="a")
        return await (await spawn(parent, deep + 1))

    error = run(parent, 0).result("a")
    assert isinstance(error, ChildRefused)
    assert error.code == "EXECUTION_EXISTS"
    assert "ancestor" in str(error)


def test_a_full_journal_raises(monkeypatch):
    monkeypatch.setattr(execution_children, "JOURNAL_RECORDS_MAX", 105)

    @durable
    async def parent() -> str:
        try:
            for nth in range(10):
                await spawn(wait_long, f"p{nth}")
        except RunTooLong as error:
            return str(error)
        return "room"

    assert "was not started: the journal would have" in run(parent).result("a")


def test_a_result_without_room_raises(monkeypatch):
    monkeypatch.setattr(execution_children, "JOURNAL_BYTES_MAX", 10)

    @durable
    async def parent() -> str:
        return await (await spawn(ship, "p1"))

    error = run(parent).result("a")
    assert isinstance(error, RunTooLong)
    assert "has no room in the journal" in str(error)


def test_a_call_with_its_children_is_folded():
    @durable
    async def pack(name: str) -> str:
        first = await spawn(ship, name)
        second = await spawn(ship, f"{name}+")
        return await first + await second + await say("!")

    @durable
    async def parent() -> str:
        packed = [await pack(f"p{nth}") for nth in range(3)]
        await say("last")
        return " ".join(packed)

    family = run(parent)
    assert family.result("a") == " ".join(f"shipped p{n}shipped p{n}+!" for n in range(3))
    assert len(kinds(family)) == 6


def test_a_child_that_a_call_leaves_behind_keeps_its_records():
    @durable
    async def leave(name: str) -> str:
        await spawn(wait_long, name)
        await say("one")
        return await say("two")

    @durable
    async def parent() -> str:
        left = await leave("p1")
        await sleep(60)
        await say("last")
        return left

    family = run(parent)
    assert family.result("a") == "two"
    assert "CHILD_STARTED" in kinds(family)
    assert "CALL_DONE" not in kinds(family)


def test_a_sync_function_has_children():
    @durable
    def parent() -> str:
        child = sync.spawn(ship, "p1")
        return f"{sync.wait(child)}, {child.id}"

    assert run(parent).result("a") == "shipped p1, a/1-1"


def test_a_child_knows_its_id():
    @durable
    async def child() -> str:
        return current().execution_id

    @durable
    async def parent() -> str:
        return await (await spawn(child, id="a/x"))

    assert run(parent, others=[child]).result("a") == "a/x"


def test_long_ids_are_hashed():
    @durable
    async def parent() -> str:
        return (await spawn(ship, "p1")).id

    name = "a/" + "n" * 250
    child_id = run(parent, name=name).result(name)
    assert child_id.startswith("a/")
    assert len(child_id) == 34


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"id": "b/1"}, ValueError, "its part up to the first `/` must be that of this execution"),
        ({"id": ""}, ValueError, "must not be empty"),
        ({"id": "a/" + "x" * 300}, ValueError, "255"),
        ({"id": "a/\n"}, ValueError, "cannot be printed"),
        ({"id": 7}, TypeError, "must be a text"),
        ({"weight": 3}, TypeError, "weight"),
    ],
)
def test_bad_children_are_refused_where_they_are_started(options, error, text):
    @durable
    async def parent() -> str:
        await spawn(ship, "p1", **options)
        return ""

    result = run(parent).result("a")
    assert isinstance(result, error)
    assert text in str(result)


def test_only_durable_functions_are_children():
    @durable
    async def parent() -> str:
        await spawn(say, "p1")  # type: ignore[call-overload]
        return ""

    assert "it must be a function with @durable" in str(run(parent).result("a"))


def test_a_child_needs_an_execution():
    with pytest.raises(NotInExecution):
        asyncio.run(spawn(ship, "p1"))


def test_a_start_that_the_code_does_not_wait_for_any_more_is_cancelled():
    """The code is cancelled between the start and the answer."""

    @durable
    async def parent() -> str:
        try:
            async with asyncio.timeout(0):
                await spawn(wait_long, "p1", id="a/late")
        except TimeoutError:
            pass
        await sleep(60)
        return "done"

    for seed in range(20):
        family = Family([parent, wait_long], seed)
        family.start("a", parent)
        family.run()
        assert family.result("a") == "done"
        assert family.queue.find("a/late") is None or family.result("a/late") == "CANCELLED"


def test_each_crash_behind_a_record_changes_nothing():
    @durable
    async def pack(name: str) -> str:
        return await (await spawn(ship, name)) + await say("!")

    @durable
    async def parent() -> str:
        await say("first")
        first, second = await asyncio.gather(spawn(ship, "p1"), spawn(lose, "p2"))
        packed = await pack("p3")
        try:
            return await second
        except ValueError as error:
            return f"{await first}, {packed}, {error}"

    def runs(crash_at: int) -> Family:
        family = Family([parent, ship, lose])
        family.crash_at = crash_at
        family.start("a", parent)
        family.run()
        assert family.result("a") == "shipped p1, shipped p3!, p2 is lost"
        assert len(family.views()) == 4
        return family

    records = runs(0).records
    assert records > 5
    for crash_at in range(1, records + 4):
        runs(crash_at)
