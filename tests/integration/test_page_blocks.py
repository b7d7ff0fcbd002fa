"""Python blocks of README.md and docs/, and the commands in their other blocks.

Blocks that are files of an example are run by `test_examples` and `test_tutorial`, the files of
docs/guides/testing.md and worker.md by the tests of those tools, and Spark's by tests/spark.
"""

import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.integration.page_programs import DOCS, ROOT, PageBlock, PageReader, page_blocks

OTHER_SYSTEMS = (
    "Celery", "boto3", "pika", "confluent-kafka",
    "Temporal", "Restate", "DBOS", "Hatchet", "Inngest", "Absurd",
)  # fmt: skip
"""Titles of blocks for other systems, which are not run."""
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{block.section}-{number}")
    for page in PAGES
    for number, block in enumerate(page_blocks(page))
    if block.language == "python" and not block.is_file and block.title not in OTHER_SYSTEMS
    if page.name != "spark.md"
]

PRELUDE = """\
import asyncio
import signal
from datetime import UTC, datetime, timedelta

import querator
from querator import Client, Item, SyncClient


class TryLater(Exception):
    pass


def ends(make):
    def consumer(self, queue, **options):
        return make(self, queue, **{"idle_timeout": timedelta(seconds=1), **options})

    return consumer


Client.consumer = ends(Client.consumer)
SyncClient.consumer = ends(SyncClient.consumer)
lines = ["three", "four"]
"""
ASYNC = """
async def send(payload):
    print("sent", payload)


async def main():
    async with Client("127.0.0.1:4470") as client:
        await client.create_queue("mail")
        await client.produce("mail", b"one")
{block}

asyncio.run(main())
"""
SYNC = """
def send(payload):
    print("sent", payload)


with SyncClient("127.0.0.1:4470") as client:
    client.create_queue("mail")
    client.produce("mail", b"one")
{block}
"""


def program(block: PageBlock) -> str:
    """A program of the block: as it is if it makes its client, otherwise with one."""
    if "Client(" in block.text or "Node(" in block.text:
        return f"{PRELUDE}{block.text}\n"
    if "await " in block.text or "async " in block.text:
        return PRELUDE + ASYNC.format(block=textwrap.indent(block.text, " " * 8))
    return PRELUDE + SYNC.format(block=textwrap.indent(block.text, " " * 4))


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[PageReader]:
    reader = PageReader(tmp_path)
    async with reader.terminal("querator serve --memory"):
        await reader.run("querator queue create mail")
        yield reader


def save_certificates(home: Path) -> None:
    """Files of the names that the pages give them."""
    authority = Authority(home / "authority")
    cert, key = authority.issue("me")
    for name, file in (
        ("ca.pem", authority.ca), ("me.pem", cert), ("me.key", key),
        ("ca.crt", authority.ca), ("tls.crt", cert), ("tls.key", key),
    ):  # fmt: skip
        (home / name).write_bytes(file.read_bytes())


@pytest.mark.parametrize("block", BLOCKS)
async def test_a_python_block(reader: PageReader, block: PageBlock):
    save_certificates(reader.home)
    reader.save(PageBlock("", "python", "program.py", program(block)))
    output = await reader.run("python -W error program.py")
    assert "Traceback" not in output
