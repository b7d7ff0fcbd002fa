"""`querator peek`, `prioritize` and `dead`: items without leases, and dead letters."""

from typing import Final

import click

from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.failures import Failure
from querator.cli.shared.listing import ItemListing, limit_option, note_more
from querator.cli.shared.output import count, note, write_json
from querator.cli.shared.parameters import ITEM_ID, PRIORITY
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import instant_text
from querator.cli.shared.views import preview
from querator.client import Client, ItemId
from querator.client.values import DeadReason, ItemState, PeekedItem, Prioritized


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
    "lease ends",
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
        peeked.deadline and instant_text(peeked.deadline),
        peeked.item.kind,
        peeked.item.reference,
        preview(peeked.item.payload),
    )


@click.group()
def dead() -> None:
    """Show dead letters and send them back to their queue."""


@dead.command("list", short_help="Show dead letters.")
@click.argument("queue")
@limit_option
@server_options
@output_option
def list_dead(queue: str, limit: int, target: CommandTarget, as_json: bool) -> None:
    """Show the dead letters of QUEUE. If QUEUE is a dead queue, show all dead letters in it, also
    those of other queues. Dead letters of a dead queue are in its own dead queue.

    With --output json each dead letter is a line.

    \b
    Example:
      querator dead list mail
    """
    listing = ItemListing(_LETTER_COLUMNS, _letter_row, as_json=as_json)
    shown = listing.show(target, lambda client: client.dead_letters(queue, limit=limit))
    if not shown and not as_json:
        note("No dead letters.")
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
        preview(letter.errors[-1]) if letter.errors else _NO_ERROR.get(letter.reason, ""),
        payload,
    )


_NO_ERROR: Final = {
    DeadReason.ATTEMPTS: "lease lapsed: consumer gone or too slow (or retried without an error)"
}
"""What a letter without a text of an error died of."""


@dead.command(short_help="Send dead letters back to their queue.")
@click.argument("queue")
@click.argument("items", nargs=-1, type=ITEM_ID, metavar="[ITEM]...")
@click.option("--all", "all_items", is_flag=True, help="All dead letters of the queue.")
@server_options
@output_option
def redrive(
    queue: str, items: tuple[ItemId, ...], all_items: bool, target: CommandTarget, as_json: bool
) -> None:
    """Send dead letters of QUEUE back to it: each ITEM (an id from `dead list`), or --all.

    \b
    Examples:
      querator dead redrive mail 0-17
      querator dead redrive mail --all
    """
    if all_items == bool(items):
        raise click.UsageError("Name the items (see `querator dead list`), or give --all.")

    async def main(client: Client) -> int:
        return await client.redrive(queue, items)

    redriven = target.run(main)
    wanted = len(set(items))
    if as_json:
        write_json({"redriven": redriven})
    elif redriven or not wanted:
        click.echo(f"{count(redriven, 'dead letter')} on the way back to {queue}.")
    if redriven < wanted:
        which = f"{wanted - redriven:,} of {wanted:,} items are no dead letters"
        if wanted == 1:
            which = f"{items[0]} is no dead letter"
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
