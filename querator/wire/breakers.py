"""Breakers of queues: their settings and states, and calls that set them by hand."""

from querator.model import limits
from querator.model.calls import BreakerCounts, SetBreakerCall
from querator.model.errors import invalid
from querator.model.ids import check_name
from querator.model.queues import BreakerSettings, BreakerState
from querator.v1 import admin_service_pb2
from querator.wire import field_checks

_DEFAULTS = BreakerSettings()


def check_breaker(message: admin_service_pb2.BreakerSettings, *, field: str) -> BreakerSettings:
    """Checks the settings of a breaker; unset ones get their defaults."""
    percent, outcomes, probes = (
        _DEFAULTS.failure_percent,
        _DEFAULTS.outcomes_min,
        _DEFAULTS.probes,
    )
    if message.HasField("failure_percent"):
        percent = message.failure_percent
    if message.HasField("outcomes_min"):
        outcomes = message.outcomes_min
    if message.HasField("probes"):
        probes = message.probes
    window_ms, open_ms = _DEFAULTS.window_ms, _DEFAULTS.open_ms
    if message.HasField("window"):
        window_ms = field_checks.duration_ms(
            message.window,
            field=f"{field}.window",
            least_ms=limits.BREAKER_WINDOW_MS_MIN,
            most_ms=limits.BREAKER_WINDOW_MS_MAX,
        )
    if message.HasField("open_time"):
        open_ms = field_checks.duration_ms(
            message.open_time,
            field=f"{field}.open_time",
            least_ms=limits.BREAKER_OPEN_MS_MIN,
            most_ms=limits.BREAKER_OPEN_MS_MAX,
        )
    check = field_checks.check_range
    return BreakerSettings(
        failure_percent=check(percent, field=f"{field}.failure_percent", least=1, most=100),
        outcomes_min=check(
            outcomes, field=f"{field}.outcomes_min", least=1, most=limits.BREAKER_OUTCOMES_MAX
        ),
        window_ms=window_ms,
        open_ms=open_ms,
        probes=check(probes, field=f"{field}.probes", least=1, most=limits.BREAKER_PROBES_MAX),
    )


def breaker_message(settings: BreakerSettings) -> admin_service_pb2.BreakerSettings:
    return admin_service_pb2.BreakerSettings(
        failure_percent=settings.failure_percent,
        outcomes_min=settings.outcomes_min,
        window=field_checks.duration(settings.window_ms),
        open_time=field_checks.duration(settings.open_ms),
        probes=settings.probes,
    )


def breaker_stats_message(counts: BreakerCounts) -> admin_service_pb2.BreakerStats:
    return admin_service_pb2.BreakerStats(
        state=admin_service_pb2.BreakerState.ValueType(counts.state),
        since=field_checks.timestamp(counts.since_ms),
        until=field_checks.timestamp(counts.until_ms) if counts.until_ms else None,
        outcomes=counts.outcomes,
        failures=counts.failures,
        probes_passed=counts.probes_passed,
        probing=counts.probing,
    )


def parse_set_breaker(data: bytes, *, timeout_ms: int = 0) -> SetBreakerCall:
    message = field_checks.parse_message(admin_service_pb2.SetBreakerRequest, data)
    state = int(message.state)
    if state not in (BreakerState.OPEN, BreakerState.CLOSED):
        raise invalid("state", "must be OPEN or CLOSED", value=state)
    return SetBreakerCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        open=state == BreakerState.OPEN,
        timeout_ms=timeout_ms,
    )


def encode_set_breaker(changed: int) -> bytes:
    return admin_service_pb2.SetBreakerResponse(changed=changed).SerializeToString()
