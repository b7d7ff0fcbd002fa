"""`querator txn`: batches that are staged for a queue and not yet visible."""

from datetime import datetime

import click
import msgspec

from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import count, note, write_json, write_table
from querator.cli.shared.parameters import WholeNumber
from querator.cli.shared.texts import age_text, size_text
from querator.client import Client
from querator.client.transactions import Aborted, StagedBatch, StagedBatches


class StagedView(msgspec.Struct, frozen=True):
    """A batch, as `--output json` prints it."""

    producer: str
    batch: int
    state: str
    stages: int
    items: int
    bytes: int
    begun_at: datetime
    changed_at: datetime


@click.group()
def txn() -> None:
    """Show the batches that are staged for a queue, and drop them."""


@txn.command("list", short_help="Show staged batches.")
@click.argument("queue")
@server_options
@output_option
def list_staged(queue: str, target: CommandTarget, as_json: bool) -> None:
    """Show the batches that are staged for QUEUE and not yet visible, the oldest first.

    A batch is `staged` until its producer commits it, and expires a day after its last request. A
    batch that is `preparing` is being committed and does not expire. A batch that is `committed` is
    being published. With --output json each batch is a line.

    \b
    Example:
      querator txn list flights
    """

    async def main(client: Client) -> StagedBatches:
        return await client.staged_batches(queue)

    found = target.run(main)
    if as_json:
        for one in found.batches:
            write_json(_view(one))
    elif not found.batches:
        note("Nothing is staged.")
    else:
        write_table(
            ("producer", "batch", "state", "stages", "items", "size", "age"),
            (
                (
                    one.producer,
                    one.batch,
                    one.state.name.lower(),
                    one.stages,
                    one.items,
                    size_text(one.bytes),
                    age_text(one.begun_at),
                )
                for one in found.batches
            ),
        )
    if found.more:
        note(f"The oldest {len(found.batches):,}; there are more.")


@txn.command(short_help="Drop the stages of a batch.")
@click.argument("queue")
@click.argument("producer")
@click.argument("batch", type=WholeNumber(min=0))
@server_options
@output_option
def abort(queue: str, producer: str, batch: int, target: CommandTarget, as_json: bool) -> None:
    """Drop the staged items of batch number BATCH of PRODUCER in QUEUE (see `txn list`).

    A committed batch is not changed: the command is refused. A pipeline that still works on the
    batch gets an error when it commits, and stages the batch again.

    \b
    Example:
      querator txn abort flights 3f2c8a5e-archive 17
    """

    async def main(client: Client) -> Aborted:
        return await client.abort_batch(queue, producer, batch)

    done = target.run(main)
    if as_json:
        write_json(done)
    elif not done.committed:
        click.echo(f"Batch {batch} of {producer} is dropped: {count(done.stages, 'stage')}.")
    if done.committed:
        raise Failure(f"batch {batch} of {producer} is committed", ExitCode.REFUSED)


def _view(one: StagedBatch) -> StagedView:
    return StagedView(
        producer=one.producer,
        batch=one.batch,
        state=one.state.name.lower(),
        stages=one.stages,
        items=one.items,
        bytes=one.bytes,
        begun_at=one.begun_at,
        changed_at=one.changed_at,
    )
