"""`querator lease` of chosen items: what is sent, shown and refused."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from querator.cli import querator
from querator.v1 import items_pb2
from querator.v1 import queue_service_pb2 as pb
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster


class Leases:
    def __init__(self, cluster: ScriptedCluster) -> None:
        self.requests: list[pb.LeaseRequest] = []
        self.batches = [
            items_pb2.LeasedBatch(
                lease_id="1.0.2", first_seq=17, attempt=1, items=[items_pb2.Item(payload=b"x")]
            )
        ]
        self._cluster = cluster
        cluster.answers["Lease"] = self._lease

    def _lease(self, data: bytes) -> pb.LeaseResponse:
        self.requests.append(pb.LeaseRequest.FromString(data))
        return pb.LeaseResponse(batches=self.batches)

    def run(self, *arguments: str) -> Result:
        command = ["lease", "mail", *arguments, "--address", self._cluster.address]
        return CliRunner().invoke(querator, command)


@pytest.fixture
def leases() -> Iterator[Leases]:
    with scripted_cluster() as scripted:
        yield Leases(scripted)


def test_items_by_id(leases: Leases) -> None:
    run = leases.run("--id", "0-17", "--id", "0-18")
    assert run.exit_code == 0, run.output
    assert "0-17" in run.output
    [request] = leases.requests
    assert (list(request.item_ids), request.max_items) == (["0-17", "0-18"], 2)
    assert not request.HasField("filter")


def test_items_that_are_completed_on_delivery(leases: Leases) -> None:
    assert leases.run("--complete-on-delivery", "--wait", "5s").exit_code == 0
    [request] = leases.requests
    assert request.complete_on_delivery
    assert not request.item_ids


def test_items_by_kind_and_attribute(leases: Leases) -> None:
    leases.batches = []
    run = leases.run("--kind", "fax", "--attribute", "to=ann", "--max-items", "3")
    assert (run.exit_code, run.output) == (0, "No such item is ready.\n")
    [request] = leases.requests
    assert (list(request.filter.kinds), dict(request.filter.attributes)) == (
        ["fax"], {"to": "ann"},
    )  # fmt: skip
    assert (request.max_items, list(request.item_ids)) == (3, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--id", "0-1", "--kind", "fax"), "Give --id, or --kind and --attribute, not both."),
        (("--kind", "fax", "--wait", "1s"), "--wait is not for chosen items: leave it out."),
    ],
)
def test_choices_that_exclude_each_other(
    leases: Leases, arguments: tuple[str, ...], words: str
) -> None:
    run = leases.run(*arguments)
    assert (run.exit_code, leases.requests) == (2, [])
    assert words in run.output
