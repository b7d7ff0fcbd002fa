"""`lint`: each line of a program that is marked is found, and no other one."""

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from querator import Client
from querator.cli import querator
from querator.client.errors import RequestError
from querator.durable import Durable, Worker, durable
from querator.durable.lint import lint
from querator.durable.logs import tell_finding
from querator.durable.worker import tell_findings

FOUND = """
import asyncio
import os
import random
import secrets
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from datetime import date, datetime as moment, timezone
from random import choice as pick
from time import time as clock

from querator.durable import call, durable, step

NAMES = {"ada", "bob"}


class Times:
    @staticmethod
    def today():
        return date.today()  # !

    def method(self):
        return time.time()


def deeper():
    return secrets.token_hex()  # !


def helper(words):
    return deeper()


@durable
async def inner():
    return time.monotonic_ns()  # !


@durable
async def calls(order: str):
    time.time()  # !
    clock()  # !
    moment.now(timezone.utc)  # !
    moment.utcnow()  # !
    random.random()  # !
    pick([1, 2])  # !
    random.Random()  # !
    uuid.uuid4()  # !
    os.environ["HOME"]  # !
    os.getenv("HOME")  # !
    socket.socket()  # !
    urllib.request.urlopen("http://example.org")  # !
    threading.Thread(target=print)  # !
    subprocess.run(["true"])  # !
    open(order)  # !
    time.sleep(1)  # !
    helper([])
    Times.today()
    await inner()
    import uuid as made
    from time import perf_counter
    made.uuid1(), perf_counter()  # !
    when = [
        moment.now()  # !
        for _ in range(3)
    ]

    def nested():
        return time.time_ns()  # !

    return f"{nested()} {when} {(lambda: uuid.uuid4())()}"  # !


@durable
async def sets(words: set[str], others: "frozenset[str]", more: set):
    for word in {"a", "b"}:  # !
        print(word)
    for word in words:  # !
        print(word)
    for word in others | {"c"}:  # !
        print(word)
    for word in NAMES:  # !
        print(word)
    [print(word) for word in more]  # !
    {word: 1 for word in words}  # !
    first = set(order for order in ["b", "a"])
    second = first.union(words) - {"z"}
    list(second)  # !
    ",".join(first)  # !
    asyncio.gather(*first)  # !
    one, two = {"x", "y"}  # !
    first.pop()  # !
    for key in {"a": 1}.keys() - words:  # !
        print(key)
    seen = set()
    seen.add("x")
    for word in seen:  # !
        print(word)
    {await inner() for _ in words}  # !
    for done in asyncio.as_completed([inner(), inner()]):  # !
        await done
    coroutines = [inner() for _ in range(3)]
    for done in asyncio.as_completed(coroutines):  # !
        await done
"""

ALLOWED = """
import asyncio
import os.path
import random as chance
import time
import uuid
from datetime import date, datetime, timedelta

from querator.durable import call, durable, now, random, saga, sleep, spawn, step
from querator.durable import uuid as made

NUMBERS = {1, 2, 3}
FIELDS = ("a", "b")


def time_of(order):
    return order


class Clock:
    def time(self):
        return time.time()


@step
async def reads() -> float:
    return time.time() + len(os.environ)


@step
def blocks() -> str:
    time.sleep(1)
    return open("/etc/hosts").read()


def as_a_step() -> str:
    return str(uuid.uuid4())


@durable
async def allowed(order: str, when: datetime, numbers: set[int], words: set[str]):
    now(), random().random(), made(), chance.Random(17), uuid.UUID(int=1), uuid.uuid5
    datetime.fromisoformat("2030-01-01"), datetime(2030, 1, 1), date.fromordinal(1)
    when.date(), when.time(), when + timedelta(1), os.path.join("a", order), time_of(order)
    await reads()
    await call(blocks)
    await call(as_a_step)
    await call(time.time)
    await call(lambda: time.time())
    await step(as_a_step, name="x")()
    async with saga() as undo:
        undo.add(as_a_step)
        undo.add(lambda: time.time())

    @step
    async def within() -> float:
        return time.time()

    async def named() -> float:
        return time.time()

    await within()
    await call(named)
    for number in {3, 1, 2} | NUMBERS | numbers:
        print(number)
    for number in set(range(3)):
        print(number)
    for word in sorted(words):
        print(word)
    any(word == "a" for word in words), len(words), sum(1 for _ in words), max(words)
    order in words, words | {"a"}, {word.upper() for word in words}
    running = {asyncio.create_task(reads()) for _ in range(3)}
    for task in running:
        await task
    done, pending = await asyncio.wait(running)
    for task in done:
        task.result()
    for task in asyncio.as_completed(running):
        await task
    tasks = [asyncio.ensure_future(reads()) for _ in range(3)]
    for task in asyncio.as_completed(tasks):
        await task
    for task in set(tasks):
        await task
    later = set()
    for _ in range(3):
        child = await spawn(allowed, order)
        later.add(child)
    for child in later:
        await child
    unknown = order and {"a"}
    for one in unknown:
        print(one)
    words = list(words) if order == "x" else []  # querator: allow it is sorted below
    time.time()  # querator: allow only for a log
    moments = [
        datetime.now(),  # querator: allow it goes nowhere
    ]
    clock = Clock()
    clock.time()
    time.perf_counter  # It is not called.
    open = print
    open(moments)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    names: list[str] = []

    def made(text: str) -> ModuleType:
        name = f"linted_{tmp_path.name.replace('-', '_')}_{len(names)}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield made
    for name in names:
        del sys.modules[name]


def functions_of(module: ModuleType) -> list[Durable[..., object]]:
    return [one for one in vars(module).values() if isinstance(one, Durable)]


def test_each_marked_line_is_found_and_no_other(program: Callable[[str], ModuleType]) -> None:
    module = program(FOUND)
    marked = [number for number, line in enumerate(FOUND.splitlines(), 1) if line.endswith("  # !")]
    findings = lint(functions_of(module))
    assert sorted({one.line for one in findings}) == marked
    assert {one.path for one in findings} == {module.__file__}
    by_line = {one.line: one for one in findings}
    lines = FOUND.splitlines()
    [token] = [one for one in findings if "secrets" in one.text]
    assert lines[token.line - 1] == "    return secrets.token_hex()  # !"
    first = lines.index("    time.time()  # !") + 1
    assert str(by_line[first]) == (
        f"{module.__file__}:{first}: time.time() reads the clock; use now() of querator.durable, "
        "or a step (in calls)"
    )


def test_nothing_is_found_in_what_is_allowed(program: Callable[[str], ModuleType]) -> None:
    assert lint(functions_of(program(ALLOWED))) == []


def test_a_comment_without_a_reason_allows_nothing(program: Callable[[str], ModuleType]) -> None:
    text = ALLOWED.replace("allow only for a log", "allow")
    [finding] = lint(functions_of(program(text)))
    assert finding.text.endswith("`querator: allow` needs a reason behind it")


def test_functions_of_other_packages_are_not_followed(
    program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = program("import time\ndef stamp(): return time.time()\n")
    monkeypatch.setitem(sys.modules, "other_package", other)
    module = program(
        "from other_package import stamp\nfrom querator.durable import durable\n"
        "@durable\nasync def f(): return stamp()\n"
    )
    assert lint(functions_of(module)) == []


def test_without_its_source_a_function_is_not_read() -> None:
    names: dict[str, object] = {"durable": durable}
    exec("@durable\nasync def made(): ...", names)
    made = names["made"]
    assert isinstance(made, Durable)
    [finding] = lint([made])
    assert (finding.is_read, finding.text) == (False, "the source of made cannot be read")
    with pytest.raises(ValueError, match="the source of made cannot be read"):
        tell_findings([finding], strict=True)


ONE = "import time\nfrom querator.durable import durable\n@durable\nasync def f(): time.time()\n"


async def test_a_worker_says_once_what_is_found(
    program: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    functions = functions_of(program(ONE))
    tell_finding.cache_clear()
    with caplog.at_level(logging.WARNING, logger="querator.durable.worker"):
        for _ in range(2):
            await run(functions)
    [message] = caplog.messages
    assert message.endswith(".py:4: time.time() reads the clock; use now() of querator.durable, or "
                            "a step (in f)")  # fmt: skip
    with pytest.raises(ValueError, match=r"strict refuses .*\n.*\.py:4: time\.time\(\)"):
        await run(functions, strict=True)


async def test_a_defect_of_lint_keeps_no_worker_from_running(
    program: Callable[[str], ModuleType],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(functions: object) -> list[object]:
        raise RecursionError

    monkeypatch.setattr("querator.durable.worker.read_findings", fails)
    functions = functions_of(program(ONE))
    await run(functions)
    assert "The functions of queue shop cannot be read by lint" in caplog.text
    with pytest.raises(RecursionError):
        await run(functions, strict=True)


def test_what_a_name_stands_for_is_not_compared(program: Callable[[str], ModuleType]) -> None:
    text = """
from querator.durable import durable

class Column:
    def __eq__(self, other):
        raise TypeError("columns make no truth")
    __hash__ = None
    def __call__(self):
        return [self]

COLUMN = Column()

@durable
async def f(value: COLUMN, other: "list[COLUMN]"):
    for one in COLUMN():
        COLUMN.name, list(COLUMN())
"""
    assert lint(functions_of(program(text))) == []


async def run(functions: list[Durable[..., object]], **options: Any) -> None:
    """A worker that ends when it has nothing to do: its queue is that of no server."""
    async with Client("127.0.0.1:1", request_timeout=timedelta(milliseconds=1)) as client:
        with contextlib.suppress(RequestError):
            await Worker(client, "shop", functions, **options).run()


# --- the commands ---------------------------------------------------------------------------------


def invoked(*words: str) -> Result:
    return CliRunner().invoke(querator, [*words])


def test_the_command_ends_with_1_for_a_finding(program: Callable[[str], ModuleType]) -> None:
    name = program(ONE).__name__
    shown = invoked("execution", "lint", name)
    assert shown.exit_code == 1
    first, last = shown.stdout.splitlines()
    assert first.endswith("use now() of querator.durable, or a step (in f)")
    assert last == "1 durable function read, 1 finding."
    shown = invoked("execution", "lint", f"{name}:f", "--output", "json")
    assert (shown.exit_code, '"line":4' in shown.stdout) == (1, True)


def test_the_command_ends_with_0_without_one(program: Callable[[str], ModuleType]) -> None:
    name = program(ALLOWED).__name__
    shown = invoked("execution", "lint", name)
    assert (shown.exit_code, shown.stdout) == (0, "1 durable function read, 0 findings.\n")
    shown = invoked("execution", "lint", name, "--output", "json")
    assert (shown.exit_code, shown.stdout) == (0, "")


def test_a_strict_worker_does_not_begin(program: Callable[[str], ModuleType]) -> None:
    name = program(ONE).__name__
    address = ("--queue", "shop", "--address", "127.0.0.1:1")
    shown = invoked("worker", name, *address, "--strict")
    assert (shown.exit_code, "1 found by lint:\n" in shown.stderr) == (2, True), shown.output
    handler = program("def handle(item): ...\n").__name__
    shown = invoked("worker", f"{handler}:handle", *address, "--strict")
    assert (shown.exit_code, "--strict is for durable functions" in shown.stderr) == (2, True)
