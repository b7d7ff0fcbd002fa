"""The tutorial of durable functions, as a reader follows it: every file, command and output."""

import os
from pathlib import Path

import pytest

from tests.integration.page_programs import DOCS, ROOT, PageReader, Running, page_blocks

PAGE = DOCS / "tutorials" / "durable.md"
WORDS = {
    "python order.py": "charge order-17",
    "python approval.py": "may I?",
    "querator serve --new --data-dir ./data": "querator ready",
    "querator worker order --queue shop --create": "runs checkout",
}
"""What a program that stays says before the reader continues."""


@pytest.mark.timeout(300)
async def test_each_step(tmp_path: Path) -> None:
    reader = PageReader(tmp_path)
    path = os.environ.get("PYTHONPATH", "")
    reader.environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}"
    first: Running | None = None
    stays: list[Running] = []
    output = ""
    checked = 0
    for block in page_blocks(PAGE):
        if block.is_file:
            reader.save(block)
        elif block.title == "Terminal 1":
            first = await reader.start(block.text)
            await first.until(WORDS[block.text])
        elif block.text.startswith("pkill -9"):
            assert first is not None
            await first.kill()
            output = first.output
        elif block.text in WORDS and ":" in block.title:
            stays.append(await reader.start(block.text))
            await stays[-1].until(WORDS[block.text])
        elif block.title in ("Terminal 2", "Terminal 3"):
            output = await reader.run(block.text)
        else:
            assert block.language == "text"
            if block.title.startswith("Terminal 1"):
                assert first is not None
                lines = (await first.end()).splitlines()[1:]
            else:
                lines = output.splitlines()
            assert lines == block.text.splitlines()
            checked += 1
    for running in reversed(stays):
        await running.stop()
    assert checked == 6
