"""Lease: gives ready items to waiting callers.

Items of a lower rank come first, and of one rank those that became ready first (`segments`).
Callers of one command share the available items as evenly as their wishes allow. Each takes a
contiguous share in this order. Items that a caller cannot take because of its
`max_bytes` stay ready. If the first item of its share alone is larger than `max_bytes`, the caller
is refused (ITEM_TOO_LARGE) and the item keeps its place. The errors, attributes and checkpoints
that items got later count as well, except those of the first item: it may always be leased.

A lease lasts as long as its caller says. Without a timeout from the caller, each item is leased for
its own lease timeout, or for the queue's. A lease has one deadline, so items of one timeout are
under one lease.

Items that have expired or used up their attempts die here at the latest.

A command may name the items. Then the callers get those of them that are ready, in the order of
leasing, and all others keep their places (`named_lease`).

While the leases of the queue are paused, or its breaker is open, callers get nothing, except what
an earlier request of theirs was granted. Callers share what the limits of the queue permit.
"""

from collections.abc import Iterator
from hashlib import blake2b

from msgspec.structs import replace

from querator.model.commands import (
    Lease,
    LeaseCaller,
    LeasedSegment,
    LeaseGrant,
    LeaseResult,
    Ranges,
    Refusal,
)
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.fair_shares import fair_shares
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    ASIDE_SEGMENTS_MAX,
    LEASE_TIMEOUT_MS_MAX,
    REPLY_BYTES_DEFAULT,
)
from querator.partition import breaker, limits, masks
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.dead import bury, worn
from querator.partition.flow_choice import Chosen, Space, choose
from querator.partition.flows import ROOT
from querator.partition.named_lease import Candidate, named_candidates, not_to_name
from querator.partition.reply_bytes import later_sizes, with_later
from querator.partition.rows import (
    Block,
    LeasedItems,
    LeaseRow,
    RowState,
    Segment,
    decode_lease,
    encode,
    numbers_of,
    numbers_to_bytes,
)
from querator.partition.segments import (
    block_of,
    detach,
    flows_of,
    load_segment,
    put_segment,
    ready_rows,
    without,
)
from querator.storage.tables import (
    CLIENT_LEASES,
    DEADLINES,
    ENDED,
    LEASE_REQUESTS,
    LEASES,
)

NOTHING = LeaseGrant(0, 0, ())

_Taken = tuple[int, Block, Segment, int, int]
"""A candidate, with the mask of the leased items and their bytes."""


def client_hash(client_id: str) -> bytes:
    return blake2b(client_id.encode(), digest_size=16).digest()


def request_hash(client_id: str, request_id: str) -> bytes:
    client = client_id.encode()
    return blake2b(
        len(client).to_bytes(4, "big") + client + request_id.encode(), digest_size=16
    ).digest()


def lease(context: ApplyContext, command: Lease) -> LeaseResult:
    grants: list[LeaseGrant | Refusal] = [NOTHING] * len(command.callers)
    waiting: list[int] = []
    repeats: list[int] = []
    named: set[tuple[str, str]] = set()
    for place, caller in enumerate(command.callers):
        if caller.request_id:
            name = (caller.client_id, caller.request_id)
            if name in named:
                repeats.append(place)
                continue
            named.add(name)
            earlier_grant = granted_before(context, caller)
            if earlier_grant is not None:
                grants[place] = earlier_grant
                continue
        waiting.append(place)
    state = context.state
    if waiting and not state.lease_paused:
        callers = [command.callers[place] for place in waiting]
        aside = frozenset(command.aside)
        if state.breaker is not None or state.limits is not None:
            granted = _grant_permitted(context, callers, command.named, aside)
        elif command.named:
            granted = _grant_named(context, callers, command.named, aside)
        else:
            granted = _grant(context, callers, aside)
        for place, grant in zip(waiting, granted, strict=True):
            grants[place] = grant
    for place in repeats:
        grants[place] = granted_before(context, command.callers[place]) or NOTHING
    return LeaseResult(tuple(grants), context.now_ms)


def granted_before(context: ApplyContext, caller: LeaseCaller) -> LeaseGrant | Refusal | None:
    """The answer to a request that was granted before. None if it was not."""
    txn, group = context.txn, context.group
    numbers = numbers_of(
        LEASE_REQUESTS.get(txn, group, request_hash(caller.client_id, caller.request_id))
    )
    if not numbers:
        return None
    segments: list[LeasedSegment] = []
    for number in numbers:
        row = LEASES.get(txn, group, number)
        live = row is not None
        if row is None:
            row = ENDED.get(txn, group, number)
            assert row is not None, "a request names leases that are remembered"
        held = decode_lease(row)
        if (held.client_id, held.request_id) != (caller.client_id, caller.request_id):
            return None
        if live:
            segments += _still_held(context, number, held)
    if not segments:
        return Refusal(
            ErrorCode.LEASE_ENDED,
            f"the lease granted to request {caller.request_id!r} has ended",
            field="request_id",
            value=caller.request_id,
        )
    if len(numbers) > 1:
        segments.sort(key=lambda segment: _place(context, segment))
    return _answer(segments, repeated=True)


def _place(context: ApplyContext, leased: LeasedSegment) -> tuple[int, int, int]:
    """The place of leased items in the order of leasing."""
    slot = masks.low(leased.mask)
    segment = load_segment(context.txn, context.group, leased.first_seq, slot)
    return segment.rank, segment.position, slot


def _still_held(context: ApplyContext, number: int, row: LeaseRow) -> Iterator[LeasedSegment]:
    for part in row.items:
        mask = masks.from_bytes(part.held)
        if mask:
            first_seq = part.first_seq
            segment = load_segment(context.txn, context.group, first_seq, masks.low(mask))
            yield LeasedSegment(
                first_seq=first_seq,
                mask=mask,
                attempt=part.attempt,
                count=mask.bit_count(),
                bytes=block_of(context, first_seq).size(mask),
                lease=number,
                deadline_ms=row.deadline_ms,
                priority=segment.priority,
            )


def _answer(segments: list[LeasedSegment], *, repeated: bool = False) -> LeaseGrant:
    """A grant of segments that name their leases. Segments that are all under one lease do not name
    it: the grant does.
    """
    first = segments[0]
    number = min(segment.lease for segment in segments)
    deadline_ms = min(segment.deadline_ms for segment in segments)
    if all(segment.lease == first.lease for segment in segments):
        segments = [replace(segment, lease=0, deadline_ms=0) for segment in segments]
    return LeaseGrant(number, deadline_ms, tuple(segments), repeated)


def admitted(context: ApplyContext, callers: list[LeaseCaller]) -> list[LeaseCaller]:
    """The callers with what the breaker and the limits permit; empty: nothing."""
    of_breaker, of_limits = context.state.breaker, context.state.limits
    if of_breaker is not None:
        callers = breaker.admitted(of_breaker, callers)
    if callers and of_limits is not None:
        callers = limits.admitted(context, of_limits, callers)
    return callers


def _grant_permitted(
    context: ApplyContext, callers: list[LeaseCaller], named: Ranges, aside: frozenset[int]
) -> list[LeaseGrant | Refusal]:
    """Grants as far as the breaker and the limits permit. `named` empty: any items."""
    of_breaker, of_limits = context.state.breaker, context.state.limits
    permitted = admitted(context, callers)
    if not permitted:
        return [NOTHING] * len(callers)
    if named:
        granted = _grant_named(context, permitted, named, aside)
    else:
        granted = _grant(context, permitted, aside)
    if of_breaker is not None:
        breaker.leased(of_breaker, granted)
    if of_limits is not None:
        limits.leased(context, of_limits, granted)
    return granted


def _grant(
    context: ApplyContext, callers: list[LeaseCaller], aside: frozenset[int]
) -> list[LeaseGrant | Refusal]:
    wishes = [max(0, caller.max_items) for caller in callers]
    candidates = _candidates(context, sum(wishes), aside)
    available = sum(part.bit_count() for _, _, _, part in candidates)
    shares = fair_shares(wishes, available)
    candidates.reverse()
    if context.flows is not None and not _all_fit(context, callers, shares, candidates):
        return [
            _grant_what_fits(context, caller, share, aside) if share else NOTHING
            for caller, share in zip(callers, shares, strict=True)
        ]
    return [
        _grant_one(context, caller, share, candidates) if share else NOTHING
        for caller, share in zip(callers, shares, strict=True)
    ]


def _grant_named(
    context: ApplyContext, callers: list[LeaseCaller], named: Ranges, aside: frozenset[int]
) -> list[LeaseGrant | Refusal]:
    """The callers take what is ready of the named items, one after the other."""
    refusal = not_to_name(context, named)
    if refusal is not None:
        return [refusal] * len(callers)
    if all(caller.max_items <= 0 for caller in callers):
        return [NOTHING] * len(callers)
    candidates = named_candidates(context, named, aside)
    candidates.reverse()
    return [
        _grant_one(context, caller, caller.max_items, candidates)
        if caller.max_items > 0
        else NOTHING
        for caller in callers
    ]


def _all_fit(
    context: ApplyContext,
    callers: list[LeaseCaller],
    shares: list[int],
    candidates: list[Candidate],
) -> bool:
    """Whether each caller has space for its share of `candidates`, the last of which come first."""
    at, part = len(candidates), 0
    for caller, share in zip(callers, shares, strict=True):
        left = _bytes_max(caller)
        while share:
            if not part:
                at -= 1
                part = candidates[at][3]
            first_seq, block = candidates[at][:2]
            mask = masks.first(part, share)
            left -= block.size(mask)
            if left >= 0 and context.state.overlays:
                left -= sum(later_sizes(context, first_seq, mask).values())
            if left < 0:
                return False
            share -= mask.bit_count()
            part &= ~mask
    return True


def _grant_what_fits(
    context: ApplyContext, caller: LeaseCaller, share: int, aside: frozenset[int]
) -> LeaseGrant | Refusal:
    """Grants items of a fair or keyed queue up to the turn for whose item there is no space."""

    def prefix(found: Chosen, mask: int, bytes_max: int, at_least_one: bool) -> tuple[int, int]:
        block = found.block
        assert block is not None
        if block.size(mask) > bytes_max:
            fitting = block.fitting(mask, bytes_max)
            if not fitting:
                # `_grant_one` refuses it.
                return (masks.first(mask, 1), bytes_max) if at_least_one else (0, 0)
            mask = fitting
        later_bytes = 0
        if context.state.overlays:
            mask, later_bytes = with_later(
                context, found.first_seq, block, mask,
                bytes_max=bytes_max, at_least_one=at_least_one,
            )  # fmt: skip
        return mask, later_bytes + (block.size(mask) if mask else 0)

    candidates = _chosen(context, share, aside, Space(_bytes_max(caller), prefix))
    candidates.reverse()
    return _grant_one(context, caller, share, candidates)


def _chosen(
    context: ApplyContext, wanted: int, aside: frozenset[int], space: Space | None = None
) -> list[Candidate]:
    """As `_candidates`, in a fair or keyed queue."""
    candidates: list[Candidate] = []
    for found in choose(context, wanted, aside=aside, space=space):
        assert found.block is not None
        segment = bury(
            context, found.first_seq, found.block, found.segment,
            expired=found.expired, spent=found.spent,
        )  # fmt: skip
        if found.chosen:
            candidates.append((found.first_seq, found.block, segment, found.chosen))
    return candidates


def _candidates(context: ApplyContext, wanted: int, aside: frozenset[int]) -> list[Candidate]:
    """Ready segments in the order of leasing, with up to `wanted` items. Dead items among them
    die. Segments of the blocks `aside` are passed over, up to `ASIDE_SEGMENTS_MAX` of them.
    """
    if context.flows is not None:
        return _chosen(context, wanted, aside)
    txn, group, now_ms = context.txn, context.group, context.now_ms
    found: list[tuple[int, Block, Segment, int, int]] = []
    count = passed = 0
    for key, value in ready_rows(txn, group, context.state):
        if count >= wanted or len(found) >= APPLY_SEGMENTS_MAX or passed >= ASIDE_SEGMENTS_MAX:
            break
        first_seq = int.from_bytes(value, "big")
        if first_seq in aside:
            passed += 1
            continue
        block = block_of(context, first_seq)
        segment = load_segment(txn, group, first_seq, key[-1])
        expired = block.expired(segment.mask, now_ms)
        spent = worn(context, block, segment.mask & ~expired, segment.attempt)
        found.append((first_seq, block, segment, expired, spent))
        count += (segment.mask & ~expired & ~spent).bit_count()
    candidates: list[Candidate] = []
    for first_seq, block, segment, expired, spent in found:
        if expired or spent:
            segment = bury(context, first_seq, block, segment, expired=expired, spent=spent)
        if segment.mask:
            candidates.append((first_seq, block, segment, segment.mask))
    return candidates


def _grant_one(
    context: ApplyContext, caller: LeaseCaller, share: int, candidates: list[Candidate]
) -> LeaseGrant | Refusal:
    """Takes a share from the end of `candidates`, which is the first in the order of leasing."""
    bytes_max = _bytes_max(caller)
    taken: list[_Taken] = []
    while share and candidates:
        first_seq, block, segment, part = candidates[-1]
        mask = masks.first(part, share)
        size = block.size(mask)
        if size > bytes_max:
            mask = block.fitting(mask, bytes_max)
            if not mask:
                break
            size = block.size(mask)
            share = mask.bit_count()
        if context.state.overlays:
            whole = mask
            mask, later_bytes = with_later(
                context, first_seq, block, mask, bytes_max=bytes_max, at_least_one=not taken
            )
            if not mask:
                break
            if mask != whole:
                size, share = block.size(mask), mask.bit_count()
            bytes_max -= later_bytes
        count = mask.bit_count()
        share -= count
        bytes_max -= size
        candidates.pop()
        if mask != part:
            candidates.append((first_seq, block, without(segment, mask), part & ~mask))
        detach(context, first_seq, segment, mask)
        context.count_ahead(segment.position, count)
        context.state.leased += count
        context.state.delivered += count
        if segment.flow:
            flows = flows_of(context)
            flows.served(segment.flow, count)
            if flows.rated:
                flows.took(segment.flow, count)
        taken.append((first_seq, block, segment, mask, size))
    if not taken:
        return _too_large(caller, bytes_max, candidates)
    if context.flows is not None and context.flows.keyed:
        _leave_key(taken[-1][2].flow, candidates)
    return _record(context, caller, taken)


def _bytes_max(caller: LeaseCaller) -> int:
    return caller.max_bytes if caller.max_bytes > 0 else REPLY_BYTES_DEFAULT


def _leave_key(flow: int, candidates: list[Candidate]) -> None:
    """Drops the candidates of a key of which a caller has some: it alone may have items of it."""
    while flow > ROOT and candidates and candidates[-1][2].flow == flow:
        candidates.pop()


def _too_large(
    caller: LeaseCaller, bytes_max: int, candidates: list[Candidate]
) -> LeaseGrant | Refusal:
    if not candidates:
        return NOTHING
    first_seq, block, _, part = candidates[-1]
    size = block.size(masks.first(part, 1))
    return Refusal(
        ErrorCode.ITEM_TOO_LARGE,
        f"the next item (sequence {first_seq + masks.low(part)}) has {size} bytes; "
        f"max_bytes is {bytes_max}",
        field="max_bytes",
        limit=f"{bytes_max} bytes",
        value=f"{size} bytes",
    )


def _record(context: ApplyContext, caller: LeaseCaller, taken: list[_Taken]) -> LeaseGrant:
    """Puts detached items under one lease, or under one for each own lease timeout of the items."""
    state = context.state
    leases: dict[int, tuple[int, LeaseRow]] = {}
    segments: list[LeasedSegment] = []
    numbers: list[int] = []
    feed = context.feed
    for first_seq, block, segment, mask, size in taken:
        pieces = [(0, mask)]
        if block.own and not caller.lease_timeout_ms:
            pieces = block.by_lease_timeout(mask)
        for own_ms, piece in pieces:
            if own_ms not in leases:
                timeout_ms = caller.lease_timeout_ms or own_ms or context.queue.lease_timeout_ms
                deadline_ms = deadline_after(context, timeout_ms)
                row = LeaseRow(caller.client_id, caller.request_id, deadline_ms, [])
                row.timeout_ms, row.since_ms = own_ms, context.now_ms
                row.leased_ms = context.now_ms
                leases[own_ms] = state.next_lease + len(leases), row
            number, row = leases[own_ms]
            attempt = segment.attempt + 1
            put_segment(
                context,
                first_seq,
                Segment(
                    state=RowState.LEASED,
                    attempt=attempt,
                    releases=segment.releases,
                    position=segment.position,
                    locator=number,
                    mask=piece,
                    priority=segment.priority,
                    age=segment.age,
                    flow=segment.flow,
                ),
            )
            if segment.flow:
                flows_of(context).came(segment.flow, RowState.LEASED, piece.bit_count())
            piece_size = size if piece == mask else block.size(piece)
            segments.append(
                LeasedSegment(
                    first_seq, piece, attempt, piece.bit_count(), piece_size,
                    priority=segment.priority,
                )
            )  # fmt: skip
            numbers.append(number)
            data = masks.to_bytes(piece)
            row.items.append(LeasedItems(first_seq, attempt, data, data))
            if feed is not None:
                feed.granted(number, caller.client_id)
                feed.items(
                    EventKind.LEASED, first_seq, piece, lease=number, attempt=attempt,
                    produced_at_ms=block.produced_at_ms, flow=segment.flow,
                )  # fmt: skip
    for number, row in leases.values():
        _put(context, number, row)
    if caller.request_id:
        LEASE_REQUESTS.put(
            context.txn,
            context.group,
            request_hash(caller.client_id, caller.request_id),
            value=numbers_to_bytes(number for number, _ in leases.values()),
        )
    state.next_lease += len(leases)
    state.leases += len(leases)
    if len(leases) == 1:
        return LeaseGrant(numbers[0], row.deadline_ms, tuple(segments))
    deadlines = {number: row.deadline_ms for number, row in leases.values()}
    return _answer(
        [
            replace(segment, lease=number, deadline_ms=deadlines[number])
            for segment, number in zip(segments, numbers, strict=True)
        ]
    )


def _put(context: ApplyContext, number: int, row: LeaseRow) -> None:
    txn, group, state = context.txn, context.group, context.state
    LEASES.put(txn, group, number, value=encode(row))
    DEADLINES.put(txn, group, row.deadline_ms, number, value=b"")
    CLIENT_LEASES.put(txn, group, client_hash(row.client_id), number, value=b"")
    state.deadline_head_ms = earlier(state.deadline_head_ms, row.deadline_ms)


def deadline_after(context: ApplyContext, timeout_ms: int) -> int:
    return context.now_ms + min(max(timeout_ms, 0), LEASE_TIMEOUT_MS_MAX)
