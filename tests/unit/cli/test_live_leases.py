"""`querator leases`."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.timestamp_pb2 import Timestamp

from querator.cli import querator
from querator.v1 import admin_service_pb2 as pb
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster


def lease(number: int, client: str, *, age_s: float, left_s: float) -> pb.LeaseInfo:
    now = datetime.now(UTC)
    granted, deadline = Timestamp(), Timestamp()
    granted.FromDatetime(now - timedelta(seconds=age_s))
    deadline.FromDatetime(now + timedelta(seconds=left_s))
    return pb.LeaseInfo(
        lease_id=f"1.0.{number}", client_id=client, items=number,
        granted_at=granted, extended_at=granted, deadline=deadline,
    )  # fmt: skip


class Leases:
    """A cluster with two live leases, and the requests that it got."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.live = [
            lease(2, "worker-2", age_s=10, left_s=20.4),
            lease(7, "worker\x1b-7", age_s=7_260, left_s=30.4),
        ]
        self.listed: list[pb.ListLeasesRequest] = []
        self.released: list[pb.ReleaseLeasesRequest] = []
        self._cluster = cluster
        cluster.answers = {"ListLeases": self._list, "ReleaseLeases": self._release}

    def _list(self, data: bytes) -> pb.ListLeasesResponse:
        self.listed.append(pb.ListLeasesRequest.FromString(data))
        return pb.ListLeasesResponse(leases=self.live)

    def _release(self, data: bytes) -> pb.ReleaseLeasesResponse:
        self.released.append(pb.ReleaseLeasesRequest.FromString(data))
        return pb.ReleaseLeasesResponse(released=9)

    def run(self, *arguments: str) -> Result:
        command = ["leases", *arguments, "--address", self._cluster.address]
        return CliRunner().invoke(querator, command)


@pytest.fixture
def leases() -> Iterator[Leases]:
    with scripted_cluster() as scripted:
        yield Leases(scripted)


def test_the_oldest_lease_is_first(leases: Leases) -> None:
    run = leases.run("list", "mail")
    assert run.exit_code == 0, run.output
    head, _, first, second = run.output.splitlines()
    assert head.split() == ["lease", "client", "items", "leased", "for", "ends", "in"]
    assert first.split() == ["1.0.7", "worker\\x1b-7", "7", "2h1m", "30s"]
    assert second.split() == ["1.0.2", "worker-2", "2", "10s", "20s"]


def test_json_has_a_lease_on_each_line(leases: Leases) -> None:
    run = leases.run("list", "mail", "--output", "json")
    views = [msgspec.json.decode(line) for line in run.output.splitlines()]
    assert [(view["lease_id"], view["items"]) for view in views] == [("1.0.7", 7), ("1.0.2", 2)]


def test_list_sends_what_options_choose(leases: Leases) -> None:
    leases.live = []
    run = leases.run("list", "mail", "--client-id", "worker-7", "--older-than", "1h")
    assert (run.exit_code, run.output) == (0, "No such lease is live.\n")
    [request] = leases.listed
    assert (request.queue, request.client_id) == ("mail", "worker-7")
    assert request.older_than.ToSeconds() == 3_600


def test_list_says_what_it_leaves_out_and_that_there_is_none(leases: Leases) -> None:
    assert "1 more leases; see --limit." in leases.run("list", "mail", "--limit", "1").output
    leases.live = []
    assert leases.run("list", "mail").output == "No lease is live.\n"


def test_release_by_id(leases: Leases) -> None:
    run = leases.run("release", "mail", "1.0.2", "1.0.7", "--yes", "--count-attempt")
    assert (run.exit_code, run.output) == (0, "9 items returned to the queue.\n")
    [request] = leases.released
    assert (list(request.lease_ids), request.count_attempt) == (["1.0.2", "1.0.7"], True)
    assert leases.listed == []


def test_release_by_client_and_age_names_the_leases_that_it_has_found(leases: Leases) -> None:
    run = leases.run("release", "mail", "--client-id", "c", "--older-than", "1m", "--yes")
    assert run.exit_code == 0, run.output
    [asked], [request] = leases.listed, leases.released
    assert (asked.client_id, asked.older_than.ToSeconds()) == ("c", 60)
    assert list(request.lease_ids) == ["1.0.7", "1.0.2"]
    assert not request.count_attempt


def test_without_a_lease_nothing_is_asked_or_sent(leases: Leases) -> None:
    leases.live = []
    run = leases.run("release", "mail", "--older-than", "1h", "--yes", "--output", "json")
    assert (run.exit_code, msgspec.json.decode(run.output)) == (0, {"released": 0})
    assert leases.released == []


@pytest.mark.parametrize(
    "arguments", [(), ("1.0.2", "--client-id", "c"), ("1.0.2", "--older-than=1h")]
)
def test_release_names_leases_or_chooses_them(leases: Leases, arguments: tuple[str, ...]) -> None:
    run = leases.run("release", "mail", *arguments, "--yes")
    assert run.exit_code == 2
    assert "Name the leases (see `querator leases list`), or choose them" in run.output
    assert leases.released == []
