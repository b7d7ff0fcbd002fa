"""Options of `querator queue` for limits of leases, and how the limits are shown."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from typing import Any

import click
import msgspec

from querator.cli.shared.output import count
from querator.cli.shared.parameters import WholeNumber, format_duration, parse_duration
from querator.cli.shared.texts import instant_text
from querator.client import PartitionStats, QueueInfo, QueueStats, RateLimit
from querator.model import limits

_EXAMPLES = "write for example 100/s, 0.5/s, 10/m or 1000/2h; 0 for no limit"
_NUMBER = re.compile(r"\d{1,8}(\.\d{1,6})?", re.ASCII)
_LEAST = timedelta(milliseconds=limits.RATE_INTERVAL_MS_MIN)
_MOST = timedelta(milliseconds=limits.RATE_INTERVAL_MS_MAX)


class RateType(click.ParamType[RateLimit | int]):
    """Items in a time: `10/s`, `0.5/s`, `10/m`, `1000/2h`. 0: no limit."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> RateLimit | int:
        if isinstance(value, RateLimit | int):
            return value
        if value == "0":
            return 0
        text, separator, unit = value.partition("/")
        rate, interval = Fraction(0), timedelta(0)
        if _NUMBER.fullmatch(text) and separator:
            rate = Fraction(text)
            with suppress(ValueError):
                interval = parse_duration(unit if unit[:1].isdigit() else f"1{unit}")
        if not rate or not interval:
            self.fail(f"{value!r} is not a rate; {_EXAMPLES}.", param, ctx)
        items = rate.numerator
        try:
            interval *= rate.denominator
        except OverflowError:
            interval = timedelta.max
        if items > limits.RATE_ITEMS_MAX or not _LEAST <= interval <= _MOST:
            self.fail(
                f"{value} is {items:,} in {format_duration(interval)}; a rate has 1 to "
                f"{limits.RATE_ITEMS_MAX:,} items in 1s to 1d.",
                param,
                ctx,
            )
        return RateLimit(items, interval)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--lease-limit",
        type=WholeNumber(0, limits.LEASE_LIMIT_MAX),
        metavar="N",
        help="Most items of the queue that are leased at a time, not less than its partitions; "
        "default at creation, and 0: no limit.",
    ),
    click.option(
        "--rate-burst",
        type=WholeNumber(0, limits.RATE_BURST_MAX),
        metavar="N",
        help="Items that can be leased at once after a time without leases; default, and 0: those "
        "of 1 s.",
    ),
    click.option(
        "--rate-limit",
        type=RateType(),
        metavar="N/TIME",
        help="Most items of the queue that are leased in a time: 100/s, 0.5/s, 10/m; default at "
        "creation, and 0: no limit.",
    ),
)


def limit_options(command: Any) -> Any:
    """The settings of limits of leases."""
    for option in _OPTIONS:
        command = option(command)
    return command


def check_rate(settings: dict[str, Any]) -> None:
    """Raises UsageError for options with which no queue can be created."""
    if settings["rate_burst"] is not None and settings["rate_limit"] is None:
        raise click.UsageError("Give --rate-burst together with --rate-limit.")


def changes_rate(settings: dict[str, Any]) -> bool:
    """Whether options change a part of a rate limit and keep the rest of it."""
    return settings["rate_limit"] != 0 and (
        settings["rate_limit"] is not None or settings["rate_burst"] is not None
    )


def rate_settings(settings: dict[str, Any], there: QueueInfo | None = None) -> dict[str, Any]:
    """The change that the options of the rate make, by setting. `there`: the settings in force."""
    rate, burst = settings["rate_limit"], settings["rate_burst"]
    if rate == 0:
        if burst is not None:
            raise click.UsageError("Give --rate-limit 0 without --rate-burst.")
        return {"rate_limit": None}
    if rate is None and burst is None:
        return {}
    known = None if there is None else there.rate_limit
    if rate is None:
        if there is not None and known is None:
            raise click.UsageError(f"{there.name} has no rate limit; give --rate-limit, too.")
        rate = known
    if burst is None:
        burst = 0 if known is None else known.burst
    # Without the settings in force, the options are only checked.
    return {"rate_limit": rate and msgspec.structs.replace(rate, burst=burst)}


def without_rate(settings: dict[str, Any]) -> dict[str, Any]:
    """The other settings."""
    of_rate = ("rate_limit", "rate_burst")
    return {name: one for name, one in settings.items() if name not in of_rate}


def rate_text(rate: RateLimit) -> str:
    """As the option takes it: `10/s`, `1/2s`."""
    interval = format_duration(rate.interval)
    return f"{rate.items}/{interval[1:] if interval in _UNITS else interval}"


_UNITS = ("1s", "1m", "1h", "1d")


def limit_details(info: QueueInfo) -> tuple[tuple[str, object], ...]:
    """What `queue info` shows of the limits."""
    found: list[tuple[str, object]] = []
    if info.rate_limit is not None:
        burst = info.rate_limit.burst
        gathers = f"bursts of {burst:,}" if burst else "bursts of 1 s"
        found.append(("rate limit", f"{rate_text(info.rate_limit)}, {gathers}"))
    if info.lease_limit:
        found.append(("lease limit", f"{count(info.lease_limit, 'item')} at a time"))
    return tuple(found)


def permitted(partition: PartitionStats) -> int:
    """How many of its ready items the limits let a partition lease."""
    ready, of = partition.ready, partition.limits
    if of is None:
        return ready
    if of.lease_limit:
        ready = min(ready, max(0, of.lease_limit - partition.leased))
    return min(ready, of.tokens) if of.burst else ready


def limit_texts(stats: QueueStats) -> Iterator[tuple[str, str]]:
    """Which limits keep back ready items, each as a word and a sentence."""
    info, all_of_them = stats.queue, count(len(stats.partitions), "partition")
    limited = [(one, one.limits) for one in stats.partitions if one.limits is not None]
    waiting = [(one, of.next_at) for one, of in limited if of.next_at is not None]
    if waiting and info.rate_limit is not None:
        items = count(sum(one.ready for one, _ in waiting), "ready item")
        first = min(next_at for _, next_at in waiting)
        yield (
            "rate_limit",
            f"Behind the rate limit of {rate_text(info.rate_limit)} in {len(waiting):,} of "
            f"{all_of_them}: {items}, the next ones from {instant_text(first)} on. Change it with: "
            f"querator queue update {info.name} --rate-limit N/TIME",
        )
    full = [
        one for one, of in limited if one.ready and of.lease_limit and one.leased >= of.lease_limit
    ]
    if full:
        items = count(sum(one.ready for one in full), "ready item")
        yield (
            "lease_limit",
            f"Behind the limit of {count(info.lease_limit, 'leased item')} in {len(full):,} of "
            f"{all_of_them}: {items}. They wait until leases end, or for a higher limit: querator "
            f"queue update {info.name} --lease-limit N",
        )


def limit_note(stats: QueueStats) -> str:
    """What `stats` says of limits that keep back items; empty if none does."""
    return "\n".join(f"{stats.queue.name}: {text}." for _, text in limit_texts(stats))


def limit_rows(partitions: Sequence[PartitionStats]) -> list[tuple[object, ...]]:
    """The rows of the table of limits: one for each partition."""
    return [
        (
            one.partition,
            one.limits.tokens if one.limits.burst else "",
            one.limits.burst or "",
            "" if one.limits.next_at is None else instant_text(one.limits.next_at),
            one.leased,
            one.limits.lease_limit or "",
        )
        for one in partitions
        if one.limits is not None
    ]


LIMIT_COLUMNS = ("limits of", "tokens", "burst", "next tokens", "leased", "lease limit")
