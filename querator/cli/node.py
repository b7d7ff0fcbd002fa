"""`querator node`: what is done to one node."""

import click

from querator.cli.failures import ExitCode
from querator.cli.output import count, note, write_json
from querator.cli.target import Target, output_option, server_options


@click.group(short_help="Hand off, drain, remove or replace a node.")
def node() -> None:
    """Hand off, drain, remove or replace a node.

    A node joins by itself: start it with an empty directory, a name of its own, the cluster's token
    and --peers with at least one node of the cluster.
    """


@node.command(short_help="Give all leaderships of a node away, before it stops.")
@click.argument("name", required=False, default="")
@server_options
@output_option
def handoff(name: str, target: Target, as_json: bool) -> None:
    """Give all leaderships of the node at --address away, so that it can be stopped unnoticed.

    It gets none back until it starts again. NAME guards against the wrong address. At most 10 s;
    exit code 1 when partitions were left that nobody could take.

    \b
    Example:
      querator node handoff --address 127.0.0.1:4470
    """

    if "," in target.address:
        raise click.UsageError("--address must be that of the node that is to hand off alone.")

    handed = target.ask_cluster(lambda admin: admin.hand_off(name))
    if as_json:
        write_json(handed)
    else:
        note(f"Node {handed.node} has given {count(handed.moved, 'leadership')} away.")
        if handed.left:
            note(
                f"{count(len(handed.left), 'partition')} had nobody to take it over. Look with: "
                "querator cluster status"
            )
    if handed.left:
        raise click.exceptions.Exit(ExitCode.WRONG)


@node.command(short_help="Let a node that lost its data be rebuilt from the others.")
@click.argument("name")
@server_options
@output_option
def replace(name: str, target: Target, as_json: bool) -> None:
    """Let node NAME, which lost its data and waits with an empty directory, be rebuilt.

    Ask any other node. What NAME had acknowledged counts no more; the other nodes must have a
    majority.

    \b
    Example:
      querator node replace node-2 --address 127.0.0.1:4470
    """

    replaced = target.ask_cluster(lambda admin: admin.replace(name))
    if as_json:
        write_json(replaced)
        return
    note(
        f"Node {name} is known with its new data. {count(replaced.partitions, 'partition')} "
        "will be rebuilt; see how far it is with: querator cluster status --watch"
    )


@node.command(short_help="Move all replicas of a node to others.")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it have replicas again.")
@server_options
@output_option
def drain(name: str, undo: bool, target: Target, as_json: bool) -> None:
    """Move all replicas and leaderships of node NAME to other nodes, while all goes on.

    When it has none, it can be stopped, and removed with: querator node remove. Refused when the
    nodes that are left are fewer than the copies of a partition.

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
            f"Node {name} gives its replicas of {count(drained.partitions, 'partition')} to other "
            "nodes; see how far it is with: querator cluster status --watch"
        )


@node.command(short_help="Remove a node for ever.")
@click.argument("name")
@server_options
@output_option
def remove(name: str, target: Target, as_json: bool) -> None:
    """Remove node NAME for ever: one that is drained, or one that is down and will not return.

    What replicas it still has are made anew on other nodes first. Its data is refused from then on,
    and its name until: querator node readmit.

    \b
    Example:
      querator node remove node-4 --address 127.0.0.1:4470
    """

    removed = target.ask_cluster(lambda admin: admin.remove(name))
    if as_json:
        write_json(removed)
        return
    left = ""
    if removed.partitions:
        left = (
            f", when its replicas of {count(removed.partitions, 'partition')} are made anew on "
            "other nodes; see how far that is with: querator cluster status --watch"
        )
    note(f"Node {name} is removed{left}.")


@node.command(short_help="Let the name of a removed node be used again.")
@click.argument("name")
@server_options
def readmit(name: str, target: Target) -> None:
    """Let the name of node NAME, which was removed, be used again, by a node with empty data.

    \b
    Example:
      querator node readmit node-4 --address 127.0.0.1:4470
    """

    target.ask_cluster(lambda admin: admin.readmit(name))
    note(f"A node {name} with empty data may join.")
