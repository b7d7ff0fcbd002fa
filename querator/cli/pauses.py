"""`querator queue pause|resume` and `querator group pause|resume`."""

from collections.abc import Sequence

import click
import msgspec

from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.output import write_json
from querator.cli.shared.views import queue_view
from querator.client import Client, FairGroup, QueueInfo
from querator.model.errors import QueratorError
from querator.model.group_paths import check_group_path

_LEASES = "consumers get no items"
_PRODUCERS = "producers are refused"


def pause_text(info: QueueInfo) -> str:
    """What is paused, in a few words; empty if nothing is."""
    parts = ["leases"] if info.lease_paused else []
    parts += ["producers"] if info.produce_paused else []
    return " and ".join(parts) + " paused" if parts else ""


def pause_details(info: QueueInfo) -> tuple[tuple[str, object], ...]:
    """What `queue info` shows of a paused queue."""
    parts = [_LEASES] if info.lease_paused else []
    parts += [_PRODUCERS] if info.produce_paused else []
    return (("paused", ", ".join(parts)),) if parts else ()


def pause_note(info: QueueInfo) -> str:
    """What `stats` says of a paused queue or group; empty if nothing is paused."""
    notes = []
    if text := pause_text(info):
        notes.append(f"{info.name}: {text}; continue with querator queue resume {info.name}.")
    if paused := [group.path for group in info.groups if group.paused]:
        shown = ", ".join(paused[:_SHOWN]) + (", …" if len(paused) > _SHOWN else "")
        notes.append(f"{info.name}: groups paused: {shown}; continue with querator group resume.")
    return "\n".join(notes)


_SHOWN = 5
"""Paused groups that are named."""


@click.command("pause", short_help="Stop leases or producers of a queue.")
@click.argument("name")
@click.option("--leases", is_flag=True, help="Give consumers and readers no items; the default.")
@click.option("--producers", is_flag=True, help="Refuse producers.")
@server_options
@output_option
def pause_queue(
    name: str, leases: bool, producers: bool, target: CommandTarget, as_json: bool
) -> None:
    """Pause the queue NAME until `querator queue resume`.

    Without an option consumers and readers get no items, and wait. Items that are leased can be
    completed, retried and extended, and producers continue. With --producers producers are refused
    instead. Give both options to pause both. What is paused already stays paused.

    When the command ends, all partitions have paused. Items expire, become due and move as always.
    Dead letters, redriven items, follow-ups and items of recurrences are stored also while
    producers are paused.

    \b
    Examples:
      querator queue pause mail
      querator queue pause mail --producers
      querator queue pause mail --leases --producers
    """
    changes = {"lease_paused": True} if leases or not producers else {}
    if producers:
        changes["produce_paused"] = True
    _set(name, changes, target, as_json=as_json)


@click.command("resume", short_help="Let a paused queue continue.")
@click.argument("name")
@click.option("--producers", "chosen", flag_value="produce_paused", help="Only producers.")
@click.option("--leases", "chosen", flag_value="lease_paused", help="Only leases.")
@server_options
@output_option
def resume_queue(name: str, chosen: str | None, target: CommandTarget, as_json: bool) -> None:
    """Let the paused queue NAME continue. Consumers that wait get items at once.

    \b
    Examples:
      querator queue resume mail
      querator queue resume mail --producers
    """
    settings = (chosen,) if chosen else ("lease_paused", "produce_paused")
    _set(name, dict.fromkeys(settings, False), target, as_json=as_json)


def _set(name: str, changes: dict[str, bool], target: CommandTarget, *, as_json: bool) -> None:
    async def main(client: Client) -> QueueInfo:
        # The settings are named, and the call takes them as they are.
        return await client.update_queue(name, **changes)  # type: ignore[arg-type]

    info = target.run(main)
    if as_json:
        write_json(queue_view(info))
    else:
        click.echo(f"Queue {name}: {pause_text(info) or 'nothing is paused'}.")


@click.command("pause", short_help="Stop leases of groups.")
@click.argument("queue")
@click.argument("groups", nargs=-1, required=True)
@server_options
@output_option
def pause_groups(queue: str, groups: tuple[str, ...], target: CommandTarget, as_json: bool) -> None:
    """Give consumers no items of GROUPS of the fair queue QUEUE until `querator group resume`.

    Groups below them are paused, too. Their items stay, and producers continue.

    \b
    Examples:
      querator group pause mail acme
      querator group pause mail eu.de eu.fr
    """
    _set_groups(queue, groups, target, paused=True, as_json=as_json)


@click.command("resume", short_help="Let paused groups continue.")
@click.argument("queue")
@click.argument("groups", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All paused groups of the queue.")
@server_options
@output_option
def resume_groups(
    queue: str, groups: tuple[str, ...], every: bool, target: CommandTarget, as_json: bool
) -> None:
    """Let paused GROUPS of the fair queue QUEUE continue.

    \b
    Examples:
      querator group resume mail acme
      querator group resume mail --all
    """
    if bool(groups) == every:
        raise click.UsageError("Name groups, or give --all.")
    _set_groups(queue, groups, target, paused=False, as_json=as_json)


def _set_groups(
    queue: str, paths: Sequence[str], target: CommandTarget, *, paused: bool, as_json: bool
) -> None:
    """No `paths`: all groups that have settings."""
    for path in paths:
        try:
            check_group_path(path, field=f"the group {path[:64]!r}")
        except QueratorError as error:
            raise click.UsageError(f"{error.message}.") from None

    async def main(client: Client) -> QueueInfo:
        info = await client.get_queue(queue)
        groups = {group.path: group for group in info.groups}
        for path in paths or tuple(groups):
            there = groups.get(path, FairGroup(path))
            groups[path] = msgspec.structs.replace(there, paused=paused)
        kept = [group for path, group in sorted(groups.items()) if group != FairGroup(path)]
        # The call replaces the settings of all groups, so they must be those that were read.
        return await client.update_queue(queue, expected_version=info.settings_version, groups=kept)

    info = target.run(main)
    if as_json:
        write_json(queue_view(info))
        return
    shown = [group.path for group in info.groups if group.paused]
    click.echo(f"Queue {queue}: paused groups: {', '.join(shown) or 'none'}.")
