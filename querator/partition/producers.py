"""Producers: a request that is repeated gets its first answer, and is never applied again.

For each producer the partition keeps the highest sequence and the outcomes of its last requests.
Outcomes are kept for the queue's dedup window, up to the last PRODUCER_OUTCOMES_MAX and
FORGET_AT_ONCE more. The lowest sequences are forgotten first. For a sequence:

    its outcome is remembered                     the first answer, repeated
    up to the highest that was forgotten          PRODUCER_EXPIRED: it may have been applied
    `ordered`, and not the next one               SEQUENCE_GAP, naming the one expected
    else                                          applied

A producer that is silent for PRODUCER_RETENTION_MS is forgotten. Its id contains its birth time
(UUIDv7). An unknown producer that was born longer ago than that is refused, because it may be one
that was forgotten.

When there are PRODUCERS_MAX producers, those that have been silent for longest are forgotten to
make space, if none of their outcomes is remembered any more. From then on, unknown producers that
are not younger than the youngest forgotten one are refused as well. So clients that make an
identity for each request reach the bound only if there are too many of them within the dedup
window. When no producer can be forgotten, the partition remembers that, and repeats the search
after a minute, or when outcomes have been forgotten.

A new producer that was born more than PRODUCER_AHEAD_MS_MAX after the partition's time is refused:
the clock of its client is wrong, and the producer would be remembered for as long as that clock is
ahead.
"""

import msgspec

from querator.model.commands import OutcomeFact, Produce, ProduceResult, ProducerFact, Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    MINUTE_MS,
    PRODUCER_AHEAD_MS_MAX,
    PRODUCER_ID_BYTES,
    PRODUCER_OUTCOMES_MAX,
    PRODUCER_RETENTION_MS,
    PRODUCERS_MAX,
)
from querator.partition import request_places
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.rows import (
    ProduceMode,
    ProducerOutcome,
    ProducerRow,
    decode_outcome,
    decode_producer,
    encode,
)
from querator.storage.tables import PRODUCER_CHECKS, PRODUCER_OUTCOMES, PRODUCERS

UNKNOWN = ProducerRow(highest=0, forgotten=0, last_ms=0, oldest_ms=0, kept=0, check_at_ms=0)
FORGET_AT_ONCE = 64
"""Number of outcomes above PRODUCER_OUTCOMES_MAX that are forgotten together: each time costs a
scan.
"""

DISPLACED_AT_ONCE = 64
"""Number of producers that are forgotten together to make space: each time costs a scan."""


def born_ms(producer_id: bytes) -> int:
    return int.from_bytes(producer_id[:6], "big")


def admit(context: ApplyContext, command: Produce) -> ProducerRow | ProduceResult | Refusal:
    """The producer's row if the request is to be applied, else the answer to the request."""
    txn, group = context.txn, context.group
    producer_id, sequence, ordered = command.producer_id, command.sequence, command.ordered
    if sequence <= 0:
        return Refusal(ErrorCode.INVALID_ARGUMENT, "sequence must be at least 1", field="sequence")
    raw = PRODUCERS.get(txn, group, producer_id)
    if raw is None:
        producer = UNKNOWN
        born = born_ms(producer_id)
        if born + PRODUCER_RETENTION_MS < context.now_ms or born <= context.state.displaced_ms:
            return _expired(
                "the producer is older than the partition remembers producers", sequence
            )
        if born > context.now_ms + PRODUCER_AHEAD_MS_MAX:
            return _born_ahead(born, context.now_ms)
        if context.state.producers >= PRODUCERS_MAX and not _make_room(context):
            return Refusal(
                ErrorCode.TOO_MANY_PRODUCERS,
                f"the partition remembers {PRODUCERS_MAX} producers with their last outcomes; new "
                "producers are accepted when outcomes have left the dedup window",
                field="producer_id",
                limit=str(PRODUCERS_MAX),
            )
    else:
        producer = decode_producer(raw)
        if sequence <= producer.highest:
            known = PRODUCER_OUTCOMES.get(txn, group, producer_id, sequence)
            answer = None if known is None else _answer(context, decode_outcome(known), command)
            if answer is not None:
                return answer
            if ordered or sequence <= producer.forgotten:
                return _expired(f"the outcome of sequence {sequence} is forgotten", sequence)
    if ordered and sequence != producer.highest + 1:
        return Refusal(
            ErrorCode.SEQUENCE_GAP,
            f"sequence {sequence} does not follow: {producer.highest + 1} is expected",
            field="sequence",
            limit=str(producer.highest + 1),
            value=str(sequence),
        )
    return producer


def _answer(
    context: ApplyContext, first: ProducerOutcome, command: Produce
) -> ProduceResult | None:
    """The first answer. None when it does not cover all items of the request."""
    if command.slots and first.mode == ProduceMode.KEYED:
        return request_places.repeated(first, command, context.queue.partition)
    return ProduceResult(
        first.first_seq,
        first.count,
        True,
        first.duplicates,
        first.partition,
        replaced=first.replaced,
    )


def remember(
    context: ApplyContext, command: Produce, producer: ProducerRow, result: ProduceResult
) -> None:
    """Keeps the outcome of a request that was applied."""
    txn, group, now_ms = context.txn, context.group, context.now_ms
    producer_id, sequence = command.producer_id, command.sequence
    before = None
    if command.slots:
        before = PRODUCER_OUTCOMES.get(txn, group, producer_id, sequence)
    outcome = _outcome(command, result, now_ms)
    if before is not None:
        earlier_part = decode_outcome(before)
        slots = set(request_places.slots_of(command.slots))
        kept_places = request_places.places_of(earlier_part, context.queue.partition)
        outcome = msgspec.structs.replace(
            outcome, elsewhere=tuple(one for one in kept_places if one.slot not in slots)
        )
    PRODUCER_OUTCOMES.put(txn, group, producer_id, sequence, value=encode(outcome))
    check_at_ms = producer.check_at_ms
    if producer is UNKNOWN:
        check_at_ms = _check_after(now_ms + context.queue.dedup_window_ms)
        _enter(context, producer_id, check_at_ms)
    updated = ProducerRow(
        highest=max(producer.highest, sequence),
        forgotten=producer.forgotten,
        last_ms=now_ms,
        oldest_ms=producer.oldest_ms if producer.kept else now_ms,
        kept=producer.kept + (before is None),
        check_at_ms=check_at_ms,
    )
    if updated.kept >= PRODUCER_OUTCOMES_MAX + FORGET_AT_ONCE:
        updated = _forget(context, producer_id, updated, FORGET_AT_ONCE, everything=True)
    PRODUCERS.put(txn, group, producer_id, value=encode(updated))


def _outcome(command: Produce, result: ProduceResult, now_ms: int) -> ProducerOutcome:
    if command.slots:
        mode = ProduceMode.KEYED
    else:
        mode = ProduceMode.ORDERED if command.ordered else ProduceMode.UNORDERED
    return ProducerOutcome(
        result.first_seq,
        result.count,
        now_ms,
        result.duplicates,
        mode=mode,
        slots=command.slots,
        replaced=result.replaced,
    )


def _enter(context: ApplyContext, producer_id: bytes, check_at_ms: int) -> None:
    """Counts a producer that was not known, and schedules its first check."""
    context.state.producers += 1
    PRODUCER_CHECKS.put(context.txn, context.group, check_at_ms, producer_id, value=b"")
    context.state.cleanup_head_ms = earlier(context.state.cleanup_head_ms, check_at_ms)


def adopt_producer(context: ApplyContext, fact: ProducerFact) -> None:
    """Adopts what another partition knows about a producer: outcomes are added, none is removed."""
    txn, group, producer_id = context.txn, context.group, fact.producer_id
    raw = PRODUCERS.get(txn, group, producer_id)
    producer = UNKNOWN if raw is None else decode_producer(raw)
    kept, oldest_ms = producer.kept, producer.oldest_ms
    for one in fact.outcomes:
        known = PRODUCER_OUTCOMES.get(txn, group, producer_id, one.sequence)
        before = None if known is None else decode_outcome(known)
        outcome = _adopted(context, one, before)
        PRODUCER_OUTCOMES.put(txn, group, producer_id, one.sequence, value=encode(outcome))
        if before is None:
            oldest_ms = min(oldest_ms, one.at_ms) if kept else one.at_ms
            kept += 1
    last_ms = max(producer.last_ms, fact.last_ms)
    check_at_ms = producer.check_at_ms
    if raw is None:
        check_at_ms = _silent_since(producer_id, last_ms) + PRODUCER_RETENTION_MS
        if kept:
            check_at_ms = oldest_ms + context.queue.dedup_window_ms
        check_at_ms = _check_after(max(check_at_ms, context.now_ms))
        _enter(context, producer_id, check_at_ms)
    adopted = ProducerRow(
        highest=max(producer.highest, fact.highest),
        forgotten=max(producer.forgotten, fact.forgotten),
        last_ms=last_ms,
        oldest_ms=oldest_ms,
        kept=kept,
        check_at_ms=check_at_ms,
    )
    PRODUCERS.put(txn, group, producer_id, value=encode(adopted))


def _adopted(
    context: ApplyContext, fact: OutcomeFact, before: ProducerOutcome | None
) -> ProducerOutcome:
    if before is not None and (before.mode, fact.mode) != (ProduceMode.KEYED, ProduceMode.KEYED):
        return before
    if before is not None:
        own = context.queue.partition
        here = request_places.places_of(before, own)
        more = request_places.merged(here, fact.places)[len(here) :]
        return msgspec.structs.replace(before, elsewhere=before.elsewhere + more)
    return ProducerOutcome(
        first_seq=fact.first_seq,
        count=fact.count,
        at_ms=fact.at_ms,
        duplicates=fact.duplicates,
        partition=-1 if fact.partition == context.queue.partition else fact.partition,
        mode=fact.mode,
        elsewhere=fact.places,
    )


def forget_producers(context: ApplyContext, rows_max: int) -> int:
    """Checks producers whose check is due, up to `rows_max` rows, and forgets what may be
    forgotten.
    """
    txn, group, now_ms = context.txn, context.group, context.now_ms
    due: list[tuple[int, bytes]] = []
    for key, _ in PRODUCER_CHECKS.rows(txn, group):
        check_at_ms, producer_id = PRODUCER_CHECKS.parts(key)
        assert isinstance(check_at_ms, int)
        assert isinstance(producer_id, bytes)
        if check_at_ms > now_ms or len(due) == rows_max:
            break
        due.append((check_at_ms, producer_id))
    done = 0
    for check_at_ms, producer_id in due:
        if done >= rows_max:
            break
        raw = PRODUCERS.get(txn, group, producer_id)
        assert raw is not None
        producer = decode_producer(raw)
        before = producer.kept
        producer = _forget(context, producer_id, producer, rows_max - done, everything=False)
        done += 1 + before - producer.kept
        if not producer.kept:
            context.state.crowded_until_ms = 0
        PRODUCER_CHECKS.delete(txn, group, check_at_ms, producer_id)
        forget_at_ms = _silent_since(producer_id, producer.last_ms) + PRODUCER_RETENTION_MS
        if not producer.kept and forget_at_ms <= now_ms:
            PRODUCERS.delete(txn, group, producer_id)
            context.state.producers -= 1
            continue
        next_ms = forget_at_ms
        if producer.kept:
            next_ms = producer.oldest_ms + context.queue.dedup_window_ms
        next_ms = _check_after(max(next_ms, now_ms))
        PRODUCER_CHECKS.put(txn, group, next_ms, producer_id, value=b"")
        updated = ProducerRow(
            highest=producer.highest, forgotten=producer.forgotten, last_ms=producer.last_ms,
            oldest_ms=producer.oldest_ms, kept=producer.kept, check_at_ms=next_ms,
        )  # fmt: skip
        PRODUCERS.put(txn, group, producer_id, value=encode(updated))
    return done


def redate_producer(context: ApplyContext, key: bytes, value: bytes) -> int:
    """Dates what is later than state time, which has gone back, to state time. Returns the number
    of rows.
    """
    txn, group, now_ms = context.txn, context.group, context.now_ms
    producer_id, producer = key[-PRODUCER_ID_BYTES:], decode_producer(value)
    if max(producer.last_ms, producer.oldest_ms) <= now_ms:
        return 1
    later = [
        (int.from_bytes(outcome_key[-8:], "big"), outcome)
        for outcome_key, row in PRODUCER_OUTCOMES.rows(txn, group, producer_id)
        if (outcome := decode_outcome(row)).at_ms > now_ms
    ]
    for sequence, outcome in later:
        dated = msgspec.structs.replace(outcome, at_ms=now_ms)
        PRODUCER_OUTCOMES.put(txn, group, producer_id, sequence, value=encode(dated))
    check_at_ms = _check_after(now_ms)
    PRODUCER_CHECKS.delete(txn, group, producer.check_at_ms, producer_id)
    PRODUCER_CHECKS.put(txn, group, check_at_ms, producer_id, value=b"")
    updated = msgspec.structs.replace(
        producer,
        last_ms=min(producer.last_ms, now_ms),
        oldest_ms=min(producer.oldest_ms, now_ms),
        check_at_ms=check_at_ms,
    )
    PRODUCERS.put(txn, group, producer_id, value=encode(updated))
    return 1 + len(later)


def _make_room(context: ApplyContext) -> bool:
    """Forgets the producers that have been silent for longest, up to DISPLACED_AT_ONCE. Returns
    whether there were any. If there were none, calls within the next minute do not search for them.
    """
    txn, group, now_ms = context.txn, context.group, context.now_ms
    if now_ms < context.state.crowded_until_ms <= now_ms + MINUTE_MS:
        return False
    window_ms = context.queue.dedup_window_ms
    doomed: list[tuple[bytes, bytes]] = []
    # The checks of producers without outcomes are due when these producers are to be forgotten.
    # They come after those of the others, which are due within the window, and are in the order
    # of the producers' last requests.
    _, stop = PRODUCER_CHECKS.bounds(group)
    start = PRODUCER_CHECKS.key(
        group, _check_after(now_ms + window_ms) + 1, bytes(PRODUCER_ID_BYTES)
    )
    for seen, (key, _) in enumerate(txn.scan(start, stop)):
        if seen == APPLY_SEGMENTS_MAX or len(doomed) == DISPLACED_AT_ONCE:
            break
        producer_id = key[-PRODUCER_ID_BYTES:]
        raw = PRODUCERS.get(txn, group, producer_id)
        assert raw is not None
        if not decode_producer(raw).kept and born_ms(producer_id) + window_ms <= now_ms:
            doomed.append((key, producer_id))
    for key, producer_id in doomed:
        txn.delete(key)
        PRODUCERS.delete(txn, group, producer_id)
        context.state.displaced_ms = max(context.state.displaced_ms, born_ms(producer_id))
    context.state.producers -= len(doomed)
    context.state.crowded_until_ms = 0 if doomed else now_ms + MINUTE_MS
    return bool(doomed)


def _forget(
    context: ApplyContext,
    producer_id: bytes,
    producer: ProducerRow,
    rows_max: int,
    *,
    everything: bool,
) -> ProducerRow:
    """Forgets outcomes, beginning at the lowest sequence: those that have left the window,
    or any.
    """
    txn, group = context.txn, context.group
    window_ms = context.queue.dedup_window_ms
    doomed: list[bytes] = []
    oldest_ms = 0
    forgotten = producer.forgotten
    for key, row in PRODUCER_OUTCOMES.rows(txn, group, producer_id):
        outcome = decode_outcome(row)
        if len(doomed) == rows_max or (
            not everything and outcome.at_ms + window_ms > context.now_ms
        ):
            oldest_ms = outcome.at_ms
            break
        doomed.append(key)
        forgotten = int.from_bytes(key[-8:], "big")
    for key in doomed:
        txn.delete(key)
    return ProducerRow(
        highest=producer.highest,
        forgotten=max(forgotten, producer.forgotten),
        last_ms=producer.last_ms,
        oldest_ms=oldest_ms,
        kept=producer.kept - len(doomed),
        check_at_ms=producer.check_at_ms,
    )


def _silent_since(producer_id: bytes, last_ms: int) -> int:
    """When a producer's retention begins: at its last request, or at its birth if that is later,
    but at most PRODUCER_AHEAD_MS_MAX after the last request.
    """
    return max(last_ms, min(born_ms(producer_id), last_ms + PRODUCER_AHEAD_MS_MAX))


def _check_after(at_ms: int) -> int:
    """The time of a check. Checks are grouped by the minute."""
    return (at_ms // MINUTE_MS + 1) * MINUTE_MS


def _born_ahead(born: int, now_ms: int) -> Refusal:
    ahead_ms = born - now_ms
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"the time in producer_id is {ahead_ms // 1000} s after the partition's time; the limit "
        f"is {PRODUCER_AHEAD_MS_MAX // 1000} s: the clock of the client that made it is ahead. "
        "Set the clock and use a new producer_id",
        field="producer_id",
        limit=f"{PRODUCER_AHEAD_MS_MAX} ms",
        value=f"{ahead_ms} ms",
    )


def _expired(message: str, sequence: int) -> Refusal:
    return Refusal(ErrorCode.PRODUCER_EXPIRED, message, field="producer_id", value=str(sequence))
