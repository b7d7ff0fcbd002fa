"""A queue in the simulation: its settings, and what is in it at the end."""

from typing import Any

from querator.model.commands import Configure, PartitionSettings
from querator.model.ids import GroupId
from querator.partition import queries
from tests.checkers import history
from tests.checkers.history import Recorder
from tests.simulation.clients import queue_name
from tests.simulation.node import SimulatedNode

LEASE_TIMEOUT_MS = 4_000
_PEEK_BYTES = 1 << 40


def configured(group: GroupId, partition: int) -> tuple[Any, bytes]:
    settings = PartitionSettings(
        namespace="default",
        queue=queue_name(group),
        queue_id=group,
        partition=partition,
        lease_timeout_ms=LEASE_TIMEOUT_MS,
        expire_timeout_ms=0,
        max_attempts=0,
        dedup_window_ms=3_600_000,
        items_max=0,
    )
    return Configure(1, settings), b""


def look_at_items(recorder: Recorder, leader: SimulatedNode, group: GroupId) -> None:
    """Records everything that the queue holds, as the last entry of its history."""
    pending = recorder.begin("the end", queue_name(group), history.Look())
    present = [(0, seq, reference) for seq, reference in items_of(leader, group)]
    pending.ended(history.Looked(tuple(present)))


def items_of(leader: SimulatedNode, group: GroupId) -> list[tuple[int, str]]:
    """Sequence and reference of all items."""
    present: list[tuple[int, str]] = []
    with leader.view(group) as snapshot:
        after = 0
        while True:
            page = queries.peek(
                snapshot, group, None, after_seq=after, limit=1_000, bytes_max=_PEEK_BYTES
            )
            present += [(item.seq, item.item.decode().strip()) for item in page.items]
            after = page.after_seq
            if not after:
                return present
