"""`querator schedule`: scheduled items by due time. List, count, move, run, cancel.

Longer than 500 lines: the five commands choose items by the same options, and their help and their
questions are compared.
"""

import functools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

import click

from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import (
    CommandTarget,
    decorated,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.failures import Failure
from querator.cli.shared.listing import ItemListing, limit_option, note_more
from querator.cli.shared.output import count as counted
from querator.cli.shared.output import note, width, write_json, write_picture
from querator.cli.shared.parameters import ITEM_ID, MOMENT, DurationType, format_duration
from querator.cli.shared.tables import Column, FittedTable
from querator.cli.shared.texts import instant_text
from querator.cli.shared.views import milliseconds, preview
from querator.client import Client, ItemId
from querator.client import clock as wall
from querator.client.options import ChangeOptions
from querator.client.schedules import Rescheduled, ScheduleDensity, ScheduledItems
from querator.client.values import PeekedItem
from querator.model import limits

_Command = TypeVar("_Command", bound=Callable[..., Any])

_RANGE: Final = (
    click.option(
        "--from",
        "due_from",
        type=MOMENT,
        metavar="WHEN",
        help="Only items due then or later: 2026-01-31T08:00:00Z, or +1h: an hour from now.",
    ),
    click.option(
        "--until", "due_until", type=MOMENT, metavar="WHEN", help="Only items due before."
    ),
    click.option("--kind", default="", metavar="TEXT", help="Only items of this kind."),
)
"""Options that choose items by due time and kind."""


def _range_options(command: _Command) -> _Command:
    """Adds --from, --until and --kind."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, due_from: datetime | None, due_until: datetime | None, **kwargs: Any
    ) -> Any:
        if due_from is not None and due_until is not None and due_until <= due_from:
            raise click.UsageError(
                f"--until is {instant_text(due_until)}; it must be after --from, which is "
                f"{instant_text(due_from)}."
            )
        return command(*args, due_from=due_from, due_until=due_until, **kwargs)

    return cast(_Command, decorated(wrapper, _RANGE))


@click.group()
def schedule() -> None:
    """Show scheduled items by due time, and move, run or cancel them.

    A scheduled item waits for the time at which it was to be delivered, or for the time of a retry.
    """


@schedule.command("list", short_help="Show scheduled items by due time.")
@click.argument("queue")
@_range_options
@limit_option
@stale_option
@server_options
@output_option
def list_scheduled(
    queue: str,
    due_from: datetime | None,
    due_until: datetime | None,
    kind: str,
    limit: int,
    stale: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show the scheduled items of QUEUE, ordered by due time over all partitions.

    With --output json each item is a line, which has the errors of its last retries.

    \b
    Examples:
      querator schedule list mail
      querator schedule list mail --from +1h --until +2h --kind reminder
    """
    listing = ItemListing(_COLUMNS, _row, as_json=as_json)
    shown = listing.show(
        target,
        lambda client: client.schedules.list(
            queue, due_from=due_from, due_until=due_until, kind=kind, limit=limit, stale=stale
        ),
    )
    if not shown and not as_json:
        filtered = due_from is not None or due_until is not None or kind
        note("No such items." if filtered else "No scheduled items.")
    note_more(shown, limit, as_json=as_json)


_COLUMNS: Final = (
    "item",
    "due",
    "attempt",
    "kind",
    "reference",
    Column("payload", cut=True),
)


def _row(peeked: PeekedItem) -> tuple[object, ...]:
    return (
        str(peeked.id),
        peeked.due_at and instant_text(peeked.due_at),
        peeked.attempt,
        peeked.item.kind,
        peeked.item.reference,
        preview(peeked.item.payload),
    )


# --- density -------------------------------------------------------------------------------

_ROWS_MAX: Final = 20
"""Rows of a picture whose interval is not given."""
_GAP_MIN: Final = 3
"""From this number on, intervals without items are one row."""
_PROBES: Final = 900
"""Intervals of a probe: less than the 1,000 of a call, because a probe begins at a round instant
before its range.
"""
_SECONDS: Final = (1, 2, 5, 10, 15, 30)
_MINUTES: Final = (1, 2, 5, 10, 15, 30)
_HOURS: Final = (1, 2, 3, 6, 12)
_DAYS: Final = (1, 2, 7, 14, 28, 91, 182, 364)
_INTERVALS: Final = (
    *(timedelta(seconds=number) for number in _SECONDS),
    *(timedelta(minutes=number) for number in _MINUTES),
    *(timedelta(hours=number) for number in _HOURS),
    *(timedelta(days=number) for number in _DAYS),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AHEAD_MAX: Final = timedelta(milliseconds=limits.SCHEDULE_AHEAD_MS_MAX)
_EIGHTHS: Final = "▏▎▍▌▋▊▉█"
_BAR_CELLS_MIN: Final = 4
_COLUMNS_OF_A_PIPE: Final = 80


@schedule.command(short_help="Show how many items are due when.")
@click.argument("queue")
@_range_options
@click.option(
    "--interval",
    type=DurationType(
        least_ms=limits.SCHEDULE_INTERVAL_MS_MIN, most_ms=limits.SCHEDULE_INTERVAL_MS_MAX
    ),
    help="Time that a row stands for; default: so that all items fit into 20 rows.",
)
@stale_option
@server_options
@output_option
def count(
    queue: str,
    due_from: datetime | None,
    due_until: datetime | None,
    kind: str,
    interval: timedelta | None,
    stale: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show how many items of QUEUE are due when: a row for each interval that has items.

    Rows begin at --from, or at multiples of the interval. With --interval, at most 1,000 intervals
    are counted; items that are due later are counted together.

    \b
    Examples:
      querator schedule count mail
      querator schedule count mail --from +1d --until +2d --interval 1h
    """

    async def main(client: Client) -> ScheduleDensity:
        ask = functools.partial(client.schedules.count, queue, kind=kind, stale=stale)
        if interval is not None:
            return await ask(due_from=due_from, due_until=due_until, interval=interval)
        return await _fitting_counts(ask, due_from, due_until)

    counts = target.run(main)
    if as_json:
        write_json(
            {
                "interval_ms": milliseconds(counts.interval),
                "buckets": counts.buckets,
                "total": counts.total,
                "before": counts.before,
                "after": counts.after,
            }
        )
    elif counts.buckets:
        write_picture([_density(counts), _summary(counts)])
    elif counts.before or counts.after:
        note(f"No items are due then. Before: {counts.before:,}. After: {counts.after:,}.")
    else:
        note("No scheduled items.")


async def _fitting_counts(
    ask: Callable[..., Awaitable[ScheduleDensity]],
    due_from: datetime | None,
    due_until: datetime | None,
) -> ScheduleDensity:
    """Counts in intervals with which all items of the range fit into a picture. Finds the first and
    the last due time before, by counts with shorter and shorter intervals. No item is due later
    than the limit of schedules, so that a later end is none.
    """
    latest = wall.now() + _AHEAD_MAX
    begin = due_from and max(due_from, _EPOCH)
    end = None if due_until is None or due_until >= latest else due_until
    span = (end or latest) - (begin or wall.now())
    while True:
        interval = _round_interval(span / _PROBES)
        counts = await ask(due_from=begin, due_until=end, interval=interval)
        if not counts.buckets:
            return counts
        begin = counts.buckets[0].starts_at
        last = counts.buckets[-1].starts_at + interval
        end = last if end is None else min(last, end)
        span = end - begin
        if interval == _INTERVALS[0] or span >= _ROWS_MAX * interval:
            break
    interval = _round_interval(span / _ROWS_MAX)
    origin = due_from or _EPOCH
    begin = origin + (begin - origin) // interval * interval
    return await ask(due_from=begin, due_until=end, interval=interval)


def _round_interval(least: timedelta) -> timedelta:
    return next(one for one in _INTERVALS if one >= least)


def _density(counts: ScheduleDensity) -> FittedTable:
    """A row for each interval from the first to the last one with items."""
    most = max(bucket.items for bucket in counts.buckets)
    label = instant_text(counts.buckets[0].starts_at)
    around = len(f"{label}  {max(len(f'{most:,}'), len('items')) * ' '}  ")
    cells = max(_BAR_CELLS_MIN, (width() or _COLUMNS_OF_A_PIPE) - around)
    rows: list[tuple[object, ...]] = []
    after = counts.buckets[0].starts_at
    for bucket in counts.buckets:
        empty = (bucket.starts_at - after) // counts.interval
        if empty >= _GAP_MIN:
            rows.append(("…", "", ""))
        else:
            rows += [(instant_text(after + n * counts.interval), 0, "") for n in range(empty)]
        rows.append(
            (instant_text(bucket.starts_at), bucket.items, _bar(bucket.items / most, cells))
        )
        after = bucket.starts_at + counts.interval
    return FittedTable((Column("due from"), Column("items"), Column("", cut=True)), rows)


def _bar(share: float, cells: int) -> str:
    """A bar of up to `cells`, at least an eighth of a cell."""
    full, eighths = divmod(max(1, round(share * cells * 8)), 8)
    return "█" * full + (_EIGHTHS[eighths - 1] if eighths else "")


def _summary(counts: ScheduleDensity) -> str:
    return (
        f"{counted(counts.total, 'item')} in rows of {format_duration(counts.interval)}. "
        f"Due before: {counts.before:,}. Due after: {counts.after:,}."
    )


# --- changes -------------------------------------------------------------------------------

_NAMED_MAX: Final = 5
"""Ids that an error names."""
Change = Callable[
    [ScheduledItems, tuple[ItemId, ...] | None, ChangeOptions], Awaitable[Rescheduled]
]
"""A call with ids, or with None and a filter."""


class _Choice(NamedTuple):
    """The items of a change: `items`, or if there are none those of a filter."""

    items: tuple[ItemId, ...]
    options: ChangeOptions
    dry_run: bool
    yes: bool


class _Words(NamedTuple):
    """What becomes of the items, for the question, before the change and after it."""

    question: str
    would: str
    done: str


def _choice_options(command: _Command) -> _Command:
    """Adds ITEM and the options that choose items, as the argument `choice`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        items: tuple[ItemId, ...],
        due_from: datetime | None,
        due_until: datetime | None,
        kind: str,
        all_items: bool,
        dry_run: bool,
        yes: bool,
        **kwargs: Any,
    ) -> Any:
        filtered = due_from is not None or due_until is not None or bool(kind)
        if bool(items) + filtered + all_items != 1:
            raise click.UsageError(
                "Name the items (see `querator schedule list`), or choose them by --from, --until "
                "and --kind, or give --all."
            )
        if items and dry_run:
            raise click.UsageError("--dry-run is for items that options choose, not for ITEM.")
        options = ChangeOptions(
            due_from=due_from, due_until=due_until, kind=kind, all_items=all_items
        )
        return command(*args, choice=_Choice(items, options, dry_run, yes), **kwargs)

    more = (
        click.argument("items", nargs=-1, type=ITEM_ID, metavar="[ITEM]..."),
        _range_options,
        click.option("--all", "all_items", is_flag=True, help="All scheduled items of the queue."),
        click.option("--dry-run", is_flag=True, help="Only show how many items would be changed."),
        yes_option,
    )
    return cast(_Command, decorated(wrapper, more))


@schedule.command(short_help="Make scheduled items due at another time.")
@click.argument("queue")
@click.option(
    "--to",
    type=MOMENT,
    metavar="WHEN",
    help="The new due time, at most 10 years ahead: 2026-01-31T08:00:00Z, or +1h.",
)
@click.option(
    "--by",
    type=DurationType(least_ms=1, most_ms=limits.SCHEDULE_AHEAD_MS_MAX),
    help="Each item is due this much later than it was.",
)
@_choice_options
@server_options
@output_option
def move(
    queue: str,
    to: datetime | None,
    by: timedelta | None,
    choice: _Choice,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Make scheduled items of QUEUE due at another time: each ITEM (an id from `schedule list`), or
    those that options choose.

    For items that options choose, the command asks for confirmation. Their expiry moves with their
    due time. Items whose new due time has passed are ready at once. To repeat a command with --to
    is harmless. To repeat one with --by moves the items again.

    \b
    Examples:
      querator schedule move mail 0-17 --to +1h
      querator schedule move mail --kind reminder --to 2026-02-01T08:00:00Z
      querator schedule move mail --until +1h --by 30m
    """
    if (to is None) == (by is None):
        raise click.UsageError("Give the new due time by --to, or how much later it is by --by.")

    async def change(
        schedules: ScheduledItems, items: tuple[ItemId, ...] | None, options: ChangeOptions
    ) -> Rescheduled:
        return await schedules.move(queue, items, to=to, by=by, **options)

    if to is None:
        assert by is not None
        later = format_duration(by)
        words = _Words("Move {} of {} by " + later, "would be moved", f"moved by {later}")
    else:
        when = instant_text(to.astimezone(UTC))
        passed = ", which has passed: ready at once" if to <= wall.now() else ""
        words = _Words(
            "Move {} of {} to " + when + passed,
            f"would be moved{passed}",
            f"moved to {when}{passed}",
        )
    _change(target, queue, choice, change, words=words, as_json=as_json)


@schedule.command(short_help="Make scheduled items ready at once.")
@click.argument("queue")
@_choice_options
@server_options
@output_option
def run(queue: str, choice: _Choice, target: CommandTarget, as_json: bool) -> None:
    """Make scheduled items of QUEUE ready at once: each ITEM (an id from `schedule list`), or those
    that options choose.

    For items that options choose, the command asks for confirmation.

    \b
    Examples:
      querator schedule run mail 0-17
      querator schedule run mail --until +10m --dry-run
    """

    async def change(
        schedules: ScheduledItems, items: tuple[ItemId, ...] | None, options: ChangeOptions
    ) -> Rescheduled:
        return await schedules.run_now(queue, items, **options)

    words = _Words("Run {} of {} now", "would be made ready", "made ready")
    _change(target, queue, choice, change, words=words, as_json=as_json)


@schedule.command(short_help="Drop scheduled items.")
@click.argument("queue")
@_choice_options
@server_options
@output_option
def cancel(queue: str, choice: _Choice, target: CommandTarget, as_json: bool) -> None:
    """Drop scheduled items of QUEUE: each ITEM (an id from `schedule list`), or those that options
    choose.

    For items that options choose, the command asks for confirmation. Cancelled items are counted.
    They are not dead letters, and cannot be restored.

    \b
    Examples:
      querator schedule cancel mail 0-17
      querator schedule cancel mail --kind reminder --yes
    """

    async def change(
        schedules: ScheduledItems, items: tuple[ItemId, ...] | None, options: ChangeOptions
    ) -> Rescheduled:
        return await schedules.cancel(queue, items, **options)

    words = _Words("Cancel {} of {}", "would be cancelled", "cancelled")
    _change(target, queue, choice, change, words=words, as_json=as_json)


def _change(
    target: CommandTarget,
    queue: str,
    choice: _Choice,
    change: Change,
    *,
    words: _Words,
    as_json: bool,
) -> None:
    def call(items: tuple[ItemId, ...] | None, options: ChangeOptions) -> Rescheduled:
        return target.run(lambda client: change(client.schedules, items, options))

    done = _changed(queue, choice, call, words)
    if as_json:
        write_json(
            {
                "changed": done.changed,
                "not_scheduled": [str(item) for item in done.not_scheduled],
                "dry_run": choice.dry_run,
            }
        )
    elif done.changed or not done.not_scheduled:
        text = words.would if choice.dry_run else words.done
        click.echo(f"{counted(done.changed, 'item')} {text}.")
    missing = list(dict.fromkeys(map(str, done.not_scheduled)))
    if missing:
        shown = ", ".join(missing[:_NAMED_MAX]) + (" …" if len(missing) > _NAMED_MAX else "")
        raise Failure(
            f"Not scheduled, but ready, leased or gone: {shown}. List the scheduled items with: "
            f"querator schedule list {queue}"
        )


def _changed(
    queue: str,
    choice: _Choice,
    call: Callable[[tuple[ItemId, ...] | None, ChangeOptions], Rescheduled],
    words: _Words,
) -> Rescheduled:
    """Changes the items. Asks for confirmation if a filter chooses them."""
    if choice.items:
        return call(choice.items, {})
    if choice.yes and not choice.dry_run:
        return call(None, choice.options)
    if not choice.dry_run:
        check_can_ask(yes=False)
    found = call(None, {**choice.options, "dry_run": True})
    if choice.dry_run or not found.changed:
        return found
    confirm(f"{words.question.format(counted(found.changed, 'item'), queue)}?", yes=False)
    return call(None, choice.options)
