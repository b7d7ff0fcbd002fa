"""The step of the tutorial with Spark, and the programs of docs/spark.md, on one node."""

from pathlib import Path

import pytest

from tests.integration.page_programs import DOCS, PageBlock, PageReader, page_blocks

FRAMES = """
df = spark.createDataFrame([("ann", 3), ("ben", 4)], "customer string, pieces int")
df.write.mode("overwrite").json("LAKE/incoming")
stream = (
    spark.readStream.schema(df.schema).json("LAKE/incoming")
    .selectExpr("to_json(struct(*)) AS value", "customer AS key")
)
"""
STREAMS_END = """
for started in spark.streams.active:
    started.processAllAvailable()
    started.stop()
"""
REST = """
from querator import SyncClient

with SyncClient("127.0.0.1:4470") as client:
    for queue in ("orders", "more"):
        total = client.stats(queue).total
        print(queue, "produced", total.produced, "left", total.ready)
spark.stop()
"""


@pytest.mark.timeout(600)
async def test_the_archive_of_the_tutorial(java: None, tmp_path: Path):
    step = [b for b in page_blocks(DOCS / "start" / "tutorial.md") if "Spark" in b.section]
    commands, expected = step
    reader = PageReader(tmp_path)
    async with reader.terminal("querator serve --memory"):
        output = await reader.run(f"querator queue create orders\n{commands.text}")
    assert set(expected.text.splitlines()) <= set(output.splitlines()), output


@pytest.mark.timeout(600)
async def test_the_programs_of_the_page(java: None, tmp_path: Path):
    """They follow each other in one session. The stream takes the four items of `orders`, two
    writes add two items each, and the archive takes the four items of `more`.
    """
    blocks = [b.text for b in page_blocks(DOCS / "spark.md") if b.language == "python"]
    scan, stream, writes, *later = blocks
    archive = "\n".join(later).replace('"orders"', '"more"').replace("/lake/orders", "/lake/more")
    text = "\n".join([scan, stream, FRAMES, writes, STREAMS_END, archive, REST])
    for there, here in (
        ("a.example:4470,b.example:4470", "127.0.0.1:4470"),
        ("a.example:4470", "127.0.0.1:4470"),
        ('"/lake', '"LAKE'),
        ('"/checkpoints', '"LAKE/written'),
        ("LAKE", str(tmp_path / "lake")),
    ):
        text = text.replace(there, here)
    reader = PageReader(tmp_path)
    reader.save(PageBlock("", "python", "program.py", text))
    async with reader.terminal("querator serve --memory"):
        for queue in ("orders", "more"):
            await reader.run(f"querator queue create {queue}; seq 4 | querator produce {queue}")
        output = await reader.run("python program.py")
    assert "orders produced 8 left 4" in output, output
    assert "more produced 4 left 0" in output, output
