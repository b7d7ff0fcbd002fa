"""The keeper of leases warns of a loop that stood still: then leases lapse, and steps run again."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from querator.client.executions import ExecutionCalls
from querator.durable import kept_leases
from querator.durable.kept_leases import LeaseKeeper

LEASE = timedelta(seconds=3)
"""It is extended after one second, and two more are left."""


class Extends:
    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def extend(
        self, queue: str, lease_ids: list[str], *, seconds: float
    ) -> dict[str, timedelta | None]:
        self.asked.set()
        return dict.fromkeys(lease_ids, LEASE)


@pytest.mark.parametrize(("still", "is_said"), [(1.5, False), (8.5, True)])
async def test_a_loop_that_stood_still_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, still: float, is_said: bool
):
    now = [100.0]
    monkeypatch.setattr(kept_leases, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(kept_leases, "parse_lease_id", lambda lease_id, field: (1, 0, 1))
    calls = Extends()
    keeper = LeaseKeeper(cast(ExecutionCalls, calls), "shop")
    keeper.hold("one", now[0], LEASE, lambda: None)
    keeping = asyncio.get_running_loop().create_task(keeper.keep())
    await asyncio.sleep(0)
    now[0] += still
    # Something else wakes it; the time limit of its wait is one of the real clock.
    keeper.hold("two", now[0], LEASE, lambda: None)
    await calls.asked.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    said = [one.getMessage() for one in caplog.records]
    assert [("stood still for 7.5 s" in one, "with def" in one) for one in said] == (
        [(True, True)] if is_said else []
    )
