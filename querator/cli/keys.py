"""`querator key`: the keys of keyed queues."""

from datetime import datetime

import click
import msgspec

from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.failures import ExitCode
from querator.cli.shared.output import note, write_json, write_json_lines, write_table
from querator.cli.shared.parameters import WholeNumber
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import age_text, instant_text
from querator.client import Client, KeyStats
from querator.model.limits import ATTEMPTS_MAX

_SHOWN_DEFAULT = 100


class KeyView(msgspec.Struct, frozen=True):
    """A key, as `--output json` prints it."""

    key: str
    waiting: int
    leased: int
    head: str | None
    head_attempts: int
    oldest_ready_at: datetime | None
    blocked_until: datetime | None


@click.group()
def key() -> None:
    """Show the keys of a keyed queue, and skip the item that keeps one back."""


_ORDERS = {
    "key": lambda one: one.key,
    "waiting": lambda one: (-one.waiting, one.key),
    "attempts": lambda one: (-one.head_attempts, one.key),
    "oldest": lambda one: (one.oldest_ready_at is None, one.oldest_ready_at or 0, one.key),
}


@key.command("list", short_help="Show keys with their items.")
@click.argument("queue")
@click.option("--blocked", is_flag=True, help="Only keys whose next item waits for its retry.")
@click.option(
    "--attempts",
    type=WholeNumber(min=0, max=ATTEMPTS_MAX),
    default=0,
    metavar="N",
    help="Only keys whose next item has had N attempts or more.",
)
@click.option(
    "--sort",
    type=click.Choice(tuple(_ORDERS)),
    default="key",
    show_default=True,
    help="By key; or most waiting items, most attempts of the next item, or longest wait first.",
)
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=_SHOWN_DEFAULT,
    show_default=True,
    metavar="N",
    help="Most keys to show.",
)
@stale_option
@server_options
@output_option
def list_keys(
    queue: str,
    blocked: bool,
    attempts: int,
    sort: str,
    limit: int,
    stale: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show the keys of the keyed queue QUEUE that have items: how many wait and are leased, the
    next item with its attempts, and until when it keeps back the others.

    The next item is the first one that waits. It is leased when no other item of the key is. With
    --output json each key is a line.

    \b
    Examples:
      querator key list accounts --blocked
      querator key list accounts --attempts 3 --sort attempts
    """

    async def main(client: Client) -> list[KeyStats]:
        return [
            one
            async for one in client.list_keys(
                queue, blocked=blocked, head_attempts_min=attempts, stale=stale
            )
        ]

    found = sorted(target.run(main), key=_ORDERS[sort])
    shown = found[:limit]
    if as_json:
        write_json_lines(map(_view, shown))
    elif not found:
        note("No such key has items." if blocked or attempts else "No key has items.")
    else:
        write_table(
            (
                Column("key", cut=True),
                Column("waiting", keep=True),
                Column("leased", keep=True),
                "next item",
                "attempts",
                "oldest",
                "blocked until",
            ),
            (
                (
                    one.key,
                    one.waiting,
                    one.leased,
                    str(one.head) if one.head else "",
                    one.head_attempts if one.head else "",
                    age_text(one.oldest_ready_at),
                    instant_text(one.blocked_until) if one.blocked_until else "",
                )
                for one in shown
            ),
        )
    if len(found) > limit:
        note(f"{len(found) - limit:,} more keys; see --limit.")


@key.command("skip", short_help="Take the next item of a key out of the way.")
@click.argument("queue")
@click.argument("key")
@click.option("--dead", is_flag=True, help="Make it a dead letter. Otherwise it is removed.")
@yes_option
@server_options
@output_option
def skip(queue: str, key: str, dead: bool, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Take the next item of KEY out of the keyed queue QUEUE, so that the later ones can be leased.

    The command shows the item, and asks for confirmation. An item that is leased stays: it has a
    consumer. A removed item is counted as cancelled, and cannot be restored.

    \b
    Examples:
      querator key skip accounts ann
      querator key skip accounts ann --dead --yes
    """
    check_can_ask(yes=yes)

    async def ask(client: Client) -> KeyStats | None:
        found = [one async for one in client.list_keys(queue, key=key)]
        return found[0] if found else None

    found = target.run(ask)
    if found is None or found.head is None or found.leased:
        why = "has no items" if found is None else "has an item that is leased"
        if found is not None and not found.leased:
            why = "has no item that waits in its place"
        note(f"Nothing was changed: key {key} {why}.")
        raise click.exceptions.Exit(ExitCode.WRONG)
    head = found.head
    becomes = "Make it a dead letter" if dead else "Remove it for ever"
    question = f"Item {head} of {key} has had {found.head_attempts} attempts. {becomes}?"
    confirm(question, yes=yes)
    skipped = target.run(lambda client: client.skip_key(queue, key, head, dead=dead))
    if as_json:
        write_json({"item": str(head), "skipped": skipped, "dead": dead})
    elif skipped:
        click.echo(f"Item {head} {'became a dead letter' if dead else 'was removed'}.")
    if not skipped:
        note(f"Nothing was changed: item {head} is not the next one of {key} any more.")
        raise click.exceptions.Exit(ExitCode.WRONG)


def _view(one: KeyStats) -> KeyView:
    return KeyView(
        key=one.key,
        waiting=one.waiting,
        leased=one.leased,
        head=str(one.head) if one.head else None,
        head_attempts=one.head_attempts,
        oldest_ready_at=one.oldest_ready_at,
        blocked_until=one.blocked_until,
    )
