"""The disk that forgets: a program writes, syncs, reports that and is killed; the remains are
checked.

Each program runs in the directory that the disk follows.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.powerloss.disk import Disk, Kept, Loss
from tests.powerloss.journal import NotFollowed

HEAD = """
import mmap, os, shutil, sys, threading
def make(name, data=b"", flags=0):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o644)
    os.write(fd, data)
    return fd
def sync(path="."):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def page(letter, count=1):
    return letter.encode() * 4096 * count
"""
TAIL = """
print("done", flush=True)
sys.stdin.read()
"""
SEEDS = range(40)


class Machine:
    def __init__(self, path: Path, library: Path) -> None:
        self.root = path / "disk"
        self.root.mkdir(parents=True)
        self.disk = Disk(self.root, path / "room", library)

    def run(self, program: str, *lies: str) -> None:
        """Runs the program to its end, then kills it."""
        with subprocess.Popen(
            [sys.executable, "-c", HEAD + program + TAIL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.root,
            env={**os.environ, **self.disk.environment(*lies)},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
            process.send_signal(signal.SIGKILL)

    def lose_power(self, kept: Kept = Kept.NONE, seed: int = 1) -> Loss:
        return self.disk.lose_power(kept, Random(seed))

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    return Machine(tmp_path, library)


@pytest.fixture
def outcomes(tmp_path: Path, library: Path) -> Callable[[str, Kept], list[dict[str, bytes]]]:
    """Results of different power losses of one program."""

    def run(program: str, kept: Kept) -> list[dict[str, bytes]]:
        found = []
        for seed in SEEDS if kept is Kept.SOME else range(1):
            machine = Machine(tmp_path / f"{kept.value}{seed}", library)
            machine.run(program)
            machine.lose_power(kept, seed)
            found.append(machine.files())
        return found

    return run


SYNCED = 'f = make("a", page("s", 2)); os.fsync(f); sync()\n'
SYNCS = {
    "fsync": "os.fsync(f)",
    "fdatasync": "os.fdatasync(f)",
    "another descriptor": 'g = os.open("a", os.O_RDONLY); os.fsync(g)',
    "a copy of the descriptor": "g = os.dup(f); os.close(f); os.fsync(g)",
}


@pytest.mark.parametrize("sync", SYNCS)
def test_what_was_synced_is_there(machine, sync):
    machine.run(SYNCED + f'os.pwrite(f, page("n"), 4096); {SYNCS[sync]}\n')
    loss = machine.lose_power()
    assert machine.files() == {"a": b"s" * 4096 + b"n" * 4096}
    assert loss == Loss()


WRITES = {
    "write": 'os.lseek(f, 4096, 0); os.write(f, page("n"))',
    "pwrite": 'os.pwrite(f, page("n"), 4096)',
    "writev": 'os.lseek(f, 4096, 0); os.writev(f, [b"n", b"n" * 4095])',
    "pwritev": 'os.pwritev(f, [page("n")], 4096)',
    "of a thread": """
t = threading.Thread(target=lambda: os.pwrite(f, page("n"), 4096)); t.start(); t.join()""",
    "through a copy": 'g = os.dup(f); os.close(f); os.pwrite(g, page("n"), 4096)',
    "of a file object": """
with open("a", "r+b") as file: file.seek(4096); file.write(page("n"))""",
}


@pytest.mark.parametrize("write", WRITES)
def test_what_was_not_synced_is_not_there(machine, write):
    machine.run(SYNCED + WRITES[write])
    loss = machine.lose_power()
    assert machine.files() == {"a": b"s" * 8192}
    assert (loss.pages, loss.pages_lost) == (1, 1)


@pytest.mark.parametrize("write", WRITES)
def test_all_may_be_there(machine, write):
    machine.run(SYNCED + WRITES[write])
    machine.lose_power(Kept.ALL)
    assert machine.files() == {"a": b"s" * 4096 + b"n" * 4096}


def test_a_short_write_counts_as_far_as_it_went(machine):
    machine.run(
        SYNCED
        + """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
h = make("full"); os.fsync(h); sync()
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
assert os.pwrite(h, bytes(10_000), 49_000) == 1_000
try:
    os.pwrite(h, b"beyond", 60_000)
except OSError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.fsync(h)
"""
    )
    machine.lose_power()
    assert machine.files() == {"a": b"s" * 8192, "full": bytes(50_000)}


def test_a_failed_sync_keeps_nothing(machine):
    machine.run('f = make("a", b"x"); sync(); os.close(f)\ntry: os.fsync(f)\nexcept OSError: pass')
    machine.lose_power()
    assert machine.files() == {"a": b""}


def test_a_synchronous_descriptor_keeps_its_writes_and_no_others(machine):
    machine.run(
        SYNCED
        + 'os.pwrite(f, page("n"), 0); g = os.open("a", os.O_WRONLY | os.O_DSYNC)\n'
        + 'os.pwrite(g, b"now", 4096); os.pwrite(f, page("x"), 8192)\n'
    )
    machine.lose_power()
    assert machine.files() == {"a": b"s" * 4096 + b"now" + b"s" * 4093}


def test_append_and_growth(machine):
    machine.run('f = make("a", b"one ", os.O_APPEND); os.fsync(f); sync()\nos.write(f, b"two")')
    machine.lose_power()
    assert machine.files() == {"a": b"one "}
    machine.run('f = os.open("a", os.O_WRONLY | os.O_APPEND)\nos.write(f, b"two"); os.fsync(f)')
    machine.lose_power()
    assert machine.files() == {"a": b"one two"}


def test_lengths(machine):
    machine.run(
        SYNCED
        + 'os.ftruncate(f, 100)\ng = make("b", b"x" * 10); os.posix_fallocate(g, 0, 20)\n'
        + 'os.fsync(g); os.truncate("b", 5); sync()\n'
    )
    machine.lose_power()
    assert machine.files() == {"a": b"s" * 8192, "b": b"x" * 10 + bytes(10)}
    machine.run('os.truncate("a", 100); os.truncate("a", 4097); sync("a")')
    machine.lose_power()
    assert machine.files()["a"] == b"s" * 100 + bytes(3997)


def test_a_name_is_there_when_its_directory_was_synced(machine):
    machine.run(
        'f = make("a", b"1"); os.fsync(f)\nsync(); g = make("b", b"2"); os.fsync(g)\n'
        'os.mkdir("d"); h = make("d/c", b"3"); os.fsync(h); sync("d")\n'
    )
    machine.lose_power()
    assert machine.files() == {"a": b"1"}
    assert not (machine.root / "d").exists()


def test_renames_and_removals(machine):
    machine.run(
        'f = make("a", b"1"); os.fsync(f); g = make("b", b"2"); os.fsync(g); sync()\n'
        'os.rename("a", "c"); os.unlink("b")\n'
    )
    machine.lose_power()
    assert machine.files() == {"a": b"1", "b": b"2"}
    machine.run('os.rename("a", "b"); sync(); os.mkdir("d"); os.rmdir("d")')
    machine.lose_power()
    assert machine.files() == {"b": b"1"}


def test_a_name_with_its_file_replaced(machine):
    """Written again under another name and renamed: one or the other, never a mix."""
    machine.run('f = make("a", b"old"); os.fsync(f); sync()')
    machine.lose_power()
    replace = 'f = make("new", b"whole"); os.fsync(f); os.rename("new", "a")\n'
    machine.run(replace)
    machine.lose_power()
    assert machine.files() == {"a": b"old"}
    machine.run(replace + "sync()")
    machine.lose_power()
    assert machine.files() == {"a": b"whole"}


def test_what_is_kept_by_chance(outcomes):
    """Pages come one by one, as any of their versions, torn at sectors, and in any order."""
    found = outcomes(
        SYNCED + 'os.pwrite(f, page("n"), 0); os.pwrite(f, page("m"), 0)\n'
        'os.pwrite(f, page("n", 2), 4096)\n',
        Kept.SOME,
    )
    contents = [files["a"] for files in found]
    assert {len(data) for data in contents} == {8192, 12288}
    firsts = {data[:4096] for data in contents}
    assert {b"s" * 4096, b"n" * 4096, b"m" * 4096} < firsts, "versions, and torn pages"
    for data in contents:
        for start in range(0, len(data), 512):
            assert len(set(data[start : start + 512])) == 1, "a sector is whole"
    assert any(data[:4096] == b"s" * 4096 and b"n" in data[4096:] for data in contents)
    assert any(data[8192:] == bytes(4096) for data in contents), "a longer file with a hole"


def test_names_are_kept_by_chance(outcomes):
    found = outcomes(SYNCED + 'make("b"); make("c")\n', Kept.SOME)
    assert {frozenset(files) for files in found} == {
        frozenset("a"),
        frozenset("ab"),
        frozenset("abc"),
    }


@pytest.mark.parametrize("cut_bytes", [1, 32])
def test_a_sync_in_flight_keeps_any_part(tmp_path, library, cut_bytes):
    """Killed between a write to a synchronous descriptor and its end: the journal ends there, or
    within the record of the end, which has 32 bytes.
    """
    found = set()
    for seed in SEEDS:
        machine = Machine(tmp_path / str(seed), library)
        machine.run(
            SYNCED + 'g = os.open("a", os.O_WRONLY | os.O_DSYNC); os.pwrite(g, page("n"), 0)'
        )
        journal = tmp_path / str(seed) / "room" / "journal"
        os.truncate(journal, journal.stat().st_size - cut_bytes)
        machine.lose_power(Kept.SOME, seed)
        found.add(machine.files()["a"][:4096])
    assert {b"s" * 4096, b"n" * 4096} < found


def test_lies(machine):
    machine.run(SYNCED)
    machine.lose_power()
    machine.run('f = os.open("a", os.O_RDWR); os.pwrite(f, b"x", 0); os.fsync(f)', "fsync")
    machine.lose_power()
    machine.run('f = os.open("a", os.O_RDWR | os.O_SYNC); os.pwrite(f, b"x", 0)', "dsync")
    machine.lose_power()
    machine.run('f = make("b", b"x"); os.fsync(f); sync()', "directory")
    machine.lose_power()
    assert machine.files() == {"a": b"s" * 8192}


NOT_FOLLOWED = {
    "mapping": "f = make('a', bytes(10)); mmap.mmap(f, 10)",
    "renames between directories": "os.mkdir('d'); make('a'); os.rename('a', 'd/a')",
    "renames out": "make('a'); os.rename('a', '../b')",
    "links": "make('a'); os.link('a', 'b')",
    "symbolic links": "os.symlink('a', 'b')",
    "sendfile": "make('a', b'x' * 10); shutil.copyfile('a', 'b')",
    "no name": "os.open('.', os.O_RDWR | os.O_TMPFILE)",
}


@pytest.mark.parametrize("doing", NOT_FOLLOWED)
def test_what_cannot_be_followed_is_an_error(machine, doing):
    machine.run(NOT_FOLLOWED[doing])
    with pytest.raises(NotFollowed):
        machine.lose_power()


def test_a_table_that_is_mapped_need_not_survive(machine):
    machine.run(
        "f = make('lock.mdb'); os.ftruncate(f, 10); os.fsync(f); sync()\n"
        "m = mmap.mmap(f, 10); m[:4] = b'data'; m.flush()"
    )
    machine.lose_power()
    assert machine.files() == {"lock.mdb": bytes(10)}


def test_children_and_files_elsewhere_do_not_confuse_it(machine):
    """Descriptors are reused: by sockets, files outside, and by children of this process."""
    machine.run(
        SYNCED
        + """
import subprocess
subprocess.run([sys.executable, "-c", "import os; os.closerange(3, 50)"], close_fds=False)
os.pwrite(f, b"kept", 0); os.fsync(f); os.close(f)
r, w = os.pipe(); os.write(w, b"into the pipe")
out = os.open("../outside", os.O_RDWR | os.O_CREAT); os.write(out, b"elsewhere")
if os.fork() == 0:
    g = os.open("a", os.O_WRONLY); os.pwrite(g, b"CHILD", 4096); os.fsync(g); os._exit(0)
os.wait()
"""
    )
    machine.lose_power()
    assert machine.files() == {"a": b"kept" + b"s" * 4092 + b"CHILD" + b"s" * 4091}
