"""Complete and retry: they end a lease before its deadline; and what is remembered of it.

A command is judged first, on lease rows in memory, and then carried out. With `all_or_nothing`, one
lost item means that nothing is carried out. For each item named under a lease:

    the lease holds it                              done
    the same verb has settled it under the lease    repeated; nothing changes
    else (another verb, lapsed, never held)         lost

A verb with follow-ups (`rows.FOLLOWED`) is a verb of its own in the same way: only a command that
had follow-ups, too, repeats it.

The same holds after the lease has ended, as long as it is remembered (`ended_leases`). Complete is
one verb, and a retry is one of forty (`rows.SettleKind`, `rows.ATTRIBUTED`, `rows.CLEARED`): a
reject after a release is lost, and so is a release with a priority, with attributes, or that clears
checkpoints, after one without, as nodes make them. The instants of two retries with `retry_at` are
not compared, nor are two priorities or the attributes, so the second one may count as a repeat.

A command without ranges ("all that the lease still holds") names the items that no other verb has
settled. A repeat gets the first answer, and lapsed items are lost, not silently skipped. When
another verb has ended the lease, such a command is no repeat: it names all items that were granted.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from querator.model.commands import (
    Complete,
    LeaseItems,
    Ranges,
    Refusal,
    Retry,
    SettledLease,
    SettleResult,
)
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.limits import (
    BLOCK_ITEMS_MAX,
    ERROR_CHARS_MAX,
    ERRORS_KEPT_MAX,
    RELEASES_MAX,
    RETRY_ATTRIBUTES_ITEMS_MAX,
    SCHEDULE_AHEAD_MS_MAX,
    SCHEDULE_NOW_MS,
)
from querator.partition import breaker, masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import (
    attempt_failed,
    become_ready,
    become_scheduled,
    is_of_key,
    kill,
    worn,
)
from querator.partition.ended_leases import end_lease
from querator.partition.overlays import clear_checkpoints
from querator.partition.results import Returned, completed
from querator.partition.rows import (
    ATTRIBUTED,
    CLEARED,
    FOLLOWED,
    Block,
    DeadCause,
    LeasedItems,
    LeaseRow,
    Overlay,
    RowState,
    Segment,
    SettleKind,
    decode_lease,
    decode_overlay,
    encode,
)
from querator.partition.segments import block_of, check, detach, leave_block, load_segment
from querator.partition.states import Event
from querator.storage.tables import ENDED, LEASES, OVERLAYS, SEGMENTS

NO_RESULTS: Mapping[int, Returned] = MappingProxyType({})

Admit = Callable[[SettleResult], Refusal | None]
"""Refuses a command that has been judged, before it is carried out. A command with it has
follow-ups.
"""


class _Held:
    """A lease row while a command is judged. `held_masks` are the held items as the tables have
    them.

    A lease of a fair or keyed queue may have a segment for each item, and a command names it once
    for each. So the segments with the named items are found without reading all of them.
    """

    __slots__ = ("_ordinals", "_places", "changed", "held_masks", "live", "row", "starts")

    def __init__(self, row: LeaseRow, *, live: bool) -> None:
        self.row = row
        self.live = live
        self.changed = False
        self.held_masks = [masks.from_bytes(items.held) for items in row.items]
        self._places: dict[int, list[int]] = {}
        """The places of the segments in the row, by block."""
        for place, items in enumerate(row.items):
            self._places.setdefault(items.first_seq, []).append(place)
        self._ordinals: dict[int, dict[int, int]] = {}
        """By block with many segments: the place of each item."""
        self.starts = sorted(self._places)
        """The first sequence of each block."""

    def places(self, wanted: Mapping[int, int] | None) -> Iterable[int]:
        """The places of the segments that may have items of these blocks, ascending. None: of any
        item.
        """
        if wanted is None or len(self.row.items) == 1:
            return range(len(self.row.items))
        found: list[int] = []
        for first_seq, want in wanted.items():
            places = self._places[first_seq]
            if want.bit_count() < len(places):
                by_ordinal = self._by_ordinal(first_seq)
                places = sorted({by_ordinal.get(one, -1) for one in masks.ordinals(want)} - {-1})
            found += places
        return found if len(wanted) == 1 else sorted(found)

    def _by_ordinal(self, first_seq: int) -> dict[int, int]:
        known = self._ordinals.get(first_seq)
        if known is None:
            known = self._ordinals[first_seq] = {}
            for place in self._places[first_seq]:
                granted = masks.from_bytes(self.row.items[place].granted)
                known.update(dict.fromkeys(masks.ordinals(granted), place))
        return known


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """Items to settle: those of `mask` in the `place`-th entry of the lease's `items`."""

    lease: int
    place: int
    mask: int


def complete(
    context: ApplyContext,
    command: Complete,
    admit: Admit | None = None,
    returned: Mapping[int, Returned] = NO_RESULTS,
) -> SettleResult | Refusal:
    """`returned`: the results that come with the command, by lease."""
    verb = int(SettleKind.COMPLETE) if admit is None else SettleKind.COMPLETE + FOLLOWED
    result, pieces, leases = _judge(context, command.leases, command.all_or_nothing, verb)
    if admit is not None:
        refusal = admit(result)
        if refusal is not None:
            return refusal
    check(RowState.LEASED, Event.COMPLETE, None)
    gone: dict[int, int] = {}
    results: dict[int, tuple[int, int]] = {}
    for piece in pieces:
        items, segment = _take(context, leases[piece.lease], piece)
        if context.feed is not None:
            context.feed.items(
                EventKind.COMPLETED, items.first_seq, piece.mask,
                lease=piece.lease, attempt=segment.attempt, flow=segment.flow,
                produced_at_ms=block_of(context, items.first_seq).produced_at_ms,
            )  # fmt: skip
        SEGMENTS.delete(context.txn, context.group, items.first_seq, masks.low(piece.mask))
        gone[items.first_seq] = gone.get(items.first_seq, 0) | piece.mask
        context.state.completed += piece.mask.bit_count()
        if piece.lease in returned:
            of_lease = returned[piece.lease]
            seqs = (items.first_seq + ordinal for ordinal in masks.ordinals(piece.mask))
            results.update({seq: of_lease[seq] for seq in seqs if seq in of_lease})
    # Once for each block, in the order of the command.
    for first_seq, mask in gone.items():
        if context.state.asked:
            completed(context, first_seq, mask, results)
        leave_block(context, first_seq, block_of(context, first_seq), mask)
    _write(context, leases, verb)
    if command.on_delivery:
        context.state.completed_on_delivery += sum(piece.mask.bit_count() for piece in pieces)
    if context.state.breaker is not None:
        # Whether the work succeeds is not known when the items are delivered.
        count = breaker.given_back if command.on_delivery else breaker.succeeded
        count(context, _outcomes(pieces))
    return result


def _outcomes(pieces: list[_Piece]) -> breaker.Outcomes:
    return [(piece.lease, piece.mask.bit_count()) for piece in pieces]


def verb_of(command: Retry) -> int:
    verb: int
    if command.dead:
        verb = SettleKind.REJECT
    elif command.count_attempt:
        verb = SettleKind.RETRY_LATER if command.retry_at_ms else SettleKind.RETRY
    else:
        verb = SettleKind.RELEASE_LATER if command.retry_at_ms else SettleKind.RELEASE
    if command.priority is not None:
        verb = _PRIORITIZED[SettleKind(verb)]
    if command.attributes is not None:
        verb += ATTRIBUTED
    return verb + CLEARED if command.clear_checkpoint else verb


_PRIORITIZED = {
    SettleKind.RETRY: SettleKind.RETRY_PRIORITIZED,
    SettleKind.RETRY_LATER: SettleKind.RETRY_LATER_PRIORITIZED,
    SettleKind.RELEASE: SettleKind.RELEASE_PRIORITIZED,
    SettleKind.RELEASE_LATER: SettleKind.RELEASE_LATER_PRIORITIZED,
    SettleKind.REJECT: SettleKind.REJECT_PRIORITIZED,
}


def retry(
    context: ApplyContext, command: Retry, admit: Admit | None = None
) -> SettleResult | Refusal:
    verb = verb_of(command) if admit is None else verb_of(command) + FOLLOWED
    result, pieces, leases = _judge(context, command.leases, command.all_or_nothing, verb)
    refusal = _too_many_attributes(command, pieces)
    if refusal is None and admit is not None:
        refusal = admit(result)
    if refusal is not None:
        return refusal
    due_ms = min(command.retry_at_ms, context.now_ms + SCHEDULE_AHEAD_MS_MAX)
    if due_ms - context.now_ms < SCHEDULE_NOW_MS:
        due_ms = 0
    for piece in pieces:
        items, segment = _take(context, leases[piece.lease], piece)
        block = block_of(context, items.first_seq)
        if command.error or command.attributes is not None:
            _note(context, items.first_seq, piece.mask, command)
        if command.clear_checkpoint and context.state.checkpoints:
            clear_checkpoints(context, items.first_seq, piece.mask)
        _give_back(
            context=context,
            command=command,
            first_seq=items.first_seq,
            block=block,
            segment=segment,
            mask=piece.mask,
            due_ms=due_ms,
            lease=piece.lease,
        )
    _write(context, leases, verb)
    if context.state.breaker is not None:
        counts = command.dead or command.count_attempt
        (breaker.failed if counts else breaker.given_back)(context, _outcomes(pieces))
    return result


def _give_back(
    context: ApplyContext,
    command: Retry,
    first_seq: int,
    block: Block,
    segment: Segment,
    mask: int,
    due_ms: int,
    lease: int,
) -> None:
    """Applies a retry to detached items."""
    count = mask.bit_count()
    attempt, releases = segment.attempt, segment.releases
    flow = segment.flow
    of_key = flow > 0 and is_of_key(context, flow)
    priority = segment.priority
    if command.priority is not None and not context.keyed:
        priority = command.priority
    position: int | None = None
    age: int | None = None
    if command.dead:
        context.state.retried += count
        kill(
            context, first_seq, block, mask, DeadCause.REJECTED,
            came_from=RowState.LEASED, attempt=attempt, priority=priority, flow=flow,
        )  # fmt: skip
        return
    counted = command.count_attempt
    if not counted:
        releases += 1
        if releases >= RELEASES_MAX:
            # No consumer has failed at the item: its last attempt is for one that works on it.
            spent = worn(context, block, mask, attempt)
            if spent and spent != mask:
                for part in (spent, mask & ~spent):
                    _give_back(
                        context=context,
                        command=command,
                        first_seq=first_seq,
                        block=block,
                        segment=segment,
                        mask=part,
                        due_ms=due_ms,
                        lease=lease,
                    )
                return
            releases, counted = 0, not spent
        if not counted:
            attempt -= 1
            # Items that asked for a later time, or get another priority, are last there.
            if of_key or (not command.retry_at_ms and priority == segment.priority):
                position, age = segment.position, segment.age
    if command.count_attempt or command.retry_at_ms:
        context.state.retried += count
    else:
        context.state.released += count
    if counted:
        by_policy = command.count_attempt and not command.retry_at_ms
        attempt_failed(
            context, first_seq, block, mask, Event.RETRY,
            lease=lease, attempt=attempt, releases=releases,
            due_ms=None if by_policy else due_ms, priority=priority, flow=flow,
            position=segment.position,
        )  # fmt: skip
        return
    _note_given_back(context, command, first_seq, mask, lease=lease, segment=segment, due_ms=due_ms)
    if due_ms:
        become_scheduled(
            context, first_seq, block, mask,
            attempt=attempt, releases=releases, due_ms=due_ms, priority=priority,
            flow=flow, position=segment.position,
        )  # fmt: skip
    else:
        become_ready(
            context, first_seq, block, mask,
            Event.RETRY if command.retry_at_ms else Event.RELEASE,
            came_from=RowState.LEASED, attempt=attempt, releases=releases,
            priority=priority, age=age, position=position, flow=flow,
        )  # fmt: skip


def _note_given_back(
    context: ApplyContext,
    command: Retry,
    first_seq: int,
    mask: int,
    *,
    lease: int,
    segment: Segment,
    due_ms: int,
) -> None:
    """Items are given back and their attempt does not count."""
    if context.feed is not None:
        context.feed.items(
            EventKind.RETRIED if command.retry_at_ms else EventKind.RELEASED, first_seq, mask,
            lease=lease, attempt=segment.attempt, due_ms=due_ms, flow=segment.flow,
        )  # fmt: skip


def _judge(
    context: ApplyContext, named: tuple[LeaseItems, ...], all_or_nothing: bool, verb: int
) -> tuple[SettleResult, list[_Piece], dict[int, _Held]]:
    leases: dict[int, _Held] = {}
    outcomes: list[SettledLease] = []
    pieces: list[_Piece] = []
    lost = False
    for items in named:
        held = leases.get(items.lease) or _load(context, items.lease)
        if held is None:
            outcomes.append(
                SettledLease(items.lease, lost=masks.merge_ranges(items.ranges), unknown=True)
            )
            lost = True
            continue
        leases[items.lease] = held
        outcome = _judge_one(items, held, pieces, verb)
        lost = lost or bool(outcome.lost)
        outcomes.append(outcome)
    if lost and all_or_nothing:
        refused = tuple(
            SettledLease(outcome.lease, (), outcome.repeated, outcome.lost, unknown=outcome.unknown)
            for outcome in outcomes
        )
        return SettleResult(refused), [], {}
    return SettleResult(tuple(outcomes)), pieces, leases


def _load(context: ApplyContext, lease: int) -> _Held | None:
    if lease <= 0:
        return None
    row = LEASES.get(context.txn, context.group, lease)
    if row is not None:
        return _Held(decode_lease(row), live=True)
    row = ENDED.get(context.txn, context.group, lease)
    return None if row is None else _Held(decode_lease(row), live=False)


def _judge_one(named: LeaseItems, held: _Held, pieces: list[_Piece], verb: int) -> SettledLease:
    """Marks the settled items in the row in memory, and appends them to `pieces`."""
    done_ranges: list[tuple[int, int]] = []
    repeated_ranges: list[tuple[int, int]] = []
    lost_ranges: list[tuple[int, int]] = []
    wanted = _named_masks(named.ranges, held.starts, lost_ranges) if named.ranges else None
    ended_otherwise = not held.live and held.row.ended_by not in (0, verb)
    found: dict[int, int] = {}
    for place in held.places(wanted):
        items = held.row.items[place]
        still, same = masks.from_bytes(items.held), items.settled_by(verb)
        if wanted is None:
            want = masks.from_bytes(items.granted)
            if not ended_otherwise:
                want &= ~items.settled_in_all() | same
            lost_ranges += masks.to_ranges(items.first_seq, want & ~still & ~same)
        else:
            want = wanted.get(items.first_seq, 0)
        done = want & still
        repeated = want & same
        found[items.first_seq] = found.get(items.first_seq, 0) | done | repeated
        repeated_ranges += masks.to_ranges(items.first_seq, repeated)
        if done:
            done_ranges += masks.to_ranges(items.first_seq, done)
            held.changed = True
            items.settle(verb, done)
            pieces.append(_Piece(named.lease, place, done))
    if wanted is not None:
        for first_seq, want in wanted.items():
            lost_ranges += masks.to_ranges(first_seq, want & ~found.get(first_seq, 0))
    return SettledLease(
        named.lease,
        masks.merge_ranges(done_ranges),
        masks.merge_ranges(repeated_ranges),
        masks.merge_ranges(lost_ranges),
    )


def _named_masks(
    ranges: Ranges, bases: list[int], outside: list[tuple[int, int]]
) -> dict[int, int]:
    """The named items by block of the lease. `bases`: the first sequences of its blocks. Named
    items outside of these blocks go to `outside`.

    A block ends where the next block begins, so that no sequence is found under two blocks.
    """
    wanted: dict[int, int] = {}
    for first_seq, count in ranges:
        stop = first_seq + count
        at = first_seq
        place = max(0, bisect_right(bases, at) - 1)
        while at < stop and place < len(bases):
            base = bases[place]
            end = base + BLOCK_ITEMS_MAX
            if place + 1 < len(bases):
                end = min(end, bases[place + 1])
            if at < base:
                outside.append((at, min(stop, base) - at))
                at = min(stop, base)
            if at < min(stop, end):
                until = min(stop, end)
                wanted[base] = wanted.get(base, 0) | masks.full(until - at) << (at - base)
                at = until
            place += 1
        if at < stop:
            outside.append((at, stop - at))
    return wanted


def _take(context: ApplyContext, held: _Held, piece: _Piece) -> tuple[LeasedItems, Segment]:
    """Detaches a piece from its segment."""
    items = held.row.items[piece.place]
    before = held.held_masks[piece.place]
    segment = load_segment(context.txn, context.group, items.first_seq, masks.low(before))
    assert segment.state == RowState.LEASED
    assert segment.locator == piece.lease
    detach(context, items.first_seq, segment, piece.mask)
    held.held_masks[piece.place] = before & ~piece.mask
    return items, segment


def _write(context: ApplyContext, leases: dict[int, _Held], verb: int) -> None:
    for lease, held in leases.items():
        if not held.changed:
            continue
        if any(held.held_masks):
            LEASES.put(context.txn, context.group, lease, value=encode(held.row))
        else:
            held.row.ended_by = verb
            end_lease(context, lease, held.row)


def _too_many_attributes(command: Retry, pieces: list[_Piece]) -> Refusal | None:
    """The refusal of a retry that would write too many attributes. A repeat writes none."""
    if command.attributes is None:
        return None
    count, most = sum(piece.mask.bit_count() for piece in pieces), RETRY_ATTRIBUTES_ITEMS_MAX
    if count <= most:
        return None
    return Refusal(
        ErrorCode.LIMIT_EXCEEDED,
        f"the retry changes the attributes of {count} items of a partition; the most is {most}",
        field="leases",
        limit=f"{most} items",
        value=f"{count} items",
    )


def _note(context: ApplyContext, first_seq: int, mask: int, command: Retry) -> None:
    """Keeps the error and the attributes of a retry with the items."""
    txn, group = context.txn, context.group
    for ordinal in masks.ordinals(mask):
        seq = first_seq + ordinal
        row = OVERLAYS.get(txn, group, seq)
        overlay = Overlay() if row is None else decode_overlay(row)
        context.state.overlays += row is None
        errors, attributes = overlay.errors, overlay.attributes
        if command.error:
            errors = (*errors, command.error[:ERROR_CHARS_MAX])[-ERRORS_KEPT_MAX:]
        if command.attributes is not None:
            attributes = command.attributes
        noted = msgspec.structs.replace(overlay, errors=errors, attributes=attributes)
        OVERLAYS.put(txn, group, seq, value=encode(noted))
