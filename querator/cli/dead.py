"""`querator peek` and `querator dead`: items without leases, and dead letters."""

from collections.abc import AsyncIterator, Callable

import click

from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.output import count, note, write_json, write_table
from querator.cli.shared.parameters import ITEM_ID
from querator.cli.shared.views import peeked_view, preview
from querator.client import Client, ItemId
from querator.client.values import ItemState, PeekedItem

_limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Most items to show.",
)


@click.command(short_help="Show items without leasing them.")
@click.argument("queue")
@click.option(
    "--state",
    type=click.Choice([state.name.lower() for state in ItemState]),
    help="Only items in this state.",
)
@_limit_option
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
    items = _collect(
        target, lambda client: client.peek(queue, state=wanted, limit=limit, stale=stale)
    )
    if as_json:
        for peeked in items:
            write_json(peeked_view(peeked))
        return
    if not items:
        note("No such items." if state else "The queue is empty.")
        return
    write_table(
        ("item", "state", "attempt", "due", "lease", "kind", "reference", "payload"),
        (
            (
                str(peeked.id),
                peeked.state.name.lower(),
                peeked.attempt,
                peeked.due_at and peeked.due_at.isoformat(timespec="seconds"),
                peeked.lease_id,
                peeked.item.kind,
                peeked.item.reference,
                preview(peeked.item.payload),
            )
            for peeked in items
        ),
    )
    _note_more(items, limit)


@click.group()
def dead() -> None:
    """Show dead letters and send them back to their queue."""


@dead.command("list", short_help="Show dead letters.")
@click.argument("queue")
@_limit_option
@server_options
@output_option
def list_dead(queue: str, limit: int, target: CommandTarget, as_json: bool) -> None:
    """Show the dead letters of QUEUE. If QUEUE is a dead queue, show all dead letters in it.

    With --output json each dead letter is a line.

    \b
    Example:
      querator dead list mail
    """
    items = _collect(target, lambda client: client.dead_letters(queue, limit=limit))
    if as_json:
        for peeked in items:
            write_json(peeked_view(peeked))
        return
    if not items:
        note("No dead letters.")
        return
    write_table(
        ("item", "from", "reason", "attempts", "died", "last error", "payload"),
        (
            (
                str(peeked.id),
                peeked.dead_letter
                and f"{peeked.dead_letter.origin_queue} {peeked.dead_letter.origin_id}",
                peeked.dead_letter and peeked.dead_letter.reason.name.lower(),
                peeked.dead_letter and peeked.dead_letter.attempts,
                peeked.dead_letter and peeked.dead_letter.died_at.isoformat(timespec="seconds"),
                peeked.dead_letter and preview(_last(peeked.dead_letter.errors)),
                preview(peeked.item.payload),
            )
            for peeked in items
        ),
    )
    _note_more(items, limit)


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
    if as_json:
        write_json({"redriven": redriven})
    else:
        click.echo(f"{count(redriven, 'dead letter')} on the way back to {queue}.")


def _collect(
    target: CommandTarget, items: Callable[[Client], AsyncIterator[PeekedItem]]
) -> list[PeekedItem]:
    async def main(client: Client) -> list[PeekedItem]:
        return [item async for item in items(client)]

    return target.run(main)


def _last(errors: tuple[str, ...]) -> str:
    return errors[-1] if errors else ""


def _note_more(items: list[PeekedItem], limit: int) -> None:
    if len(items) == limit:
        note(f"The first {limit:,}; there may be more: --limit.")
