"""How items of a lease are settled: completed, retried, rejected or released."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

from querator.client import clock
from querator.client.checks import check_attributes, check_delay, check_instant, check_priority
from querator.client.consuming.follow_ups import EncodedFollowUps, FollowUps, encode_follow_ups
from querator.client.typed import typed
from querator.model import limits
from querator.v1 import items_pb2, queue_service_pb2

T = TypeVar("T")


class Verb(NamedTuple):
    """How a lease is ended. `retry_at` None: at once. A release has `count_attempt` False.
    `priority` and `attributes` None: the items keep theirs. Items are settled with `follow_ups` by
    themselves, because no two verbs with follow-ups are equal.
    """

    completes: bool
    retry_at: datetime | None = None
    dead: bool = False
    error: str = ""
    count_attempt: bool = True
    priority: int | None = None
    attributes: tuple[tuple[str, str], ...] | None = None
    follow_ups: EncodedFollowUps | None = None
    clear_checkpoint: bool = False

    @property
    def follow_up_messages(self) -> list[queue_service_pb2.FollowUps]:
        return [] if self.follow_ups is None else self.follow_ups.messages

    @property
    def attributes_message(self) -> items_pb2.Attributes | None:
        if self.attributes is None:
            return None
        return items_pb2.Attributes(values=dict(self.attributes))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPLETE = Verb(completes=True)
RELEASE = Verb(completes=False, count_attempt=False)


def complete_verb(follow_ups: FollowUps | None) -> Verb:
    """Makes the verb of a complete. Raises as `encode_follow_ups`."""
    encoded = encode_follow_ups(follow_ups)
    return COMPLETE if encoded is None else Verb(completes=True, follow_ups=encoded)


@typed
def retry_verb(
    *,
    delay: timedelta | None = None,
    retry_at: datetime | None = None,
    error: str = "",
    dead: bool = False,
    count_attempt: bool = True,
    priority: int | None = None,
    attributes: Mapping[str, str] | None = None,
    follow_ups: FollowUps | None = None,
    clear_checkpoint: bool = False,
) -> Verb:
    """Makes the verb of a retry. `error` is cut to the length that the server keeps. Raises
    ValueError for both `delay` and `retry_at`, for a negative `delay`, for a naive `retry_at`, for
    times that a queue does not keep, for a priority outside its range, and for too many or too long
    attributes.
    """
    if priority is not None:
        check_priority("priority", priority)
    if attributes is not None:
        check_attributes("attributes", attributes)
    if delay is not None:
        if retry_at is not None:
            raise ValueError("give either delay or retry_at")
        check_delay("delay", delay)
        retry_at = clock.now() + delay if delay else None
    elif retry_at is not None:
        check_instant("retry_at", retry_at)
    if retry_at is not None:
        # Protobuf does not carry the beginning of the calendar in every time zone.
        retry_at = max(retry_at, _EPOCH)
        # The server's precision is 1 ms; so retries of the same ms share a request.
        retry_at += timedelta(microseconds=-retry_at.microsecond % 1000)
    # Texts of the operating system may have lone surrogates, which protobuf does not carry.
    text = error[: limits.ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
    return Verb(
        completes=False,
        retry_at=retry_at,
        dead=dead,
        error=text,
        count_attempt=count_attempt,
        priority=priority,
        attributes=None if attributes is None else tuple(sorted(attributes.items())),
        follow_ups=encode_follow_ups(follow_ups),
        clear_checkpoint=clear_checkpoint,
    )


def requests(
    verb: Verb, leases: Sequence[T], items_of: Callable[[T], int]
) -> Iterator[Sequence[T]]:
    """Cuts what is settled together into requests that the server accepts. A retry that changes
    attributes has a limit of items as well, which one lease never exceeds.
    """
    start = items = 0
    for place, lease in enumerate(leases):
        count = 0 if verb.attributes is None else items_of(lease)
        full = place - start == limits.REQUEST_LEASES_MAX
        if full or (start < place and items + count > limits.RETRY_ATTRIBUTES_ITEMS_MAX):
            yield leases[start:place]
            start, items = place, 0
        items += count
    if leases:
        yield leases[start:]
