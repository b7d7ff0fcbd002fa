"""Results of a complete: cut by partition, into the commands that keep them."""

from collections.abc import Sequence
from struct import pack

from querator.model.calls import ReturnedResult
from querator.model.commands import Answer, AnsweredItem, Complete
from querator.model.ids import GroupId, parse_lease_id


def with_results(
    complete: Complete, group: GroupId, results: Sequence[ReturnedResult]
) -> tuple[Complete | Answer, bytes]:
    """The command and its attachment: a complete of leases of the group, with those of the results
    that are of these leases.
    """
    items: list[AnsweredItem] = []
    pieces: list[bytes] = []
    for one in results:
        of_group, _, lease = parse_lease_id(one.lease_id, field="results.lease_id")
        if of_group == group:
            items.append(AnsweredItem(lease, one.seq))
            pieces.append(one.data)
    if not items:
        return complete, b""
    lengths = pack(f"<{len(pieces)}I", *map(len, pieces))
    return Answer(complete, lengths, tuple(items)), b"".join(pieces)
