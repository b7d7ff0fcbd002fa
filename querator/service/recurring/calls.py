"""The calls of operators about recurrences. The first partition of a queue has them all, because it
exists as long as the queue does, whatever the number of partitions is.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from querator.model import limits
from querator.model.errors import ErrorCode, QueratorError, invalid
from querator.model.group_paths import check_group_path
from querator.model.ids import GroupId, check_name
from querator.model.queues import Queue, QueueKind
from querator.model.recurrence_calls import (
    ComingRun,
    CreateRecurrenceCall,
    ListRecurrencesCall,
    PauseRecurrenceCall,
    RecurrenceCall,
    RecurrenceTimesCall,
    ShownRecurrence,
    ShownRecurrences,
    UpdateRecurrenceCall,
)
from querator.model.recurrences import (
    DeleteRecurrence,
    Overlap,
    PauseRecurrence,
    PutRecurrence,
    RecurrenceCommand,
    RecurrenceResult,
    RecurrenceSpec,
    RecurrenceState,
    jitter_ms,
)
from querator.recurrence_times import TimesError, check_schedule, due_times
from querator.service.reading import paging
from querator.service.reading.queries import Queries
from querator.service.recurring.planning import coming
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.forwarder import RecurrencesQuery
from querator.service.routing.router import Router, deadline_after
from querator.service.validate import check_between, page_items
from querator.wire.recurrences import check_template, group_and_key

if TYPE_CHECKING:
    from querator.raft.clock import Clock

T = TypeVar("T")

UPDATES_MAX = 4
"""How often an update without an expected revision is tried while others change the recurrence."""

_RANGES = (
    ("jitter", 0, limits.RECURRENCE_JITTER_MS_MAX),
    ("missed_after", limits.MISSED_AFTER_MS_MIN, limits.MISSED_AFTER_MS_MAX),
)


class RecurrenceService:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(
        self, *, router: Router, directory: QueueDirectory, reads: Queries, clock: "Clock"
    ) -> None:
        self._router = router
        self._directory = directory
        self._reads = reads
        self._clock = clock

    async def create(self, call: CreateRecurrenceCall) -> ShownRecurrence:
        deadline = deadline_after(call.timeout_ms)
        await self._check_spec(call.spec)
        name = check_name(call.name, field="name")
        queue = await self._queue(call.namespace, call.queue)
        _check_item(queue, call.spec, name)
        return await self._propose(queue.groups[0], PutRecurrence(name, call.spec), deadline)

    async def get(self, call: RecurrenceCall) -> ShownRecurrence:
        deadline = deadline_after(call.timeout_ms)
        check_name(call.name, field="name")
        group = await self._group(call.namespace, call.queue)
        return _shown(group, await self._named(group, call.name, deadline))

    async def page(self, call: ListRecurrencesCall) -> ShownRecurrences:
        deadline = deadline_after(call.timeout_ms)
        limit = page_items(call.page_size)
        queue = await self._queue(call.namespace, call.queue)
        scope = f"recurrences/{queue.id}"
        after = paging.decode_number(scope, call.page_token) if call.page_token else 0
        group = queue.groups[0]
        page = await self._reads.recurrences(
            RecurrencesQuery(group, after=after, limit=limit), deadline=deadline
        )
        return ShownRecurrences(
            tuple(_shown(group, one) for one in page.recurrences),
            paging.encode_number(scope, page.after) if page.after else "",
        )

    async def update(self, call: UpdateRecurrenceCall) -> ShownRecurrence:
        """Changes what the mask names. Others may change the recurrence at the same time."""
        deadline = deadline_after(call.timeout_ms)
        check_name(call.name, field="name")
        if not call.mask:
            raise invalid("update_mask", "must not be empty")
        queue = await self._queue(call.namespace, call.queue)
        group = queue.groups[0]
        tries = 0
        while True:
            tries += 1
            found = await self._named(group, call.name, deadline)
            if call.expected_revision and found.row.revision != call.expected_revision:
                raise QueratorError(
                    ErrorCode.VERSION_CONFLICT,
                    f"recurrence {call.name} has revision {found.row.revision}, not "
                    f"{call.expected_revision}",
                    field="expected_revision",
                    value=str(call.expected_revision),
                )
            spec = msgspec.structs.replace(
                found.row.spec, **{field: getattr(call.spec, field) for field in call.mask}
            )
            await self._check_spec(spec)
            _check_item(queue, spec, call.name)
            command = PutRecurrence(call.name, spec, found.row.revision)
            try:
                return await self._propose(group, command, deadline)
            except QueratorError as error:
                again = error.code is ErrorCode.VERSION_CONFLICT and not call.expected_revision
                if not again or tries == UPDATES_MAX:
                    raise

    async def pause(self, call: PauseRecurrenceCall) -> ShownRecurrence:
        deadline = deadline_after(call.timeout_ms)
        check_name(call.name, field="name")
        group = await self._group(call.namespace, call.queue)
        return await self._propose(group, PauseRecurrence(call.name, call.paused), deadline)

    async def delete(self, call: RecurrenceCall) -> ShownRecurrence:
        """Returns what it was."""
        deadline = deadline_after(call.timeout_ms)
        check_name(call.name, field="name")
        group = await self._group(call.namespace, call.queue)
        return await self._propose(group, DeleteRecurrence(call.name), deadline)

    async def times(self, call: RecurrenceTimesCall) -> list[ComingRun]:
        """The coming runs, by the clock of this node if `after_ms` is not given."""
        deadline = deadline_after(call.timeout_ms)
        count = call.count or limits.RECURRENCE_TIMES_DEFAULT
        check_between(count, 1, limits.RECURRENCE_TIMES_MAX, field="count")
        now_ms = self._clock.wall_ms()
        if call.spec is not None:
            await self._check_spec(call.spec)
            after_ms = now_ms if call.after_ms is None else call.after_ms
            times = due_times(call.spec, anchor_ms=now_ms, after_ms=after_ms)
            return [ComingRun(due_ms, due_ms) for due_ms in await _some(times, count)]
        group = await self._group(call.namespace, call.queue)
        found = await self._named(group, call.name, deadline)
        decided_ms = now_ms if found.row.paused else found.runs.after_ms
        after_ms = decided_ms if call.after_ms is None else call.after_ms
        return [ComingRun(*run) for run in await _some(coming(group, found, after_ms), count)]

    # --- checks --------------------------------------------------------------------------------

    async def _check_spec(self, spec: RecurrenceSpec) -> None:
        if bool(spec.cron) == bool(spec.interval_ms):
            raise invalid("spec.cron", "or spec.interval is required, and not both")
        for name, least, most in _RANGES:
            value = getattr(spec, f"{name}_ms")
            check_between(value, least, most, field=f"spec.{name}", unit="ms")
        check_between(spec.missed_max, 1, limits.MISSED_RUNS_MAX, field="spec.missed_max")
        if spec.cron:
            if spec.phase_ms >= 0:
                raise invalid("spec.phase", "needs spec.interval", value=spec.phase_ms)
        else:
            least, most = limits.RECURRENCE_INTERVAL_MS_MIN, limits.RECURRENCE_INTERVAL_MS_MAX
            check_between(spec.interval_ms, least, most, field="spec.interval", unit="ms")
            most = spec.interval_ms - 1
            check_between(spec.phase_ms, -1, most, field="spec.phase", unit="ms")
            if spec.time_zone:
                raise invalid("spec.time_zone", "needs spec.cron", value=spec.time_zone)
        try:
            # Reads time zones from the disk, and takes long for some expressions.
            await asyncio.to_thread(check_schedule, spec, now_ms=self._clock.wall_ms())
        except TimesError as error:
            raise invalid(
                f"spec.{error.field}", str(error), value=getattr(spec, error.field)
            ) from error

    # --- the partition -------------------------------------------------------------------------

    async def _queue(self, namespace: str, name: str) -> Queue:
        check_name(namespace, field="namespace")
        check_name(name, field="queue")
        return await self._directory.find(namespace, name)

    async def _group(self, namespace: str, name: str) -> GroupId:
        return (await self._queue(namespace, name)).groups[0]

    async def _named(self, group: GroupId, name: str, deadline: float | None) -> RecurrenceState:
        page = await self._reads.recurrences(RecurrencesQuery(group, name), deadline=deadline)
        if not page.recurrences:
            message = f"the queue has no recurrence {name}"
            raise QueratorError(ErrorCode.RECURRENCE_NOT_FOUND, message, field="name", value=name)
        return page.recurrences[0]

    async def _propose(
        self, group: GroupId, command: RecurrenceCommand, deadline: float | None
    ) -> ShownRecurrence:
        result: Any = await self._router.call(self._router.route(group), command, deadline=deadline)
        assert isinstance(result, RecurrenceResult)
        return _shown(group, result.recurrence, changed=result.changed)


def _check_item(queue: Queue, spec: RecurrenceSpec, name: str) -> None:
    """Checks the template for the kind of the queue, which never changes."""
    kind = queue.settings.kind
    check_template(spec.item, name=name)
    group, key = group_and_key(spec.item)
    if key and kind is not QueueKind.KEYED:
        reason = "must not be set: only in a keyed queue the item of a recurrence has a key"
        raise invalid("spec.item.key", reason, value=key)
    if key and spec.overlap is Overlap.SKIP:
        reason = (
            "must not be skip for an item with a key: whether the last item is finished is not "
            "known outside of the partition of the key"
        )
        raise invalid("spec.overlap", reason, value="skip")
    if group and kind is QueueKind.FAIR:
        check_group_path(group, field="spec.item.group")


def _shown(
    group: GroupId, recurrence: RecurrenceState, *, changed: bool = False
) -> ShownRecurrence:
    due_ms = recurrence.runs.next_due_ms
    if due_ms:
        due_ms += jitter_ms(group, recurrence.number, recurrence.row.spec, due_ms)
    return ShownRecurrence(recurrence, due_ms, changed)


async def _some(times: Iterator[T], count: int) -> list[T]:
    """The first ones. Raises QueratorError if they cannot be found."""
    try:
        return await asyncio.to_thread(lambda: list(islice(times, count)))
    except TimesError as error:
        raise invalid(f"spec.{error.field}", str(error)) from error
