"""`querator peek`, `prioritize`, `cancel` and `dead`: items without leases, and dead letters."""

import functools
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
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
from querator.cli.shared.output import count, note, write_json
from querator.cli.shared.parameters import ITEM_ID, PRIORITY, DurationType, format_duration
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import age_text, instant_text, size_text
from querator.cli.shared.views import preview
from querator.client import Client, ItemId
from querator.client import clock as wall
from querator.client.values import Cancelled, DeadReason, ItemState, PeekedItem, Prioritized
from querator.model import limits

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.command()
@click.argument("queue")
@click.option(
    "--state",
    type=click.Choice([state.name.lower() for state in ItemState]),
    help="Only items in this state.",
)
@limit_option
@stale_option
@server_options
@output_option
def peek(
    queue: str, state: str | None, limit: int, stale: bool, target: CommandTarget, as_json: bool
) -> None:
    """Show items of QUEUE without leasing them, by partition and sequence.

    With --output json each item is a line.

    \b
    Examples:
      querator peek mail
      querator peek mail --state scheduled --limit 100
    """
    wanted = None if state is None else ItemState[state.upper()]
    listing = ItemListing(_ITEM_COLUMNS, _item_row, as_json=as_json)
    shown = listing.show(
        target, lambda client: client.peek(queue, state=wanted, limit=limit, stale=stale)
    )
    if not shown and not as_json:
        note("No such items." if state else "The queue is empty.")
    note_more(shown, limit, as_json=as_json)


_ITEM_COLUMNS: Final = (
    "item",
    "state",
    "attempt",
    "priority",
    "due",
    "lease",
    "owner",
    "leased for",
    "lease ends",
    "checkpoint",
    "kind",
    "reference",
    Column("payload", cut=True),
)


def _item_row(peeked: PeekedItem) -> tuple[object, ...]:
    return (
        str(peeked.id),
        peeked.state.name.lower(),
        peeked.attempt,
        peeked.priority,
        peeked.due_at and instant_text(peeked.due_at),
        peeked.lease_id,
        peeked.client_id,
        age_text(peeked.leased_at),
        peeked.deadline and instant_text(peeked.deadline),
        size_text(peeked.checkpoint_bytes) if peeked.checkpoint_bytes else "",
        peeked.item.kind,
        peeked.item.reference,
        preview(peeked.item.payload),
    )


_AGE: Final = DurationType(most_ms=limits.SCHEDULE_AHEAD_MS_MAX)

_reason_option = click.option(
    "--reason",
    "reasons",
    multiple=True,
    type=click.Choice([reason.name.lower() for reason in DeadReason]),
    callback=lambda _context, _parameter, values: tuple(DeadReason[one.upper()] for one in values),
    help="Only dead letters with this reason; may be given several times.",
)


def _age_options(command: _Command) -> _Command:
    """Adds --older-than and --newer-than."""
    more = (
        click.option("--older-than", type=_AGE, help="Only letters that died longer ago."),
        click.option("--newer-than", type=_AGE, help="Only letters that died within this time."),
    )
    return cast(_Command, decorated(command, more))


def _died(
    older_than: timedelta | None, newer_than: timedelta | None
) -> tuple[datetime | None, datetime | None]:
    """When the letters died: from the first instant on, and before the second. Raises UsageError if
    no letter can have died between both.
    """
    if older_than is not None and newer_than is not None and newer_than <= older_than:
        raise click.UsageError(
            f"--newer-than is {format_duration(newer_than)}; it must be longer than "
            f"--older-than, which is {format_duration(older_than)}."
        )
    now = wall.now()
    return (
        None if newer_than is None else now - newer_than,
        None if older_than is None else now - older_than,
    )


@click.group()
def dead() -> None:
    """Show dead letters, send them back to their queue, or drop them."""


@dead.command("list", short_help="Show dead letters.")
@click.argument("queue")
@_reason_option
@_age_options
@click.option("--kind", help="Only dead letters of this kind.")
@click.option("--text", help="Only letters with this text in their payload or in an error.")
@limit_option
@server_options
@output_option
def list_dead(
    queue: str,
    reasons: tuple[DeadReason, ...],
    older_than: timedelta | None,
    newer_than: timedelta | None,
    kind: str | None,
    text: str | None,
    limit: int,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show the dead letters of QUEUE. If QUEUE is a dead queue, show all dead letters in it, also
    those of other queues. Dead letters of a dead queue are in its own dead queue.

    Letters are shown that meet all given options. The command reads the dead letters one page
    after the other, until it has found as many as --limit. With --output json each dead letter is
    a line.

    \b
    Examples:
      querator dead list mail
      querator dead list mail --reason attempts --newer-than 12h
      querator dead list mail --kind invoice --text "connection refused"
    """
    wanted = _Wanted(reasons, *_died(older_than, newer_than), kind, (text or "").encode())
    listing = ItemListing(_LETTER_COLUMNS, _letter_row, as_json=as_json)
    shown = listing.show(target, lambda client: _chosen(client, queue, wanted, limit))
    if not shown and not as_json:
        note("No such dead letters." if wanted != _Wanted() else "No dead letters.")
    note_more(shown, limit, as_json=as_json)


class _Wanted(NamedTuple):
    """Which dead letters are listed. `died_from` is included, `died_until` is not. `text` is in the
    payload or in an error.
    """

    reasons: tuple[DeadReason, ...] = ()
    died_from: datetime | None = None
    died_until: datetime | None = None
    kind: str | None = None
    text: bytes = b""

    def includes(self, peeked: PeekedItem) -> bool:
        letter = peeked.dead_letter
        if self.kind is not None and peeked.item.kind != self.kind:
            return False
        if self.text and not _has_text(peeked, self.text):
            return False
        if letter is None:
            return not self.reasons and self.died_from is None and self.died_until is None
        return (
            (not self.reasons or letter.reason in self.reasons)
            and (self.died_from is None or letter.died_at >= self.died_from)
            and (self.died_until is None or letter.died_at < self.died_until)
        )


def _has_text(peeked: PeekedItem, text: bytes) -> bool:
    payload = peeked.item.payload
    raw = payload.encode() if isinstance(payload, str) else payload
    errors = () if peeked.dead_letter is None else peeked.dead_letter.errors
    return text in raw or any(text in error.encode() for error in errors)


async def _chosen(
    client: Client, queue: str, wanted: _Wanted, limit: int
) -> AsyncIterator[PeekedItem]:
    if wanted == _Wanted():
        async for letter in client.dead_letters(queue, limit=limit):
            yield letter
        return
    found = 0
    async for letter in client.dead_letters(queue):
        if wanted.includes(letter):
            yield letter
            found += 1
            if found == limit:
                return


_LETTER_COLUMNS: Final = (
    "item",
    "from",
    "reason",
    "attempts",
    "died",
    Column("last error", cut=True),
    Column("payload", cut=True),
)


def _letter_row(peeked: PeekedItem) -> tuple[object, ...]:
    letter = peeked.dead_letter
    payload = preview(peeked.item.payload)
    if letter is None:
        return (str(peeked.id), "", "", "", "", "", payload)
    return (
        str(peeked.id),
        f"{letter.origin_queue} {letter.origin_id}",
        letter.reason.name.lower(),
        letter.attempts,
        instant_text(letter.died_at),
        preview(letter.errors[-1]) if letter.errors else _NO_ERROR.get(letter.reason, ""),
        payload,
    )


_NO_ERROR: Final = {
    DeadReason.ATTEMPTS: "lease lapsed: consumer gone or too slow (or retried without an error)"
}
"""What a letter without a text of an error died of."""


class _Letters(NamedTuple):
    """Which dead letters a command is for: named ones, or those that options choose."""

    items: tuple[ItemId, ...]
    reasons: tuple[DeadReason, ...]
    died_from: datetime | None
    died_until: datetime | None
    dry_run: bool


def _letter_options(command: _Command) -> _Command:
    """Adds ITEM, --reason, --older-than, --newer-than, --all and --dry-run, as one `letters`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        items: tuple[ItemId, ...],
        reasons: tuple[DeadReason, ...],
        older_than: timedelta | None,
        newer_than: timedelta | None,
        all_items: bool,
        dry_run: bool,
        **kwargs: Any,
    ) -> Any:
        filtered = bool(reasons) or older_than is not None or newer_than is not None
        if bool(items) + filtered + all_items != 1:
            raise click.UsageError(
                "Name the items (see `querator dead list`), or choose them by --reason, "
                "--older-than and --newer-than, or give --all."
            )
        if items and dry_run:
            raise click.UsageError("--dry-run is for letters that options choose, not for ITEM.")
        letters = _Letters(items, reasons, *_died(older_than, newer_than), dry_run)
        return command(*args, letters=letters, **kwargs)

    more = (
        click.argument("items", nargs=-1, type=ITEM_ID, metavar="[ITEM]..."),
        _reason_option,
        _age_options,
        click.option("--all", "all_items", is_flag=True, help="All dead letters of the queue."),
        click.option("--dry-run", is_flag=True, help="Only show how many letters it would be."),
    )
    return cast(_Command, decorated(wrapper, more))


@dead.command(short_help="Send dead letters back to their queue.")
@click.argument("queue")
@_letter_options
@server_options
@output_option
def redrive(queue: str, letters: _Letters, target: CommandTarget, as_json: bool) -> None:
    """Send dead letters of QUEUE back to it: each ITEM (an id from `dead list`), or those that
    options choose.

    Letters that are leased or scheduled in the dead queue stay. To repeat the command is harmless.

    \b
    Examples:
      querator dead redrive mail 0-17
      querator dead redrive mail --reason attempts --newer-than 12h
      querator dead redrive mail --all --dry-run
    """

    async def main(client: Client) -> int:
        return await client.redrive(
            queue,
            letters.items or None,
            reasons=letters.reasons,
            died_from=letters.died_from,
            died_until=letters.died_until,
            dry_run=letters.dry_run,
        )

    redriven = target.run(main)
    if as_json:
        write_json({"redriven": redriven, "dry_run": letters.dry_run})
    elif letters.dry_run:
        click.echo(f"{count(redriven, 'dead letter')} would go back to {queue}.")
    elif redriven or not letters.items:
        click.echo(f"{count(redriven, 'dead letter')} on the way back to {queue}.")
    _check_found(queue, letters, redriven)


@dead.command(short_help="Remove dead letters for ever.")
@click.argument("queue")
@_letter_options
@yes_option
@server_options
@output_option
def drop(queue: str, letters: _Letters, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Remove dead letters of QUEUE for ever: each ITEM (an id from `dead list`), or those that
    options choose.

    For letters that options choose, the command asks for confirmation. Letters that are leased or
    scheduled in the dead queue stay. Dropped letters are counted as cancelled items of the dead
    queue. They cannot be restored.

    \b
    Examples:
      querator dead drop mail 0-17
      querator dead drop mail --older-than 30d --dry-run
      querator dead drop mail --reason expired --yes
    """

    def dropped(*, dry_run: bool) -> int:
        return target.run(lambda client: _drop(client, queue, letters, dry_run=dry_run))

    if letters.items or letters.dry_run:
        done = dropped(dry_run=letters.dry_run)
    else:
        check_can_ask(yes=yes)
        done = 0 if yes else dropped(dry_run=True)
        if done:
            confirm(f"Drop {count(done, 'dead letter')} of {queue} for ever?", yes=yes)
        if done or yes:
            done = dropped(dry_run=False)
    if as_json:
        write_json({"dropped": done, "dry_run": letters.dry_run})
    elif done or not letters.items:
        would = "would be dropped" if letters.dry_run else "dropped"
        click.echo(f"{count(done, 'dead letter')} of {queue} {would}.")
    _check_found(queue, letters, done)


async def _drop(client: Client, queue: str, letters: _Letters, *, dry_run: bool) -> int:
    if letters.items:
        return await client.drop_dead_letters(queue, letters.items)
    chosen = bool(letters.reasons or letters.died_from or letters.died_until)
    return await client.drop_dead_letters(
        queue,
        reasons=letters.reasons,
        died_from=letters.died_from,
        died_until=letters.died_until,
        all_letters=not chosen,
        dry_run=dry_run,
    )


def _check_found(queue: str, letters: _Letters, found: int) -> None:
    """Raises Failure if some of the named items are no dead letters of the queue."""
    wanted = len(set(letters.items))
    if found >= wanted:
        return
    which = f"{wanted - found:,} of {wanted:,} items are no dead letters"
    if wanted == 1:
        which = f"{letters.items[0]} is no dead letter"
    raise Failure(f"{which} of {queue}; list them with: querator dead list {queue}")


@click.command()
@click.argument("queue")
@click.argument("items", nargs=-1, type=ITEM_ID, metavar="ITEM...", required=True)
@click.option(
    "--priority",
    type=PRIORITY,
    metavar="N",
    required=True,
    help="The priority; the lowest is leased first.",
)
@server_options
@output_option
def prioritize(
    queue: str, items: tuple[ItemId, ...], priority: int, target: CommandTarget, as_json: bool
) -> None:
    """Give waiting items of QUEUE another priority. Each ITEM is an id like 0-17 (see `querator
    peek`).

    A priority orders the items of one partition. An item that is leased gets another priority by
    its retry. To repeat the command is harmless.

    \b
    Example:
      querator prioritize mail 0-17 0-18 --priority -5
    """

    async def main(client: Client) -> Prioritized:
        return await client.prioritize(queue, items, priority)

    done = target.run(main)
    if as_json:
        write_json({"changed": done.changed, "not_waiting": [str(one) for one in done.not_waiting]})
    else:
        within = "its partition" if done.changed == 1 else "their partitions"
        click.echo(
            f"{count(done.changed, 'item')} changed to priority {priority}, within {within}."
        )
    if done.not_waiting:
        listed = ", ".join(map(str, done.not_waiting))
        raise Failure(f"Not waiting, but leased or gone: {listed}")


@click.command()
@click.argument("queue")
@click.argument("items", nargs=-1, type=ITEM_ID, metavar="ITEM...", required=True)
@server_options
@output_option
def cancel(queue: str, items: tuple[ItemId, ...], target: CommandTarget, as_json: bool) -> None:
    """Remove items of QUEUE that wait: ready ones, scheduled ones, and ones that are held for their
    key. Each ITEM is an id like 0-17 (see `querator peek`).

    Leased items stay: their consumer decides what becomes of them. Removed items are counted as
    cancelled. They are no dead letters, and cannot be restored. To repeat the command is harmless.

    \b
    Example:
      querator cancel mail 0-17 0-18
    """

    async def main(client: Client) -> Cancelled:
        return await client.cancel(queue, items)

    done = target.run(main)
    if as_json:
        write_json(
            {
                "cancelled": done.cancelled,
                "not_waiting": [str(one) for one in done.not_waiting],
            }
        )
    elif done.cancelled or not done.not_waiting:
        click.echo(f"{count(done.cancelled, 'item')} cancelled.")
    if done.not_waiting:
        listed = ", ".join(map(str, done.not_waiting))
        raise Failure(f"Not waiting, but leased or gone: {listed}")
