"""The SDK in programs that fork: each child produces and consumes, or is refused at once."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from querator import Client
from tests.integration.processes import server

WAIT_SECONDS = 90
WORKERS = 4
_NOTE_OF_GRPC = "skipping fork() handlers"
"""Part of the line that gRPC prints at a fork while it is in use."""
METHODS = ("fork", "forkserver", "spawn")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with server(tmp_path_factory.mktemp("node") / "data") as process:
        yield process.address


@pytest.fixture
async def queue(address: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A queue for the test alone."""
    async with asyncio.timeout(WAIT_SECONDS):
        name = re.sub(r"\W", "-", request.node.name).strip("-")
        async with Client(address) as client:
            await client.create_queue(name)
        yield name


@asynccontextmanager
async def _program(
    *command: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program that leads a process group, which is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _succeeds(*command: str, environment: Mapping[str, str] | None = None) -> None:
    async with _program(*command, environment=environment) as process:
        _, err = await process.communicate()
    said = "".join(line for line in err.decode().splitlines(True) if _NOTE_OF_GRPC not in line)
    assert (process.returncode, said) == (0, "")


async def _case(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    program = ("-m", "tests.integration.forking_programs")
    await _succeeds(*program, *arguments, environment=environment)


@pytest.mark.parametrize("method", METHODS)
async def test_multiprocessing(address, queue, method):
    await _case("processes", address, queue, method)


@pytest.mark.parametrize("method", METHODS)
async def test_process_pool_executor(address, queue, method):
    await _case("pool", address, queue, method)


async def test_a_client_of_the_parent_is_refused_in_the_child(address, queue):
    await _case("used", address, queue)


async def test_the_parent_has_closed_its_client(address, queue):
    await _case("closed", address, queue)


async def test_a_client_that_is_not_used_before_the_fork_is_used_in_the_children(address, queue):
    await _case("unused", address, queue)


async def test_an_async_client_on_the_loop_that_forks(address, queue):
    await _case("asynchronous", address, queue)


async def test_an_async_client_whose_loop_has_ended(address, queue):
    await _case("left_open", address, queue)


async def test_a_node_in_the_process_that_forks(address, queue):
    await _case("node", address, queue)


async def test_a_process_that_a_handler_has_forked_is_ended_by_a_signal(address, queue):
    await _case("ended", address, queue)


@pytest.mark.parametrize("support", ["0", "1"])
async def test_the_fork_support_of_grpc_changes_nothing(address, queue, support):
    environment = {"GRPC_ENABLE_FORK_SUPPORT": support}
    await _case("processes", address, queue, "fork", environment=environment)


async def _completed(address: str, queue: str) -> int:
    async with Client(address) as client:
        return (await client.stats(queue)).total.completed


async def test_gunicorn_with_preloaded_application(address, queue):
    environment = {"QUERATOR_TEST_ADDRESS": address, "QUERATOR_TEST_QUEUE": queue}
    command = ("-m", "gunicorn", "-c", "python:tests.integration.forked_site")
    async with _program(*command, "tests.integration.forked_site:app", environment=environment) as (
        process
    ):
        assert process.stderr is not None
        said = ""
        while not (listening := re.search(r"Listening at: http://([\d.]+):(\d+)", said)):
            line = await process.stderr.readline()
            assert line, said
            said += line.decode()
        host, port = listening.groups()
        pids = await asyncio.gather(*(_get(host, int(port)) for _ in range(WORKERS)))
        assert len(set(pids)) == WORKERS
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0
    assert await _completed(address, queue) == WORKERS


async def _get(host: str, port: int) -> str:
    """The body of the answer to a request of its own connection."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.0 200 OK"), answer
    return answer.rpartition("\n")[2]


async def test_celery_with_forked_workers(address, queue, tmp_path):
    folder = tmp_path / "tasks"
    folder.mkdir()
    environment = {
        "QUERATOR_TEST_ADDRESS": address,
        "QUERATOR_TEST_QUEUE": queue,
        "QUERATOR_TEST_FOLDER": str(folder),
    }
    await _succeeds("-m", "tests.integration.forked_tasks", environment=environment)
    command = ("-m", "celery", "-A", "tests.integration.forked_tasks", "worker", "-l", "WARNING")
    options = ("--pool=prefork", f"--concurrency={WORKERS}", "--without-gossip", "--without-mingle")
    async with _program(*command, *options, environment=environment) as process:
        while await _completed(address, queue) < WORKERS:
            assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0
