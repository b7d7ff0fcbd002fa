"""`querator leases`: the live leases of a queue, by client and age."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.output import count, note, write_json, write_json_lines, write_table
from querator.cli.shared.parameters import DELAY, WholeNumber
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import age_text, whole_duration
from querator.client import Client, LeaseInfo

_SHOWN_DEFAULT = 100

_client_option = click.option(
    "--client-id", default="", metavar="TEXT", help="Only leases of this client."
)
_age_option = click.option(
    "--older-than", type=DELAY, help="Only leases that were granted longer ago."
)


class LeaseView(msgspec.Struct, frozen=True):
    """A lease, as `--output json` prints it."""

    lease_id: str
    client_id: str
    items: int
    granted_at: datetime
    extended_at: datetime
    deadline: datetime


@click.group()
def leases() -> None:
    """Show the live leases of a queue, and end those of consumers that hang."""


@leases.command("list", short_help="Show live leases, the oldest first.")
@click.argument("queue")
@_client_option
@_age_option
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=_SHOWN_DEFAULT,
    show_default=True,
    metavar="N",
    help="Most leases to show.",
)
@stale_option
@server_options
@output_option
def list_leases(
    queue: str,
    client_id: str,
    older_than: timedelta | None,
    limit: int,
    stale: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show the live leases of QUEUE, the oldest first: the client, the items that it holds, the age
    of the lease, and the time until it ends if it is not extended.

    A consumer that hangs may extend its lease again and again: the lease becomes old, and keeps its
    items. With
    --output json each lease is a line.

    \b
    Examples:
      querator leases list mail
      querator leases list mail --older-than 1h
    """
    found = _found(target, queue, client_id=client_id, older_than=older_than, stale=stale)
    shown = found[:limit]
    if as_json:
        write_json_lines(map(_view, shown))
    elif not found:
        note("No such lease is live." if client_id or older_than else "No lease is live.")
    else:
        write_table(
            (
                Column("lease", keep=True),
                Column("client", cut=True),
                Column("items", keep=True),
                "leased for",
                "ends in",
            ),
            (
                (
                    one.lease_id,
                    one.client_id,
                    one.items,
                    age_text(one.granted_at),
                    whole_duration(one.deadline - datetime.now(one.deadline.tzinfo)),
                )
                for one in shown
            ),
        )
    if len(found) > limit:
        note(f"{len(found) - limit:,} more leases; see --limit.")


@leases.command(short_help="End leases: their items return to the queue.")
@click.argument("queue")
@click.argument("lease_ids", nargs=-1, metavar="[LEASE_ID]...")
@_client_option
@_age_option
@click.option(
    "--count-attempt",
    is_flag=True,
    help="The attempts count: an item of its last attempt becomes a dead letter.",
)
@yes_option
@server_options
@output_option
def release(
    queue: str,
    lease_ids: tuple[str, ...],
    client_id: str,
    older_than: timedelta | None,
    count_attempt: bool,
    yes: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """End live leases of QUEUE: each LEASE_ID, or those of a client or of an age. The command asks
    for confirmation.

    The items return to their places in the queue, and other consumers get them. If the former
    consumer works on after all, its complete is refused with LEASE_LOST, but what it does elsewhere
    is done twice.

    \b
    Examples:
      querator leases release mail 1.0.2a
      querator leases release mail --client-id worker-7 --older-than 1h
    """
    if bool(lease_ids) == bool(client_id or older_than is not None):
        raise click.UsageError(
            "Name the leases (see `querator leases list`), or choose them by --client-id and "
            "--older-than."
        )
    check_can_ask(yes=yes)
    what = count(len(lease_ids), "lease")
    if not lease_ids:
        found = _found(target, queue, client_id=client_id, older_than=older_than, stale=False)
        if not found:
            _write(0, as_json=as_json)
            return
        lease_ids = tuple(one.lease_id for one in found)
        items = sum(one.items for one in found)
        what = f"{count(len(found), 'lease')} with {count(items, 'item')}"
    confirm(f"End {what}?", yes=yes)

    async def main(client: Client) -> int:
        return await client.release_leases(queue, *lease_ids, count_attempt=count_attempt)

    _write(target.run(main), as_json=as_json)


def _found(target: CommandTarget, queue: str, **chosen: Any) -> Sequence[LeaseInfo]:
    """The live leases, the oldest first."""

    async def main(client: Client) -> list[LeaseInfo]:
        return [one async for one in client.list_leases(queue, **chosen)]

    return sorted(target.run(main), key=lambda one: (one.granted_at, one.lease_id))


def _write(released: int, *, as_json: bool) -> None:
    if as_json:
        write_json({"released": released})
    else:
        click.echo(f"{count(released, 'item')} returned to the queue.")


def _view(one: LeaseInfo) -> LeaseView:
    return LeaseView(
        lease_id=one.lease_id,
        client_id=one.client_id,
        items=one.items,
        granted_at=one.granted_at,
        extended_at=one.extended_at,
        deadline=one.deadline,
    )
