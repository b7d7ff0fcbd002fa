"""Recurrences: items that a queue produces by itself, at the times of a cron expression or of an
interval.
"""

import builtins
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from querator.client.errors import OutcomeUnknown, RecurrenceNotFound
from querator.client.items import (
    AnyItem,
    decode_item,
    duration,
    instant,
    item_message,
    span,
    timestamp,
)
from querator.client.options import MissedRuns, Overlap
from querator.client.transport.nodes import Nodes
from querator.client.typed import check_unsigned, typed
from querator.client.values import Item, ItemId
from querator.model import limits
from querator.v1 import recurrences_pb2 as pb

_DURATIONS: Final = ("interval", "phase", "jitter", "missed_after")
_MISSED: Final[dict[MissedRuns, pb.MissedRuns.ValueType]] = {
    "skip": pb.MISSED_RUNS_SKIP,
    "one": pb.MISSED_RUNS_ONE,
    "all": pb.MISSED_RUNS_ALL,
}
_OVERLAP: Final[dict[Overlap, pb.RunOverlap.ValueType]] = {
    "allow": pb.RUN_OVERLAP_ALLOW,
    "skip": pb.RUN_OVERLAP_SKIP,
}


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A recurrence of a queue. It has either `cron`, in `time_zone` (empty: UTC), or `interval`.

    `next_due_at`: the next due time; None while it is paused, or has just been changed.
    `next_fire_at`: that time with its part of the jitter. `fired`: number of items that it has
    produced. `skipped`: due times without an item because the last one was not finished. `missed`:
    due times without an item because no leader could decide in time. `last_item`: None if there is
    none, or if it has gone to the partition of its key. `error`: why the next due time cannot be
    found; empty if it can.
    """

    name: str
    cron: str
    time_zone: str
    interval: timedelta | None
    phase: timedelta | None
    jitter: timedelta
    missed_runs: MissedRuns
    missed_max: int
    missed_after: timedelta
    overlap: Overlap
    item: Item
    revision: int
    paused: bool
    created_at: datetime
    next_due_at: datetime | None
    next_fire_at: datetime | None
    fired: int
    skipped: int
    missed: int
    last_due_at: datetime | None
    last_fired_at: datetime | None
    last_item: ItemId | None
    error: str
    created: bool = False
    """Whether the call that returned this has made it."""


class RecurrenceTime(msgspec.Struct, frozen=True):
    """A coming run: its due time, and when its item comes (that time with its part of the
    jitter).
    """

    due_at: datetime
    fire_at: datetime


class Recurrences:
    """Calls about the recurrences of one client's namespace. Every method may raise `RequestError`.

    `cron`: five fields, or six with seconds first, in the zone `time_zone` of the IANA; or
    `interval`, with `phase`. `jitter`: each run comes late by a part of it. `missed_runs`: what
    becomes of due times that could not be decided for `missed_after`: none (`skip`), the last one
    (`one`), or the last `missed_max` (`all`) get an item. `overlap`: whether a run is skipped while
    the item of the last one is not finished. docs/guides/recurring.md has more.
    """

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes = nodes
        self._namespace = namespace

    @typed
    async def create(
        self,
        queue: str,
        name: str,
        item: Item | bytes | str,
        *,
        cron: str | None = None,
        time_zone: str | None = None,
        interval: timedelta | None = None,
        phase: timedelta | None = None,
        jitter: timedelta | None = None,
        missed_runs: MissedRuns | None = None,
        missed_max: int | None = None,
        missed_after: timedelta | None = None,
        overlap: Overlap | None = None,
    ) -> Recurrence:
        """Makes a recurrence; succeeds as well when the same one exists. None: the default.

        `item` is the template. In its payload, `{{due_at}}`, `{{due_ms}}`, `{{number}}` and
        `{{recurrence}}` are replaced. Each item has the attributes `recurrence`,
        `recurrence-number` and `recurrence-due-at`. In a fair queue it may have a `group`, and in a
        keyed queue a `key`, if `overlap` is not `skip`. Raises `RecurrenceExists`.
        """
        request = pb.CreateRecurrenceRequest(
            namespace=self._namespace,
            queue=queue,
            name=name,
            spec=_spec(
                cron=cron,
                time_zone=time_zone,
                interval=interval,
                phase=phase,
                jitter=jitter,
                missed=missed_runs,
                missed_max=missed_max,
                missed_after=missed_after,
                overlap=overlap,
                item=item,
            ),
        )
        response = await self._nodes.call(
            lambda node, left: node.admin.CreateRecurrence(request, timeout=left)
        )
        return _recurrence(response.recurrence, created=response.created)

    @typed
    async def get(self, queue: str, name: str) -> Recurrence:
        """Returns a recurrence. Raises `RecurrenceNotFound`."""
        request = pb.GetRecurrenceRequest(namespace=self._namespace, queue=queue, name=name)
        response = await self._nodes.call(
            lambda node, left: node.admin.GetRecurrence(request, timeout=left), changes=False
        )
        return _recurrence(response.recurrence)

    @typed
    async def list(self, queue: str) -> AsyncIterator[Recurrence]:
        """Yields the recurrences of a queue in the order of their creation."""
        request = pb.ListRecurrencesRequest(
            namespace=self._namespace, queue=queue, page_size=limits.PAGE_ITEMS_DEFAULT
        )
        while True:
            response = await self._nodes.call(
                lambda node, left: node.admin.ListRecurrences(request, timeout=left), changes=False
            )
            for recurrence in response.recurrences:
                yield _recurrence(recurrence)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    @typed
    async def update(
        self,
        queue: str,
        name: str,
        item: Item | bytes | str | None = None,
        *,
        expected_revision: int = 0,
        cron: str | None = None,
        time_zone: str | None = None,
        interval: timedelta | None = None,
        phase: timedelta | None = None,
        jitter: timedelta | None = None,
        missed_runs: MissedRuns | None = None,
        missed_max: int | None = None,
        missed_after: timedelta | None = None,
        overlap: Overlap | None = None,
    ) -> Recurrence:
        """Changes what is given; None: unchanged. `cron` takes the place of an interval, and
        `interval` that of an expression. After a change of the schedule, due times count from now
        on. `expected_revision` 0: any; otherwise raises `VersionConflict` if the recurrence has
        another one.
        """
        changes: dict[str, Any] = {
            "cron": cron,
            "time_zone": time_zone,
            "interval": interval,
            "phase": phase,
            "jitter": jitter,
            "missed": missed_runs,
            "missed_max": missed_max,
            "missed_after": missed_after,
            "overlap": overlap,
            "item": item,
        }
        mask = {field for field, value in changes.items() if value is not None}
        if not mask:
            raise ValueError("name at least one thing to change")
        if cron is not None:
            mask |= {"interval", "phase"}
        if interval is not None:
            mask |= {"cron", "time_zone", "phase"}
        check_unsigned("expected_revision", expected_revision, 64)
        request = pb.UpdateRecurrenceRequest(
            namespace=self._namespace,
            queue=queue,
            name=name,
            spec=_spec(**changes),
            expected_revision=expected_revision,
        )
        request.update_mask.paths.extend(sorted(mask))
        response = await self._nodes.call(
            lambda node, left: node.admin.UpdateRecurrence(request, timeout=left),
            # A repeat of an executed update would find its own change as a conflict.
            repeatable=expected_revision == 0,
        )
        return _recurrence(response.recurrence)

    @typed
    async def pause(self, queue: str, name: str) -> Recurrence:
        """Pauses a recurrence: no due time gets an item until it continues."""
        return await self._pause(queue, name, resume=False)

    @typed
    async def resume(self, queue: str, name: str) -> Recurrence:
        """Lets a paused recurrence continue with the due times after now."""
        return await self._pause(queue, name, resume=True)

    async def _pause(self, queue: str, name: str, *, resume: bool) -> Recurrence:
        request = pb.PauseRecurrenceRequest(
            namespace=self._namespace, queue=queue, name=name, resume=resume
        )
        response = await self._nodes.call(
            lambda node, left: node.admin.PauseRecurrence(request, timeout=left)
        )
        return _recurrence(response.recurrence)

    @typed
    async def delete(self, queue: str, name: str) -> None:
        """Deletes a recurrence. Items that it has produced stay. Raises `RecurrenceNotFound`."""
        request = pb.DeleteRecurrenceRequest(namespace=self._namespace, queue=queue, name=name)
        try:
            await self._nodes.call(
                lambda node, left: node.admin.DeleteRecurrence(request, timeout=left),
                repeatable=False,
            )
        except OutcomeUnknown:
            try:
                await self._nodes.call(
                    lambda node, left: node.admin.DeleteRecurrence(request, timeout=left),
                    telling=(RecurrenceNotFound,),
                )
            except RecurrenceNotFound:
                # The first attempt has deleted it.
                return

    @typed
    async def next(
        self,
        queue: str,
        name: str,
        *,
        count: int = limits.RECURRENCE_TIMES_DEFAULT,
        after: datetime | None = None,
    ) -> builtins.list[RecurrenceTime]:
        """Returns the coming runs of a recurrence, at most 100. `after` None: those that are not
        decided. Of a paused recurrence they are what would come.
        """
        request = pb.GetRecurrenceTimesRequest(namespace=self._namespace, queue=queue, name=name)
        return await self._times(request, count, after)

    @typed
    async def preview(
        self,
        *,
        cron: str | None = None,
        time_zone: str | None = None,
        interval: timedelta | None = None,
        phase: timedelta | None = None,
        count: int = limits.RECURRENCE_TIMES_DEFAULT,
        after: datetime | None = None,
    ) -> builtins.list[RecurrenceTime]:
        """Returns the coming due times of an expression or of an interval, without a recurrence.
        `after` None: after now.
        """
        spec = _spec(cron=cron, time_zone=time_zone, interval=interval, phase=phase)
        return await self._times(pb.GetRecurrenceTimesRequest(spec=spec), count, after)

    async def _times(
        self, request: pb.GetRecurrenceTimesRequest, count: int, after: datetime | None
    ) -> builtins.list[RecurrenceTime]:
        check_unsigned("count", count, 32)
        request.count = count
        if after is not None:
            request.after.CopyFrom(timestamp(after, name="after"))
        response = await self._nodes.call(
            lambda node, left: node.admin.GetRecurrenceTimes(request, timeout=left), changes=False
        )
        return [
            RecurrenceTime(instant(each.due_at), instant(each.fire_at)) for each in response.times
        ]


def _spec(item: AnyItem | None = None, **fields: Any) -> pb.RecurrenceSpec:
    """The specification as a message; None: unset."""
    spec = pb.RecurrenceSpec()
    for name, value in fields.items():
        if value is None:
            continue
        if name in _DURATIONS:
            getattr(spec, name).CopyFrom(duration(value, name))
        elif name == "missed":
            spec.missed = _known("missed_runs", value, _MISSED)
        elif name == "overlap":
            spec.overlap = _known("overlap", value, _OVERLAP)
        elif name == "missed_max":
            check_unsigned(name, value, 32)
            spec.missed_max = value
        else:
            setattr(spec, name, value)
    if item is not None:
        spec.item.CopyFrom(item_message(item))
    return spec


def _known(name: str, value: str, known: dict[Any, Any]) -> Any:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    return known[value]


def _recurrence(message: pb.Recurrence, *, created: bool = False) -> Recurrence:
    spec = message.spec

    def at(field: str) -> datetime | None:
        return instant(getattr(message, field)) if message.HasField(field) else None  # type: ignore[arg-type]

    return Recurrence(
        name=message.name,
        cron=spec.cron,
        time_zone=spec.time_zone,
        interval=span(spec.interval) if spec.HasField("interval") else None,
        phase=span(spec.phase) if spec.HasField("phase") else None,
        jitter=span(spec.jitter),
        missed_runs=next(word for word, number in _MISSED.items() if number == spec.missed),
        missed_max=spec.missed_max,
        missed_after=span(spec.missed_after),
        overlap=next(word for word, number in _OVERLAP.items() if number == spec.overlap),
        item=decode_item(spec.item),
        revision=message.revision,
        paused=message.paused,
        created_at=instant(message.created_at),
        next_due_at=at("next_due_at"),
        next_fire_at=at("next_fire_at"),
        fired=message.fired,
        skipped=message.skipped,
        missed=message.missed,
        last_due_at=at("last_due_at"),
        last_fired_at=at("last_fired_at"),
        last_item=ItemId.parse(message.last_item_id) if message.last_item_id else None,
        error=message.error,
        created=created,
    )
