"""SyncNode: a node for programs without an event loop."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from querator import SyncClient, SyncNode
from querator.client.errors import RequestError
from querator.storage.environment import StorageError


def test_it_serves_clients_in_the_block():
    with SyncNode(memory=True) as node, node.client(client_id="me") as client:
        assert not node.durable
        assert node.admin_address == ""
        assert client.client_id == "me"
        client.create_queue("q")
        client.produce("q", b"x")
        with SyncClient(node.address) as other:
            (item,) = other.lease("q")
            item.complete()
        assert client.stats("q").total.completed == 1


def test_data_of_a_directory_is_there_again(tmp_path: Path):
    for new in (True, False):
        with SyncNode(tmp_path / "data", new=new) as node, node.client() as client:
            assert node.durable
            client.create_queue("q")
            client.produce("q", b"x")
            assert client.stats("q").total.ready == (1 if new else 2)


def own_threads() -> set[threading.Thread]:
    """The threads without that of gRPC, which stays until the end of the process."""
    return {thread for thread in threading.enumerate() if "_poll_wrapper" not in thread.name}


def test_it_starts_and_stops_without_a_block():
    before = own_threads()
    node = SyncNode(memory=True, listen_admin="127.0.0.1:0")
    node.start()
    with pytest.raises(RuntimeError, match="runs already"):
        node.start()
    assert node.admin_address.startswith("127.0.0.1:")
    with node.client(request_timeout=timedelta(seconds=0.5)) as client:
        client.create_queue("q")
        node.stop()
        with pytest.raises(RequestError):
            client.get_queue("q")
    node.stop()
    assert own_threads() <= before


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path):
    before = own_threads()
    with pytest.raises(ValueError, match="give one of"):
        SyncNode()
    node = SyncNode(tmp_path / "empty")
    with pytest.raises(StorageError):
        node.start()
    assert own_threads() <= before


def test_a_list_may_be_the_first_call_of_a_client():
    with SyncNode(memory=True) as node:
        with node.client() as client:
            assert list(client.list_queues()) == []
        with node.client() as client:
            client.create_queue("q")
        with node.client() as client:
            assert list(client.peek("q")) == []
