"""`querator worker`: a Python function for each item of a queue, or durable functions.

The engine is `querator.worker`; that of durable functions is in `querator.cli.durable_worker`. This
module turns options into its arguments, and its errors into lines and exit codes: for one process,
or for each of several.

Longer than 500 lines, because of the options: they are listed once, with their help.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from querator.cli.durable_worker import DurableWork, durable_functions
from querator.cli.shared.connection import CommandTarget, decorated, server_options
from querator.cli.shared.failures import ExitCode, Failure, explained
from querator.cli.shared.parameters import (
    DELAY,
    DURATION,
    HANDLER_TIMEOUT,
    LEASE_TIMEOUT,
    WholeNumber,
    format_duration,
    is_given,
    option_name,
)
from querator.client import Client
from querator.client.consuming.consumer import CLOSE_SECONDS, CONCURRENCY_DEFAULT
from querator.client.consuming.policy import OnUndecodable
from querator.client.errors import NotFound
from querator.client.names import ClientName
from querator.durable import Durable
from querator.durable.lint import lint
from querator.durable.worker import CONCURRENCY_DEFAULT as EXECUTIONS_DEFAULT
from querator.extras import require
from querator.worker import log
from querator.worker.loading import LoadError, check_handler, load, load_exception
from querator.worker.supervisor import Supervisor
from querator.worker.worker import Worker

if TYPE_CHECKING:
    from querator.worker.child import Child
    from querator.worker.metrics import WorkerMetrics

_NAME_CHARS_MAX: Final = 40
_FINAL: Final = (ExitCode.USAGE, ExitCode.REFUSED)
"""Exit codes of a worker process that cannot begin: a new one would end in the same way."""
_BLOCKED_S: Final = 3.0
"""How long a handler may block the event loop when handlers have no more time."""
_END_S: Final = 2 * CLOSE_SECONDS + _BLOCKED_S
"""How long a process may take to end when its handlers have no more time: its consumer and its
client give items back, and wait for the answers.
"""
_FOR_ITEMS: Final = (
    "prefetch", "handler_timeout", "retry_on", "reject_on", "on_undecodable", "retry_delay",
    "retry_delay_max", "idle_exit", "until_empty", "metrics_port",
)  # fmt: skip
"""Parameters that durable functions do not have."""
_PAUSE_S: Final = 0.1
"""Between two checks of the event loop."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of the command, as each worker process gets them."""

    handler: str
    queue: str
    target: CommandTarget
    name: str
    create: bool
    concurrency: int | None
    errors: tuple[str, ...]
    strict: bool
    prefetch: int | None
    handler_timeout: timedelta | None
    retry_on: tuple[str, ...]
    reject_on: tuple[str, ...]
    on_undecodable: OnUndecodable
    retry_delay: timedelta
    retry_delay_max: timedelta
    lease_timeout: timedelta | None
    grace: timedelta
    idle_exit: timedelta | None
    until_empty: bool
    metrics: bool
    log_format: log.LogFormat
    log_level: str
    for_items: tuple[str, ...]
    """Options on the command line that durable functions do not have."""


def _handling_options(command: _Command) -> _Command:
    options = (
        click.option(
            "--concurrency",
            type=WholeNumber(1, 10_000),
            metavar="N",
            help="Items that each process handles at the same time, or executions that it runs; "
            "those that wait do not count. Default: "
            f"{CONCURRENCY_DEFAULT} items, or {EXECUTIONS_DEFAULT} executions.",
        ),
        click.option(
            "--prefetch",
            type=WholeNumber(min=1),
            metavar="N",
            help="Items that each process leases at most; default: as many as it handles at the "
            "same time. More speeds up quick handlers, and lets items wait behind slow ones.",
        ),
        click.option(
            "--handler-timeout",
            type=HANDLER_TIMEOUT,
            help="How long a handler may take; then its item is retried. An async handler is "
            "cancelled. A handler on a thread cannot be ended and continues, so that its item may "
            "be handled twice at the same time. Default: no limit.",
        ),
        click.option(
            "--retry-on",
            multiple=True,
            metavar="EXCEPTION",
            help="Retry only these exceptions, and reject all others; may be repeated. Default: "
            "retry every exception that --reject-on does not name.",
        ),
        click.option(
            "--reject-on",
            multiple=True,
            metavar="EXCEPTION",
            help="Exception after which an item becomes a dead letter; may be repeated.",
        ),
        click.option(
            "--error",
            "errors",
            multiple=True,
            metavar="EXCEPTION",
            help="Exception of durable functions that is raised as itself when it comes from a "
            "journal; may be repeated. Built-in ones always are.",
        ),
        click.option(
            "--strict",
            is_flag=True,
            help="Do not begin with durable functions in which `querator execution lint` finds "
            "something.",
        ),
        click.option(
            "--on-undecodable",
            type=click.Choice(["retry", "reject"]),
            default="retry",
            show_default=True,
            help="What becomes of an item whose item.json() or item.text() fails.",
        ),
        click.option(
            "--retry-delay",
            type=DELAY,
            default="1s",
            show_default=True,
            help="Delay after the first attempt; it doubles with each attempt, minus a random part "
            "of up to half. 0: the queue's retry policy decides.",
        ),
        click.option(
            "--retry-delay-max",
            type=DELAY,
            default="5m",
            show_default=True,
            help="Limit of the delay.",
        ),
        click.option(
            "--lease-timeout",
            type=LEASE_TIMEOUT,
            help="Default: the item's or the queue's. Leases are extended while a handler or an "
            "execution runs.",
        ),
    )
    return cast(_Command, decorated(command, options))


def _life_options(command: _Command) -> _Command:
    options = (
        click.option(
            "--grace",
            type=DURATION,
            default="30s",
            show_default=True,
            help="How long handlers and steps may take after a signal to stop.",
        ),
        click.option(
            "--idle-exit",
            type=DURATION,
            help="End when no item came for this time; default: never.",
        ),
        click.option("--until-empty", is_flag=True, help="End when no item is ready."),
        click.option(
            "--metrics-port",
            type=WholeNumber(0, 65_535),
            metavar="PORT",
            help="Serve Prometheus metrics of all processes at this port, under /metrics; 0: a "
            "free port, which the log names.",
        ),
        click.option(
            "--metrics-host",
            default="127.0.0.1",
            show_default=True,
            metavar="HOST",
            help="Address at which the metrics are served.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["auto", "text", "json"]),
            default="auto",
            show_default=True,
            help="Form of the log; auto: text on a terminal, else JSON.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            show_default=True,
            help="Least level of the lines in the log.",
        ),
    )
    return cast(_Command, decorated(command, options))


def _one_queue(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str:
    if len(given) > 1:
        raise click.BadParameter("a worker serves one queue: start one for each.")
    return given[0]


@click.command(short_help="Call a Python function with each item, or run durable functions.")
@click.argument("handler", metavar="MODULE[:NAME]")
@click.option(
    "--queue",
    required=True,
    # Click would keep the last one of several without a word.
    multiple=True,
    callback=_one_queue,
    metavar="QUEUE",
    help="Queue whose items are handled, or whose executions are run.",
)
@click.option(
    "--processes",
    type=WholeNumber(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Worker processes. A process that dies is replaced.",
)
@click.option(
    "--reload", is_flag=True, help="Start again when Python files below the directory change."
)
@click.option("--create", is_flag=True, help="Create the queue if it does not exist.")
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Name for the log and for the owner of leases; several workers may have the same.",
)
@_handling_options
@_life_options
@server_options
def worker(
    processes: int,
    reload: bool,
    metrics_port: int | None,
    metrics_host: str,
    **given: Any,
) -> None:
    """Call a Python function with each item of a queue, or run durable functions for executions.

    MODULE is imported from the working directory, or is installed. NAME is a function of one
    argument, the leased item (payload, text(), json(), kind, attributes, attempt, …). An async
    function runs on the event loop, another one on a thread.

    If NAME is a durable function or a list of them, or if MODULE alone has some, the worker runs
    these for the executions of the queue. Then --create makes a queue of kind executions, and the
    options about retries, prefetching, empty queues and metrics are refused: the steps say how they
    are retried.

    When the function returns, the item is completed. When it raises, the item is retried later,
    with growing delays, or becomes a dead letter: see --retry-on and --reject-on. The function may
    raise querator.Retry(delay=…) or querator.Reject("reason"). EXCEPTION is a built-in name, or
    module:Name. The lease is extended while the function runs.

    After Ctrl-C or SIGTERM no further item is begun. Handlers may finish within --grace. Then they
    are ended, and their items return to their places in the queue. A second signal ends them at
    once. The exit code is 0 after the first signal, 130 or 143 after a second one.

    \b
    Examples:
      querator worker tasks:send_mail --queue mail --concurrency 20
      querator worker shop.tasks:handle --queue orders --processes 4
      querator worker tasks:handle --queue mail --reject-on ValueError
      querator worker tasks:handle --queue mail --create --reload
      querator worker shop --queue shop --error shop:Declined
    """
    context = click.get_current_context()
    for_items = [one for one in context.command.params if one.name in _FOR_ITEMS]
    options = WorkerOptions(
        metrics=metrics_port is not None,
        for_items=tuple(option_name(one) for one in for_items if is_given(context, one.name or "")),
        **given,
    )
    _check(options)
    if reload:
        require("reload", "--reload")
    log.set_up(format_=options.log_format, level=options.log_level)
    if processes == 1 and not reload:
        with _metrics_served(metrics_host, metrics_port, directory=""):
            code = run_worker(options)
    else:
        with _metrics_directory(options.metrics) as directory:
            with _metrics_served(metrics_host, metrics_port, directory):
                code = _supervise(options, processes, reload=reload, directory=directory)
    raise click.exceptions.Exit(code)


def _check(options: WorkerOptions) -> None:
    if len(options.name) > _NAME_CHARS_MAX:
        raise click.BadParameter(
            f"has {len(options.name)} characters; at most {_NAME_CHARS_MAX}.", param_hint="--name"
        )
    if options.retry_delay_max < options.retry_delay:
        raise click.UsageError(
            f"--retry-delay-max is {format_duration(options.retry_delay_max)}, less than "
            f"--retry-delay {format_duration(options.retry_delay)}."
        )
    concurrency = options.concurrency or CONCURRENCY_DEFAULT
    if options.prefetch is not None and options.prefetch < concurrency:
        raise click.UsageError(
            f"--prefetch is {options.prefetch}, less than --concurrency {concurrency}."
        )
    if options.until_empty and options.idle_exit is not None:
        raise click.UsageError("Give only one of --until-empty and --idle-exit.")


# Several processes.


def _supervise(options: WorkerOptions, processes: int, *, reload: bool, directory: str) -> int:
    def forget(pid: int) -> None:
        if directory:
            from querator.worker.metrics import forget_process

            forget_process(pid, directory)

    if reload:
        # Byte code is taken for current by the second and the size of its source, so that a quick
        # change of one word might not be seen. The children inherit this.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    supervisor = Supervisor(
        run_child,
        options,
        processes=processes,
        grace=options.grace,
        final_codes=_FINAL,
        end_by_themselves=options.until_empty or options.idle_exit is not None,
        folder=Path.cwd() if reload else None,
        on_end=forget,
    )
    return supervisor.run()


def run_child(child: "Child", options: WorkerOptions) -> None:
    """A worker process. Ends it with its exit code and, after a failure, a line."""
    log.set_up(format_=options.log_format, level=options.log_level, process=child.number)
    try:
        code = run_worker(options, on_begin=child.ready)
    except click.ClickException as error:
        click.echo(f"Error: {error.format_message()}", err=True)
        code = error.exit_code
    sys.exit(code)


@contextlib.contextmanager
def _metrics_directory(wanted: bool) -> Iterator[str]:
    """The directory in which worker processes keep their values; empty if there are none."""
    if not wanted:
        yield ""
        return
    # querator.worker.metrics has the name; prometheus-client must be loaded after it is set.
    variable = "PROMETHEUS_MULTIPROC_DIR"
    if variable in os.environ:
        yield os.environ[variable]
        return
    with tempfile.TemporaryDirectory(prefix="querator-metrics-") as directory:
        os.environ[variable] = directory
        try:
            yield directory
        finally:
            del os.environ[variable]


@contextlib.contextmanager
def _metrics_served(host: str, port: int | None, directory: str) -> Iterator[None]:
    if port is None:
        yield
        return
    from querator.worker.metrics import MetricsServer

    try:
        server = MetricsServer(host, port, directory=directory)
    except OSError as error:
        raise Failure(f"Metrics cannot be served at {host}:{port}: {error}.") from error
    log.LOG.info("Metrics are served at http://%s:%d/metrics", host, server.port)
    try:
        yield
    finally:
        server.close()


# One process.


def run_worker(options: WorkerOptions, *, on_begin: Callable[[], None] | None = None) -> int:
    """Runs a worker in this process; returns its exit code. Raises Failure."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = load(options.handler)
        functions = durable_functions(found, options.handler)
        if not functions:
            check_handler(found, options.handler)
        errors = [load_exception(name) for name in options.errors]
        retry_on = [load_exception(name) for name in options.retry_on]
        reject_on = [load_exception(name) for name in options.reject_on]
    except LoadError as error:
        if error.details:
            click.echo(error.details, err=True, nl=False)
        raise Failure(str(error), ExitCode.USAGE) from error

    if functions:
        if options.for_items:
            raise click.UsageError(
                f"{options.handler} has durable functions, for which there is no "
                f"{' and no '.join(options.for_items)}."
            )
        if options.strict and (found := lint(functions)):
            raise Failure(
                "\n".join([f"{len(found)} found by lint:", *map(str, found)]), ExitCode.USAGE
            )
        with explained():
            return asyncio.run(_run_durable(options, functions, errors, on_begin))
    if errors:
        raise click.UsageError(f"--error is for durable functions, and {options.handler} is none.")
    if options.strict:
        raise click.UsageError(f"--strict is for durable functions, and {options.handler} is none.")
    metrics = _metrics() if options.metrics else None

    def make(client: Client) -> Worker:
        return Worker(
            client,
            options.queue,
            found,
            name=options.name,
            concurrency=options.concurrency or CONCURRENCY_DEFAULT,
            prefetch_items=options.prefetch,
            handler_timeout=options.handler_timeout,
            retry_on=retry_on,
            reject_on=reject_on,
            on_undecodable=options.on_undecodable,
            retry_first=options.retry_delay or None,
            retry_most=options.retry_delay_max,
            lease_timeout=options.lease_timeout,
            grace=options.grace,
            idle_timeout=options.idle_exit,
            create=options.create,
            metrics=metrics,
        )

    with explained():
        return asyncio.run(_work(options, make, on_begin))


def _metrics() -> "WorkerMetrics":
    from querator.worker.metrics import WorkerMetrics

    return WorkerMetrics()


async def _work(
    options: WorkerOptions,
    make: Callable[[Client], Worker],
    on_begin: Callable[[], None] | None,
) -> int:
    async with options.target.client(_client_id(options.name)) as client:
        try:
            worker = make(client)
        except ValueError as error:
            raise click.UsageError(f"{error}.") from error
        with _signals_stop(worker, options.grace) as numbers:
            try:
                await worker.run(until_empty=options.until_empty, on_begin=on_begin)
            except NotFound as error:
                raise _no_queue(options, "") from error
    return 128 + numbers[-1] if worker.cut_short else ExitCode.DONE


async def _run_durable(
    options: WorkerOptions,
    functions: tuple[Durable[..., Any], ...],
    errors: list[type[Exception]],
    on_begin: Callable[[], None] | None,
) -> int:
    async with options.target.client(_client_id(options.name)) as client:
        try:
            work = DurableWork(
                client, options.queue, functions, concurrency=options.concurrency, errors=errors,
                lease_timeout=options.lease_timeout, grace=options.grace, create=options.create,
            )  # fmt: skip
            with _signals_stop(work, options.grace) as numbers:
                await work.run(on_begin)
        except ValueError as error:
            raise Failure(f"{error}.", ExitCode.USAGE) from error
        except NotFound as error:
            raise _no_queue(options, " --kind executions") from error
    return 128 + numbers[-1] if work.cut_short else ExitCode.DONE


def _no_queue(options: WorkerOptions, kind: str) -> Failure:
    return Failure(
        f"There is no queue {options.queue}. Create it with: querator queue create "
        f"{options.queue}{kind}, or let the worker do it with --create.",
        ExitCode.REFUSED,
    )


def _client_id(name: str) -> str | None:
    """Each process is an owner of its own: two workers with one name do not share leases."""
    if not name:
        return None
    return f"{name}-{ClientName(None).here()}"


@contextlib.contextmanager
def _signals_stop(worker: Worker | DurableWork, grace: timedelta) -> Iterator[list[int]]:
    """Within the block, the first signal stops the worker, and the second one ends its handlers.
    Yields the list of signals that have come. Where handlers block the event loop, or the process
    does not end for another reason, it ends without them.
    """
    loop = asyncio.get_running_loop()
    numbers: list[int] = []

    def end(given_s: float, number: int) -> None:
        time.sleep(given_s)
        late_s = time.monotonic() + _END_S
        while time.monotonic() < late_s and _answers(loop):
            time.sleep(_PAUSE_S)
        os._exit(128 + number)

    def received(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        if len(numbers) > 2:
            return
        first = len(numbers) == 1
        loop.call_soon_threadsafe(worker.stop_by_signal, None if first else timedelta(0))
        given_s = grace.total_seconds() + _BLOCKED_S if first else 0.0
        threading.Thread(target=end, args=(given_s, number), daemon=True).start()

    taken = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        taken.append(signal.SIGINT)
    former = {number: signal.signal(number, received) for number in taken}
    try:
        yield numbers
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the event loop runs what it is given within `_BLOCKED_S`, or has ended."""
    answered = threading.Event()
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        return True
    return answered.wait(_BLOCKED_S)
