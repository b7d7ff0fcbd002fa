"""`querator cluster`: the state of all nodes and partitions on one screen."""

import asyncio
import sys
from datetime import timedelta

import click
from rich.live import Live

from querator.cli.cluster_views import cluster_view, picture, plan_picture
from querator.cli.failures import ExitCode
from querator.cli.output import console, write_json, write_picture
from querator.cli.parameters import DURATION
from querator.cli.target import Target, output_option, server_options


@click.group(short_help="Look at the cluster.")
def cluster() -> None:
    """Look at the cluster."""


@cluster.command(short_help="Show nodes, leaders, copies, and what is wrong.")
@click.option("--watch", is_flag=True, help="Show again and again; Ctrl-C ends it.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="With --watch.")
@click.option("--partitions", is_flag=True, help="A line for each partition (always in JSON).")
@server_options
@output_option
def status(
    watch: bool, interval: timedelta, partitions: bool, target: Target, as_json: bool
) -> None:
    """Show all nodes, who leads, how many copies there are, and what is wrong.

    Any node can be asked; it says where the others are. Exit code 1 when something is wrong.

    \b
    Examples:
      querator cluster status
      querator cluster status --partitions
      querator cluster status --watch
    """
    if interval <= timedelta(0):
        raise click.UsageError("--interval must be more than 0.")

    async def once() -> bool:
        async with target.cluster() as admin:
            view = cluster_view(await admin.picture())
        if as_json:
            write_json(view)
        else:
            write_picture(picture(view, partitions=partitions))
        return not view.problems

    async def again() -> bool:
        async with target.cluster() as admin:
            if as_json or not sys.stdout.isatty():
                while True:
                    view = cluster_view(await admin.picture())
                    if as_json:
                        write_json(view)
                    else:
                        write_picture(picture(view, partitions=partitions))
                    await asyncio.sleep(interval.total_seconds())
            with Live(console=console(), auto_refresh=False) as live:
                while True:
                    view = cluster_view(await admin.picture())
                    live.update(picture(view, partitions=partitions), refresh=True)
                    await asyncio.sleep(interval.total_seconds())

    try:
        well = target.finish(again() if watch else once())
    except KeyboardInterrupt:
        if not watch:
            raise
        return
    if not well:
        raise click.exceptions.Exit(ExitCode.WRONG)


@cluster.command(short_help="Show which copies move where, and why.")
@server_options
@output_option
def plan(target: Target, as_json: bool) -> None:
    """Show which copies of partitions are on their way to other nodes, and which will be, and why.

    Copies move by themselves, a few partitions at a time, when nodes join, are drained or removed.

    \b
    Example:
      querator cluster plan
    """

    planned = target.ask_cluster(lambda admin: admin.plan())
    if as_json:
        write_json(planned)
    else:
        write_picture(plan_picture(planned))
