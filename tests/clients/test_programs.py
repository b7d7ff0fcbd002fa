"""Short user programs over the streams, in each language whose tools are installed."""

import asyncio
import sys
from pathlib import Path

import pytest

from querator import Client, Node
from tests.clients.programs import BUILD_S, HERE, PROTOS, made

WORDS = ["hello", "bonjour", "merhaba"]


async def _run(*command: str | Path, cwd: Path | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def _assert_all_completed(node: Node) -> None:
    async with Client(node.address) as client:
        stats = (await client.stats("greetings")).total
    assert (stats.produced, stats.completed, stats.ready, stats.leased) == (3, 3, 0, 0)


async def test_python_in_fifteen_lines(node: Node):
    out = await _run(sys.executable, HERE / "fifteen_lines.py", node.address)
    assert out.splitlines() == [f"0-{seq} {word}" for seq, word in enumerate(WORDS, 1)]
    await _assert_all_completed(node)


async def test_the_example_with_the_node_inside(tmp_path: Path):
    text = (HERE.parents[1] / "docs" / "sdk.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    first = await _run(sys.executable, "-c", program, cwd=tmp_path)
    again = await _run(sys.executable, "-c", program, cwd=tmp_path)
    assert [first.split()[1], again.split()[1]] == ["b'hello'", "b'hello'"]


async def test_python_without_an_event_loop(node: Node):
    out = await _run(sys.executable, HERE / "without_a_loop.py", node.address)
    assert out.splitlines() == [f"0-{seq} {word}" for seq, word in enumerate(WORDS, 1)]
    await _assert_all_completed(node)


@pytest.fixture(scope="session")
def node_program() -> Path:
    """The Node.js program with the packages of its lock file beside it."""
    return made("node") / "client.js"


@pytest.mark.timeout(BUILD_S + 60)
async def test_node_js_in_about_twenty_lines(node: Node, node_program: Path):
    out = await _run("node", node_program, node.address, PROTOS)
    assert out.splitlines() == WORDS
    await _assert_all_completed(node)
