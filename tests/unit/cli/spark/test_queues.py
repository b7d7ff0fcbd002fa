"""Commands of Spark ask the cluster for their queues before Spark starts."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from querator.cli import querator
from querator.cli.spark import run
from querator.client.errors import ErrorCode, RequestError, make_error
from querator.v1 import admin_service_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

QUEUES = {"orders": "dead", "mail": "", "orders-eu": "dead"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    """A cluster with queues, in a place where Spark is not to start."""

    def start(*_: object) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(run, "open_session", start)
    monkeypatch.setattr(run, "check_requirements", lambda: None)
    monkeypatch.setattr(run, "check_java", lambda: None)
    with scripted_cluster() as cluster:
        cluster.answers = {"GetQueue": _queue, "ListQueues": _queues}
        yield cluster


def _queue(request: bytes) -> admin_service_pb2.GetQueueResponse | RequestError:
    asked = admin_service_pb2.GetQueueRequest.FromString(request)
    if asked.namespace not in ("", "default"):
        return make_error(ErrorCode.NAMESPACE_NOT_FOUND, f"there is no namespace {asked.namespace}")
    if asked.queue not in QUEUES:
        return make_error(ErrorCode.QUEUE_NOT_FOUND, f"there is no queue {asked.queue}")
    settings = admin_service_pb2.QueueSettings(partitions=1, dead_queue=QUEUES[asked.queue])
    queue = admin_service_pb2.Queue(namespace="default", name=asked.queue, settings=settings)
    return admin_service_pb2.GetQueueResponse(queue=queue)


def _queues(_: bytes) -> admin_service_pb2.ListQueuesResponse:
    queues = [admin_service_pb2.Queue(namespace="default", name=name) for name in QUEUES]
    return admin_service_pb2.ListQueuesResponse(queues=queues)


def invoke(cluster: ScriptedCluster, *arguments: str) -> Result:
    return CliRunner().invoke(querator, ["spark", *arguments, "--address", cluster.address])


LAKE = ("--reader-id", "lake")
CHECKPOINT = ("--checkpoint", "/nowhere/checkpoint")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("archive", "ordrs", "/nowhere", *LAKE), "Did you mean orders or orders-eu?"),
        (("archive", "xyz", "/nowhere", *LAKE), "List the queues with: querator queue list"),
        (("ingest", ".", "audit", "--format", "text"), "with: querator queue create audit"),
        (("replay", ".", "audit", *CHECKPOINT), "Create it with: querator queue create audit"),
        (("copy", "mail", "mial", *LAKE, *CHECKPOINT), "Did you mean mail? Create it with:"),
        (("copy", "mial", "mail", *LAKE, *CHECKPOINT), "Did you mean mail?"),
        (("redrive", "ordrs"), "Did you mean orders or orders-eu?"),
        (("stats", "mail", "ordrs", "xyz"), "There is no queue xyz in namespace default at "),
    ],
)
def test_a_missing_queue_is_named_with_similar_ones(
    cluster: ScriptedCluster, arguments: tuple[str, ...], words: str
) -> None:
    outcome = invoke(cluster, *arguments)
    assert outcome.exit_code == 3
    assert f"at {cluster.address} (QUEUE_NOT_FOUND)." in outcome.output
    assert words in outcome.output
    assert "endpoint" not in outcome.output


def test_a_missing_namespace_is_named(cluster: ScriptedCluster) -> None:
    outcome = invoke(cluster, "stats", "orders", "--namespace", "shop")
    assert outcome.exit_code == 3
    assert f"There is no namespace shop at {cluster.address} (NAMESPACE_N" in outcome.output


def test_the_target_of_a_copy_is_looked_for_in_its_own_cluster(cluster: ScriptedCluster) -> None:
    with scripted_cluster() as other:
        other.answers = {
            "GetQueue": make_error(ErrorCode.QUEUE_NOT_FOUND, "there is no queue"),
            "ListQueues": _queues,
        }
        arguments = ("copy", "orders", "mail", *LAKE, *CHECKPOINT, "--to-address", other.address)
        outcome = invoke(cluster, *arguments)
    assert outcome.exit_code == 3
    assert f"no queue mail in namespace default at {other.address}" in outcome.output


def test_a_queue_without_a_dead_queue_has_nothing_to_send_back(cluster: ScriptedCluster) -> None:
    outcome = invoke(cluster, "redrive", "mail")
    assert outcome.exit_code == 3
    assert "Queue mail has no dead queue. Give it one with: querator queue up" in outcome.output


def test_a_file_of_tls_that_is_missing_is_named_with_its_option(cluster: ScriptedCluster) -> None:
    outcome = invoke(cluster, "stats", "mail", "--tls-ca", "/nowhere/ca.pem")
    assert outcome.exit_code == 2
    assert outcome.stderr.splitlines()[-1] == (
        "Error: --tls-ca: /nowhere/ca.pem: No such file or directory."
    )


def test_spark_starts_when_all_queues_are_there(cluster: ScriptedCluster) -> None:
    outcome = invoke(cluster, "stats", "mail", "orders")
    assert str(outcome.exception) == "Spark starts"
