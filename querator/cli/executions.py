"""`querator execution`: durable functions at work."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click
import msgspec
import uuid_utils

from querator.cli import execution_changes, execution_lint, execution_replays
from querator.cli.execution_views import VALUE, ended_view, listed_view, published_view, record_view
from querator.cli.journals import shown_value, value_text
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode
from querator.cli.shared.listing import note_more
from querator.cli.shared.output import (
    note,
    width,
    write_details,
    write_json,
    write_json_lines,
    write_lines,
)
from querator.cli.shared.parameters import DELAY, DURATION, MOMENT, PRIORITY, WholeNumber
from querator.cli.shared.tables import Column, TableStream
from querator.cli.shared.texts import age_text, instant_text, size_text
from querator.cli.shared.views import preview
from querator.client import Client
from querator.client import clock as wall
from querator.client.errors import RequestError
from querator.client.executions import (
    EXECUTION_STATES,
    KEY_POLICIES,
    ExecutionInfo,
    ExecutionStateName,
    KeyPolicyName,
)
from querator.durable import Executions, JournalEntry
from querator.durable.handles import journal_entry
from querator.model.executions import UNVERSIONED

_PIECE_ROWS: Final = 500
"""Rows that are written at once."""
_WAITS_FOR: Final = {
    "stuck": "does not end before its repair",
    "pinned": "waits for a worker that can run it",
}
"""By state: what must happen before an execution ends."""


@click.group()
def execution() -> None:
    """Start, show, signal and end executions of durable functions.

    An execution is a durable function at work, in a queue of the kind executions. `querator worker`
    runs such functions.
    """


for _command in (
    execution_changes.signal,
    execution_changes.resolve,
    execution_changes.reject,
    execution_changes.cancel,
    execution_changes.terminate,
    execution_changes.retry,
    execution_changes.rewind,
    execution_replays.export,
    execution_replays.replay,
    execution_lint.lint,
):
    execution.add_command(_command)


@execution.command(short_help="Start an execution.")
@click.argument("queue")
@click.argument("function")
@click.argument("arguments", nargs=-1, type=VALUE, metavar="[ARGUMENT]...")
@click.option("--id", "execution_id", metavar="ID", help="Its id; default: a new one.")
@click.option("--delay", type=DELAY, help="Begin after this time; default: at once.")
@click.option(
    "--deadline",
    type=MOMENT,
    metavar="WHEN",
    help="Cancel it then, if it has not ended: an instant, or a time from now, as +1h.",
)
@click.option(
    "--priority",
    type=PRIORITY,
    metavar="N",
    default=0,
    show_default=True,
    help="Priority; the lowest is leased first.",
)
@click.option(
    "--key-policy",
    type=click.Choice(KEY_POLICIES),
    default="attach",
    show_default=True,
    help="What to do if an execution has this id.",
)
@server_options
@output_option
def start(
    queue: str,
    function: str,
    arguments: tuple[Any, ...],
    execution_id: str | None,
    delay: timedelta | None,
    deadline: datetime | None,
    priority: int,
    key_policy: KeyPolicyName,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Start an execution of FUNCTION in QUEUE, and print its id.

    FUNCTION is the name of a durable function: that of the Python function, unless its author gave
    it another one. An ARGUMENT is JSON; what is no JSON is a text. Write -- before an argument that
    begins with a minus sign. The worker checks the arguments.

    If there is an execution with this id, function and arguments, nothing is started: key policy
    attach. With fail it is an error. With restart_closed, one that has ended begins its next run,
    with this function and these arguments.

    \b
    Examples:
      querator execution start shop checkout order-17 '["book"]' --id order-17
      querator execution start shop report --delay 1h --deadline +1d
    """
    named = str(uuid_utils.uuid7()) if execution_id is None else execution_id

    async def main(client: Client) -> bool:
        return await client.executions.start(
            queue,
            named,
            function,
            version=UNVERSIONED,
            arguments=msgspec.json.encode((arguments, {})),
            key_policy=key_policy,
            priority=priority,
            start_at=None if delay is None else wall.now() + delay,
            deadline=deadline,
        )

    started = target.run(main)
    if as_json:
        write_json({"id": named, "started": started})
        return
    click.echo(named)
    if not started:
        note(f"{named} exists already.")


@execution.command("list", short_help="Show the executions of a queue.")
@click.argument("queue")
@click.option("--function", default="", metavar="NAME", help="Only executions of this function.")
@click.option(
    "--state",
    type=click.Choice(EXECUTION_STATES),
    help="Only executions in this state.",
)
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Most executions to show.",
)
@server_options
@output_option
def list_executions(
    queue: str,
    function: str,
    state: ExecutionStateName | None,
    limit: int,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Show the executions of QUEUE, in the order of their starts within each partition.

    A stuck or pinned execution is shown with the reason. With --output json each execution is a
    line.

    \b
    Examples:
      querator execution list shop
      querator execution list shop --state stuck --limit 1000
      querator execution list shop --state pinned
    """
    columns = (
        "id", "function", "state", Column("records", keep=True), "age", Column("reason", cut=True),
    )  # fmt: skip

    def row(one: ExecutionInfo) -> tuple[object, ...]:
        return (
            one.id, one.function, one.state, one.records, age_text(one.created_at), one.reason,
        )  # fmt: skip

    shown = _write_all(
        target,
        lambda client: Executions(client, queue).list(function=function, state=state),
        _Shape(columns, row, listed_view),
        limit=limit,
        as_json=as_json,
    )
    if not shown and not as_json:
        note("No such executions." if function or state else "No executions.")
    note_more(shown, limit, as_json=as_json)


@execution.command(short_help="Show one execution.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@server_options
@output_option
def show(queue: str, execution_id: str, target: CommandTarget, as_json: bool) -> None:
    """Show the execution ID of QUEUE: its state, its counts, and how it has ended.

    \b
    Example:
      querator execution show shop order-17
    """
    info, end = target.run(lambda client: _get(client, queue, execution_id))
    if as_json:
        write_json(ended_view(info, end))
        return
    write_details(
        (
            ("id", info.id),
            ("function", info.function),
            ("version", info.version),
            ("state", f"{info.state}, to be cancelled" if _is_leaving(info) else info.state),
            ("reason", info.reason),
            ("refused versions", ", ".join(info.refused_versions)),
            ("run", info.run),
            ("partition", info.partition),
            ("started at", instant_text(info.created_at)),
            ("deadline", "" if info.deadline is None else instant_text(info.deadline)),
            ("ended at", "" if info.closed_at is None else instant_text(info.closed_at)),
            ("records", info.records),
            ("journal", size_text(info.journal_bytes)),
            ("timers", info.timers),
            ("unread signals", info.unread_signals),
            ("parent", info.parent),
            ("open children", info.children),
            ("end", "" if end is None else value_text(end)),
        )
    )


@execution.command(short_help="Show the records of an execution.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Most records to show.",
)
@server_options
@output_option
def journal(
    queue: str, execution_id: str, limit: int, target: CommandTarget, as_json: bool
) -> None:
    """Show the journal of the execution ID of QUEUE: what its code has seen.

    Kinds of records are for example step_done, timer_fired and signal. The path is the place of an
    operation in the tree of tasks and calls, the site its line in the code. Before a record of a
    worker the code had been given the arrivals up to the index in the column after. Values are cut;
    with --output json each record is a line with its whole value.

    \b
    Examples:
      querator execution journal shop order-17
      querator execution journal shop order-17 --output json
    """
    columns = (
        Column("index", keep=True), "kind", Column("name", cut=True), "path",
        Column("site", cut=True), "at", "after", "bytes", Column("value", cut=True),
    )  # fmt: skip

    def row(one: JournalEntry) -> tuple[object, ...]:
        return (
            one.index, one.kind.lower(), one.name, one.path, one.site, instant_text(one.at),
            one.after, len(one.payload), value_text(one),
        )  # fmt: skip

    shown = _write_all(
        target,
        lambda client: Executions(client, queue).journal(execution_id),
        _Shape(columns, row, record_view),
        limit=limit,
        as_json=as_json,
    )
    note_more(shown, limit, as_json=as_json)


@execution.command(short_help="Show what an execution has published.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@server_options
@output_option
def published(queue: str, execution_id: str, target: CommandTarget, as_json: bool) -> None:
    """Show what the code of the execution ID of QUEUE has published: the newest value of each key.

    The order is that of the last changes, which the version counts. Values are cut; with --output
    json each is a line with its whole value.

    \b
    Example:
      querator execution published shop order-17
    """
    found = target.run(lambda client: client.executions.all_published(queue, execution_id))
    if as_json:
        write_json_lines([published_view(*one) for one in found])
        return
    if not found:
        note(f"{execution_id} has published nothing.")
        return
    table = TableStream((Column("key", keep=True), "version", Column("value", cut=True)), width())
    rows = ((key, version, preview(data)) for key, data, version in found)
    write_lines(table.lines(rows))


@execution.command(short_help="Wait until an execution has ended, and print its result.")
@click.argument("queue")
@click.argument("execution_id", metavar="ID")
@click.option("--timeout", type=DURATION, help="How long to wait at most; default: no limit.")
@server_options
@output_option
def wait(
    queue: str,
    execution_id: str,
    timeout: timedelta | None,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Wait until the execution ID of QUEUE has ended, and print its result.

    A text is printed as it is, everything else as JSON. The exit code is 1 when the function has
    raised an exception, was cancelled or terminated, or has not ended in time.

    \b
    Examples:
      querator execution wait shop order-17
      querator execution wait shop order-17 --timeout 30s
    """

    async def main(client: Client) -> tuple[ExecutionInfo, JournalEntry | None]:
        raised: Exception | None = None
        before = await Executions(client, queue).get(execution_id)
        if why := _WAITS_FOR.get(before.state):
            note(f"{execution_id} is {before.state}, and {why}: {before.reason}")
        try:
            await Executions(client, queue).handle(execution_id).result(timeout=timeout)
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001 - what the function has raised may be anything.
            raised = error
        info, end = await _get(client, queue, execution_id)
        if end is None and raised is not None and not isinstance(raised, TimeoutError):
            raise raised
        return info, end

    info, end = target.run(main)
    if as_json:
        write_json(ended_view(info, end))
    elif end is None:
        why = f": {info.reason}" if info.reason else ""
        note(f"{execution_id} has not ended; it is {info.state}{why}.")
    elif info.state == "completed":
        click.echo(shown_value(end.payload))
    else:
        text = value_text(end)
        was = info.state if info.state == "failed" else f"was {info.state}"
        note(f"{execution_id} {was}: {text.rstrip('.')}." if text else f"{execution_id} {was}.")
    if info.state != "completed":
        raise click.exceptions.Exit(ExitCode.WRONG)


# --- one execution ---------------------------------------------------------------------------


async def _get(
    client: Client, queue: str, execution_id: str
) -> tuple[ExecutionInfo, JournalEntry | None]:
    info, end = await Executions(client, queue).get_with_end(execution_id)
    return info, None if end is None else journal_entry(end)


def _is_leaving(info: ExecutionInfo) -> bool:
    return info.cancelled and not info.closed


# --- lists -----------------------------------------------------------------------------------


class _Shape(msgspec.Struct, frozen=True):
    """How the values of a list are shown: columns and rows of a table, or views as JSON."""

    columns: Sequence[str | Column]
    row: Callable[[Any], tuple[object, ...]]
    view: Callable[[Any], object]


def _write_all(
    target: CommandTarget,
    ask: Callable[[Client], AsyncIterator[Any]],
    shape: _Shape,
    *,
    limit: int,
    as_json: bool,
) -> int:
    """Writes at most `limit` values while they come, and returns their number."""
    table = TableStream(shape.columns, width())

    def write(piece: list[Any]) -> None:
        if piece and as_json:
            write_json_lines(map(shape.view, piece))
        elif piece:
            write_lines(table.lines(map(shape.row, piece)))

    async def main(client: Client) -> int:
        shown = 0
        piece: list[Any] = []
        async for value in ask(client):
            piece.append(value)
            shown += 1
            if len(piece) == _PIECE_ROWS:
                write(piece)
                piece = []
            if shown == limit:
                break
        write(piece)
        return shown

    return target.run(main)
