"""Leases for workers that name versions, beside a partition that does not answer."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from querator.model.calls import LeaseCall, LeaseReply
from querator.model.errors import ErrorCode, QueratorError
from querator.service.lease.pinned import PinnedLeases

CALL = LeaseCall("default", "shop", "worker", "r", 1, 0, wait_ms=1_000, versions=(("f", "1"),))
QUEUE: Any = SimpleNamespace(id=7, groups=(1, 2))


async def never(group: int, query: Any) -> Any:
    await asyncio.Event().wait()


async def refuses(group: int, query: Any) -> Any:
    raise QueratorError(ErrorCode.UNAVAILABLE, "the partition has no leader")


@pytest.mark.parametrize("read", [never, refuses])
async def test_what_is_ready_is_leased_while_leaders_do_not_answer(read: Callable[..., Any]):
    run: Any = SimpleNamespace(
        lease_id="1.0.1", attempt=1, deadline_ms=9, remaining_ms=5,
        loaded=SimpleNamespace(ordinals=(), first_seq=3, count=1),
    )  # fmt: skip

    async def lease(call: LeaseCall) -> LeaseReply:
        return LeaseReply((run,), True)

    router: Any = SimpleNamespace(read=read)
    leasing: Any = SimpleNamespace(lease=lease)
    clock: Any = SimpleNamespace(monotonic_s=lambda: 5.0)
    leases = PinnedLeases(router, leasing, clock)
    [leased] = await leases.lease(QUEUE, CALL)
    assert leased.attempts == {3: 1}
