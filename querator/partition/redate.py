"""State time goes back: an operator repairs it after a wrong clock had moved it ahead.

`repair_time` puts it back at once. Rows with later dates are then checked in steps of bounded work,
each in an Expire, until all are dated as if they had been written when they were checked:

    leases          granted or extended while time was ahead last for their full timeout, counted
                    from the check; other leases keep their deadline. Those granted while time was
                    ahead count as granted at the check
    expiries        that come after state time are put back into their index: those of items that
                    were leased or reserved when they seemed to expire have left it
    producers       and their outcomes, ended leases, dedup keys and results of items are remembered
                    for their usual time, counted from the check

An open breaker stays open for the rest of its open time, and a bucket keeps its tokens. Recurrences
continue with the due times after the repaired time, in the same command; due times that have their
item get no second one.
Schedules stay: they are dated by the clocks of the callers that asked for them. Items that were
produced while time was ahead expire later by the amount that it was ahead. Stages, finished
transactions and events are kept longer by the same amount. Items and rows that were forgotten, have
died or have come due are not brought back. Producers that may have been forgotten too early are
refused (`displaced_ms`), because they may repeat a request that was stored.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from querator.model.commands import Done, RepairTime
from querator.model.limits import PRODUCER_RETENTION_MS
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.breaker import redate_breaker
from querator.partition.dedup_rows import put
from querator.partition.limits import redate_limits
from querator.partition.producers import redate_producer
from querator.partition.recurrences import put_back
from querator.partition.results import redate_result
from querator.partition.rows import (
    Redating,
    decode_block,
    decode_dedup,
    decode_lease,
    encode,
)
from querator.storage.keys import Table
from querator.storage.tables import (
    BLOCKS,
    DEADLINES,
    DEDUP_KEYS,
    DEDUP_LASTING,
    DEDUP_ORDER,
    ENDED,
    ENDED_ORDER,
    EXPIRIES,
    LEASES,
    PRODUCERS,
    RESULTS,
)


def repair_time(context: ApplyContext, command: RepairTime) -> Done:
    state = context.state
    ahead_ms = context.now_ms - command.to_ms
    if not command.to_ms or ahead_ms <= 0:
        return Done(0)
    forgotten_ms = min(command.to_ms, context.now_ms - PRODUCER_RETENTION_MS)
    state.displaced_ms = max(state.displaced_ms, forgotten_ms)
    if command.to_ms > state.back_from_ms:
        state.back_from_ms, state.back_to_ms = context.now_ms, command.to_ms
    else:
        state.back_from_ms = max(state.back_from_ms, context.now_ms)
        state.back_to_ms = min(state.back_to_ms, command.to_ms)
    state.age_steps, state.age_since_ms = context.age, command.to_ms
    state.now_ms = context.now_ms = command.to_ms
    state.redating = Redating()
    state.cleanup_head_ms = command.to_ms
    put_back(context)
    redate_breaker(context, ahead_ms)
    redate_limits(context)
    return Done(ahead_ms)


def redate(context: ApplyContext, rows_max: int) -> int:
    """Continues the work that `repair_time` has begun, for about `rows_max` rows. Returns their
    number.
    """
    done = 0
    while (at := context.state.redating) is not None and done < rows_max:
        if at.step < len(_BY_KEY):
            table, one = _BY_KEY[at.step]
            done += _some(context, at, table, one, rows_max - done)
        elif at.step < len(_BY_KEY) + len(_BY_TIME):
            order, again = _BY_TIME[at.step - len(_BY_KEY)]
            done += _latest(context, at, order, again, rows_max - done)
        else:
            context.state.redating = None
    return done


def _some(
    context: ApplyContext,
    at: Redating,
    table: Table,
    one: Callable[[ApplyContext, bytes, bytes], int],
    rows_max: int,
) -> int:
    """Checks rows from the cursor on, in the order of their keys."""
    start, stop = table.bounds(context.group)
    rows: list[tuple[bytes, bytes]] = []
    for key, value in context.txn.scan(max(start, at.cursor), stop):
        rows.append((bytes(key), bytes(value)))
        if len(rows) == rows_max:
            break
    done = 0
    for key, value in rows:
        done += one(context, key, value)
        if done >= rows_max:
            context.state.redating = Redating(at.step, key + b"\0")
            return done
    context.state.redating = Redating(at.step + 1)
    return done


def _latest(
    context: ApplyContext,
    at: Redating,
    order: Table,
    again: Callable[[ApplyContext, int, int | bytes], None],
    most: int,
) -> int:
    """Dates the latest rows of a table that is in the order of time, beginning at its end."""
    later: list[tuple[int, int | bytes]] = []
    for key, _ in order.rows(context.txn, context.group, reverse=True):
        at_ms, name = order.parts(key)
        assert isinstance(at_ms, int)
        if at_ms <= context.now_ms or len(later) == most:
            break
        later.append((at_ms, name))
    for at_ms, name in later:
        again(context, at_ms, name)
    if len(later) < most:
        context.state.redating = Redating(at.step + 1)
    return len(later)


def _lease(context: ApplyContext, key: bytes, value: bytes) -> int:
    row = decode_lease(value)
    if row.since_ms > context.now_ms:
        lease = int.from_bytes(key[-8:], "big")
        DEADLINES.delete(context.txn, context.group, row.deadline_ms, lease)
        row.deadline_ms, row.since_ms = (
            context.now_ms + row.deadline_ms - row.since_ms,
            context.now_ms,
        )
        row.leased_ms = min(row.leased_ms, context.now_ms)
        DEADLINES.put(context.txn, context.group, row.deadline_ms, lease, value=b"")
        LEASES.put(context.txn, context.group, lease, value=encode(row))
    return 1


def _block(context: ApplyContext, key: bytes, value: bytes) -> int:
    first_seq = int.from_bytes(key[-8:], "big")
    for at_ms in decode_block(value).expiries():
        if at_ms > context.now_ms:
            EXPIRIES.put(context.txn, context.group, at_ms, first_seq, value=b"")
            context.state.expiry_head_ms = earlier(context.state.expiry_head_ms, at_ms)
    return 1


def _ended(context: ApplyContext, at_ms: int, lease: int | bytes) -> None:
    raw = ENDED.get(context.txn, context.group, lease)
    assert raw is not None
    row = decode_lease(raw)
    row.deadline_ms = context.now_ms
    ENDED.put(context.txn, context.group, lease, value=encode(row))
    ENDED_ORDER.delete(context.txn, context.group, at_ms, lease)
    ENDED_ORDER.put(context.txn, context.group, context.now_ms, lease, value=b"")


def _dedup_key(context: ApplyContext, at_ms: int, hashed: int | bytes) -> None:
    assert isinstance(hashed, bytes)
    raw = DEDUP_KEYS.get(context.txn, context.group, hashed)
    assert raw is not None
    row = decode_dedup(raw)
    since_ms = min(row.since_ms, context.now_ms)
    put(context, msgspec.structs.replace(row, at_ms=context.now_ms, since_ms=since_ms))


_BY_KEY: Final = (
    (LEASES, _lease), (BLOCKS, _block), (PRODUCERS, redate_producer), (RESULTS, redate_result),
)  # fmt: skip
_BY_TIME: Final = (
    (ENDED_ORDER, _ended), (DEDUP_ORDER, _dedup_key), (DEDUP_LASTING, _dedup_key),
)  # fmt: skip
