"""Incomplete messages: which connections the server ends for them, and which not."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Set

import pytest

from querator.model.limits import INCOMPLETE_BYTES_MAX, MIB
from querator.server.incoming import (
    ALLOWED_BYTES_S,
    CLOSING_S,
    OVERHEAD_BYTES,
    RELEASE_S,
    SMALL_BYTES,
    STALLED_S,
    Address,
    Incoming,
    Taken,
)
from querator.v1 import queue_service_pb2
from scripts.bench.half_messages import Half
from tests.unit.server.fake_service import running_server

BOUND = INCOMPLETE_BYTES_MAX


class Network:
    """Connections from one host, by port: received bytes, and seconds since the last byte."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, float]] = {}
        self.ended: list[int] = []
        self.closes = True
        self.fails = False
        self.now_s = 1_000.0
        self.memory = 0
        """Memory of the process, in bytes."""
        self.incoming = Incoming(self._taken, self._end, lambda: self.now_s, lambda: self.memory)

    def _taken(self) -> list[Taken]:
        if self.fails:
            raise OSError("too many open files")
        return [
            Taken(("10.0.0.1", port), size, idle_s) for port, (size, idle_s) in self.open.items()
        ]

    def _end(self, addresses: Set[Address]) -> None:
        for _, port in sorted(addresses):
            if self.closes:
                del self.open[port]
            self.ended.append(port)

    async def look(self, *, late: bool = False) -> int:
        await self.incoming.check(late=late)
        return self.incoming.incomplete_bytes

    def got(self, port: int, size: int) -> None:
        self.incoming.got(f"ipv4:10.0.0.1:{port}", size)


async def test_messages_that_handlers_have_got_do_not_count() -> None:
    network = Network()
    network.open = {1: (900 * MIB, 60.0), 2: (MIB, 0.0)}
    network.got(1, 900 * MIB)
    assert await network.look() == MIB
    network.open[1] = 905 * MIB, 0.0
    assert await network.look() == 6 * MIB
    network.got(1, 5 * MIB)
    network.incoming.messages_of("ipv6:%5B::ffff:10.0.0.1%5D:2").got(MIB)
    assert await network.look() == 0
    assert network.ended == []


async def test_a_small_message_does_not_make_up_for_a_half_of_a_large_one() -> None:
    network = Network()
    network.open = {1: (8 * MIB, 0.0)}
    for _ in range(3):
        network.got(1, 100)
        assert await network.look() >= 8 * MIB - 3 * (100 + OVERHEAD_BYTES)


async def test_headers_and_pings_do_not_count() -> None:
    network = Network()
    pings = ALLOWED_BYTES_S
    for round_ in range(100):
        network.now_s += 1_000
        network.open = {port: (round_ * 1_000 * pings, 1.0) for port in range(1, 1_001)}
        assert await network.look() == 0
    network.got(1, 0)
    network.open[1] = network.open[1][0] + OVERHEAD_BYTES, 0.0
    assert await network.look() == 0


async def test_those_on_which_nothing_comes_are_ended_first_and_no_more_than_needed() -> None:
    network = Network()
    network.open = {port: (BOUND // 8, STALLED_S + port) for port in range(1, 11)}
    await network.look()
    assert network.ended == [9, 10]
    assert network.incoming.ended == 2
    assert await network.look() == BOUND
    assert network.ended == [9, 10]


async def test_those_on_which_something_comes_may_have_twice_as_much() -> None:
    network = Network()
    network.open = {port: (BOUND // 8, port / 1000) for port in range(1, 17)}
    assert await network.look() == 2 * BOUND
    assert network.ended == []
    network.open[17] = BOUND // 8, 0.0
    await network.look()
    # Connections are ended until the rest is within the bound, which leaves space for more bytes.
    assert network.ended == list(range(8, 17))


async def test_streams_that_the_node_does_not_read_are_ended_last() -> None:
    network = Network()
    network.open = {port: (BOUND // 8, 60.0) for port in range(1, 17)}
    with contextlib.ExitStack() as waiting:
        for port in range(1, 17):
            messages = network.incoming.messages_of(f"ipv4:10.0.0.1:{port}")
            waiting.enter_context(messages.unread())
        assert await network.look() == 2 * BOUND
        assert network.ended == []
        network.open[17] = BOUND // 8, 0.0
        await network.look()
        assert 17 in network.ended
        assert len(network.ended) == 9
    await network.look()
    assert network.incoming.unread == {}


async def test_while_the_loop_is_late_more_is_allowed() -> None:
    network = Network()
    network.open = {port: (BOUND // 8, 60.0) for port in range(1, 25)}
    assert await network.look(late=True) == 3 * BOUND
    assert network.ended == []
    network.open[25] = BOUND // 8, 60.0
    await network.look(late=True)
    assert len(network.ended) == 17


async def test_what_is_being_closed_does_not_count_for_a_while() -> None:
    network = Network()
    network.closes = False
    network.open = {port: (BOUND // 8, STALLED_S + port) for port in range(1, 11)}
    for _ in range(3):
        await network.look()
        assert network.ended == [9, 10]
    network.now_s += CLOSING_S
    await network.look()
    assert network.ended == [9, 10, 9, 10], "it was not closed"


async def test_what_grpc_keeps_of_ended_connections_counts_after_a_while() -> None:
    network = Network()
    network.memory = 500 * MIB
    await network.look()
    network.open = {port: (BOUND // 2, STALLED_S) for port in range(1, 4)}
    network.memory += 3 * BOUND // 2
    await network.look()
    assert network.ended == [1]
    # gRPC keeps the memory of the first connection.
    network.now_s += RELEASE_S / 2
    await network.look()
    assert network.ended == [1]
    network.now_s += RELEASE_S
    await network.look()
    assert network.ended == [1, 2]
    # gRPC has freed the memory of both. Then others allocate more than that.
    network.memory -= BOUND
    network.now_s += RELEASE_S
    await network.look()
    network.memory += 9 * BOUND
    network.now_s += CLOSING_S
    await network.look()
    assert network.ended == [1, 2]


async def test_a_look_that_fails_loses_nothing() -> None:
    network = Network()
    network.open = {1: (50 * MIB, 0.0)}
    network.got(1, 30 * MIB)
    network.fails = True
    for _ in range(3):
        with pytest.raises(OSError, match="too many open files"):
            await network.look()
        network.got(1, 5 * MIB)
    network.fails = False
    assert 5 * MIB - 4 * OVERHEAD_BYTES <= await network.look() <= 5 * MIB


async def test_an_address_that_is_used_again_begins_anew() -> None:
    network = Network()
    network.open = {1: (500 * MIB, 0.0)}
    network.got(1, 500 * MIB)
    await network.look()
    network.open = {1: (3 * MIB, 0.0)}
    assert await network.look() == 3 * MIB


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "[::1]"])
async def test_connections_are_told_apart_by_their_whole_address(host: str) -> None:
    plain = host.strip("[]")
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    size = 2 * SMALL_BYTES
    clients = ["::1"] if plain == "::1" else ["127.0.0.1", "127.0.0.2"]
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(
            socket.create_server((plain, 0), family=family, dualstack_ipv6=plain == "::")
        )
        port = listener.getsockname()[1]
        incoming = Incoming(now_s=lambda: 0.0)
        incoming.start(host, port)
        source = 0
        for number, client in enumerate(clients):
            target = (client if plain != "127.0.0.1" else plain, port)
            sock = stack.enter_context(socket.create_connection(target, 5, (client, source)))
            source = sock.getsockname()[1]
            accepted = stack.enter_context(listener.accept()[0])
            sock.sendall(bytes(size + number))
            await incoming.check()
            assert incoming.incomplete_bytes == number * size, "nobody has taken it"
            assert len(accepted.recv(size + number, socket.MSG_WAITALL)) == size + number
            await incoming.check()
            assert incoming.incomplete_bytes == (number + 1) * size + number
        incoming.got(f"ipv4:127.0.0.1:{source}", 0)
        await incoming.stop()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the kernel and gRPC's threads have no event
        await asyncio.sleep(0.05)


async def test_a_server_ends_connections_with_halves_of_messages_and_serves_the_others() -> None:
    async with running_server() as there, asyncio.TaskGroup() as group:
        incoming = there.server.incoming
        big = queue_service_pb2.ProduceRequest(queue="q")
        for _ in range(3):
            big.items.add(payload=bytes(MIB))
        for _ in range(4):
            await there.stub.Produce(big)
        room = asyncio.Semaphore(8)
        port = int(there.address.rpartition(":")[2])
        halves = [Half(5 * MIB) for _ in range(BOUND // (5 * MIB) + 4)]
        tasks = [group.create_task(half.run(port, room)) for half in halves]

        def left() -> int:
            return sum(half.sent for half in halves if not half.refused)

        async with asyncio.timeout(60):
            await until(lambda: all(half.refused or half.sent == half.size for half in halves))
            await until(lambda: left() <= BOUND)
        assert left() >= BOUND - 8 * MIB, "no more are ended than needed"
        # The connection with whole messages stays open, though it has received more bytes in all.
        del big.items[1:]
        await there.stub.Produce(big)
        await until(lambda: sum(half.refused for half in halves) == incoming.ended)
        for task in tasks:
            task.cancel()
