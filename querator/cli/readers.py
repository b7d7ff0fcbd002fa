"""`querator reader`: readers of queues, and their named batches."""

from typing import Any

import click

from querator.cli.shared.confirmation import confirm, yes_option
from querator.cli.shared.connection import (
    CommandTarget,
    output_option,
    server_options,
    stale_option,
)
from querator.cli.shared.output import count, note, write_json, write_table
from querator.cli.shared.parameters import WholeNumber
from querator.cli.shared.texts import age_text
from querator.client import Client
from querator.client.readers import Reader, Released


@click.group()
def reader() -> None:
    """Show readers (of Spark, for example), and take items back from them."""


@reader.command("list", short_help="Show readers and their open batches.")
@click.argument("queue")
@click.option("--partitions", is_flag=True, help="Also by partition (always in JSON).")
@stale_option
@server_options
@output_option
def list_readers(
    queue: str, partitions: bool, stale: bool, target: CommandTarget, as_json: bool
) -> None:
    """Show the readers of QUEUE, how many items wait for them, and their unacknowledged batches.

    A batch that is open for long, or was replayed often, belongs to a reader that has stopped or
    fails repeatedly; its items wait for that reader. With --output json each reader is a line.

    \b
    Examples:
      querator reader list orders
      querator reader list orders --partitions
    """

    async def main(client: Client) -> tuple[Reader, ...]:
        return await client.readers.list(queue, stale=stale)

    found = target.run(main)
    if as_json:
        for one in found:
            write_json(_view(one))
        return
    if not found:
        note("No readers.")
        return
    rows: list[list[object]] = []
    for one in found:
        rows.append(_row(one.reader_id, one))
        for part in one.partitions if partitions else ():
            alone = Reader(one.reader_id, part.epoch, one.opened_at, None, (part,))
            rows.append(_row(f"  partition {part.partition}", alone))
    columns = (
        "reader",
        "run",
        "begun",
        "advanced",
        "waiting",
        "batches",
        "items",
        "open",
        "replays",
    )
    write_table(columns, rows)


def _row(name: str, one: Reader) -> list[object]:
    batches = [part.batch for part in one.partitions if part.batch is not None]
    return [
        name,
        one.epoch,
        age_text(one.opened_at),
        age_text(one.advanced_at),
        sum(part.ready for part in one.partitions),
        len(batches),
        sum(batch.count for batch in batches),
        age_text(min((batch.opened_at for batch in batches), default=None)),
        max((batch.replays for batch in batches), default=""),
    ]


def _view(one: Reader) -> dict[str, Any]:
    return {
        "reader": one.reader_id,
        "epoch": one.epoch,
        "opened_at": one.opened_at,
        "advanced_at": one.advanced_at,
        "partitions": [
            {
                "partition": part.partition,
                "epoch": part.epoch,
                "acked_seq": part.acked_seq,
                "ready": part.ready,
                "open_batch": part.batch,
            }
            for part in one.partitions
        ],
    }


@reader.command(short_help="Give the items of open batches back to the queue.")
@click.argument("queue")
@click.argument("reader_id", metavar="READER")
@click.option("--partition", type=WholeNumber(min=0), help="Only the batch of this partition.")
@click.option("--remove", is_flag=True, help="Forget the reader and its acknowledgements.")
@click.option(
    "--dead-letters", is_flag=True, help="Make the items dead letters; the reader continues."
)
@yes_option
@server_options
@output_option
def release(
    queue: str,
    reader_id: str,
    partition: int | None,
    remove: bool,
    dead_letters: bool,
    yes: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Give the items in open batches of READER back to QUEUE, with their attempt counted.

    Other clients can then lease them. If the reader has already processed them (its sink has the
    rows, and only the acknowledgement is missing), they are processed twice. The next run of the
    reader fails with BATCH_RELEASED, unless it is configured to skip released batches.

    With --dead-letters the items go to the dead queue of QUEUE, and the reader may continue after
    them. If QUEUE has no dead queue, the items are dropped and counted. The command asks for
    confirmation.

    \b
    Examples:
      querator reader release orders lake
      querator reader release orders lake --remove --yes
      querator reader release orders lake --partition 3 --dead-letters
    """
    if remove and partition is not None:
        raise click.UsageError("A reader is removed from all partitions: leave out --partition.")

    which = "open batches" if partition is None else f"the open batch of partition {partition}"
    becomes = "made dead letters" if dead_letters else f"given back to {queue}"
    forgotten = ", and the reader forgotten with its acknowledgements" if remove else ""
    confirm(f"Shall the items in {which} of reader {reader_id} be {becomes}{forgotten}?", yes=yes)

    async def main(client: Client) -> Released:
        return await client.readers.release(
            queue, reader_id, partition=partition, remove=remove, dead_letters=dead_letters
        )

    released = target.run(main)
    if as_json:
        write_json({"batches": released.batches, "items": released.items, "removed": remove})
        return
    batches = "1 open batch" if released.batches == 1 else f"{released.batches:,} open batches"
    what = "made dead letters" if dead_letters else f"given back to {queue}"
    click.echo(f"{count(released.items, 'item')} of {batches} {what}.")
    if remove:
        click.echo(f"Reader {reader_id} is forgotten.")
