"""State that a cluster must reach before a measurement acts on it."""

import asyncio

from querator.client.cluster import ClusterAdmin, ClusterPicture
from querator.client.errors import RequestError
from querator.model.cluster import ClusterReplica

WELL_SECONDS = 300.0
LAG_ENTRIES_MAX = 50
"""A follower that is at most this far behind keeps up with the load."""


def admin_of(address: str) -> ClusterAdmin:
    return ClusterAdmin(address, request_timeout=15, connect_timeout=5)


async def until_well(address: str) -> ClusterPicture:
    """Returns when all nodes answer, every group is led where it should be, and its followers are
    close behind. Raises TimeoutError.
    """
    async with (
        asyncio.timeout(WELL_SECONDS),
        admin_of(address) as admin,
    ):
        while True:
            try:
                picture = await admin.picture()
            except RequestError:
                # The node that was asked has just stopped.
                pass
            else:
                if _is_well(picture):
                    return picture
            await asyncio.sleep(0.25)


def _is_well(picture: ClusterPicture) -> bool:
    if picture.pending or any(node.silent for node in picture.nodes):
        return False
    return all(
        group.leads
        and group.preferred_leader in ("", group.leader)
        and len(group.replicas) == len(group.target)
        and all(
            replica.voter and (replica.node == group.leader or _is_close(replica))
            for replica in group.replicas
        )
        for group in picture.groups
    )


def _is_close(replica: ClusterReplica) -> bool:
    return replica.lag_entries is not None and replica.lag_entries <= LAG_ENTRIES_MAX


async def leader_of(address: str, queue: str, partition: int) -> str:
    """Name of the node that leads the partition. Empty while no node does."""
    async with admin_of(address) as admin:
        picture = await admin.picture()
    return next(
        (
            group.leader
            for group in picture.groups
            if (group.queue, group.partition) == (queue, partition)
        ),
        "",
    )
