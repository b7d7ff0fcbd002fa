"""Changes of code that only executions take which have not come there yet: `patched`."""

import sys

from querator.durable import context
from querator.durable.operations import site_of
from querator.durable.waits import checked


def patched(name: str) -> bool:
    """Whether the code takes the newer way: `if patched("reserve-first"): …`.

    True where the journal of the run has this patch, and at the end of the journal, where it is
    recorded; else False for the whole run. So executions that have passed this place keep the older
    way. A patch has no place among the operations: it may be removed when no execution takes the
    older way any more.
    """
    code = context.any_code_or_raise("patched")
    return code.patch(checked(name, "the name of the patch"), site_of(sys._getframe(1)))
