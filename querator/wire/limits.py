"""Limits of the leases of queues: settings, and what they let a partition lease."""

from querator.model import limits
from querator.model.calls import LimitCounts
from querator.model.queues import RateSettings
from querator.v1 import admin_service_pb2
from querator.wire import field_checks


def check_rate_limit(message: admin_service_pb2.RateLimit, *, field: str) -> RateSettings:
    """Checks a rate limit; unset fields get their defaults."""
    interval_ms = limits.SECOND_MS
    if message.HasField("interval"):
        interval_ms = field_checks.duration_ms(
            message.interval,
            field=f"{field}.interval",
            least_ms=limits.RATE_INTERVAL_MS_MIN,
            most_ms=limits.RATE_INTERVAL_MS_MAX,
        )
    check = field_checks.check_range
    return RateSettings(
        items=check(message.items, field=f"{field}.items", least=1, most=limits.RATE_ITEMS_MAX),
        interval_ms=interval_ms,
        burst=check(message.burst, field=f"{field}.burst", least=0, most=limits.RATE_BURST_MAX),
    )


def rate_limit_message(rate: RateSettings | None) -> admin_service_pb2.RateLimit | None:
    if rate is None:
        return None
    return admin_service_pb2.RateLimit(
        items=rate.items, interval=field_checks.duration(rate.interval_ms), burst=rate.burst
    )


def limit_stats_message(counts: LimitCounts) -> admin_service_pb2.LimitStats:
    return admin_service_pb2.LimitStats(
        tokens=counts.tokens,
        burst=counts.burst,
        next_at=field_checks.timestamp(counts.next_ms) if counts.next_ms else None,
        lease_limit=counts.lease_limit,
    )
