"""The tutorial, as a reader follows it: every file, command and output of docs/start/tutorial.md,
except for the step with Spark (tests/spark/test_tutorial.py).
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.integration.page_programs import DOCS, PageBlock, PageReader, page_blocks

PAGE = DOCS / "start" / "tutorial.md"


def steps() -> Iterator[PageBlock]:
    return (block for block in page_blocks(PAGE) if "Spark" not in block.section)


@pytest.mark.timeout(600)
async def test_each_step(tmp_path: Path):
    reader = PageReader(tmp_path)
    output = ""
    checked = 0
    async with AsyncExitStack() as first_terminal:
        left = list(steps())
        while left:
            block = left.pop(0)
            if block.is_file:
                reader.save(block)
            elif block.language == "text":
                assert set(block.text.splitlines()) <= set(output.splitlines()), output
                checked += 1
            elif block.title == "Terminal 1":
                await first_terminal.aclose()
                nodes = 3 if "three" in block.text else 1
                await first_terminal.enter_async_context(reader.terminal(block.text, ready=nodes))
            elif left and left[0].title == "Terminal 3":
                running = await reader.start(block.text)
                await running.until("kill a node now")
                await reader.run(left.pop(0).text)
                output = await running.end()
            else:
                assert block.title == "Terminal 2"
                output = await reader.run(block.text)
    assert checked == 4


def test_every_block_has_a_place():
    """A block is a file, has a terminal, or is an output."""
    places = ("Terminal 1", "Terminal 2", "Terminal 3", "Output, with others")
    assert [
        block for block in page_blocks(PAGE) if not block.is_file and block.title not in places
    ] == []
