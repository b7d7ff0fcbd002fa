"""Live leases of a queue for operators: lists, and leases that are ended by hand."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

import msgspec

from querator.client.checks import check_span
from querator.client.items import instant
from querator.client.transport.nodes import Nodes
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb


class LeaseInfo(msgspec.Struct, frozen=True):
    """A live lease. `items`: those that it holds. `extended_at`: when its deadline was set, at the
    grant or at the last extension.
    """

    lease_id: str
    client_id: str
    items: int
    granted_at: datetime
    extended_at: datetime
    deadline: datetime


async def list_leases(
    nodes: Nodes,
    namespace: str,
    name: str,
    *,
    client_id: str,
    older_than: timedelta | None,
    stale: bool,
) -> AsyncIterator[LeaseInfo]:
    request = pb.ListLeasesRequest(
        namespace=namespace,
        queue=name,
        page_size=limits.PAGE_ITEMS_MAX,
        stale=stale,
        client_id=client_id,
    )
    if older_than is not None:
        check_span("older_than", older_than)
        request.older_than.FromTimedelta(older_than)
    while True:
        response = await nodes.call(
            lambda node, left: node.admin.ListLeases(request, timeout=left), changes=False
        )
        for one in response.leases:
            yield LeaseInfo(
                lease_id=one.lease_id,
                client_id=one.client_id,
                items=one.items,
                granted_at=instant(one.granted_at),
                extended_at=instant(one.extended_at),
                deadline=instant(one.deadline),
            )
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token


async def release_leases(
    nodes: Nodes, namespace: str, name: str, lease_ids: Sequence[str], *, count_attempt: bool
) -> int:
    """Calls with as many leases as one may have. Returns the number of released items."""

    async def release(part: Sequence[str]) -> int:
        request = pb.ReleaseLeasesRequest(
            namespace=namespace, queue=name, lease_ids=part, count_attempt=count_attempt
        )
        response = await nodes.call(
            lambda node, left: node.admin.ReleaseLeases(request, timeout=left)
        )
        return response.released

    if not lease_ids:
        raise ValueError("name at least one lease")
    most = limits.REQUEST_LEASES_MAX
    parts = [lease_ids[start : start + most] for start in range(0, len(lease_ids), most)]
    return sum([await release(part) for part in parts])
