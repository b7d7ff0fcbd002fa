"""`querator execution export` and `replay`: journals of real executions against changed code.

A replay runs in a process of its own, which has another seed for the hashes of texts than this one:
code that depends on the order of a set is found. Nothing of an execution is run there.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import click
import msgspec

from querator.cli.durable_worker import loaded_functions
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import note, write_json
from querator.cli.shared.parameters import WholeNumber
from querator.client.errors import ExecutionNotFound
from querator.client.executions import EXECUTION_STATES, ExecutionStateName
from querator.durable import Codec, Durable, DurableError, Executions
from querator.durable.exports import opened
from querator.durable.replaying import ReplayedExecution, replay_file
from querator.durable.worker import functions_by_name
from querator.worker.loading import LoadError, load_exception

_SEEDS_END: Final = 1 << 32
_TOGETHER: Final = 8
"""Executions that are read at the same time: a journal may have 16 MiB."""
_SHOWN_MAX: Final = 100
"""Replays with a problem that are shown."""
_CHILD: Final = "QUERATOR_REPLAY_HERE"


@click.command(short_help="Write executions with their journals as JSON lines.")
@click.argument("queue")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--function", default="", metavar="NAME", help="Only executions of this function.")
@click.option(
    "--state",
    type=click.Choice(EXECUTION_STATES),
    help="Only executions in this state.",
)
@click.option(
    "--limit", type=WholeNumber(min=1), metavar="N", help="Most executions; default: no limit."
)
@server_options
def export(
    queue: str,
    ids: tuple[str, ...],
    function: str,
    state: ExecutionStateName | None,
    limit: int | None,
    target: CommandTarget,
) -> None:
    """Write executions of QUEUE as JSON lines, for `querator execution replay`: those with these
    IDs, or all.

    A line is an execution with its journal, and all else that a replay needs. It has the arguments
    and results of the execution: treat it as you treat those. Nothing in it opens a promise, but a
    token that the code has recorded is in it, like all that it has recorded.

    \b
    Examples:
      querator execution export shop > runs.jsonl
      querator execution export shop --state parked --limit 100 > runs.jsonl
      querator execution export shop order-17 order-18 > runs.jsonl
    """
    if ids and (function or state or limit):
        raise click.UsageError("Give ids, or --function, --state and --limit.")
    written, left = target.run(
        lambda client: _export(Executions(client, queue), ids, function, state, limit)
    )
    note(f"{written} executions of {queue} written.")
    if left:
        raise click.exceptions.Exit(ExitCode.WRONG)


async def _export(
    executions: Executions,
    ids: tuple[str, ...],
    function: str,
    state: ExecutionStateName | None,
    limit: int | None,
) -> tuple[int, int]:
    """How many were written, and how many could not be."""
    out = sys.stdout.buffer
    written = left = 0

    async def export_one(execution_id: str) -> bytes | DurableError | None:
        try:
            return (await executions.export(execution_id)).to_json()
        except ExecutionNotFound:
            if ids:
                raise
            # Its retention has ended meanwhile.
            return None
        except DurableError as error:
            return error

    async def write(piece: list[str]) -> None:
        nonlocal written, left
        for found in await asyncio.gather(*map(export_one, piece)):
            if isinstance(found, bytes):
                out.write(found)
                written += 1
            elif found is not None:
                note(f"{found}.")
                left += 1

    piece: list[str] = []
    async for execution_id in _listed(executions, ids, function, state, limit):
        piece.append(execution_id)
        if len(piece) == _TOGETHER:
            await write(piece)
            piece = []
    await write(piece)
    out.flush()
    return written, left


async def _listed(
    executions: Executions,
    ids: tuple[str, ...],
    function: str,
    state: ExecutionStateName | None,
    limit: int | None,
) -> AsyncIterator[str]:
    if ids:
        for one in dict.fromkeys(ids):
            yield one
        return
    count = 0
    async for info in executions.list(function=function, state=state):
        yield info.id
        count += 1
        if count == limit:
            return


@click.command(short_help="Replay exported executions with the code as it is.")
@click.argument("file")
@click.argument("functions", metavar="MODULE[:NAME]")
@click.option(
    "--error",
    "errors",
    multiple=True,
    metavar="EXCEPTION",
    help="Exception that is raised as itself when it comes from a journal, as for querator worker; "
    "may be repeated.",
)
@click.option(
    "--hash-seed",
    type=WholeNumber(min=1, max=_SEEDS_END - 1),
    metavar="N",
    help="PYTHONHASHSEED of the process that replays; default: another one each time.",
)
@output_option
def replay(
    file: str, functions: str, errors: tuple[str, ...], hash_seed: int | None, as_json: bool
) -> None:
    """Replay the executions of FILE with the durable functions of MODULE, or with those that NAME
    in it has. Nothing is run, and no server is asked.

    FILE has lines of `querator execution export`; - is standard input. An execution fits if the
    code does what its journal says, as far as that goes. For each one that does not, the line of
    the journal and the line of the code are shown, and the exit code is 1; also for lines that are
    damaged, and if there are none.

    A process of its own replays, with a hash seed that the last line of the output names: the order
    of a set of texts is another one with each seed.

    \b
    Examples:
      querator execution replay runs.jsonl shop
      querator execution replay runs.jsonl shop.checkout:FUNCTIONS --output json
      querator execution export shop | querator execution replay - shop
    """
    if os.environ.get(_CHILD):
        _replay_here(file, functions, errors, as_json)
        return
    seed = hash_seed or random.randrange(1, _SEEDS_END)
    command = [
        sys.executable, "-m", "querator", "execution", "replay",
        *(f"--error={one}" for one in errors), *(("--output", "json") if as_json else ()),
        "--", file, functions,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), _CHILD: "1"}
    sys.stdout.flush()
    code = subprocess.run(command, env=environment, check=False).returncode
    if code < 0:
        raise Failure(f"The process that replays was ended by signal {-code}.")
    if code:
        raise click.exceptions.Exit(code)


class _Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What `--output json` prints. `problems` are the executions that do not fit."""

    executions: int
    fits: int
    differs: int
    waits: int
    damaged: int
    hash_seed: int
    problems: list[ReplayedExecution]


def _replay_here(file: str, functions: str, errors: tuple[str, ...], as_json: bool) -> None:
    loaded, codec = _loaded(functions, errors)
    counts: Counter[str] = Counter()
    problems: list[ReplayedExecution] = []
    for one in _replayed(file, loaded, codec):
        counts[one.outcome] += 1
        if not one.is_wrong:
            continue
        problems.append(one)
        if not as_json and len(problems) <= _SHOWN_MAX:
            click.echo(f"{file}:{one.line}: {one.reason}")
    summary = _Summary(
        executions=counts.total(), fits=counts["fits"], differs=counts["differs"],
        waits=counts["waits"], damaged=counts["damaged"],
        hash_seed=int(os.environ.get("PYTHONHASHSEED", "0")), problems=problems,
    )  # fmt: skip
    if as_json:
        write_json(summary)
    else:
        _write(summary, file)
    if problems or not summary.executions:
        raise click.exceptions.Exit(ExitCode.WRONG)


def _write(summary: _Summary, file: str) -> None:
    if len(summary.problems) > _SHOWN_MAX:
        click.echo(f"… and {len(summary.problems) - _SHOWN_MAX} others.")
    if not summary.executions:
        click.echo(f"{file} has no executions.")
        return
    words = [f"{summary.fits} fit", f"{summary.differs} do not"]
    if summary.waits:
        words.append(f'{summary.waits} wait for their version (upgrade="never")')
    if summary.damaged:
        words.append(f"{summary.damaged} lines are damaged")
    click.echo(
        f"{summary.executions} executions: {', '.join(words)}. Hash seed: {summary.hash_seed}."
    )


def _replayed(
    file: str, functions: tuple[Durable[..., Any], ...], codec: Codec
) -> Iterator[ReplayedExecution]:
    """What the code prints goes to standard error."""
    try:
        named = functions_by_name(functions)
    except ValueError as error:
        raise Failure(f"{error}.", ExitCode.USAGE) from error
    try:
        with opened(file) as lines:
            found = replay_file(lines, named, codec)
            while True:
                with contextlib.redirect_stdout(sys.stderr):
                    one = next(found, None)
                if one is None:
                    return
                yield one
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}.") from error


def _loaded(name: str, errors: tuple[str, ...]) -> tuple[tuple[Durable[..., Any], ...], Codec]:
    functions = loaded_functions(name)
    try:
        return functions, Codec(tuple(load_exception(one) for one in errors))
    except LoadError as error:
        raise Failure(str(error), ExitCode.USAGE) from error
