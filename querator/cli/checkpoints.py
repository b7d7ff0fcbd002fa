"""`querator checkpoint`: saves a checkpoint with a leased item."""

from datetime import timedelta
from typing import BinaryIO

import click

from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.output import write_json
from querator.cli.shared.parameters import ITEM_ID, LEASE_TIMEOUT, format_duration
from querator.cli.shared.views import ExtendView, milliseconds
from querator.client import Client, ItemId
from querator.client.checks import check_checkpoint
from querator.client.values import ExtendOutcome
from querator.model import limits


@click.command()
@click.argument("queue")
@click.argument("lease_id")
@click.argument("item", type=ITEM_ID)
@click.argument("data", required=False)
@click.option("--file", type=click.File("rb"), help="Read the data from this file; -: stdin.")
@click.option("--clear", is_flag=True, help="The item has no checkpoint from now on.")
@click.option(
    "--lease-timeout", type=LEASE_TIMEOUT, help="New timeout, from now; default: the queue's."
)
@server_options
@output_option
def checkpoint(
    queue: str,
    lease_id: str,
    item: ItemId,
    data: str | None,
    file: BinaryIO | None,
    clear: bool,
    lease_timeout: timedelta | None,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Save DATA with ITEM, which LEASE_ID holds, and extend the lease. The next lease of the item
    shows it.

    A checkpoint has at most 64 KiB, and takes the place of the one before. `querator lease --output
    json` shows it.

    \b
    Examples:
      querator checkpoint films 1.0.2a 0-17 'frame 4211'
      querator checkpoint films 1.0.2a 0-17 --file progress.json
    """
    if (data is not None) + (file is not None) + clear != 1:
        raise click.UsageError("Give one of DATA, --file and --clear.")
    saved = b"" if clear else (data or "").encode("utf-8", "surrogateescape")
    if file is not None:
        saved = file.read(limits.CHECKPOINT_BYTES_MAX + 1)
    if not saved and not clear:
        raise click.UsageError("The data is empty. Remove a checkpoint with --clear.")
    try:
        check_checkpoint("data", saved)
    except ValueError:
        raise click.UsageError(
            f"The data is longer than {limits.CHECKPOINT_BYTES_MAX:,} bytes."
        ) from None

    async def main(client: Client) -> ExtendOutcome:
        return await client.save_checkpoint(
            queue, lease_id, item, saved, lease_timeout=lease_timeout
        )

    outcome = target.run(main)
    if as_json:
        write_json(ExtendView(outcome.lease_id, outcome.deadline, milliseconds(outcome.remaining)))
        return
    words = "Checkpoint removed." if clear else f"{len(saved):,} bytes saved."
    left = timedelta(seconds=round(outcome.remaining.total_seconds()))
    click.echo(f"{words} The lease ends in {format_duration(left)}.")
