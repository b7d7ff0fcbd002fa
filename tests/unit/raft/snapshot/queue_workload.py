"""A queue at work: items come, are leased, and are completed, given back or left to lapse.
Scheduled items are moved, run and cancelled, so that blocks change while they are copied.
"""

import random
from typing import Any

from querator.model.commands import (
    Cancel,
    Complete,
    ItemSpecial,
    LeaseGrant,
    LeaseItems,
    Purge,
    Reschedule,
    Retry,
)
from querator.model.entries import Proposal
from querator.storage import generations
from querator.storage.tables import SCHEDULED
from tests.unit.partition import partition_log
from tests.unit.raft.snapshot.snapshot_transfer import GROUP, CommittedEntries, SnapshotReplica


class QueueWorkload:
    """Appends entries to `entries`. Random entries need a replica, which knows what is leased and
    due.
    """

    def __init__(self, seed: int, *, item_bytes: int = 40) -> None:
        self.entries = CommittedEntries()
        self._chance = random.Random(seed)
        self._item_bytes = item_bytes
        self._grants: list[LeaseGrant] = []
        self._clients = 0

    def produce(self, items: int = 100, **changes: Any) -> None:
        batch = [self._chance.randbytes(self._item_bytes) for _ in range(items)]
        self.entries.append(partition_log.produce(batch, **changes))

    def work(self, replica: SnapshotReplica, times: int = 1) -> None:
        """Appends `times` random entries; each is applied to the replica in a turn of its own."""
        for _ in range(times):
            self.entries.now_ms += self._chance.randrange(2_000)
            self._append(replica, self._chance.randrange(10))
            for result in replica.apply():
                for answer in getattr(result, "grants", ()):
                    if isinstance(answer, LeaseGrant) and answer.lease:
                        self._grants.append(answer)

    def _reschedule(self, replica: SnapshotReplica) -> None:
        """Changes some of the scheduled items, if there are any."""
        with replica.environment.snapshot() as txn:
            view = generations.view(txn, GROUP)
            seqs = [
                int.from_bytes(key[-9:-1], "big") + key[-1]
                for key, _ in SCHEDULED.rows(view, GROUP)
            ]
        chosen = sorted(self._chance.sample(seqs, min(len(seqs), 3)))
        due_ms = self.entries.now_ms + self._chance.choice((0, 2_000, 8_000))
        self.entries.append(
            Proposal(
                Reschedule(tuple((seq, 1) for seq in chosen), due_ms, self._chance.random() < 0.3)
            )
        )

    def _purge(self) -> None:
        """Removes the oldest waiting items, or some."""
        upto = self._chance.randrange(1, 200)
        whole = self._chance.random() < 0.5
        removal = Purge(0, upto, scheduled=True) if whole else Cancel(((upto, 9),))
        self.entries.append(Proposal(removal))

    def _append(self, replica: SnapshotReplica, kind: int) -> None:
        due = replica.machine.due_commands(self.entries.now_ms)
        if due:
            self.entries.append(*(Proposal(command) for command in due))
        elif kind < 4:
            later = (
                (ItemSpecial(0, self.entries.now_ms + 3_000, expire_timeout_ms=5_000),)
                if kind == 0
                else ()
            )
            self.produce(self._chance.randrange(1, 300), specials=later)
        elif kind == 4 and self._chance.random() < 0.5:
            self._purge()
        elif kind == 4:
            self._reschedule(replica)
        elif kind < 7 or not self._grants:
            self._clients += 1
            items = self._chance.randrange(1, 400)
            self.entries.append(
                Proposal(partition_log.lease_of(items, client_id=f"{self._clients}"))
            )
        else:
            grant = self._grants.pop(self._chance.randrange(len(self._grants)))
            leases = (LeaseItems(grant.lease),)
            later_ms = self.entries.now_ms + 5_000
            self.entries.append(
                Proposal(
                    Complete(leases)
                    if kind < 9
                    else Retry(leases, retry_at_ms=later_ms, error="not now")
                )
            )
