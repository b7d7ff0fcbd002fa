"""What a handler may raise to decide the outcome of its item."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from querator.client.checks import check_attributes, check_delay, check_instant, check_priority


class Retry(Exception):
    """Raised by a handler of a worker or of `Consumer.run`: the item is handled again later.

        raise Retry("the mail server is busy", delay=timedelta(minutes=5))

    `delay` or `at` (aware) says when; without both, the delay grows with the attempts as after any
    other exception. `reason` stays with the item. With `count_attempt=False` this attempt does not
    count towards the queue's `max_attempts`. `priority` None: the item keeps its priority.
    `attributes` take the place of all attributes of the item; None: it keeps them.
    `clear_checkpoint`: the item loses its checkpoint. The log has one line, without a traceback.
    """

    # Of subclasses whose constructor does not call this one.
    reason = ""
    delay: timedelta | None = None
    at: datetime | None = None
    count_attempt = True
    priority: int | None = None
    attributes: Mapping[str, str] | None = None
    clear_checkpoint = False

    def __init__(
        self,
        reason: str = "",
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        count_attempt: bool = True,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        clear_checkpoint: bool = False,
    ) -> None:
        """Raises TypeError for an argument of another type; ValueError for a negative `delay`, a
        naive `at`, one of them further ahead than 10 years, for both, for a `priority` outside of
        32 bits, and for more than 64 attributes or 8 KiB of them.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason is {reason!r}; it must be a text: Retry('busy', delay=…)")
        if delay is not None and at is not None:
            raise ValueError("give either delay or at")
        if delay is not None:
            check_delay("delay", delay)
        if at is not None:
            check_instant("at", at)
        if priority is not None:
            check_priority("priority", priority)
        if attributes is not None:
            check_attributes("attributes", attributes)
        super().__init__(reason)
        self.reason = reason
        self.delay = delay
        self.at = at
        self.count_attempt = count_attempt
        self.priority = priority
        self.attributes = attributes
        self.clear_checkpoint = clear_checkpoint


class Reject(Exception):
    """Raised by a handler of a worker or of `Consumer.run`: the item becomes a dead letter at once,
    with `reason`.

    Without a dead queue, the queue drops the item and counts it. The log has one line, without a
    traceback.
    """

    # Of subclasses whose constructor does not call this one.
    reason = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class UndecodablePayload(ValueError):
    """The payload is not of the form that the handler asked for (`item.json()`, `item.text()`).

    A worker with `on_undecodable="reject"` makes the item a dead letter with this reason.
    """


class HandlerTimeout(TimeoutError):
    """A handler did not end within `handler_timeout`. Its item is retried, unless `reject_on` names
    this class.
    """
