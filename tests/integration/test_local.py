"""`querator.local.Local`: durable functions in one process, and `SyncExecutions` beside it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from querator import Client, SyncClient
from querator.durable import (
    Durable,
    Executions,
    RemoteError,
    SyncExecutions,
    activation_run,
    call,
    continue_as_new,
    durable,
    now,
    partition_clock,
    promise,
    receive,
    sleep,
    step,
    sync,
)
from querator.durable import map as map_items
from querator.errors import ExecutionExists, QueueDeleting, QueueNotFound
from querator.local import Local
from querator.storage.environment import StorageError

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAIT = timedelta(seconds=60)


class Declined(Exception):
    """A card was declined."""


class Unknown(Exception):
    """No worker knows it."""


done: list[str] = []
tokens: list[str] = []


@step
async def reserve(order: str) -> str:
    done.append(f"reserve {order}")
    return f"reserved {order}"


@step
async def refuse(kind: str) -> None:
    raise Declined("no cover") if kind == "known" else Unknown("no cover")


@step
def give(token: str) -> None:
    tokens.append(token)


@durable
async def checkout(order: str) -> str:
    return await reserve(order)


@durable
async def declined(kind: str) -> None:
    await refuse(kind)


@durable
async def conversation() -> list[str | int]:
    approval = promise(int)
    await receive("go")
    await call(give, approval.token)
    return [await approval, await receive("word", str)]


@durable
def in_a_thread(order: str) -> str:
    sync.sleep(0.01)
    return order.upper()


@durable
async def collect(heard: list[int], most: int) -> list[int]:
    """Three signals in each run."""
    for _ in range(3):
        heard = [*heard, await receive("number", int)]
        if len(heard) == most:
            return heard
    continue_as_new(heard, most)


@durable
async def square(number: int) -> int:
    return number * number


@durable
async def squares(count: int) -> list[int]:
    return await map_items(square, range(count), parallel=40)


@durable
async def naps() -> tuple[datetime, datetime]:
    await reserve("a nap")
    before = now()
    await sleep(0.6)
    return before, now()


@durable
async def elsewhere() -> None: ...


FUNCTIONS: list[Durable[..., Any]] = [
    checkout, declined, conversation, in_a_thread, collect, square, squares, naps,
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[Local]:
    async with Local(None, FUNCTIONS, errors=[Declined]) as local:
        yield local


async def test_signals_that_come_while_runs_end_are_received_once(local: Local) -> None:
    handle = await local.start(collect, [], 100)
    await asyncio.gather(*(handle.signal("number", number) for number in range(100)))
    assert sorted(await handle.result(timeout=WAIT)) == list(range(100))
    # Each run but the last one has received three.
    assert (await handle.get()).run == 34


async def test_a_map_of_several_portions(local: Local) -> None:
    handle = await local.start(squares, 230)
    assert await handle.result(timeout=WAIT) == [number * number for number in range(230)]
    assert (await handle.get()).records == 5


async def test_a_function_runs_once_per_id(local: Local) -> None:
    for _ in range(2):
        assert await local.run(checkout, "order-17", id="order-17") == "reserved order-17"
    assert done.count("reserve order-17") == 1
    with pytest.raises(ExecutionExists):
        await local.run(checkout, "order-18", id="order-17")
    assert await local.handle("order-17", checkout).result() == "reserved order-17"
    assert await local.run(in_a_thread, "order-19") == "ORDER-19"


async def test_exceptions_are_those_of_the_function(local: Local) -> None:
    with pytest.raises(Declined, match="no cover"):
        await local.run(declined, "known")
    with pytest.raises(RemoteError, match="Unknown: no cover"):
        await local.run(declined, "unknown")
    with pytest.raises(TimeoutError, match="it is parked"):
        await local.run(conversation, timeout=timedelta(seconds=1))


async def test_a_worker_whose_clock_is_wrong_by_a_year_keeps_time(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it records, and the timers that it sets, are of the partition's time."""
    for year_ns in (-365 * 86_400 * 10**9, 365 * 86_400 * 10**9):
        clock = SimpleNamespace(
            monotonic=time.monotonic, time_ns=lambda wrong=year_ns: time.time_ns() + wrong
        )
        for module in (activation_run, partition_clock):
            monkeypatch.setattr(module, "time", clock)
        before, after = await local.run(naps, timeout=WAIT)
        assert timedelta(seconds=0.6) <= after - before < WAIT
        assert abs(before - datetime.now(UTC)) < WAIT


async def test_other_functions_are_refused(local: Local) -> None:
    with pytest.raises(ValueError, match="functions does not have elsewhere; it has checkout,"):
        await local.run(elsewhere)
    with pytest.raises(TypeError, match="must be a function with @durable"):
        await local.start(len, [])  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="functions is empty"):
        async with Local(None, []):
            pass


async def test_other_programs_reach_it(local: Local) -> None:
    async with Client(local.address) as client:
        handle = await Executions(client, "local").start(checkout, "order-20", id="order-20")
        assert await handle.result(timeout=WAIT) == "reserved order-20"


async def test_the_calls_without_await(local: Local) -> None:
    def program() -> None:
        with SyncClient(local.address) as client:
            calls = SyncExecutions(client, "local", errors=[Declined])
            handle = calls.start(conversation, id="talk")
            assert handle.get().function == "conversation"
            handle.signal("go")
            calls.signal("talk", "word", "hello")
            while not tokens:
                handle.get()
            assert calls.resolve(tokens[0], 7) is True
            assert calls.reject(tokens[0], "too late") is False
            assert handle.result(timeout=WAIT) == [7, "hello"]
            assert calls.handle("talk").result() == [7, "hello"]
            kinds = [entry.kind for entry in handle.journal()]
            assert (kinds[0], kinds[-1]) == ("STARTED", "COMPLETED")
            assert "talk" in [one.id for one in calls.list(state="completed")]
            with pytest.raises(Declined):
                calls.start(declined, "known", id="declined").result(timeout=WAIT)
            assert calls.get("declined").state == "failed"
            assert calls.start(in_a_thread, "a", id="a").result(timeout=WAIT) == "A"
            waiting = calls.start(conversation, id="waiting")
            assert waiting.retry() is calls.retry("waiting") is False
            assert waiting.cancel("sold out") is True
            assert calls.cancel("waiting") is False
            ended = calls.start(conversation, id="ended")
            assert ended.terminate() is True
            assert calls.terminate("ended") is False

    await asyncio.to_thread(program)


async def test_what_ends_the_worker_ends_the_call() -> None:
    async def program() -> None:
        async with Local(None, FUNCTIONS) as local:
            await local.client.delete_queue("local")
            await local.run(conversation, timeout=WAIT)

    with pytest.raises((QueueDeleting, QueueNotFound)):
        await program()


async def test_one_process_at_a_time_has_the_folder(tmp_path: Path) -> None:
    async with Local(tmp_path / "shop", FUNCTIONS) as first:
        with pytest.raises(StorageError):
            async with Local(tmp_path / "shop", FUNCTIONS):
                pass
        assert await first.run(checkout, "order-1", id="order-1") == "reserved order-1"
    async with Local(str(tmp_path / "shop"), [conversation, declined]) as again:
        # Its function is gone, its result is not.
        assert await again.handle("order-1").result() == "reserved order-1"


PROGRAM = """
import asyncio
import os
import sys
from datetime import timedelta

from querator.durable import durable, step
from querator.local import Local


@step
async def work(number: int) -> int:
    print("work", number, flush=True)
    if str(number) in sys.argv:
        os.kill(os.getpid(), 9)
    return number


@durable
async def chain() -> int:
    return sum([await work(number) for number in range(4)])


async def main() -> None:
    async with Local("shop", [chain], lease_timeout=timedelta(seconds=1)) as local:
        print("sum", await local.run(chain, id="one"), flush=True)


asyncio.run(main())
"""


async def test_a_killed_program_continues_when_it_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    async def run(*arguments: str) -> tuple[int, list[str]]:
        command = [sys.executable, "program.py", *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode().splitlines()

    assert await run("2") == (-signal.SIGKILL, ["work 0", "work 1", "work 2"])
    assert await run("3") == (-signal.SIGKILL, ["work 2", "work 3"])
    assert await run() == (0, ["work 3", "sum 6"])
    assert await run() == (0, ["sum 6"])
