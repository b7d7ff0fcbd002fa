"""The fixtures of a harness: what a test gets, and what many tests take together."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from querator.durable import Retry, current, durable, sleep, step
from querator.local import Harness

TESTS = int(os.environ.get("HARNESS_TESTS", "50"))
"""How many tests one session runs with a harness each."""

CONFTEST = """
import pytest
from querator.durable import durable, sleep, step

pytest_plugins = ["querator.testing"]

@step
async def work(number: int) -> int:
    return number + 1

@durable
async def program(number: int) -> int:
    number = await work(number)
    await sleep(86_400)
    return await work(number)

@pytest.fixture(scope="session")
def querator_harness_options():
    return {"functions": [program]}

@pytest.fixture
def program_():
    return program
"""

MANY = """
import pytest

@pytest.mark.parametrize("number", range(COUNT))
async def test_one(querator_harness, program_, number):
    assert await querator_harness.run(program_, number) == number + 2
"""


@step(retry=Retry(attempts=4, first=timedelta(hours=1), most=timedelta(days=1)))
async def report(month: int) -> int:
    if current().attempt < 3:
        raise ConnectionError("no answer")
    return month


@durable
async def monthly() -> list[int]:
    """A report every 30 days, each at its third attempt."""
    return [await _one(month) for month in range(12)]


async def _one(month: int) -> int:
    await sleep(timedelta(days=30))
    return await report(month)


@pytest.fixture(scope="session")
def querator_harness_options() -> Mapping[str, Any]:
    return {"functions": [monthly]}


async def test_a_year_of_sleeps_and_retries(querator_harness: Harness):
    begin = querator_harness.now
    assert await querator_harness.run(monthly) == list(range(12))
    assert querator_harness.now - begin > timedelta(days=360)
    assert len([one for one in querator_harness.begun if one.name == "report"]) == 36


@pytest.mark.parametrize("number", range(3))
def test_tests_of_several_loops_share_a_harness(querator_session_harness: Harness, number: int):
    begin = querator_session_harness.now

    async def test() -> None:
        result = await querator_session_harness.run(monthly, id=f"report-{number}")
        assert result == list(range(12))

    asyncio.run(test())
    assert querator_session_harness.now - begin > timedelta(days=360)


def ports() -> set[str]:
    """The inodes of TCP sockets of this process."""
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # The listing itself.
        if target.startswith("socket:["):
            mine.add(target.removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/self/net/{kind}") for kind in ("tcp", "tcp6")]
    known = {
        line.split()[9]
        for table in tables
        if table.exists()
        for line in table.read_text().splitlines()[1:]
    }
    return mine & known


def test_no_port_is_opened(querator_harness: Harness):
    before = ports()
    during: list[set[str]] = []

    async def look(month: int) -> int:
        during.append(await asyncio.to_thread(ports))
        return month

    async def test() -> None:
        await querator_harness.run(monthly)

    querator_harness.replace(report, look)
    asyncio.run(test())
    assert len(during) == 12
    assert all(one == before for one in during)


def session(tmp_path: Path, conftest: str, tests: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_many.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_many_tests_have_a_harness_each(tmp_path: Path):
    done = session(tmp_path, CONFTEST, MANY.replace("COUNT", str(TESTS)))
    assert f"{TESTS} passed" in done.stdout, done.stdout + done.stderr


def test_a_harness_without_functions_says_what_to_define(tmp_path: Path):
    test = "def test_one(querator_harness): pass"
    done = session(tmp_path, 'pytest_plugins = ["querator.testing"]', test)
    assert done.returncode != 0
    assert "define a fixture querator_harness_options with scope='session'" in done.stdout
