"""The fixtures of `querator.testing`."""

from datetime import timedelta
from typing import Any

import pytest

from querator import SyncClient, SyncNode, testing
from querator.client import Item


def test_time_passes_without_the_clock(querator_client: SyncClient):
    client = querator_client
    client.create_queue("q")
    client.produce("q", Item(b"x", delay=timedelta(milliseconds=200)))
    (item,) = client.lease("q", wait=timedelta(seconds=10))
    item.complete()


async def test_async_clients_use_the_node_of_a_test(querator_node: SyncNode):
    async with querator_node.async_client() as client:
        await client.create_queue("q")
        await client.produce("q", b"x")
        (item,) = await client.lease("q")
        await item.complete()
        assert (await client.stats("q")).total.completed == 1


def test_each_test_has_its_own_node(querator_node: SyncNode, querator_client: SyncClient):
    assert not querator_node.durable
    assert querator_client.address == querator_node.address
    assert list(querator_client.list_queues()) == []


def test_tests_share_the_node_of_a_session_and_no_queue(
    querator_session_node: SyncNode, querator_session_client: SyncClient
):
    assert querator_session_client.create_queue("q").created
    with querator_session_node.client() as client:
        assert client.namespace != querator_session_client.namespace
        assert list(client.list_queues()) == []


def test_the_plug_in_says_which_packages_are_missing(monkeypatch: pytest.MonkeyPatch):
    def missing(_: str) -> Any:
        raise ModuleNotFoundError("no lmdb", name="lmdb")

    testing.pytest_configure(None)
    monkeypatch.setattr(testing, "import_module", missing)
    with pytest.raises(
        pytest.UsageError, match=r"needs querator\[server\] \(lmdb is not installed"
    ):
        testing.pytest_configure(None)
