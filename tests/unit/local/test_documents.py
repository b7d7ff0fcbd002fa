"""Programs of the docs under a harness: each of their writes is a place where the worker dies."""

import asyncio
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from querator.local import Harness
from tests.integration.page_programs import DOCS, page_blocks

EXAMPLES = DOCS / "examples"


def program(name: str) -> dict[str, Any]:
    """The names of a program, which is not run."""
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


async def test_durable_py() -> None:
    names = program("durable.py")
    checkout, declined = names["checkout"], names["Declined"]

    async def test(h: Harness) -> str:
        tokens: list[str] = []
        h.replace(names["ask"], lambda order, token: tokens.append(token))
        handle = await h.start(checkout, "order-17", ["book", "pen"], id="order-17")
        await h.executions.resolve(tokens[-1], True)
        released: list[str] = []
        h.replace(names["release"], released.append)
        with pytest.raises(declined):
            await h.run(checkout, "order-18", ["a very long encyclopedia"], id="order-18")
        assert set(released) == {"order-18"}
        result: str = await handle.result()
        return result

    h = Harness([checkout, names["pack"]], errors=[declined])
    assert await h.every_crash(test) == "receipt of order-17, parcel of order-17"


async def test_the_order_of_the_tutorial() -> None:
    names = program("tutorial/order.py")

    async def test(h: Harness) -> Any:
        return await h.run(names["checkout"], "order-17", id="order-17")

    h = Harness([names["checkout"]], steps={names["charge"]: lambda order: 42})
    assert await h.every_crash(test) == "order-17 for 42 euros"


async def test_the_trip_of_the_tutorial() -> None:
    names = program("tutorial/trip.py")

    async def test(h: Harness) -> Any:
        cancelled: list[str] = []
        h.replace(names["cancel"], cancelled.append)
        with pytest.raises(names["Declined"]):
            await h.run(names["trip"], 900)
        # A call that undoes may be repeated; the order stays.
        assert list(dict.fromkeys(cancelled)) == ["hotel", "flight"]
        return await h.run(names["trip"], 300)

    h = Harness([names["trip"]], errors=[names["Declined"]])
    assert await h.every_crash(test) == "have a good trip"


async def test_the_approval_of_the_tutorial() -> None:
    names = program("tutorial/approval.py")

    async def test(h: Harness) -> Any:
        tokens: list[str] = []
        h.replace(names["ask"], lambda what, token: tokens.append(token))
        handle = await h.start(names["purchase"], "a piano", id="piano")
        assert len(set(tokens)) == 1
        await h.executions.resolve(tokens[0], True)
        return await handle.result()

    assert await Harness([names["purchase"]]).every_crash(test) == "a piano: bought"


async def test_the_first_function_of_the_page() -> None:
    block = next(
        one for one in page_blocks(DOCS / "durable-functions.md") if "@durable" in one.text
    )
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block.text.partition("\n\nprint(")[0], "example.py", "exec"), names)

    async def test(h: Harness) -> Any:
        return await h.run(names["checkout"], "order-17")

    assert await Harness([names["checkout"]]).every_crash(test) == "order-17: receipt 8"


async def test_the_guarded_function_of_changed_code(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = [one for one in page_blocks(DOCS / "durable-versions.md") if "@durable" in one.text]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block.text.partition("\n\nasyncio.run(")[0], "example.py", "exec"), names)

    async def test(h: Harness) -> Any:
        return await h.run(names["checkout"], "order-17")

    h = Harness([names["checkout"]])
    assert await h.every_crash(test) == "receipt of order-17"
    capsys.readouterr()
    await names["main"]()
    assert capsys.readouterr().out == "checks order-17\nreceipt of order-17\n"


async def test_the_job_of_the_page_turns_red(tmp_path: Path) -> None:
    blocks = page_blocks(DOCS / "durable-versions.md")
    changed = next(one.text for one in blocks if one.title == "changed.py")
    job = next(one.text for one in blocks if one.title == "replays.yml")
    shown = next(one.text for one in blocks if one.text.startswith("runs.jsonl:1: "))
    guard = '    if patched("check-first"):\n        await check(order)\n'
    assert guard in changed
    versions = {
        "before": changed.replace(guard, ""),
        "guarded": changed,
        "unguarded": changed.replace(guard, "    await check(order)\n"),
    }
    (tmp_path / "before.py").write_text(versions["before"].partition("\n\nasyncio.run(")[0])
    write = (
        "import asyncio, before\nfrom querator.local import Harness\n"
        "async def main():\n    h = Harness([before.checkout])\n"
        "    handle = await h.start(before.checkout, 'order-17', id='order-17')\n"
        "    open('runs.jsonl', 'wb').write((await handle.export()).to_json())\n"
        "asyncio.run(main())\n"
    )
    commands = [line.partition("run: ")[2] for line in job.splitlines() if "run: querator" in line]
    [command] = [[sys.executable, "-m", *one.split()] for one in commands]

    async def run(words: list[str], code: int) -> str:
        done = await asyncio.to_thread(
            subprocess.run, words, cwd=tmp_path, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.rstrip()

    async def replay(name: str, code: int) -> str:
        text = versions[name].partition("\n\nasyncio.run(")[0]
        (tmp_path / "changed.py").write_text(text)
        return await run(command, code)

    await run([sys.executable, "-c", write], 0)
    await replay("guarded", 0)
    done = await replay("unguarded", 1)

    def alike(text: str) -> str:
        return re.sub(r"(version )[0-9a-f]{12}|(seed: )\d+|(/?[\w-]+/)(?=\w+\.py)", r"\1\2", text)

    assert alike(done) == alike(shown.rstrip())


async def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    files = [one for one in page_blocks(DOCS / "testing-durable.md") if one.is_file]
    for file in files:
        (tmp_path / file.title).write_text(file.text)
    tests = sum(file.text.count("\nasync def test_") for file in files)
    assert tests == 6
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
               "-o", "asyncio_mode=auto"]  # fmt: skip
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout
