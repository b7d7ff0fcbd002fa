"""The decorators, calls and retries."""

import asyncio
import re
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from querator import durable as durable_package
from querator.durable import (
    ArgumentsChanged,
    CodecError,
    Final,
    NotInExecution,
    Retry,
    RunTooLong,
    StepInterrupted,
    TooDeep,
    Undecodable,
    ValueTooLarge,
    call,
    current,
    durable,
    sleep,
    step,
)
from querator.durable.arguments import decode_arguments, encode_arguments
from querator.durable.codec import Codec
from querator.durable.effects import carry_out
from querator.durable.machine import ExecutionMachine, living
from querator.model.executions import JournalRecord, Note, RecordKind
from tests.unit.durable.memory_partition import (
    IDENTITY,
    START_MS,
    MemoryPartition,
    Worker,
    replay,
    run_straight,
)


@step
async def double(number: int) -> int:
    return 2 * number


@step
def triple(number: int) -> int:
    return 3 * number


def quadruple(number: int) -> int:
    return 4 * number


class Flaky:
    """A step that fails some times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error
        self.attempts: list[int] = []
        self.keys: set[str] = set()

    async def __call__(self, number: int) -> int:
        self.attempts.append(number)
        if len(self.attempts) <= self.times:
            raise self.error
        return number

    def step(self, **options: Any) -> Any:
        async def flaky(number: int) -> int:
            return await self(number)

        return step(flaky, **options)


async def test_outside_of_an_execution_a_marked_function_is_the_function():
    @durable
    async def both(number: int) -> int:
        return await double(number) + triple(number)

    assert await both(1) == 5


def test_any_function_may_be_called_as_a_step():
    @durable
    async def main() -> list[int]:
        return [await call(double, 1), await call(triple, 1), await call(quadruple, 1)]

    run = run_straight(main)
    assert run.result() == [2, 3, 4]
    assert run.kinds[1:] == ["STEP_DONE double", "STEP_DONE triple", "STEP_DONE quadruple"]


def test_results_are_what_was_decoded():
    @step
    async def loose() -> list[int]:
        return (1, 2)  # type: ignore[return-value]

    @durable
    async def main() -> str:
        return repr(await loose())

    assert run_straight(main).result() == "[1, 2]"


def test_a_result_of_another_type_is_an_exception_of_the_step():
    @step
    async def wrong() -> int:
        return "text"  # type: ignore[return-value]

    @durable
    async def main() -> str:
        try:
            await wrong()
        except CodecError as error:
            return str(error)
        return ""

    text = run_straight(main).result()
    assert re.match(
        r"the result of wrong \(durable/test_functions\.py:\d+\) is not of the ty", text
    )


def test_a_result_over_the_limit_names_the_line_of_the_step():
    @step
    async def large() -> str:
        return "x" * 100

    @durable
    async def main() -> str:
        try:
            return await large()
        except ValueTooLarge as error:
            return str(error)

    text = run_straight(main, codec=Codec(value_bytes_max=99)).result()
    assert re.fullmatch(
        r"the result of large \(durable/test_functions\.py:\d+\) has 102 bytes as JSON, and at "
        r"most 99",
        text,
    )


def test_arguments_without_json_are_an_exception_of_the_step():
    @step
    async def take(numbers: Any) -> int:
        return 0

    @durable
    async def main() -> str:
        try:
            await take(n for n in (1, 2))
        except CodecError as error:
            return str(error)
        return ""

    run = run_straight(main)
    assert "take(…)[0] is a generator, which has no JSON" in run.result()
    assert run.kinds[1:] == ["STEP_FAILED take"]
    assert run.effects == []
    assert replay(main, run.partition.journal).payload == run.partition.close.payload


def test_arguments_that_change_before_the_step_begins():
    @durable
    async def main() -> str:
        order = [1]
        await double(1)
        task = asyncio.get_running_loop().create_task(total(order))
        await asyncio.sleep(0)
        await sleep(0.001)
        order.append(2)
        try:
            await task
        except ArgumentsChanged as error:
            return str(error)
        return ""

    @step
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    worker = Worker(MemoryPartition().start(main), main)
    [first] = worker.begin()
    worker.finish(first)
    # The timer is over before the result of the first step is in the journal.
    worker.machine.tick(START_MS + 5)
    worker.send()
    assert worker.begin() == []
    worker.send()
    close = worker.partition.close
    assert close is not None
    assert close.payload == b'"an argument of total was changed after the call"'
    assert worker.machine.put_away()


def test_short_waits_are_made_in_the_worker_and_long_ones_are_recorded():
    flaky = Flaky(3, OSError("no route"))
    work = flaky.step(retry=Retry(attempts=4, first=timedelta(seconds=0.6), jitter=0))

    @durable
    async def main() -> Any:
        return await work(7)

    run = run_straight(main)
    assert run.result() == 7
    assert flaky.attempts == [7] * 4
    assert run.kinds[1:] == [
        "ATTEMPT_FAILED flaky", "TIMER_FIRED", "ATTEMPT_FAILED flaky", "TIMER_FIRED",
        "STEP_DONE flaky",
    ]  # fmt: skip
    assert [effect.attempt for effect in run.effects] == [1, 2, 3, 4]
    assert len({effect.step_key for effect in run.effects}) == 1
    assert replay(main, run.partition.journal).payload == b"7"


@pytest.mark.parametrize(
    ("error", "retry", "attempts"),
    [
        (OSError("x"), Retry(attempts=3, first=timedelta(0)), 3),
        (OSError("x"), Retry(attempts=3, first=timedelta(0), unless=(OSError,)), 1),
        (Final(OSError("x")), Retry(attempts=3, first=timedelta(0)), 1),
        (OSError("x"), None, 1),
    ],
)
def test_the_last_attempt_gives_its_exception(error, retry, attempts):
    flaky = Flaky(100, error)
    work = flaky.step(retry=retry) if retry else flaky.step()

    @durable
    async def main() -> str:
        try:
            return str(await work(7))
        except OSError as raised:
            return f"raised {raised}"

    assert run_straight(main).result() == "raised x"
    assert len(flaky.attempts) == attempts


def test_delays_grow_up_to_the_most():
    retry = Retry(attempts=None, first=timedelta(seconds=1), factor=3, most=timedelta(seconds=8))
    middle = [retry.delay_ms(attempt, 0.5) for attempt in (1, 2, 3, 1_000_000)]
    assert middle == [1_000, 3_000, 8_000, 8_000]
    assert retry.delay_ms(1, 0) == 800
    assert retry.delay_ms(1, 1) == 1_200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, "attempts is 0"),
        ({"first": timedelta(seconds=-1)}, "must not be negative"),
        ({"most": timedelta(0)}, "most must not be below first"),
        ({"factor": 0.5}, "factor is 0.5"),
        ({"factor": float("nan")}, "factor is nan"),
        ({"jitter": 2}, "jitter is 2"),
    ],
)
def test_wrong_retries(options, words):
    with pytest.raises(ValueError, match=words):
        Retry(**options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"timeout": timedelta(0)}, ValueError, "timeout is 0:00:00; it must be positive"),
        ({"once": "twice"}, ValueError, "once is 'twice'"),
        ({"once": "at_most", "retry": Retry()}, ValueError, "has no retries"),
        ({"once": "at_most", "effects": False}, ValueError, "has effects"),
        ({"name": ""}, ValueError, "name of the step must not be empty"),
        ({"name": "a\nb"}, ValueError, "cannot be printed"),
        ({"name": "x" * 256}, ValueError, "256 bytes"),
    ],
)
def test_wrong_options_of_steps(options, error, words):
    with pytest.raises(error, match=words):
        step(double.function, **options)


def test_what_cannot_be_marked():
    async def generator():
        yield 1

    cases: list[tuple[Any, str]] = [
        (generator, "not for a generator"),
        (int, "is for a function, and got <class 'int'>"),
        (double, "is for a function, and got"),
        (17, "is for a function, and got 17"),
    ]
    for function, words in cases:
        with pytest.raises(TypeError, match=words):
            step(function)
    with pytest.raises(ValueError, match="a thread cannot be ended"):
        step(quadruple, timeout=timedelta(seconds=1))
    with pytest.raises(TypeError, match="Final takes the exception"):
        Final("text")  # type: ignore[arg-type]


def test_at_most_once_records_the_beginning_first():
    once = step(double.function, name="once", once="at_most")

    @durable
    async def main() -> str:
        try:
            return str(await once(4))
        except StepInterrupted as error:
            return str(error)

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    assert worker.begin() == []
    assert worker.machine.is_urgent
    worker.send()
    [effect] = worker.begin()
    # The worker dies here, and another one cannot know whether the effect has happened.
    assert worker.machine.put_away()
    other = Worker(partition, main)
    assert other.begin() == []
    other.send()
    assert partition.close.payload == b'"once has begun, and its end is not known"'
    assert other.machine.put_away()
    assert replay(main, partition.journal).payload == partition.close.payload
    assert effect.name == "once"


def test_at_most_once_without_a_crash():
    once = step(double.function, name="once", once="at_most")

    @durable
    async def main() -> int:
        return await once(4)

    run = run_straight(main)
    assert run.result() == 8
    assert run.kinds[1:] == ["STEP_BEGUN once", "STEP_DONE once"]
    assert replay(main, run.partition.journal).payload == b"8"


def test_a_full_journal_is_an_exception_at_the_step():
    @durable
    async def main() -> list[Any]:
        done = 0
        try:
            while True:
                done = await double(done + 1) and done + 1
        except RunTooLong as error:
            return [done, str(error)]

    run = run_straight(main, records_max=120)
    done, text = run.result()
    assert done == 19
    assert text == (
        "the journal would have 21 records, of at most 120 (100 are kept for the end): double is "
        "not begun"
    )
    assert replay(main, run.partition.journal).payload == run.partition.close.payload


def test_calls_that_are_too_deep():
    @durable
    async def down(level: int) -> int:
        return await down(level + 1)

    @durable
    async def main() -> str:
        try:
            return str(await down(1))
        except TooDeep as error:
            return str(error)

    assert run_straight(main).result() == "the call of down is 17 deep, and at most 16 are allowed"


def test_tasks_that_are_too_deep():
    @durable
    async def main() -> None:
        async def down() -> None:
            await asyncio.get_running_loop().create_task(down())

        await down()

    error = run_straight(main).result()
    assert isinstance(error, TooDeep)
    assert "tasks and calls are too deep within each other" in str(error)


# --- where code runs -----------------------------------------------------------------------------


def test_current_in_a_durable_function_and_in_a_step():
    async def who_am_i() -> list[Any]:
        here = current()
        return [here.execution_id, here.attempt, here.step_key]

    @durable
    async def main() -> str:
        await call(who_am_i)
        return current().execution_id

    worker = Worker(MemoryPartition().start(main), main)
    [effect] = worker.begin()
    outcome = asyncio.run(carry_out(effect))
    assert outcome.value == ["order-17", 1, "default/shop/3/17/1/1/who_am_i"]
    assert worker.machine.put_away()
    assert run_straight(durable(_id_of)).result() == "order-17"


async def _id_of() -> str:
    return current().execution_id


@pytest.mark.parametrize("function", [lambda: call(double, 1), current, lambda: sleep(1)])
def test_durable_calls_outside_of_an_execution(function):
    with pytest.raises(NotInExecution, match="outside of an execution"):
        function()


def test_durable_calls_in_a_step():
    async def sleeps() -> None:
        await sleep(1)

    async def double_in_step() -> int:
        return await double(4)

    @durable
    async def main() -> int:
        with pytest.raises(NotInExecution, match=r"sleep was called in a step; it works only in"):
            await call(sleeps)
        return await call(double_in_step)

    worker = Worker(MemoryPartition().start(main), main)
    for _ in range(2):
        [effect] = worker.begin()
        outcome = asyncio.run(carry_out(effect))
        if outcome.error is not None:
            worker.machine.failed(effect.path, 1, outcome.error, START_MS)
        else:
            worker.machine.finished(effect.path, 1, outcome.value, START_MS)
        worker.send()
    assert worker.partition.close.payload == b"8"
    assert worker.machine.put_away()


def test_a_sync_step_is_not_called_directly_in_an_async_function():
    @durable
    async def main() -> int:
        return triple(1)

    error = run_straight(main).result()
    assert isinstance(error, NotInExecution)
    assert "the sync step triple was called in an async function without call()" in str(error)


def test_a_step_that_is_not_awaited_is_not_begun():
    @durable
    async def main() -> int:
        double(1)  # type: ignore[unused-coroutine]
        return 1

    with pytest.warns(RuntimeWarning, match=r"coroutine 'double' was never awaited"):
        run = run_straight(main)
    assert run.effects == []


# --- arguments -----------------------------------------------------------------------------------


@durable
async def many(order: int, *rest: float, flag: bool = False, **more: timedelta) -> str:
    return f"{order} {rest} {flag} {more}"


def test_arguments_are_decoded_by_the_annotations():
    codec = Codec()
    data = encode_arguments(many, codec, (1, 2, 3), {"flag": True, "age": timedelta(days=1)})
    args, kwargs = decode_arguments(many, codec, data)
    assert args == (1, 2.0, 3.0)
    assert kwargs == {"flag": True, "age": timedelta(days=1)}


def test_wrong_arguments():
    codec = Codec()
    with pytest.raises(TypeError, match="missing a required argument"):
        encode_arguments(many, codec, (), {})
    with pytest.raises(CodecError, match=r"more\['age'\] is a object, which has no JSON"):
        encode_arguments(many, codec, (1,), {"age": object()})
    for data, words in (
        (b"[1]", "do not fit many"),
        (b"garbage", "do not fit many"),
        (b"[[], {}]", "missing a required argument"),
        (b'[["text"], {}]', "order is not of the type int"),
    ):
        with pytest.raises(CodecError, match=words):
            decode_arguments(many, codec, data)


def test_arguments_of_another_type_stop_the_execution_before_it_runs():
    journal = [JournalRecord(0, Note(kind=RecordKind.STARTED, payload=b'[["text"], {}]'))]
    machine = ExecutionMachine(many, IDENTITY, Codec())
    with pytest.raises(Undecodable, match=r'many "order-17", run 1: order is not of the type int'):
        machine.load(journal)
    assert living() == 0


def test_a_recorded_result_of_another_type():
    @durable(name="main")
    async def before() -> int:
        return await double(1)

    @step(name="double")
    async def now_text(number: int) -> str:
        return str(number)

    @durable(name="main")
    async def after() -> str:
        return await now_text(1)

    journal = run_straight(before).partition.journal
    with pytest.raises(Undecodable, match="the result of double is not of the type str"):
        replay(after, journal)
    assert living() == 0


def test_a_journal_must_begin_with_its_start():
    machine = ExecutionMachine(many, IDENTITY, Codec())
    with pytest.raises(ValueError, match="begins with the record of its start"):
        machine.load([])
    assert machine.put_away()


def test_an_annotation_that_cannot_be_resolved():
    @step
    async def unknown() -> "NoSuchType":  # type: ignore[name-defined]  # noqa: F821
        return None

    with pytest.raises(TypeError, match="an annotation of unknown cannot be resolved"):
        _ = unknown.result_type


# --- the package ---------------------------------------------------------------------------------


def test_functions_need_no_network():
    program = (
        "import sys; from querator import durable; "
        "print({'grpc', 'google.protobuf'} & set(sys.modules)); "
        "print(all(getattr(durable, name) for name in durable.__all__), 'grpc' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\nTrue True\n"
    with pytest.raises(AttributeError, match="has no attribute 'Wroker'"):
        _ = durable_package.Wroker
