"""`querator lease`, `complete`, `retry`, `extend`: leases by hand, one call each."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import BinaryIO

import click

from querator.cli.breakers import nothing_ready
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import count, note, write_json, write_table
from querator.cli.shared.parameters import (
    ATTRIBUTE,
    DELAY,
    INSTANT,
    ITEM_ID,
    LEASE_TIMEOUT,
    PRIORITY,
    WAIT,
    WholeNumber,
    format_duration,
)
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import instant_text
from querator.cli.shared.views import ExtendView, SettleView, leased_view, milliseconds, preview
from querator.client import Client, ItemId, LeasedItem
from querator.client.checks import check_attributes
from querator.client.values import ExtendOutcome, LeaseRef, SettleOutcome
from querator.model import limits
from querator.model.ids import parse_lease_id


@click.command()
@click.argument("queue")
@click.option(
    "--max-items",
    type=WholeNumber(1, limits.REQUEST_ITEMS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Most items to lease.",
)
@click.option(
    "--wait", type=WAIT, default="0", help="How long to wait for the first item; up to 15m."
)
@click.option(
    "--lease-timeout", type=LEASE_TIMEOUT, help="1s to 24h; default: the item's or the queue's."
)
@click.option("--client-id", help="Client id of the leases; default: a random one.")
@click.option(
    "--max-bytes",
    type=WholeNumber(min=1),
    metavar="N",
    help="Most bytes of the items; default: 3 MiB.",
)
@click.option(
    "--id",
    "item_ids",
    type=ITEM_ID,
    multiple=True,
    help="Only the item with this id, if it is ready; may be repeated.",
)
@click.option("--kind", "kinds", multiple=True, help="Only items of this kind; may be repeated.")
@click.option(
    "--attribute",
    "attributes",
    type=ATTRIBUTE,
    multiple=True,
    help="Only items with this attribute; may be repeated, and then items need all.",
)
@click.option(
    "--complete-on-delivery",
    is_flag=True,
    help="The items are completed before they are shown: each is delivered at most once.",
)
@server_options
@output_option
def lease(
    queue: str,
    max_items: int,
    wait: timedelta,
    lease_timeout: timedelta | None,
    client_id: str | None,
    max_bytes: int | None,
    item_ids: tuple[ItemId, ...],
    kinds: tuple[str, ...],
    attributes: tuple[tuple[str, str], ...],
    complete_on_delivery: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Lease items of QUEUE and show them with their lease ids.

    The items are yours until the deadline. End the lease with `querator complete` or `querator
    retry`. With --output json each item is a line; nothing is printed when no item is ready.

    --id, --kind and --attribute lease items out of turn, in plain queues. By kind and attribute,
    the command finds what is among the first 1,000 ready items of each partition. It does not wait.

    \b
    Examples:
      querator lease mail
      querator lease mail --max-items 10 --wait 30s --lease-timeout 5m
      querator lease mail --id 0-17
      querator lease mail --kind invoice --attribute customer=7
    """
    by_filter = bool(kinds or attributes)
    if item_ids and by_filter:
        raise click.UsageError("Give --id, or --kind and --attribute, not both.")
    chosen = bool(item_ids) or by_filter
    if chosen and wait:
        raise click.UsageError("--wait is not for chosen items: leave it out.")
    max_items = max(max_items, len(item_ids))

    async def main(client: Client) -> tuple[list[LeasedItem], str]:
        items = await client.lease(
            queue,
            max_items=max_items,
            wait=wait,
            lease_timeout=lease_timeout,
            max_bytes=max_bytes or 0,
            item_ids=item_ids or None,
            kinds=kinds or None,
            attributes=dict(attributes) or None,
            complete_on_delivery=complete_on_delivery,
        )
        if items or as_json:
            return items, ""
        return items, "No such item is ready." if chosen else await nothing_ready(client, queue)

    items, why = target.run(main, client_id=client_id)
    if as_json:
        for item in items:
            write_json(leased_view(item))
    elif items:
        write_table(
            (
                "item",
                "lease",
                "attempt",
                "ends in",
                "kind",
                "reference",
                Column("payload", cut=True),
            ),
            (
                (
                    str(item.id),
                    item.lease_id,
                    item.attempt,
                    format_duration(timedelta(seconds=round(item.remaining.total_seconds()))),
                    item.kind,
                    item.reference,
                    preview(item.payload),
                )
                for item in items
            ),
        )
    else:
        note(why)


@click.command()
@click.argument("queue")
@click.argument("lease_id")
@click.argument("items", nargs=-1, type=ITEM_ID, metavar="[ITEM]...")
@click.option(
    "--result", metavar="TEXT", help="The result of ITEM, for a producer that waits; up to 1 MiB."
)
@click.option("--result-file", type=click.File("rb"), help="Read the result from this file.")
@server_options
@output_option
def complete(
    queue: str,
    lease_id: str,
    items: tuple[ItemId, ...],
    result: str | None,
    result_file: BinaryIO | None,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """End LEASE_ID: the work is done, and its items are removed.

    Each ITEM is an id like 0-17; without ITEM, all items of the lease. To repeat the command is
    harmless: the first result stays.

    \b
    Examples:
      querator complete mail 1.0.2a
      querator complete mail 1.0.2a 0-17 --result 'sent'
    """
    lease_ref = LeaseRef(lease_id, items)
    returned = _result(result, result_file)
    if returned is not None and len(items) != 1:
        raise click.UsageError("A result is for one ITEM: name it.")

    async def main(client: Client) -> Sequence[SettleOutcome]:
        return await client.complete(queue, lease_ref, check=False, result=returned)

    _write_settled(target.run(main), "completed", as_json=as_json)


def _result(text: str | None, file: BinaryIO | None) -> bytes | None:
    """Raises UsageError for two results, and for one that is too long."""
    if text is not None and file is not None:
        raise click.UsageError("Give --result or --result-file, not both.")
    if text is None and file is None:
        return None
    data = (text or "").encode("utf-8", "surrogateescape")
    if file is not None:
        data = file.read(limits.RESULT_BYTES_MAX + 1)
    if len(data) > limits.RESULT_BYTES_MAX:
        raise click.UsageError(f"The result is longer than {limits.RESULT_BYTES_MAX:,} bytes.")
    return data


@click.command()
@click.argument("queue")
@click.argument("lease_id")
@click.argument("items", nargs=-1, type=ITEM_ID, metavar="[ITEM]...")
@click.option("--delay", type=DELAY, help="Not leased again before this time has passed.")
@click.option(
    "--at",
    "retry_at",
    type=INSTANT,
    help="Not leased again before this instant (UTC, unless it has an offset).",
)
@click.option("--error", default="", help="Text of the error; kept with the item.")
@click.option("--dead", is_flag=True, help="Make dead letters of the items.")
@click.option(
    "--release",
    is_flag=True,
    help="Give the items back to their place; the attempt does not count.",
)
@click.option("--priority", type=PRIORITY, metavar="N", help="Another priority for the items.")
@click.option(
    "--attribute",
    "attributes",
    type=ATTRIBUTE,
    multiple=True,
    help="An attribute for the items, in place of all that they have; may be repeated.",
)
@click.option("--no-attributes", is_flag=True, help="Remove all attributes of the items.")
@click.option("--clear-checkpoint", is_flag=True, help="Remove the checkpoints of the items.")
@server_options
@output_option
def retry(
    queue: str,
    lease_id: str,
    items: tuple[ItemId, ...],
    delay: timedelta | None,
    retry_at: datetime | None,
    error: str,
    dead: bool,
    release: bool,
    priority: int | None,
    attributes: tuple[tuple[str, str], ...],
    no_attributes: bool,
    clear_checkpoint: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """End LEASE_ID: the work is not done, and its items can be leased again, at once or later.

    Each ITEM is an id like 0-17; without ITEM, all items of the lease. To repeat the command is
    harmless.

    \b
    Examples:
      querator retry mail 1.0.2a --delay 5m --error 'mailbox busy'
      querator retry mail 1.0.2a 0-17 --dead --error 'no such mailbox'
      querator retry mail 1.0.2a --attribute relay=backup
    """
    if (delay is not None) + (retry_at is not None) + dead + release > 1:
        raise click.UsageError("Give one of --delay, --at, --dead and --release.")
    if attributes and no_attributes:
        raise click.UsageError("Give --attribute or --no-attributes.")
    try:
        check_attributes("--attribute", dict(attributes))
    except ValueError as wrong:
        raise click.UsageError(f"{wrong}.") from None
    lease_ref = LeaseRef(lease_id, items)

    async def main(client: Client) -> Sequence[SettleOutcome]:
        return await client.retry(
            queue,
            lease_ref,
            delay=delay,
            retry_at=retry_at,
            dead=dead,
            error=error,
            count_attempt=not release,
            priority=priority,
            attributes=dict(attributes) if attributes or no_attributes else None,
            check=False,
            clear_checkpoint=clear_checkpoint,
        )

    verb = "made dead letters" if dead else "released" if release else "retried"
    _write_settled(target.run(main), verb, as_json=as_json)


@click.command()
@click.argument("queue")
@click.argument("lease_ids", nargs=-1, metavar="[LEASE_ID]...")
@click.option("--client-id", help="Extend all leases of this client, instead of LEASE_ID.")
@click.option(
    "--lease-timeout", type=LEASE_TIMEOUT, help="New timeout, from now; default: the queue's."
)
@server_options
@output_option
def extend(
    queue: str,
    lease_ids: tuple[str, ...],
    client_id: str | None,
    lease_timeout: timedelta | None,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Extend each LEASE_ID, or all leases of a client. A deadline never moves to an earlier
    instant.

    \b
    Examples:
      querator extend mail 1.0.2a --lease-timeout 10m
      querator extend mail --client-id worker-7
    """
    if bool(lease_ids) == bool(client_id):
        raise click.UsageError("Name leases, or all those of one client with --client-id.")

    async def main(client: Client) -> Sequence[ExtendOutcome]:
        return await client.extend(
            queue, *lease_ids, lease_timeout=lease_timeout, client_id=client_id or ""
        )

    outcomes = target.run(main)
    if not outcomes:
        note(f"{client_id} has no lease in {queue}.")
        return
    if as_json:
        for outcome in outcomes:
            write_json(
                ExtendView(outcome.lease_id, outcome.deadline, milliseconds(outcome.remaining))
            )
        return
    write_table(
        ("lease", "ends in", "deadline"),
        (
            (
                outcome.lease_id,
                format_duration(outcome.remaining),
                instant_text(outcome.deadline),
            )
            for outcome in outcomes
        ),
    )


def _write_settled(outcomes: Sequence[SettleOutcome], verb: str, *, as_json: bool) -> None:
    """Prints outcomes. The exit code is 3 if the lease had lost an item, or is unknown."""
    lost = 0
    for outcome in outcomes:
        if not (outcome.done or outcome.repeated or outcome.lost):
            raise Failure(
                f"The lease {outcome.lease_id} has ended or never existed (LEASE_LOST).",
                ExitCode.REFUSED,
            )
        lost += len(outcome.lost)
        if as_json:
            write_json(_settle_view(outcome))
            continue
        words = f"{count(len(outcome.done), 'item')} {verb}"
        if outcome.repeated:
            words += f", {len(outcome.repeated):,} had been {verb} before"
        if outcome.done or outcome.repeated:
            click.echo(f"{words}.")
    if lost:
        raise Failure(
            f"The lease no longer holds {count(lost, 'item')} (LEASE_LOST). Another consumer may "
            "have the work.",
            ExitCode.REFUSED,
        )


def _settle_view(outcome: SettleOutcome) -> SettleView:
    _, partition, _ = parse_lease_id(outcome.lease_id, field="lease_id")
    done, repeated, lost = (
        [str(ItemId(partition, seq)) for seq in seqs]
        for seqs in (outcome.done, outcome.repeated, outcome.lost)
    )
    return SettleView(outcome.lease_id, done, repeated, lost)
