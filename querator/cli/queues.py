"""`querator queue`: create, list, info, update, purge, delete, give-up. Others are in
`breakers`, `explain`, `export` and `pauses`.

Longer than 500 lines: each setting is an option, and a line of `queue info`, once.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from querator.cli.breakers import (
    BREAKER_COLUMNS,
    breaker,
    breaker_details,
    breaker_options,
    breaker_rows,
    breaker_settings,
    changes_breaker,
    without_breaker,
)
from querator.cli.explain import explain
from querator.cli.export import export
from querator.cli.group_settings import flow_details, flow_options, flow_settings
from querator.cli.limits import (
    LIMIT_COLUMNS,
    changes_rate,
    check_rate,
    limit_details,
    limit_options,
    limit_rows,
    rate_settings,
    without_rate,
)
from querator.cli.pauses import pause_details, pause_queue, pause_text, resume_queue
from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.output import count, note, write_details, write_json, write_table
from querator.cli.shared.parameters import (
    EXPIRE_TIMEOUT,
    LEASE_TIMEOUT,
    DurationType,
    WholeNumber,
    format_duration,
)
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import instant_text
from querator.cli.shared.views import queue_view
from querator.client import Client, GivenUp, PartitionStats, Purged, QueueInfo
from querator.client.options import IfExists
from querator.client.values import BACKOFFS, DEDUP_UNTIL, IF_EXISTS, KINDS
from querator.model import limits
from querator.model.queues import REPLICAS_ALLOWED


@click.group()
def queue() -> None:
    """Create, show, explain, export, change, empty and delete queues."""


queue.add_command(pause_queue)
queue.add_command(resume_queue)
queue.add_command(breaker)
queue.add_command(explain)
queue.add_command(export)

_RETRY_DELAY = DurationType(most_ms=limits.RETRY_DELAY_MS_MAX)
_RETRY_DELAY_MAX = DurationType(least_ms=limits.SCHEDULE_NOW_MS, most_ms=limits.RETRY_DELAY_MS_MAX)
_EVENTS_RETENTION = DurationType(most_ms=limits.EVENTS_RETENTION_MS_MAX)
_PRIORITY_AGING = DurationType(most_ms=limits.PRIORITY_AGING_MS_MAX)


def _settings_options(command: Any) -> Any:
    """The settings that can be given at creation and changed later; None means not given."""
    for option in (
        click.option(
            "--partitions",
            type=WholeNumber(1, limits.PARTITIONS_MAX),
            metavar="N",
            help="Number of partitions; default at creation: 1.",
        ),
        click.option("--description", help="Free text."),
        click.option(
            "--replicas",
            type=click.Choice([str(number) for number in REPLICAS_ALLOWED]),
            callback=lambda _context, _parameter, value: value and int(value),
            metavar="N",
            help="Replicas of each partition, on different nodes: 1, 3 or 5; 0: three, or one on "
            "each node while there are fewer nodes.",
        ),
        click.option(
            "--partition-items-max",
            type=WholeNumber(min=0),
            metavar="N",
            help="Most items that one partition holds; 0: no limit.",
        ),
        click.option(
            "--events-retention",
            type=_EVENTS_RETENTION,
            help="How long events are kept for `querator events`, 1m to 30d; 0: none are recorded.",
        ),
        click.option(
            "--dedup-window",
            type=DurationType(most_ms=limits.DEDUP_WINDOW_MS_MAX),
            help="How long dedup keys and outcomes of producers are remembered; up to 7d.",
        ),
        click.option(
            "--dedup-until",
            type=click.Choice(DEDUP_UNTIL),
            help="How long a dedup key counts: in the dedup window (window; the default at "
            "creation), or until its item completes, dies or is removed (done).",
        ),
        click.option(
            "--dead-queue",
            metavar="NAME",
            help="Queue that takes dead letters; default at creation: dead. '' for none: they are "
            "dropped and counted.",
        ),
        click.option(
            "--retry-jitter/--no-retry-jitter",
            default=None,
            help="Whether each wait after a failed attempt is a random part of it; default at "
            "creation: it is.",
        ),
        click.option(
            "--retry-backoff",
            type=click.Choice(BACKOFFS),
            help="How the wait after a failed attempt grows; default at creation: exponential.",
        ),
        click.option(
            "--retry-delay-max",
            type=_RETRY_DELAY_MAX,
            help="The longest wait after a failed attempt, up to 30d; default at creation: 1h.",
        ),
        click.option(
            "--retry-delay",
            type=_RETRY_DELAY,
            help="How long an item waits after its first failed attempt, up to 30d; 0: not at all.",
        ),
        click.option(
            "--priority-aging",
            type=_PRIORITY_AGING,
            help="In this time a waiting item gains one step of priority, 1s to 30d; 0: it gains "
            "none.",
        ),
        click.option(
            "--max-attempts",
            type=WholeNumber(0, limits.ATTEMPTS_MAX),
            metavar="N",
            help="How many times an item is leased before it dies; default at creation: "
            f"{limits.ATTEMPTS_DEFAULT}; 0: no limit.",
        ),
        click.option(
            "--expire-timeout",
            type=EXPIRE_TIMEOUT,
            help="Items that are not leased in this time expire; 0: never.",
        ),
        click.option(
            "--lease-timeout", type=LEASE_TIMEOUT, help="How long a lease lasts; 1s to 24h."
        ),
    ):
        command = option(command)
    return command


def _given(settings: dict[str, Any], there: QueueInfo | None = None) -> dict[str, Any]:
    """The settings that are given. `there`: those in force."""
    groups, known = ((), None) if there is None else (there.groups, there.breaker)
    removable = breaker_settings(settings, known) | rate_settings(settings, there)
    settings = flow_settings(without_rate(without_breaker(settings)), groups)
    given = {name: value for name, value in settings.items() if value is not None} | removable
    for name in ("group_rate_limit", "key_rate_limit"):
        if given.get(name) == 0:
            given[name] = None
    return given


@queue.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="plain (default): by priority and age. fair: groups of items share the leases. keyed: "
    "items of one key one after the other. executions: durable functions, and no items. It cannot "
    "be changed later.",
)
@_settings_options
@flow_options
@breaker_options
@limit_options
@click.option(
    "--if-exists",
    type=click.Choice(IF_EXISTS),
    default="compare",
    show_default=True,
    help="A queue that exists: compare it with the given settings, or keep it as it is.",
)
@server_options
@output_option
def create(
    name: str, if_exists: IfExists, target: CommandTarget, as_json: bool, **settings: Any
) -> None:
    """Create the queue NAME. If it exists, nothing is changed.

    The command is refused if the existing queue has another value for a setting that is given. With
    --if-exists keep it is not: a script runs also after `queue update`.

    Items that die move to the queue `dead`, which is created with the first queue that names no
    other one.

    \b
    Examples:
      querator queue create mail
      querator queue create mail-dead --max-attempts 0
      querator queue create mail --partitions 4 --dead-queue mail-dead
      querator queue create jobs --kind fair --group-weight eu=3 --group-max 50
      querator queue create mail --max-attempts 5 --if-exists keep
    """

    check_rate(settings)

    async def main(client: Client) -> QueueInfo:
        return await client.create_queue(name, if_exists=if_exists, **_given(settings))

    info = target.run(main)
    if as_json:
        write_json(queue_view(info))
        return
    click.echo(f"Created queue {info.name}." if info.created else f"Queue {info.name} was there.")
    write_details(
        (name, value) for name, value in _details(info) if name not in _NOT_AT_CREATION and value
    )


_NOT_AT_CREATION = {"queue", "state", "settings version", "created"}


@queue.command("list")
@server_options
@output_option
def list_queues(target: CommandTarget, as_json: bool) -> None:
    """List the queues of a namespace."""

    async def main(client: Client) -> list[QueueInfo]:
        return [info async for info in client.list_queues()]

    queues = target.run(main)
    if as_json:
        write_json([queue_view(info) for info in queues])
    elif not queues:
        click.echo("No queues. Create one with: querator queue create NAME", err=True)
    else:
        write_table(
            (
                "queue",
                "state",
                "partitions",
                "lease",
                "attempts",
                "dead queue",
                Column("description", cut=True),
            ),
            (
                (
                    info.name,
                    pause_text(info) or info.state.lower(),
                    _partitions(info),
                    format_duration(info.lease_timeout),
                    info.max_attempts or "no limit",
                    info.dead_queue,
                    info.description,
                )
                for info in queues
            ),
        )


@queue.command()
@click.argument("name")
@server_options
@output_option
def info(name: str, target: CommandTarget, as_json: bool) -> None:
    """Show the settings of the queue NAME."""

    async def main(client: Client) -> tuple[QueueInfo, Sequence[PartitionStats]]:
        info = await client.get_queue(name)
        limited = info.rate_limit is not None or info.lease_limit
        if as_json or not (limited or info.breaker is not None):
            return info, ()
        return info, (await client.stats(name)).partitions

    found, partitions = target.run(main)
    _write_queue(found, as_json=as_json)
    for columns, rows in (
        (BREAKER_COLUMNS, breaker_rows(partitions)),
        (LIMIT_COLUMNS, limit_rows(partitions)),
    ):
        if rows:
            write_table(columns, rows)


def _write_queue(info: QueueInfo, *, as_json: bool) -> None:
    if as_json:
        write_json(queue_view(info))
        return
    write_details(_details(info))


def _events_retention(info: QueueInfo) -> tuple[tuple[str, object], ...]:
    if info.events_retention is None:
        return ()
    return (("events", f"kept for {format_duration(info.events_retention)}"),)


def _details(info: QueueInfo) -> tuple[tuple[str, object], ...]:
    """The settings in the units of the options, and what they mean where it is not plain."""
    return (
        ("queue", info.name),
        ("namespace", info.namespace),
        ("state", info.state.lower()),
        *pause_details(info),
        ("partitions", _partitions(info)),
        ("lease timeout", format_duration(info.lease_timeout)),
        ("expire timeout", _or_never(info.expire_timeout)),
        ("max attempts", info.max_attempts or "no limit"),
        ("retry delay", _retry_delay(info)),
        ("priority aging", _priority_aging(info)),
        *flow_details(info),
        *breaker_details(info),
        *limit_details(info),
        *_events_retention(info),
        ("dead queue", info.dead_queue or "none: dead letters are dropped and counted"),
        ("dedup window", format_duration(info.dedup_window)),
        ("dedup keys", _dedup_keys(info)),
        ("items per partition", info.partition_items_max or "no limit"),
        ("replicas", info.replicas or "three, or as many as there are nodes"),
        ("description", info.description),
        ("settings version", info.settings_version),
        ("created", instant_text(info.created_at)),
    )


def _retry_delay(info: QueueInfo) -> str:
    if not info.retry_delay:
        return "none: failed items return at once"
    delay = format_duration(info.retry_delay)
    most = format_duration(max(info.retry_delay, info.retry_delay_max))
    grows = {
        "fixed": delay,
        "linear": f"{delay} more after each attempt, up to {most}",
        "exponential": f"{delay}, twice as long after each attempt, up to {most}",
    }[info.retry_backoff]
    return f"{grows}, of which a random part" if info.retry_jitter else grows


def _dedup_keys(info: QueueInfo) -> str:
    if info.dedup_until == "done":
        return "count until their item is done"
    return "count in the dedup window"


def _priority_aging(info: QueueInfo) -> str:
    if not info.priority_aging:
        return "none: urgent items always come first"
    return f"a waiting item gains one step every {format_duration(info.priority_aging)}"


def _or_never(duration: timedelta | None) -> str:
    return format_duration(duration) if duration else "never"


def _partitions(info: QueueInfo) -> str:
    """The number of partitions, and how many are opening or closing: 6 (6 closing)."""
    opening, closing = info.partitions_opening, info.partitions_closing
    on_their_way = [f"{opening} opening"] if opening else []
    on_their_way += [f"{closing} closing"] if closing else []
    return f"{info.partitions}" + (f" ({', '.join(on_their_way)})" if on_their_way else "")


@queue.command()
@click.argument("name")
@_settings_options
@flow_options
@breaker_options
@limit_options
@click.option(
    "--expected-version",
    type=WholeNumber(min=0),
    default=0,
    metavar="N",
    help="Refuse unless this is the current settings version (see `queue info`).",
)
@server_options
@output_option
def update(
    name: str, expected_version: int, target: CommandTarget, as_json: bool, **settings: Any
) -> None:
    """Change settings of the queue NAME. Settings that are not given stay.

    The queue can be used meanwhile. With more partitions, the new ones take items at once. With
    fewer, the partitions beyond the number take no more items. They are leased from until they are
    empty, and are then deleted: `queue info` shows how many are closing.

    \b
    Examples:
      querator queue update mail --max-attempts 10
      querator queue update mail --lease-timeout 2m --expire-timeout 7d
      querator queue update mail --partitions 12
      querator queue update jobs --group-weight eu=5 --group-max eu.de=20
      querator queue update mail --rate-limit 100/s --lease-limit 20
    """
    if not _given(settings):
        raise click.UsageError(
            "Name at least one setting to change, for example --max-attempts 10."
        )

    async def main(client: Client) -> QueueInfo:
        version, changes = expected_version, _given(settings)
        if "groups" in changes or changes_breaker(settings) or changes_rate(settings):
            # The call replaces the settings of all groups, those of the breaker, and the rate.
            there = await client.get_queue(name)
            version = version or there.settings_version
            changes = _given(settings, there)
        return await client.update_queue(name, expected_version=version, **changes)

    _write_queue(target.run(main), as_json=as_json)


@queue.command(short_help="Empty a queue.")
@click.argument("name")
@click.option("--keep-scheduled", is_flag=True, help="Leave scheduled items.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@yes_option
@server_options
@output_option
def purge(
    name: str,
    keep_scheduled: bool,
    dry_run: bool,
    yes: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Remove the items of the queue NAME that wait: ready, held and scheduled ones. The queue and
    its settings stay.

    The command asks for confirmation. Items that are produced later stay. So do leased items, items
    in batches of readers, and items on their way to another queue: the command shows how many. To
    remove the leased ones, stop the consumers, wait for the lease timeout, and purge again.

    Removed items are counted as cancelled. They are no dead letters, and cannot be restored. To
    empty only the dead letters of one queue, use `querator dead drop QUEUE --all`.

    \b
    Examples:
      querator queue purge mail --dry-run
      querator queue purge mail --keep-scheduled --yes
    """

    def purged(*, dry_run: bool) -> Purged:
        return target.run(
            lambda client: client.purge(name, keep_scheduled=keep_scheduled, dry_run=dry_run)
        )

    if not dry_run:
        check_can_ask(yes=yes)
    done = purged(dry_run=not yes or dry_run)
    if not yes and not dry_run and done.removed:
        confirm(f"Remove {count(done.removed, 'item')} of {name} for ever?", yes=yes)
        done = purged(dry_run=False)
    if as_json:
        write_json({**msgspec.structs.asdict(done), "dry_run": dry_run})
        return
    would = "would be removed from" if dry_run else "removed from"
    click.echo(f"{count(done.removed, 'item')} {would} {name}.")
    stays = [
        f"{number:,} {what}"
        for number, what in (
            (done.leased, "leased"),
            (done.reserved, "in batches of readers"),
            (done.moving, "on the way to another queue"),
            (done.scheduled, "scheduled"),
        )
        if number
    ]
    if stays:
        note(f"Not touched: {', '.join(stays)}.")


@queue.command()
@click.argument("name")
@yes_option
@server_options
@output_option
def delete(name: str, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Delete the queue NAME with all its items."""

    async def ask(client: Client) -> int:
        total = (await client.stats(name)).total
        return total.ready + total.leased + total.scheduled + total.moving + total.reserved

    async def main(client: Client) -> None:
        await client.delete_queue(name)

    check_can_ask(yes=yes)
    if not yes:
        confirm(f"Delete queue {name} with {count(target.run(ask), 'item')}?", yes=yes)
    target.run(main)
    if as_json:
        write_json({"deleted": name})
    else:
        click.echo(f"Deleted queue {name}.")


@queue.command("give-up", short_help="Give up items that are damaged on all replicas.")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@server_options
@output_option
def give_up(name: str, dry_run: bool, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Give up the items of the queue NAME whose payload is damaged on all replicas.

    The command asks all replicas, shows the damaged blocks, and asks for confirmation. Items that
    are given up are dropped and counted; they cannot be restored. A block is kept if a replica that
    does not answer may have it undamaged. Items that are leased or in a reader's batch are kept as
    well.

    \b
    Examples:
      querator queue give-up mail --dry-run
      querator queue give-up mail --yes
    """

    if not dry_run:
        check_can_ask(yes=yes)
    found = target.run(lambda client: client.give_up_damaged(name, dry_run=True))
    if not as_json:
        _write_damage(name, found)
    items = sum(one.items - one.kept for one in found.blocks if one.lost)
    if items and not dry_run:
        confirm(f"Give up {count(items, 'item')} of {name}?", yes=yes)
        found = target.run(lambda client: client.give_up_damaged(name))
        if not as_json:
            click.echo(f"Gave up {count(found.items, 'item')} of {name}.")
    if as_json:
        write_json(found)


def _write_damage(name: str, found: GivenUp) -> None:
    if not found.blocks:
        click.echo(f"{name} has no known block that cannot be repaired.")
        return
    write_table(
        ("partition", "block", "items", "kept", "lost", "node", "why"),
        [
            (one.partition, one.first_seq, one.items, one.kept, one.lost, one.node, one.reason)
            for one in found.blocks
        ],
    )
    note(
        "Items of lost blocks can be given up, except the kept ones, which are leased or in a "
        "reader's batch. A block that is not lost may be whole on a replica that does not "
        "answer."
    )
