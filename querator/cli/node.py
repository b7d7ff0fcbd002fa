"""`querator node`: operations on one node."""

from pathlib import Path

import click
import msgspec
import uuid_utils

from querator.cli.cluster_views import NAMED_MAX, ClusterView, cluster_view
from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import count, note, write_json
from querator.client.cluster import ClusterAdmin
from querator.extras import needed
from querator.model.placement_map import NodeState


@click.group()
def node() -> None:
    """Hand off, drain, remove, replace or restore a node.

    A node joins by itself: start it with an empty directory, a name of its own, the cluster's token
    and --peers with at least one node of the cluster.
    """


@node.command(short_help="Hand off all leaderships of a node before it stops.")
@click.argument("name", required=False, default="")
@server_options
@output_option
def handoff(name: str, target: CommandTarget, as_json: bool) -> None:
    """Give away all leaderships of the node at --address, so that it can be stopped without a
    pause.

    The node gets no leadership back until it starts again. NAME guards against the wrong address.
    The node transfers leaderships for at most 8 s. The exit code is 1 if no other node could take
    some partitions.

    \b
    Example:
      querator node handoff --address 127.0.0.1:4470
    """

    if "," in target.address:
        raise click.UsageError(
            "--address must be one address: that of the node that is to hand off."
        )

    handed = target.ask_cluster(lambda admin: admin.hand_off(name))
    if as_json:
        write_json(handed)
    else:
        note(
            f"Node {handed.node} has handed off {count(handed.moved, 'leadership')}. It leads "
            "nothing until it starts again."
        )
        if handed.left:
            note(
                f"No other node took over {count(len(handed.left), 'partition')}. See: querator "
                "cluster status"
            )
    if handed.left:
        raise click.exceptions.Exit(ExitCode.WRONG)


@node.command(short_help="Let a node that lost its data be rebuilt from the others.")
@click.argument("name")
@yes_option
@server_options
@output_option
def replace(name: str, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Let node NAME be rebuilt. It has lost its data, and waits with an empty directory.

    Send the command to any other node. The former acknowledgements of NAME do not count any more;
    the other nodes must have a majority. The command says what is rebuilt, and asks for
    confirmation.

    \b
    Examples:
      querator node replace node-2 --address 127.0.0.1:4470
      querator node replace node-2 --address 127.0.0.1:4470 --yes
    """

    check_can_ask(yes=yes)
    if not yes:
        note(_replacing(name, target.ask_cluster(_view)))
        confirm(f"Has node {name} lost its data, and is it to be rebuilt?", yes=yes)
    replaced = target.ask_cluster(lambda admin: admin.replace(name))
    if as_json:
        write_json(replaced)
        return
    note(
        f"The cluster knows node {name} with its new data. "
        f"{count(replaced.partitions, 'partition')} will be rebuilt; see the progress with: "
        "querator cluster status --watch"
    )


@node.command("restore-from-copy", short_help="Restore a copied data directory safely.")
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Data directory of a stopped node of a cluster.",
)
@output_option
def restore_from_copy(data_dir: Path, as_json: bool) -> None:
    """Make a data directory that is an old copy, or may be one, safe to start.

    An old copy lacks the later votes and acknowledgements of its node, so the other nodes refuse
    it. After this command the directory holds a new, empty copy of the node's data. Start the node
    as before: it waits, without a vote, until it is rebuilt from the others with: querator node
    replace. The former data is kept in DIR as data.copy. Delete that file when the node is rebuilt.

    \b
    Example:
      querator node restore-from-copy --data-dir ./data
    """
    with needed("server", "querator node restore-from-copy"):
        from querator.placement.joining.restoring import KEPT_NAME, restore
        from querator.storage.environment import StorageError, StorageLocked
        from querator.storage.identity import DirectoryRefused

    try:
        restored = restore(data_dir, make_id=lambda: uuid_utils.uuid7().hex)
    except StorageLocked as error:
        raise Failure(f"{error}. Stop it first.", ExitCode.REFUSED) from None
    except DirectoryRefused as error:
        raise Failure(f"{str(error).rstrip('.')}.", ExitCode.REFUSED) from error
    except StorageError as error:
        raise Failure(f"{str(error).rstrip('.')}.", ExitCode.WRONG) from error
    view = RestoredView(restored.name, restored.cluster_id, str(data_dir / KEPT_NAME))
    if as_json:
        write_json(view)
        return
    note(
        f"{data_dir} can be started: node {view.node} of cluster {view.cluster_id} then waits "
        f"for its place. When it waits: querator node replace {view.node} --address (any other "
        f"node). The former data is in {view.kept}."
    )


class RestoredView(msgspec.Struct, frozen=True):
    """`kept` is the file with the former data."""

    node: str
    cluster_id: str
    kept: str


@node.command(short_help="Move all replicas of a node to others.")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let the node have replicas again.")
@server_options
@output_option
def drain(name: str, undo: bool, target: CommandTarget, as_json: bool) -> None:
    """Move all replicas and leaderships of node NAME to other nodes, while clients keep working.

    When the node has no replica, it can be stopped, and removed with: querator node remove. The
    command is refused if the other nodes are fewer than the replicas of a partition.

    \b
    Example:
      querator node drain node-4 --address 127.0.0.1:4470
    """

    drained = target.ask_cluster(lambda admin: admin.drain(name, undo=undo))
    if as_json:
        write_json(drained)
    elif undo:
        note(f"Node {name} may have replicas again.")
    else:
        note(
            f"Node {name} gives its replicas of {count(drained.partitions, 'partition')} to "
            "other nodes; see the progress with: querator cluster status --watch"
        )


@node.command(short_help="Remove a node permanently.")
@click.argument("name")
@yes_option
@server_options
@output_option
def remove(name: str, yes: bool, target: CommandTarget, as_json: bool) -> None:
    """Remove node NAME for ever: a drained node, or a node that is down and will not return.

    Its remaining replicas are first built again on other nodes. Its data is refused from then on,
    and its name is refused until: querator node readmit. The command says what is moved and what
    is lost, and asks for confirmation.

    \b
    Examples:
      querator node remove node-4 --address 127.0.0.1:4470
      querator node remove node-4 --address 127.0.0.1:4470 --yes
    """

    check_can_ask(yes=yes)
    if not yes:
        view = target.ask_cluster(_view)
        _check_can_go(name, view)
        note(_removing(name, view))
        confirm(f"Remove node {name} for ever?", yes=yes)
    removed = target.ask_cluster(lambda admin: admin.remove(name))
    if as_json:
        write_json(removed)
        return
    left = ""
    if removed.partitions:
        left = (
            f" when its replicas of {count(removed.partitions, 'partition')} have been rebuilt "
            "on other nodes; see the progress with: querator cluster status --watch"
        )
    note(f"Node {name} is removed{left}.")


@node.command(short_help="Let the name of a removed node be used again.")
@click.argument("name")
@server_options
def readmit(name: str, target: CommandTarget) -> None:
    """Let NAME, the name of a removed node, be used again by a node with empty data.

    \b
    Example:
      querator node readmit node-4 --address 127.0.0.1:4470
    """

    target.ask_cluster(lambda admin: admin.readmit(name))
    note(f"A node {name} with empty data may join.")


async def _view(admin: ClusterAdmin) -> ClusterView:
    return cluster_view(await admin.picture())


def _check_can_go(name: str, view: ClusterView) -> None:
    """Raises Failure for a node that the cluster does not have, or does not remove while it is up
    with replicas: the removal would be refused.
    """
    known = next((one for one in view.nodes if one.name == name), None)
    if known is None:
        raise Failure(
            f"The cluster has no node {name}. See: querator cluster status", ExitCode.REFUSED
        )
    here, _ = _partitions(name, view)
    if here and not known.why and not known.state.endswith(NodeState.LEAVING.value):
        raise Failure(
            f"Node {name} is {known.state} and has replicas of {count(here, 'partition')}. First: "
            f"querator node drain {name}",
            ExitCode.REFUSED,
        )


def _removing(name: str, view: ClusterView) -> str:
    """What happens when the node is removed."""
    state = next(one.state for one in view.nodes if one.name == name)
    here, only_here = _partitions(name, view)
    if not here:
        moved = "and has no replica: nothing is moved."
    else:
        moved = (
            f"and has replicas of {count(here, 'partition')}. They are built again on other nodes, "
            "from the other replicas, before the node is removed."
        )
    return (
        f"Node {name} is {state}, {moved}{_lost(only_here)} Its data is refused from then on, and "
        f"its name until: querator node readmit {name}"
    )


def _replacing(name: str, view: ClusterView) -> str:
    """What happens when the node is replaced by one without data."""
    here, only_here = _partitions(name, view)
    return (
        f"Node {name} gets the replicas of {count(here, 'partition')} again, from the other "
        f"replicas.{_lost(only_here)} Its former data is refused from then on, also if it is found "
        "again."
    )


def _partitions(name: str, view: ClusterView) -> tuple[int, list[str]]:
    """The number of partitions of queues with a replica on the node, and the names of those without
    another one.
    """
    here = [one for one in view.partitions if one.queue and name in one.nodes]
    return len(here), [one.name for one in here if set(one.nodes) == {name}]


def _lost(only_here: list[str]) -> str:
    if not only_here:
        return ""
    more = f" and {len(only_here) - NAMED_MAX:,} more" if len(only_here) > NAMED_MAX else ""
    return (
        f" No other node has a replica of {', '.join(only_here[:NAMED_MAX])}{more}: their items "
        "are lost if the data of the node is."
    )
