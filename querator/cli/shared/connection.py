"""Options that commands share, and the client of a command."""

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from querator.cli.shared.failures import ExitCode, explained, failure_of
from querator.cli.shared.output import note
from querator.cli.shared.parameters import DURATION
from querator.cli.shared.similar_queues import similar_queues
from querator.cli.shared.wording import in_words
from querator.client import Client
from querator.client.client import CONNECT_TIMEOUT_DEFAULT
from querator.client.cluster import ClusterAdmin
from querator.client.errors import QueueNotFound
from querator.client.transport.waits import NO_LEADER
from querator.client.values import split_addresses
from querator.model import limits
from querator.wire.tls import Tls, TlsError

WAIT_NOTED_S: Final = 2.0
"""A command that waits so long for the cluster says what for."""
_LOOK_S: Final = 0.25
_TIMEOUT_MAX = timedelta(milliseconds=limits.REQUEST_TIMEOUT_MS_MAX)
_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The server and namespace of a command."""

    address: str
    namespace: str
    request_timeout: timedelta
    tls: Tls | None = None

    def client(self, client_id: str | None = None) -> Client:
        return Client(
            self.address,
            namespace=self.namespace,
            client_id=client_id,
            request_timeout=self.request_timeout,
            tls=self.tls,
        )

    def run(
        self, main: Callable[[Client], Awaitable[_Result]], *, client_id: str | None = None
    ) -> _Result:
        """Runs `main` with its own client. Raises `Failure` for the client's errors."""

        async def connected() -> _Result:
            async with self.client(client_id) as client:
                try:
                    return await saying_what_it_waits_for(client, main(client))
                except QueueNotFound as error:
                    if error.field != "queue" or not error.value:
                        raise
                    near = await similar_queues(client, error.value)
                    raise failure_of(error, similar=near) from error

        return self.finish(connected())

    def ask_cluster(self, main: Callable[[ClusterAdmin], Awaitable[_Result]]) -> _Result:
        """Like `run`, with a client for operators."""

        async def connected() -> _Result:
            async with self.cluster() as admin:
                return await main(admin)

        return self.finish(connected())

    def finish(self, main: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs `main` to its end. Raises `Failure` for the client's errors."""
        with explained():
            return run_to_end(main)

    def cluster(self) -> ClusterAdmin:
        return ClusterAdmin(
            self.address,
            request_timeout=self.request_timeout.total_seconds(),
            connect_timeout=CONNECT_TIMEOUT_DEFAULT.total_seconds(),
            tls=self.tls,
        )


async def saying_what_it_waits_for(client: Client, work: Awaitable[_Result]) -> _Result:
    """Returns the result of `work`. Notes once, on standard error, why its requests are repeated,
    when that takes longer than a moment.
    """

    async def watch() -> None:
        # It has no event: what counts is the time that has passed.
        while (reason := client.waits_for(WAIT_NOTED_S)) is None:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if NO_LEADER not in reason.message:
            note(f"Waiting: {in_words(reason).rstrip('.')}.")

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        return await work
    finally:
        watching.cancel()


def run_to_end(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs `main`. SIGTERM cancels it as Ctrl-C does, so `main` can clean up; then the exit code is
    143.
    """

    async def cancellable() -> _Result:
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise click.exceptions.Exit(ExitCode.TERMINATED) from None


def server_options(command: _Command) -> _Command:
    """Adds --address, --namespace, --request-timeout, --tls…, as the argument `target`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        address: str,
        namespace: str,
        request_timeout: timedelta,
        tls: bool,
        tls_ca: str,
        tls_cert: str,
        tls_key: str,
        **kwargs: Any,
    ) -> Any:
        if not timedelta(0) < request_timeout <= _TIMEOUT_MAX:
            raise click.BadParameter(
                "must be more than 0 and at most 15m.", param_hint="--request-timeout"
            )
        shown = None
        if tls or tls_ca or tls_cert or tls_key:
            try:
                shown = Tls.from_files(ca=tls_ca, cert=tls_cert, key=tls_key)
            except TlsError as error:
                raise click.UsageError(f"--tls: {error}") from error
        target = CommandTarget(address, namespace, request_timeout, shown)
        return command(*args, target=target, **kwargs)

    tls_flag = click.option(
        "--tls",
        is_flag=True,
        envvar="QUERATOR_TLS",
        show_envvar=True,
        help="Connect by TLS; each of the next three options implies it.",
    )
    return cast(_Command, decorated(wrapper, (*WHERE, tls_flag, *TLS_FILES)))


def _check_address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuses a malformed address, and names the option or the variable that has it."""
    assert parameter.name is not None
    in_environment = context.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT
    try:
        split_addresses(value, argument="QUERATOR_ADDRESS" if in_environment else "--address")
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    return value


def _tls_file(what: str, text: str) -> Callable[[Any], Any]:
    return click.option(
        f"--tls-{what}",
        envvar=f"QUERATOR_{what.upper()}",
        default="",
        show_envvar=True,
        metavar="FILE",
        help=f"{text} PEM.",
    )


WHERE = (
    click.option(
        "--address",
        envvar="QUERATOR_ADDRESS",
        default="127.0.0.1:4470",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        callback=_check_address,
        help="Address of the server: any node of a cluster, or several, separated by commas.",
    ),
    click.option(
        "--namespace",
        envvar="QUERATOR_NAMESPACE",
        default="default",
        show_default=True,
        show_envvar=True,
        metavar="NAME",
        help="Namespace of the queue.",
    ),
    click.option(
        "--request-timeout",
        type=DURATION,
        default="30s",
        show_default=True,
        help="How long a request is repeated before it counts as failed.",
    ),
)
"""Options for the server, the namespace and the request timeout."""
TLS_FILES = (
    _tls_file("ca", "Certificate authorities to trust; default: those that gRPC knows."),
    _tls_file("cert", "Client certificate, for a server that requires one."),
    _tls_file("key", "Key of --tls-cert."),
)


def stale_option(command: _Command) -> _Command:
    """Adds --stale, as the argument `stale`."""
    option = click.option(
        "--stale",
        is_flag=True,
        help="Read from any replica: it may be behind, and needs no leader.",
    )
    return option(command)


OUTPUT = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table, or JSON: one document, or for streams one document on each line.",
)


def output_option(command: _Command) -> _Command:
    """Adds --output, as the argument `as_json`."""

    @functools.wraps(command)
    def wrapper(*args: Any, output: str, **kwargs: Any) -> Any:
        return command(*args, as_json=output == "json", **kwargs)

    return cast(_Command, decorated(wrapper, (OUTPUT,)))


def decorated(wrapper: Any, options: tuple[Callable[[Any], Any], ...]) -> Any:
    """Adds the options, in this order."""
    for option in reversed(options):
        wrapper = option(wrapper)
    return wrapper
