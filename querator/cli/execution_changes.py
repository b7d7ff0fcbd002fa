"""`querator execution`: the commands that change an execution."""

from collections.abc import Callable
from typing import Any

import click

from querator.cli.execution_views import VALUE
from querator.cli.shared.confirmation import check_can_ask, confirm, yes_option
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode
from querator.cli.shared.output import count, note, write_json
from querator.client import Client
from querator.client.executions import ExecutionInfo
from querator.durable import Executions
from querator.durable.errors import CodecError


@click.command(short_help="Send a signal to an execution.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@click.argument("name")
@click.argument("value", required=False, type=VALUE, metavar="[VALUE]")
@server_options
@output_option
def signal(
    queue: str, execution_id: str, name: str, value: Any, target: CommandTarget, as_json: bool
) -> None:
    """Send the signal NAME to the execution ID of QUEUE, with VALUE.

    VALUE is JSON; what is no JSON is a text; default: null. Each run of this command sends another
    signal. The code gets signals of a name in the order of their arrival.

    \b
    Examples:
      querator execution signal shop order-17 address '{"city": "Berlin"}'
      querator execution signal shop order-17 stop
    """

    async def main(client: Client) -> None:
        await Executions(client, queue).signal(execution_id, name, value)

    target.run(main)
    if as_json:
        write_json({"id": execution_id, "name": name})
    else:
        note(f"Sent {name} to {execution_id}.")


@click.command(short_help="Give a promise its value.")
@click.argument("token")
@click.argument("value", required=False, type=VALUE, metavar="[VALUE]")
@server_options
@output_option
def resolve(token: str, value: Any, target: CommandTarget, as_json: bool) -> None:
    """Give the promise with this TOKEN its VALUE.

    The token names the queue and its namespace. VALUE is JSON; what is no JSON is a text; default:
    null. The first resolution wins; after another one the exit code is 1.

    \b
    Example:
      querator execution resolve ls0k… true
    """
    _resolve(target, lambda calls: calls.resolve(token, value), "resolved", as_json=as_json)


@click.command(short_help="Reject a promise.")
@click.argument("token")
@click.argument("reason")
@server_options
@output_option
def reject(token: str, reason: str, target: CommandTarget, as_json: bool) -> None:
    """Reject the promise with this TOKEN: the code that waits for it gets PromiseRejected.

    The first resolution wins; after another one the exit code is 1.

    \b
    Example:
      querator execution reject ls0k… "too dear"
    """
    _resolve(target, lambda calls: calls.reject(token, reason), "rejected", as_json=as_json)


_reason_option = click.option("--reason", default="", metavar="TEXT", help="Why; it is kept.")


@click.command(short_help="Ask an execution to end.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@_reason_option
@server_options
@output_option
def cancel(
    queue: str, execution_id: str, reason: str, target: CommandTarget, as_json: bool
) -> None:
    """Ask the execution ID of QUEUE to end: its code gets a cancellation, and may clean up.

    \b
    Example:
      querator execution cancel shop order-17 --reason "sold out"
    """

    async def main(client: Client) -> bool:
        return await Executions(client, queue).cancel(execution_id, reason)

    first = target.run(main)
    if as_json:
        write_json({"id": execution_id, "cancelled": first})
    else:
        note(f"{execution_id} is to end." if first else f"{execution_id} was cancelled before.")


@click.command(short_help="End an execution at once.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@_reason_option
@yes_option
@server_options
@output_option
def terminate(
    queue: str,
    execution_id: str,
    reason: str,
    yes: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """End the execution ID of QUEUE at once, for ever: its code does not run any more.

    Nothing is undone and nothing is cleaned up; `querator execution cancel` lets the code do that.
    The command asks for confirmation.

    \b
    Example:
      querator execution terminate shop order-17 --yes
    """
    check_can_ask(yes=yes)
    info = target.run(lambda client: Executions(client, queue).get(execution_id))
    if info.closed:
        note(f"Nothing was changed: {execution_id} has ended ({info.state}).")
        raise click.exceptions.Exit(ExitCode.WRONG)
    confirm(
        f"{execution_id} ({info.function}) is {info.state}, with {count(info.records, 'record')}. "
        "End it at once, without its cleanup?",
        yes=yes,
    )

    async def main(client: Client) -> bool:
        return await Executions(client, queue).terminate(execution_id, reason)

    first = target.run(main)
    if as_json:
        write_json({"id": execution_id, "terminated": first})
    else:
        note(f"Terminated {execution_id}.")


@click.command(short_help="Let an execution continue from a record.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@click.option(
    "--to",
    type=click.IntRange(min=0),
    required=True,
    metavar="RECORD",
    help="The last record that stays; 0: only the arguments.",
)
@click.option("--keep-children", is_flag=True, help="Do not cancel children started behind it.")
@yes_option
@server_options
@output_option
def rewind(
    queue: str,
    execution_id: str,
    to: int,
    keep_children: bool,
    yes: bool,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Let the execution ID of QUEUE continue behind a RECORD of its journal, whatever its state is.

    Records behind it are removed for ever, and their steps run again. Signals that came later are
    unread again. `querator execution journal` shows the records. The command asks for confirmation.

    \b
    Examples:
      querator execution rewind shop order-17 --to 11
      querator execution rewind shop order-17 --to 11 --keep-children --yes
    """
    check_can_ask(yes=yes)

    async def look(client: Client) -> tuple[ExecutionInfo, int]:
        info = await Executions(client, queue).get(execution_id)
        behind = client.executions.journal(queue, execution_id, to + 1)
        return info, len([record async for record in behind])

    info, behind = target.run(look)
    question = f"Remove {count(behind, 'record')} behind record {to}, and continue from there?"
    confirm(f"{execution_id} ({info.function}) is {info.state}. {question}", yes=yes)
    done = target.run(
        lambda client: Executions(client, queue).rewind(
            execution_id, to, keep_children=keep_children, run=info.run
        )
    )
    if as_json:
        write_json(
            {
                "id": execution_id,
                "run": done.run,
                "removed_records": done.removed_records,
                "cancelled_children": done.cancelled_children,
            }
        )
        return
    note(f"{execution_id} continues behind record {to}, in run {done.run}.")
    if done.cancelled_children:
        note(f"Children that were cancelled: {done.cancelled_children:,}.")


@click.command(short_help="Let stuck executions run again.")
@click.argument("queue")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--stuck", is_flag=True, help="Instead of ids: each stuck execution of the queue.")
@click.option("--function", default="", metavar="NAME", help="With --stuck: of this function.")
@server_options
@output_option
def retry(
    queue: str,
    ids: tuple[str, ...],
    stuck: bool,
    function: str,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Let stuck executions of QUEUE run again, after their code or their values were repaired.

    A pinned execution that is named is tried again by any worker. Prints the ids of those that were
    stuck or pinned. The exit code is 1 when an ID was neither. With --output json each execution is
    a line.

    \b
    Examples:
      querator execution retry shop order-17
      querator execution retry shop --stuck --function checkout
    """
    if bool(ids) == stuck:
        raise click.UsageError("Give ids, or --stuck.")
    if function and not stuck:
        raise click.UsageError("--function needs --stuck.")

    async def main(client: Client) -> bool:
        calls = Executions(client, queue)
        named = list(ids)
        if stuck:
            # All of them first: one that becomes stuck again would come again.
            named = [one.id async for one in calls.list(function=function, state="stuck")]
        all_were = True
        for name in named:
            was = await calls.retry(name)
            all_were = all_were and was
            if as_json:
                write_json({"id": name, "retried": was})
            elif was:
                click.echo(name)
            else:
                note(f"{name} is neither stuck nor pinned.")
        if not named:
            note("No execution is stuck.")
        return all_were or stuck

    if not target.run(main):
        raise click.exceptions.Exit(ExitCode.WRONG)


def _resolve(
    target: CommandTarget, call: Callable[[Executions], Any], done: str, *, as_json: bool
) -> None:
    async def main(client: Client) -> bool:
        # The queue is in the token.
        first: bool = await call(Executions(client, ""))
        return first

    try:
        first = target.run(main)
    except CodecError as error:
        raise click.BadParameter(f"{error}.", param_hint="TOKEN") from error
    if as_json:
        write_json({done: first})
    elif first:
        note(f"The promise is {done}.")
    else:
        note("Nothing was changed: the promise was resolved or rejected before.")
    if not first:
        raise click.exceptions.Exit(ExitCode.WRONG)
