"""The calls about executions without await are those with it, and delays count from the clock."""

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from querator import SyncClient
from querator.client import clock
from querator.durable import (
    ExecutionHandle,
    Executions,
    SyncExecutionHandle,
    SyncExecutions,
    durable,
)
from querator.v1 import execution_service_pb2 as pb
from tests.unit.cli.scripted_cluster import scripted_cluster

INSIDE = {"ended", "get_with_end", "outcome", "run"}
"""What the packages use among themselves."""


def calls(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """The methods with their parameters: name, kind and default."""
    return {
        name: [
            (one.name, one.kind, one.default)
            for one in inspect.signature(method).parameters.values()
        ]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in INSIDE
    }


@pytest.mark.parametrize(
    ("waiting", "awaited"),
    [(SyncExecutions, Executions), (SyncExecutionHandle, ExecutionHandle)],
)
def test_the_methods_and_their_parameters_are_the_same(waiting: type, awaited: type) -> None:
    assert calls(waiting) == calls(awaited)


@durable
def report() -> None: ...


def test_a_delay_counts_from_the_clock_of_clients() -> None:
    now = datetime(2030, 1, 31, 12, tzinfo=UTC)
    asked: list[pb.StartExecutionRequest] = []

    def answer(data: bytes) -> pb.StartExecutionResponse:
        asked.append(pb.StartExecutionRequest.FromString(data))
        return pb.StartExecutionResponse()

    with scripted_cluster() as cluster, clock.replaced(lambda: int(now.timestamp()) * 10**9):
        cluster.answers["StartExecution"] = answer
        with SyncClient(cluster.address) as client:
            SyncExecutions(client, "shop").start(report, delay=timedelta(hours=1))
    [one] = asked
    assert one.start_at.ToDatetime(UTC) == now + timedelta(hours=1)
