"""Deletion of groups, in bounded steps over many turns."""

from querator.model.ids import GroupId
from querator.model.limits import DELETE_ROWS_TURN_MAX, TURN_BYTES_MAX
from querator.raft.log.rows import mark_deleting
from querator.raft.requests import Remove
from querator.storage import generations
from querator.storage.environment import WriteTransaction
from querator.storage.tables import MEMBERS


class Deletions:
    """Deletions of one node. After a crash, a partly deleted group can only be deleted further."""

    def __init__(self) -> None:
        self._requests: dict[GroupId, list[Remove]] = {}
        self._closing: dict[GroupId, list[Remove]] = {}

    def __bool__(self) -> bool:
        return bool(self._requests or self._closing)

    def __contains__(self, group: GroupId) -> bool:
        return group in self._requests or group in self._closing

    def add(self, request: Remove) -> None:
        requests = self._requests if request.rows else self._closing
        requests.setdefault(request.group, []).append(request)

    def delete_more(self, txn: WriteTransaction) -> list[Remove]:
        """Deletes rows; returns the requests that are fulfilled with this transaction.

        A group that loses its first rows is marked in the same transaction.
        """
        done: list[Remove] = []
        for group, requests in self._closing.items():
            if MEMBERS.get(generations.view(txn, group), group) is not None:
                _mark(txn, group)
            done.extend(requests)
        self._closing.clear()
        for group, requests in list(self._requests.items()):
            if not generations.delete_generations(
                txn, group, rows_max=DELETE_ROWS_TURN_MAX, bytes_max=TURN_BYTES_MAX
            ):
                _mark(txn, group)
                break
            done.extend(requests)
            del self._requests[group]
        return done


def _mark(txn: WriteTransaction, group: GroupId) -> None:
    current = generations.read(txn, group).current
    mark_deleting(generations.write_view(txn, group, current), group)
