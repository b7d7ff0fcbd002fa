"""Shows each entry of the partitions of fair and keyed queues to their checkers, in the order of
the log, as the first replica applies it.
"""

from collections.abc import Iterable
from typing import Any

from querator.model.commands import LeaseGrant, LeaseResult
from querator.model.queues import QueueKind
from querator.partition import masks
from querator.partition.payloads import BlockDamaged, read_payload
from querator.partition.rows import RowState, decode_segment, decode_settings
from querator.partition.segments import load_block
from querator.storage.environment import ReadTransaction
from querator.storage.tables import SEGMENTS, SETTINGS
from tests.simulation.checks import CheckedMachine
from tests.simulation.timeline import Timeline
from tests.simulation.whole.fairness import FairnessChecker, Now
from tests.simulation.whole.grouping import path_of
from tests.simulation.whole.programs import references_in
from tests.simulation.whole.ranking import RankedChecks
from tests.simulation.whole.ranks import Ranks


class FlowChecks(RankedChecks):
    def __init__(self, timeline: Timeline, ranks: Ranks, fairness: FairnessChecker | None) -> None:
        """`fairness` None: there is no fair queue."""
        super().__init__(timeline, ranks)
        self._fairness = fairness
        self._references: dict[tuple[int, int], str] = {}
        """By group and sequence."""

    def first_applied(
        self, machine: CheckedMachine, txn: ReadTransaction, results: Iterable[Any]
    ) -> None:
        if self._fairness is None:
            return
        group = machine.group
        raw = SETTINGS.get(txn, group)
        flows = None if raw is None else decode_settings(raw).settings.flows
        if flows is None or flows.kind is not QueueKind.FAIR:
            return
        ready: dict[int, str] = {}
        leased: dict[int, str] = {}
        for key, row in SEGMENTS.rows(txn, group):
            segment = decode_segment(row)
            first_seq = int.from_bytes(key[-9:-1], "big")
            if segment.state == RowState.READY:
                there = ready
            elif segment.state in (RowState.LEASED, RowState.RESERVED):
                there = leased
            else:
                continue
            for ordinal in masks.ordinals(segment.mask):
                reference = self._reference(txn, group, first_seq, ordinal)
                if reference:
                    there[first_seq + ordinal] = path_of(reference)
        self._fairness.applied(group, Now(flows, ready, leased), _granted(results))

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
