"""Shows each entry of the partitions of fair and keyed queues, and of the queues with a breaker and
with limits, to their checkers, in the order of the log, as the first replica applies it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from querator.model.commands import LeaseGrant, LeaseResult
from querator.model.queues import QueueKind
from querator.partition import masks
from querator.partition.entry import unpack_entry
from querator.partition.payloads import BlockDamaged, read_payload
from querator.partition.rows import RowState, decode_segment, decode_settings, decode_state
from querator.partition.segments import load_block
from querator.storage.environment import ReadTransaction
from querator.storage.tables import LEASES, SEGMENTS, SETTINGS, STATE
from tests.simulation.checks import CheckedMachine
from tests.simulation.timeline import Timeline
from tests.simulation.whole.breakers import AppliedEntry, BreakerChecker
from tests.simulation.whole.breaking import QUEUE as BREAKING
from tests.simulation.whole.fairness import FairnessChecker, Now
from tests.simulation.whole.grouping import path_of
from tests.simulation.whole.key_order import KeyOrderChecker, There
from tests.simulation.whole.limiting import QUEUE as LIMITING
from tests.simulation.whole.limits import LimitChecker, LimitedEntry
from tests.simulation.whole.programs import references_in
from tests.simulation.whole.ranking import RankedChecks
from tests.simulation.whole.ranks import Ranks


class FlowChecks(RankedChecks):
    def __init__(
        self,
        timeline: Timeline,
        ranks: Ranks,
        *,
        fairness: FairnessChecker | None,
        key_order: KeyOrderChecker | None,
        breaking: bool,
        limiting: bool,
    ) -> None:
        """None and False: there is no such queue."""
        super().__init__(timeline, ranks)
        self._fairness = fairness
        self._key_order = key_order
        self._by_queue: dict[str, Callable[..., None]] = {}
        self.breakers = BreakerChecker()
        self.limits = LimitChecker()
        if breaking:
            self._by_queue[BREAKING] = self._of_breaker
        if limiting:
            self._by_queue[LIMITING] = self._of_limits
        self._references: dict[tuple[int, int], str] = {}
        """By group and sequence."""
        self._attempts: dict[int, dict[int, int]] = {}
        """Those of the leased items, by group and sequence."""

    def first_applied(
        self, machine: CheckedMachine, txn: ReadTransaction, entry: bytes, results: Sequence[Any]
    ) -> None:
        if self._fairness is None and self._key_order is None and not self._by_queue:
            return
        raw = SETTINGS.get(txn, machine.group)
        settings = None if raw is None else decode_settings(raw).settings
        if settings is not None and settings.queue in self._by_queue:
            self._by_queue[settings.queue](txn, machine.group, entry, results)
            return
        flows = None if settings is None else settings.flows
        if flows is None:
            return
        there = dict(self._items(txn, machine.group))
        if flows.kind is QueueKind.FAIR and self._fairness is not None:
            known = {
                seq: item for seq, item in there.items() if (machine.group, seq) in self._references
            }
            ready = {seq: item.key for seq, item in known.items() if item.state == RowState.READY}
            leased = {
                seq: item.key
                for seq, item in known.items()
                if item.state in (RowState.LEASED, RowState.RESERVED)
            }
            granted = _granted(results)
            released = self._released(machine.group, known, granted)
            self._fairness.applied(machine.group, Now(flows, ready, leased, released), granted)
        elif flows.kind is QueueKind.KEYED and self._key_order is not None:
            in_place = {seq: item for seq, item in there.items() if item.state != RowState.MOVING}
            self._key_order.applied(machine.group, flows, in_place, _granted(results))

    def _of_breaker(
        self, txn: ReadTransaction, group: int, entry: bytes, results: Sequence[Any]
    ) -> None:
        raw = STATE.get(txn, group)
        assert raw is not None
        state = decode_state(raw)
        leases = {int.from_bytes(key[-8:], "big") for key, _ in LEASES.rows(txn, group)}
        commands = unpack_entry(entry).commands
        self.breakers.applied(
            group, AppliedEntry(state.now_ms, commands, results, leases, state.breaker)
        )

    def _of_limits(
        self, txn: ReadTransaction, group: int, entry: bytes, results: Sequence[Any]
    ) -> None:
        raw = STATE.get(txn, group)
        assert raw is not None
        state = decode_state(raw)
        counts = dict.fromkeys(RowState, 0)
        for _, row in SEGMENTS.rows(txn, group):
            segment = decode_segment(row)
            counts[RowState(segment.state)] += segment.mask.bit_count()
        raw = SETTINGS.get(txn, group)
        flows = None if raw is None else decode_settings(raw).settings.flows
        granted = set(_granted(results))
        names = [item.key for seq, item in self._items(txn, group) if seq in granted]
        self.limits.applied(
            group,
            LimitedEntry(
                state.now_ms,
                unpack_entry(entry).commands,
                results,
                counts[RowState.READY] if flows is None else state.leasable,
                counts[RowState.LEASED],
                state.effects.ready,
                state.refill_ms,
                state.lease_paused,
                flows,
                names,
            ),
        )

    def _released(
        self, group: int, items: Mapping[int, There], granted: Collection[int]
    ) -> list[int]:
        """The items whose last attempt was given back by the latest entry, which may have leased
        them again.
        """
        before = self._attempts.get(group, {})
        self._attempts[group] = {
            seq: item.attempt for seq, item in items.items() if item.state == RowState.LEASED
        }
        return [
            seq
            for seq, item in items.items()
            if item.attempt + (item.state == RowState.READY) == before.get(seq)
            and (item.state == RowState.READY or seq in granted)
        ]

    def _items(self, txn: ReadTransaction, group: int) -> Iterator[tuple[int, There]]:
        """The items of a partition by sequence, each with its group or key; those whose payload is
        damaged with an empty one.
        """
        for key, row in SEGMENTS.rows(txn, group):
            segment = decode_segment(row)
            first_seq = int.from_bytes(key[-9:-1], "big")
            lease = segment.locator if segment.state == RowState.LEASED else 0
            for ordinal in masks.ordinals(segment.mask):
                reference = self._reference(txn, group, first_seq, ordinal)
                yield (
                    first_seq + ordinal,
                    There(path_of(reference), segment.state, lease, segment.attempt),
                )

    def _reference(self, txn: ReadTransaction, group: int, first_seq: int, ordinal: int) -> str:
        """The reference of an item; empty if its payload is damaged."""
        known = self._references.get((group, first_seq + ordinal))
        if known is not None:
            return known
        block = load_block(txn, group, first_seq)
        try:
            stored = read_payload(txn, group, first_seq, block)
        except BlockDamaged:
            return ""
        [found] = references_in(stored[block.offset(ordinal) : block.offset(ordinal + 1)])
        self._references[group, first_seq + ordinal] = found
        return found


def _granted(results: Iterable[Any]) -> list[int]:
    """The sequences that leases of an entry took."""
    return [
        segment.first_seq + ordinal
        for result in results
        if isinstance(result, LeaseResult)
        for grant in result.grants
        if isinstance(grant, LeaseGrant) and not grant.repeated
        for segment in grant.segments
        for ordinal in masks.ordinals(segment.mask)
    ]
