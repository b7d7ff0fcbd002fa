"""`querator peek`: items by id, and lists that begin after an id."""

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from querator.cli import querator
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster


def item(seq: int) -> pb.PeekedItem:
    return pb.PeekedItem(
        seq=seq, state=items_pb2.ITEM_STATE_READY, item=items_pb2.Item(payload=b"x")
    )


class Peeks:
    """A cluster with a script of answers, and the requests that it got."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.requests: list[Any] = []
        self.found = [pb.GetItemsResponse(items=[item(3)], missing=["0-9"])]
        self._cluster = cluster
        cluster.answers = {"GetItems": self._get, "PeekItems": self._peek}

    def _get(self, data: bytes) -> pb.GetItemsResponse:
        self.requests.append(pb.GetItemsRequest.FromString(data))
        return self.found.pop(0)

    def _peek(self, data: bytes) -> pb.PeekItemsResponse:
        self.requests.append(pb.PeekItemsRequest.FromString(data))
        return pb.PeekItemsResponse(items=[item(18)])

    def run(self, *arguments: str) -> Result:
        command = ["peek", "mail", *arguments, "--address", self._cluster.address]
        return CliRunner().invoke(querator, command)


@pytest.fixture
def peeks() -> Iterator[Peeks]:
    with scripted_cluster() as scripted:
        yield Peeks(scripted)


def test_items_by_id_and_the_number_of_those_that_are_gone(peeks: Peeks) -> None:
    run = peeks.run("--id", "0-3", "--id", "0-9", "--stale")
    assert run.exit_code == 1
    assert "Gone, or never there: 1 item." in run.output
    assert "0-3" in run.output
    [request] = peeks.requests
    assert (list(request.item_ids), request.stale) == (["0-3", "0-9"], True)


def test_items_that_are_not_in_the_answer_are_asked_for_again(peeks: Peeks) -> None:
    peeks.found = [
        pb.GetItemsResponse(items=[item(3)], unread=["0-4"]),
        pb.GetItemsResponse(items=[item(4)]),
    ]
    run = peeks.run("--id", "0-4", "--id", "0-3", "--output", "json")
    assert run.exit_code == 0, run.output
    assert ['"0-4"' in line for line in run.output.splitlines()] == [True, False]
    assert [list(request.item_ids) for request in peeks.requests] == [["0-4", "0-3"], ["0-4"]]


def test_a_list_begins_after_an_item(peeks: Peeks) -> None:
    run = peeks.run("--after", "0-17", "--state", "ready")
    assert run.exit_code == 0, run.output
    [request] = peeks.requests
    assert (request.after_item_id, request.state) == ("0-17", items_pb2.ITEM_STATE_READY)


@pytest.mark.parametrize("other", [("--after", "0-1"), ("--state", "ready")])
def test_an_id_is_for_any_state(peeks: Peeks, other: tuple[str, str]) -> None:
    run = peeks.run("--id", "0-3", *other)
    assert (run.exit_code, peeks.requests) == (2, [])
    assert "leave --state and --after out" in run.output
