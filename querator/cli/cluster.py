"""`querator cluster`: the state of all nodes and partitions, moves of replicas, repair of time."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NoReturn

import click

from querator.cli.cluster_pictures import picture, plan_picture
from querator.cli.cluster_views import ClusterView, cluster_view
from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import (
    Picture,
    Screen,
    count,
    note,
    watch_picture,
    write_json,
    write_picture,
    write_table,
)
from querator.cli.shared.parameters import DURATION, format_duration, is_given
from querator.client.cluster import ClusterAdmin
from querator.client.values import PartitionTime
from querator.model.cluster import ClusterPlan

PLACEMENT_RESTS_S = (1.0, 2.0, 0.0)
"""Rests after each try to find a leader of the placement group, and a node that has its newest map:
a leader may be being elected.
"""


@click.group()
def cluster() -> None:
    """Show the state of the cluster, and repair time in its queues."""


@cluster.command(short_help="Show nodes, leaders, replicas and problems.")
@click.option("--watch", is_flag=True, help="Repeat the output; Ctrl-C ends it.")
@click.option(
    "--interval",
    type=DURATION,
    default="1s",
    show_default=True,
    help="Time between outputs; implies --watch.",
)
@click.option("--partitions", is_flag=True, help="Add a line for each partition (always in JSON).")
@server_options
@output_option
def status(
    watch: bool, interval: timedelta, partitions: bool, target: CommandTarget, as_json: bool
) -> None:
    """Show all nodes, the leaders, the number of replicas, and all problems.

    Any node can be asked; it knows the addresses of the other nodes. The exit code is 1 if there is
    a problem. With --watch, a node that stops or does not answer is left for another one.

    \b
    Examples:
      querator cluster status
      querator cluster status --partitions
      querator cluster status --watch
    """
    if interval <= timedelta(0):
        raise click.UsageError("--interval must be more than 0.")
    watch = watch or is_given(click.get_current_context(), "interval")

    async def once() -> bool:
        async with target.cluster() as admin:
            view = cluster_view(await admin.picture())
        if as_json:
            write_json(view)
        else:
            write_picture(picture(view, partitions=partitions))
        return not view.problems

    async def again() -> bool:
        def shown(view: ClusterView) -> Picture:
            return watch_picture(picture(view, partitions=partitions), interval)

        await _watch(target, shown, interval, as_json=as_json)

    try:
        well = target.finish(again() if watch else once())
    except KeyboardInterrupt:
        if not watch:
            raise
        return
    if not well:
        raise click.exceptions.Exit(ExitCode.WRONG)


async def _watch(
    target: CommandTarget,
    shown: Callable[[ClusterView], Picture],
    interval: timedelta,
    *,
    as_json: bool,
) -> NoReturn:
    screen = None if as_json or not sys.stdout.isatty() else Screen(sys.stdout)
    async with target.cluster() as admin:
        while True:
            view = cluster_view(await admin.picture())
            if as_json:
                write_json(view)
            elif screen is None:
                write_picture(shown(view))
            else:
                screen.show(shown(view))
            await asyncio.sleep(interval.total_seconds())


@cluster.command(short_help="Show which replicas move, where and why.")
@server_options
@output_option
def plan(target: CommandTarget, as_json: bool) -> None:
    """Show which replicas move to other nodes, at present and later, and why.

    Replicas move by themselves, a few partitions at a time, when nodes join, are drained or
    removed. The exit code is 4 while the placement group has no leader, or the map of the node that
    answers is old.

    \b
    Example:
      querator cluster plan
    """

    async def ask(admin: ClusterAdmin) -> ClusterPlan:
        reason = ""
        for rest_s in PLACEMENT_RESTS_S:
            view = cluster_view(await admin.picture())
            if all(one.queue or one.leader for one in view.partitions):
                # Another node may answer, or one whose map is older than the map of the picture.
                found = await admin.plan()
                if found.epoch >= view.epoch:
                    return found
                reason = (
                    f"the node that was asked has version {found.epoch} of the map, and another "
                    f"node {view.epoch}"
                )
            else:
                # The map does not change: it may be old, and nothing moves.
                reason = "the placement group has no leader"
            await asyncio.sleep(rest_s)
        raise Failure(f"Cannot tell: {reason}. See: querator cluster status", ExitCode.UNAVAILABLE)

    planned = target.ask_cluster(ask)
    if as_json:
        write_json(planned)
    else:
        write_picture(plan_picture(planned))


@cluster.command("repair-time", short_help="Set the state time of a queue to the clock.")
@click.argument("queue")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@server_options
@output_option
def repair_time(queue: str, dry_run: bool, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Set the state time of the partitions of QUEUE to the clock. Time goes back where a wrong
    clock has moved it ahead. It goes forward where it is behind because clocks were set forward.

    Set all clocks first. The command shows the partitions, and asks before it changes them. Where
    time goes back, leases last as long as intended; items that expired or came due too early and
    leases that lapsed too early are not restored. Where time goes forward, leases lapse that have
    ended by the clock.

    \b
    Examples:
      querator cluster repair-time mail --dry-run
      querator cluster repair-time mail --yes
    """

    if not dry_run:
        check_can_ask(yes=yes)
    found = target.run(lambda client: client.repair_time(queue, dry_run=True))
    if not as_json:
        _write_times(queue, found)
    if found and not dry_run:
        confirm("Set state time to the clock there?", yes=yes)
        found = target.run(lambda client: client.repair_time(queue))
        if not as_json:
            click.echo(f"Time is right in {count(len(found), 'partition')} of {queue}.")
    if as_json:
        write_json(
            [
                {
                    "partition": one.partition,
                    "ahead_ms": one.ahead // timedelta(milliseconds=1),
                    "repaired": one.repaired,
                    "leases": one.leases,
                    "scheduled": one.scheduled,
                    "expired": one.expired,
                }
                for one in found
            ]
        )


def _write_times(queue: str, found: Sequence[PartitionTime]) -> None:
    if not found:
        click.echo(f"Time is right in all partitions of {queue}.")
        return
    rows = [(one.partition, _off(one), one.leases, one.scheduled, one.expired) for one in found]
    write_table(("partition", "time", "leases", "scheduled", "expired"), rows)
    if any(one.ahead > timedelta(0) for one in found):
        note(
            "Where time is ahead: leases that were granted or extended with the wrong time last "
            "their whole timeout, counted from the repair. Schedules stay. Keys, outcomes and "
            "producers are remembered for their usual time, counted from the repair. Items that "
            "were produced with the wrong time expire later by the same difference. Unknown "
            "producers are refused if they may have been forgotten too early."
        )
    if any(one.ahead < timedelta(0) for one in found):
        note(
            "Where time is behind: leases, schedules and items that are due by the clock come "
            "due at once. Leases that have ended by the clock lapse two seconds later, unless "
            "they are extended."
        )


def _off(one: PartitionTime) -> str:
    return f"{format_duration(abs(one.ahead))} {'ahead' if one.ahead > timedelta(0) else 'behind'}"
