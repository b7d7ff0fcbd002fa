"""Rewriting of damaged attachments on this node's disk, with the bytes of another replica.

This changes no state: the bytes are those that the log has had at this place on all replicas. So it
needs no entry of the log, and each replica does it alone. A turn writes one attachment, with the
turn's synced commit.
"""

import asyncio
from collections import deque

from querator.model.entries import Tier
from querator.model.errors import ErrorCode, QueratorError
from querator.raft.log.disk_budget import DiskBudget
from querator.raft.requests import Mend
from querator.storage import attachments, generations
from querator.storage.environment import StorageCorrupt, WriteTransaction

_Done = tuple["asyncio.Future[None]", QueratorError | None]


class Mending:
    """Rewriting requests of one node. Only the raft thread calls it."""

    def __init__(self, space: DiskBudget) -> None:
        self._space = space
        self._requests: deque[Mend] = deque()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request: Mend) -> None:
        self._requests.append(request)

    def mend_next(self, txn: WriteTransaction) -> list[_Done]:
        """Writes the first one; returns the requests that are done when the transaction is
        committed.
        """
        if not self._requests:
            return []
        request = self._requests.popleft()
        try:
            return [(request.future, self._mend(txn, request))]
        except StorageCorrupt as error:
            message = f"group {request.group} cannot be mended: {error}"
            return [(request.future, QueratorError(ErrorCode.INTERNAL, message))]

    def _mend(self, txn: WriteTransaction, request: Mend) -> QueratorError | None:
        group, index, part = request.group, request.index, request.part
        current = generations.read(txn, group).current
        view = generations.write_view(txn, group, current)
        if not request.is_wanted(view):
            return None
        # Bytes read here may be those in the storage's memory, not those on the disk.
        if not self._space.takes_mending(len(request.data)):
            return self._space.refusal(Tier.FREES)
        attachments.write(view, group, index, part, request.data)
        return None
