"""`querator key`."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.timestamp_pb2 import Timestamp

from querator.cli import querator
from querator.v1 import admin_service_pb2 as pb
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

LATER = Timestamp()
LATER.FromDatetime(datetime(2040, 1, 1, tzinfo=UTC))
KEYS = [
    pb.KeyStats(key="ben", waiting=9, leased=1, head_item_id="1-4"),
    pb.KeyStats(key="a\x1bnn", waiting=2, head_item_id="0-7", head_attempts=5, blocked_until=LATER),
]


class Keys:
    """A cluster with two keys, and the requests that it got."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.listed: list[pb.ListKeysRequest] = []
        self.skipped: list[pb.SkipKeyRequest] = []
        self.skips = True
        self._cluster = cluster
        cluster.answers = {"ListKeys": self._list, "SkipKey": self._skip}

    def _list(self, data: bytes) -> pb.ListKeysResponse:
        request = pb.ListKeysRequest.FromString(data)
        self.listed.append(request)
        found = [one for one in KEYS if request.key in ("", one.key)]
        return pb.ListKeysResponse(keys=found)

    def _skip(self, data: bytes) -> pb.SkipKeyResponse:
        self.skipped.append(pb.SkipKeyRequest.FromString(data))
        return pb.SkipKeyResponse(skipped=self.skips)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(querator, ["key", *arguments, "--address", self._cluster.address])


@pytest.fixture
def keys() -> Iterator[Keys]:
    with scripted_cluster() as scripted:
        yield Keys(scripted)


def test_list_sends_what_options_choose(keys: Keys) -> None:
    run = keys.run("list", "accounts", "--blocked", "--attempts", "3")
    assert run.exit_code == 0, run.output
    [request] = keys.listed
    assert (request.queue, request.blocked, request.head_attempts_min) == ("accounts", True, 3)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("key", ["a\x1bnn", "ben"]),
        ("waiting", ["ben", "a\x1bnn"]),
        ("attempts", ["a\x1bnn", "ben"]),
    ],
)
def test_list_is_sorted(keys: Keys, order: str, expected: list[str]) -> None:
    run = keys.run("list", "accounts", "--sort", order, "--output", "json")
    views = [msgspec.json.decode(line) for line in run.output.splitlines()]
    assert [view["key"] for view in views] == expected
    stuck = views[expected.index("a\x1bnn")]
    assert (stuck["head"], stuck["head_attempts"]) == ("0-7", 5)
    assert stuck["blocked_until"].startswith("2040-01-01")


def test_list_escapes_keys_and_says_what_it_leaves_out(keys: Keys) -> None:
    run = keys.run("list", "accounts", "--limit", "1")
    assert "\x1b" not in run.output
    assert "1 more keys; see --limit." in run.output


def test_skip_names_the_item_that_it_has_shown(keys: Keys) -> None:
    run = keys.run("skip", "accounts", "a\x1bnn", "--dead", "--yes", "--output", "json")
    assert run.exit_code == 0, run.output
    assert msgspec.json.decode(run.output) == {"item": "0-7", "skipped": True, "dead": True}
    [request] = keys.skipped
    assert (request.queue, request.key, request.item_id, request.dead) == (
        "accounts", "a\x1bnn", "0-7", True,
    )  # fmt: skip


@pytest.mark.parametrize(("key", "why"), [("ben", "is leased"), ("none", "has no items")])
def test_skip_changes_nothing_where_no_item_is_next(keys: Keys, key: str, why: str) -> None:
    run = keys.run("skip", "accounts", key, "--yes")
    assert run.exit_code == 1
    assert why in run.output
    assert not keys.skipped


def test_skip_says_that_the_item_is_not_the_next_one_any_more(keys: Keys) -> None:
    keys.skips = False
    run = keys.run("skip", "accounts", "a\x1bnn", "--yes")
    assert run.exit_code == 1
    assert "is not the next one" in run.output


def test_skip_without_a_terminal_needs_yes(keys: Keys) -> None:
    run = keys.run("skip", "accounts", "a\x1bnn")
    assert run.exit_code == 2
    assert "--yes" in run.output
    assert not keys.listed
