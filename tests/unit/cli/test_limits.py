"""The options of limits of leases, and where limits are shown."""

from collections.abc import Iterator
from datetime import timedelta

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.cli import querator
from querator.cli.limits import RateType, rate_text
from querator.client import RateLimit
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import queue_service_pb2
from tests.unit.cli.scripted_cluster import scripted_cluster


class Cluster:
    """A queue that has the settings of the last request."""

    def __init__(self) -> None:
        self.queue = pb.Queue(
            namespace="default", name="mail", state=pb.QUEUE_STATE_ACTIVE, settings_version=7
        )
        self.partitions: list[pb.PartitionStats] = []
        self.updates: list[pb.UpdateQueueRequest] = []
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

    def stats(self, _: bytes) -> pb.GetQueueStatsResponse:
        total = pb.PartitionStats(
            ready=sum(one.ready for one in self.partitions),
            leased=sum(one.leased for one in self.partitions),
        )
        return pb.GetQueueStatsResponse(
            queue=self.queue, total=total, partitions=self.partitions, durable=True
        )

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
            "GetQueueStats": cluster.stats,
            "Lease": queue_service_pb2.LeaseResponse(),
        }
        yield cluster


def limited(cluster: Cluster) -> None:
    """One partition waits for tokens, one is at its limit of leased items, one is free."""
    cluster.queue.settings.rate_limit.CopyFrom(
        pb.RateLimit(items=10, interval=Duration(seconds=60), burst=6)
    )
    cluster.queue.settings.lease_limit = 9
    cluster.partitions = [
        pb.PartitionStats(
            partition=0, ready=40, leased=1,
            limits=pb.LimitStats(
                burst=2, lease_limit=3, next_at=Timestamp(seconds=1_700_000_015)
            ),
        ),
        pb.PartitionStats(
            partition=1, ready=50, leased=3,
            limits=pb.LimitStats(tokens=2, burst=2, lease_limit=3),
        ),
        pb.PartitionStats(
            partition=2, ready=1, leased=0,
            limits=pb.LimitStats(tokens=2, burst=2, lease_limit=3),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "items", "interval_s"),
    [
        ("10/s", 10, 1), ("0.5/s", 1, 2), ("10/m", 10, 60), ("2.5/m", 5, 120), ("7/2h", 7, 7200),
        ("1/d", 1, 86_400), ("1000000/s", 1_000_000, 1),
    ],
)  # fmt: skip
def test_rates(text: str, items: int, interval_s: int):
    rate = RateType().convert(text, None, None)
    assert rate == RateLimit(items, timedelta(seconds=interval_s))
    assert isinstance(rate, RateLimit)
    assert RateType().convert(rate_text(rate), None, None) == rate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "10/",
        "/s",
        "-1/s",
        "0/s",
        "x/s",
        "10/x",
        "10/s/s",
        "10/0s",
        "nan/s",
        "inf/s",
        "1e3/s",
    ],
)
def test_what_is_no_rate(text: str):
    with pytest.raises(click.BadParameter, match="is not a rate; write for example 100/s"):
        RateType().convert(text, None, None)


@pytest.mark.parametrize("text", ["1000001/s", "1/2d", "0.000001/s", "1/500ms", "0.001/999999d"])
def test_rates_out_of_range(text: str):
    with pytest.raises(click.BadParameter, match="a rate has 1 to 1,000,000 items in 1s to 1d"):
        RateType().convert(text, None, None)


def test_a_queue_is_created_with_limits(cluster: Cluster):
    run = cluster.run(
        "queue", "create", "mail", "--rate-limit", "0.5/s", "--rate-burst", "4",
        "--lease-limit", "20",
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    settings = cluster.queue.settings
    assert settings.rate_limit == pb.RateLimit(items=1, interval=Duration(seconds=2), burst=4)
    assert settings.lease_limit == 20
    assert "1/2s, bursts of 4" in run.output
    assert "20 items at a time" in run.output


def test_a_burst_needs_a_rate(cluster: Cluster):
    run = cluster.run("queue", "create", "mail", "--rate-burst", "4")
    assert run.exit_code == 2
    assert "Give --rate-burst together with --rate-limit." in run.output
    assert not cluster.queue.settings.ByteSize()


def test_no_option_sets_none(cluster: Cluster):
    assert cluster.run("queue", "create", "mail").exit_code == 0
    assert not cluster.queue.settings.HasField("rate_limit")
    assert not cluster.queue.settings.HasField("lease_limit")


@pytest.mark.parametrize(
    ("options", "items", "burst"),
    [(("--rate-limit", "20/m"), 20, 6), (("--rate-burst", "8"), 10, 8)],
)
def test_an_update_keeps_the_rest_of_the_rate(
    cluster: Cluster, options: tuple[str, ...], items: int, burst: int
):
    limited(cluster)
    assert cluster.run("queue", "update", "mail", *options).exit_code == 0
    [request] = cluster.updates
    assert (list(request.update_mask.paths), request.expected_version) == (["rate_limit"], 7)
    assert request.settings.rate_limit == pb.RateLimit(
        items=items, interval=Duration(seconds=60), burst=burst
    )


def test_an_update_removes_the_limits(cluster: Cluster):
    limited(cluster)
    run = cluster.run("queue", "update", "mail", "--rate-limit", "0", "--lease-limit", "0")
    assert run.exit_code == 0, run.output
    [request] = cluster.updates
    assert sorted(request.update_mask.paths) == ["lease_limit", "rate_limit"]
    assert not cluster.queue.settings.HasField("rate_limit")
    assert cluster.queue.settings.lease_limit == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--rate-limit", "fast"), "'fast' is not a rate"),
        (("--rate-limit", "0", "--rate-burst", "2"), "--rate-limit 0 without --rate-burst"),
        (("--rate-burst", "2"), "mail has no rate limit; give --rate-limit, too"),
        (("--rate-burst", "1000001"), "not a whole number from 0 to 1000000"),
        (("--lease-limit", "-1"), "not a whole number from 0 to 1000000"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    cluster: Cluster, options: tuple[str, ...], says: str
):
    run = cluster.run("queue", "update", "mail", *options)
    assert run.exit_code == 2
    assert says in " ".join(run.output.split())
    assert not cluster.updates


def test_info_shows_the_settings_and_each_partition(cluster: Cluster):
    limited(cluster)
    shown = cluster.run("queue", "info", "mail").output
    assert "10/m, bursts of 6" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert [row for row in rows if row and row[0] in "012"] == [
        ["0", "0", "2", "2023-11-14T22:13:35Z", "1", "3"],
        ["1", "2", "2", "3", "3"],
        ["2", "2", "2", "0", "3"],
    ]


def test_json_shows_the_settings(cluster: Cluster):
    limited(cluster)
    shown = msgspec.json.decode(cluster.run("queue", "info", "mail", "--output", "json").output)
    assert shown["rate_limit"] == {"items": 10, "interval_ms": 60_000, "burst": 6}
    assert shown["lease_limit"] == 9


def test_stats_say_what_the_limits_keep_back(cluster: Cluster):
    limited(cluster)
    shown = " ".join(cluster.run("stats", "mail", "--partitions").output.split())
    assert "mail: Behind the rate limit of 10/m in 1 of 3 partitions: 40 ready items" in shown
    assert "mail: Behind the limit of 9 leased items in 1 of 3 partitions: 50 ready" in shown
    assert "limits of tokens burst" in shown


def test_stats_of_limits_that_keep_back_nothing_say_nothing(cluster: Cluster):
    limited(cluster)
    del cluster.partitions[:2]
    assert "Behind" not in cluster.run("stats", "mail").output


def test_a_lease_that_gets_nothing_says_why(cluster: Cluster):
    limited(cluster)
    assert "Behind the rate limit of 10/m" in cluster.run("lease", "mail").output
    del cluster.partitions[:2]
    assert cluster.run("lease", "mail").output == "Nothing is ready.\n"


def test_rates_of_groups(cluster: Cluster):
    run = cluster.run(
        "queue", "create", "mail", "--kind", "fair", "--group-rate", "10/s", "--group-rate",
        "eu.de=0.5/s", "--group-max", "eu.de=3",
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    settings = cluster.queue.settings
    rate = settings.group_rate_limit
    assert (rate.items, rate.interval.ToMilliseconds(), rate.burst) == (10, 1_000, 0)
    [group] = settings.groups
    assert (group.path, group.leased_max) == ("eu.de", 3)
    assert group.rate_limit == pb.RateLimit(items=1, interval=Duration(seconds=2), burst=0)
    shown = " ".join(cluster.run("queue", "info", "mail").output.split())
    assert "rate per group 10/s" in shown
    assert "eu.de (weight 1, at most 3 leased, 1/2s)" in shown


def test_an_update_keeps_the_rates_of_other_groups(cluster: Cluster):
    cluster.run("queue", "create", "mail", "--kind", "fair", "--group-rate", "a=1/s")
    run = cluster.run("queue", "update", "mail", "--group-rate", "b=2/s", "--group-rate", "0")
    assert run.exit_code == 0, run.output
    [request] = cluster.updates
    assert sorted(request.update_mask.paths) == ["group_rate_limit", "groups"]
    assert not request.settings.HasField("group_rate_limit")
    assert [(one.path, one.rate_limit.items) for one in request.settings.groups] == [
        ("a", 1), ("b", 2),
    ]  # fmt: skip
    cluster.run("queue", "update", "mail", "--group-rate", "a=0")
    assert [one.path for one in cluster.updates[-1].settings.groups] == ["b"]


def test_the_rate_of_keys(cluster: Cluster):
    run = cluster.run("queue", "create", "mail", "--kind", "keyed", "--key-rate", "3/m")
    assert run.exit_code == 0, run.output
    rate = pb.RateLimit(items=3, interval=Duration(seconds=60), burst=0)
    assert cluster.queue.settings.key_rate_limit == rate
    assert "3/m" in cluster.run("queue", "info", "mail").output
    view = msgspec.json.decode(cluster.run("queue", "info", "mail", "--output", "json").output)
    assert view["key_rate_limit"] == {"items": 3, "interval_ms": 60_000, "burst": 0}
    cluster.run("queue", "update", "mail", "--key-rate", "0")
    assert list(cluster.updates[-1].update_mask.paths) == ["key_rate_limit"]
    assert not cluster.queue.settings.HasField("key_rate_limit")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--group-rate", "eu=fast"), "'fast' is not a rate"),
        (("--group-rate", "a..b=1/s"), "group"),
        (("--key-rate", "1/500ms"), "a rate has 1 to 1,000,000 items"),
    ],
)
def test_wrong_rates_of_groups_and_keys(cluster: Cluster, option: tuple[str, ...], says: str):
    run = cluster.run("queue", "update", "mail", *option)
    assert run.exit_code == 2
    assert says in " ".join(run.output.split())
    assert not cluster.updates
