"""Elections: campaign, resign, observe."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest

from querator import Client, SyncClient, SyncNode
from querator.client.errors import LockLost, LockTimeout

NOW = timedelta(0)
OFTEN = timedelta(milliseconds=100)


async def test_one_leads_and_others_observe(querator_session_node: SyncNode):
    async with Client(querator_session_node.address, namespace="election") as client:
        first, second = (client.election("e", name) for name in ("host-1:80", "host-2:80"))
        assert await first.leader() is None
        async with aclosing(second.observe(every=OFTEN)) as seen:
            assert await anext(seen) is None
            leadership = await first.campaign()
            leader = await anext(seen)
            assert leader is not None
            assert (leader.holder, leader.token) == ("host-1:80", leadership.token)
            with pytest.raises(LockTimeout):
                await second.campaign(timeout=NOW)
            campaign = asyncio.get_running_loop().create_task(second.campaign())
            # Resigns.
            await leadership.release()
            after = await campaign
            leader = await anext(seen)
            if leader is None:
                leader = await anext(seen)
            assert leader is not None
            assert (leader.holder, leader.token) == ("host-2:80", after.token)
            assert after.token > leadership.token
            await after.release()
            assert await anext(seen) is None
        with pytest.raises(ValueError, match=r"every is 0:00:00; it must be at least 0:00:00.1"):
            first.observe(every=NOW)


async def test_a_leader_stops_when_it_is_deposed(querator_session_node: SyncNode):
    async with Client(querator_session_node.address, namespace="deposed") as client:

        async def lead() -> None:
            async with client.election("e", "me", lease_timeout=timedelta(seconds=2)):
                leases = [one.lease_id async for one in client.list_leases("election.e")]
                await client.release_leases("election.e", *leases)
                await asyncio.sleep(60)

        with pytest.raises(LockLost):
            await lead()


def test_the_same_for_threads(querator_session_client: SyncClient):
    election = querator_session_client.election("e", "me")
    with election as leadership:
        leader = election.leader()
        assert leader is not None
        assert (leader.holder, leader.token) == ("me", leadership.token)
        assert next(election.observe()) == leader
    leadership = election.campaign(timeout=NOW)
    assert leadership.held
    leadership.release()
    assert election.leader() is None
