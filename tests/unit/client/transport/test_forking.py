"""Connections that are closed for a fork; `integration/test_fork.py` really forks."""

import asyncio
import shutil
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client, SyncClient
from querator.client.errors import UsedAfterFork
from querator.client.transport import forking
from querator.client.transport.nodes import Nodes
from tests.unit.client.fake_node import FakeNode, until

BOUND_S = 20
IDLE = timedelta(milliseconds=200)


async def test_calls_wait_while_the_process_forks_and_are_repeated():
    async with FakeNode.running() as node, Client(node.address) as client:
        await client.produce("q", b"a")
        nodes = client._nodes()
        node.hung = True
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(client.produce("q", b"b"))
            await until(lambda: node.asked == 2)
            node.hung = False
            await nodes.sleep()
            later = tasks.create_task(client.produce("q", b"c"))
            await asyncio.sleep(0)
            assert not nodes.connected
            nodes.wake()
        assert len(waiting.result()) == len(later.result()) == 1
    assert sorted(node.stored) == [b"a", b"b", b"c"]


async def test_streams_continue_after_a_fork(caplog):
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready([b"a", b"b"])
        async with client.producer("q") as producer, client.consumer("q") as consumer:
            await producer.produce(b"a")
            first = await anext(consumer)
            nodes = client._nodes()
            await nodes.sleep()
            settled, second = first.complete(), await anext(consumer)
            stored = await producer.submit(b"b")
            assert not nodes.connected
            nodes.wake()
            await settled
            await second.complete()
            await stored
            await node.make_ready([b"c"])
            assert (await anext(consumer)).payload == b"c"
    assert node.stored == [b"a", b"b"]
    assert caplog.records == []


async def test_a_client_whose_loop_is_busy_during_a_fork_continues(monkeypatch):
    # Without a real fork: the hooks are called as the interpreter calls them in the parent.
    monkeypatch.setattr(forking, "SLEEP_SECONDS", 0.01)
    async with FakeNode.running() as node:
        await asyncio.to_thread(_fork_while_busy, node.address)
    assert node.stored == [b"a", b"b"]


def _fork_while_busy(address: str) -> None:
    began, over = threading.Event(), threading.Event()

    def be_busy() -> None:
        began.set()
        assert over.wait(BOUND_S)

    with SyncClient(address, request_timeout=timedelta(seconds=5)) as client:
        client.produce("q", b"a")
        client._runner.call(be_busy)
        assert began.wait(BOUND_S)
        forking._before_fork()
        forking._after_fork_in_parent()
        over.set()
        client.produce("q", b"b")


def test_another_process_is_refused():
    with pytest.raises(UsedAfterFork) as refused:
        forking.check_process(1, "SyncClient")
    assert "this SyncClient was used in process 1 before a fork" in str(refused.value)


async def test_a_client_on_another_event_loop_is_refused():
    async with FakeNode.running() as node, Client(node.address) as client:
        await client.produce("q", b"a")

        async def use() -> None:
            await client.produce("q", b"b")

        def other_loop() -> None:
            with pytest.raises(RuntimeError, match=r"belongs to the event loop .* asyncio\.run"):
                asyncio.run(use())

        await asyncio.to_thread(other_loop)


def test_a_client_without_an_event_loop_is_refused():
    with pytest.raises(RuntimeError, match="a program without one uses SyncClient"):
        Client().list_queues()


def test_a_closed_sync_client_is_refused():
    client = SyncClient()
    client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.produce("q", b"a")


@pytest.mark.parametrize("client", [Client(), SyncClient()])
def test_a_client_cannot_be_sent_to_another_process(client):
    with pytest.raises(TypeError, match="make one there"):
        client.__reduce__()


async def test_a_fork_in_progress_puts_new_connections_to_sleep(monkeypatch):
    monkeypatch.setattr(forking._state, "forking", True)
    monkeypatch.setattr(forking._state, "asleep", [])
    async with FakeNode.running() as node:
        nodes = Nodes((node.address,), request_timeout=5, connect_timeout=5)
        opening = asyncio.ensure_future(nodes.near())  # noqa: TID251 - awaited below
        await asyncio.sleep(0)
        assert not nodes.connected
        (asleep,) = forking._state.asleep
        asleep.wake()
        assert (await opening).address == node.address
        await nodes.close()


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that shows the threads of this process to the hooks: one, without gRPC."""
    monkeypatch.setattr(forking, "_TASKS", tmp_path)
    # The tests before may have used gRPC in this process.
    monkeypatch.setattr(forking, "_POLLER", "none of them")
    _show(tmp_path, "1", "python")
    return tmp_path


def _show(tasks: Path, task: str, name: str) -> None:
    (tasks / task).mkdir()
    (tasks / task / "comm").write_text(f"{name}\n")


def _reason_of_a_fork() -> str:
    """Why the child of a fork at this moment may not use gRPC. The hooks run, without a fork."""
    forking._before_fork()
    reason = forking._state.reason
    forking._after_fork_in_parent()
    return reason


@pytest.mark.parametrize("name", ["event_engine", "grpc_shutdown"])
def test_a_fork_waits_for_the_threads_of_grpc(tasks, monkeypatch, name):
    _show(tasks, "7", name)
    monkeypatch.setattr(forking._state, "used", True)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        shutil.rmtree(tasks / "7")

    monkeypatch.setattr("time.sleep", pause)
    assert (_reason_of_a_fork(), len(pauses)) == ("", 1)


def test_the_child_is_refused_while_a_thread_ends_grpc(tasks, monkeypatch):
    _show(tasks, "7", "grpc_shutdown")
    monkeypatch.setattr(forking, "SLEEP_SECONDS", 0.01)
    monkeypatch.setattr(forking._state, "used", True)
    assert _reason_of_a_fork() == "gRPC was in use: it had the thread grpc_shutdown"


def test_threads_that_end_do_not_hide_others(tasks, monkeypatch):
    _show(tasks, "7", "grpc_shutdown")
    # Thread 5 ends while the list is read, which then ends there.
    lists = [["1", "5"], ["1", "7"]]
    monkeypatch.setattr("os.listdir", lambda _: lists.pop(0) if len(lists) > 1 else lists[0])
    monkeypatch.setattr(forking._state, "used", False)
    assert "grpc_shutdown" in _reason_of_a_fork()
