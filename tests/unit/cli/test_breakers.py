"""`querator queue breaker open|close`, the options of breakers, and where breakers are shown."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.cli import querator
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import queue_service_pb2
from tests.unit.cli.scripted_cluster import scripted_cluster


def breaker(**changes: Any) -> pb.BreakerSettings:
    values: dict[str, Any] = {
        "failure_percent": 40, "outcomes_min": 10, "window": Duration(seconds=120),
        "open_time": Duration(seconds=15), "probes": 2,
    }  # fmt: skip
    return pb.BreakerSettings(**(values | changes))


class Cluster:
    """A queue that has the settings of the last request."""

    def __init__(self) -> None:
        self.queue = pb.Queue(
            namespace="default", name="mail", state=pb.QUEUE_STATE_ACTIVE, settings_version=7
        )
        self.partitions: list[pb.PartitionStats] = []
        self.updates: list[pb.UpdateQueueRequest] = []
        self.set: list[pb.SetBreakerRequest] = []
        self.address = ""

    def update(self, data: bytes) -> pb.UpdateQueueResponse:
        request = pb.UpdateQueueRequest.FromString(data)
        self.updates.append(request)
        for path in request.update_mask.paths:
            self.queue.settings.ClearField(path)  # type: ignore[arg-type]
        self.queue.settings.MergeFrom(request.settings)
        return pb.UpdateQueueResponse(queue=self.queue)

    def create(self, data: bytes) -> pb.CreateQueueResponse:
        self.queue.settings.CopyFrom(pb.CreateQueueRequest.FromString(data).settings)
        return pb.CreateQueueResponse(queue=self.queue, created=True)

    def set_breaker(self, data: bytes) -> pb.SetBreakerResponse | QueratorError:
        self.set.append(pb.SetBreakerRequest.FromString(data))
        if not self.queue.settings.HasField("breaker"):
            return QueratorError(ErrorCode.INVALID_ARGUMENT, "queue has no breaker", field="queue")
        return pb.SetBreakerResponse(changed=2)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(querator, [*arguments, "--address", self.address])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with scripted_cluster() as scripted:
        cluster = Cluster()
        cluster.address = scripted.address
        scripted.answers |= {
            "CreateQueue": cluster.create,
            "UpdateQueue": cluster.update,
            "GetQueue": lambda _: pb.GetQueueResponse(queue=cluster.queue),
            "GetQueueStats": lambda _: pb.GetQueueStatsResponse(
                queue=cluster.queue, partitions=cluster.partitions, durable=True
            ),
            "SetBreaker": cluster.set_breaker,
            "Lease": queue_service_pb2.LeaseResponse(),
        }
        yield cluster


def opened(cluster: Cluster) -> None:
    cluster.queue.settings.breaker.CopyFrom(breaker())
    cluster.partitions = [
        pb.PartitionStats(
            partition=0,
            breaker=pb.BreakerStats(
                state=pb.BREAKER_STATE_OPEN,
                since=Timestamp(seconds=1_700_000_000),
                until=Timestamp(seconds=1_700_000_015),
                outcomes=12,
                failures=9,
            ),
        ),
        pb.PartitionStats(
            partition=1,
            breaker=pb.BreakerStats(
                state=pb.BREAKER_STATE_HALF_OPEN,
                since=Timestamp(seconds=1_700_000_000),
                probes_passed=1,
            ),
        ),
        pb.PartitionStats(
            partition=2,
            breaker=pb.BreakerStats(
                state=pb.BREAKER_STATE_CLOSED, since=Timestamp(seconds=1_700_000_000)
            ),
        ),
    ]


def test_a_queue_is_created_with_a_breaker(cluster: Cluster):
    run = cluster.run(
        "queue", "create", "mail", "--breaker-percent", "40", "--breaker-outcomes", "10",
        "--breaker-window", "2m", "--breaker-open", "15s", "--breaker-probes", "2",
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert cluster.queue.settings.breaker == breaker()
    assert "opens at 40 % failures of 10 outcomes or more in 2m, for 15s" in run.output
    assert "closes after 2 single items" in run.output


def test_a_breaker_with_the_defaults(cluster: Cluster):
    assert cluster.run("queue", "create", "mail", "--breaker").exit_code == 0
    assert cluster.queue.settings.breaker.failure_percent == 50
    assert cluster.queue.settings.breaker.probes == 3


def test_no_option_sets_none(cluster: Cluster):
    assert cluster.run("queue", "create", "mail").exit_code == 0
    assert not cluster.queue.settings.HasField("breaker")


def test_an_update_keeps_the_rest_of_the_breaker(cluster: Cluster):
    cluster.queue.settings.breaker.CopyFrom(breaker())
    assert cluster.run("queue", "update", "mail", "--breaker-percent", "70").exit_code == 0
    [request] = cluster.updates
    assert (list(request.update_mask.paths), request.expected_version) == (["breaker"], 7)
    assert request.settings.breaker == breaker(failure_percent=70)


def test_an_update_removes_the_breaker(cluster: Cluster):
    cluster.queue.settings.breaker.CopyFrom(breaker())
    assert cluster.run("queue", "update", "mail", "--no-breaker").exit_code == 0
    [request] = cluster.updates
    assert list(request.update_mask.paths) == ["breaker"]
    assert not cluster.queue.settings.HasField("breaker")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--no-breaker", "--breaker-probes", "2"), "--no-breaker without other options"),
        (("--breaker-percent", "0"), "not a whole number from 1 to 100"),
        (("--breaker-percent", "101"), "not a whole number from 1 to 100"),
        (("--breaker-outcomes", "0"), "not a whole number from 1 to 1000000"),
        (("--breaker-window", "1ms"), "--breaker-window is 1ms; at least 1s"),
        (("--breaker-open", "2d"), "--breaker-open is 2d; at most 24h"),
        (("--breaker-probes", "1001"), "not a whole number from 1 to 1000"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    cluster: Cluster, options: tuple[str, ...], says: str
):
    run = cluster.run("queue", "update", "mail", *options)
    assert run.exit_code == 2
    assert says in " ".join(run.output.split())
    assert not cluster.updates


@pytest.mark.parametrize(
    ("word", "state", "says"),
    [("open", pb.BREAKER_STATE_OPEN, "open"), ("close", pb.BREAKER_STATE_CLOSED, "closed")],
)
def test_it_is_set_by_hand(cluster: Cluster, word: str, state: int, says: str):
    cluster.queue.settings.breaker.CopyFrom(breaker())
    run = cluster.run("queue", "breaker", word, "mail")
    assert (run.exit_code, run.output) == (
        0, f"The breaker of mail is {says}; 2 partitions changed.\n",
    )  # fmt: skip
    [request] = cluster.set
    assert (request.queue, request.state) == ("mail", state)
    run = cluster.run("queue", "breaker", word, "mail", "--output", "json")
    assert msgspec.json.decode(run.output) == {"queue": "mail", "state": says, "changed": 2}


def test_a_queue_without_a_breaker_is_refused(cluster: Cluster):
    run = cluster.run("queue", "breaker", "open", "mail")
    assert run.exit_code == 3
    assert "has no breaker" in run.output


def test_info_shows_the_settings_and_each_partition(cluster: Cluster):
    opened(cluster)
    shown = cluster.run("queue", "info", "mail").output
    assert "opens at 40 % failures" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert [row[:2] for row in rows if row and row[0] in "012"] == [
        ["0", "open"], ["1", "half-open"], ["2", "closed"],
    ]  # fmt: skip
    assert "2023-11-14T22:13:35Z" in shown


def test_json_shows_the_settings(cluster: Cluster):
    opened(cluster)
    shown = msgspec.json.decode(cluster.run("queue", "info", "mail", "--output", "json").output)
    assert shown["breaker"] == {
        "failure_percent": 40, "outcomes_min": 10, "window_ms": 120_000, "open_time_ms": 15_000,
        "probes": 2,
    }  # fmt: skip


def test_stats_say_what_the_breakers_do(cluster: Cluster):
    opened(cluster)
    shown = " ".join(cluster.run("stats", "mail", "--partitions").output.split())
    assert "mail: the breaker is open in 1 of 3 partitions, the first until 2023-11-14" in shown
    assert "half-open in 1 of 3 partitions: single items are tried." in shown
    assert "Close it with querator queue breaker close mail." in shown
    assert "0 open 2023-11-14" in shown
    assert "the breaker is" not in cluster.run("stats", "mail", "--output", "json").output


def test_stats_of_closed_breakers_say_nothing(cluster: Cluster):
    opened(cluster)
    del cluster.partitions[:2]
    assert "the breaker is" not in cluster.run("stats", "mail").output


def test_a_lease_that_gets_nothing_says_why(cluster: Cluster):
    assert cluster.run("lease", "mail").output == "Nothing is ready.\n"
    opened(cluster)
    assert "mail: the breaker is open in 1 of 3 partitions" in cluster.run("lease", "mail").output
    del cluster.partitions[:2]
    assert cluster.run("lease", "mail").output == "Nothing is ready.\n"
    cluster.queue.settings.lease_paused = True
    assert cluster.run("lease", "mail").output == (
        "Leases of mail are paused. Continue with: querator queue resume mail\n"
    )
    assert cluster.run("lease", "mail", "--output", "json").output == ""
