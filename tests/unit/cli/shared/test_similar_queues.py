"""A command that names a missing queue shows similar names."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from querator.cli import querator
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import admin_service_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

METHODS = (
    "GetQueue", "GetQueueStats", "PeekItems", "ListScheduledItems", "ListDeadLetters",
    "RedriveDeadLetters",
)  # fmt: skip
MISSING = "There is no queue ordrs in namespace default (QUEUE_NOT_FOUND)."


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        words = "there is no queue ordrs in namespace default"
        error = QueratorError(ErrorCode.QUEUE_NOT_FOUND, words, field="queue", value="ordrs")
        cluster.answers.update(dict.fromkeys(METHODS, error))
        yield cluster


def listed(*names: str) -> admin_service_pb2.ListQueuesResponse:
    queues = [admin_service_pb2.Queue(namespace="default", name=name) for name in names]
    return admin_service_pb2.ListQueuesResponse(queues=queues)


def said(cluster: ScriptedCluster, *arguments: str) -> str:
    ended = CliRunner().invoke(querator, [*arguments, "--address", cluster.address])
    assert ended.exit_code == 3
    return ended.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats", "ordrs"),
        ("peek", "ordrs"),
        ("queue", "info", "ordrs"),
        ("schedule", "list", "ordrs"),
        ("dead", "list", "ordrs"),
        ("dead", "redrive", "ordrs", "--all"),
    ],
)
def test_similar_names_are_shown(cluster: ScriptedCluster, arguments: tuple[str, ...]) -> None:
    cluster.answers["ListQueues"] = listed("mail", "orders", "orders-eu")
    assert f"{MISSING} Did you mean orders or orders-eu?" in said(cluster, *arguments)


def test_without_similar_names_the_list_is_advised(cluster: ScriptedCluster) -> None:
    advice = "List the queues with: querator queue list"
    cluster.answers["ListQueues"] = listed("mail")
    assert f"{MISSING} {advice}" in said(cluster, "stats", "ordrs")
    cluster.answers["ListQueues"] = QueratorError(ErrorCode.INTERNAL, "no list")
    assert f"{MISSING} {advice}" in said(cluster, "stats", "ordrs")
