"""What became of the items of a worker."""

from enum import StrEnum


class ItemOutcome(StrEnum):
    """What became of an item. `died`: the attempts that its queue allows are used up. `settled`:
    the handler settled it itself. `released`: given back, because the worker stopped. `lost`: its
    lease had ended. `unknown`: the settle got no answer.
    """

    COMPLETED = "completed"
    RETRIED = "retried"
    REJECTED = "rejected"
    DIED = "died"
    SETTLED = "settled"
    RELEASED = "released"
    LOST = "lost"
    UNKNOWN = "unknown"
