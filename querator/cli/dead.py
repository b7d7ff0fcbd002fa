"""`querator peek`, `prioritize`, `cancel` and `dead`: items without leases, and dead letters."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import click

from querator.cli.dead_groups import groups
from querator.cli.letters import (
    ChosenLetters,
    Wanted,
    chosen,
    chosen_ids,
    in_pieces,
    last_error,
    letter_options,
    note_more_letters,
    wanted_options,
)
from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.listing import ItemListing, limit_option, note_more
from querator.cli.shared.output import count, note, write_json
from querator.cli.shared.parameters import ITEM_ID, PRIORITY
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import age_text, instant_text, size_text
from querator.cli.shared.views import preview
from querator.client import Client, ItemId
from querator.client.values import Cancelled, ItemState, PeekedItem, Prioritized


@click.command()
@click.argument("queue")
@click.option(
    "--state",
    type=click.Choice([state.name.lower() for state in ItemState]),
    help="Only items in this state.",
)
@click.option(
    "--id",
    "item_ids",
    type=ITEM_ID,
    multiple=True,
    help="Only the item with this id, in any state; may be repeated.",
)
@click.option(
    "--after", type=ITEM_ID, help="Only items after the one with this id, which may be gone."
)
@limit_option
@stale_option
@server_options
@output_option
def peek(
    queue: str,
    state: str | None,
    item_ids: tuple[ItemId, ...],
    after: ItemId | None,
    limit: int,
    stale: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show items of QUEUE without leasing them, by partition and sequence.

    With --output json each item is a line. When an item that --id names is gone, the exit code is
    1.

    \b
    Examples:
      querator peek mail
      querator peek mail --state scheduled --limit 100
      querator peek mail --id 0-17
    """
    listing = ItemListing(_ITEM_COLUMNS, _item_row, as_json=as_json)
    if item_ids:
        if state is not None or after is not None:
            raise click.UsageError("--id is for items in any state: leave --state and --after out.")
        shown = listing.show(target, lambda client: _by_id(client, queue, item_ids, stale=stale))
        if gone := len(set(item_ids)) - shown:
            note(f"Gone, or never there: {count(gone, 'item')}.")
            raise click.exceptions.Exit(ExitCode.WRONG)
        return
    wanted = None if state is None else ItemState[state.upper()]
    shown = listing.show(
        target,
        lambda client: client.peek(queue, state=wanted, after=after, limit=limit, stale=stale),
    )
    if not shown and not as_json:
        note("No such items." if state or after else "The queue is empty.")
    note_more(shown, limit, as_json=as_json)


async def _by_id(
    client: Client, queue: str, item_ids: Sequence[ItemId], *, stale: bool
) -> AsyncIterator[PeekedItem]:
    for item in await client.get_items(queue, item_ids, stale=stale):
        yield item


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


@click.group()
def dead() -> None:
    """Show and count dead letters, send them back to their queue, or drop them."""


dead.add_command(groups)


@dead.command("list", short_help="Show dead letters.")
@click.argument("queue")
@wanted_options
@limit_option
@server_options
@output_option
def list_dead(queue: str, wanted: Wanted, limit: int, target: CommandTarget, as_json: bool) -> None:
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
    listing = ItemListing(_LETTER_COLUMNS, _letter_row, as_json=as_json)
    shown = listing.show(target, lambda client: chosen(client, queue, wanted, limit))
    if not shown and not as_json:
        note("No such dead letters." if wanted != Wanted() else "No dead letters.")
    note_more(shown, limit, as_json=as_json)


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
        preview(last_error(letter)),
        payload,
    )


@dead.command(short_help="Send dead letters back to their queue.")
@click.argument("queue")
@letter_options(paced=True)
@server_options
@output_option
def redrive(queue: str, letters: ChosenLetters, target: CommandTarget, as_json: bool) -> None:
    """Send dead letters of QUEUE back to it: each ITEM (an id from `dead list`), or those that
    options choose.

    Letters that are leased or scheduled in the dead queue stay. To repeat the command is harmless.
    With --kind, --text, --limit or --rate the command reads the letters before it sends the first
    one, at most 100,000. If it is ended early, the letters that it has sent are on their way.

    \b
    Examples:
      querator dead redrive mail 0-17
      querator dead redrive mail --reason attempts --newer-than 12h
      querator dead redrive mail --text 'connection refused' --limit 50
      querator dead redrive mail --all --rate 20
      querator dead redrive mail --all --dry-run
    """

    async def main(client: Client) -> int:
        if letters.are_chosen_here:
            ids = await chosen_ids(client, queue, letters)
            note_more_letters(letters, len(ids))
            if letters.dry_run:
                return len(ids)
            return await in_pieces(ids, letters.rate, lambda some: client.redrive(queue, some))
        wanted = letters.wanted
        return await client.redrive(
            queue,
            letters.items or None,
            reasons=wanted.reasons,
            died_from=wanted.died_from,
            died_until=wanted.died_until,
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
@letter_options(paced=False)
@yes_option
@server_options
@output_option
def drop(
    queue: str, letters: ChosenLetters, yes: bool, target: CommandTarget, as_json: bool
) -> None:
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
      querator dead drop mail --text 'customer unknown'
    """

    done = _dropped(queue, letters, target, yes=yes)
    if as_json:
        write_json({"dropped": done, "dry_run": letters.dry_run})
    elif done or not letters.items:
        would = "would be dropped" if letters.dry_run else "dropped"
        click.echo(f"{count(done, 'dead letter')} of {queue} {would}.")
    _check_found(queue, letters, done)


def _dropped(queue: str, letters: ChosenLetters, target: CommandTarget, *, yes: bool) -> int:
    """Drops the letters, after a question if options have chosen them; returns their number."""
    if letters.items:
        return target.run(lambda client: client.drop_dead_letters(queue, letters.items))
    if not letters.dry_run:
        check_can_ask(yes=yes)
    ids: Sequence[ItemId] = ()
    if letters.are_chosen_here:
        ids = target.run(lambda client: chosen_ids(client, queue, letters))
        note_more_letters(letters, len(ids))

    def drop(*, dry_run: bool) -> int:
        return target.run(lambda client: _drop(client, queue, letters, ids, dry_run=dry_run))

    if letters.dry_run:
        return drop(dry_run=True)
    found = 0 if yes else drop(dry_run=True)
    if found:
        confirm(f"Drop {count(found, 'dead letter')} of {queue} for ever?", yes=yes)
    return drop(dry_run=False) if found or yes else 0


async def _drop(
    client: Client, queue: str, letters: ChosenLetters, ids: Sequence[ItemId], *, dry_run: bool
) -> int:
    if letters.are_chosen_here:
        if dry_run:
            return len(ids)
        return await in_pieces(ids, None, lambda some: client.drop_dead_letters(queue, some))
    wanted = letters.wanted
    return await client.drop_dead_letters(
        queue,
        reasons=wanted.reasons,
        died_from=wanted.died_from,
        died_until=wanted.died_until,
        all_letters=wanted == Wanted(),
        dry_run=dry_run,
    )


def _check_found(queue: str, letters: ChosenLetters, found: int) -> None:
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
