"""`querator stats`: exact counts, once or repeatedly."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import click

from querator.cli.breakers import BREAKER_COLUMNS, breaker_note, breaker_rows
from querator.cli.limits import LIMIT_COLUMNS, limit_note, limit_rows
from querator.cli.pauses import pause_note
from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.output import (
    Picture,
    Screen,
    note,
    watch_picture,
    write_json,
    write_json_lines,
    write_picture,
)
from querator.cli.shared.parameters import DURATION, format_duration, is_given
from querator.cli.shared.tables import Column, FittedTable
from querator.cli.shared.texts import age_text, size_text
from querator.cli.shared.views import stats_view
from querator.client import Client, QueueStats
from querator.client.errors import QueueNotFound
from querator.client.values import PartitionStats

_NOW = ("ready", "leased", "reserved", "scheduled", "moving", "held", "staged")
_EVER = (
    "produced",
    "delivered",
    "completed",
    "acknowledged",
    "retried",
    "released",
    "lapsed",
    "expired",
    "cancelled",
    "replaced",
    "dead",
    "moved_in",
    "moved_out",
)
_RATE_COLUMNS = (
    "per second",
    "came 1m",
    "came 5m",
    "came 15m",
    "completed 1m",
    "completed 5m",
    "completed 15m",
    "drained in",
)
_KEPT = {"ready", "leased", "produced", "completed"}
"""Columns that a narrow table has even if all is 0."""


@click.command()
@click.argument("queue", required=False)
@click.option("--watch", is_flag=True, help="Repeat the output; Ctrl-C ends it.")
@click.option(
    "--interval",
    type=DURATION,
    default="1s",
    show_default=True,
    help="Time between outputs; implies --watch.",
)
@click.option("--partitions", is_flag=True, help="Show each partition, too (always in JSON).")
@stale_option
@server_options
@output_option
def stats(
    queue: str | None,
    watch: bool,
    interval: timedelta,
    partitions: bool,
    stale: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show the counts of QUEUE, or of all queues. With --output json each queue is a line.

    Rates are moving averages over 1, 5 and 15 minutes, or over the time since the leader of a
    partition has changed. Drained in: when the ready items are gone, if they become fewer as in the
    last 5 minutes.

    \b
    Examples:
      querator stats
      querator stats mail --partitions
      querator stats mail --watch
    """
    if interval <= timedelta(0):
        raise click.UsageError("--interval must be more than 0.")
    watch = watch or is_given(click.get_current_context(), "interval")

    async def once(client: Client) -> None:
        read = _read(client, queue, stale=stale)
        if as_json:
            async for one in read:
                write_json(stats_view(one))
            return
        found = [one async for one in read]
        if not found:
            note("No queues. Create one with: querator queue create NAME")
        else:
            write_picture(_picture(found, {}, partitions))

    async def again(client: Client) -> None:
        async def read() -> list[QueueStats]:
            return [one async for one in _read(client, queue, stale=stale)]

        await _watch(read, interval, partitions, as_json=as_json)

    try:
        target.run(again if watch else once)
    except KeyboardInterrupt:
        if not watch:
            raise


async def _read(client: Client, queue: str | None, *, stale: bool) -> AsyncIterator[QueueStats]:
    """Yields the counts of one queue, or of each queue as soon as they are read."""
    if queue is not None:
        yield await client.stats(queue, stale=stale)
        return
    async for info in client.list_queues():
        try:
            stats = await client.stats(info.name, stale=stale)
        except QueueNotFound:
            continue  # The queue was deleted after it was listed.
        yield stats


async def _watch(
    read: Callable[[], Awaitable[list[QueueStats]]],
    interval: timedelta,
    partitions: bool,
    *,
    as_json: bool,
) -> None:
    if as_json or not sys.stdout.isatty():
        while True:
            found = await read()
            if as_json:
                write_json_lines(map(stats_view, found))
            else:
                write_picture(watch_picture(_picture(found, {}, partitions), interval))
            await asyncio.sleep(interval.total_seconds())
    before: dict[int, PartitionStats] = {}
    before_s = 0.0
    screen = Screen(sys.stdout)
    while True:
        found = await read()
        read_s = time.monotonic()
        rates = {
            stats.queue.id: _rates(before[stats.queue.id], stats.total, read_s - before_s)
            for stats in found
            if stats.queue.id in before
        }
        screen.show(watch_picture(_picture(found, rates, partitions), interval))
        before = {stats.queue.id: stats.total for stats in found}
        before_s = read_s
        await asyncio.sleep(interval.total_seconds())


def _rates(before: PartitionStats, after: PartitionStats, seconds: float) -> tuple[float, float]:
    """Items produced and completed per second."""
    produced = (after.produced - before.produced) / seconds
    return produced, (after.completed - before.completed) / seconds


def _picture(
    found: list[QueueStats], rates: dict[int, tuple[float, float]], partitions: bool
) -> Picture:
    """A table of present counts, then a table of all-time counts."""
    now_rows: list[list[object]] = []
    ever_rows: list[list[object]] = []
    for one in found:
        rate = rates.get(one.queue.id)
        per_second = ["", ""] if rate is None else [round(value) for value in rate]
        now_rows.append(
            [
                one.queue.name,
                *_counts(one.total, _NOW),
                size_text(one.total.bytes),
                age_text(one.total.oldest_ready_at),
                *(per_second if rates else []),
            ]
        )
        ever_rows.append([one.queue.name, *_counts(one.total, _EVER)])
        for part in one.partitions if partitions else ():
            name = f"  partition {part.partition}"
            now_rows.append(
                [
                    name,
                    *_counts(part, _NOW),
                    size_text(part.bytes),
                    age_text(part.oldest_ready_at),
                    *(["", ""] if rates else []),
                ]
            )
            ever_rows.append([name, *_counts(part, _EVER)])
    now_columns = [
        "now",
        *_NOW,
        "size",
        "oldest",
        *(["produced/s", "completed/s"] if rates else []),
    ]
    parts: list[FittedTable | str] = [
        FittedTable(map(_column, now_columns), now_rows),
        "",
        FittedTable(map(_column, ["ever", *_EVER]), ever_rows),
    ]
    if rate_rows := [_rate_row(one) for one in found if one.total.rates_1m is not None]:
        parts += ["", FittedTable(map(_column, _RATE_COLUMNS), rate_rows)]
    parts += [
        (
            f"{one.queue.name}: {one.total.held:,} held until the items that were in partitions "
            f"{', '.join(map(str, one.total.waits_for))} before their number changed have been "
            "leased and completed: earlier items of the same keys may be among them."
        )
        for one in found
        if one.total.held
    ]
    parts += [
        (
            f"{one.queue.name}: {one.total.damaged:,} not delivered: their payload is damaged on "
            "the node that leads their partition; querator cluster status names it."
        )
        for one in found
        if one.total.damaged
    ]
    parts += [
        (
            f"{one.queue.name}: {one.total.given_up:,} given up in all: their payload was "
            "damaged, and no replica had it whole."
        )
        for one in found
        if one.total.given_up
    ]
    parts += [text for one in found if (text := pause_note(one.queue))]
    parts += [text for one in found if (text := breaker_note(one))]
    parts += [text for one in found if (text := limit_note(one))]
    for columns, rows_of in ((BREAKER_COLUMNS, breaker_rows), (LIMIT_COLUMNS, limit_rows)):
        rows = [row for one in found for row in rows_of(one.partitions)] if partitions else []
        if rows:
            parts += ["", FittedTable(map(_column, columns), rows)]
    if not all(one.durable for one in found):
        parts.append("Not durable: the server keeps everything in memory.")
    return parts


def _rate_row(stats: QueueStats) -> list[object]:
    total = stats.total
    found = [rates for rates in (total.rates_1m, total.rates_5m, total.rates_15m) if rates]
    drain = total.drain_time
    return [
        stats.queue.name,
        *(_rate_text(rates.came) for rates in found),
        *(_rate_text(rates.completed) for rates in found),
        "" if drain is None else format_duration(timedelta(seconds=round(drain.total_seconds()))),
    ]


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _column(name: str) -> Column:
    return Column(name, keep=name in _KEPT)


def _counts(stats: PartitionStats, names: tuple[str, ...]) -> list[int]:
    return [getattr(stats, name) for name in names]
