"""Keys of keyed queues: their counts, and how an item that keeps a key back is skipped."""

from collections.abc import AsyncIterator
from datetime import datetime

import msgspec

from querator.client.checks import check
from querator.client.items import id_texts, instant
from querator.client.transport.nodes import Nodes
from querator.client.values import ItemId
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb


class KeyStats(msgspec.Struct, frozen=True):
    """Counts of a key over all partitions. `waiting`: items that are not leased. `head`: the first
    item that waits; None: none waits in its place. It is next when no item of the key is leased.
    `head_attempts`: how often it was leased. `oldest_ready_at`: when it was produced, if it is
    ready. `blocked_until`: when it returns, if it waits for its retry and keeps back the others.
    `next_at`: when the next tokens of its rate come that its ready items wait for; None: none
    waits.
    """

    key: str
    waiting: int
    leased: int
    head: ItemId | None
    head_attempts: int
    oldest_ready_at: datetime | None
    blocked_until: datetime | None
    next_at: datetime | None = None


async def list_keys(
    nodes: Nodes,
    namespace: str,
    name: str,
    *,
    key: str,
    blocked: bool,
    head_attempts_min: int,
    stale: bool,
) -> AsyncIterator[KeyStats]:
    check("head_attempts_min", head_attempts_min, 0, limits.ATTEMPTS_MAX)
    request = pb.ListKeysRequest(
        namespace=namespace,
        queue=name,
        page_size=limits.PAGE_ITEMS_MAX,
        stale=stale,
        key=key,
        blocked=blocked,
        head_attempts_min=head_attempts_min,
    )
    while True:
        response = await nodes.call(
            lambda node, left: node.admin.ListKeys(request, timeout=left), changes=False
        )
        for one in response.keys:
            yield _key_stats(one)
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token


def _key_stats(message: pb.KeyStats) -> KeyStats:
    oldest, blocked = message.oldest_ready_at, message.blocked_until
    return KeyStats(
        key=message.key,
        waiting=message.waiting,
        leased=message.leased,
        head=ItemId.parse(message.head_item_id) if message.head_item_id else None,
        head_attempts=message.head_attempts,
        oldest_ready_at=instant(oldest) if message.HasField("oldest_ready_at") else None,
        blocked_until=instant(blocked) if message.HasField("blocked_until") else None,
        next_at=instant(message.next_at) if message.HasField("next_at") else None,
    )


async def skip_key(
    nodes: Nodes, namespace: str, name: str, key: str, item_id: ItemId | str, *, dead: bool
) -> bool:
    [text] = id_texts([item_id])
    request = pb.SkipKeyRequest(namespace=namespace, queue=name, key=key, item_id=text, dead=dead)
    response = await nodes.call(lambda node, left: node.admin.SkipKey(request, timeout=left))
    return response.skipped
