"""Limits of the leases of queues: their settings and what they permit, as messages."""

from datetime import timedelta
from typing import Literal

from querator.client.checks import check, check_span
from querator.client.items import duration, instant, span
from querator.client.limit_values import LimitStats, RateLimit
from querator.client.typed import check_fields
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb


def rate_limit_message(rate: RateLimit, name: str = "rate_limit") -> pb.RateLimit:
    """Raises TypeError and ValueError that name the setting."""
    if not isinstance(rate, RateLimit):
        raise TypeError(f"{name} is {rate!r}; it must be a RateLimit, or None for no limit")
    check_fields(rate, name)
    check(f"{name}.items", rate.items, 1, limits.RATE_ITEMS_MAX)
    check(f"{name}.burst", rate.burst, 0, limits.RATE_BURST_MAX)
    check_span(f"{name}.interval", rate.interval)
    least = timedelta(milliseconds=limits.RATE_INTERVAL_MS_MIN)
    most = timedelta(milliseconds=limits.RATE_INTERVAL_MS_MAX)
    if not least <= rate.interval <= most:
        raise ValueError(f"{name}.interval is {rate.interval}; it must be from {least} to {most}")
    return pb.RateLimit(
        items=rate.items, interval=duration(rate.interval, f"{name}.interval"), burst=rate.burst
    )


def rate_limit(
    settings: pb.QueueSettings | pb.GroupSettings,
    name: Literal["rate_limit", "group_rate_limit", "key_rate_limit"],
) -> RateLimit | None:
    """The rate in a field of settings."""
    if not settings.HasField(name):  # type: ignore[arg-type]
        return None
    message: pb.RateLimit = getattr(settings, name)
    return RateLimit(message.items, span(message.interval), message.burst)


def limit_stats(stats: pb.PartitionStats) -> LimitStats | None:
    if not stats.HasField("limits"):
        return None
    message = stats.limits
    return LimitStats(
        tokens=message.tokens,
        burst=message.burst,
        next_at=instant(message.next_at) if message.HasField("next_at") else None,
        lease_limit=message.lease_limit,
    )
