"""The deadline of a change of a queue covers the whole call."""

import asyncio
from typing import Any, cast

import pytest

from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP
from querator.model.queues import QueueSettings
from querator.service.admin_service import AdminService
from querator.service.routing import directory
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import LONG_MS, code, refusal, service_node


@pytest.mark.parametrize("call", ["create_queue", "update_queue", "delete_queue"])
async def test_a_placement_group_that_does_not_answer_ends_the_call_at_its_deadline(call):
    async with service_node() as node:
        await node.create()
        propose = node.placement._propose

        async def hangs(*_: Any) -> Any:
            await asyncio.get_running_loop().create_future()

        node.placement._propose = hangs
        settings = QueueSettings(lease_timeout_ms=5_000)
        arguments: dict[str, tuple[Any, ...]] = {
            "create_queue": ("default", "r", settings),
            "update_queue": ("default", "q", settings, ("lease_timeout_ms",), 0),
            "delete_queue": ("default", "q"),
        }
        error = await refusal(getattr(node.admin, call)(*arguments[call], timeout_ms=50))
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert "placement group did not answer before the deadline" in error.message
        node.placement._propose = propose


async def test_a_map_that_cannot_catch_up_ends_a_deletion_at_its_deadline(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", LONG_MS / 1000)
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, None)
        service = cluster.members["a"]
        admin = AdminService(
            placement=cast(Any, cluster.maps["a"]),
            router=service.router,
            directory=service.directory,
            reads=service.reads,
            durable=False,
            clock=cluster.base.clock,
        )
        deleting = admin.delete_queue("default", "nowhere", timeout_ms=50)
        assert await code(deleting) is ErrorCode.UNAVAILABLE
