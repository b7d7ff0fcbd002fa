"""`querator lock`: run a command while a lock is held, and see the holders of locks."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Self

import click
import msgspec

from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import note, write_json_lines, write_table
from querator.cli.shared.parameters import (
    DELAY,
    DURATION,
    DurationType,
    WholeNumber,
    format_duration,
)
from querator.cli.shared.tables import Column
from querator.cli.shared.texts import age_text, whole_duration
from querator.client import Client, Holding, LockHolder, Semaphore
from querator.client.errors import LockLost, LockMismatch, LockTimeout, RequestError
from querator.client.locks.lock import LEASE_TIMEOUT_DEFAULT
from querator.model import limits

NOT_FREE: Final = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""
LOST: Final = 76

_LEASE_TIMEOUT = DurationType(
    least_ms=limits.LOCK_TIMEOUT_MS_MIN, most_ms=limits.LEASE_TIMEOUT_MS_MAX
)

_permits_option = click.option(
    "--permits",
    type=WholeNumber(min=1, max=limits.LOCK_PERMITS_MAX),
    metavar="N",
    help="NAME is a semaphore with N permits, not a lock.",
)


class LockHolderView(msgspec.Struct, frozen=True):
    """A holder, as `--output json` prints it."""

    holder: str
    token: int
    since: datetime
    deadline: datetime


@click.group()
def lock() -> None:
    """Run a command while a lock is held, and show the holders of locks."""


@lock.command(short_help="Run a command while a lock is held.")
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@_permits_option
@click.option("--wait", type=DELAY, help="How long to wait for the lock; default: as it takes.")
@click.option(
    "--lease-timeout",
    type=_LEASE_TIMEOUT,
    default=format_duration(LEASE_TIMEOUT_DEFAULT),
    show_default=True,
    help="After this time without an extension the lock is lost; from 2s to 24h.",
)
@click.option("--holder", default="", metavar="TEXT", help="The name that others see.")
@click.option(
    "--kill-after",
    type=DURATION,
    default="5s",
    show_default=True,
    help="How long the command may take to end when the lock is lost.",
)
@server_options
def run(
    name: str,
    command: tuple[str, ...],
    permits: int | None,
    wait: timedelta | None,
    lease_timeout: timedelta,
    holder: str,
    kill_after: timedelta,
    target: CommandTarget,
) -> None:
    """Wait for the lock NAME, and run COMMAND while it is held.

    COMMAND gets the fencing token as the environment variable QUERATOR_LOCK_TOKEN: a number that is
    higher for each later holder, for stores to compare. When the lock is lost, the command gets
    SIGTERM, and SIGKILL after --kill-after. Another holder may run by then. SIGTERM and Ctrl-C
    reach the command, and this one ends with it.

    The exit code is that of the command, or 128 + the number of the signal that ended it. It is 75
    when the lock was not free within --wait, 76 when the lock was lost, 126 or 127 when the command
    cannot be run. Put -- before the command, so that its options are its own.

    \b
    Examples:
      querator lock run nightly -- ./report.sh
      querator lock run licences --permits 10 --wait 1m -- make simulation
    """

    async def main(client: Client) -> int:
        chosen = _chosen(client, name, permits, lease_timeout=lease_timeout, holder=holder)
        try:
            holding = await chosen.acquire(timeout=wait)
        except LockTimeout:
            note(f"{chosen.name} was not free in time.")
            return NOT_FREE
        except LockMismatch as error:
            raise Failure(str(error), ExitCode.REFUSED) from error
        return await _run_held(holding, command, kill_after)

    raise click.exceptions.Exit(target.run(main))


@lock.command(short_help="Show the holders of a lock.")
@click.argument("name")
@click.option("--semaphore", is_flag=True, help="NAME is a semaphore.")
@click.option("--election", is_flag=True, help="NAME is an election.")
@server_options
@output_option
def show(name: str, semaphore: bool, election: bool, target: CommandTarget, as_json: bool) -> None:
    """Show the holder of the lock NAME: its name, its fencing token, and since when it holds it.

    A holder that has died is shown until its lease ends. With --output json each holder is a line.
    `querator leases release` ends the lease of a holder that hangs.

    \b
    Examples:
      querator lock show nightly
      querator lock show licences --semaphore
    """
    if semaphore and election:
        raise click.UsageError("Give --semaphore or --election.")

    async def main(client: Client) -> list[LockHolder]:
        if semaphore:
            return await client.semaphore(name, 1).holders()
        if election:
            return await client.election(name).holders()
        return await client.lock(name).holders()

    with _names_refused():
        found = target.run(main)
    if as_json:
        write_json_lines(
            LockHolderView(one.holder, one.token, one.since, one.deadline) for one in found
        )
    elif not found:
        note(f"{name} is free.")
    else:
        write_table(
            (Column("holder", cut=True), Column("token", keep=True), "held for", "ends in"),
            (
                (
                    one.holder,
                    str(one.token),
                    age_text(one.since),
                    whole_duration(one.deadline - datetime.now(one.deadline.tzinfo)),
                )
                for one in found
            ),
        )


def _chosen(
    client: Client, name: str, permits: int | None, *, lease_timeout: timedelta, holder: str
) -> Semaphore:
    with _names_refused():
        if permits is None:
            return client.lock(name, lease_timeout=lease_timeout, holder=holder)
        return client.semaphore(name, permits, lease_timeout=lease_timeout, holder=holder)


@contextlib.contextmanager
def _names_refused() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


async def _run_held(holding: Holding, command: tuple[str, ...], kill_after: timedelta) -> int:
    """Runs the command, and gives the lock back when it has ended. Returns the exit code."""
    with _Signals() as signals:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, "QUERATOR_LOCK_TOKEN": str(holding.token)}
            )
        except OSError as error:
            await holding.release()
            note(f"{command[0]}: {error.strerror}.")
            return 127 if isinstance(error, FileNotFoundError) else 126
        signals.go_to(process)
        await _end_or_loss(process, holding, kill_after)
    try:
        await holding.release()
    except LockLost:
        return LOST
    except RequestError as error:
        note(f"The lock was not given back, and is free when its lease ends: {error.message}.")
    code = process.returncode
    assert code is not None, "the command has ended"
    return code if code >= 0 else 128 - code


async def _end_or_loss(
    process: asyncio.subprocess.Process, holding: Holding, kill_after: timedelta
) -> None:
    """Waits until the command has ended, and ends it when the lock is lost."""
    loop = asyncio.get_running_loop()
    losing = loop.create_task(holding.until_lost())
    ending = loop.create_task(process.wait())
    try:
        await asyncio.wait((losing, ending), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            note(f"Lock {holding.name} is lost: the command is ended.")
            process.terminate()
            await asyncio.wait((ending,), timeout=kill_after.total_seconds())
    finally:
        losing.cancel()
        if not ending.done():
            process.kill()
        await ending


class _Signals:
    """In its block, the signals that end this command go to its child instead."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._early: list[int] = []

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _PASSED_ON:
            loop.add_signal_handler(number, self._got, number)
        return self

    def __exit__(self, *error: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _PASSED_ON:
            loop.remove_signal_handler(number)

    def go_to(self, child: asyncio.subprocess.Process) -> None:
        """From here on; those that came before reach it now."""
        self._child = child
        early, self._early = self._early, []
        for number in early:
            self._got(number)

    def _got(self, number: int) -> None:
        if number == signal.SIGINT and sys.stdin.isatty():
            # A Ctrl-C at a terminal reaches the child by itself.
            return
        if self._child is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)


_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
