"""`querator spark demo` with fewer rows, and what an interrupt leaves. No process is killed here
(test_chaos.py, test_pipelines.py do that), because Spark would be started once more, which is half
of the time.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.integration.test_demo import command_lines

ROWS = 2_000
KEYS = [
    "flights", "archived", "copied", "completed", "lost", "duplicated", "seconds",
    "drivers_killed", "workers_killed", "nodes_killed", "report",
]  # fmt: skip


@asynccontextmanager
async def demo(home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "querator", "spark", "demo"),
        *("--rows", str(ROWS), "--nodes", "1", "--no-kills", "--out", str(home / "out")),
        env={**os.environ, "TMPDIR": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()


@pytest.mark.timeout(600)
async def test_totals_equal_those_of_the_csv(java, tmp_path):
    async with demo(tmp_path) as process:
        out, err = (part.decode() for part in await process.communicate())
    assert process.returncode == 0, err
    # Each step is announced: a run takes minutes.
    steps = ["Starting Spark", "Spark has started", "ingest flights: the first batch is done",
             "archive: done", "Spark counts the archive"]  # fmt: skip
    places = [err.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
    found = msgspec.json.decode(out.splitlines()[-1])
    assert list(found) == KEYS
    assert found["flights"] == found["archived"] == found["copied"] == found["completed"] == ROWS
    assert found["lost"] == found["duplicated"] == 0
    assert (found["drivers_killed"], found["workers_killed"], found["nodes_killed"]) == (0, 0, 0)
    digests = [line.split()[-1] for line in out.splitlines() if line.startswith("digest")]
    assert len(digests) == 2
    assert len(set(digests)) == 1
    check_results(Path(found["report"]))
    # Only the results remain, and no process.
    assert os.listdir(tmp_path) == ["out"]
    assert str(tmp_path) not in " ".join(command_lines())


def check_results(report: Path) -> None:
    html = report.read_text()
    assert "All counts balance." in html
    assert "JetBlue Airways" in html
    assert html.count("data:image/svg+xml;base64,") == 4
    assert (report.parent / "archive" / "month=1" / "carrier=B6").is_dir()


async def test_an_interrupt_leaves_no_process_behind(java, tmp_path):
    async with demo(tmp_path) as process:
        while "querator.spark.flights.driver" not in " ".join(of(tmp_path)):
            assert process.returncode is None
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130
    assert os.listdir(tmp_path) == ["out"]
    assert of(tmp_path) == []


def of(home: Path) -> list[str]:
    return [line for line in command_lines() if str(home) in line]
