"""`querator demo` as a newcomer runs it, with fewer rows; and what an interrupt leaves."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import msgspec

from querator.cli.demo.flights import find_flights, read_flights

ROWS = 5_000
KEYS = [
    "produced", "completed", "retried", "lapsed", "dead", "lost", "duplicated", "seconds",
    "items_per_second", "killed", "longest_pause_ms",
]  # fmt: skip


async def start_demo(tmp_path: Path, rows: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "querator", "demo", "--rows", str(rows),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


def test_the_flights_are_read_as_they_are() -> None:
    items = list(read_flights(find_flights(), 3))
    assert [item.reference for item in items] == ["0", "1", "2"]
    assert (items[0].kind, items[0].key) == ("UA", "N14228")
    first = msgspec.json.decode(items[0].payload)
    assert (first["carrier"], first["flight"], first["arr_delay"]) == ("UA", "1545", "11")


async def test_the_books_balance(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, ROWS)
    out, err = (part.decode() for part in await process.communicate())
    assert process.returncode == 0, err
    *summary, last = out.splitlines()
    found = msgspec.json.decode(last)
    assert list(found) == KEYS
    assert found["produced"] == found["completed"] == ROWS
    assert found["lost"] == found["duplicated"] == found["dead"] == 0
    assert found["retried"] == ROWS // 100
    assert found["lapsed"] > 0
    assert found["killed"] in ("node-1", "node-2", "node-3")
    assert found["longest_pause_ms"] > 0
    digests = [line.split()[-1] for line in summary if line.startswith("digest")]
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert re.search(r"slowest carrier +\w\w \(\w+", out)
    assert len([line for line in summary if line.startswith("  ")]) == 3
    assert os.listdir(tmp_path) == []


async def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, 336_776)
    assert process.stderr is not None
    async for line in process.stderr:
        if b"produced" in line:
            break
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 130
    assert os.listdir(tmp_path) == []
    assert str(tmp_path) not in " ".join(command_lines())


def command_lines() -> list[str]:
    """Command lines of every visible process on the machine."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_text(errors="replace"))
        except OSError:
            continue  # It has ended since.
    return lines
