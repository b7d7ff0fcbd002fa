"""Items that are read without leases: lists that come page by page, and items by id."""

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from querator.client.results import peeked_item
from querator.client.transport.channel import Connection
from querator.client.transport.nodes import Nodes
from querator.client.values import PeekedItem
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb


async def item_pages(
    nodes: Nodes,
    method: Callable[[Connection], Any],
    request: pb.PeekItemsRequest | pb.ListDeadLettersRequest | pb.ListScheduledItemsRequest,
    *,
    limit: int | None,
) -> AsyncIterator[PeekedItem]:
    """Yields the items of all pages, at most `limit`. `method`: the call for a page."""
    missing = limit
    while missing is None or missing > 0:
        request.page_size = min(missing or limits.PAGE_ITEMS_DEFAULT, limits.PAGE_ITEMS_MAX)
        response = await nodes.call(
            lambda node, left: method(node)(request, timeout=left), changes=False
        )
        for item in response.items:
            yield peeked_item(item)
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token
        if missing is not None:
            missing -= len(response.items)


async def get_items(
    nodes: Nodes, namespace: str, name: str, item_ids: Sequence[str], *, stale: bool
) -> list[PeekedItem]:
    """The items that are there, in the order of the ids."""
    found: dict[str, PeekedItem] = {}
    left = list(dict.fromkeys(item_ids))
    while left:
        request = pb.GetItemsRequest(
            namespace=namespace,
            queue=name,
            item_ids=left[: limits.REQUEST_ITEMS_MAX],
            stale=stale,
        )
        response = await nodes.call(functools.partial(_get, request), changes=False)
        found |= {str(item.id): item for item in map(peeked_item, response.items)}
        left = [*response.unread, *left[limits.REQUEST_ITEMS_MAX :]]
    return [found[one] for one in dict.fromkeys(item_ids) if one in found]


def _get(request: pb.GetItemsRequest, node: Connection, left: float) -> Any:
    return node.admin.GetItems(request, timeout=left)
