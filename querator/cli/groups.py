"""`querator group`: the groups of fair queues."""

from datetime import datetime

import click
import msgspec

from querator.cli.pauses import pause_groups, resume_groups
from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.output import note, write_json_lines, write_table
from querator.cli.shared.parameters import WholeNumber
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import age_text
from querator.client import Client, GroupStats

_SHOWN_DEFAULT = 100


class GroupView(msgspec.Struct, frozen=True):
    """A group, as `--output json` prints it."""

    group: str
    weight: int
    leased_max: int | None
    items: int
    ready: int
    leased: int
    leased_share: float
    oldest_ready_at: datetime | None
    paused: bool


@click.group()
def group() -> None:
    """Show, pause and resume the groups of a fair queue."""


group.add_command(pause_groups)
group.add_command(resume_groups)

_ORDERS = {
    "group": lambda one: one.path,
    "ready": lambda one: (-one.ready, one.path),
    "leased": lambda one: (-one.leased, one.path),
    "oldest": lambda one: (one.oldest_ready_at is None, one.oldest_ready_at or 0, one.path),
}


@group.command("list", short_help="Show groups with their items.")
@click.argument("queue")
@click.option(
    "--sort",
    type=click.Choice(tuple(_ORDERS)),
    default="group",
    show_default=True,
    help="By path; or most ready items, most leased items, or longest wait first.",
)
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=_SHOWN_DEFAULT,
    show_default=True,
    metavar="N",
    help="Most groups to show.",
)
@stale_option
@server_options
@output_option
def list_groups(
    queue: str, sort: str, limit: int, stale: bool, target: CommandTarget, as_json: bool
) -> None:
    """Show the groups of the fair queue QUEUE that have items: how many are ready and leased, how
    long the first ready one has waited, and the part of all leased items that the group has.

    The numbers include those of the groups below. The row `(all)` is that of the whole queue. With
    --output json each group is a line, and the whole queue has an empty path.

    \b
    Examples:
      querator group list mail
      querator group list mail --sort leased --limit 10
    """

    async def main(client: Client) -> list[GroupStats]:
        return [one async for one in client.list_groups(queue, stale=stale)]

    found = sorted(target.run(main), key=_ORDERS[sort])
    leased = next((one.leased for one in found if not one.path), 0)
    shown = found[:limit]
    if as_json:
        write_json_lines(_view(one, leased) for one in shown)
    elif not any(one.items for one in found):
        note("No group has items.")
    else:
        write_table(
            (
                Column("group", cut=True),
                "weight",
                "limit",
                Column("ready", keep=True),
                Column("leased", keep=True),
                "items",
                "oldest",
                "share",
            ),
            (
                (
                    one.path or "(all)",
                    one.weight,
                    "paused" if one.paused else one.leased_max,
                    one.ready,
                    one.leased,
                    one.items,
                    age_text(one.oldest_ready_at),
                    f"{one.leased / leased:.1%}" if one.leased and leased else "",
                )
                for one in shown
            ),
        )
    if len(found) > limit:
        note(f"{len(found) - limit:,} more groups; see --limit.")


def _view(one: GroupStats, leased: int) -> GroupView:
    return GroupView(
        group=one.path,
        weight=one.weight,
        leased_max=one.leased_max,
        items=one.items,
        ready=one.ready,
        leased=one.leased,
        leased_share=one.leased / leased if leased else 0.0,
        oldest_ready_at=one.oldest_ready_at,
        paused=one.paused,
    )
