"""`querator worker` with durable functions, and `querator execution`, against a node in memory."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client, Node
from querator.durable import Executions
from tests.integration.worker_process import worker_process

SHOP = """
import asyncio
import os

from querator.durable import durable, promise, sleep, step


class Declined(Exception): ...


def say(*words):
    print(*words, os.getpid(), flush=True)


@step
async def reserve(order):
    say("reserve", order)
    return "reserved"


@step
async def slow(order):
    say("begun", order)
    await asyncio.sleep(0.5)
    say("ended", order)
    return "slow"


@step
async def hang(order):
    say("hanging", order)
    await asyncio.Event().wait()


@step
async def tell(token):
    say("token", token)


@step
async def charge(order):
    raise Declined(order)


@durable
async def checkout(order, gift=False):
    return [await reserve(order), await slow(order), await reserve(order + " again"), gift]


@durable
async def stuck(order):
    await reserve(order)
    await hang(order)


@durable
async def approved(order):
    token = promise(bool)
    await tell(token.token)
    return await token


@durable
async def declined(order):
    try:
        await charge(order)
    except Declined as error:
        return f"declined {error}"


functions = [checkout, approved]
"""
QUEUE = ("--queue", "shop")
WAIT = timedelta(seconds=60)
DIFFERS = "the code does not do what the journal says."
RESULT = ["reserved", "slow", "reserved", False]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Node(memory=True) as node, node.client() as client:
        await client.create_queue("shop", kind="executions")
        yield client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


async def command(client: Client, *words: str) -> tuple[int, str, str]:
    """`querator execution …` as a process: its exit code and what it writes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "execution", *words, "--address", client.address,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


async def test_a_life_by_commands_alone(client: Client, folder: Path) -> None:
    arguments = ("shop", "--queue", "post", "--create", "--error", "shop:Declined")
    async with worker_process(folder, client.address, *arguments) as worker:
        begins = await worker.said("Worker of post runs")
        assert "runs approved, checkout, declined, stuck; 100 executions at a time" in begins
        assert (await client.get_queue("post")).kind == "executions"
        start = ("start", "post", "checkout", "o-1", "true", "--id", "o-1")
        assert await command(client, *start) == (0, "o-1\n", "")
        result = '["reserved","slow","reserved",true]\n'
        assert await command(client, "wait", "post", "o-1") == (0, result, "")
        code, lines, _ = await command(client, "journal", "post", "o-1", "--output", "json")
        records = [msgspec.json.decode(line) for line in lines.splitlines()]
        assert code == 0
        assert [(one["kind"], one["name"], one["path"]) for one in records] == [
            ("started", "checkout", ""), ("step_done", "reserve", "1"), ("step_done", "slow", "2"),
            ("step_done", "reserve", "3"), ("completed", "", ""),
        ]  # fmt: skip
        assert records[1]["site"].endswith("shop.py:47")
        assert records[1]["value"] == "reserved"

        await command(client, "start", "post", "approved", "o-2", "--id", "o-2")
        _, token, _ = (await worker.printed("token")).split()
        code, listed, _ = await command(client, "list", "post", "--function", "approved")
        assert (code, listed.splitlines()[2].split()[0]) == (0, "o-2")
        code, runs, said = await command(client, "export", "post")
        assert (code, said, token in runs) == (0, "2 executions of post written.\n", False)
        (folder / "runs.jsonl").write_text(runs)
        assert (await command(client, "resolve", token, "true"))[0] == 0
        assert (await command(client, "reject", token, "too late"))[0] == 1
        assert await command(client, "wait", "post", "o-2") == (0, "true\n", "")

        await command(client, "start", "post", "declined", "o-3", "--id", "o-3")
        assert await command(client, "wait", "post", "o-3") == (0, "declined o-3\n", "")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0

    # The change is refused before it is deployed, and the journals need no server for that.
    program = folder / "shop.py"
    assert await replayed(folder) == (0, "2 executions: 2 fit, 0 do not.")
    program.write_text(SHOP.replace("    token = ", "    await reserve(order)\n    token = "))
    code, said = await replayed(folder)
    assert code == 1
    assert said.startswith(f'runs.jsonl:2: approved "o-2", run 1: {DIFFERS}') or said.startswith(
        f'runs.jsonl:1: approved "o-2", run 1: {DIFFERS}'
    )
    assert f"step tell   {folder.name}/shop.py:" in said
    assert f"step reserve   {folder.name}/shop.py:" in said


async def replayed(folder: Path) -> tuple[int, str]:
    """The exit code, and what is said before the hash seed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "execution", "replay", "runs.jsonl", "shop",
        cwd=folder, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    stdout, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode().partition(" Hash seed:")[0]


async def test_a_signal_lets_a_step_end_and_another_worker_continues(
    client: Client, folder: Path
) -> None:
    shop = Executions(client, "shop")
    async with worker_process(folder, client.address, "shop:functions", *QUEUE) as worker:
        await command(client, "start", "shop", "checkout", "o-1", "--id", "o-1")
        await worker.printed("begun o-1")
        worker.signal(signal.SIGTERM)
        await worker.printed("ended o-1")
        assert await worker.ended() == 0
    assert not [line for line in worker.log if "Traceback" in line]
    async with worker_process(folder, client.address, "shop:checkout", *QUEUE) as other:
        assert await shop.handle("o-1").result(timeout=WAIT) == RESULT
        other.signal(signal.SIGTERM)
        assert await other.ended() == 0
    assert [line.rsplit(" ", 1)[0] for line in other.output] == ["reserve o-1 again"]


async def test_a_second_signal_ends_a_step_that_hangs(client: Client, folder: Path) -> None:
    shop = Executions(client, "shop")
    async with worker_process(folder, client.address, "shop", *QUEUE) as worker:
        await command(client, "start", "shop", "stuck", "o-1", "--id", "o-1")
        await worker.printed("hanging o-1")
        worker.signal(signal.SIGTERM)
        await worker.said("stops by a signal: steps have 30 s")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 128 + signal.SIGTERM
    assert not [line for line in worker.log if "Traceback" in line]
    # It was given back: it can be leased at once.
    info = await shop.get("o-1")
    assert (info.state, info.records) == ("runnable", 2)


async def test_a_worker_process_that_dies_is_replaced(client: Client, folder: Path) -> None:
    arguments = ("shop", *QUEUE, "--processes", "2", "--concurrency", "1", "--lease-timeout", "2s")
    async with worker_process(folder, client.address, *arguments) as worker:
        await command(client, "start", "shop", "checkout", "o-1", "--id", "o-1")
        words = await worker.printed("begun o-1")
        process = int(words.split()[-1])
        os.kill(process, signal.SIGKILL)
        assert await Executions(client, "shop").handle("o-1").result(timeout=WAIT) == RESULT
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    steps = [line.rsplit(" ", 1)[0] for line in worker.output]
    assert [one for one in steps if one.startswith("reserve")] == [
        "reserve o-1",
        "reserve o-1 again",
    ]


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "several"])
@pytest.mark.parametrize(
    ("queue", "code", "words"),
    [
        ("mail", 2, "Error: Queue mail is of kind plain, and durable functions need one of kind"),
        ("shops", 3, "querator queue create shops --kind executions, or let the worker do it"),
    ],
)
async def test_what_cannot_begin_is_reported_once(
    client: Client, folder: Path, processes: tuple[str, ...], queue: str, code: int, words: str
) -> None:
    await client.create_queue("mail")
    arguments = ("shop", "--queue", queue, *processes)
    async with worker_process(folder, client.address, *arguments) as worker:
        assert await worker.ended() == code
    assert [words in line for line in worker.log if line.startswith("Error: ")] == [True]
