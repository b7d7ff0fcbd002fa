"""A durable function whose argument says what it does, the same in each language.

Its argument is a list of operations, and its result the list of what each has given:

    ["step", name, value, ms]          a step that returns the value, behind `ms` if there are any
    ["reads", name, value]             a step that only reads
    ["fails", name, text]              a step that fails; gives the text
    ["flaky", name, failures, ms]      a step that fails so often first; gives the attempts
    ["once", name, value, ms]          a step that runs at most once; or gives "interrupted"
    ["sleep", ms]                      a timer
    ["receive", name]                  a signal; gives its value
    ["receive", name, ms]              the same, or "timeout"
    ["promise", key]                   publishes a token under the key; gives the value of the
                                       promise, or the text of its rejection
    ["gather", [operations, …]]        tasks that run beside each other; gives their lists
    ["call", operations]               a called durable function; gives the list of its results
    ["spawn", operations]              a child that does this; gives its result or failure
    ["uuid"]                           a UUID that follows from the journal
    ["patched", name]                  whether the newer way is taken
    ["publish", key, value]            publishes a value
    ["raise", text]                    ends the function by an exception
    ["again", operations]              ends the run; the next one does this

    python -m tests.clients.durable_program ADDRESS QUEUE LEDGER VERSION

runs a worker of it. Each attempt of a step writes a line to the ledger: its `step_key`, and a
number of its own. A step whose value is null gives that number.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import uuid_utils

from querator import Client
from querator.durable import (
    Durable,
    DurableError,
    Retry,
    StepInterrupted,
    Worker,
    continue_as_new,
    current,
    patched,
    promise,
    publish,
    receive,
    sleep,
    spawn,
    uuid,
)
from querator.durable.functions import Step

LEDGER: list[Path] = []


def _begun() -> str:
    """Writes an attempt to the ledger. Returns its number."""
    number = uuid_utils.uuid7().hex
    for ledger in LEDGER:
        file = os.open(ledger, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{current().step_key} {number}\n".encode())
        finally:
            os.close(file)
    return number


async def _step(name: str, value: Any, ms: int = 0, **options: Any) -> Any:
    async def run() -> Any:
        number = _begun()
        if ms:
            await asyncio.sleep(ms / 1000)
        return number if value is None else value

    return await Step(run, name=name, **options)()


async def _reads(name: str, value: Any) -> Any:
    return await _step(name, value, effects=False)


async def _fails(name: str, text: str) -> str:
    async def run() -> None:
        _begun()
        raise ValueError(text)

    try:
        await Step(run, name=name)()
    except ValueError as error:
        return str(error)
    raise AssertionError


async def _flaky(name: str, failures: int, delay: int) -> int:
    async def run() -> int:
        _begun()
        attempt = current().attempt
        if attempt <= failures:
            raise ConnectionError(f"attempt {attempt}")
        return attempt

    first = timedelta(milliseconds=delay)
    retry = Retry(attempts=failures + 1, first=first, factor=1, most=first, jitter=0)
    attempts: int = await Step(run, name=name, retry=retry)()
    return attempts


async def _once(name: str, value: Any, ms: int = 0) -> Any:
    try:
        return await _step(name, value, ms, once="at_most")
    except StepInterrupted:
        return "interrupted"


async def _receive(name: str, ms: int | None = None) -> Any:
    try:
        return await receive(name, timeout=None if ms is None else ms / 1000)
    except TimeoutError:
        return "timeout"


async def _promise(key: str) -> Any:
    made = promise()
    publish(key, made.token)
    try:
        return await made
    except DurableError as error:
        return str(error)


async def _call(operations: list[Any]) -> list[Any]:
    given: list[Any] = await Durable(_part, name="part")(operations)
    return given


async def _spawn(operations: list[Any]) -> Any:
    try:
        return await (await spawn(PROGRAM, operations))
    except DurableError as error:
        return str(error)


async def _sleep(ms: int) -> None:
    await sleep(ms / 1000)


async def _gather(tasks: list[list[Any]]) -> list[Any]:
    return list(await asyncio.gather(*map(_all, tasks)))


async def _uuid() -> str:
    return str(uuid())


async def _patched(name: str) -> bool:
    return patched(name)


async def _publish(key: str, value: Any) -> None:
    publish(key, value)


async def _raise(text: str) -> None:
    raise ValueError(text)


async def _again(operations: list[Any]) -> None:
    continue_as_new(operations)


_OPERATIONS: Final[dict[str, Callable[..., Coroutine[Any, Any, Any]]]] = {
    "step": _step,
    "reads": _reads,
    "fails": _fails,
    "flaky": _flaky,
    "once": _once,
    "sleep": _sleep,
    "receive": _receive,
    "promise": _promise,
    "gather": _gather,
    "call": _call,
    "spawn": _spawn,
    "uuid": _uuid,
    "patched": _patched,
    "publish": _publish,
    "raise": _raise,
    "again": _again,
}


async def _all(operations: list[Any]) -> list[Any]:
    return [await _OPERATIONS[kind](*arguments) for kind, *arguments in operations]


async def _part(operations: list[Any]) -> list[Any]:
    return await _all(operations)


async def program(operations: list[Any]) -> list[Any]:
    return await _all(operations)


PROGRAM: Durable[[list[Any]], Any] = Durable(program, version="python-1")


async def main() -> None:
    address, queue, ledger, version = sys.argv[1:]
    LEDGER.append(Path(ledger))
    async with Client(address) as client:
        worker = Worker(client, queue, [Durable(program, version=version)])
        asyncio.get_running_loop().add_signal_handler(15, worker.stop)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
