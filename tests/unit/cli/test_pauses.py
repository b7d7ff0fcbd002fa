"""`querator queue pause|resume` and `querator group pause|resume`."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from querator.cli import querator
from querator.v1 import admin_service_pb2 as pb
from tests.unit.cli.scripted_cluster import scripted_cluster


class Cluster:
    """A queue that has the settings of the last update."""

    def __init__(self) -> None:
        self.queue = pb.Queue(
            namespace="default",
            name="mail",
            state=pb.QUEUE_STATE_ACTIVE,
            settings=pb.QueueSettings(
                kind=pb.QUEUE_KIND_FAIR,
                groups=[pb.GroupSettings(path="eu", weight=3, leased_max=9)],
            ),
            settings_version=7,
        )
        self.updates: list[pb.UpdateQueueRequest] = []
        self.address = ""

    def update(self, data: bytes) -> pb.UpdateQueueResponse:
        request = pb.UpdateQueueRequest.FromString(data)
        self.updates.append(request)
        for path in request.update_mask.paths:
            self.queue.settings.ClearField(path)  # type: ignore[arg-type]
        self.queue.settings.MergeFrom(request.settings)
        return pb.UpdateQueueResponse(queue=self.queue)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(querator, [*arguments, "--address", self.address])

    def changed(self) -> list[tuple[str, bool]]:
        """The settings of the only update."""
        [request] = self.updates
        return [(path, getattr(request.settings, path)) for path in request.update_mask.paths]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with scripted_cluster() as scripted:
        cluster = Cluster()
        cluster.address = scripted.address
        scripted.answers |= {
            "UpdateQueue": cluster.update,
            "GetQueue": lambda _: pb.GetQueueResponse(queue=cluster.queue),
            "ListQueues": lambda _: pb.ListQueuesResponse(queues=[cluster.queue]),
            "GetQueueStats": lambda _: pb.GetQueueStatsResponse(queue=cluster.queue, durable=True),
        }
        yield cluster


@pytest.mark.parametrize(
    ("options", "changed", "says"),
    [
        ((), [("lease_paused", True)], "leases paused"),
        (("--leases",), [("lease_paused", True)], "leases paused"),
        (("--producers",), [("produce_paused", True)], "producers paused"),
        (
            ("--producers", "--leases"),
            [("lease_paused", True), ("produce_paused", True)],
            "leases and producers paused",
        ),
    ],
)
def test_pause_sets_what_is_named(
    cluster: Cluster, options: tuple[str, ...], changed: list[tuple[str, bool]], says: str
) -> None:
    run = cluster.run("queue", "pause", "mail", *options)
    assert (run.exit_code, run.output) == (0, f"Queue mail: {says}.\n")
    assert cluster.changed() == changed


@pytest.mark.parametrize(
    ("options", "changed", "says"),
    [
        ((), [("lease_paused", False), ("produce_paused", False)], "nothing is paused"),
        (("--leases",), [("lease_paused", False)], "producers paused"),
        (("--producers",), [("produce_paused", False)], "leases paused"),
    ],
)
def test_resume_takes_back_what_is_named(
    cluster: Cluster, options: tuple[str, ...], changed: list[tuple[str, bool]], says: str
) -> None:
    cluster.queue.settings.lease_paused = cluster.queue.settings.produce_paused = True
    run = cluster.run("queue", "resume", "mail", *options)
    assert (run.exit_code, run.output) == (0, f"Queue mail: {says}.\n")
    assert cluster.changed() == changed


def test_a_pause_is_shown_wherever_queues_are(cluster: Cluster) -> None:
    cluster.queue.settings.lease_paused = True
    assert "leases paused" in cluster.run("queue", "list").output
    assert "consumers get no items" in cluster.run("queue", "info", "mail").output
    shown = cluster.run("stats", "mail").output
    assert "mail: leases paused; continue with querator queue resume mail." in shown


def test_groups_are_paused_and_keep_their_settings(cluster: Cluster) -> None:
    run = cluster.run("group", "pause", "mail", "eu", "us.ny")
    assert (run.exit_code, run.output) == (0, "Queue mail: paused groups: eu, us.ny.\n")
    [request] = cluster.updates
    assert (list(request.update_mask.paths), request.expected_version) == (["groups"], 7)
    assert [
        (one.path, one.weight, one.leased_max, one.paused) for one in request.settings.groups
    ] == [("eu", 3, 9, True), ("us.ny", 1, 0, True)]
    assert "groups paused: eu, us.ny" in cluster.run("stats", "mail").output


def test_a_group_that_resumes_leaves_no_settings_that_it_did_not_have(cluster: Cluster) -> None:
    cluster.run("group", "pause", "mail", "eu", "us.ny")
    run = cluster.run("group", "resume", "mail", "us.ny")
    assert run.output == "Queue mail: paused groups: eu.\n"
    run = cluster.run("group", "resume", "mail", "--all")
    assert run.output == "Queue mail: paused groups: none.\n"
    assert [(one.path, one.leased_max, one.paused) for one in cluster.queue.settings.groups] == [
        ("eu", 9, False)
    ]


@pytest.mark.parametrize("arguments", [(), ("eu", "--all")])
def test_resume_needs_groups_or_all(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    run = cluster.run("group", "resume", "mail", *arguments)
    assert run.exit_code == 2
    assert "Name groups, or give --all." in run.output
    assert not cluster.updates


def test_a_group_that_is_no_path_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    run = cluster.run("group", "pause", "mail", "eu..de")
    assert run.exit_code == 2
    assert "has an empty part" in run.output
    assert not cluster.updates


def test_json_shows_the_pauses(cluster: Cluster) -> None:
    run = cluster.run("queue", "pause", "mail", "--output", "json")
    assert '"lease_paused": true' in run.output or '"lease_paused":true' in run.output
