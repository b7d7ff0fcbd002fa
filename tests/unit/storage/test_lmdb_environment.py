"""Properties of the durable back end only: kill, lock, damage, a full map and a full disk."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from querator.model.limits import MIB
from querator.storage import attachments
from querator.storage.data_file import check_pages
from querator.storage.directory import check_unlocked
from querator.storage.environment import (
    Environment,
    EnvironmentFailed,
    EnvironmentFull,
    StorageCorrupt,
    StorageLocked,
)
from querator.storage.lmdb_environment import open_lmdb

WRITER = """
import sys
from querator.storage.lmdb_environment import open_lmdb

environment = open_lmdb(sys.argv[1])
number = int(sys.argv[2])
while True:
    number += 1
    txn = environment.begin()
    txn.put(b"low", b"%d" % number)
    txn.put(b"row%d" % (number % 50), bytes([number % 256]) * (number * 997 % 20_000))
    txn.delete(b"row%d" % (number * 7 % 50))
    txn.put(b"zenith", b"%d" % number)
    txn.commit(sync=True)
    print(number, flush=True)
"""

HOLDER = """
import sys
from querator.storage.lmdb_environment import open_lmdb

environment = open_lmdb(sys.argv[1], used_by="a test")
print("open", flush=True)
sys.stdin.read()
"""

MEAGRE = """
import resource, sys
from querator.storage.environment import EnvironmentFailed
from querator.storage.lmdb_environment import open_lmdb

resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
try:
    open_lmdb(sys.argv[1])
except EnvironmentFailed as error:
    print(error)
"""

LIMITED = """
import resource, sys
from querator.storage.environment import StorageError, EnvironmentFailed
from querator.storage.lmdb_environment import open_lmdb

environment = open_lmdb(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
number = 0
try:
    while True:
        txn = environment.begin()
        txn.put(b"row%d" % number, bytes(10_000))
        txn.commit(sync=True)
        number += 1
except StorageError as error:
    print(type(error).__name__)
with environment.snapshot() as snapshot:
    print(number, len(list(snapshot.scan(b"row", b"rox"))))
try:
    environment.begin()
except EnvironmentFailed:
    print("refused")
"""


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def write(environment: Environment, key: bytes, value: bytes) -> None:
    txn = environment.begin()
    txn.put(key, value)
    txn.commit(sync=True)


def contents(environment: Environment) -> dict[bytes, bytes]:
    with environment.snapshot() as snapshot:
        return dict(snapshot.scan(b"\0", b"\xff"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node"


def test_it_says_that_it_is_durable(path):
    environment = open_lmdb(path)
    assert environment.durable
    environment.close()


def test_what_a_killed_process_has_committed_is_there(path):
    """Runs ten processes, each of which is killed after some commits. No reported commit is lost or
    torn.
    """
    reported = 0
    for life in range(10):
        with python(WRITER, path, reported) as process:
            assert process.stdout is not None
            for _ in range(3 + life * 5):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            reported = max([reported, *map(int, process.stdout.read().split("\n")[:-1])])
        environment = open_lmdb(path)
        rows = contents(environment)
        environment.close()
        assert rows[b"low"] == rows[b"zenith"]
        found = int(rows[b"low"])
        assert reported <= found <= reported + 1
        reported = found
        value = rows.get(b"row%d" % (found % 50))
        expected = bytes([found % 256]) * (found * 997 % 20_000)
        assert value == (None if found * 7 % 50 == found % 50 else expected)


def test_a_second_process_is_refused_until_the_first_is_gone(path):
    with python(HOLDER, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        locked = re.escape(f"{path} is in use by a test (pid {holder.pid})")
        with pytest.raises(StorageLocked, match=f"^{locked}$"):
            open_lmdb(path)
        with pytest.raises(StorageLocked, match=f"^{locked}$"):
            check_unlocked(path)
        holder.communicate()
    check_unlocked(path)
    open_lmdb(path).close()


def test_a_lock_of_an_unnamed_process(path):
    environment = open_lmdb(path)
    (path / "querator.lock").write_bytes(b"")
    with pytest.raises(StorageLocked, match=r"is in use by another process$"):
        open_lmdb(path)
    environment.close()


def test_a_check_of_the_lock_makes_nothing(path):
    check_unlocked(path)
    assert not path.exists()


def test_a_limit_of_the_address_space_is_named(path):
    with python(MEAGRE, path) as process:
        assert process.stdout is not None
        said = process.stdout.read()
    assert "data.new: Cannot allocate memory" in said
    assert "maps 1 TiB of addresses" in said
    assert "ulimit -v unlimited" in said


def test_the_same_process_is_refused_too_until_it_closes(path):
    environment = open_lmdb(path)
    with pytest.raises(StorageLocked):
        open_lmdb(path)
    write(environment, b"a", b"1")
    environment.close()
    environment = open_lmdb(path)
    assert contents(environment) == {b"a": b"1"}
    environment.close()


def test_a_directory_that_cannot_be_made_is_a_failure(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentFailed):
        open_lmdb(tmp_path / "file" / "node")


def test_a_data_file_of_something_else_is_refused(path):
    path.mkdir()
    (path / "data.mdb").write_bytes(b"not a database, but quite long " * 1_000)
    with pytest.raises(StorageCorrupt):
        open_lmdb(path)
    # The refusal leaves no lock behind.
    (path / "data.mdb").unlink()
    open_lmdb(path).close()


def test_an_empty_data_file_is_refused(path):
    """An empty file is never taken for a new environment: it had contents, which are lost."""
    open_lmdb(path).close()
    os.truncate(path / "data.mdb", 0)
    with pytest.raises(StorageCorrupt, match="empty"):
        open_lmdb(path)


def test_a_data_file_has_room_from_the_beginning_and_only_then(path):
    open_lmdb(path, quota_bytes=100 * MIB, room_bytes=MIB).close()
    data = path / "data.mdb"
    assert data.stat().st_size == MIB
    # The space is allocated on disk; the file has no hole.
    assert data.stat().st_blocks * 512 >= MIB
    environment = open_lmdb(path, quota_bytes=100 * MIB, room_bytes=2 * MIB)
    write(environment, b"row", bytes(10_000))
    assert environment.usage().used_bytes < MIB // 4
    environment.close()
    assert data.stat().st_size == MIB
    assert check_pages(path) == []


def test_room_is_a_small_part_of_a_small_quota(path):
    open_lmdb(path, quota_bytes=16 * MIB, room_bytes=64 * MIB).close()
    assert (path / "data.mdb").stat().st_size == MIB


def test_what_is_written_while_the_disk_is_asked_stays_counted(path, monkeypatch):
    """Another thread asks it: the raft thread writes meanwhile."""

    def small_disk(_: object) -> os.statvfs_result:
        if written:
            written.pop()()
        return os.statvfs_result((4096, 4096, 10**6, 0, 16 * MIB // 4096, 9, 9, 9, 0, 255))

    written: list[Callable[[], None]] = []
    monkeypatch.setattr(os, "statvfs", small_disk)
    environment = open_lmdb(path, quota_bytes=100 * MIB)
    monkeypatch.setattr("querator.storage.lmdb_environment.DISK_CHECK_SECONDS", 0.0)
    before = environment.usage().free_bytes
    written.append(lambda: write(environment, b"row", bytes(MIB)))
    assert environment.usage().free_bytes <= before - MIB
    assert environment.usage().free_bytes > before - MIB // 2, "it is in the next figure"
    environment.close()


def test_room_in_the_file_counts_as_free(path, monkeypatch):
    free = 16 * MIB

    def small_disk(_: object) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 10**6, 0, free // 4096, 9, 9, 9, 0, 255))

    open_lmdb(path, quota_bytes=100 * MIB, room_bytes=MIB).close()
    monkeypatch.setattr(os, "statvfs", small_disk)
    environment = open_lmdb(path, quota_bytes=100 * MIB)
    usage = environment.usage()
    assert usage.free_bytes == free + MIB - usage.used_bytes
    environment.close()


RESERVE = 100 * MIB // 8
"""Of a quota of 100 MiB."""


@pytest.mark.parametrize(
    ("kept", "free", "part", "least"),
    [
        # The file has grown until the disk had a little less than the reserve, and was emptied.
        (0, RESERVE - MIB, 1, 0),
        (0, RESERVE // 4, 1, 0),
        (0, RESERVE // 4 - MIB, 0, RESERVE // 4),
        (20, RESERVE - MIB, 1, 0),
        (20, RESERVE * 3 // 4, 1, 0),
        (20, RESERVE * 3 // 4 - MIB, 0.5, RESERVE * 3 // 4),
        (20, RESERVE // 2, 0.5, RESERVE * 3 // 4),
        (20, RESERVE // 2 - MIB, 0, RESERVE * 3 // 4),
    ],
)
def test_free_pages_of_the_file_count_on_a_disk_that_is_nearly_full(
    path, monkeypatch, kept, free, part, least
):
    """Otherwise a disk that was full once would be full for ever: the file never shrinks. `part` of
    them counts. `least`: what the disk must have free so that all count; 0: it has.
    """

    def small_disk(_: object) -> os.statvfs_result:
        return os.statvfs_result((1024, 1024, 10**6, 0, free // 1024, 9, 9, 9, 0, 255))

    environment = open_lmdb(path, quota_bytes=100 * MIB)
    for number in range(40):
        write(environment, b"row%d" % number, bytes(MIB))
    txn = environment.begin()
    for number in range(kept, 40):
        txn.delete(b"row%d" % number)
    txn.commit(sync=True)
    monkeypatch.setattr(os, "statvfs", small_disk)
    monkeypatch.setattr("querator.storage.lmdb_environment.DISK_CHECK_SECONDS", 0.0)
    usage = environment.usage()
    inside = usage.free_bytes - free + usage.idle_bytes
    assert usage.reserve_bytes == RESERVE
    assert inside > 15 * MIB
    assert usage.free_bytes == free + int(part * inside)
    assert usage.idle_until_bytes == least
    environment.close()


def test_a_disk_that_is_nearly_full_gives_little_room(path, monkeypatch):
    def small_disk(_: object) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 10**6, 0, MIB * 16 // 4096, 9, 9, 9, 0, 255))

    monkeypatch.setattr(os, "statvfs", small_disk)
    open_lmdb(path, room_bytes=64 * MIB).close()
    assert (path / "data.mdb").stat().st_size == MIB


def test_a_data_file_that_was_not_finished_is_made_anew(path):
    path.mkdir()
    (path / "data.new").write_bytes(b"half")
    open_lmdb(path).close()
    assert {entry.name for entry in path.iterdir()} == {"data.mdb", "lock.mdb", "querator.lock"}


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_data_file_that_is_cut_short_is_refused(path, kept):
    environment = open_lmdb(path)
    for number in range(50):
        write(environment, b"row%d" % number, bytes(10_000))
    environment.close()
    data = path / "data.mdb"
    with data.open("r+b") as file:
        file.truncate(int(data.stat().st_size * kept))
    with pytest.raises(StorageCorrupt, match="cut short"):
        open_lmdb(path)


def mostly_free_file(path: Path) -> Path:
    """A data file whose length alone does not reveal a cut: the pages in use lie at both ends."""
    environment = open_lmdb(path)
    for number in range(50):
        write(environment, b"row%d" % number, bytes(10_000))
    txn = environment.begin()
    for number in range(50):
        txn.delete(b"row%d" % number)
    attachments.write(txn, 1, 1, 0, b"1" * 300_000)
    for number in range(500):
        txn.put(b"small%d" % number, b"value" * 10)
    txn.commit(sync=True)
    environment.close()
    assert check_pages(path) == []
    return path / "data.mdb"


@pytest.mark.parametrize("pages", [1, 2, 10, 60])
def test_a_cut_into_a_file_of_mostly_free_pages_shows(path, pages):
    """A cut tree is found when the file is opened, a cut end of a long value by its checksum."""
    data = mostly_free_file(path)
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - pages * 4096)
    with pytest.raises(StorageCorrupt):
        read_all(path)


def read_all(path: Path) -> None:
    environment = open_lmdb(path)
    try:
        with environment.snapshot() as snapshot:
            assert len(list(snapshot.scan(b"small", b"smalm"))) == 500
            assert attachments.read(snapshot, 1, 1, 0) == b"1" * 300_000
    finally:
        environment.close()


def test_a_damaged_page_is_found_by_the_walk(path):
    environment = open_lmdb(path)
    txn = environment.begin()
    for number in range(1_000):
        txn.put(b"row%06d" % number, b"value" * 10)
    txn.commit(sync=True)
    environment.close()
    assert check_pages(path) == []
    with (path / "data.mdb").open("r+b") as file:
        file.seek(5 * 4096)
        file.write(bytes(4096))
    assert check_pages(path) != []


@pytest.mark.parametrize("size", [1, 40, 3_000])
@pytest.mark.parametrize("place", range(3))
def test_a_flipped_bit_in_a_row_is_never_served(path, size, place):
    """The bit is in the key, or at the beginning or end of the value. A scan of the row fails."""
    environment = open_lmdb(path)
    txn = environment.begin()
    for number in range(100):
        txn.put(b"key %03d" % number, b"value %03d" % number + bytes(size))
    txn.commit(sync=True)
    environment.close()
    data = (path / "data.mdb").read_bytes()
    position = data.rindex((b"key 050", b"value 050", b"value 050")[place])
    position += (6, 0, 8 + size)[place]
    with (path / "data.mdb").open("r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ 1]))
    environment = open_lmdb(path)
    with environment.snapshot() as snapshot:
        with pytest.raises(StorageCorrupt, match="checksum"):
            list(snapshot.scan(b"key", b"kez"))
        if place:
            with pytest.raises(StorageCorrupt, match="checksum"):
                snapshot.get(b"key 050")
        assert snapshot.get(b"key 060") == b"value 060" + bytes(size)
    environment.close()


def test_a_full_map_refuses_and_loses_nothing(path):
    """Long values of odd sizes leave gaps, so the map fills before the quota does."""
    environment = open_lmdb(path, map_bytes=1 << 20)
    kept: dict[bytes, bytes] = {}
    refusals = 0
    for number in range(300):
        key, value = b"row%d" % (number % 40), bytes(number * 7_919 % 60_000)
        try:
            write(environment, key, value)
            kept[key] = value
        except EnvironmentFull:
            refusals += 1
            txn = environment.begin()
            assert txn.delete(min(kept))
            txn.commit(sync=True)
            del kept[min(kept)]
        assert contents(environment) == kept
    assert refusals > 0
    environment.close()
    environment = open_lmdb(path, map_bytes=1 << 20)
    assert contents(environment) == kept
    environment.close()


def test_a_full_disk_stops_the_environment_and_loses_nothing(path):
    """A file size limit takes the place of the full disk: the write is cut short, then refused."""
    with python(LIMITED, path) as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    error, counts, refused = output.split("\n")[:3]
    assert error in ("EnvironmentFull", "EnvironmentFailed")
    committed, read = map(int, counts.split())
    assert committed == read > 20
    assert refused == "refused"
    environment = open_lmdb(path)
    assert len(contents(environment)) == committed
    write(environment, b"more", bytes(1 << 20))
    environment.close()


def test_a_commit_leaves_the_switch_interval_as_it_was(path):
    environment = open_lmdb(path)
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_199)
    try:
        for number in range(20):
            write(environment, b"a", b"%d" % number)
        assert sys.getswitchinterval() == pytest.approx(0.000_199, abs=1e-9)
    finally:
        sys.setswitchinterval(before)
        environment.close()


BRANCH_PAGES_AT = 102
"""Offset in a meta page: second most significant byte of the tree's number of branch pages."""


def damage_meta_pages(path: Path) -> None:
    """Makes both meta pages count more branch pages than the file has."""
    with (path / "data.mdb").open("r+b") as file:
        for page in (0, 4_096):
            file.seek(page + BRANCH_PAGES_AT)
            file.write(b"\x01")


def test_a_damaged_meta_page_is_told_as_such_when_it_is_opened(tmp_path: Path):
    environment = open_lmdb(tmp_path)
    put(environment, b"key", b"value")
    environment.close()
    damage_meta_pages(tmp_path)
    with pytest.raises(StorageCorrupt, match="meta page"):
        open_lmdb(tmp_path)


def test_a_meta_page_that_is_damaged_under_a_node_is_told_as_such(tmp_path: Path):
    environment = open_lmdb(tmp_path)
    put(environment, b"key", b"value")
    damage_meta_pages(tmp_path)
    # The contents of the damaged page become known with the next commit.
    put(environment, b"another", b"value")
    with pytest.raises(StorageCorrupt, match="meta page"):
        put(environment, b"and another", b"value")
    with pytest.raises(StorageCorrupt, match="meta page"):
        environment.usage()
    environment.close()


def put(environment: Environment, key: bytes, value: bytes) -> None:
    txn = environment.begin()
    txn.put(key, value)
    txn.commit(sync=True)
