"""`querator worker` as processes of their own, against a node in memory."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import click
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from querator import Client, Node
from querator.cli import querator
from querator.client import Item, ItemState
from querator.worker.metrics import WorkerMetrics
from tests.integration.worker_process import BOUND_S, TASKS, worker_process
from tests.unit.client.fake_node import until

MAIL = ("--queue", "mail")
TWO = (*MAIL, "--processes", "2")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Node(memory=True) as node, node.client() as client:
        await client.create_queue("mail")
        yield client


async def states(client: Client) -> list[tuple[ItemState, int]]:
    return [(item.state, item.attempt) async for item in client.peek("mail")]


async def test_it_handles_what_is_there(client: Client, tmp_path: Path):
    await client.produce("mail", b"a", b"reject", b"raise")
    arguments = ("tasks:handle", *MAIL, "--until-empty", "--retry-delay=1h", "--retry-delay-max=1h")
    async with worker_process(tmp_path, client.address, *arguments, "--name=mailer") as worker:
        assert await worker.ended() == 0
    assert [line.split()[:2] for line in worker.output] == [["handled", "a"]]
    log = "\n".join(worker.log)
    assert "Worker mailer of mail begins: async handler, concurrency 8" in log
    assert "Item 0-2 of mail, attempt 1, is rejected: not wanted" in log
    assert "Item 0-3 of mail, attempt 1, failed (ValueError) and is retried in" in log
    assert "ValueError: no address" in log
    assert "Worker mailer of mail ended: 1 completed, 1 retried, 1 rejected" in log


@pytest.mark.parametrize("processes", [(), ("--processes", "3")], ids=["one", "several"])
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere:handle", *MAIL), 2, "There is no module 'nowhere'"),
        (("tasks:handel", *MAIL), 2, "Module 'tasks' has no 'handel'. Did you mean 'handle'?"),
        (("tasks:TASKS", *MAIL), 2, "Module 'tasks' has no 'TASKS'."),
        (("tasks:os", *MAIL), 2, "tasks:os is of type module, which cannot be called."),
        (("tasks:two", *MAIL), 2, "tasks:two(item, database) cannot be called with one argument"),
        (("tasks:handle", *MAIL, "--reject-on=Eror"), 2, "has no 'Eror'. Did you mean"),
        (
            ("tasks:handle", "--queue=post"),
            3,
            "There is no queue post. Create it with: querator queue create post, or let the "
            "worker do it with --create.",
        ),
    ],
)
async def test_what_cannot_begin_is_reported_once(
    client: Client,
    tmp_path: Path,
    processes: tuple[str, ...],
    arguments: tuple[str, ...],
    code: int,
    words: str,
):
    async with worker_process(tmp_path, client.address, *arguments, *processes) as worker:
        assert await worker.ended() == code
    assert [line for line in worker.log if line.startswith("Error: ")] == [
        line for line in worker.log if words in line
    ]
    assert "\n".join(worker.log).count(words) == 1


async def test_a_module_that_fails_is_shown_with_its_traceback(client: Client, tmp_path: Path):
    (tmp_path / "tasks.py").write_text("import nowhere_installed\n")
    async with worker_process(tmp_path, client.address, "tasks:handle", *MAIL) as worker:
        assert await worker.ended() == 2
    assert any("tasks.py" in line for line in worker.log)
    assert worker.log[-1] == (
        "Error: Module 'tasks' cannot be imported: ModuleNotFoundError: No module named "
        "'nowhere_installed'"
    )


async def test_it_makes_a_queue_when_asked(client: Client, tmp_path: Path):
    arguments = ("tasks:handle", "--queue=post", "--create", "--until-empty")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        assert await worker.ended() == 0
    assert (await client.get_queue("post")).name == "post"


@pytest.mark.parametrize("arguments", [MAIL, TWO], ids=["one", "several"])
async def test_no_server_ends_it_with_4(tmp_path: Path, arguments: tuple[str, ...]):
    async with worker_process(tmp_path, "127.0.0.1:1", "tasks:handle", *arguments) as worker:
        assert await worker.ended() == 4
    errors = [line for line in worker.log if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "127.0.0.1:1" in errors[0]


@pytest.mark.parametrize("arguments", [MAIL, TWO], ids=["one", "several"])
async def test_two_early_signals_end_it(tmp_path: Path, arguments: tuple[str, ...]):
    # The handler is being loaded when the first one comes: the module does not end by itself.
    (tmp_path / "slow.py").write_text(
        "import sys, threading\nprint('loading', file=sys.stderr, flush=True)\n"
        "threading.Event().wait()\n"
    )
    async with worker_process(tmp_path, "127.0.0.1:1", "slow:handle", *arguments) as worker:
        await worker.said("loading")
        worker.signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            worker.signal(signal.SIGTERM)
        assert await worker.ended() in (0, 143, -signal.SIGTERM)
    assert not [line for line in worker.log if "Traceback" in line]


async def test_two_signals_while_it_connects_end_it(tmp_path: Path):
    # The port accepts connections and never answers, so that the worker waits for the queue.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = (*MAIL, "--request-timeout=15m", "--log-level=debug")
        async with worker_process(tmp_path, address, "tasks:handle", *options) as worker:
            await worker.said("looks for queue mail")
            worker.signal(signal.SIGTERM)
            await worker.said("stops by a signal")
            with contextlib.suppress(ProcessLookupError):
                worker.signal(signal.SIGTERM)
            # The second one may come when the process has given its handling up, and is ending.
            assert await worker.ended() in (0, 143, -signal.SIGTERM)
    assert not [line for line in worker.log if "Traceback" in line]


async def test_a_server_that_was_away_is_found_again(tmp_path: Path):
    async with Node(tmp_path / "data", new=True) as node, node.client() as client:
        address = node.address
        await client.create_queue("mail")
    async with worker_process(tmp_path, address, "tasks:handle", *MAIL) as worker:
        async with Node(tmp_path / "data", listen=address) as node, node.client() as client:
            await client.produce("mail", b"a")
            await worker.printed("handled a")
        await worker.said(f"Lost the connection to {address}")
        async with Node(tmp_path / "data", listen=address) as node, node.client() as client:
            await worker.said(f"Connected to {address} again")
            await client.produce("mail", b"b")
            await worker.printed("handled b")


async def test_payloads_that_cannot_be_decoded_are_dead_letters(client: Client, tmp_path: Path):
    await client.produce("mail", b"{", b'{"n": 7}')
    arguments = ("tasks:decode", *MAIL, "--until-empty", "--on-undecodable=reject")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        assert await worker.ended() == 0
    assert worker.output == ["got 7"]
    async with asyncio.timeout(BOUND_S):
        while not (dead := [item.dead_letter async for item in client.dead_letters("mail")]):
            continue
    assert dead[0] is not None
    assert "item 0-1 (1 bytes) is not JSON" in dead[0].errors[0]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "several"])
async def test_a_second_signal_ends_it_at_once_and_items_go_back(
    client: Client, tmp_path: Path, processes: tuple[str, ...], number: signal.Signals, code: int
):
    arguments = ("tasks:wait_on_thread", *MAIL, "--grace=1h", *processes)
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await worker.said("begins")
        await client.produce("mail", b"a")
        await worker.printed("begun a")
        worker.signal(number)
        await worker.said("stops? by a signal|processes stop")
        worker.signal(number)
        assert await worker.ended() == code
    assert await states(client) == [(ItemState.READY, 0)], worker.log


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "several"])
async def test_after_a_second_signal_it_waits_for_a_node_that_pauses(
    client: Client, tmp_path: Path, processes: tuple[str, ...]
):
    arguments = ("tasks:wait_on_thread", *MAIL, "--grace=1h", *processes)
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await worker.said("begins")
        await client.produce("mail", b"a")
        await worker.printed("begun a")
        worker.signal(signal.SIGTERM)
        await worker.said("stops? by a signal|processes stop")
        worker.signal(signal.SIGTERM)
        # The node is on this event loop. It pauses longer than a blocked worker may.
        time.sleep(3.5)  # noqa: ASYNC251
        assert await worker.ended() == 143
    assert await states(client) == [(ItemState.READY, 0)], worker.log


async def test_after_one_signal_handlers_have_their_grace(client: Client, tmp_path: Path):
    arguments = ("tasks:wait_on_thread", *MAIL, "--grace=100ms")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await client.produce("mail", b"a")
        await worker.printed("begun a")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    assert "1 released" in worker.log[-1]
    assert await states(client) == [(ItemState.READY, 0)], worker.log


async def test_a_handler_that_blocks_the_loop_cannot_keep_the_process(
    client: Client, tmp_path: Path
):
    arguments = ("tasks:block_the_loop", *MAIL)
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await client.produce("mail", b"a")
        await worker.printed("begun a")
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)
        # Both may arrive at once, in any order.
        assert await worker.ended() in (130, 143)


async def test_a_process_that_dies_is_replaced(client: Client, tmp_path: Path):
    arguments = ("tasks:handle", *TWO, "--lease-timeout=1s")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await worker.said("begins")
        await worker.said("begins")
        await client.produce("mail", b"die")
        line = await worker.said("has died")
        assert "ended by SIGKILL. It is replaced in 1 s." in line
        await worker.said("begins")
        await worker.printed("handled die")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    assert worker.log[-1].endswith("has ended: exit code 0")


@pytest.mark.parametrize("code", [0, 2, 3])
async def test_a_process_that_has_begun_is_replaced_whatever_its_exit_code(
    client: Client, tmp_path: Path, code: int
):
    arguments = ("tasks:handle", *TWO, "--lease-timeout=1s")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await worker.said("begins")
        await worker.said("begins")
        await client.produce("mail", b"exit %d" % code)
        line = await worker.said("has died")
        assert f"exit code {code}. It is replaced in 1 s." in line
        await worker.said("begins")
        await worker.printed(f"handled exit {code}")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0


async def test_a_process_that_cannot_begin_again_ends_the_worker(client: Client, tmp_path: Path):
    arguments = ("tasks:handle", *TWO)
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await worker.said("begins")
        await worker.said("begins")
        await client.delete_queue("mail")
        await worker.said("has died after .* exit code 3. It is replaced in 1 s.")
        assert await worker.ended() == 3
    assert any("There is no queue mail." in line for line in worker.log)


async def test_all_processes_take_part_and_metrics_are_those_of_all(client: Client, tmp_path: Path):
    arguments = ("tasks:wait_on_thread", *TWO, "--concurrency=1", "--metrics-port=0")
    async with worker_process(tmp_path, client.address, *arguments, "--grace=0") as worker:
        address = (await worker.said("Metrics are served at")).split()[-1]
        await client.produce("mail", b"a", b"b")
        pids = {(await worker.printed("begun")).split()[-1] for _ in range(2)}
        assert len(pids) == 2
        assert str(worker.pid) not in pids
        text = await asyncio.to_thread(_page, address)
        assert 'querator_worker_items_in_progress{queue="mail"} 2.0' in text
        assert 'querator_worker_items_total{outcome="completed",queue="mail"} 0.0' in text
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0


def _page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=BOUND_S) as page:
        text: str = page.read().decode()
        return text


async def test_metrics_of_one_process(client: Client, tmp_path: Path):
    arguments = ("tasks:handle", *MAIL, "--metrics-port=0")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        address = (await worker.said("Metrics are served at")).split()[-1]
        await client.produce("mail", b"a")
        await worker.printed("handled a")
        async with asyncio.timeout(BOUND_S):
            while 'outcome="completed",queue="mail"} 1.0' not in (
                text := await asyncio.to_thread(_page, address)
            ):
                continue
    # The program's own metrics and those of the process are there, too.
    assert "process_resident_memory_bytes" in text


async def test_a_port_that_is_taken_is_named(client: Client, tmp_path: Path):
    port = client.address.rpartition(":")[2]
    arguments = ("tasks:handle", *MAIL, "--metrics-port", port)
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        assert await worker.ended() == 1
    assert f"Metrics cannot be served at 127.0.0.1:{port}" in worker.log[-1]


async def test_processes_end_after_their_supervisor(client: Client, tmp_path: Path):
    async with worker_process(tmp_path, client.address, "tasks:handle", *TWO) as worker:
        await client.produce("mail", b"a")
        child = int((await worker.printed("handled a")).split()[-1])
        worker.signal(signal.SIGKILL)
        await worker.said("stops by a signal")
        assert await worker.ended() == -signal.SIGKILL
        await until(lambda: not os.path.exists(f"/proc/{child}/cmdline"))


async def test_processes_end_when_the_queue_is_empty(client: Client, tmp_path: Path):
    await client.produce("mail", *(b"%d" % n for n in range(20)))
    arguments = ("tasks:handle", *TWO, "--until-empty")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        assert await worker.ended() == 0
    assert len(worker.output) == 20
    assert (await client.stats("mail")).total.completed == 20


async def test_two_workers_of_one_name_share_the_items_and_no_lease(client: Client, tmp_path: Path):
    arguments = ("tasks:wait_on_thread", *MAIL, "--name=mailer", "--concurrency=1")
    async with (
        worker_process(tmp_path, client.address, *arguments) as one,
        worker_process(tmp_path, client.address, *arguments) as other,
    ):
        await client.produce("mail", b"a", b"b")
        assert await one.printed("begun") != await other.printed("begun")
        # The end of one does not touch the lease of the other.
        one.signal(signal.SIGTERM)
        await one.said("stops by a signal")
        one.signal(signal.SIGTERM)
        assert await one.ended() == 143
        assert sorted(await states(client)) == [(ItemState.READY, 0), (ItemState.LEASED, 1)]


async def test_a_reloading_worker_waits_for_its_server(tmp_path: Path):
    async with Node(memory=True) as node:
        address = node.address
    arguments = ("tasks:handle", *MAIL, "--reload", "--create")
    async with worker_process(tmp_path, address, *arguments) as worker:
        await worker.said("has died after .* exit code 4. It is replaced in 1 s.")
        async with Node(memory=True, listen=address):
            await worker.said("begins")


async def test_changed_files_start_it_again(client: Client, tmp_path: Path):
    tasks = tmp_path / "tasks.py"
    tasks.write_text(TASKS)
    arguments = ("tasks:handle", *MAIL, "--reload")
    async with worker_process(tmp_path, client.address, *arguments) as worker:
        await worker.said("begins")
        written = tasks.stat()
        tasks.write_text(TASKS.replace('"handled"', '"changed"'))
        # As in the same second: byte code of the earlier text would be taken for that of this one.
        os.utime(tasks, ns=(written.st_atime_ns, written.st_mtime_ns))
        await worker.said("Changed: .*tasks.py. The worker starts again.")
        await worker.said("begins")
        await client.produce("mail", b"a")
        await worker.printed("changed a")
        tasks.write_text("def handle(:\n")
        await worker.said("SyntaxError")
        await worker.said("exit code 2. It starts again when a Python file changes.")
        tasks.write_text(TASKS)
        await worker.said("begins")
        await client.produce("mail", b"b")
        await worker.printed("handled b")
        worker.signal(signal.SIGINT)
        assert await worker.ended() == 0


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "worker.md"


def guide_program(name: str) -> str:
    """The block of the guide with this title."""
    found = re.search(rf'^```python title="{name}"\n(.*?)^```$', GUIDE.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


async def test_the_handlers_of_the_guide(client: Client, tmp_path: Path):
    (tmp_path / "tasks.py").write_text(guide_program("tasks.py"))
    await client.produce("mail", b'{"to": "ada@example.org"}', b"{}")
    arguments = (*MAIL, "--concurrency=20", "--until-empty")
    async with worker_process(tmp_path, client.address, "tasks:send_mail", *arguments) as worker:
        assert await worker.ended() == 0
    assert worker.output == ["mail to ada@example.org, attempt 1"]
    assert "is rejected: the order has no address" in "\n".join(worker.log)
    await client.produce("mail", Item(reference="photo.jpg"))
    async with worker_process(tmp_path, client.address, "tasks:resize", *arguments) as worker:
        assert await worker.ended() == 0
    assert worker.output == ["resize photo.jpg"]


async def test_the_program_of_the_guide(client: Client, tmp_path: Path):
    (tmp_path / "tasks.py").write_text(guide_program("tasks.py"))
    program = guide_program("program.py").replace("127.0.0.1:4470", client.address)
    (tmp_path / "program.py").write_text(program)
    await client.produce("mail", b'{"to": "ada@example.org"}')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "program.py", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND_S):
            assert await process.stdout.readline() == b"mail to ada@example.org, attempt 1\n"
            process.send_signal(signal.SIGTERM)
            assert await process.stdout.read() == b"1 completed, 0 retried, 0 rejected\n"
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def test_the_guide_names_only_options_and_metrics_that_there_are():
    command = querator.get_command(click.Context(querator), "worker")
    assert command is not None
    known = {name for option in command.params for name in option.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", GUIDE.read_text()))
    assert named - known == {"--memory"}
    registry = CollectorRegistry()
    WorkerMetrics(registry)
    exported = set(re.findall(r"querator_worker_[a-z_]+", generate_latest(registry).decode()))
    assert set(re.findall(r"`(querator_worker_[a-z_]+)`", GUIDE.read_text())) <= {
        *exported,
        "querator_worker_items_total",
    }
