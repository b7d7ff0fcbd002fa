"""Calls about queues: create, list, update, delete, inspect and repair."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from google.protobuf.message import Message

from querator.client.breakers import breaker_message, set_breaker
from querator.client.checks import check_priority
from querator.client.errors import OutcomeUnknown, QueueDeleting, QueueExists, QueueNotFound
from querator.client.groups import GroupStats, group_messages, list_groups
from querator.client.items import backoff_number, duration, id_texts, timestamp
from querator.client.keys import KeyStats, list_keys, skip_key
from querator.client.limits import rate_limit_message
from querator.client.live_leases import LeaseInfo, list_leases, release_leases
from querator.client.pages import get_items, item_pages
from querator.client.results import queue_info, queue_stats
from querator.client.transport.nodes import Nodes
from querator.client.typed import check_unsigned
from querator.client.values import (
    DEDUP_UNTIL,
    FAIRNESSES,
    KINDS,
    Cancelled,
    DamagedBlock,
    DeadReason,
    GivenUp,
    ItemId,
    ItemState,
    PartitionTime,
    PeekedItem,
    Prioritized,
    Purged,
    QueueInfo,
    QueueStats,
)
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import items_pb2

DURATIONS = frozenset(
    {
        "lease_timeout",
        "expire_timeout",
        "dedup_window",
        "retry_delay",
        "retry_delay_max",
        "priority_aging",
        "events_retention",
    }
)
_PARTS: dict[str, Callable[[Any], Message]] = {
    "breaker": breaker_message,
    "rate_limit": rate_limit_message,
    "group_rate_limit": lambda value: rate_limit_message(value, "group_rate_limit"),
    "key_rate_limit": lambda value: rate_limit_message(value, "key_rate_limit"),
}
"""Settings that are messages, and what makes them."""
_SETTINGS = frozenset(pb.QueueSettings.DESCRIPTOR.fields_by_name)


def settings_message(changes: Mapping[str, Any]) -> pb.QueueSettings:
    """Settings as a message; None: unset. Raises TypeError for a setting that does not exist."""
    unknown = changes.keys() - _SETTINGS
    if unknown:
        raise TypeError(
            f"no such queue setting: {', '.join(sorted(unknown))}; "
            f"there are {', '.join(sorted(_SETTINGS))}"
        )
    message = pb.QueueSettings()
    for name, value in changes.items():
        if value is None:
            continue
        if name in DURATIONS:
            getattr(message, name).CopyFrom(duration(value, name))
        elif name == "retry_backoff":
            message.retry_backoff = backoff_number("retry_backoff", value)
        elif name == "dedup_until":
            message.dedup_until = _dedup_until_number(value)
        elif name == "kind":
            message.kind = pb.QueueKind.ValueType(_number("kind", value, KINDS))
        elif name == "fairness":
            message.fairness = pb.Fairness.ValueType(_number("fairness", value, FAIRNESSES))
        elif name == "groups":
            message.groups.extend(group_messages(value))
        elif name in _PARTS:
            getattr(message, name).CopyFrom(_PARTS[name](value))
        else:
            try:
                setattr(message, name, value)
            except ValueError:
                check_unsigned(name, value, 32)
                raise
    return message


def _dedup_until_number(value: str) -> pb.DedupUntil.ValueType:
    """Raises ValueError that names the argument."""
    if value not in DEDUP_UNTIL:
        words = ", ".join(DEDUP_UNTIL)
        raise ValueError(f"dedup_until is {value!r}; it must be one of {words}")
    return pb.DedupUntil.Value(f"DEDUP_UNTIL_{value.upper()}")


def _number(name: str, value: str, words: Sequence[str]) -> int:
    """The number of a word in the protocol. Raises ValueError that names the setting."""
    if value not in words:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(words)}")
    return words.index(value) + 1


class LetterOptions(TypedDict, total=False):
    """Options of `Client.redrive` and `Client.drop_dead_letters`."""

    reasons: Iterable[DeadReason]
    died_from: datetime | None
    died_until: datetime | None
    all_letters: bool
    dry_run: bool


class Letters(NamedTuple):
    """The dead letters that a call is for: those with `item_ids`, or else those that the filter
    chooses; None: nothing is chosen by properties.
    """

    item_ids: list[str] | None
    chosen: pb.DeadLetterFilter | None
    dry_run: bool


def letters(
    item_ids: Iterable[ItemId | str] | None,
    *,
    reasons: Iterable[DeadReason],
    died_from: datetime | None,
    died_until: datetime | None,
    all_letters: bool,
    dry_run: bool,
) -> Letters:
    """Raises ValueError for several choices, and for ids with `dry_run`."""
    ids = None if item_ids is None else id_texts(item_ids)
    chosen = _letter_filter(reasons, died_from, died_until)
    if (ids is not None) + (chosen is not None) + all_letters > 1:
        raise ValueError(ONE_CHOICE)
    if ids is not None and dry_run:
        raise ValueError("dry_run counts what a filter chooses; it is not for item_ids")
    return Letters(ids, pb.DeadLetterFilter() if all_letters else chosen, dry_run)


ONE_CHOICE = (
    "choose the letters by one of: item_ids; reasons, died_from and died_until; all_letters=True"
)


def _letter_filter(
    reasons: Iterable[DeadReason], died_from: datetime | None, died_until: datetime | None
) -> pb.DeadLetterFilter | None:
    """The filter as a message; None: nothing is given."""
    chosen = [items_pb2.DeadReason.ValueType(DeadReason(reason)) for reason in reasons]
    if not chosen and died_from is None and died_until is None:
        return None
    message = pb.DeadLetterFilter(reasons=chosen)
    if died_from is not None:
        message.died_from.CopyFrom(timestamp(died_from, name="died_from"))
    if died_until is not None:
        message.died_until.CopyFrom(timestamp(died_until, name="died_until"))
    return message


class Admin:
    """The administrative calls of one client, in its namespace. `Client` documents them."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes = nodes
        self._namespace = namespace

    async def create(self, name: str, settings: Mapping[str, Any], *, keep: bool) -> QueueInfo:
        """`keep`: an existing queue with other settings is taken as it is."""
        request = pb.CreateQueueRequest(
            namespace=self._namespace, queue=name, settings=settings_message(settings)
        )
        try:
            response = await self._nodes.call(
                lambda node, left: node.admin.CreateQueue(request, timeout=left),
                telling=(QueueExists,),
            )
        except QueueExists:
            if not keep:
                raise
            return await self.get(name)
        return queue_info(response.queue, created=response.created)

    async def get(self, name: str) -> QueueInfo:
        request = pb.GetQueueRequest(namespace=self._namespace, queue=name)
        response = await self._nodes.call(
            lambda node, left: node.admin.GetQueue(request, timeout=left), changes=False
        )
        return queue_info(response.queue)

    async def list(self) -> AsyncIterator[QueueInfo]:
        request = pb.ListQueuesRequest(namespace=self._namespace, page_size=limits.PAGE_ITEMS_MAX)
        while True:
            response = await self._nodes.call(
                lambda node, left: node.admin.ListQueues(request, timeout=left), changes=False
            )
            for queue in response.queues:
                yield queue_info(queue)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    def groups(self, name: str, *, stale: bool) -> AsyncIterator[GroupStats]:
        return list_groups(self._nodes, self._namespace, name, stale=stale)

    def keys(
        self, name: str, *, key: str, blocked: bool, head_attempts_min: int, stale: bool
    ) -> AsyncIterator[KeyStats]:
        return list_keys(
            self._nodes, self._namespace, name,
            key=key, blocked=blocked, head_attempts_min=head_attempts_min, stale=stale,
        )  # fmt: skip

    def leases(
        self, name: str, *, client_id: str, older_than: timedelta | None, stale: bool
    ) -> AsyncIterator[LeaseInfo]:
        return list_leases(
            self._nodes, self._namespace, name,
            client_id=client_id, older_than=older_than, stale=stale,
        )  # fmt: skip

    async def release_leases(
        self, name: str, lease_ids: Sequence[str], *, count_attempt: bool
    ) -> int:
        return await release_leases(
            self._nodes, self._namespace, name, lease_ids, count_attempt=count_attempt
        )

    async def skip_key(self, name: str, key: str, item_id: ItemId | str, *, dead: bool) -> bool:
        return await skip_key(self._nodes, self._namespace, name, key, item_id, dead=dead)

    async def update(
        self, name: str, changes: Mapping[str, Any], *, expected_version: int
    ) -> QueueInfo:
        request = pb.UpdateQueueRequest(
            namespace=self._namespace,
            queue=name,
            settings=settings_message(changes),
            expected_version=expected_version,
        )
        request.update_mask.paths.extend(sorted(changes))
        response = await self._nodes.call(
            lambda node, left: node.admin.UpdateQueue(request, timeout=left),
            # A repeat of an executed update would find its own change as a conflict.
            repeatable=expected_version == 0,
        )
        return queue_info(response.queue)

    async def set_breaker(self, name: str, state: pb.BreakerState.ValueType) -> int:
        return await set_breaker(self._nodes, self._namespace, name, state)

    async def delete(self, name: str) -> None:
        request = pb.DeleteQueueRequest(namespace=self._namespace, queue=name)
        try:
            await self._nodes.call(
                lambda node, left: node.admin.DeleteQueue(request, timeout=left), repeatable=False
            )
        except OutcomeUnknown:
            try:
                await self._nodes.call(
                    lambda node, left: node.admin.DeleteQueue(request, timeout=left),
                    telling=(QueueNotFound, QueueDeleting),
                )
            except (QueueNotFound, QueueDeleting):
                # The first attempt has deleted the queue.
                return

    async def stats(self, name: str, *, stale: bool) -> QueueStats:
        request = pb.GetQueueStatsRequest(namespace=self._namespace, queue=name, stale=stale)
        response = await self._nodes.call(
            lambda node, left: node.admin.GetQueueStats(request, timeout=left), changes=False
        )
        return queue_stats(response)

    async def get_items(
        self, name: str, item_ids: Iterable[ItemId | str], *, stale: bool
    ) -> Sequence[PeekedItem]:
        return await get_items(self._nodes, self._namespace, name, id_texts(item_ids), stale=stale)

    async def peek(
        self,
        name: str,
        *,
        state: ItemState | None,
        after: ItemId | str | None,
        limit: int | None,
        stale: bool,
    ) -> AsyncIterator[PeekedItem]:
        request = pb.PeekItemsRequest(namespace=self._namespace, queue=name, stale=stale)
        if state is not None:
            request.state = items_pb2.ItemState.ValueType(state)
        if after is not None:
            [request.after_item_id] = id_texts([after])
        async for item in item_pages(
            self._nodes, lambda node: node.admin.PeekItems, request, limit=limit
        ):
            yield item

    async def dead_letters(self, name: str, *, limit: int | None) -> AsyncIterator[PeekedItem]:
        request = pb.ListDeadLettersRequest(namespace=self._namespace, queue=name)
        async for item in item_pages(
            self._nodes, lambda node: node.admin.ListDeadLetters, request, limit=limit
        ):
            yield item

    async def redrive(self, name: str, some: Letters) -> int:
        if some.item_ids == []:
            return 0
        request = pb.RedriveDeadLettersRequest(
            namespace=self._namespace,
            queue=name,
            item_ids=some.item_ids,
            filter=some.chosen,
            dry_run=some.dry_run,
        )
        response = await self._nodes.call(
            lambda node, left: node.admin.RedriveDeadLetters(request, timeout=left)
        )
        return int(response.redriven)

    async def drop(self, name: str, some: Letters) -> int:
        if some.item_ids == []:
            return 0
        request = pb.DropDeadLettersRequest(
            namespace=self._namespace,
            queue=name,
            item_ids=some.item_ids,
            filter=some.chosen,
            dry_run=some.dry_run,
        )
        response = await self._nodes.call(
            lambda node, left: node.admin.DropDeadLetters(request, timeout=left)
        )
        return int(response.dropped)

    async def cancel(self, name: str, item_ids: Iterable[ItemId | str]) -> Cancelled:
        request = pb.CancelItemsRequest(
            namespace=self._namespace, queue=name, item_ids=id_texts(item_ids)
        )
        if not request.item_ids:
            return Cancelled(0)
        response = await self._nodes.call(
            lambda node, left: node.admin.CancelItems(request, timeout=left)
        )
        return Cancelled(
            response.cancelled, tuple(ItemId.parse(text) for text in response.not_waiting)
        )

    async def purge(self, name: str, *, keep_scheduled: bool, dry_run: bool) -> Purged:
        request = pb.PurgeQueueRequest(
            namespace=self._namespace, queue=name, keep_scheduled=keep_scheduled, dry_run=dry_run
        )
        removed = 0
        while True:
            response = await self._nodes.call(
                lambda node, left: node.admin.PurgeQueue(request, timeout=left),
                changes=not dry_run,
            )
            removed += response.removed
            if not response.next_page_token:
                return Purged(
                    removed=removed,
                    leased=response.leased,
                    reserved=response.reserved,
                    moving=response.moving,
                    scheduled=response.scheduled,
                )
            request.page_token = response.next_page_token

    async def prioritize(
        self, name: str, item_ids: Iterable[ItemId | str], priority: int
    ) -> Prioritized:
        check_priority("priority", priority)
        request = pb.PrioritizeItemsRequest(
            namespace=self._namespace, queue=name, item_ids=id_texts(item_ids), priority=priority
        )
        if not request.item_ids:
            return Prioritized(0)
        response = await self._nodes.call(
            lambda node, left: node.admin.PrioritizeItems(request, timeout=left)
        )
        return Prioritized(
            response.changed, tuple(ItemId.parse(text) for text in response.not_waiting)
        )

    async def repair_time(self, name: str, *, dry_run: bool) -> tuple[PartitionTime, ...]:
        request = pb.RepairTimeRequest(namespace=self._namespace, queue=name, dry_run=dry_run)
        response = await self._nodes.call(
            lambda node, left: node.admin.RepairTime(request, timeout=left)
        )
        return tuple(
            PartitionTime(
                partition=one.partition,
                ahead=one.ahead.ToTimedelta(),
                repaired=one.repaired,
                leases=one.leases,
                scheduled=one.scheduled,
                expired=one.expired,
            )
            for one in response.partitions
        )

    async def give_up_damaged(self, name: str, *, dry_run: bool) -> GivenUp:
        request = pb.GiveUpDamagedItemsRequest(
            namespace=self._namespace, queue=name, dry_run=dry_run
        )
        response = await self._nodes.call(
            lambda node, left: node.admin.GiveUpDamagedItems(request, timeout=left)
        )
        blocks = tuple(
            DamagedBlock(
                partition=one.partition,
                first_seq=one.first_seq,
                items=one.items,
                kept=one.kept,
                lost=one.lost,
                node=one.node,
                reason=one.reason,
            )
            for one in response.blocks
        )
        return GivenUp(blocks, int(response.given_up))
