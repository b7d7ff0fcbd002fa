"""Messages that do not come whole: which connections are ended for them, and which are not."""

import asyncio
import socket
from collections.abc import Callable, Set

from querator.model.limits import INCOMPLETE_BYTES_MAX, MIB
from querator.server.incoming import SMALL_BYTES, STALLED_S, Incoming, Peer, Received
from querator.v1 import queue_service_pb2
from scripts.bench.half_messages import Half
from tests.unit.server.double import running

BOUND = INCOMPLETE_BYTES_MAX


class Network:
    """Connections from one host, by port: bytes that have come, and seconds since the last."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, float]] = {}
        self.ended: list[int] = []
        self.incoming = Incoming(self._received, self._end)

    def _received(self) -> list[Received]:
        return [
            Received(("10.0.0.1", port), size, idle_s) for port, (size, idle_s) in self.open.items()
        ]

    def _end(self, peers: Set[Peer]) -> None:
        for _, port in sorted(peers):
            del self.open[port]
            self.ended.append(port)

    async def look(self) -> int:
        await self.incoming.look()
        return self.incoming.incomplete_bytes


def heard(network: Network, port: int) -> None:
    network.incoming.heard(f"ipv4:10.0.0.1:{port}")


async def test_what_came_before_a_whole_message_does_not_count() -> None:
    network = Network()
    network.open = {1: (900 * MIB, 60.0), 2: (MIB, 0.0)}
    heard(network, 1)
    assert await network.look() == MIB
    network.open[1] = 905 * MIB, 0.0
    assert await network.look() == 6 * MIB
    heard(network, 1)
    network.incoming.of("ipv6:%5B::ffff:10.0.0.1%5D:2")()
    assert await network.look() == 0
    assert network.ended == []


async def test_headers_and_pings_do_not_count() -> None:
    network = Network()
    network.open = {port: (SMALL_BYTES, 3600.0) for port in range(1, 10_000)}
    assert await network.look() == 0


async def test_those_on_which_nothing_comes_are_ended_first_and_no_more_than_needed() -> None:
    network = Network()
    network.open = {port: (BOUND // 8, float(port)) for port in range(1, 11)}
    await network.look()
    assert network.ended == [9, 10]
    assert network.incoming.ended == 2
    assert await network.look() == BOUND
    assert network.ended == [9, 10]


async def test_those_on_which_something_comes_may_have_twice_as_much() -> None:
    network = Network()
    network.open = {port: (BOUND // 8, port / 1000) for port in range(1, 17)}
    assert network.open[16][1] < STALLED_S
    assert await network.look() == 2 * BOUND
    assert network.ended == []
    network.open[17] = BOUND // 8, 0.0
    await network.look()
    # Then until the rest is within the bound, so that there is room for what comes meanwhile.
    assert network.ended == list(range(8, 17))
    assert network.incoming.incomplete_bytes == 17 * BOUND // 8


async def test_a_port_that_is_used_again_begins_anew() -> None:
    network = Network()
    network.open = {1: (500 * MIB, 0.0)}
    heard(network, 1)
    await network.look()
    network.open = {1: (MIB, 0.0)}
    await network.look()
    network.open = {1: (3 * MIB, 0.0)}
    assert await network.look() == 2 * MIB


async def test_what_nobody_has_read_does_not_count() -> None:
    size = 2 * SMALL_BYTES
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        incoming = Incoming()
        incoming.start(address[1])
        with socket.create_connection(address) as client, listener.accept()[0] as accepted:
            client.sendall(bytes(size))
            await incoming.look()
            assert incoming.incomplete_bytes == 0
            assert len(accepted.recv(size, socket.MSG_WAITALL)) == size
            await incoming.look()
            assert incoming.incomplete_bytes == size
        await incoming.look()
        assert incoming.incomplete_bytes == 0, "it is closed"
        await incoming.stop()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the kernel and gRPC's threads do not tell
        await asyncio.sleep(0.05)


async def test_a_server_ends_connections_with_halves_of_messages_and_serves_the_others() -> None:
    async with running() as there, asyncio.TaskGroup() as group:
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
        # Not the connection that has sent whole messages, though more has come on it in all.
        del big.items[1:]
        await there.stub.Produce(big)
        await until(lambda: sum(half.refused for half in halves) == incoming.ended)
        for task in tasks:
            task.cancel()
