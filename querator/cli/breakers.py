"""`querator queue breaker open|close`, the options of breakers, and how breakers are shown."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from querator.cli.limits import limit_note
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.output import count, write_json
from querator.cli.shared.parameters import DurationType, WholeNumber, format_duration
from querator.cli.shared.texts import instant_text
from querator.client import Breaker, Client, PartitionStats, QueueInfo, QueueStats
from querator.model import limits

_FIELDS = {
    "breaker_percent": "failure_percent",
    "breaker_outcomes": "outcomes_min",
    "breaker_window": "window",
    "breaker_open": "open_time",
    "breaker_probes": "probes",
}
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--breaker-probes",
        type=WholeNumber(1, limits.BREAKER_PROBES_MAX),
        metavar="N",
        help="Single items that must succeed to close the breaker; default: "
        f"{limits.BREAKER_PROBES_DEFAULT}.",
    ),
    click.option(
        "--breaker-open",
        type=DurationType(least_ms=limits.BREAKER_OPEN_MS_MIN, most_ms=limits.BREAKER_OPEN_MS_MAX),
        help="How long the breaker stays open before it tries single items, 1s to 1d; default: "
        "30s.",
    ),
    click.option(
        "--breaker-window",
        type=DurationType(
            least_ms=limits.BREAKER_WINDOW_MS_MIN, most_ms=limits.BREAKER_WINDOW_MS_MAX
        ),
        help="The time of which outcomes count for the breaker, 1s to 1d; default: 1m.",
    ),
    click.option(
        "--breaker-outcomes",
        type=WholeNumber(1, limits.BREAKER_OUTCOMES_MAX),
        metavar="N",
        help="Outcomes in the window before the breaker opens; default: "
        f"{limits.BREAKER_OUTCOMES_DEFAULT}.",
    ),
    click.option(
        "--breaker-percent",
        type=WholeNumber(1, 100),
        metavar="N",
        help="Percent of the outcomes that are failures when the breaker opens; default: "
        f"{limits.BREAKER_PERCENT_DEFAULT}.",
    ),
    click.option(
        "--breaker/--no-breaker",
        default=None,
        help="Whether partitions stop their leases while too many items fail; default at "
        "creation: they do not. Any other option of the breaker sets one, too.",
    ),
)


def breaker_options(command: Any) -> Any:
    """The settings of breakers."""
    for option in _OPTIONS:
        command = option(command)
    return command


def changes_breaker(settings: dict[str, Any]) -> bool:
    """Whether options change a breaker and keep the rest of it."""
    return settings["breaker"] is not False and any(
        settings[name] is not None for name in ("breaker", *_FIELDS)
    )


def breaker_settings(settings: dict[str, Any], known: Breaker | None = None) -> dict[str, Any]:
    """The changes that the options of the breaker make, by setting. `known`: the one in force."""
    given = {field: settings[name] for name, field in _FIELDS.items() if settings[name] is not None}
    if settings["breaker"] is False:
        if given:
            raise click.UsageError("Give --no-breaker without other options of the breaker.")
        return {"breaker": None}
    if settings["breaker"] is None and not given:
        return {}
    return {"breaker": msgspec.structs.replace(known or Breaker(), **given)}


def without_breaker(settings: dict[str, Any]) -> dict[str, Any]:
    """The other settings."""
    return {name: one for name, one in settings.items() if name not in ("breaker", *_FIELDS)}


def breaker_details(info: QueueInfo) -> tuple[tuple[str, object], ...]:
    """What `queue info` shows of the settings of the breaker."""
    breaker = info.breaker
    if breaker is None:
        return ()
    return (
        (
            "breaker",
            f"opens at {breaker.failure_percent} % failures of {breaker.outcomes_min:,} outcomes "
            f"or more in {format_duration(breaker.window)}, for "
            f"{format_duration(breaker.open_time)}; closes after "
            f"{count(breaker.probes, 'single item')}",
        ),
    )


def breaker_note(stats: QueueStats) -> str:
    """What the breakers of a queue do; empty if all are closed."""
    states = Counter(
        one.breaker.state
        for one in stats.partitions
        if one.breaker is not None and one.breaker.state != "closed"
    )
    if not states:
        return ""
    name, partitions = stats.queue.name, len(stats.partitions)
    parts = []
    if states["open"]:
        until = min(
            one.breaker.until
            for one in stats.partitions
            if one.breaker is not None and one.breaker.until is not None
        )
        parts.append(
            f"open in {states['open']:,} of {count(partitions, 'partition')}, the first until "
            f"{instant_text(until)}"
        )
    if states["half_open"]:
        parts.append(
            f"half-open in {states['half_open']:,} of {count(partitions, 'partition')}: single "
            "items are tried"
        )
    return (
        f"{name}: the breaker is {'; '.join(parts)}. "
        f"Close it with querator queue breaker close {name}."
    )


def breaker_rows(partitions: Sequence[PartitionStats]) -> list[tuple[object, ...]]:
    """The rows of the table of breakers: one for each partition."""
    return [
        (
            one.partition,
            one.breaker.state.replace("_", "-"),
            instant_text(one.breaker.since),
            "" if one.breaker.until is None else instant_text(one.breaker.until),
            one.breaker.outcomes,
            one.breaker.failures,
            one.breaker.probes_passed,
        )
        for one in partitions
        if one.breaker is not None
    ]


BREAKER_COLUMNS = (
    "breaker of", "state", "since", "until", "outcomes", "failures", "probes passed",
)  # fmt: skip


@click.group("breaker", short_help="Open and close the breaker of a queue by hand.")
def breaker() -> None:
    """Open and close the breaker of a queue by hand. `queue info` and `stats` show its state."""


@breaker.command("open", short_help="Stop leases for the open time.")
@click.argument("name")
@server_options
@output_option
def open_breaker(name: str, target: CommandTarget, as_json: bool) -> None:
    """Open the breaker of the queue NAME in all partitions.

    Consumers get no items for the open time of the breaker. Then single items are tried, as always.
    To stop leases until you say so, use `querator queue pause`.

    \b
    Example:
      querator queue breaker open mail
    """
    changed = target.run(lambda client: client.open_breaker(name))
    _write(name, "open", changed, as_json=as_json)


@breaker.command("close", short_help="Let consumers continue at once.")
@click.argument("name")
@server_options
@output_option
def close_breaker(name: str, target: CommandTarget, as_json: bool) -> None:
    """Close the breaker of the queue NAME in all partitions.

    Consumers that wait get items at once. The counts of outcomes begin at zero.

    \b
    Example:
      querator queue breaker close mail
    """
    changed = target.run(lambda client: client.close_breaker(name))
    _write(name, "closed", changed, as_json=as_json)


def _write(name: str, state: str, changed: int, *, as_json: bool) -> None:
    if as_json:
        write_json({"queue": name, "state": state, "changed": changed})
        return
    click.echo(f"The breaker of {name} is {state}; {count(changed, 'partition')} changed.")


async def nothing_ready(client: Client, queue: str) -> str:
    """Why a lease got nothing."""
    info = await client.get_queue(queue)
    if info.lease_paused:
        return f"Leases of {queue} are paused. Continue with: querator queue resume {queue}"
    if info.breaker is not None or info.rate_limit is not None or info.lease_limit:
        stats = await client.stats(queue, stale=True)
        return breaker_note(stats) or limit_note(stats) or "Nothing is ready."
    return "Nothing is ready."
