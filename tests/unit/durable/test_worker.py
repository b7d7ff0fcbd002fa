"""A worker without a network: runs of activations against a partition in memory, kept leases, and
what `Worker` and `Executions` refuse.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from querator import Client
from querator.client.errors import make_error
from querator.client.executions import (
    ActivationGrant,
    ExecutionCalls,
    ProgressAnswer,
    ProgressReport,
)
from querator.durable import (
    Codec,
    Durable,
    Executions,
    Worker,
    activation_run,
    call,
    durable,
    publish,
    receive,
    step,
)
from querator.durable import Final as FinalError
from querator.durable.activation_run import ActivationRun, RunParts
from querator.durable.arrival_watch import ArrivalWatch
from querator.durable.effects import NOT_BEGUN, StepOutcome, carry_out
from querator.durable.kept_leases import LeaseKeeper
from querator.durable.machine import living
from querator.durable.operations import Effect
from querator.durable.outbox import Sending
from querator.durable.partition_clock import PartitionClock
from querator.errors import ErrorCode, RequestError
from querator.model.executions import (
    UNVERSIONED,
    Close,
    GiveBack,
    JournalRecord,
    Note,
    Park,
    RecordKind,
)
from tests.unit.durable.memory_partition import (
    IDENTITY,
    LeaseLost,
    MemoryPartition,
    Unseen,
    result_of,
)

LONG = timedelta(hours=1)


@dataclass
class FakeCalls:
    """`ExecutionCalls` on a partition in memory. `before` is called with each Record."""

    partition: MemoryPartition
    before: Callable[[ProgressReport], None] = lambda report: None
    extensions: list[timedelta | RequestError | None] = field(default_factory=list)
    namespace: str = "default"
    reports: list[ProgressReport] = field(default_factory=list)
    run: ActivationRun | None = None
    """The last one that began."""

    async def record(self, queue: str, report: ProgressReport) -> ProgressAnswer:
        self.reports.append(report)
        self.before(report)
        # The run sees meanwhile what that has done.
        await asyncio.sleep(0.001)
        sending = Sending(
            report.number, report.seen, report.records, report.folds, report.timers,
            published=report.published, then=report.then,
        )  # fmt: skip
        try:
            first_index = self.partition.record(int(report.lease_id), sending)
            return ProgressAnswer(first_index, time.time_ns() // 1_000_000)
        except LeaseLost:
            raise refusal(ErrorCode.LEASE_LOST) from None
        except Unseen:
            raise refusal(ErrorCode.UNSEEN) from None

    async def journal(self, queue: str, id: str, first: int) -> AsyncIterator[JournalRecord]:
        for record in list(self.partition.journal):
            if record.index >= first:
                yield record

    async def extend(
        self, queue: str, lease_ids: list[str], *, seconds: float
    ) -> dict[str, timedelta | None]:
        extension = self.extensions.pop(0)
        if isinstance(extension, RequestError):
            raise extension
        return dict.fromkeys(lease_ids, extension)


def refusal(code: ErrorCode) -> RequestError:
    return make_error(code, "as the test says")


async def run(
    calls: FakeCalls,
    *functions: Durable[..., Any],
    age: float = 0.0,
    remaining: timedelta = LONG,
    stop: bool = False,
    version: str = UNVERSIONED,
) -> None:
    """Runs the activation of the partition until it is left."""
    lease = calls.partition.grant()
    keeper = LeaseKeeper(cast(ExecutionCalls, calls), "shop")
    grant = ActivationGrant(
        lease_id=str(lease), item=1, partition=3, execution=17, id="order-17", run=1,
        function="main", version=version, secret=IDENTITY.secret, remaining=remaining,
        records=tuple(calls.partition.journal), next_index=0, timers=(),
        now_ms=time.time_ns() // 1_000_000,
        origin_run=1,
    )  # fmt: skip
    with ThreadPoolExecutor(2) as executor:
        parts = RunParts(
            cast(ExecutionCalls, calls), "shop", {each.name: each for each in functions}, Codec(),
            leases=keeper, executor=executor, strays=set(), times=defaultdict(PartitionClock),
            watch=ArrivalWatch(cast(ExecutionCalls, calls), "shop"),
        )  # fmt: skip
        parts.times[grant.partition].heard(grant.now_ms)
        one = ActivationRun(parts, grant, time.monotonic() - age)
        calls.run = one
        if stop:
            one.stop(0.0)
        async with asyncio.timeout(30):
            await one.run()
    assert living() == 0


@step
async def double(number: int) -> int:
    return 2 * number


@step
def half(number: int) -> int:
    return number // 2


@durable(name="main")
async def steps() -> list[int]:
    return [await double(1), await call(half, 8)]


@durable(name="main")
async def waits() -> str:
    await double(1)
    return await receive("word", str)


async def test_a_run_ends_with_its_execution():
    calls = FakeCalls(MemoryPartition().start(steps))
    await run(calls, steps)
    assert result_of(calls.partition.close) == [2, 4]
    # The second step waits for the first record, and the last one goes with the end.
    assert [len(report.records) for report in calls.reports] == [1, 1]


async def test_an_arrival_that_a_park_overlooks_is_heard():
    def signal(report: ProgressReport) -> None:
        if len(calls.reports) == 1:
            calls.partition.signal("word", b'"hello"')

    calls = FakeCalls(MemoryPartition().start(waits), before=signal)
    await run(calls, waits)
    assert isinstance(calls.reports[0].then, Park)
    assert calls.reports[1].number == 1
    assert result_of(calls.partition.close) == "hello"


async def test_nothing_is_heard_while_a_park_has_no_answer():
    """The execution is parked, and what has arrived since is for the next lease of it."""
    begun = []

    @step
    async def answer() -> None:
        begun.append("here")

    @durable(name="main")
    async def main() -> None:
        await receive("word")
        await answer()

    class Late(FakeCalls):
        async def record(self, queue: str, report: ProgressReport) -> ProgressAnswer:
            answered = await super().record(queue, report)
            assert isinstance(report.then, Park)
            assert self.run is not None
            self.partition.signal("word", b'"now"')
            self.run.heard_of(is_lost=False)
            await asyncio.sleep(0.05)
            return answered

    calls = Late(MemoryPartition().start(main))
    await run(calls, main)
    assert begun == []
    assert calls.partition.state == "runnable"


async def test_an_execution_parks_and_continues_under_another_lease():
    calls = FakeCalls(MemoryPartition().start(waits))
    await run(calls, waits)
    assert calls.partition.state == "parked"
    calls.partition.signal("word", b'"hello"')
    await run(calls, waits)
    assert result_of(calls.partition.close) == "hello"
    assert [len(report.records) for report in calls.reports] == [1, 0]


async def test_a_record_without_an_answer_is_sent_again():
    def lost(report: ProgressReport) -> None:
        if len(calls.reports) in (1, 2):
            raise refusal(ErrorCode.OUTCOME_UNKNOWN)

    calls = FakeCalls(MemoryPartition().start(steps), before=lost)
    await run(calls, steps)
    assert calls.reports[0] == calls.reports[1] == calls.reports[2]
    assert result_of(calls.partition.close) == [2, 4]


async def test_a_lost_lease_ends_the_run():
    def lapse(report: ProgressReport) -> None:
        calls.partition.grant()

    calls = FakeCalls(MemoryPartition().start(steps), before=lapse)
    await run(calls, steps)
    assert len(calls.reports) == 1
    assert len(calls.partition.journal) == 1


async def test_a_record_that_ends_the_lease_is_answered_behind_an_extension(
    caplog: pytest.LogCaptureFixture,
):
    def extend(report: ProgressReport) -> None:
        if isinstance(report.then, Close):
            assert calls.run is not None
            calls.run._lease.is_lost = True
            calls.run._lease.wake()

    calls = FakeCalls(MemoryPartition().start(steps), before=extend)
    await run(calls, steps)
    assert result_of(calls.partition.close) == [2, 4]
    assert caplog.records == []


async def test_a_record_that_is_refused_for_good_makes_it_stuck():
    def full(report: ProgressReport) -> None:
        if len(calls.reports) == 2:
            raise refusal(ErrorCode.JOURNAL_FULL)

    calls = FakeCalls(MemoryPartition().start(steps), before=full)
    await run(calls, steps)
    assert calls.partition.state == "stuck"
    assert calls.partition.reason.startswith("a Record was refused: JOURNAL_FULL: as the test says")


async def test_a_function_that_is_not_there():
    calls = FakeCalls(MemoryPartition().start(steps))
    await run(calls, durable(name="other")(double.function))
    assert calls.partition.state == "pinned"
    assert calls.reports[-1].then == GiveBack(reason=calls.partition.reason, pinned=True)
    assert calls.partition.reason == "the worker has no function main; it has other"


async def test_code_that_does_not_fit_its_journal(caplog: pytest.LogCaptureFixture):
    calls = FakeCalls(MemoryPartition().start(waits))
    await run(calls, waits)
    calls.partition.signal("word", b'"hello"')

    @durable(name="main")
    async def changed() -> int:
        return await call(half, 8)

    await run(calls, changed)
    assert calls.partition.state == "pinned"
    assert calls.reports[-1].then == GiveBack(
        reason=calls.partition.reason, pinned=True, refused=changed.version
    )
    # The signal is in the journal, and no code that counts was given it.
    assert calls.reports[-1].seen == 0
    [said] = caplog.records
    # The reason has the title of the execution, which the line has already.
    assert said.getMessage().count(f'main "{IDENTITY.id}", run') == 1
    assert "step double" in calls.partition.reason
    assert "step half" in calls.partition.reason


async def test_code_that_does_not_fit_a_journal_of_its_own_version():
    calls = FakeCalls(MemoryPartition().start(waits))
    await run(calls, waits)
    calls.partition.signal("word", b'"hello"')

    @durable(name="main", version=UNVERSIONED)
    async def changed() -> int:
        return await call(half, 8)

    await run(calls, changed)
    assert calls.partition.state == "stuck"


async def test_nothing_begins_when_the_lease_is_over():
    begun: list[int] = []

    async def begin() -> int:
        begun.append(1)
        return 1

    @durable(name="main")
    async def main() -> int:
        return await call(begin)

    # It was asked for longer ago than it lasts, and is lost when it is extended.
    calls = FakeCalls(MemoryPartition().start(main), extensions=[None])
    await with_keeper(calls, main, age=10.0, remaining=timedelta(seconds=5))
    assert begun == []
    assert calls.reports == []
    # It lasts longer when it is extended.
    calls.extensions = [refusal(ErrorCode.UNAVAILABLE), LONG]
    await with_keeper(calls, main, age=10.0, remaining=timedelta(seconds=5))
    assert begun == [1]
    assert result_of(calls.partition.close) == 1


async def test_a_step_that_could_not_begin_begins_under_the_extended_lease(
    monkeypatch: pytest.MonkeyPatch,
):
    answers = iter([False, True, False])
    monkeypatch.setattr(ActivationRun, "_may_begin", lambda self: next(answers, True))
    calls = FakeCalls(MemoryPartition().start(steps))
    await run(calls, steps)
    assert result_of(calls.partition.close) == [2, 4]


async def test_a_step_that_cancels_itself_has_failed():
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @durable(name="main")
    async def main() -> None:
        await call(cancels)

    calls = FakeCalls(MemoryPartition().start(main))
    await run(calls, main)
    assert "CancelledError" in str(result_of(calls.partition.close))


async def with_keeper(calls: FakeCalls, *functions: Durable[..., Any], **options: Any) -> None:
    """As `run`, with leases that are extended."""
    made: list[LeaseKeeper] = []
    initialise = LeaseKeeper.__init__

    def remember(self: LeaseKeeper, *args: Any) -> None:
        initialise(self, *args)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaseKeeper, "__init__", remember)
        patch.setattr(
            "querator.durable.kept_leases.parse_lease_id", lambda lease_id, field: (1, 0, 1)
        )
        running = asyncio.get_running_loop().create_task(run(calls, *functions, **options))
        await asyncio.sleep(0)
        keeping = asyncio.get_running_loop().create_task(made[0].keep())
        try:
            await running
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


async def test_a_run_that_is_stopped_before_it_begins_gives_back():
    calls = FakeCalls(MemoryPartition().start(steps))
    await run(calls, steps, stop=True)
    assert [report.then for report in calls.reports] == [GiveBack()]
    assert calls.partition.state == "runnable"


async def test_a_terminated_execution_is_left():
    def terminate(report: ProgressReport) -> None:
        if len(calls.reports) == 1:
            calls.partition.signal("word", b'"hello"')
            calls.partition.arrive(Note(kind=RecordKind.TERMINATED))

    calls = FakeCalls(MemoryPartition().start(waits), before=terminate)
    await run(calls, waits)
    assert len(calls.reports) == 1


@step
async def never_ends() -> None:
    await asyncio.Event().wait()


async def test_what_is_published_before_a_long_step_is_sent_soon(monkeypatch):
    monkeypatch.setattr(activation_run, "FLUSH_SECONDS", 0.01)

    @durable(name="main")
    async def main() -> None:
        publish("state", "begun")
        await never_ends()

    def stop(report: ProgressReport) -> None:
        assert calls.run is not None
        if report.published:
            calls.run.stop(0.0)

    calls = FakeCalls(MemoryPartition().start(main), before=stop)
    await run(calls, main)
    assert calls.partition.published == {"state": b'"begun"'}
    assert calls.partition.state == "runnable"


async def test_published_values_that_are_refused_make_the_execution_stuck():
    @durable(name="main")
    async def main() -> None:
        await double(1)
        publish("state", "here")
        await double(2)

    def refuse(report: ProgressReport) -> None:
        if report.published:
            raise make_error(ErrorCode.LIMIT_EXCEEDED, "too many keys", field="published")

    calls = FakeCalls(MemoryPartition().start(main), before=refuse)
    await run(calls, main)
    assert calls.partition.reason == "a Record was refused: LIMIT_EXCEEDED: too many keys"
    assert [record.note.kind for record in calls.partition.journal] == [
        RecordKind.STARTED, RecordKind.STEP_DONE,
    ]  # fmt: skip


async def test_a_step_asks_at_its_turn_whether_it_may_begin():
    for function, is_async in ((double.function, True), (half.function, False)):
        effect = Effect(
            path=b"\x01", attempt=1, name="one", function=function, args=(4,), kwargs={},
            timeout_ms=None, is_async=is_async, step_key="key", execution_id="order-17",
        )  # fmt: skip
        assert await carry_out(effect, may_begin=lambda: False) is NOT_BEGUN
        assert await carry_out(effect) in (StepOutcome(8), StepOutcome(2))


def test_what_a_worker_refuses():
    client = Client("127.0.0.1:1")
    with pytest.raises(ValueError, match="concurrency is 0; it must be from 1 to 10000"):
        Worker(client, "shop", [steps], concurrency=0)
    with pytest.raises(ValueError, match=r"grace is -1 day, .*; it must not be negative"):
        Worker(client, "shop", [steps], grace=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="functions is empty"):
        Worker(client, "shop", [])
    with pytest.raises(ValueError, match="functions has two with the name main"):
        Worker(client, "shop", [steps, waits])
    with pytest.raises(TypeError, match="functions has the step double; steps are not listed"):
        Worker(client, "shop", [double])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="codec and errors are given"):
        Worker(client, "shop", [steps], codec=Codec(), errors=[FinalError])
    with pytest.raises(TypeError, match="queue is 7; it must be a text"):
        Worker(client, 7, [steps])  # type: ignore[arg-type]


async def test_what_executions_refuse():
    shop = Executions(Client("127.0.0.1:1"), "shop")
    with pytest.raises(TypeError, match=r"function is .*; it must be a function with @durable"):
        await shop.start(double)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="too many positional arguments"):
        await shop.start(steps, 1)
    with pytest.raises(ValueError, match=r"delay is -1 day, .*; it must not be negative"):
        await shop.start(steps, delay=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="state is 'lost'; it must be one of runnable, parked"):
        shop.list(state="lost")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="the token of a promise is damaged"):
        await shop.resolve("token", 1)


async def test_a_worker_runs_once():
    client = Client("127.0.0.1:1", connect_timeout=timedelta(milliseconds=100))
    worker = Worker(client, "shop", [steps])
    with pytest.raises(RequestError):
        await worker.run()
    with pytest.raises(RuntimeError, match="runs once"):
        await worker.run()
