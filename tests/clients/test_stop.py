"""A worker process ends well by SIGTERM and Ctrl-C: no item stays leased, nothing is printed."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from querator import Client
from tests.integration.processes import server

WAIT_SECONDS = 60
ITEMS = 5


@pytest.fixture
async def address(tmp_path) -> AsyncIterator[str]:
    async with server(tmp_path / "data") as process, asyncio.timeout(WAIT_SECONDS):
        async with Client(process.address) as client:
            await client.create_queue("q", lease_timeout=None)
            await client.produce("q", *(b"%d" % n for n in range(ITEMS)))
        yield process.address


@asynccontextmanager
async def _worker(kind: str, address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.clients.stopped_worker",
        kind,
        address,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"began\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _counts(address: str) -> tuple[int, int, int]:
    """How many items are ready, leased and completed."""
    async with Client(address) as client:
        total = (await client.stats("q")).total
        return total.ready, total.leased, total.completed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("kind", ["async", "sync", "loop", "sync-loop"])
async def test_a_signal_lets_the_handler_finish_and_gives_the_rest_back(address, kind, number):
    async with _worker(kind, address) as process:
        process.send_signal(number)
        out, err = await process.communicate(b"\n")
    assert (process.returncode, out, err.decode()) == (0, b"ended\n", "")
    assert await _counts(address) == (ITEMS - 1, 0, 1)
    async with Client(address) as client:
        # A stopping consumer with free credit does not lease its released items again.
        assert (await client.stats("q")).total.released == ITEMS - 1


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_second_signal_gives_the_item_of_the_handler_back(address, kind):
    async with _worker(kind, address) as process:
        process.send_signal(signal.SIGTERM)
        async with Client(address) as client:
            # The worker gives its waiting items back when it has noticed the first signal.
            while (await client.stats("q")).total.leased > 1:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        # A line before that would let the handler finish in time.
        said = await process.stderr.readline()
        out, err = await process.communicate(b"\n" if kind == "async" else None)
    assert (process.returncode, out, err) == (0, b"ended\n", b"")
    assert said.startswith(b"1 handler did not end in time: its item goes back: 0-")
    assert await _counts(address) == (ITEMS, 0, 0)
