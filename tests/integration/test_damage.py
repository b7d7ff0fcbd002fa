"""Flipped bits and a cut data file: a node reports, refuses, or serves correct data;
nothing else.
"""

import asyncio
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random

import lmdb
import msgspec
import pytest
from click.testing import CliRunner

from querator import Client
from querator.cli.verify import verify as verify_command
from querator.client import LeasedItem
from querator.storage.data_file import LMDB_ENGINE
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.tables import ATTACHMENTS, INCOMING, PLACEMENT, STARTS
from tests.integration.bit_flips import flip
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ServerProcess, run, server, verify

FLIPS = 6
ITEMS = 200
Served = set[tuple[str, str, int]]


@dataclass(frozen=True, slots=True)
class Filled:
    """Data of a stopped node, and what a consumer gets from it. The pages in use take `used_bytes`
    of its file, wherever they are in it; the others are free.
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
        await run("queue", "create", "mail", "--dead-queue", "", "--partitions", "3", *to)
        for _ in range(3):
            await run("produce", "mail", *to, stdin=lines)
        await run("lease", "mail", "--max-items", "50", "--lease-timeout", "1h", *to)
        assert await process.terminate() == 0


@pytest.fixture
def data_dir(filled: Filled, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(filled.data_dir, tmp_path / "data")


async def served(data_dir: Path) -> Served | None:
    """What a consumer gets from a node on the directory; None if the node does not start."""
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


def test_verify_finds_a_damaged_row_of_each_table(data_dir: Path) -> None:
    incoming = INCOMING.key(1)
    with lmdb.open(str(data_dir), lib_version=LMDB_ENGINE) as environment:
        with environment.begin() as txn:
            firsts = {key[:1]: (key, value) for key, value in reversed(list(txn.cursor()))}
    assert {STARTS.letter, ATTACHMENTS.letter, PLACEMENT.letter} <= firsts.keys()
    assert verified(data_dir) == ""
    missed = []
    for key, value in (*firsts.values(), (incoming, b"damage")):
        put_raw(data_dir, key, value[:-1] + bytes([value[-1] ^ 1]))
        if not verified(data_dir):
            missed.append(key)
        put_raw(data_dir, key, b"" if key == incoming else value)
    assert missed == []
    assert verified(data_dir) == ""


def put_raw(data_dir: Path, key: bytes, value: bytes) -> None:
    """Writes the row as it is stored in the data file; an empty value deletes it."""
    with (
        lmdb.open(str(data_dir), lib_version=LMDB_ENGINE) as environment,
        environment.begin(write=True) as txn,
    ):
        if value:
            txn.put(key, value)
        else:
            txn.delete(key)


def verified(data_dir: Path) -> str:
    """Findings of `querator verify`."""
    result = CliRunner().invoke(verify_command, ["--data-dir", str(data_dir)])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert "already open" not in result.output
    return result.output if result.exit_code else ""


@pytest.mark.parametrize("kept_bytes", [0, 1, 4096, 8192, None])
async def test_a_file_cut_short_is_refused(
    data_dir: Path, filled: Filled, kept_bytes: int | None
) -> None:
    if kept_bytes is None:
        # Half of the bytes in use: some of them are lost, wherever they were.
        kept_bytes = filled.used_bytes // 2
    with (data_dir / "data.mdb").open("r+b") as file:
        file.truncate(kept_bytes)
    assert await served(data_dir) is None
    code, _, err = await run("verify", "--data-dir", str(data_dir))
    assert code != 0
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


def payload(number: int) -> bytes:
    return b"the payload of item %03d, which is in no other item" % number


@pytest.mark.timeout(180)
@pytest.mark.parametrize("asked", ["leader", "follower"])
async def test_a_payload_that_is_damaged_on_the_leader_comes_from_another_replica(
    tmp_path: Path, asked: str
) -> None:
    wanted = {payload(number) for number in range(40)}
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("q", max_attempts=2, dead_queue="")
            for one in sorted(wanted):
                await client.produce("q", one)
        view = await cluster.until_well()
        [leader] = [one["leader"] for one in view["partitions"] if one["queue"] == "q"]
        for number in (7, 23):
            assert flip(cluster[leader].data_dir, payload(number))
        name = leader if asked == "leader" else next(name for name in "abc" if name != leader)
        got: list[LeasedItem] = []
        async with Client(cluster[name].address) as client:
            while len(got) < len(wanted):
                items = await client.lease("q", max_items=100, wait=timedelta(seconds=30))
                assert items
                got += items
                await client.complete("q", *items)
            assert {item.payload for item in got} == wanted
            assert {item.attempt for item in got} == {1}
            total = (await client.stats("q")).total
            assert (total.completed, total.dead, total.dropped) == (40, 0, 0)
        await cluster[leader].says("damage.repaired")
        await cluster.stop()
        for member in cluster.by_name.values():
            await verify(member.data_dir)


@pytest.mark.timeout(120)
async def test_a_node_alone_delivers_what_is_whole_and_says_what_is_not(tmp_path: Path) -> None:
    async with server(tmp_path / "data") as process, Client(process.address) as client:
        await client.create_queue("q", max_attempts=2, dead_queue="")
        for number in range(10):
            await client.produce("q", payload(number))
        assert flip(tmp_path / "data", payload(4))
        got = await client.lease("q", max_items=100, wait=timedelta(seconds=10))
        assert {item.payload for item in got} == {payload(n) for n in range(10) if n != 4}
        await client.complete("q", *got)
        assert not await client.lease("q", max_items=100, wait=timedelta(seconds=1))
        total = (await client.stats("q")).total
        assert (total.ready, total.leased, total.dead, total.dropped) == (1, 0, 0, 0)
        code, out, _ = await run("cluster", "status", "--address", process.address)
        assert code == 1
        assert "q/0" in out
        assert "1 item in 1 block damaged on node" in " ".join(out.split())
        code, out, _ = await run("stats", "q", "--address", process.address)
        assert "1 not delivered: their payload is damaged" in " ".join(out.split())
        to = ("q", "--address", process.address)
        code, out, err = await run("queue", "give-up", "--dry-run", *to)
        assert code == 0
        assert "there is no other replica" in " ".join(out.split())
        assert "can be given up" in err
        assert (await client.stats("q")).total.ready == 1
        code, out, _ = await run("queue", "give-up", "--yes", *to)
        assert (code, out.splitlines()[-1]) == (0, "Gave up 1 item of q.")
        total = (await client.stats("q")).total
        assert (total.ready, total.dropped, total.given_up) == (0, 1, 1)
        code, out, _ = await run("stats", *to)
        assert "1 given up in all" in " ".join(out.split())
        assert b"damage.given_up" in process.log.read_bytes()
        async with asyncio.timeout(30):
            while (await run("cluster", "status", "--address", process.address))[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest.mark.timeout(180)
async def test_what_is_damaged_on_all_replicas_is_given_up_when_all_have_said_so(
    tmp_path: Path,
) -> None:
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("q", max_attempts=0, dead_queue="")
            for number in range(5):
                await client.produce("q", payload(number))
        view = await cluster.until_well()
        [leader] = [one["leader"] for one in view["partitions"] if one["queue"] == "q"]
        away, other = (name for name in "abc" if name != leader)
        for name in (leader, other):
            for number in (1, 3):
                assert flip(cluster[name].data_dir, payload(number))
        await cluster[away].kill()
        async with Client(cluster[leader].address) as client:
            got = await client.lease("q", max_items=100, wait=timedelta(seconds=30))
            await client.complete("q", *got)
            assert len(got) == 3
            told = await client.give_up_damaged("q")
            assert [(one.lost, one.items) for one in told.blocks] == [(False, 1)] * 2
            assert told.items == 0
            # The block is whole only for item 3.
            assert flip(cluster[away].data_dir, payload(1))
            await cluster[away].start()
            async with asyncio.timeout(60):
                while not (told := await client.give_up_damaged("q")).items:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert told.items == 1
            got = await client.lease("q", max_items=100, wait=timedelta(seconds=30))
            assert [item.payload for item in got] == [payload(3)]
            await client.complete("q", *got)
            total = (await client.stats("q")).total
            assert (total.completed, total.given_up, total.ready) == (4, 1, 0)
