"""Flipped bits and a cut data file: a node tells, refuses, or serves what is right; never else."""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import pytest

from querator.storage.lmdb_environment import open_lmdb
from tests.integration.processes import ServerProcess, run, server

FLIPS = 6
ITEMS = 200
Served = set[tuple[str, str, int]]


@dataclass(frozen=True, slots=True)
class Filled:
    """Data of a node that has stopped, and what a consumer gets of it. The pages in use take
    `used_bytes` of its file, wherever they lie in it; the others are free.
    """

    data_dir: Path
    whole: Served
    used_bytes: int


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    room = tmp_path_factory.mktemp("damage")
    asyncio.run(fill(room / "filled"))
    environment = open_lmdb(room / "filled")
    used_bytes = environment.usage().used_bytes
    environment.close()
    shutil.copytree(room / "filled", room / "copy")
    whole = asyncio.run(served(room / "copy"))
    assert whole is not None
    assert len(whole) == 3 * ITEMS - 50
    return Filled(room / "filled", whole, used_bytes)


async def fill(data_dir: Path) -> None:
    """Items in three partitions, some of them leased."""
    lines = b"".join(b"the payload of item %d\n" % n for n in range(ITEMS))
    async with server(data_dir) as process:
        to = ("--address", process.address)
        await run("queue", "create", "mail", "--partitions", "3", *to)
        for _ in range(3):
            await run("produce", "mail", *to, stdin=lines)
        await run("lease", "mail", "--max-items", "50", "--lease-timeout", "1h", *to)
        assert await process.terminate() == 0


@pytest.fixture
def data_dir(filled: Filled, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(filled.data_dir, tmp_path / "data")


async def served(data_dir: Path) -> Served | None:
    """What a consumer gets of a node on the directory; None if the node does not start."""
    process = ServerProcess(data_dir)
    try:
        await process.start()
    except AssertionError:
        return None
    try:
        _, out, _ = await run(
            *("lease", "mail", "--max-items", "1000", "--wait", "2s", "--output", "json"),
            *("--address", process.address),
        )
    finally:
        if process.running:
            await process.kill()
    rows = [msgspec.json.decode(line) for line in out.splitlines()]
    return {(row["id"], row["item"]["payload"], row["attempt"]) for row in rows}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(FLIPS))
async def test_a_flipped_bit_is_never_served(data_dir: Path, filled: Filled, seed: int) -> None:
    random = Random(seed)
    data = bytearray((data_dir / "data.mdb").read_bytes().rstrip(b"\0"))
    position = random.choice([n for n, byte in enumerate(data) if byte])
    data[position] ^= 1 << random.randrange(8)
    with (data_dir / "data.mdb").open("r+b") as file:
        file.write(data)
    found, out, err = await run("verify", "--data-dir", str(data_dir))
    assert "Traceback" not in err
    got = await served(data_dir)
    where = f"bit of byte {position}; verify: {found} {out}{err}"
    assert got is None or got <= filled.whole, where
    assert got == filled.whole or found != 0, where


@pytest.mark.parametrize("kept_bytes", [0, 1, 4096, 8192, None])
async def test_a_file_cut_short_is_refused(
    data_dir: Path, filled: Filled, kept_bytes: int | None
) -> None:
    if kept_bytes is None:
        # With less than what is in use, some of that is gone, wherever it was.
        kept_bytes = filled.used_bytes // 2
    with (data_dir / "data.mdb").open("r+b") as file:
        file.truncate(kept_bytes)
    assert await served(data_dir) is None
    code, _, err = await run("verify", "--data-dir", str(data_dir))
    assert code != 0
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
