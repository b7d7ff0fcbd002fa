"""Facts: what a partition remembers of produces, read for the partitions that need it next.

When requests are shared out among another number of partitions, the partitions that will get
repeats of a request (`owners`) need what this one remembers of it. It is read in pages: first while
the partition still takes requests; then, after it has stopped, only what has come since
(`since_ms`). So requests wait only for this second part. The reader sends the facts to the other
partitions with Adopt. If state time went back since then, "since" begins at the instant to which it
went back.

A producer whose outcomes are forgotten must be known to every partition that may get a request of
it: partition p of n shares its requests with those of n' whose numbers are p modulo gcd(n, n').

A partition that is added learns from the first partition, the coordinator, which batches of
transactions are committed. Other partitions need no such facts: none of their stages can be
prepared after the change.
"""

from collections.abc import Iterable
from math import gcd

import msgspec

from querator.model.commands import (
    NO_SLOT,
    Facts,
    KeyedPlace,
    KeyFact,
    OutcomeFact,
    ProducerFact,
    TxnProducerFact,
)
from querator.model.limits import KEYS_FREED_MAX, KIB, PRODUCER_ID_BYTES
from querator.model.routing import SLOTS, partition_of_producer, slot_of_key
from querator.partition import request_places
from querator.partition.dedup_rows import away_items, keep_their_keys
from querator.partition.departed import sources
from querator.partition.held_keys import passed
from querator.partition.outbox import outbox_targets
from querator.partition.rows import (
    PartitionState,
    ProduceMode,
    ProducerOutcome,
    ProducerRow,
    decode_dedup,
    decode_outcome,
    decode_producer,
    decode_settings,
    decode_state,
)
from querator.partition.staging_rows import decode_txn_producer
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.keys import Table
from querator.storage.tables import (
    DEDUP_KEYS,
    DEDUP_LASTING,
    DEDUP_ORDER,
    ENDED,
    PRODUCER_OUTCOMES,
    PRODUCERS,
    SETTINGS,
    STATE,
    TXN_PRODUCERS,
)

PAGE_ROWS_MAX = 1_000
"""Maximum number of rows that one page reads, and of facts in one Adopt."""
PAGE_BYTES_MAX = 512 * KIB
"""Approximate maximum of a page. One outcome may have more."""
_PLACE_BYTES = 16
"""Bytes of an item of a keyed request in a fact. In its row it has two."""


class FactsQuery(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Asks for a `FactsPage`: what other partitions need to know when requests are shared out among
    `partitions`. `after` is empty, or the value in the page before. `since_ms` is in state time.
    """

    group: int
    before: int
    partitions: int
    after: bytes = b""
    since_ms: int = 0


class FactsPage(msgspec.Struct, frozen=True, array_like=True):
    """Facts by the number of the partition that needs them. `after` is where the next page starts;
    empty means that there is none. `now_ms` is the state time at which the page was read. `back`
    says from when to when state time went back (0, 0: it did not). `redating`: rows are still being
    redated for that.
    """

    facts: tuple[tuple[int, Facts], ...]
    after: bytes
    now_ms: int
    back: tuple[int, int] = (0, 0)
    redating: bool = False

    def is_after(self, earlier: "FactsPage") -> bool:
        """Whether time did not go back between the two pages. If so, rows have kept their order."""
        return self.back == earlier.back and self.now_ms >= earlier.now_ms


class AwayKeysQuery(msgspec.Struct, frozen=True, array_like=True, tag="da"):
    """Asks for items of other partitions that have dedup keys here until they are done, after one
    of them: up to KEYS_FREED_MAX, as (partition, sequence), in ascending order.
    """

    group: int
    after: tuple[int, int] = (0, 0)


class KeptKeysQuery(msgspec.Struct, frozen=True, array_like=True, tag="dk"):
    """Asks which of these items still have dedup keys: their sequences."""

    group: int
    seqs: tuple[int, ...]


class ClosureQuery(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Asks for a `Closure`."""

    group: int


class Closure(msgspec.Struct, frozen=True, array_like=True):
    """Progress of the closing of a partition, as of version `routing`. `outcomes`: outcomes of
    ended leases are remembered, and repeats may ask for them; or results of items or events are
    kept. `next_seq` is the sequence of its next item. `targets` are the groups to which moves are
    on their way. `pinned`: items wait for the decision on a transaction, or to be published after
    it; or rows are being redated. `changes` are those that are not over for keys, as
    (version, whether the partition has passed, a mask of the partitions for which it waits); see
    `held_keys`. `sources`, of a closing partition, are the groups from which it has taken moves.
    `away_keys` is the number of dedup keys that items of other partitions have.
    """

    routing: int
    closing: bool
    items: int
    outcomes: bool
    next_seq: int
    targets: tuple[int, ...]
    pinned: bool = False
    changes: tuple[tuple[int, bool, bytes], ...] = ()
    sources: tuple[int, ...] = ()
    away_keys: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing in the partition is needed any more, and nothing will come."""
        waits = any(waits for _, _, waits in self.changes)
        return self.closing and not (self.items or self.outcomes or self.pinned or waits)


SharingQuery = FactsQuery | ClosureQuery | AwayKeysQuery | KeptKeysQuery


def answer(
    txn: ReadTransaction, query: SharingQuery
) -> FactsPage | Closure | tuple[tuple[int, int], ...] | tuple[int, ...]:
    match query:
        case FactsQuery():
            return facts(txn, query)
        case ClosureQuery():
            return closure(txn, query)
        case AwayKeysQuery():
            view = generations.view(txn, query.group)
            return away_items(view, query.group, query.after, KEYS_FREED_MAX)
        case KeptKeysQuery():
            return keep_their_keys(generations.view(txn, query.group), query.group, query.seqs)


def closure(txn: ReadTransaction, query: ClosureQuery) -> Closure:
    group = query.group
    txn = generations.view(txn, group)
    raw, settings = STATE.get(txn, group), SETTINGS.get(txn, group)
    state = PartitionState() if raw is None else decode_state(raw)
    row = None if settings is None else decode_settings(settings)
    outcomes = next(iter(ENDED.rows(txn, group)), None) is not None or state.results > 0
    outcomes = outcomes or (state.feed is not None and state.feed.rows > 0)
    closing = row is not None and row.open and row.closing
    return Closure(
        routing=0 if row is None else row.routing,
        closing=closing,
        items=state.items,
        outcomes=outcomes,
        next_seq=state.next_seq,
        targets=outbox_targets(txn, group),
        pinned=state.pinned > 0 or state.redating is not None,
        changes=()
        if row is None
        else tuple((one.version, done, one.waits) for one, done in passed(row, state)),
        sources=sources(txn, group) if closing else (),
        away_keys=state.away_keys,
    )


def owners(
    producer_id: bytes, outcome: ProducerOutcome, sequence: int, partitions: int
) -> set[int]:
    """The partitions to which a repeat of a request may go that was stored as a whole."""
    modes = {ProduceMode.ORDERED: (True,), ProduceMode.UNORDERED: (False,)}
    return {
        partition_of_producer(producer_id, sequence, ordered=ordered, partitions=partitions)
        for ordered in modes.get(ProduceMode(outcome.mode), (True, False))
    }


def _owner(producer_id: bytes, sequence: int, slot: int, partitions: int) -> int:
    """The partition to which an item of a keyed request goes."""
    if slot < SLOTS:
        return slot % partitions
    assert slot == NO_SLOT
    return partition_of_producer(producer_id, sequence, ordered=False, partitions=partitions)


def facts(txn: ReadTransaction, query: FactsQuery) -> FactsPage:
    """One page; see `FactsQuery`."""
    group = query.group
    txn = generations.view(txn, group)
    raw, settings = STATE.get(txn, group), SETTINGS.get(txn, group)
    state = PartitionState() if raw is None else decode_state(raw)
    if settings is None:
        return FactsPage((), b"", state.now_ms)
    if state.back_to_ms < query.since_ms <= state.back_from_ms:
        query = msgspec.structs.replace(query, since_ms=state.back_to_ms)
    page = _Page(query, decode_settings(settings).settings.partition)
    stage, start = query.after[:1] or b"p", query.after[1:]
    after = b""
    if stage == b"p":
        resume = _producers(txn, query, page, start)
        after = b"k" if resume is None else b"p" + resume
    elif stage in (b"k", b"l"):
        order = DEDUP_ORDER if stage == b"k" else DEDUP_LASTING
        resume = _keys(txn, query, page, order, start)
        after = (b"l" if stage == b"k" else b"t") if resume is None else stage + resume
    else:
        resume = _txn_producers(txn, query, page, start)
        after = b"" if resume is None else b"t" + resume
    return FactsPage(
        page.result(0 if after else state.displaced_ms),
        after,
        state.now_ms,
        (state.back_from_ms, state.back_to_ms),
        state.redating is not None,
    )


class _Page:
    """The facts of one page, by the partition that needs them."""

    def __init__(self, query: FactsQuery, own: int) -> None:
        self.own = own
        self.partitions = query.partitions
        shared = gcd(query.before, query.partitions)
        self.kin = [
            other for other in range(own % shared, query.partitions, shared) if other != own
        ]
        """Other partitions to which any request that came here may go."""
        self._producers: dict[int, list[ProducerFact]] = {}
        self._keys: dict[int, list[KeyFact]] = {}
        self.txn_producers: list[TxnProducerFact] = []
        """For all partitions that are added."""
        self._coming = range(query.before, query.partitions)
        self.rows = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.rows >= PAGE_ROWS_MAX or self.bytes >= PAGE_BYTES_MAX

    def producer(
        self, producer_id: bytes, row: ProducerRow, outcomes: dict[int, list[OutcomeFact]]
    ) -> None:
        keyed = any(one.mode == ProduceMode.KEYED for there in outcomes.values() for one in there)
        everywhere = bool(row.forgotten) or not row.kept or keyed
        for target in self.kin:
            if everywhere or target in outcomes:
                fact = ProducerFact(
                    producer_id,
                    row.highest,
                    row.forgotten,
                    row.last_ms,
                    tuple(outcomes.get(target, ())),
                )
                self._producers.setdefault(target, []).append(fact)

    def key(self, target: int, fact: KeyFact) -> None:
        if target != self.own:
            self._keys.setdefault(target, []).append(fact)

    def result(self, displaced_ms: int) -> tuple[tuple[int, Facts], ...]:
        targets = set(self.kin) if displaced_ms else {*self._producers, *self._keys}
        coming = self._coming if self.txn_producers else range(0)
        committed = tuple(self.txn_producers)
        return tuple(
            (
                target,
                Facts(
                    tuple(self._producers.get(target, ())),
                    tuple(self._keys.get(target, ())),
                    displaced_ms if target in targets else 0,
                    committed if target in coming else (),
                ),
            )
            for target in sorted(targets.union(coming))
        )


def _producers(txn: ReadTransaction, query: FactsQuery, page: _Page, start: bytes) -> bytes | None:
    """Reads producers from `start` on (an id, and a sequence). Returns where to continue; None at
    the end.
    """
    group = query.group
    first, stop = PRODUCERS.bounds(group)
    if start:
        first = PRODUCERS.key(group, start[:PRODUCER_ID_BYTES])
    for key, raw in txn.scan(first, stop):
        producer_id = key[-PRODUCER_ID_BYTES:]
        if page.is_full:
            return producer_id + bytes(8)
        page.rows += 1
        row = decode_producer(raw)
        if row.last_ms < query.since_ms:
            continue
        begin = 0
        if producer_id == start[:PRODUCER_ID_BYTES]:
            begin = int.from_bytes(start[PRODUCER_ID_BYTES:], "big")
        outcomes, resume = _outcomes(txn, query, page, producer_id, begin)
        page.producer(producer_id, row, outcomes)
        if resume:
            return producer_id + resume.to_bytes(8, "big")
    return None


def _outcomes(
    txn: ReadTransaction, query: FactsQuery, page: _Page, producer_id: bytes, begin: int
) -> tuple[dict[int, list[OutcomeFact]], int]:
    """Outcomes of a producer by the partition that needs them, and the sequence to continue with
    (0: at the end).
    """
    found: dict[int, list[OutcomeFact]] = {}
    _, stop = PRODUCER_OUTCOMES.bounds(query.group, producer_id)
    start = PRODUCER_OUTCOMES.key(query.group, producer_id, begin)
    for key, raw in txn.scan(start, stop):
        sequence = int.from_bytes(key[-8:], "big")
        if page.is_full:
            return found, sequence
        page.rows += 1
        outcome = decode_outcome(raw)
        if outcome.at_ms < query.since_ms:
            continue
        page.bytes += len(raw) + _PLACE_BYTES * (len(outcome.slots) >> 1)
        for target, fact in _facts_of(page, producer_id, sequence, outcome):
            found.setdefault(target, []).append(fact)
    return found, 0


def _facts_of(
    page: _Page, producer_id: bytes, sequence: int, outcome: ProducerOutcome
) -> Iterable[tuple[int, OutcomeFact]]:
    if outcome.mode == ProduceMode.KEYED:
        by_target: dict[int, list[KeyedPlace]] = {}
        for place in request_places.places_of(outcome, page.own):
            target = _owner(producer_id, sequence, place.slot, page.partitions)
            by_target.setdefault(target, []).append(place)
        for target, there in by_target.items():
            if target != page.own:
                yield (
                    target,
                    OutcomeFact(
                        sequence=sequence,
                        first_seq=0,
                        count=0,
                        at_ms=outcome.at_ms,
                        duplicates=(),
                        partition=-1,
                        mode=outcome.mode,
                        places=tuple(there),
                    ),
                )
        return
    partition = page.own if outcome.partition < 0 else outcome.partition
    for target in owners(producer_id, outcome, sequence, page.partitions):
        if target != page.own:
            yield (
                target,
                OutcomeFact(
                    sequence=sequence,
                    first_seq=outcome.first_seq,
                    count=outcome.count,
                    at_ms=outcome.at_ms,
                    duplicates=tuple((*twin, page.own)[:3] for twin in outcome.duplicates),
                    partition=partition,
                    mode=outcome.mode,
                ),
            )


def _keys(
    txn: ReadTransaction, query: FactsQuery, page: _Page, order: Table, start: bytes
) -> bytes | None:
    """Reads keys of an index from `start` on (a time, and a hash). Returns where to continue; None
    at the end. Keys that last until their item is done come from the partition to which they belong
    before the change: another one may have learned of their items and not that they are done.
    """
    group = query.group
    first, stop = order.bounds(group)
    if start:
        first = order.key(group, int.from_bytes(start[:8], "big"), start[8:])
    elif query.since_ms:
        first = order.key(group, query.since_ms, bytes(16))
    for key, _ in txn.scan(first, stop):
        if page.is_full:
            return key[-24:]
        page.rows += 1
        raw = DEDUP_KEYS.get(txn, group, key[-16:])
        assert raw is not None
        row = decode_dedup(raw)
        slot = slot_of_key(row.key) if row.slot < 0 else row.slot
        if row.lasting and slot % query.before != page.own:
            continue
        page.bytes += len(raw)
        partition = page.own if row.partition < 0 else row.partition
        fact = KeyFact(row.key, row.seq, row.at_ms, partition, slot=row.slot, lasting=row.lasting)
        page.key(slot % page.partitions, fact)
    return None


def _txn_producers(
    txn: ReadTransaction, query: FactsQuery, page: _Page, start: bytes
) -> bytes | None:
    """Reads committed batches from `start` on (a hash of a producer). Returns where to continue;
    None at the end. Only the coordinator has them, and only partitions that are added need them.
    """
    if page.own or query.before >= query.partitions:
        return None
    group = query.group
    first, stop = TXN_PRODUCERS.bounds(group)
    if start:
        first = TXN_PRODUCERS.key(group, start)
    for key, raw in txn.scan(first, stop):
        if page.is_full:
            return key[-16:]
        page.rows += 1
        row = decode_txn_producer(raw)
        if row.committed < 0 or row.last_ms < query.since_ms:
            continue
        page.bytes += len(raw)
        page.txn_producers.append(TxnProducerFact(row.producer, row.committed, row.last_ms))
    return None
