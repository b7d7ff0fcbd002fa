"""Programs that fork while they use the SDK: `python -m tests.integration.forking_programs CASE
ADDRESS QUEUE [START METHOD]`. Each checks itself, and ends with 0 if all is well.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial

import pytest

from querator import Client, Node, SyncClient
from querator.client.errors import UsedAfterFork

CHILDREN = 2
FORKS = 6
WAIT = timedelta(seconds=20)
CHILD_SECONDS = 40


def round_trip(client: SyncClient, queue: str) -> None:
    """Produces an item, and consumes one."""
    client.produce(queue, b"%d" % os.getpid())
    with client.consumer(queue, prefetch_items=1, idle_timeout=WAIT) as consumer:
        next(iter(consumer)).complete()


def _own_round_trip(address: str, queue: str) -> int:
    signal.alarm(CHILD_SECONDS)
    with SyncClient(address) as client:
        round_trip(client, queue)
    return os.getpid()


def _forked(child: Callable[[], object]) -> int:
    """Runs the function in a child that is forked here; its exit code, 0 when it returns."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(CHILD_SECONDS)
    try:
        child()
    except BaseException:  # noqa: BLE001  the child ends here
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _refused(use: Callable[[], object], *words: str) -> None:
    with pytest.raises(UsedAfterFork) as refused:
        use()
    assert [word for word in words if word not in str(refused.value)] == []


def processes(address: str, queue: str, method: str) -> None:
    """Children of `multiprocessing` work while the parent has a client, which continues to work."""
    multiprocessing.set_start_method(method)
    with SyncClient(address) as client, client.producer(queue) as producer:
        producer.produce(b"first")
        children = [
            multiprocessing.Process(target=_own_round_trip, args=(address, queue))
            for _ in range(CHILDREN)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * CHILDREN
        producer.produce(b"last")
        assert client.stats(queue).total.ready == 2


def pool(address: str, queue: str, method: str) -> None:
    """As `processes`, with a `ProcessPoolExecutor`."""
    context = multiprocessing.get_context(method)
    with SyncClient(address) as client:
        round_trip(client, queue)
        with ProcessPoolExecutor(CHILDREN, mp_context=context) as executor:
            list(
                executor.map(
                    partial(_own_round_trip, address), [queue] * CHILDREN, timeout=CHILD_SECONDS
                )
            )
        round_trip(client, queue)


def used(address: str, queue: str) -> None:
    """A client and its objects that were used before a fork are refused in the child at once."""
    client = SyncClient(address)
    client.produce(queue, b"a", b"b")
    (item,) = client.lease(queue)
    with client.producer(queue) as producer, client.consumer(queue) as consumer:

        def child() -> None:
            words = (str(parent), str(os.getpid()), "post_fork", "worker_process_init")
            _refused(lambda: client.produce(queue, b"c"), *words)
            _refused(lambda: producer.produce(b"c"), *words)
            _refused(lambda: next(iter(consumer)), *words)
            _refused(item.complete, *words)
            client.close()

        parent = os.getpid()
        assert _forked(child) == 0
        item.complete()
        next(iter(consumer)).complete()
        producer.produce(b"c")
    client.close()


def closed(address: str, queue: str) -> None:
    """The parent has closed its client before the fork."""
    with SyncClient(address) as client:
        round_trip(client, queue)
    assert _forked(partial(_own_round_trip, address, queue)) == 0
    _own_round_trip(address, queue)


def unused(address: str, queue: str) -> None:
    """A client that was made before the fork is used in each child, and in the parent."""
    client = SyncClient(address)
    names = {client.client_id}

    def child() -> None:
        assert client.client_id not in names
        round_trip(client, queue)
        client.close()

    assert [_forked(child) for _ in range(CHILDREN)] == [0] * CHILDREN
    round_trip(client, queue)
    client.close()


async def _asynchronous(address: str, queue: str) -> None:
    client = Client(address)
    await client.produce(queue, b"a")

    async def use() -> None:
        await client.produce(queue, b"b")

    def child() -> None:
        _refused(lambda: asyncio.run(use()), str(parent), "make one in each process")
        _refused(lambda: _own_round_trip(address, queue), str(parent), "event loop", "spawn")

    parent = os.getpid()
    async with client.consumer(queue) as consumer, asyncio.TaskGroup() as tasks:
        await (await anext(consumer)).complete()
        waiting = tasks.create_task(anext(consumer))
        await asyncio.sleep(0)
        # gRPC's own hooks would crash about every third child.
        assert [_forked(child) for _ in range(FORKS)] == [0] * FORKS
        await client.produce(queue, b"b")
        await (await waiting).complete()
    await client.close()
    assert _forked(partial(_own_round_trip, address, queue)) == 0


def asynchronous(address: str, queue: str) -> None:
    """With an open async client on the loop that forks, the child is refused; with a closed one it
    works.
    """
    asyncio.run(_asynchronous(address, queue))


def left_open(address: str, queue: str) -> None:
    """An async client that was not closed, and whose event loop has ended."""
    client = Client(address)
    asyncio.run(_produce(client, queue))
    assert _forked(partial(_own_round_trip, address, queue)) == 0


async def _produce(client: Client, queue: str) -> None:
    await client.produce(queue, b"a")


def node(address: str, queue: str) -> None:
    """gRPC is in use by a node in the process: the child is refused."""
    asyncio.run(_with_node(address, queue))


async def _with_node(address: str, queue: str) -> None:
    async with Node(memory=True):
        assert _forked(lambda: _refused(lambda: _own_round_trip(address, queue), "server")) == 0


def ended(address: str, queue: str) -> None:
    """A process that a handler has forked is ended by SIGTERM, as it would be without the SDK."""
    with SyncClient(address) as client, client.consumer(queue) as consumer:
        client.produce(queue, b"a")
        codes: list[int] = []

        def handler(item: object) -> None:
            codes.append(_forked(lambda: signal.raise_signal(signal.SIGTERM)))
            consumer.stop()

        consumer.run(handler, concurrency=1)
        assert codes == [-signal.SIGTERM]


def main() -> None:
    case, *arguments = sys.argv[1:]
    globals()[case](*arguments)


if __name__ == "__main__":
    main()
