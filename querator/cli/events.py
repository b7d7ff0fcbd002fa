"""`querator events`: what happens to the items and partitions of a queue."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import Failure
from querator.cli.shared.output import write_json
from querator.cli.shared.parameters import WholeNumber
from querator.cli.shared.texts import instant_text, printable
from querator.client import Client, EventPosition, QueueEvent
from querator.client.events import EVENT_KINDS, EventsStart


class _Start(click.ParamType[str | EventPosition]):
    """`first`, `end`, or a position."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | EventPosition:
        if isinstance(value, EventPosition):
            return value
        text = str(value)
        if text in ("first", "end"):
            return text
        try:
            return EventPosition.parse(text)
        except ValueError as error:
            self.fail(f"{error}; or first, or end.", param, ctx)


class EventView(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event, as `--output json` prints it. `next` is where to continue after it."""

    partition: int
    position: int
    kind: str
    at: datetime
    next: str
    items: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    lease_id: str = ""
    client_id: str = ""
    attempt: int = 0
    produced_at: datetime | None = None
    due_at: datetime | None = None
    group: str = ""
    reason: str = ""
    dropped: bool = False
    priority: int | None = None
    part: str = ""
    partitions: int = 0
    settings_version: int = 0
    breaker: str = ""


@click.command()
@click.argument("queue")
@click.option("--follow", "-f", is_flag=True, help="Wait for further events; Ctrl-C ends it.")
@click.option(
    "--from",
    "starts",
    type=_Start(),
    multiple=True,
    metavar="POSITION",
    help="Where to begin: first (the default), end, or a position as `next` in the JSON; a "
    "position for each partition may be given.",
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(EVENT_KINDS),
    multiple=True,
    metavar="KIND",
    help="Only events of this kind; may be repeated.",
)
@click.option(
    "--positions",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Continue with the positions in this file if it exists, and write them to it after each "
    "event.",
)
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="End after N events.")
@server_options
@output_option
def events(
    queue: str,
    follow: bool,
    starts: tuple[str | EventPosition, ...],
    kinds: tuple[Any, ...],
    path: Path | None,
    limit: int | None,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show what happens to the items of QUEUE and to its partitions: what was produced, leased,
    completed, retried, or died, and when the queue was paused or resized.

    The queue records events if it has --events-retention. An event has a position in its partition,
    and many items. With --output json each event is a line. With --positions, a program that reads
    these lines may end at any time: the next run continues after the last event that was printed.

    \b
    Examples:
      querator events mail --kind dead --kind lapsed
      querator events mail --follow --from end
      querator events mail --follow --positions mail.positions --output json
    """
    words = [one for one in starts if isinstance(one, str)]
    given = [one for one in starts if not isinstance(one, str)]
    if len(words) > 1 or (words and given):
        raise click.UsageError("--from takes one of first and end, or a position per partition.")
    if path is not None and given:
        raise click.UsageError("--positions and a position of --from exclude each other.")
    start: EventsStart = "end" if words == ["end"] else "first"
    positions = _saved(path) if path is not None else given

    async def main(client: Client) -> None:
        shown = 0
        following = client.events(
            queue, positions=positions, start=start, kinds=kinds or None, follow=follow
        )
        async with following:
            if path is not None:
                _save(path, following.positions)
            async for event in following:
                write_json(_view(event)) if as_json else click.echo(_line(event))
                shown += 1
                if path is not None:
                    _save(path, following.positions)
                if shown == limit:
                    return
            if path is not None:
                _save(path, following.positions)

    target.run(main)


def _saved(path: Path) -> list[EventPosition]:
    try:
        return [EventPosition.parse(line) for line in path.read_text().split()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}") from error


def _save(path: Path, positions: Sequence[EventPosition]) -> None:
    """Replaces the file, so that it always has all positions of one moment."""
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_text("".join(f"{position}\n" for position in positions))
        written.replace(path)
    except OSError as error:
        with suppress(OSError):
            written.unlink()
        raise Failure(f"{path}: {error}") from error


def _line(event: QueueEvent) -> str:
    """One line: when, the place, what, which items, and more."""
    words = [instant_text(event.at), f"{event.partition}:{event.position}", event.kind]
    if event.ranges:
        words.append(", ".join(_run(event.partition, *run) for run in event.ranges))
    for name, value in (
        ("attempt", event.attempt),
        ("lease", event.lease_id),
        ("client", event.client_id),
        ("group", event.group),
        ("due", event.due_at and instant_text(event.due_at)),
        ("reason", event.reason and event.reason.name.lower()),
        ("priority", event.priority),
        ("part", event.part),
        ("partitions", event.partitions),
        ("version", event.settings_version),
        ("breaker", event.breaker),
    ):
        if value or (value == 0 and name == "priority"):
            words.append(f"{name}={printable(str(value))}")
    return "  ".join(words)


def _run(partition: int, first: int, count: int) -> str:
    return f"{partition}-{first}" if count == 1 else f"{partition}-{first}…{first + count - 1}"


def _view(event: QueueEvent) -> EventView:
    return EventView(
        partition=event.partition,
        position=event.position,
        kind=event.kind,
        at=event.at,
        next=str(event.next),
        items=event.count,
        ranges=event.ranges,
        lease_id=event.lease_id,
        client_id=event.client_id,
        attempt=event.attempt,
        produced_at=event.produced_at,
        due_at=event.due_at,
        group=event.group,
        reason="" if event.reason is None else event.reason.name.lower(),
        dropped=event.dropped,
        priority=event.priority,
        part=event.part,
        partitions=event.partitions,
        settings_version=event.settings_version,
        breaker=event.breaker,
    )
