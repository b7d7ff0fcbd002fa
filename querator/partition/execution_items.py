"""Items that an execution produces: they are stored with its records, in one entry.

    a Record with items          a block of items, all in the outbox; PRODUCED in the journal
    the moves                    bring them to their queues, each exactly once (`partition.moves`)
    the queue was deleted        they are dropped, and counted: queues of executions have no dead
                                 letters

So the journal says that items were produced if, and only if, they were: a worker that runs the code
again produces nothing for a path that the journal has. A queue that is full keeps them waiting
here, and their execution continues. All that wait here together are bounded: a Record with more is
refused (OVERLOADED), and the worker sends it again.
"""

from collections.abc import Sequence

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import RecordProgress
from querator.model.limits import EXECUTION_ITEMS_WAITING_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.executions import place_activations
from querator.partition.follow_ups import send_block
from querator.partition.produce import place_block


def refuse_items(context: ApplyContext, command: RecordProgress) -> Refusal | None:
    """The refusal of a Record whose items have no room here."""
    waiting = context.state.moving + command.items
    if not command.items or waiting <= EXECUTION_ITEMS_WAITING_MAX:
        return None
    return Refusal(
        ErrorCode.OVERLOADED,
        f"{waiting} items of executions would wait in the partition for their queues; the limit is "
        f"{EXECUTION_ITEMS_WAITING_MAX}",
        field="produced",
        limit=str(EXECUTION_ITEMS_WAITING_MAX),
        value=str(waiting),
    )


def send_items(
    context: ApplyContext, command: RecordProgress, blocks: Sequence[tuple[int, int]]
) -> None:
    """Puts the items of a Record into the outbox. `blocks` are (attachment, number of items)."""
    sent = command.sent
    if sent is None:
        return
    # They are in the order of their sequences.
    place_activations(context)
    state = context.state
    first_seq = state.next_seq
    state.next_seq += command.items
    state.produced += command.items
    start = 0
    for part, count in blocks:
        place_block(
            context=context,
            attachment=(context.index, part),
            first_seq=first_seq + start,
            lengths=sent.lengths[start * 4 : (start + count) * 4],
            alive=masks.full(count),
            specials=[one for one in sent.specials if start <= one.ordinal < start + count],
            held={},
            flow_of=(),
            start=start,
            away=masks.full(count),
        )
        send_block(context, sent, first_seq, start, count)
        start += count
