"""The command `querator`. Exit codes are in `querator.cli.shared.failures`, those of `serve` in
`querator.cli.serve`. Code that works without a command line does not belong here.

A command's module is loaded when the command is used: `querator serve` loads no client, and the
other commands load neither the storage nor the Raft engine.

    bench               `bench`: load on a server, and its measurement
    breakers            `queue breaker`, and the options of breakers
    checkpoints         `checkpoint`: progress that is saved with a leased item
    cluster             `cluster`: state of the cluster, plan, repair of time
    cluster_pictures    views of a cluster as tables in a terminal
    cluster_views       views of a cluster, with its problems in sentences
    cluster_nodes       the sentences about single nodes
    completion          `completion`: the commands and options, for a shell
    consume             `consume`: a shell command for each item
    dead_groups         `dead groups`: dead letters counted by what they died of
    dead                `peek`, `prioritize` and `dead`: items without leases
    durable_worker      a worker process of durable functions
    execution_changes   the commands of `execution` that change one
    execution_lint      `execution lint`: what would not be the same in a replay
    execution_replays   the commands of `execution` that export and replay journals
    execution_views     executions, records and published values as JSON
    executions          `execution`: durable functions at work
    explain             `queue explain`: why consumers get no items
    export              `queue export`: items as JSON lines
    group_settings      options of `queue` for groups, and how they are shown
    groups              `group`: the groups of fair queues
    keys                `key`: the keys of keyed queues
    limits              options and texts of limits of leases
    live_leases         `leases`: live leases by client and age
    journals            records of executions as text
    leases              `lease`, `complete`, `retry`, `extend`
    letters             which dead letters a command is for: its options, and the letters
    locks               `lock`: a command while a lock is held, holders
    node                `node`: operations on one node
    pauses              `pause` and `resume` of `queue` and `group`
    produce             `produce`: items from arguments, lines, JSON lines or CSV
    queues              `queue`: queues and their settings
    readers             `reader`: readers and their named batches
    recurring           `recurring`: items that a queue produces by itself
    reference           the page docs/cli.md, made from the commands
    events              `events`: what happens to items and queues
    results             `result`: what the consumers of items have returned
    schedules           `schedule`: scheduled items by due time
    serve               `serve`: one node in a process of its own
    stats               `stats`: counts of queues
    transactions        `txn`: staged batches
    verify              `verify`: a full check of a data directory
    versions            `--version`: the versions of Querator and of the libraries under it
    worker              `worker`: a Python function for each item, or durable functions
    demo                `demo`, and code that it shares with the demo on Spark
    shared              options, output and errors that commands share
    spark               `spark`: pipelines between queues and files
"""

import contextlib
import difflib
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from querator.cli.shared.help import FittingContext, fit_help
from querator.extras import Extra, MissingExtra, needed, require


class LazyCommand(NamedTuple):
    """A command that is not loaded: `place` is its module in this package and its name in that
    module, `summary` its line in the list of commands, `extra` what it needs beyond a client.
    """

    place: str
    summary: str
    extra: Extra | None = None

    @property
    def line(self) -> str:
        """The summary, or what is missing."""
        try:
            if self.extra is not None:
                require(self.extra, "it")
        except MissingExtra as missing:
            return f"Needs querator[{missing.extra}], which is not installed."
        return self.summary


_COMMANDS: Final = {
    "serve": LazyCommand("serve:serve", "Run a node until SIGTERM or Ctrl-C.", "server"),
    "queue": LazyCommand(
        "queues:queue", "Create, show, explain, export, change, empty and delete queues."
    ),
    "produce": LazyCommand("produce:produce", "Put items into a queue."),
    "lease": LazyCommand("leases:lease", "Lease items and show them."),
    "complete": LazyCommand("leases:complete", "End a lease: the work is done."),
    "retry": LazyCommand("leases:retry", "End a lease: the work is to be done again."),
    "extend": LazyCommand("leases:extend", "Extend leases."),
    "result": LazyCommand("results:result", "Show what the consumers of items have returned."),
    "events": LazyCommand("events:events", "Show what happens to items and queues."),
    "leases": LazyCommand("live_leases:leases", "Show live leases, and end those of a consumer."),
    "checkpoint": LazyCommand("checkpoints:checkpoint", "Save how far the work on an item is."),
    "consume": LazyCommand("consume:consume", "Run a command for each item, or print the items."),
    "worker": LazyCommand(
        "worker:worker", "Call a function with each item, or run durable functions."
    ),
    "peek": LazyCommand("dead:peek", "Show items without leasing them."),
    "prioritize": LazyCommand("dead:prioritize", "Give waiting items another priority."),
    "cancel": LazyCommand("dead:cancel", "Remove waiting items."),
    "dead": LazyCommand("dead:dead", "Show and count dead letters, send them back, or drop them."),
    "group": LazyCommand("groups:group", "Show, pause and resume the groups of a fair queue."),
    "key": LazyCommand("keys:key", "Show the keys of a keyed queue, and skip items."),
    "schedule": LazyCommand("schedules:schedule", "Show, move, run and cancel scheduled items."),
    "recurring": LazyCommand("recurring:recurring", "Let queues produce items by themselves."),
    "execution": LazyCommand(
        "executions:execution", "Start, show, signal and end executions of durable functions."
    ),
    "lock": LazyCommand("locks:lock", "Run a command while a lock is held, and show holders."),
    "txn": LazyCommand("transactions:txn", "Show staged batches of a queue, and drop them."),
    "reader": LazyCommand("readers:reader", "Show readers, and take items back from them."),
    "stats": LazyCommand("stats:stats", "Show counts, once or repeatedly."),
    "cluster": LazyCommand("cluster:cluster", "Show the cluster, and repair time."),
    "node": LazyCommand("node:node", "Hand off, drain, remove, replace or restore a node."),
    "spark": LazyCommand("spark.spark:spark", "Move items between queues and files with Spark."),
    "verify": LazyCommand("verify:verify", "Check a data directory by a full scan.", "server"),
    "demo": LazyCommand("demo.demo:demo", "Push real data through a local cluster.", "server"),
    "bench": LazyCommand("bench:bench", "Measure a server."),
    "completion": LazyCommand("completion:completion", "Write the completion for a shell."),
}

_NOT_FOR_SERVERS: Final = ("cryptography", "rich")
"""structlog and PySyncObj load these libraries wherever they are installed. The commands that need
querator[server] use nothing of them, and they are a sixth of what `serve` would load.
"""


_OTHER_WORDS: Final = {
    "list": "List the queues with: querator queue list",
    "purge": "Did you mean 'queue purge'?",
    "clear": "Did you mean 'queue purge'?",
    "drop": "Did you mean 'dead drop'?",
    "redrive": "Did you mean 'dead redrive'?",
    "status": "Did you mean 'cluster status'?",
}
"""What to use instead of commands that other systems have."""


class LazyGroup(click.Group):
    """Commands by name, loaded at their first use: the help and the completion load none."""

    context_class = FittingContext

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, LazyCommand],
        other_words: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """`table`: the commands by name, in the order of the help. `other_words`: sentences for
        names that are no commands.
        """
        super().__init__(*args, **kwargs)
        self._table = table
        self._other_words = other_words or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        lazy = self._table[cmd_name]
        module, name = lazy.place.split(":")
        try:
            with (
                _collector_off(),
                _hidden(_NOT_FOR_SERVERS if lazy.extra == "server" else ()),
                needed("server", cmd_name),
            ):
                command = getattr(import_module(f"{__name__}.{module}"), name)
        except MissingExtra as missing:
            return _refusal(cmd_name, missing)
        assert isinstance(command, click.Command)
        fit_help(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click knows only commands that are loaded, and would suggest none.
        name = args[0]
        if name not in self._table and name[:1].isalnum() and not ctx.resilient_parsing:
            near = " or ".join(map(repr, difflib.get_close_matches(name, self._table)))
            hint = self._other_words.get(name, f"Did you mean {near}?" if near else "")
            ctx.fail(f"No such command {name!r}. {hint}".rstrip())
        found = super().resolve_command(ctx, args)
        if not gc.isenabled() and not isinstance(found[1], LazyGroup):
            # `main` has turned the collector off, and everything is loaded. The loaded objects live
            # as long as the process. Frozen, they are in no collection: the first one would take a
            # tenth of the processor time of a command.
            gc.freeze()
            gc.enable()
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.line) for name, lazy in self._table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [
            CompletionItem(name, help=lazy.summary)
            for name, lazy in self._table.items()
            if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of standard output has ended. What is left in the buffer goes nowhere.
            sys.stdout = open(os.devnull, "w")
            raise click.exceptions.Exit(128 + signal.SIGPIPE) from None


def _refusal(name: str, missing: MissingExtra) -> click.Command:
    """Stands for a command whose extra is not installed, and accepts every command line of it.
    Raises MissingExtra when it runs.
    """

    @click.command(
        name,
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


def _show_versions(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from querator.cli.versions import versions

    for name, version in versions():
        click.echo(f"{name} {version}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    table=_COMMANDS,
    other_words=_OTHER_WORDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show the versions of Querator and of the libraries under it.",
)
def querator() -> None:
    """A lease queue: acknowledged items are on disk, and each item is under at most one live lease.

    Exit codes: 0 done; 1 the command found something wrong, or serve could not start; 2 the command
    line or a setting is wrong; 3 the server refused the request; 4 no server answers; 5 the outcome
    is unknown; 6 serve was stopped by a failure; 7 the node of serve was removed; 130 and 143 ended
    by a signal; 141 standard output was closed.
    """


def main() -> None:
    """Runs the command line. Ends the process with its exit code and, after a failure, one line on
    standard error.
    """
    # Loading makes many objects and no garbage. The loaded command turns the collector on.
    gc.disable()
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
