"""The storage at every moment at which the power may fail: first start, commits, next start.

One process writes to a disk that forgets. It marks in the disk's journal which commits were
reported as durable. Each prefix of the journal is a moment. At each of them the disk keeps nothing,
all, or several random parts of what was not synced. The storage must open, with all that was
durable then and nothing that was never committed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from querator.storage.data_file import check_pages
from querator.storage.lmdb_environment import open_lmdb
from tests.powerloss import journal
from tests.powerloss.disk import Disk, Kept
from tests.powerloss.journal import Kind

COMMITS = 12
PROGRAM = f"""
import os, sys
from pathlib import Path
from querator.storage.lmdb_environment import open_lmdb
from tests.powerloss.test_storage import change

data = Path(sys.argv[1], "made", "on the way", "data")
open(Path(sys.argv[1], "mark"), "wb").close()
numbers = iter(range(1, 100))
def mark():
    os.truncate(Path(sys.argv[1], "mark"), next(numbers))

for life in range(2):
    environment = open_lmdb(data, room_bytes=100_000)
    for number in range({COMMITS // 2}):
        change(environment, life * {COMMITS // 2} + number)
        mark()
    environment.close()
"""
SOME_STATES = 6
"""Random parts that are tried at each moment."""


def change(environment, number):
    """Commit `number`: rows that come, change and go, with long values among them."""
    txn = environment.begin()
    txn.put(b"low", b"%d" % number)
    for row in range(40):
        txn.put(b"row%d.%d" % (number % 5, row), bytes([number]) * (row * 37))
    txn.put(b"long%d" % (number % 3), bytes([number]) * 20_000)
    txn.delete(b"long%d" % ((number + 1) % 3))
    txn.put(b"zenith", b"%d" % number)
    txn.commit(sync=True)


def expected(commits: int) -> dict[bytes, bytes]:
    """The rows after this number of commits."""
    rows: dict[bytes, bytes] = {}
    for number in range(commits):
        rows[b"low"] = rows[b"zenith"] = b"%d" % number
        for row in range(40):
            rows[b"row%d.%d" % (number % 5, row)] = bytes([number]) * (row * 37)
        rows[b"long%d" % (number % 3)] = bytes([number]) * 20_000
        rows.pop(b"long%d" % ((number + 1) % 3), None)
    return rows


def live(root: Path, disk: Disk, *lies: str) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), **disk.environment(*lies)},
    )


def moments(whole: Path) -> Iterator[tuple[int, int]]:
    """(position in the journal, what has been marked before it) for each record and the end."""
    marked = 0
    mark = None
    for record in journal.read(whole):
        yield record.position, marked
        if record.kind is Kind.MADE and record.text == b"mark":
            mark = record.a
        if record.kind is Kind.LENGTH and record.inode == mark and record.a:
            marked = record.a
    yield whole.stat().st_size, marked


def rows_after(data: Path) -> dict[bytes, bytes]:
    """The rows with which the storage opens; walks its pages too."""
    environment = open_lmdb(data)
    try:
        with environment.snapshot() as snapshot:
            rows = dict(snapshot.scan(b"\0", b"\xff"))
    finally:
        environment.close()
    assert check_pages(data) == []
    return rows


def wrong_at(data: Path, marked: int) -> str | None:
    """The error in the data, when `marked` commits had been reported as durable to the process."""
    try:
        rows = rows_after(data)
    except Exception as error:  # noqa: BLE001 (whatever stops a start is what is looked for)
        return f"does not open: {error!r}"
    commits = int(rows.get(b"low", b"-1")) + 1
    if not marked <= commits <= marked + 1:
        return f"{commits} commits"
    if rows != expected(commits):
        return f"other rows than after {commits} commits"
    return None


def wrong_moments(tmp_path: Path, library: Path, kept: Kept, seed: int, *lies: str) -> list[str]:
    root = tmp_path / "disk"
    root.mkdir()
    live(root, Disk(root, tmp_path / "first", library), *lies)
    whole = tmp_path / "first" / "journal"
    found, content = [], whole.read_bytes()
    for position, marked in moments(whole):
        # Emptied, not made again: the journal knows the directory by its inode.
        shutil.rmtree(root / "made", ignore_errors=True)
        (root / "mark").unlink(missing_ok=True)
        room = tmp_path / "next"
        disk = Disk(root, room, library)
        (room / "journal").write_bytes(content[:position])
        disk.lose_power(kept, Random(f"{seed} {position}"))
        if sentence := wrong_at(root / "made" / "on the way" / "data", marked):
            found.append(f"at {position}, {marked} commits reported: {sentence}")
        shutil.rmtree(room)
    return found


STATES = [(Kept.NONE, 0), (Kept.ALL, 0), *((Kept.SOME, seed) for seed in range(SOME_STATES))]


@pytest.mark.parametrize(("kept", "seed"), STATES)
def test_power_loss_at_every_moment(tmp_path, library, kept, seed):
    assert wrong_moments(tmp_path, library, kept, seed) == []


@pytest.mark.parametrize("lies", [("dsync",), ("fsync", "dsync"), ("directory",)])
def test_a_disk_that_lies_is_found_out(tmp_path, library, lies):
    """The same run with syncs that do nothing: so the test above detects a missing one."""
    assert wrong_moments(tmp_path, library, Kept.NONE, 0, *lies) != []
