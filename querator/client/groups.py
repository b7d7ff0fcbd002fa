"""Groups of fair queues: their settings as messages, and their counts."""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime

import msgspec

from querator.client.checks import check
from querator.client.fair_groups import FairGroup
from querator.client.items import instant
from querator.client.limits import rate_limit, rate_limit_message
from querator.client.transport.nodes import Nodes
from querator.client.typed import check_fields
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb


class GroupStats(msgspec.Struct, frozen=True):
    """Counts of a group over all partitions, with those of the groups below it. `path` is empty for
    all items of the queue. `leased_max` None: no limit. `items`: those in any state.
    `oldest_ready_at`: when the first of its own ready items was produced; None: none is ready.
    `paused`: the group itself is paused. `next_at`: when the next tokens of its rate come that its
    ready items wait for; None: none waits.
    """

    path: str
    weight: int
    leased_max: int | None
    items: int
    ready: int
    leased: int
    oldest_ready_at: datetime | None
    paused: bool
    next_at: datetime | None = None


def group_messages(groups: Iterable[FairGroup]) -> list[pb.GroupSettings]:
    """Raises TypeError and ValueError that name the setting."""
    messages = []
    for position, group in enumerate(groups):
        name = f"groups[{position}]"
        if not isinstance(group, FairGroup):
            raise TypeError(f"{name} is {group!r}; it must be a FairGroup")
        check_fields(group, name)
        check(f"{name}.weight", group.weight, 1, limits.GROUP_WEIGHT_MAX)
        if group.leased_max is not None:
            check(f"{name}.leased_max", group.leased_max, 1, limits.FLOW_LEASED_MAX)
        messages.append(
            pb.GroupSettings(
                path=group.path,
                weight=group.weight,
                leased_max=group.leased_max,
                paused=group.paused,
                rate_limit=None
                if group.rate_limit is None
                else rate_limit_message(group.rate_limit, f"{name}.rate_limit"),
            )
        )
    return messages


def group_settings(message: pb.GroupSettings) -> FairGroup:
    limit = message.leased_max if message.HasField("leased_max") else None
    rate = rate_limit(message, "rate_limit")
    return FairGroup(message.path, message.weight, limit, message.paused, rate)


async def list_groups(
    nodes: Nodes, namespace: str, name: str, *, stale: bool
) -> AsyncIterator[GroupStats]:
    request = pb.ListGroupsRequest(
        namespace=namespace, queue=name, page_size=limits.PAGE_ITEMS_MAX, stale=stale
    )
    while True:
        response = await nodes.call(
            lambda node, left: node.admin.ListGroups(request, timeout=left), changes=False
        )
        for group in response.groups:
            yield _group_stats(group)
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token


def _group_stats(message: pb.GroupStats) -> GroupStats:
    oldest = message.oldest_ready_at
    return GroupStats(
        path=message.group,
        weight=message.weight,
        leased_max=message.leased_max or None,
        items=message.items,
        ready=message.ready,
        leased=message.leased,
        oldest_ready_at=instant(oldest) if message.HasField("oldest_ready_at") else None,
        paused=message.paused,
        next_at=instant(message.next_at) if message.HasField("next_at") else None,
    )
