"""Breakers of queues: their settings and states as messages, and the call that sets them."""

from datetime import timedelta
from typing import Final

from querator.client.breaker_values import Breaker, BreakerState, BreakerStats
from querator.client.checks import check, check_span
from querator.client.items import duration, instant, span
from querator.client.transport.nodes import Nodes
from querator.client.typed import check_fields
from querator.model import limits
from querator.v1 import admin_service_pb2 as pb

_STATES: Final[dict[int, BreakerState]] = {
    pb.BREAKER_STATE_CLOSED: "closed",
    pb.BREAKER_STATE_OPEN: "open",
    pb.BREAKER_STATE_HALF_OPEN: "half_open",
}


def breaker_message(breaker: Breaker) -> pb.BreakerSettings:
    """Raises TypeError and ValueError that name the setting."""
    if not isinstance(breaker, Breaker):
        raise TypeError(f"breaker is {breaker!r}; it must be a Breaker, or None for no breaker")
    check_fields(breaker, "breaker")
    check("breaker.failure_percent", breaker.failure_percent, 1, 100)
    check("breaker.outcomes_min", breaker.outcomes_min, 1, limits.BREAKER_OUTCOMES_MAX)
    check("breaker.probes", breaker.probes, 1, limits.BREAKER_PROBES_MAX)
    for name, value, least_ms, most_ms in (
        ("window", breaker.window, limits.BREAKER_WINDOW_MS_MIN, limits.BREAKER_WINDOW_MS_MAX),
        ("open_time", breaker.open_time, limits.BREAKER_OPEN_MS_MIN, limits.BREAKER_OPEN_MS_MAX),
    ):
        check_span(f"breaker.{name}", value)
        least, most = timedelta(milliseconds=least_ms), timedelta(milliseconds=most_ms)
        if not least <= value <= most:
            raise ValueError(f"breaker.{name} is {value}; it must be from {least} to {most}")
    return pb.BreakerSettings(
        failure_percent=breaker.failure_percent,
        outcomes_min=breaker.outcomes_min,
        window=duration(breaker.window, "breaker.window"),
        open_time=duration(breaker.open_time, "breaker.open_time"),
        probes=breaker.probes,
    )


def breaker_settings(settings: pb.QueueSettings) -> Breaker | None:
    if not settings.HasField("breaker"):
        return None
    message = settings.breaker
    return Breaker(
        failure_percent=message.failure_percent,
        outcomes_min=message.outcomes_min,
        window=span(message.window),
        open_time=span(message.open_time),
        probes=message.probes,
    )


def breaker_stats(stats: pb.PartitionStats) -> BreakerStats | None:
    if not stats.HasField("breaker"):
        return None
    message = stats.breaker
    return BreakerStats(
        state=_STATES[message.state],
        since=instant(message.since),
        until=instant(message.until) if message.HasField("until") else None,
        outcomes=message.outcomes,
        failures=message.failures,
        probes_passed=message.probes_passed,
        probing=message.probing,
    )


async def set_breaker(
    nodes: Nodes, namespace: str, name: str, state: pb.BreakerState.ValueType
) -> int:
    request = pb.SetBreakerRequest(namespace=namespace, queue=name, state=state)
    response = await nodes.call(lambda node, left: node.admin.SetBreaker(request, timeout=left))
    return int(response.changed)
