"""The item that a command's options describe, and what options and JSON lines say about retries."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import click
import msgspec

from querator.cli.shared.parameters import (
    DurationType,
    WholeNumber,
    duration_field,
    format_duration,
)
from querator.client.options import OnDuplicate
from querator.client.values import BACKOFFS, Item, RetryPolicy
from querator.model.limits import ATTEMPTS_MAX, RETRY_DELAY_MS_MAX, SCHEDULE_NOW_MS

F = TypeVar("F", bound=Callable[..., Any])

_DELAY_MAX: Final = timedelta(milliseconds=RETRY_DELAY_MS_MAX)
_NAMES: Final = ("retry_delay", "retry_delay_max", "retry_backoff", "retry_jitter")
_OPTIONS: Final = (
    click.option(
        "--max-attempts",
        type=WholeNumber(0, ATTEMPTS_MAX),
        metavar="N",
        help="How many times the item is leased before it dies; 0: no limit; default: the queue's.",
    ),
    click.option(
        "--retry-delay",
        type=DurationType(most_ms=RETRY_DELAY_MS_MAX),
        help="How long the item waits after its first failed attempt, up to 30d; default: the "
        "queue's retry policy.",
    ),
    click.option(
        "--retry-delay-max",
        type=DurationType(least_ms=SCHEDULE_NOW_MS, most_ms=RETRY_DELAY_MS_MAX),
        help="With --retry-delay: the longest wait, up to 30d; default: 1h.",
    ),
    click.option(
        "--retry-backoff",
        type=click.Choice(BACKOFFS),
        help="With --retry-delay: how the wait grows; default: exponential.",
    ),
    click.option(
        "--retry-jitter/--no-retry-jitter",
        default=None,
        help="With --retry-delay: whether each wait is a random part of it; default: it is.",
    ),
)


def item_retry_options(command: F) -> F:
    """Adds the options, in their order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def item_template(fields: dict[str, object]) -> Item:
    """The template of all items, without payload."""
    attributes = fields.pop("attributes")
    assert isinstance(attributes, tuple)
    retries = _retries(fields)
    if fields["delay"] is not None and fields["enqueue_at"] is not None:
        raise click.UsageError("Give --delay or --at, not both.")
    for value in (*fields.values(), *(text for pair in attributes for text in pair)):
        if isinstance(value, str):
            _check_text(value)
    checked = msgspec.convert(
        {name: value for name, value in fields.items() if value is not None}, _TemplateFields
    )
    return Item(
        attributes=dict(attributes),
        **msgspec.structs.asdict(checked),
        **retries,
    )


class _TemplateFields(msgspec.Struct, frozen=True):
    kind: str = ""
    encoding: str = ""
    reference: str = ""
    key: str = ""
    priority: int = 0
    group: str = ""
    delay: timedelta | None = None
    enqueue_at: datetime | None = None
    expire_timeout: timedelta | None = None
    lease_timeout: timedelta | None = None
    on_duplicate: OnDuplicate = "keep"
    debounce_max: timedelta | None = None
    keep_result: timedelta | None = None


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{text!r} is not UTF-8.") from None


def _retries(fields: dict[str, object]) -> dict[str, Any]:
    """Removes the options from `fields`; returns fields of an `Item`. Raises UsageError."""
    max_attempts = fields.pop("max_attempts")
    given = {name: fields.pop(name) for name in _NAMES}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return {"max_attempts": max_attempts}
    if "retry_delay" not in given:
        name = next(iter(given)).replace("_", "-")
        raise click.UsageError(f"--{name} needs --retry-delay.")
    changes = {name.removeprefix("retry_"): value for name, value in given.items()}
    policy = msgspec.convert(changes, RetryPolicy)
    if timedelta(0) < policy.delay < timedelta(milliseconds=SCHEDULE_NOW_MS):
        words = format_duration(policy.delay)
        raise click.UsageError(f"--retry-delay is {words}; it must be 0 or at least 100ms.")
    return {"max_attempts": max_attempts, "retry": policy}


class JsonRetry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The field `retry` of a JSON line."""

    delay: str
    delay_max: str = "1h"
    backoff: str = "exponential"
    jitter: bool = True


def retry_of(line: JsonRetry) -> RetryPolicy:
    """Raises ValueError that names the field and the value."""
    if line.backoff not in BACKOFFS:
        raise ValueError(
            f"retry.backoff is {line.backoff!r}; it must be one of {', '.join(BACKOFFS)}"
        )
    delay = duration_field("retry.delay", line.delay, _DELAY_MAX)
    if delay and delay < timedelta(milliseconds=SCHEDULE_NOW_MS):
        raise ValueError(f"retry.delay is {line.delay}; it must be 0 or at least 100ms")
    delay_max = duration_field("retry.delay_max", line.delay_max, _DELAY_MAX)
    if delay_max < timedelta(milliseconds=SCHEDULE_NOW_MS):
        raise ValueError(f"retry.delay_max is {line.delay_max}; at least 100ms")
    return msgspec.convert(
        {"delay": delay, "delay_max": delay_max, "backoff": line.backoff, "jitter": line.jitter},
        RetryPolicy,
    )
