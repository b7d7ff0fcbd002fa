"""`querator result`: what the consumers of items have returned."""

from datetime import timedelta

import click

from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.item_results import write_results
from querator.cli.shared.parameters import ITEM_ID, WAIT
from querator.client import Client, ItemId
from querator.client.replies import ItemResult


@click.command()
@click.argument("queue")
@click.argument("items", nargs=-1, required=True, type=ITEM_ID, metavar="ITEM...")
@click.option(
    "--wait", type=WAIT, default="0", help="How long to wait until all have ended; up to 15m."
)
@server_options
@output_option
def result(
    queue: str, items: tuple[ItemId, ...], wait: timedelta, target: CommandTarget, as_json: bool
) -> None:
    """Show the result of each ITEM that was produced with --keep-result or --wait.

    A result is what the consumer of the item has returned, for example with `querator complete
    --result`. The exit code is 1 when an item has none: it has died, or was removed, or has not
    ended, or its result is not kept any more.

    \b
    Examples:
      querator result mail 0-17
      querator result mail 0-17 0-18 --wait 30s
    """

    async def main(client: Client) -> list[ItemResult]:
        return await client.results(queue, items, timeout=wait)

    write_results(target.run(main), as_json=as_json)
