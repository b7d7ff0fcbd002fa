"""`querator group`, and the settings of groups on the command line."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.message import Message

from querator.cli import querator
from querator.v1 import admin_service_pb2 as pb
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

QUEUE = pb.Queue(
    namespace="default",
    name="jobs",
    settings=pb.QueueSettings(
        kind=pb.QUEUE_KIND_FAIR,
        groups=[
            pb.GroupSettings(path="eu", weight=3, leased_max=9),
            pb.GroupSettings(path="us", weight=1),
        ],
    ),
    settings_version=7,
)


class Commands:
    """Commands on a cluster, and the requests that they send by method."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self._requests: dict[str, list[bytes]] = {}

    def answer(self, method: str, message: Message) -> None:
        def record(data: bytes) -> Message:
            self._requests.setdefault(method, []).append(data)
            return message

        self._cluster.answers[method] = record

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(querator, [*arguments, "--address", self._cluster.address])

    def requests(self, method: str) -> list[bytes]:
        return self._requests.get(method, [])


@pytest.fixture
def cluster() -> Iterator[Commands]:
    with scripted_cluster() as scripted:
        commands = Commands(scripted)
        commands.answer("CreateQueue", pb.CreateQueueResponse(queue=QUEUE, created=True))
        commands.answer("UpdateQueue", pb.UpdateQueueResponse(queue=QUEUE))
        scripted.answers |= {
            "GetQueue": pb.GetQueueResponse(queue=QUEUE),
            "ListGroups": pb.ListGroupsResponse(
                groups=[
                    pb.GroupStats(group="b", ready=5, leased=1, weight=1, items=6),
                    pb.GroupStats(group="a\x1b", ready=1, leased=3, weight=2, leased_max=9),
                    pb.GroupStats(group="", ready=7, leased=4, weight=1, items=11),
                ]
            ),
        }
        yield commands


def groups(settings: pb.QueueSettings) -> list[tuple[str, int, int | None]]:
    return [
        (one.path, one.weight, one.leased_max if one.HasField("leased_max") else None)
        for one in settings.groups
    ]


def test_create_sends_the_settings_of_groups(cluster: Commands) -> None:
    run = cluster.run(
        "queue", "create", "jobs", "--kind", "fair", "--fairness", "turns", "--group-max", "50",
        "--group-weight", "eu=3", "--group-max", "eu=9", "--group-weight", "a=b.c=2",
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    [data] = cluster.requests("CreateQueue")
    settings = pb.CreateQueueRequest.FromString(data).settings
    assert (settings.kind, settings.fairness) == (pb.QUEUE_KIND_FAIR, pb.FAIRNESS_TURNS)
    assert settings.group_leased_max == 50
    assert groups(settings) == [("a=b.c", 2, None), ("eu", 3, 9)]


@pytest.mark.parametrize(
    ("options", "after"),
    [
        (["--group-weight", "eu=5"], [("eu", 5, 9)]),
        (["--group-max", "eu=0"], [("eu", 3, None)]),
        (["--group-weight", "us.ny=2"], [("eu", 3, 9), ("us.ny", 2, None)]),
        (["--group-weight", "eu=1", "--group-max", "eu=0"], []),
    ],
)
def test_update_changes_the_named_groups_only(
    cluster: Commands, options: list[str], after: list[Any]
) -> None:
    run = cluster.run("queue", "update", "jobs", *options)
    assert run.exit_code == 0, run.output
    [data] = cluster.requests("UpdateQueue")
    request = pb.UpdateQueueRequest.FromString(data)
    assert (list(request.update_mask.paths), request.expected_version) == (["groups"], 7)
    assert groups(request.settings) == after


def test_update_of_the_limit_of_all_groups_leaves_the_others(cluster: Commands) -> None:
    run = cluster.run("queue", "update", "jobs", "--group-max", "20")
    assert run.exit_code == 0, run.output
    [data] = cluster.requests("UpdateQueue")
    request = pb.UpdateQueueRequest.FromString(data)
    assert (list(request.update_mask.paths), request.expected_version) == (["group_leased_max"], 0)
    assert request.settings.group_leased_max == 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--group-weight", "3"], "'3' names no group"),
        (["--group-weight", "eu=0"], "'0' is not a whole number from 1 to 1000"),
        (["--group-weight", "eu=1001"], "'1001' is not a whole number from 1 to 1000"),
        (["--group-weight", "eu=x"], "'x' is not a whole number"),
        (["--group-weight", "eu..de=2"], "has an empty part"),
        (["--group-weight", "=2"], "has an empty part"),
        (["--group-weight", ".".join("a" * 9) + "=2"], "9 levels"),
        (["--group-max", "eu=-1"], "'-1' is not a whole number from 0 to 1000000"),
        (["--key-max", "0"], "'0' is not a whole number from 1 to 1000000"),
        (["--fairness", "random"], "'random' is not one of"),
    ],
)
def test_wrong_options_are_refused_by_name(
    cluster: Commands, options: list[str], words: str
) -> None:
    run = cluster.run("queue", "create", "jobs", *options)
    assert run.exit_code == 2
    assert words in run.output
    assert options[0] in run.output
    assert not cluster.requests("CreateQueue")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("group", ["", "a\x1b", "b"]),
        ("ready", ["", "b", "a\x1b"]),
        ("leased", ["", "a\x1b", "b"]),
    ],
)
def test_list_is_sorted(cluster: Commands, order: str, expected: list[str]) -> None:
    run = cluster.run("group", "list", "jobs", "--sort", order, "--output", "json")
    assert run.exit_code == 0, run.output
    views = [msgspec.json.decode(line) for line in run.output.splitlines()]
    assert [view["group"] for view in views] == expected
    assert views[expected.index("a\x1b")]["leased_max"] == 9
    assert [view["leased_share"] for view in views if view["group"] == "b"] == [0.25]


def test_list_escapes_paths_and_says_what_it_leaves_out(cluster: Commands) -> None:
    run = cluster.run("group", "list", "jobs", "--limit", "2")
    assert "\x1b" not in run.output
    assert "a\\x1b" in run.output
    assert "(all)" in run.output
    assert "1 more groups; see --limit." in run.output
