"""`querator recurring`: items that a queue produces by itself, and their coming times.

Longer than 500 lines: `create` and `update` share their options, and all commands their views.
"""

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
import msgspec

from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import (
    CommandTarget,
    decorated,
    output_option,
    server_options,
)
from querator.cli.shared.item_template import item_retry_options, item_template
from querator.cli.shared.output import note, write_details, write_json, write_table
from querator.cli.shared.parameters import (
    ATTRIBUTE,
    EXPIRE_TIMEOUT,
    LEASE_TIMEOUT,
    MOMENT,
    PRIORITY,
    DurationType,
    WholeNumber,
    format_duration,
)
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import instant_text
from querator.cli.shared.views import milliseconds, payload_texts, preview
from querator.client import Client, Item
from querator.client import clock as wall
from querator.client.options import RecurrenceOptions
from querator.client.recurrences import Recurrence, RecurrenceTime
from querator.model import limits

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SCHEDULE: Final = (
    click.option(
        "--cron",
        metavar="EXPRESSION",
        help="A cron expression: five fields, or six with seconds first; or @hourly, @daily, …",
    ),
    click.option(
        "--timezone",
        "time_zone",
        metavar="ZONE",
        help="Time zone of the expression, for example Europe/Berlin; default: UTC.",
    ),
    click.option(
        "--interval",
        type=DurationType(
            least_ms=limits.RECURRENCE_INTERVAL_MS_MIN, most_ms=limits.RECURRENCE_INTERVAL_MS_MAX
        ),
        help="Instead of --cron: time between two due times, 1s to 366d.",
    ),
    click.option(
        "--phase",
        type=DurationType(),
        help="With --interval: due times are this long after multiples of the interval since 1970; "
        "default: whole intervals after the creation.",
    ),
)
_POLICIES: Final = (
    click.option(
        "--jitter",
        type=DurationType(most_ms=limits.RECURRENCE_JITTER_MS_MAX),
        help="Each run comes late by a part of this, up to 24h; default: 0.",
    ),
    click.option(
        "--missed",
        "missed_runs",
        type=click.Choice(("skip", "one", "all")),
        help="Which missed due times get an item: none, the last one (default), or the last "
        "--missed-max.",
    ),
    click.option(
        "--missed-max",
        type=WholeNumber(1, limits.MISSED_RUNS_MAX),
        metavar="N",
        help="With --missed all: how many get an item; default: 100.",
    ),
    click.option(
        "--missed-after",
        type=DurationType(least_ms=limits.MISSED_AFTER_MS_MIN, most_ms=limits.MISSED_AFTER_MS_MAX),
        help="How late a due time is missed, 1s to 7d; default: 1m.",
    ),
    click.option(
        "--overlap",
        type=click.Choice(("allow", "skip")),
        help="Whether a due time is skipped while the last item is not finished; default: allow.",
    ),
)
_ITEM: Final = (
    click.option("--kind", help="Kind of work, for example email."),
    click.option("--encoding", help="Encoding of the payload, for example application/json."),
    click.option("--reference", help="Your own name for the items."),
    click.option("--key", help="Key, in a keyed queue: its items are leased in order."),
    click.option("--group", help="Group, in a fair queue: for example eu.de."),
    click.option(
        "--priority", type=PRIORITY, metavar="N", help="Priority; the lowest is leased first."
    ),
    click.option(
        "--attribute",
        "attributes",
        type=ATTRIBUTE,
        multiple=True,
        help="An attribute of the items; may be repeated.",
    ),
    click.option(
        "--expire-timeout",
        type=EXPIRE_TIMEOUT,
        help="An item expires if it is not leased in this time.",
    ),
    click.option("--lease-timeout", type=LEASE_TIMEOUT, help="How long a lease of an item lasts."),
    item_retry_options,
)
_FIELDS = (
    "kind", "encoding", "reference", "key", "group", "priority", "attributes", "expire_timeout",
    "lease_timeout", "max_attempts", "retry_delay", "retry_delay_max", "retry_backoff",
    "retry_jitter",
)  # fmt: skip
_SPEC = ("cron", "time_zone", "interval", "phase")
_OPTIONS = (*_SPEC, "jitter", "missed_runs", "missed_max", "missed_after", "overlap")


def _spec_options(command: _Command) -> _Command:
    """Adds the schedule and the policies as the argument `options`, and the item as `fields`."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        options = {name: kwargs.pop(name) for name in _OPTIONS}
        if options["cron"] is not None and options["interval"] is not None:
            raise click.UsageError("Give --cron or --interval, not both.")
        fields = {name: kwargs.pop(name) for name in _FIELDS}
        return command(options=options, fields=fields, **kwargs)

    return cast(_Command, decorated(wrapper, (*_SCHEDULE, *_POLICIES, *_ITEM)))


def _item(payload: str | None, file: str | None, fields: dict[str, object]) -> Item | None:
    """The template; None: nothing of it is given."""
    if payload is not None and file is not None:
        raise click.UsageError("Give PAYLOAD or --file, not both.")
    given = any(value is not None and value != () for value in fields.values())
    if payload is None and file is None:
        if given:
            raise click.UsageError("The options of the item need PAYLOAD or --file.")
        return None
    body = Path(file).read_bytes() if file is not None else (payload or "").encode()
    template = item_template({"delay": None, "enqueue_at": None, **fields})
    return msgspec.structs.replace(template, payload=body)


@click.group()
def recurring() -> None:
    """Let queues produce items by themselves, by cron expressions or intervals.

    Each due time of a recurrence gets exactly one item, whatever happens to nodes and clocks.
    """


@recurring.command(short_help="Let a queue produce items by itself.")
@click.argument("queue")
@click.argument("name")
@click.argument("payload", required=False)
@click.option(
    "--file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The payload is the content of FILE.",
)
@_spec_options
@server_options
@output_option
def create(
    queue: str,
    name: str,
    payload: str | None,
    file: str | None,
    options: RecurrenceOptions,
    fields: dict[str, object],
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Let QUEUE produce items by itself, with PAYLOAD, as the recurrence NAME.

    In the payload, {{due_at}}, {{due_ms}}, {{number}} and {{recurrence}} are replaced. Each item
    has the attributes recurrence, recurrence-number and recurrence-due-at. Succeeds as well when
    the same recurrence exists.

    \b
    Examples:
      querator recurring create mail digest 'for {{due_at}}' --cron "0 9 * * 1-5"
      querator recurring create jobs sweep sweep --interval 5m --overlap skip
    """
    item = _item(payload, file, fields)
    if item is None:
        raise click.UsageError("Give PAYLOAD or --file.")
    if options["cron"] is None and options["interval"] is None:
        raise click.UsageError("Give --cron or --interval.")

    async def main(client: Client) -> Recurrence:
        return await client.recurrences.create(queue, name, item, **options)

    made = target.run(main)
    if as_json:
        write_json(_view(made))
    else:
        note(f"Created {name}." if made.created else f"{name} exists already.")


@recurring.command("list", short_help="Show the recurrences of a queue.")
@click.argument("queue")
@server_options
@output_option
def list_recurrences(queue: str, target: CommandTarget, as_json: bool) -> None:
    """Show the recurrences of QUEUE, in the order of their creation.

    With --output json each recurrence is a line.

    \b
    Example:
      querator recurring list mail
    """

    async def main(client: Client) -> list[Recurrence]:
        return [one async for one in client.recurrences.list(queue)]

    found = target.run(main)
    if as_json:
        for one in found:
            write_json(_view(one))
    elif found:
        write_table(_COLUMNS, map(_row, found))
    else:
        note("No recurrences.")


_COLUMNS: Final = (
    "name", "schedule", "next due", "fired", "skipped", "missed", Column("payload", cut=True),
)  # fmt: skip


def _row(one: Recurrence) -> tuple[object, ...]:
    return (
        one.name,
        _schedule(one),
        _next(one),
        one.fired,
        one.skipped,
        one.missed,
        preview(one.item.payload),
    )


def _schedule(one: Recurrence) -> str:
    if one.interval is not None:
        return f"every {format_duration(one.interval)}"
    return f"{one.cron} {one.time_zone or 'UTC'}"


def _next(one: Recurrence) -> str:
    if one.paused:
        return "paused"
    if one.error:
        return "not known"
    return "" if one.next_due_at is None else instant_text(one.next_due_at)


@recurring.command(short_help="Show one recurrence.")
@click.argument("queue")
@click.argument("name")
@server_options
@output_option
def show(queue: str, name: str, target: CommandTarget, as_json: bool) -> None:
    """Show the recurrence NAME of QUEUE.

    \b
    Example:
      querator recurring show mail digest
    """
    _show(target, name, lambda client: client.recurrences.get(queue, name), as_json=as_json)


@recurring.command(short_help="Change a recurrence.")
@click.argument("queue")
@click.argument("name")
@click.argument("payload", required=False)
@click.option(
    "--file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The payload is the content of FILE.",
)
@_spec_options
@server_options
@output_option
def update(
    queue: str,
    name: str,
    payload: str | None,
    file: str | None,
    options: RecurrenceOptions,
    fields: dict[str, object],
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Change what is given of the recurrence NAME of QUEUE.

    PAYLOAD and the options of the item together take the place of the whole item. After a change
    of the schedule, due times count from now on.

    \b
    Examples:
      querator recurring update mail digest --cron "0 8 * * 1-5"
      querator recurring update jobs sweep --jitter 30s
    """
    item = _item(payload, file, fields)
    if item is None and all(value is None for value in options.values()):
        raise click.UsageError("Give at least one thing to change.")
    _show(
        target,
        name,
        lambda client: client.recurrences.update(queue, name, item, **options),
        as_json=as_json,
    )


@recurring.command(short_help="Pause a recurrence.")
@click.argument("queue")
@click.argument("name")
@server_options
@output_option
def pause(queue: str, name: str, target: CommandTarget, as_json: bool) -> None:
    """Pause the recurrence NAME of QUEUE: no due time gets an item until it continues.

    \b
    Example:
      querator recurring pause mail digest
    """
    _show(target, name, lambda client: client.recurrences.pause(queue, name), as_json=as_json)


@recurring.command(short_help="Let a paused recurrence continue.")
@click.argument("queue")
@click.argument("name")
@server_options
@output_option
def resume(queue: str, name: str, target: CommandTarget, as_json: bool) -> None:
    """Let the paused recurrence NAME of QUEUE continue with the due times after now.

    \b
    Example:
      querator recurring resume mail digest
    """
    _show(target, name, lambda client: client.recurrences.resume(queue, name), as_json=as_json)


@recurring.command(short_help="Delete a recurrence.")
@click.argument("queue")
@click.argument("name")
@yes_option
@server_options
@output_option
def delete(queue: str, name: str, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Delete the recurrence NAME of QUEUE. Items that it has produced stay.

    \b
    Example:
      querator recurring delete mail digest --yes
    """
    check_can_ask(yes=yes)
    confirm(f"Delete recurrence {name} of queue {queue}?", yes=yes)

    async def main(client: Client) -> None:
        await client.recurrences.delete(queue, name)

    target.run(main)
    if as_json:
        write_json({"deleted": name})
    else:
        note(f"Deleted {name}.")


@recurring.command("next", short_help="Show coming due times.")
@click.argument("what", nargs=-1, metavar="[QUEUE NAME | EXPRESSION]")
@click.option(
    "--timezone",
    "time_zone",
    metavar="ZONE",
    help="With EXPRESSION: its time zone, for example Europe/Berlin; default: UTC.",
)
@click.option(
    "--interval",
    type=DurationType(
        least_ms=limits.RECURRENCE_INTERVAL_MS_MIN, most_ms=limits.RECURRENCE_INTERVAL_MS_MAX
    ),
    help="Instead of EXPRESSION: time between two due times.",
)
@click.option("--phase", type=DurationType(), help="With --interval: as of `create`.")
@click.option(
    "--count",
    type=WholeNumber(1, limits.RECURRENCE_TIMES_MAX),
    default=limits.RECURRENCE_TIMES_DEFAULT,
    show_default=True,
    metavar="N",
    help="Number of due times.",
)
@click.option(
    "--after", type=MOMENT, metavar="WHEN", help="Due times after this instant; default: now."
)
@server_options
@output_option
def next_times(
    what: tuple[str, ...],
    time_zone: str | None,
    interval: timedelta | None,
    phase: timedelta | None,
    count: int,
    after: datetime | None,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show the coming due times of a recurrence, or of a cron expression or an interval.

    An expression needs no server where querator[server] is installed. Of a paused recurrence the
    times are what would come.

    \b
    Examples:
      querator recurring next mail digest
      querator recurring next "0 9 * * 1-5" --timezone Europe/Berlin
      querator recurring next --interval 90m
    """
    named = len(what) == 2
    schedule = {"time_zone": time_zone, "interval": interval, "phase": phase}
    if named and any(value is not None for value in schedule.values()):
        raise click.UsageError("--timezone, --interval and --phase are not for a recurrence.")
    if not named and len(what) != (interval is None):
        raise click.UsageError("Give QUEUE and NAME, one EXPRESSION, or --interval.")

    async def main(client: Client) -> list[RecurrenceTime]:
        if named:
            return await client.recurrences.next(*what, count=count, after=after)
        cron = what[0] if what else None
        return await client.recurrences.preview(
            cron=cron, time_zone=time_zone, interval=interval, phase=phase, count=count, after=after
        )

    if named or find_spec("cronsim") is None:
        runs = target.run(main)
    else:
        runs = _offline(
            what,
            time_zone=time_zone,
            interval=interval,
            phase=phase,
            count=count,
            after=after or wall.now(),
        )
    if as_json:
        for run in runs:
            write_json({"due_at": run.due_at, "fire_at": run.fire_at})
        return
    write_table(("due", "comes"), ((_exact(run.due_at), _exact(run.fire_at)) for run in runs))


def _exact(instant: datetime) -> str:
    """To the second, or to the millisecond where there are some."""
    if not instant.microsecond:
        return instant_text(instant)
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _offline(
    what: tuple[str, ...],
    *,
    time_zone: str | None,
    interval: timedelta | None,
    phase: timedelta | None,
    count: int,
    after: datetime,
) -> list[RecurrenceTime]:
    """Due times by the library that is installed here."""
    from itertools import islice

    from querator.model.recurrences import RecurrenceSpec
    from querator.recurrence_times import TimesError, due_times

    if what and phase is not None:
        raise click.UsageError("--phase needs --interval.")
    if interval is not None and time_zone is not None:
        raise click.UsageError("--timezone needs EXPRESSION.")
    after_ms = round(after.timestamp() * 1000)
    spec = RecurrenceSpec(
        cron=what[0] if what else "",
        time_zone=time_zone or "",
        interval_ms=0 if interval is None else milliseconds(interval) or 0,
        phase_ms=-1 if phase is None else milliseconds(phase) or 0,
    )
    try:
        times = list(islice(due_times(spec, anchor_ms=after_ms, after_ms=after_ms), count))
    except TimesError as error:
        name = "--timezone" if error.field == "time_zone" else "EXPRESSION"
        raise click.UsageError(f"{name} {error}.") from None
    return [
        RecurrenceTime(at, at)
        for at in (datetime.fromtimestamp(due_ms / 1000, UTC) for due_ms in times)
    ]


# --- one recurrence --------------------------------------------------------------------------


def _show(
    target: CommandTarget, name: str, call: Callable[[Client], Any], *, as_json: bool
) -> None:
    async def main(client: Client) -> Recurrence:
        found: Recurrence = await call(client)
        return found

    one = target.run(main)
    if as_json:
        write_json(_view(one))
        return
    write_details(
        (
            ("name", one.name),
            ("schedule", _schedule(one)),
            ("phase", "" if one.phase is None else format_duration(one.phase)),
            ("jitter", format_duration(one.jitter)),
            (
                "missed runs",
                f"all, at most {one.missed_max}" if one.missed_runs == "all" else one.missed_runs,
            ),
            ("missed after", format_duration(one.missed_after)),
            ("overlap", one.overlap),
            ("revision", one.revision),
            ("created at", instant_text(one.created_at)),
            ("next due", _next(one)),
            ("comes", "" if one.next_fire_at is None else _exact(one.next_fire_at)),
            ("error", one.error),
            ("fired", one.fired),
            ("skipped", one.skipped),
            ("missed", one.missed),
            ("last due", "" if one.last_due_at is None else _exact(one.last_due_at)),
            ("last item", "" if one.last_item is None else str(one.last_item)),
            ("kind", one.item.kind),
            ("key", one.item.key),
            ("group", one.item.group),
            ("payload", preview(one.item.payload)),
        )
    )


def _view(one: Recurrence) -> dict[str, Any]:
    text, encoded = payload_texts(one.item.payload)
    return {
        "name": one.name,
        "cron": one.cron,
        "time_zone": one.time_zone,
        "interval_ms": None if one.interval is None else milliseconds(one.interval),
        "phase_ms": None if one.phase is None else milliseconds(one.phase),
        "jitter_ms": milliseconds(one.jitter),
        "missed_runs": one.missed_runs,
        "missed_max": one.missed_max,
        "missed_after_ms": milliseconds(one.missed_after),
        "overlap": one.overlap,
        "revision": one.revision,
        "paused": one.paused,
        "created_at": one.created_at,
        "next_due_at": one.next_due_at,
        "next_fire_at": one.next_fire_at,
        "fired": one.fired,
        "skipped": one.skipped,
        "missed": one.missed,
        "last_due_at": one.last_due_at,
        "last_fired_at": one.last_fired_at,
        "last_item": None if one.last_item is None else str(one.last_item),
        "error": one.error,
        "kind": one.item.kind,
        "key": one.item.key,
        "group": one.item.group,
        "payload": text,
        "payload_base64": encoded,
    }
