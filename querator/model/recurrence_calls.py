"""The calls of operators about recurrences, and their replies; as in `model.calls`."""

import msgspec

from querator.model.recurrences import RecurrenceSpec, RecurrenceState


class RecurrenceCall(msgspec.Struct, frozen=True):
    """Names a recurrence of a queue."""

    namespace: str
    queue: str
    name: str
    timeout_ms: int = 0


class CreateRecurrenceCall(RecurrenceCall, frozen=True, kw_only=True):
    spec: RecurrenceSpec


class UpdateRecurrenceCall(RecurrenceCall, frozen=True, kw_only=True):
    """`mask`: the fields of `spec` to change. `expected_revision` 0: any."""

    spec: RecurrenceSpec
    mask: tuple[str, ...]
    expected_revision: int = 0


class PauseRecurrenceCall(RecurrenceCall, frozen=True, kw_only=True):
    paused: bool


class ListRecurrencesCall(msgspec.Struct, frozen=True):
    """A page of recurrences. `page_size` 0: the default."""

    namespace: str
    queue: str
    page_size: int = 0
    page_token: str = ""
    timeout_ms: int = 0


class RecurrenceTimesCall(msgspec.Struct, frozen=True):
    """The coming due times of a recurrence, or of `spec`. `count` 0: the default. `after_ms` None:
    those that are not decided.
    """

    namespace: str = ""
    queue: str = ""
    name: str = ""
    spec: RecurrenceSpec | None = None
    count: int = 0
    after_ms: int | None = None
    timeout_ms: int = 0


class ShownRecurrence(msgspec.Struct, frozen=True):
    """A recurrence, and when its next item comes (0: that is not known). `changed`: the call has
    changed it.
    """

    recurrence: RecurrenceState
    next_fire_ms: int = 0
    changed: bool = False


class ShownRecurrences(msgspec.Struct, frozen=True):
    recurrences: tuple[ShownRecurrence, ...]
    next_page_token: str = ""


class ComingRun(msgspec.Struct, frozen=True):
    """A due time, and when its item comes."""

    due_ms: int
    fire_ms: int
