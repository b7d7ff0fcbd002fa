"""What is to be decided about a recurrence at an instant of state time. The driver proposes it.

    due times      missed ──────────────► come ─────────────► not come
                   before `horizon`       fire time is past    the next one
    decided        by the policy          each has a run       stays

The due times that have run already, before an operator has put time back, are left out. The items
of a fair or keyed queue are named by their group or key (`placed`). A key chooses the partition.
"""

from collections.abc import Iterator
from itertools import chain
from struct import pack

import msgspec

from querator.model import limits
from querator.model.queues import Queue, QueueKind
from querator.model.recurrences import Fire, Overlap, RecurrenceState, jitter_ms
from querator.model.routing import slot_of_key
from querator.recurrence_times import TimesError, due_times, missed_times
from querator.wire.flow_names import flow_names
from querator.wire.recurrences import MadeItem, group_and_key, make_item


def coming(group: int, recurrence: RecurrenceState, after_ms: int) -> Iterator[tuple[int, int]]:
    """The runs after an instant: due times without those that have run, and when each fires. Raises
    TimesError.
    """
    row = recurrence.row
    for due_ms in due_times(row.spec, anchor_ms=row.created_ms, after_ms=after_ms):
        if not _has_run(recurrence, due_ms):
            yield due_ms, due_ms + jitter_ms(group, recurrence.number, row.spec, due_ms)


def plan(
    group: int, recurrence: RecurrenceState, now_ms: int, items_max: int = limits.FIRE_ITEMS_MAX
) -> tuple[Fire, bytes]:
    """The next decision, with at most `items_max` items. If no due time can be found, the decision
    says so.
    """
    try:
        return _decided(group, recurrence, now_ms, items_max)
    except TimesError as error:
        text = f"{error.field} {error}"[: limits.RECURRENCE_ERROR_CHARS_MAX]
    runs = recurrence.runs
    again = Fire(
        recurrence=recurrence.number,
        revision=recurrence.row.revision,
        after_ms=runs.after_ms,
        number=runs.fired + 1,
        due_ms=(),
        lengths=b"",
        specials=(),
        missed=0,
        upto_ms=runs.after_ms,
        next_due_ms=0,
        next_at_ms=now_ms + limits.RECURRENCE_AGAIN_MS,
        error=text,
    )
    return again, b""


def _decided(
    group: int, recurrence: RecurrenceState, now_ms: int, items_max: int
) -> tuple[Fire, bytes]:
    row, runs = recurrence.row, recurrence.runs
    spec = row.spec
    kept: list[int] = []
    base_ms, missed = runs.after_ms, 0
    horizon_ms = now_ms - spec.missed_after_ms - spec.jitter_ms
    due_ms, at_ms = next(coming(group, recurrence, base_ms))
    if due_ms < horizon_ms:
        kept, missed = missed_times(
            spec, anchor_ms=row.created_ms, after_ms=base_ms, before_ms=horizon_ms
        )
        kept = [due_ms for due_ms in kept if not _has_run(recurrence, due_ms)]
        base_ms = horizon_ms - 1
    taken: list[int] = []
    items: list[MadeItem] = []
    size = 0
    for due_ms, at_ms in chain(
        ((due_ms, due_ms) for due_ms in kept), coming(group, recurrence, base_ms)
    ):
        full = len(taken) == items_max or size >= limits.FIRE_BYTES_MAX
        if at_ms > now_ms or full:
            break
        taken.append(due_ms)
        if not items or spec.overlap is Overlap.ALLOW:
            number = runs.fired + len(taken)
            items.append(make_item(spec.item, name=row.name, due_ms=due_ms, number=number))
            size += len(items[-1].data)
    upto_ms = taken[-1] if taken else runs.after_ms
    fire = Fire(
        recurrence=recurrence.number,
        revision=row.revision,
        after_ms=runs.after_ms,
        number=runs.fired + 1,
        due_ms=tuple(taken),
        lengths=pack(f"<{len(items)}I", *(len(item.data) for item in items)),
        specials=tuple(
            msgspec.structs.replace(item.special, ordinal=ordinal)
            for ordinal, item in enumerate(items)
            if item.special is not None
        ),
        missed=missed,
        upto_ms=max(upto_ms, base_ms) if len(taken) >= len(kept) else upto_ms,
        next_due_ms=due_ms,
        next_at_ms=at_ms,
    )
    return fire, b"".join([item.data for item in items])


def placed(queue: Queue, recurrence: RecurrenceState, fire: Fire) -> Fire:
    """The decision, with the group or key of its items and the partition of the key. A change of
    the queue's partitions makes it out of date; the partition then refuses it.
    """
    count = len(fire.lengths) >> 2
    kind = queue.settings.kind
    if kind is QueueKind.PLAIN or not count:
        return fire
    group, key = group_and_key(recurrence.row.spec.item)
    name = (group if kind is QueueKind.FAIR else key).encode()
    if not name:
        return fire
    fire = msgspec.structs.replace(fire, flows=flow_names(dict.fromkeys(range(count), name), count))
    if kind is QueueKind.FAIR:
        return fire
    slot = slot_of_key(name)
    partition = slot % queue.routed_partitions
    return msgspec.structs.replace(
        fire,
        slot=slot,
        routing=queue.routing,
        partition=partition,
        target_group=queue.groups[partition] if partition else 0,
    )


def _has_run(recurrence: RecurrenceState, due_ms: int) -> bool:
    return any(span.from_ms <= due_ms <= span.upto_ms for span in recurrence.runs.spans)
