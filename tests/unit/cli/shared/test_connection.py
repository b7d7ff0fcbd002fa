"""What commands say while they wait for a cluster."""

import asyncio

import pytest

from querator.cli.shared import connection
from querator.cli.shared.connection import saying_what_it_waits_for
from querator.client import Client
from querator.v1 import errors_pb2, queue_service_pb2
from tests.unit.client.fake_node import FakeNode, refusal

BOUND_S = 20


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notes of the command, which are made without waiting."""
    noted: list[str] = []
    monkeypatch.setattr(connection, "note", noted.append)
    monkeypatch.setattr(connection, "WAIT_NOTED_S", 0.0)
    monkeypatch.setattr(connection, "_LOOK_S", 0.01)
    return noted


@pytest.mark.parametrize("streams", [False, True], ids=["call", "stream"])
async def test_a_request_that_is_repeated_says_why_once(notes: list[str], streams: bool) -> None:
    async with FakeNode.running() as node, Client(node.address) as client:
        refused = 0

        def decide(_: queue_service_pb2.ProduceRequest) -> errors_pb2.Error | None:
            nonlocal refused
            refused += 1
            return None if notes and refused > 3 else refusal("STORAGE_FULL")

        async def produce() -> None:
            if not streams:
                await client.produce("q", b"a")
                return
            async with client.producer("q") as producer:
                await producer.produce(b"a")

        node.decide = decide
        async with asyncio.timeout(BOUND_S):
            await saying_what_it_waits_for(client, produce())
        assert client.waits_for(0) is None
    assert notes == ["Waiting: told to say STORAGE_FULL."]
    assert node.stored == [b"a"]


async def test_a_command_without_refusals_says_nothing(notes: list[str]) -> None:
    async with FakeNode.running() as node, Client(node.address) as client:
        await saying_what_it_waits_for(client, client.produce("q", b"a"))
    assert notes == []


async def test_a_missing_leader_is_not_noted_beside_the_line_of_the_client(
    notes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    lost = refusal("UNAVAILABLE")
    lost.message = "partition 0 of queue q has no leader (b, c unreachable); not executed"
    async with FakeNode.running() as node, Client(node.address) as client:
        answers = [lost] * 4
        node.decide = lambda _: answers.pop() if answers else None
        await saying_what_it_waits_for(client, client.produce("q", b"a"))
    assert notes == []
    assert [one.getMessage() for one in caplog.records if "no leader" in one.getMessage()] == [
        f"Waiting: {lost.message}"
    ]
