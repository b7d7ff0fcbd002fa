"""The step of the tutorial with Spark: its commands and its output, on one node."""

from pathlib import Path

import pytest

from tests.integration.page_programs import DOCS, PageReader, page_blocks


@pytest.mark.timeout(300)
async def test_the_archive(tmp_path: Path):
    step = [
        block for block in page_blocks(DOCS / "start" / "tutorial.md") if "Spark" in block.section
    ]
    commands, expected = step
    reader = PageReader(tmp_path)
    async with reader.terminal("querator serve --memory"):
        output = await reader.run(f"querator queue create orders\n{commands.text}")
    assert set(expected.text.splitlines()) <= set(output.splitlines()), output
