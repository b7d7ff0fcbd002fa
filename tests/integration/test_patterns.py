"""The programs of docs/patterns, killed in their middle: the next run does the rest, once.
`test_examples` runs them to their end.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.page_programs import DOCS, PageBlock, PageReader

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[PageReader]:
    reader = PageReader(tmp_path)
    async with reader.terminal("querator serve --memory"):
        yield reader


async def killed(reader: PageReader, name: str, words: str) -> None:
    """Kills the program when it has printed `words`."""
    text = (DOCS / "examples" / name).read_text()
    reader.save(PageBlock("", "python", "program.py", text))
    running = await reader.start("exec python program.py")
    await running.until(words)
    await running.kill()


async def rest(reader: PageReader) -> list[str]:
    return (await reader.run("python program.py")).splitlines()


async def test_the_mutex_is_free_when_its_holder_was_killed(reader: PageReader):
    await killed(reader, "mutex.py", "page 2")
    pages = await rest(reader)
    assert pages == [f"page {number}" for number in range(1, 6)][-len(pages) :]
    assert 0 < len(pages) < 4


async def test_another_program_leads_when_the_leader_was_killed(reader: PageReader):
    await killed(reader, "election.py", "host-1 leads: tick 2")
    assert (await rest(reader))[0] == "host-1 leads: tick 1"
