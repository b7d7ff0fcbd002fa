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


async def test_the_outbox_is_sent_once(reader: PageReader):
    await killed(reader, "outbox.py", "sent 3 4")
    said = await rest(reader)
    # What was sent and not deleted is sent again.
    assert said == ["sent 3 4", "sent 5", "in the queue: 5"] or said == [
        "sent 5",
        "in the queue: 5",
    ]


@pytest.mark.parametrize("step", ["book flight", "book hotel", "cancel hotel"])
async def test_a_saga_goes_to_its_end(reader: PageReader, step: str):
    await killed(reader, "saga.py", step)
    said = [line for line in await rest(reader) if line.startswith("in the books: ")]
    steps = ("book flight", "book hotel", "cancel hotel", "cancel flight")
    assert said == [f"in the books: {one}" for one in steps]


async def test_the_next_coordinator_gathers_the_same_parts(reader: PageReader):
    await killed(reader, "fan_out.py", "parts are stored")
    assert await rest(reader) == ["total: 30", "parts in all: 5"]
    assert await rest(reader) == ["total: 30", "parts in all: 5"], "the job is done"


async def test_an_import_that_starts_again_stores_each_line_once(reader: PageReader):
    await killed(reader, "batch_import.py", "lines up to 300")
    assert (await rest(reader))[-1] == "in the queue: 500"


async def test_webhooks_that_were_delivered_are_not_sent_again(reader: PageReader):
    await killed(reader, "webhooks.py", "gone: 410")
    said = await rest(reader)
    assert said[-1] == "delivered: 2 given up: 1"
    assert not any(line.startswith("works") for line in said)
