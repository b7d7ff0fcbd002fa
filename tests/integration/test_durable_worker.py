"""Durable functions on a real node: workers that are killed, stopped and frozen; a node that
restarts.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from querator import Client
from querator.client.executions import ExecutionInfo
from querator.durable import (
    CodecError,
    Durable,
    ExecutionCancelled,
    ExecutionHandle,
    Executions,
    ExecutionTerminated,
    PromiseRejected,
    PublishedValue,
    RemoteError,
    Worker,
    durable,
    promise,
    receive,
    step,
)
from querator.errors import (
    ExecutionClosed,
    ExecutionExists,
    ExecutionNotFound,
    QueueNotFound,
    TokenInvalid,
    WrongQueueKind,
)
from tests.integration import durable_shop
from tests.integration.durable_shop import (
    FUNCTIONS,
    Declined,
    Order,
    chain,
    checkout,
    dozen,
    producer,
    publisher,
    worded_work,
    work,
)
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ServerProcess, server

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

LEASE = timedelta(seconds=2)
WAIT = timedelta(seconds=60)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    async with server(tmp_path_factory.mktemp("node") / "data") as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def client(node: ServerProcess) -> AsyncIterator[Client]:
    async with Client(node.address, request_timeout=timedelta(seconds=20)) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def shop(client: Client, request: pytest.FixtureRequest) -> Executions:
    """The executions of a queue of the test."""
    name = request.node.name.replace("_", "-")
    await client.create_queue(name, kind="executions", partitions=2, lease_timeout=LEASE)
    return Executions(client, name, errors=[Declined])


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    monkeypatch.setattr(durable_shop, "LEDGER", [path])
    return path


def effects(ledger: Path) -> list[tuple[str, str, int]]:
    """Step, key and process of each effect."""
    return [
        msgspec.json.decode(line, type=tuple[str, str, int])
        for line in ledger.read_bytes().splitlines()
    ]


@asynccontextmanager
async def working(
    client: Client,
    shop: Executions,
    functions: list[Durable[..., Any]] = FUNCTIONS,
    **options: Any,
) -> AsyncIterator[Worker]:
    worker = Worker(client, shop.queue, functions, errors=[Declined], **options)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()


class WorkerProcess:
    """A worker as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self._process.wait()

    async def says(self, text: str) -> None:
        """Waits for a line of its log."""
        assert self._process.stderr is not None
        async with asyncio.timeout(WAIT.total_seconds()):
            async for line in self._process.stderr:
                if text in line.decode():
                    return
        raise AssertionError(f"the worker has ended, and has not said {text!r}")


@asynccontextmanager
async def worker_process(
    node: ServerProcess, shop: Executions, ledger: Path
) -> AsyncIterator[WorkerProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.durable_shop", node.address, shop.queue,
        str(ledger), stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield WorkerProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until(holds: Any) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(WAIT.total_seconds()):
        while not holds():  # noqa: ASYNC110 - it is another process, or the worker.
            await asyncio.sleep(0.02)


async def until_state(handle: ExecutionHandle[Any], state: str) -> str:
    """Waits for a state; the reason of it."""
    async with asyncio.timeout(WAIT.total_seconds()):
        while (found := await handle.get()).state != state:  # noqa: ASYNC110 - of the server.
            await asyncio.sleep(0.05)
    return found.reason


async def until_refused(handle: ExecutionHandle[Any], version: str) -> ExecutionInfo:
    """Waits until a version of the function was tried, and does not fit."""
    async with asyncio.timeout(WAIT.total_seconds()):
        while version not in (found := await handle.get()).refused_versions:  # noqa: ASYNC110 - of the server.
            await asyncio.sleep(0.05)
    return found


async def recorded(handle: ExecutionHandle[Any]) -> list[str]:
    """The paths of the steps whose results are in the journal."""
    return [entry.path async for entry in handle.journal() if entry.kind == "STEP_DONE"]


async def test_code_that_ends_before_a_signal_that_it_had_received_is_pinned(
    client: Client, shop: Executions
):
    @durable(name="ends")
    async def receives() -> None:
        await receive("one")
        await receive("two")

    @durable(name="ends")
    async def returns() -> None:
        pass

    handle = await shop.start(receives)
    await handle.signal("one")
    async with working(client, shop, [receives]):
        while (await handle.get()).unread_signals:  # noqa: ASYNC110 - of the server.
            await asyncio.sleep(0.05)
    await handle.signal("two")
    async with working(client, shop, [returns]):
        reason = await until_state(handle, "pinned")
    assert "record 1     signal one" in reason
    assert "ends has ended" in reason
    async with working(client, shop, [receives]):
        await handle.result(timeout=WAIT)


async def test_a_program_runs_to_its_end(
    client: Client, shop: Executions, ledger: Path, tmp_path: Path
):
    tokens = tmp_path / "token"
    order = Order("order-17", ["a", "bb"])
    started = await shop.start(checkout, order, str(tokens), id="order-17")
    async with working(client, shop):
        await until(lambda: tokens.exists() and tokens.read_text())
        await until_state(started, "parked")
        again = await shop.start(checkout, order, str(tokens), id="order-17")
        with pytest.raises(ExecutionExists):
            await shop.start(checkout, Order("other", []), str(tokens), id="order-17")
        with pytest.raises(ExecutionExists):
            await shop.start(checkout, order, str(tokens), id="order-17", key_policy="fail")
        with pytest.raises(TimeoutError, match="it is parked"):
            await again.result(timeout=timedelta(0))
        assert await shop.resolve(tokens.read_text(), "yes") is True
        assert await shop.resolve(tokens.read_text(), "no") is False
        await again.signal("word", "hello")
        result = await started.result(timeout=WAIT)
    assert result == ["order-17: 3", 2, "yes", "hello", "label of order-17 again"]
    assert [name for name, _, _ in effects(ledger)] == [
        "reserve", "reserve", "charge", "show_token", "label", "label",
    ]  # fmt: skip
    kinds = [entry.kind async for entry in started.journal()]
    assert kinds[0] == "STARTED"
    assert kinds[-1] == "COMPLETED"
    assert {"RESOLVED", "SIGNAL", "TIMER_FIRED"} < set(kinds)
    assert await shop.handle("order-17").result() == result
    with pytest.raises(ExecutionClosed):
        await started.signal("word", "late")


async def test_a_failure_is_undone_and_raised(
    client: Client, shop: Executions, ledger: Path, tmp_path: Path
):
    order = Order("declined-1", ["a"])
    async with working(client, shop):
        handle = await shop.start(checkout, order, str(tmp_path / "token"))
        with pytest.raises(Declined, match="declined-1"):
            await handle.result(timeout=WAIT)
    assert [name for name, _, _ in effects(ledger)][-2:] == ["charge", "release"]
    strangers = Executions(client, shop.queue)
    with pytest.raises(RemoteError, match="Declined"):
        await strangers.handle(handle.id).result()
    [found] = [one async for one in shop.list(function="checkout", state="failed")]
    assert (found.id, found.closed) == (handle.id, True)


async def test_killed_workers_repeat_no_recorded_step(
    node: ServerProcess, client: Client, shop: Executions, ledger: Path
):
    handle = await shop.start(chain, 12, 0.05, id="chain")
    known: list[tuple[int, list[str]]] = []
    for kill in range(1, 4):
        async with worker_process(node, shop, ledger) as worker:
            await until(lambda kill=kill: len(effects(ledger)) >= 3 * kill)
            await worker.kill()
        known.append((len(effects(ledger)), await recorded(handle)))
    async with working(client, shop):
        assert await handle.result(timeout=WAIT) == sum(range(12))
    done = effects(ledger)
    assert len({key for _, key, _ in done}) == 12
    for count, paths in known:
        assert paths
        later = {key.rpartition("/")[2] for _, key, _ in done[count:]}
        assert not later & set(paths)


async def check_dozen(shop: Executions, handle: ExecutionHandle[list[int]], ledger: Path) -> None:
    """Each child of `dozen` has started once and given its result once."""
    assert await handle.result(timeout=WAIT) == [sum(range(length)) for length in range(12)]
    kinds = [entry.kind async for entry in handle.journal()]
    assert (kinds.count("CHILD_STARTED"), kinds.count("CHILD_DONE")) == (13, 12)
    assert kinds.count("CHILD_REFUSED") == 1
    endless = shop.handle(f"{handle.id}/endless")
    with pytest.raises(ExecutionCancelled):
        await endless.result(timeout=WAIT)
    family = [one async for one in shop.list(function="chain") if one.parent == handle.id]
    assert len(family) == 13
    assert (await handle.get()).children == 0
    runs = {tuple(key.split("/")[2:4]) for _, key, _ in effects(ledger)}
    assert len(runs) == 12


async def test_children_start_once_while_workers_are_killed(
    node: ServerProcess, client: Client, shop: Executions, ledger: Path
):
    handle = await shop.start(dozen, 0.05, id="dozen")
    for kill in range(1, 4):
        async with worker_process(node, shop, ledger) as worker:
            await until(lambda kill=kill: len(effects(ledger)) >= 8 * kill)
            await worker.kill()
    assert (await shop.handle("dozen").get()).children > 0
    async with working(client, shop):
        await check_dozen(shop, handle, ledger)


async def test_a_frozen_worker_records_nothing_behind_its_lease(
    node: ServerProcess, client: Client, shop: Executions, ledger: Path
):
    handle = await shop.start(chain, 3, 0.5, id="chain")
    async with worker_process(node, shop, ledger) as frozen:
        await until(lambda: effects(ledger))
        frozen.send(signal.SIGSTOP)
        async with working(client, shop):
            assert await handle.result(timeout=WAIT) == 3
        journal = [entry.kind async for entry in handle.journal()]
        frozen.send(signal.SIGCONT)
        await frozen.says("the lease is lost")
        mine = [pid for _, _, pid in effects(ledger) if pid == frozen.pid]
        assert len(mine) == 1
    assert journal == [entry.kind async for entry in handle.journal()]
    assert journal == ["STARTED", *["STEP_DONE"] * 3, "COMPLETED"]


async def test_a_node_restarts(
    node: ServerProcess, client: Client, shop: Executions, ledger: Path, tmp_path: Path
):
    tokens = tmp_path / "token"
    waiting = await shop.start(checkout, Order("waits", ["a"]), str(tokens))
    async with working(client, shop):
        await until(lambda: tokens.exists() and tokens.read_text())
        await until_state(waiting, "parked")
        handle = await shop.start(chain, 6, 0.1, id="chain")
        await until(lambda: any(name == "work 2" for name, _, _ in effects(ledger)))
        await node.kill()
        await node.start()
        await shop.resolve(tokens.read_text(), "yes")
        await waiting.signal("word", "hello")
        assert await handle.result(timeout=WAIT) == 15
        assert (await waiting.result(timeout=WAIT))[2:4] == ["yes", "hello"]
    keys = [key for _, key, _ in effects(ledger)]
    assert keys.count(keys[0]) == 2  # Its first attempt fails.
    assert len(await recorded(handle)) == 6


async def test_a_stopped_worker_gives_back(client: Client, shop: Executions, ledger: Path):
    handle = await shop.start(chain, 4, 0.3, id="chain")
    async with working(client, shop):
        await until(lambda: effects(ledger))
    info = await handle.get()
    assert info.state == "runnable"
    assert await recorded(handle) == ["1"]
    async with working(client, shop, concurrency=1):
        assert await handle.result(timeout=WAIT) == 6
    assert len(effects(ledger)) == 4
    # Without grace, the step under way begins again elsewhere.
    other = await shop.start(chain, 2, 0.3, id="other")
    async with working(client, shop, grace=timedelta(0)):
        await until(lambda: len(effects(ledger)) == 5)
    async with working(client, shop):
        assert await other.result(timeout=WAIT) == 1
    assert len(effects(ledger)) == 7


@durable(name="chain")
async def changed(length: int, seconds: float) -> int:
    return len(await renamed(length, seconds))


@step
async def renamed(length: int, seconds: float) -> str:
    return "never run"


async def test_what_a_worker_cannot_run_waits_for_one_that_can(
    client: Client, shop: Executions, ledger: Path
):
    handle = await shop.start(chain, 2, 0.2, id="chain")
    async with working(client, shop):
        await until(lambda: effects(ledger))
    async with working(client, shop, [publisher]):
        reason = await until_state(handle, "pinned")
    assert reason == "the worker has no function chain; it has publisher"
    async with working(client, shop, [changed, publisher]):
        info = await until_refused(handle, changed.version)
        with pytest.raises(TimeoutError, match="it is pinned: chain "):
            await handle.result(timeout=timedelta(0))
    assert "the code does not do what the journal says" in info.reason
    assert "step work" in info.reason
    assert "step renamed" in info.reason
    # A worker that has the version gets it, while others are there that have not.
    async with working(client, shop, [changed]), working(client, shop):
        assert await handle.result(timeout=WAIT) == 1
    assert len(effects(ledger)) == 2


async def test_what_cannot_continue_is_stuck_with_the_reason(
    client: Client, shop: Executions, ledger: Path
):
    async with working(client, shop):
        published = await shop.start(publisher, 65)
        reason = await until_state(published, "stuck")
        assert reason == "'64' would be published key 65 of at most 64"
        assert await recorded(published) == ["1"]
        assert await published.retry() is True
        reason = await until_state(published, "stuck")
    with pytest.raises(TimeoutError, match="it is stuck: '64' would be published"):
        await published.result(timeout=timedelta(0))


async def test_items_for_a_queue_that_is_not_there_wait_for_it(
    client: Client, shop: Executions, ledger: Path
):
    name = f"{shop.queue}-mail"
    async with working(client, shop):
        handle = await shop.start(producer, name)
        reason = await until_state(handle, "stuck")
        assert reason.startswith("its items were refused: QUEUE_NOT_FOUND: produced[0].queue")
        assert f"there is no queue {name} in namespace default" in reason
        await client.create_queue(name)
        assert await handle.retry()
        assert await handle.result(timeout=WAIT) == 1
        [item] = await client.lease(name, wait=WAIT)
        assert item.payload == b"after 1"
        await item.complete()
        assert await client.lease(name) == []
    assert len(effects(ledger)) == 1, "the step did not run again"


async def test_executions_at_work_hear_at_once(client: Client, ledger: Path):
    """Their leases are so long that no extension comes within the test."""
    await client.create_queue("long", kind="executions", lease_timeout=timedelta(minutes=10))
    shop = Executions(client, "long")
    async with working(client, shop):
        worded = await shop.start(worded_work, id="worded")
        cancelled = await shop.start(chain, 2, 3600.0, id="cancelled")
        ended = await shop.start(chain, 2, 3600.0, id="ended")
        await until(lambda: len(effects(ledger)) == 3)
        await worded.signal("word", "enough")
        assert await worded.result(timeout=WAIT) == "enough"
        await cancelled.cancel("enough")
        with pytest.raises(ExecutionCancelled):
            await cancelled.result(timeout=WAIT)
        await ended.terminate("enough")
        # The step of the terminated one ends as well: the worker is free for another execution.
        async with asyncio.timeout(WAIT.total_seconds()):
            while (await client.stats("long")).total.leased:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.05)
        assert await (await shop.start(chain, 1, 0.0)).result(timeout=WAIT) == 0


async def test_published_values_are_read(client: Client, shop: Executions, ledger: Path):
    handle = await shop.start(publisher, 3, id="publisher")
    assert await handle.published("2") is None
    assert await handle.published("2", wait=timedelta(milliseconds=1)) is None
    soon = asyncio.get_running_loop().create_task(handle.published("2", int, wait=WAIT))
    async with working(client, shop):
        first = await soon
        assert first is not None
        assert (first.value, first.version) == (2, 3)
        assert await handle.published("0") == PublishedValue(0, 1)
        # It waits for a signal: nothing else is published yet.
        later = asyncio.get_running_loop().create_task(
            handle.published("0", after=first.version, wait=WAIT)
        )
        await handle.signal("word", "over")
        assert await later == PublishedValue("over", 4)
        await handle.result(timeout=WAIT)
        # They stay, and a wait for more ends with the execution.
        assert await handle.published("0", after=4, wait=WAIT) is None
        assert await handle.published("2", wait=WAIT) == first
        assert list(await handle.all_published()) == ["1", "2", "0"]
    with pytest.raises(ExecutionNotFound):
        await shop.published("nothing", "0")
    with pytest.raises(ValueError, match="key must not be empty"):
        await handle.published("")
    with pytest.raises(ValueError, match="after is -1; it must not be negative"):
        await handle.published("0", after=-1)
    with pytest.raises(ValueError, match=r"wait is -1 day, .*; it must not be negative"):
        await handle.published("0", wait=timedelta(seconds=-1))
    with pytest.raises(CodecError, match="the published value 0 of execution publisher"):
        await handle.published("0", int)


async def test_cancellations_reach_a_step_under_way(client: Client, shop: Executions, ledger: Path):
    async with working(client, shop):
        handle = await shop.start(chain, 2, 3600.0)
        ended = await shop.start(chain, 3, 3600.0)
        await until(lambda: len(effects(ledger)) == 2)
        assert await handle.cancel("enough") is True
        with pytest.raises(ExecutionCancelled, match=handle.id):
            await handle.result(timeout=WAIT)
        await ended.terminate("at once")
        with pytest.raises(ExecutionTerminated, match="at once"):
            await ended.result(timeout=WAIT)


@durable
async def approved(tokens: str) -> str:
    asked = promise(str)
    await durable_shop.show_token(asked.token, tokens)
    return await asked


async def test_promises_are_rejected_and_guarded(
    client: Client, shop: Executions, ledger: Path, tmp_path: Path
):
    tokens = tmp_path / "token"
    async with working(client, shop, [approved]):
        handle = await shop.start(approved, str(tokens))
        await until(lambda: tokens.exists() and tokens.read_text())
        token = tokens.read_text()
        forged = durable_shop.forged(token)
        with pytest.raises(TokenInvalid):
            await shop.resolve(forged, "yes")
        await shop.reject(token, "too dear")
        with pytest.raises(PromiseRejected, match="too dear"):
            await handle.result(timeout=WAIT)


async def test_calls_for_what_is_not_there(client: Client, shop: Executions):
    with pytest.raises(ExecutionNotFound):
        await shop.handle("nothing").result()
    with pytest.raises(QueueNotFound):
        await Worker(client, "nowhere", [chain]).run()
    await client.create_queue("plain-items")
    with pytest.raises(WrongQueueKind):
        await Worker(client, "plain-items", [chain]).run()
    with pytest.raises(WrongQueueKind):
        await Executions(client, "plain-items").start(chain, 1, 0.0)
    later = await shop.start(chain, 1, 0.0, delay=timedelta(days=1))
    assert (await later.get()).state == "runnable"
    assert await later.terminate() is True


async def test_results_are_waited_for_together(client: Client, shop: Executions, ledger: Path):
    handles = [await shop.start(chain, 1, 0.01, id=f"chain-{nth}") for nth in range(40)]
    # One that never ends is in the same calls.
    other = await shop.start(chain, 1, 3600.0)
    never = asyncio.get_running_loop().create_task(other.result())
    results = asyncio.gather(*(handle.result(timeout=WAIT) for handle in handles))
    async with working(client, shop):
        assert await results == [0] * 40
        with pytest.raises(TimeoutError, match=f"execution {other.id} has not ended"):
            await other.result(timeout=timedelta(milliseconds=1))
        await other.terminate("enough")
        with pytest.raises(ExecutionTerminated, match="enough"):
            await never


async def test_one_at_a_time_is_one_at_a_time(client: Client, shop: Executions, ledger: Path):
    handles = [await shop.start(chain, 2, 0.01, id=f"chain-{nth}") for nth in range(5)]
    async with working(client, shop, concurrency=1):
        assert [await handle.result(timeout=WAIT) for handle in handles] == [1] * 5
    assert work.name == "work"
    owners = [key.split("/")[2:4] for _, key, _ in effects(ledger)]
    assert owners[::2] == owners[1::2]


async def test_a_leader_dies(tmp_path: Path, ledger: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.until_well()
        async with Client([cluster[name].address for name in "abc"]) as client:
            await client.create_queue(
                "shop", kind="executions", partitions=3, lease_timeout=timedelta(seconds=10)
            )
            await cluster.until_well()
            shop = Executions(client, "shop")
            async with working(client, shop):
                # Each node leads one of the partitions, and each has some of the executions.
                handles = [await shop.start(chain, 4, 0.2, id=f"{nth}") for nth in range(12)]
                assert {(await handle.get()).partition for handle in handles} == {0, 1, 2}
                await until(lambda: effects(ledger))
                await cluster["c"].kill()
                published = [await shop.start(publisher, 1, id=f"p{nth}") for nth in range(6)]
                values = [await each.published("0", wait=WAIT) for each in published]
                assert values == [PublishedValue(0, 1)] * 6
                assert [await handle.result(timeout=WAIT) for handle in handles] == [6] * 12
                assert [len(await recorded(handle)) for handle in handles] == [4] * 12
            await cluster["c"].start()
            await cluster.until_well()
            await asyncio.to_thread(ledger.write_text, "")
            async with working(client, shop):
                family = await shop.start(dozen, 0.2, id="dozen")
                await until(lambda: len(effects(ledger)) >= 8)
                await cluster["a"].kill()
                await check_dozen(shop, family, ledger)
