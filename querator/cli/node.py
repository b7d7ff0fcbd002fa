"""`querator node`: what is done to one node."""

import click

from querator.cli.failures import ExitCode
from querator.cli.output import count, note, write_json
from querator.cli.target import Target, output_option, server_options
from querator.model.cluster import NodeHandedOff, NodeReplaced


@click.group(short_help="Prepare a node for its end, replace one that is lost.")
def node() -> None:
    """Prepare a node for its end, replace one that is lost."""


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

    async def hand_off() -> NodeHandedOff:
        async with target.cluster() as admin:
            return await admin.hand_off(name)

    handed = target.finish(hand_off())
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

    async def replace_node() -> NodeReplaced:
        async with target.cluster() as admin:
            return await admin.replace(name)

    replaced = target.finish(replace_node())
    if as_json:
        write_json(replaced)
        return
    note(
        f"Node {name} is known with its new data. {count(replaced.partitions, 'partition')} "
        "will be rebuilt; see how far it is with: querator cluster status --watch"
    )
