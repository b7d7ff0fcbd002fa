"""Groups that are being deleted, in bounded steps over many turns."""

from querator.model.ids import GroupId
from querator.model.limits import DELETE_ROWS_TURN_MAX, TURN_BYTES_MAX
from querator.raft.handover import Remove
from querator.raft.log_rows import mark_deleting
from querator.storage import generations
from querator.storage.environment import WriteTransaction


class Deletions:
    """Of one node. A crash in between leaves groups that can only be deleted further."""

    def __init__(self) -> None:
        self._requests: dict[GroupId, list[Remove]] = {}

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __contains__(self, group: GroupId) -> bool:
        return group in self._requests

    def add(self, request: Remove) -> None:
        self._requests.setdefault(request.group, []).append(request)

    def go_on(self, txn: WriteTransaction) -> list[Remove]:
        """Deletes rows; requests that are fulfilled with this transaction.

        A group that loses its first rows is marked in the same transaction.
        """
        done: list[Remove] = []
        for group, requests in list(self._requests.items()):
            if not generations.delete_generations(
                txn, group, rows_max=DELETE_ROWS_TURN_MAX, bytes_max=TURN_BYTES_MAX
            ):
                current = generations.read(txn, group).current
                mark_deleting(generations.write_view(txn, group, current), group)
                break
            done.extend(requests)
            del self._requests[group]
        return done
