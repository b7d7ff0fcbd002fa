"""The start of a simulated node on its disk: what `storage.identity.claim` and the transport do."""

import random

from querator.model.starts import Met, Starts, next_starts
from querator.raft.starts import StartMemory
from querator.storage import starts as rows
from tests.simulation.node import SimulatedNode


def begin_start(node: SimulatedNode) -> StartMemory:
    """Counts a start, with a nonce that is synced, and reads what is remembered of other nodes."""
    environment = node.disk.environment
    with environment.snapshot() as snapshot:
        before = StartMemory.load(snapshot, node.key).own
    boots = before[-1].boots + 1 if before else 1
    # A start from an older image gets another nonce than the original's next start.
    nonce = random.Random(f"{node.key} {node.boots}").getrandbits(63)
    own: Starts = next_starts(before, boots=boots, nonce=nonce)
    txn = environment.begin()
    rows.put(txn, Met(node.key, own))
    txn.commit(sync=True)
    with environment.snapshot() as snapshot:
        return StartMemory.load(snapshot, node.key)
