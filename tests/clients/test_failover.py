"""Programs in other languages, built with only the proto files, while a node is killed.

README.md describes what they do and what they print.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from querator import Client
from querator.model import limits
from tests.clients.programs import BUILD_S, LANGUAGES, made
from tests.integration.process_cluster import LOOK_S, ProcessCluster, is_well, process_cluster

QUEUE = "work"
RUN_S = 100
UNDER_WAY = 500
"""Number of completed items after which the node is killed."""
LEASE_TIMEOUT = timedelta(hours=1)
"""Nothing lapses: what was in flight through the killed node comes back before."""


class Failover:
    """A running program: its output, line by line."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self._process = process
        self._errors = errors

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise AssertionError(f"it ended with {code}:\n{self._errors.read_text()[-4000:]}")
        return line.decode().strip()

    async def at(self, *addresses: str) -> None:
        """Waits until one of these addresses has answered both of its streams."""
        missing = {"producing to", "consuming from"}
        while missing:
            words, _, address = (await self._line()).rpartition(" ")
            if address in addresses:
                missing.discard(words)

    async def finish(self) -> dict[str, int]:
        """Stops producing. Returns the program's counts when all is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        while not (line := await self._line()).startswith("{"):
            pass
        assert await self._process.wait() == 0, self._errors.read_text()
        return msgspec.json.decode(line, type=dict[str, int])


@asynccontextmanager
async def running(
    language: str, place: Path, addresses: str, errors: Path
) -> AsyncIterator[Failover]:
    with errors.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *LANGUAGES[language].failover,
            addresses,
            QUEUE,
            cwd=place,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
        )
    try:
        yield Failover(process, errors)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ProcessCluster]:
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue(QUEUE, partitions=3, lease_timeout=LEASE_TIMEOUT)
        await cluster.until(_each_leads_one)
        yield cluster


def _each_leads_one(view: dict[str, Any]) -> bool:
    leaders = {one["leader"] for one in view["partitions"] if one["queue"] == QUEUE}
    return leaders == {"a", "b", "c"} and is_well(view)


@pytest.fixture(scope="session", params=LANGUAGES)
def program(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """The language, and where its program is."""
    return request.param, made(request.param)


@pytest.mark.timeout(BUILD_S + RUN_S + 60)
async def test_a_killed_leader_loses_nothing_and_repeats_nothing(
    program: tuple[str, Path], cluster: ProcessCluster, tmp_path: Path
):
    language, place = program
    first, *others = [cluster[name].address for name in "abc"]
    addresses, errors = ",".join([first, *others]), tmp_path / "program.log"
    async with (
        asyncio.timeout(RUN_S),
        Client(",".join(others)) as client,
        running(language, place, addresses, errors) as failover,
    ):
        await failover.at(first)
        while failover.running and (await client.stats(QUEUE)).total.completed < UNDER_WAY:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await cluster["a"].kill()
        await failover.at(*others)
        counts = await failover.finish()
        stats = (await client.stats(QUEUE)).total
    # Counted by the servers, and by the program: it counts each item by its payload.
    assert stats.produced == stats.completed == counts["produced"] == counts["completed"]
    assert (stats.ready, stats.leased, stats.scheduled, stats.lapsed) == (0, 0, 0, 0)
    assert counts["largest"] == limits.PAYLOAD_BYTES_MAX
    # The first request, and the last one that the killed node answered.
    assert counts["repeated"] >= 2
    # Requests that the killed node did not answer.
    assert counts["resent"] >= 1
