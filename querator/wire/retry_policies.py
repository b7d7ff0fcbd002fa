"""Retry policies of items: messages to values, with the checks of their fields."""

from typing import Literal

from querator.model import limits
from querator.model.errors import invalid
from querator.model.queues import RetryBackoff, RetryWaits
from querator.v1 import items_pb2
from querator.wire import field_checks


def check_retry_policy(message: items_pb2.RetryPolicy, *, field: str) -> RetryWaits:
    """A policy that is set. Raises INVALID_ARGUMENT, LIMIT_EXCEEDED."""
    if not message.HasField("delay"):
        raise invalid(f"{field}.delay", "must be set; 0 means that the item does not wait")
    delay_ms = _delay_ms(message, "delay", field)
    if 0 < delay_ms < limits.SCHEDULE_NOW_MS:
        raise field_checks.under_limit(
            f"{field}.delay", value=delay_ms, limit=limits.SCHEDULE_NOW_MS, unit="ms"
        )
    delay_max_ms = limits.RETRY_DELAY_MAX_MS_DEFAULT
    if message.HasField("delay_max"):
        delay_max_ms = _delay_ms(message, "delay_max", field, least_ms=limits.SCHEDULE_NOW_MS)
    return RetryWaits(
        delay_ms=delay_ms,
        delay_max_ms=delay_max_ms,
        backoff=check_backoff(message.backoff, field=f"{field}.backoff"),
        jitter=message.jitter if message.HasField("jitter") else True,
    )


def check_backoff(value: int, *, field: str) -> RetryBackoff:
    if value not in items_pb2.RetryBackoff.values():
        raise invalid(field, "is not a known backoff", value=value)
    return RetryBackoff(value or RetryBackoff.EXPONENTIAL)


def _delay_ms(
    message: items_pb2.RetryPolicy,
    name: Literal["delay", "delay_max"],
    field: str,
    *,
    least_ms: int = 0,
) -> int:
    return field_checks.duration_ms(
        getattr(message, name),
        field=f"{field}.{name}",
        least_ms=least_ms,
        most_ms=limits.RETRY_DELAY_MS_MAX,
    )
