"""The command `querator`. Exit codes are in `querator.cli.shared.failures`, those of `serve` in
`querator.cli.serve`. Code that works without a command line does not belong here.

A command's module is loaded when the command is used: `querator serve` loads no client, and the
other commands load neither the storage nor the Raft engine.

    bench               `bench`: load on a server, and its measurement
    cluster             `cluster`: state of the cluster, plan, repair of time
    cluster_pictures    views of a cluster as tables in a terminal
    cluster_views       views of a cluster, with its problems in sentences
    consume             `consume`: a shell command for each item
    dead                `peek` and `dead`: items without leases, dead letters
    leases              `lease`, `complete`, `retry`, `extend`
    node                `node`: operations on one node
    produce             `produce`: items from arguments, lines, JSON lines or CSV
    queues              `queue`: queues and their settings
    readers             `reader`: readers and their named batches
    reference           the page docs/cli.md, made from the commands
    serve               `serve`: one node in a process of its own
    stats               `stats`: counts of queues
    transactions        `txn`: staged batches
    verify              `verify`: a full check of a data directory
    demo                `demo`, and code that it shares with the demo on Spark
    shared              options, output and errors that commands share
    spark               `spark`: pipelines between queues and files
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import click

from querator.extras import MissingExtra, needed

_COMMANDS: Final = {
    "serve": "serve:serve",
    "queue": "queues:queue",
    "produce": "produce:produce",
    "lease": "leases:lease",
    "complete": "leases:complete",
    "retry": "leases:retry",
    "extend": "leases:extend",
    "consume": "consume:consume",
    "peek": "dead:peek",
    "dead": "dead:dead",
    "txn": "transactions:txn",
    "reader": "readers:reader",
    "stats": "stats:stats",
    "cluster": "cluster:cluster",
    "node": "node:node",
    "spark": "spark.spark:spark",
    "verify": "verify:verify",
    "demo": "demo.demo:demo",
    "bench": "bench:bench",
}
"""Name of the command → its module in this package and its name in that module."""

_NOT_FOR_SERVE: Final = ("cryptography", "rich")
"""structlog and PySyncObj load these libraries wherever they are installed. `serve` uses nothing of
them, and they are a sixth of what it would load.
"""


class LazyGroup(click.Group):
    """Commands by name, loaded at their first use."""

    def __init__(self, *args: Any, table: Mapping[str, str], **kwargs: Any) -> None:
        """`table` has the form of `_COMMANDS`."""
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, name = self._table[cmd_name].split(":")
        try:
            with (
                _collector_off(),
                _hidden(_NOT_FOR_SERVE if module == "serve" else ()),
                needed("server", cmd_name),
            ):
                command = getattr(import_module(f"{__name__}.{module}"), name)
        except MissingExtra as missing:
            return _refusal(cmd_name, missing)
        assert isinstance(command, click.Command)
        return command


def _refusal(name: str, missing: MissingExtra) -> click.Command:
    """Stands for a command whose extra is not installed, and accepts every command line of it.
    Raises MissingExtra when it runs.
    """

    @click.command(
        name,
        short_help=f"Needs querator[{missing.extra}], which is not installed.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def refuse() -> None:
        what = click.get_current_context().command_path
        raise MissingExtra(missing.extra, what, missing.module)

    return refuse


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Turns the garbage collector off: loading makes many objects and no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _hidden(libraries: tuple[str, ...]) -> Iterator[None]:
    """Within the block, these libraries cannot be loaded, unless they were loaded before."""
    absent = [name for name in libraries if name not in sys.modules]
    # An import of a module that is None in this table raises ModuleNotFoundError.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@click.group(
    cls=LazyGroup, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="querator", prog_name="querator")
def querator() -> None:
    """A lease queue: acknowledged items are on disk, and each item is under at most one live lease.

    Exit codes: 0 done; 1 the command found something wrong, or serve could not start; 2 the command
    line or a setting is wrong; 3 the server refused the request; 4 no server answers; 5 the outcome
    is unknown; 6 serve was stopped by a failure; 130 and 143 ended by a signal.
    """


def main() -> None:
    """Runs the command line. Ends the process with its exit code and, after a failure, one line on
    standard error.
    """
    # This must be set before gRPC is loaded: gRPC's own messages would stand beside our one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        sys.exit(querator.main(prog_name="querator", standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "querator"
        _end(f"{error.format_message()} (see {path} --help)", error.exit_code)
    except click.ClickException as error:
        _end(error.format_message(), error.exit_code)
    except click.Abort:
        sys.exit(130)
    except MissingExtra as error:
        _end(str(error), 1)


def _end(message: str, exit_code: int) -> None:
    click.echo(f"Error: {message}", err=True)
    sys.exit(exit_code)
