"""The command `querator`. Exit codes are in `querator.cli.shared.failures`, those of `serve` in
`querator.cli.serve`.

A command's module is loaded when the command is used: `querator serve` loads no client, and the
others load neither the storage nor the Raft engine.

The modules and sub-packages:

    bench             `querator bench`: load on any server
    cluster           `querator cluster`: nodes and partitions on one screen
    cluster_pictures  tables and plans of a cluster for a terminal
    cluster_views     the state of a cluster in sentences
    consume           `querator consume`: a command for each item
    dead              `querator peek` and `querator dead`
    demo              `querator demo`
    leases            `querator lease`, `complete`, `retry`, `extend`
    node              `querator node`
    produce           `querator produce`
    queues            `querator queue`
    readers           `querator reader`
    reference         `docs/cli.md`, made from the commands
    serve             `querator serve`: one node in a process of its own
    shared            options, output and errors that commands share
    spark             `querator spark`
    stats             `querator stats`
    transactions      `querator txn`
    verify            `querator verify`: a full scan of a data directory
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import click

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
"""Name of the command → its module in this package and its name there."""

_NOT_FOR_SERVE: Final = ("cryptography", "rich")
"""structlog and PySyncObj load these wherever they are installed. `serve` uses nothing of them, and
they are a sixth of what it loads.
"""


class LazyGroup(click.Group):
    """Commands by name, loaded on first use."""

    def __init__(self, *args: Any, table: Mapping[str, str], **kwargs: Any) -> None:
        """`table` is as `_COMMANDS`."""
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, name = self._table[cmd_name].split(":")
        with _collector_off(), _hidden(_NOT_FOR_SERVE if module == "serve" else ()):
            command = getattr(import_module(f"{__name__}.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Loading makes many objects and no garbage: the collector's passes find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _hidden(libraries: tuple[str, ...]) -> Iterator[None]:
    """Within the block, libraries that are not loaded cannot be loaded."""
    absent = [name for name in libraries if name not in sys.modules]
    # An import of what is None here raises ModuleNotFoundError.
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
    """A lease queue: acknowledged items are on disk, and each is under at most one live lease.

    Exit codes: 0 done; 1 something is wrong with what was found, or serve could not start; 2 the
    command line or a setting is wrong; 3 refused; 4 no server; 5 the outcome is unknown; 6 serve
    stopped by a failure; 130, 143 ended by a signal.
    """


def main() -> None:
    """Runs the command line; ends the process with its exit code and, on failure, one line on
    standard error.
    """
    # Before gRPC is loaded: what it writes by itself would stand beside our one line.
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


def _end(message: str, exit_code: int) -> None:
    click.echo(f"Error: {message}", err=True)
    sys.exit(exit_code)
