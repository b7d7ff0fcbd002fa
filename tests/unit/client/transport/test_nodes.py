"""A client of several nodes: it changes to another node, and learns the nodes of the cluster."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from querator import Client, SyncClient
from querator.client import LeaseRef
from querator.client.consuming import lease_stream
from querator.client.errors import (
    ConnectionFailed,
    ErrorCode,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    make_error,
)
from querator.client.producing import produce_stream
from querator.client.transport.channel import Connection
from querator.client.transport.known_node import KnownNode
from querator.client.transport.nodes import Nodes
from querator.client.values import split_addresses
from querator.v1 import errors_pb2, queue_service_pb2
from tests.unit.client.fake_node import FakeNode, refusal, until

SOON = timedelta(milliseconds=300)
WHILE = timedelta(seconds=2)
NOBODY = "127.0.0.1:1"


@asynccontextmanager
async def cluster(*names: str, leaders: tuple[str, ...] = ("a",)) -> AsyncIterator[Any]:
    """Nodes that know each other and share one store."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(FakeNode.running()) for _ in names]
        routing = queue_service_pb2.GetRoutingResponse(leaders=leaders)
        for name, node in zip(names, nodes, strict=True):
            routing.nodes.add(name=name, client_address=node.address)
        for name, node in zip(names, nodes, strict=True):
            node.routing = queue_service_pb2.GetRoutingResponse()
            node.routing.CopyFrom(routing)
            node.routing.node = name
            node.share(nodes[0])
        yield nodes


@asynccontextmanager
async def nobody_at_home() -> AsyncIterator[str]:
    """An address that accepts connections and never sends anything, like one whose packets are
    dropped.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_addresses() -> None:
    assert split_addresses("a:1") == ("a:1",)
    assert split_addresses(" a:1, b:2,a:1") == ("a:1", "b:2")
    assert split_addresses(["a:1", "b:2"]) == ("a:1", "b:2")
    assert split_addresses("[::1]:4470,localhost:1") == ("[::1]:4470", "localhost:1")


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_client_without_an_address_takes_that_of_the_environment(
    kind: type[Client | SyncClient], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("QUERATOR_ADDRESS", "10.0.0.1:4470, 10.0.0.2:4470")
    assert kind().address == "10.0.0.1:4470,10.0.0.2:4470"
    assert kind("10.0.0.3:4470").address == "10.0.0.3:4470"
    monkeypatch.setenv("QUERATOR_ADDRESS", "")
    assert kind().address == "127.0.0.1:4470"
    monkeypatch.delenv("QUERATOR_ADDRESS")
    assert kind().address == "127.0.0.1:4470"
    monkeypatch.setenv("QUERATOR_ADDRESS", "http://h:4470")
    with pytest.raises(ValueError, match=r"^QUERATOR_ADDRESS: "):
        kind()


EXAMPLE = "for example 127.0.0.1:4470"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("foo", f"address: 'foo' is not HOST:PORT, {EXAMPLE}"),
        ("a:1,foo", f"address: 'foo' is not HOST:PORT, {EXAMPLE}"),
        ("a:1,", f"address: '' is not HOST:PORT, {EXAMPLE}"),
        (":4470", f"address: ':4470' is not HOST:PORT, {EXAMPLE}"),
        ("a:", f"address: 'a:' is not HOST:PORT, {EXAMPLE}"),
        ("a:99999", "address: 'a:99999': a port is at most 65535, as in 127.0.0.1:4470"),
        ("a:0", "address: 'a:0' has port 0; write for example 127.0.0.1:4470"),
        ("http://a:1", f"address: 'http://a:1' is a URL; write HOST:PORT, {EXAMPLE}"),
        ("::1:4470", "address: '::1:4470': write an IPv6 address as [ADDRESS]:PORT"),
        ("", f"address is empty; write HOST:PORT, {EXAMPLE}"),
        ([], f"address is empty; write HOST:PORT, {EXAMPLE}"),
    ],
)
def test_malformed_addresses(address: str | list[str], message: str):
    for make in (Client, SyncClient):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            make(address)


async def test_a_call_goes_to_whoever_answers():
    async with FakeNode.running() as node:
        for _ in range(4):
            async with Client(f"{NOBODY},{node.address}") as client:
                await client.produce("q", b"x")
    assert node.stored == [b"x"] * 4


async def test_the_other_nodes_are_learned_from_the_first():
    async with cluster("a", "b") as (a, b), Client(a.address) as client:
        await client.produce("q", b"x")
        nodes = client._nodes()
        await until(lambda: len(nodes.addresses) == 2)
        assert set(nodes.addresses) == {a.address, b.address}
        await a.stop()
        await client.produce("q", b"y")
        assert a.stored == [b"x", b"y"]
        assert len(b.requests) == 1


async def test_close_waits_for_the_list_of_nodes():
    # A cancelled call ends later than the loop that it belongs to, if `close` ends the loop.
    async with cluster("a") as (a,):
        a.routing_open.clear()
        async with Client(a.address) as client:
            await client.produce("q", b"x")
            learning = client._nodes()._learning
            assert learning is not None
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.close())
                await asyncio.sleep(0)
                a.routing_open.set()
        assert a.routing_calls == ["answered"]
        assert not learning.cancelled()


async def test_close_waits_for_the_list_of_nodes_only_for_a_moment():
    async with cluster("a") as (a,):
        a.routing_open.clear()
        async with Client(a.address) as client:
            await client.produce("q", b"x")
            learning = client._nodes()._learning
            assert learning is not None
        assert learning.cancelled()
        await until(lambda: a.routing_calls == ["cancelled"])


async def test_a_node_that_has_left_is_forgotten():
    async with cluster("a", "b") as (a, b):
        nodes = Nodes((a.address,), request_timeout=5, connect_timeout=5)
        assert await nodes.leader("", "q", lambda _: 0) == a.address
        assert set(nodes.addresses) == {a.address, b.address}
        del a.routing.nodes[1]
        assert await nodes.leader("", "q", lambda _: 0) == a.address
        assert set(nodes.addresses) == {a.address}
        assert not b.requests
        await nodes.close()


async def test_a_service_for_all_nodes_does_not_stand_for_one_of_them():
    async with cluster("a", "b") as (a, b):
        service = a.address.replace("127.0.0.1", "localhost")
        nodes = Nodes((service,), request_timeout=5, connect_timeout=5)
        assert await nodes.leader("", "q", lambda _: 0) == a.address
        assert set(nodes.addresses) == {service, a.address, b.address}
        await nodes.close()


async def test_another_address_of_a_single_node_is_enough():
    async with cluster("a") as (a,):
        mapped = a.address.replace("127.0.0.1", "localhost")
        nodes = Nodes((mapped,), request_timeout=5, connect_timeout=5)
        assert await nodes.leader("", "q", lambda _: 0) == mapped
        assert set(nodes.addresses) == {mapped}
        await nodes.close()


async def test_a_connection_that_was_lost_is_made_anew():
    async with cluster("a", "b") as (a, b):
        nodes = Nodes((a.address, b.address), request_timeout=5, connect_timeout=5)
        before = await nodes.near(a.address)
        assert await nodes.near(a.address) is before
        await a.stop()
        await until(lambda: before.lost)
        assert (await nodes.near(a.address)).address == b.address
        assert not before.connected
        await a.start()
        await until(lambda: nodes.is_near(a.address))
        assert await nodes.near(a.address) is not before
        await nodes.close()


async def test_nobody_answers():
    async with Client(f"{NOBODY},127.0.0.1:2", connect_timeout=SOON) as client:
        with pytest.raises(ConnectionFailed, match=r"refused at 127\.0\.0\.1:1.*127\.0\.0\.1:2"):
            await client.produce("q", b"x")


async def test_a_node_that_stops_is_left():
    async with cluster("a", "b") as (a, b), Client([a.address, b.address]) as client:
        a.decide = lambda _: refusal("UNAVAILABLE")
        for _ in range(5):
            await client.produce("q", b"x")
        assert len(a.stored) == 5


@pytest.mark.parametrize("code", ["OUTCOME_UNKNOWN", "NOT_LEADER", "DEADLINE_EXCEEDED"])
async def test_a_node_that_does_not_get_through_to_the_leader_is_not_asked_again(code: str):
    async with cluster("a", "b") as (a, b), Client([a.address, b.address]) as client:
        a.decide = lambda _: refusal(code)
        for _ in range(5):
            a.asked = 0
            await client.produce("q", b"x")
            assert a.asked <= 1
        assert len(a.stored) == 5


async def test_what_may_not_be_repeated_is_not():
    async with cluster("a", "b") as (a, b):
        nodes = Nodes((a.address, b.address), request_timeout=5, connect_timeout=5)
        a.cut_answers = b.cut_answers = 1
        request = queue_service_pb2.ProduceRequest(queue="q")
        with pytest.raises(OutcomeUnknown):
            await nodes.call(
                lambda node, left: node.queues.Produce(request, timeout=left), repeatable=False
            )
        assert a.asked + b.asked == 1
        await nodes.close()


async def test_a_hung_node_is_left_for_another_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("querator.client.client.ATTEMPT_SECONDS", 0.2)
    async with cluster("a", "b") as (a, b), Client([a.address, b.address]) as client:
        a.hung = b.hung = True
        task = asyncio.get_running_loop().create_task(client.produce("q", b"x"))
        await until(lambda: bool(a.asked or b.asked))
        a.hung, b.hung = bool(a.asked), bool(b.asked)
        await task
        assert a.stored == [b"x"]


@pytest.mark.parametrize("said", ["DEADLINE_EXCEEDED", "OUTCOME_UNKNOWN", ""])
async def test_only_a_node_that_answers_is_given_longer(said: str):
    """A node that reports that it found no leader in time is alive. Each attempt sends the whole
    request again.
    """
    async with cluster("a", "b") as (a, b):
        nodes = Nodes((a.address, b.address), request_timeout=600, connect_timeout=5)
        request = queue_service_pb2.ProduceRequest(queue="q")
        a.hung = b.hung = not said
        a.decide = b.decide = lambda _: refusal(said)
        given: list[float] = []

        async def produce(node: Connection, left: float) -> Any:
            given.append(left)
            if len(given) == 4:
                a.decide = b.decide = lambda _: None
                a.hung = b.hung = False
            return await node.queues.Produce(request, timeout=left)

        # On a busy machine connecting shortens the time of the first attempt.
        await nodes.call(produce, patience=10 if said else 0.2)
        if said:
            assert given == pytest.approx([10, 20, 40, 80], abs=5)
        else:
            assert len(given) == 4
            assert max(given) <= 0.2
        await nodes.close()


async def test_who_waits_in_vain_at_one_node_asks_those_it_has_not_asked():
    async with cluster("a", "b", "c") as nodes:
        a, b, c = nodes
        a.decide = b.decide = lambda _: refusal("DEADLINE_EXCEEDED")
        for _ in range(10):
            a.asked = b.asked = c.asked = 0
            async with Client([node.address for node in nodes]) as client:
                await client.produce("q", b"x")
            assert max(a.asked, b.asked, c.asked) == 1


async def test_an_ordered_producer_goes_to_the_leader():
    async with cluster("a", "b", "c", leaders=("c",)) as (a, b, c), Client(a.address) as client:
        async with client.producer("q") as producer:
            await producer.produce(b"x")
            assert producer._lane.address == c.address
        assert (len(a.requests), len(b.requests), len(c.requests)) == (0, 0, 1)


async def test_an_ordered_producer_follows_the_leader():
    async with cluster("a", "b", leaders=("a",)) as (a, b), Client(a.address) as client:
        async with client.producer("q", batch_items=1) as producer:
            await producer.produce(b"0")
            a.leader_address = b.address
            await producer.produce_many([b"%d" % number for number in range(1, 100)])
            assert producer._lane.address == b.address
    assert a.stored == [b"%d" % number for number in range(100)]
    assert b.requests


@pytest.mark.parametrize("unary", [True, False])
async def test_a_node_to_which_no_connection_comes_about_is_left(unary: bool):
    async with nobody_at_home() as silent, FakeNode.running() as node:
        for _ in range(5):
            # gRPC alone would wait for 3 s.
            async with Client([silent, node.address], request_timeout=WHILE) as client:
                if unary:
                    await client.produce("q", b"x")
                    continue
                async with client.producer("q", ordered=False) as producer:
                    await producer.produce(b"x")
    assert node.stored == [b"x"] * 5


async def test_an_ordered_producer_does_not_wait_for_a_leader_that_is_not_reached():
    async with nobody_at_home() as silent, FakeNode.running() as node:
        node.routing = queue_service_pb2.GetRoutingResponse(node="a", leaders=["b"])
        node.routing.nodes.add(name="a", client_address=node.address)
        node.routing.nodes.add(name="b", client_address=silent)
        async with (
            Client(node.address, request_timeout=WHILE) as client,
            client.producer("q", batch_items=1) as producer,
        ):
            await producer.produce_many([b"0", b"1"])
    assert node.stored == [b"0", b"1"]


async def test_an_ordered_producer_does_not_follow_a_leader_before_it_is_reached():
    async with cluster("a", "b", leaders=("a",)) as (a, b), nobody_at_home() as silent:
        for node in (a, b):
            node.routing.nodes.add(name="c", client_address=silent)
        async with Client(a.address) as client, client.producer("q", batch_items=1) as producer:
            await producer.produce(b"0")
            a.leader_address = silent
            await producer.produce_many([b"%d" % number for number in range(1, 100)])
            assert producer._lane.address == a.address
        assert a.produce_streams == 1


async def test_a_producer_goes_on_with_another_node():
    async with cluster("a", "b") as (a, _), Client(a.address) as client:
        async with client.producer("q", batch_items=1) as producer:
            await producer.produce(b"0")
            await until(lambda: len(client._nodes().addresses) == 2)
            a.cut_answers = 1
            sending = producer.produce_many([b"%d" % number for number in range(1, 50)])
            await asyncio.gather(sending, a.stop())
    assert a.stored == [b"%d" % number for number in range(50)]


async def test_a_consumer_settles_elsewhere_what_it_leased_here():
    async with cluster("a", "b") as (a, b):
        await a.make_ready([b"x"])
        async with (
            Client([a.address, b.address]) as client,
            client.consumer("q", idle_timeout=timedelta(seconds=5)) as consumer,
        ):
            item = await anext(consumer)
            [left] = [node for node in (a, b) if node.subscriptions]
            [other] = [node for node in (a, b) if node is not left]
            await left.stop()
            await item.complete()
            assert len(other.settles) == 1
            await a.make_ready([b"y"])
            assert (await anext(consumer)).payload == b"y"


async def test_what_a_node_says_of_a_request_does_not_speak_against_the_node():
    async with cluster("a", "b") as (a, b):
        nodes = Nodes((a.address, b.address), request_timeout=5, connect_timeout=5)
        node = await nodes.near(a.address)
        for said in (
            make_error(ErrorCode.OUTCOME_UNKNOWN, "by the node", request_id="r"),
            make_error(ErrorCode.OVERLOADED, "by the node"),
            make_error(ErrorCode.NOT_LEADER, "by the node"),
        ):
            assert not nodes.failed(node, said)
            assert nodes.is_good(a.address)
        lost = make_error(ErrorCode.OUTCOME_UNKNOWN, "no answer")
        assert isinstance(lost, OutcomeUnknown)
        assert nodes.failed(node, lost)
        assert not nodes.is_good(a.address)
        assert (await nodes.near(a.address)).address == b.address
        nodes.mark_working(node)
        assert nodes.is_good(a.address)
        await nodes.close()


UNSETTLED = (
    errors_pb2.ERROR_CODE_NOT_LEADER,
    errors_pb2.ERROR_CODE_OUTCOME_UNKNOWN,
    errors_pb2.ERROR_CODE_UNAVAILABLE,
)


async def test_a_partition_that_cannot_settle_is_asked_again_by_a_consumer():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready([b"x"])
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            node.unsettled.extend(UNSETTLED)
            await item.complete()
        assert len(node.settles) == 1 + len(UNSETTLED)


async def test_a_partition_that_cannot_settle_is_asked_again_by_a_call():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.unsettled.extend(UNSETTLED)
        ref = LeaseRef("1.0.1", (1,))
        [outcome] = await client.complete("q", ref)
        assert (outcome.done, outcome.error) == ((1,), None)
        assert not node.unsettled


async def test_what_a_partition_never_settles_is_an_error():
    async with (
        FakeNode.running() as node,
        Client(node.address, request_timeout=timedelta(seconds=1)) as client,
    ):
        node.unsettled.extend([errors_pb2.ERROR_CODE_NOT_LEADER] * 100)
        with pytest.raises(NotLeader, match="could not settle"):
            await client.complete("q", LeaseRef("1.0.1", (1,)))
        await node.make_ready([b"x"])
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            with pytest.raises(NotLeader, match="could not settle"):
                await item.complete()
            node.unsettled.clear()


async def test_what_a_partition_has_not_settled_in_time_is_that_error(
    monkeypatch: pytest.MonkeyPatch,
):
    """The time is over while the settle waits to be sent again."""
    monkeypatch.setattr(lease_stream, "AGAIN_SECONDS", 3_600)
    async with (
        FakeNode.running() as node,
        Client(node.address, request_timeout=SOON) as client,
    ):
        await node.make_ready([b"x", b"y"])
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            node.unsettled.append(errors_pb2.ERROR_CODE_NOT_LEADER)
            with pytest.raises(NotLeader, match="could not settle"):
                await item.complete()
            item = await anext(consumer)
            node.settle_refusals.append(refusal("OVERLOADED"))
            with pytest.raises(Overloaded):
                await item.complete()


async def test_a_producer_leaves_a_node_that_is_cut_off():
    async with cluster("a", "b") as (a, b), Client([a.address, b.address]) as client:
        async with client.producer("q", batch_items=1) as producer:
            await producer.produce(b"0")
            a.decide = lambda _: refusal("UNAVAILABLE")
            await producer.produce_many([b"%d" % number for number in range(1, 20)])
            assert producer._lane.address == b.address
    assert a.stored == [b"%d" % number for number in range(20)]


async def test_a_producer_leaves_a_node_that_does_not_know_what_became_of_a_request():
    async with cluster("a", "b") as (a, b):
        a.decide = lambda request: refusal("OUTCOME_UNKNOWN", field="partition", value="0")
        async with Client([a.address, b.address]) as client:
            async with client.producer("q", batch_items=1) as producer:
                await producer.produce(b"0")
                assert producer._lane.address == b.address
    assert b.stored == [b"0"]


async def test_a_producer_leaves_a_node_that_falls_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(produce_stream, "PATIENCE_SECONDS_MIN", 0.05)
    async with cluster("a", "b") as (a, b), Client(a.address) as client:
        async with client.producer("q", batch_items=1) as producer:
            await producer.produce(b"0")
            await until(lambda: len(client._nodes().addresses) == 2)
            a.silent = True
            # Items that the silent node has stored are not stored again.
            await producer.produce_many([b"1", b"2"])
            assert producer._lane.address == b.address
    assert a.stored == b.stored == [b"0", b"1", b"2"]


async def test_a_producer_stays_with_a_slow_node_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(produce_stream, "PATIENCE_SECONDS_MIN", 0.01)
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q", batch_items=1) as producer:
            await producer.produce(b"0")
            node.silent = True
            looked = asyncio.get_running_loop().time() + 0.1
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(producer.produce(b"1"))
                await until(lambda: asyncio.get_running_loop().time() > looked)
                assert node.produce_streams == 1
                waiting.cancel()
            # The cancelled produce does not delay the close.
            await producer.close()


async def test_a_consumer_leaves_a_node_that_is_cut_off():
    async with cluster("a", "b") as (a, b):
        await a.make_ready([b"x"])
        async with (
            Client([a.address, b.address]) as client,
            client.consumer("q", idle_timeout=timedelta(seconds=5)) as consumer,
        ):
            item = await anext(consumer)
            [left] = [node for node in (a, b) if node.subscriptions]
            [other] = [node for node in (a, b) if node is not left]
            left.unsettled.append(errors_pb2.ERROR_CODE_UNAVAILABLE)
            await item.complete()
            assert (len(left.settles), len(other.settles)) == (1, 1)


async def test_what_a_node_says_is_told_rather_than_that_another_one_is_silent():
    async with FakeNode.running() as node:
        node.decide = lambda _: refusal("UNAVAILABLE")
        async with Client([node.address, NOBODY, "127.0.0.1:2"], request_timeout=SOON) as client:
            with pytest.raises(Unavailable, match="told to say UNAVAILABLE"):
                await client.produce("q", b"x")


async def test_a_settle_of_many_keeps_what_is_known_when_a_repeat_is_refused():
    """One lease is completed, and the outcome of another one is unknown. The repeat for that lease
    is refused, which changes nothing about the completed one.
    """
    async with FakeNode.running() as node, Client(node.address) as client:
        node.unsettled.append(errors_pb2.ERROR_CODE_OUTCOME_UNKNOWN)
        node.completes.extend((None, refusal("QUEUE_NOT_FOUND")))
        unknown, done = await client.complete(
            "q", LeaseRef("1", (1,)), LeaseRef("2", (2,)), check=False
        )
        assert unknown.error is ErrorCode.OUTCOME_UNKNOWN
        assert (done.error, done.done) == (None, (2,))


async def test_leases_of_a_later_call_that_is_refused_have_the_refusal(monkeypatch):
    monkeypatch.setattr("querator.model.limits.REQUEST_LEASES_MAX", 1)
    async with FakeNode.running() as node, Client(node.address) as client:
        node.completes.extend((None, refusal("QUEUE_NOT_FOUND")))
        done, refused = await client.complete(
            "q", LeaseRef("1", (1,)), LeaseRef("2", (2,)), check=False
        )
        assert (done.error, done.done) == (None, (1,))
        assert (refused.lease_id, refused.error) == ("2", ErrorCode.QUEUE_NOT_FOUND)


async def test_a_lost_connection_is_logged_once_with_its_cause_and_when_it_is_there_again(caplog):
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.consumer("q") as consumer, client.producer("q") as producer:
            await node.make_ready([b"a"])
            await (await anext(consumer)).complete()
            await producer.produce(b"a")
            await node.stop()
            waiting = await producer.submit(b"b")
            await until(lambda: len(caplog.records) == 1)
            await node.start()
            await waiting
            await until(lambda: len(caplog.records) == 2)
    lost, again = caplog.records
    assert (lost.name, lost.levelname) == ("querator.client.connection", "WARNING")
    assert lost.getMessage().startswith(f"Lost the connection to {node.address}: ")
    assert re.fullmatch(f"Connected to {node.address} again after \\d+\\.\\d s", again.getMessage())


async def test_a_node_that_refuses_is_no_lost_connection(caplog):
    async with FakeNode.running() as node, Client(node.address) as client:
        node.stream_refusal = refusal("UNAVAILABLE")
        async with client.consumer("q") as consumer:
            await until(lambda: len(node.subscriptions) >= 4)
            node.stream_refusal = None
            await node.make_ready([b"a"])
            await (await anext(consumer)).complete()
    lines = [(record.name, record.getMessage()) for record in caplog.records]
    # On a busy machine gRPC may lose the connection for want of answers to its pings, which is
    # logged for what it is.
    assert [line for line in lines if "told to say UNAVAILABLE" in line[1]] == [
        (
            "querator.client.connection",
            f"{node.address} cannot serve requests at present: told to say UNAVAILABLE",
        )
    ]


def test_a_node_that_refuses_for_long_is_logged_once_a_minute(caplog):
    node = KnownNode("h:1", None, name="", given=True)
    for second in range(121):
        node.works(float(second))
        node.lost(make_error(ErrorCode.UNAVAILABLE, "no leader", request_id="r-1"), float(second))
    assert len(caplog.records) == 3
