"""Limits of the leases of queues: their settings and what they permit, as messages."""

from datetime import timedelta

from querator.client.checks import check, check_span
from querator.client.items import duration, instant, span
from querator.client.limit_values import LimitStats, RateLimit
from querator.client.typed import check_fields
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb


def rate_limit_message(rate: RateLimit) -> pb.RateLimit:
    """Raises TypeError and ValueError that name the setting."""
    if not isinstance(rate, RateLimit):
        raise TypeError(f"rate_limit is {rate!r}; it must be a RateLimit, or None for no limit")
    check_fields(rate, "rate_limit")
    check("rate_limit.items", rate.items, 1, limits.RATE_ITEMS_MAX)
    check("rate_limit.burst", rate.burst, 0, limits.RATE_BURST_MAX)
    check_span("rate_limit.interval", rate.interval)
    least = timedelta(milliseconds=limits.RATE_INTERVAL_MS_MIN)
    most = timedelta(milliseconds=limits.RATE_INTERVAL_MS_MAX)
    if not least <= rate.interval <= most:
        raise ValueError(
            f"rate_limit.interval is {rate.interval}; it must be from {least} to {most}"
        )
    return pb.RateLimit(
        items=rate.items,
        interval=duration(rate.interval, "rate_limit.interval"),
        burst=rate.burst,
    )


def rate_limit(settings: pb.QueueSettings) -> RateLimit | None:
    if not settings.HasField("rate_limit"):
        return None
    message = settings.rate_limit
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
