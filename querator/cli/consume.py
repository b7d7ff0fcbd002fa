"""`querator consume`: a command for each item, or the items on standard output."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import click

from querator.cli.explain import read_facts, reasons
from querator.cli.shared.connection import CommandTarget, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.item_command import Ended, run_command
from querator.cli.shared.item_printer import HELD_BYTES_MAX, HELD_ITEMS_MAX, ItemPrinter
from querator.cli.shared.output import count, note
from querator.cli.shared.parameters import (
    DELAY,
    DURATION,
    LEASE_TIMEOUT,
    WholeNumber,
    format_duration,
    is_given,
    option_name,
)
from querator.client import Client, Consumer, LeasedItem
from querator.client.consuming.consumer import PREFETCH_DEFAULT
from querator.client.consuming.policy import RetryDelays
from querator.client.errors import LeaseLost, RequestError
from querator.model import limits
from querator.model.cluster import LEASES_CONTINUE

REJECT_EXIT_CODE = 100
WAIT_CHECK_S = 3.0
"""After this time without an item the queue is checked; each further check comes later."""
WAIT_CHECK_S_MAX = 60.0
FULL_CHECK_S = 5.0
"""Limit of the time of the check for full storage when no item has come until --idle-exit."""


@dataclass(slots=True)
class _Tally:
    started: int = 0
    running: int = 0
    completed: int = 0
    retried: int = 0
    rejected: int = 0
    died: int = 0
    released: int = 0
    lost: int = 0

    def __str__(self) -> str:
        words = (
            f"{self.completed:,} completed, {self.retried:,} retried, {self.rejected:,} rejected"
        )
        if self.died:
            words += f", {self.died:,} out of attempts: dead letters"
        if self.released:
            words += f", {self.released:,} given back"
        if self.lost:
            words += f", {self.lost:,} with a lost lease"
        return words


@dataclass(frozen=True, slots=True)
class _Rules:
    """The command to run, and the meaning of its exit codes."""

    command: str
    queue: str
    reject_exit_code: int
    delays: RetryDelays
    limit: int | None


_OF_EXEC = ("concurrency", "reject_exit_code", "retry_delay", "retry_delay_max", "stop_timeout")
"""Options that have a meaning for a command only."""


@click.command()
@click.argument("queue")
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Shell command to run for each item; without it the items are printed.",
)
@click.option(
    "--complete",
    "completes",
    is_flag=True,
    help="Complete each item when it has been printed.",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Printed items: the payload and a line end, or one JSON document on each line.",
)
@click.option(
    "--concurrency",
    type=WholeNumber(1, 1_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Commands that run at the same time.",
)
@click.option(
    "--reject-exit-code",
    type=WholeNumber(1, 255),
    default=REJECT_EXIT_CODE,
    show_default=True,
    metavar="N",
    help="Exit code with which a command makes its item a dead letter.",
)
@click.option(
    "--retry-delay",
    type=DELAY,
    default="1s",
    show_default=True,
    help="Delay after the first attempt; it doubles with each attempt, minus a random part of up "
    "to half. 0: the queue's retry policy decides.",
)
@click.option(
    "--retry-delay-max",
    type=DELAY,
    default="5m",
    show_default=True,
    help="Limit of the delay.",
)
@click.option(
    "--lease-timeout",
    type=LEASE_TIMEOUT,
    help="Default: the item's or the queue's. Leases are extended while the command runs.",
)
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="End after N items.")
@click.option(
    "--idle-exit", type=DURATION, help="End when no item came for this time; default: never."
)
@click.option(
    "--stop-timeout",
    type=DURATION,
    default="10s",
    show_default=True,
    help="How long running commands may take after a signal to stop.",
)
@server_options
def consume(
    queue: str,
    command: str | None,
    completes: bool,
    output: str,
    concurrency: int,
    reject_exit_code: int,
    retry_delay: timedelta,
    retry_delay_max: timedelta,
    lease_timeout: timedelta | None,
    limit: int | None,
    idle_exit: timedelta | None,
    stop_timeout: timedelta,
    target: CommandTarget,
) -> None:
    """Run COMMAND for each item of QUEUE, or print the items.

    COMMAND has the payload on standard input. Its environment has QUERATOR_ITEM_ID,
    QUERATOR_LEASE_ID, QUERATOR_ATTEMPT, QUERATOR_QUEUE, QUERATOR_KIND, QUERATOR_ENCODING,
    QUERATOR_REFERENCE, QUERATOR_KEY, QUERATOR_GROUP and QUERATOR_ATTRIBUTES (a JSON object).

    Exit code 0 completes the item. The exit code of --reject-exit-code makes the item a dead
    letter. After any other exit code the item is retried later; its error is the end of the
    command's standard error.

    Without --exec, items are printed in the order in which they are leased. With --complete, an
    item is completed when it has been written. For work that must not be lost use --exec: a reader
    of the output that fails has no second chance. Without --complete, items stay leased until the
    command ends, which it does at 10,000 items or 64 MiB; then all are given back to their places,
    and the attempt does not count. `querator peek` shows items without leasing them.

    After Ctrl-C or SIGTERM no further item is begun. Running commands may finish within
    --stop-timeout. Then they are ended, and their items return to their places in the queue. A
    second signal ends them at once.

    If no item came until --idle-exit, the command says what the queue has instead, as `querator
    queue explain` does. The exit code is 4 if items are ready then, and storage is full on a node.

    \b
    Examples:
      querator consume mail --exec 'sendmail -t'
      querator consume images --exec './scale "$QUERATOR_KEY"' --concurrency 4
      querator consume mail --complete --limit 1
      querator consume mail --complete --output json --idle-exit 5s > mail.jsonl
    """
    if command is None:
        _check_given(_OF_EXEC, "is for --exec COMMAND")
        printer = ItemPrinter(output == "json", completes, limit)
        _print_items(target, queue, printer, lease_timeout, idle_exit)
        return
    _check_given(("completes", "output"), "is for printed items: leave out --exec")
    rules = _Rules(
        command=command,
        queue=queue,
        reject_exit_code=reject_exit_code,
        delays=RetryDelays(retry_delay, retry_delay_max),
        limit=limit,
    )
    tally = _Tally()

    async def main(client: Client) -> None:
        await client.get_queue(queue)
        consumer = client.consumer(
            queue,
            concurrency=concurrency,
            # Each command has a lease of its own. No item waits here for another command to end.
            prefetch_items=concurrency,
            batch_items=1,
            lease_timeout=lease_timeout,
            idle_timeout=idle_exit,
        )
        waits = _Waits(client, target, queue, lambda: tally.started, lambda: tally.running > 0)
        async with consumer, waits.explained():
            stopped = await _run_until_signal(consumer, rules, tally, concurrency, stop_timeout)
        if not stopped:
            await waits.check_idle_end()

    try:
        target.run(main)
    except OSError as error:
        raise Failure(f"{command!r} cannot be run: {error}.", ExitCode.WRONG) from error
    finally:
        note(f"{tally}.")


def _check_given(names: tuple[str, ...], problem: str) -> None:
    """Raises UsageError for an option among `names` that is on the command line."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and is_given(context, option.name):
            raise click.UsageError(f"{option_name(option)} {problem}.")


def _print_items(
    target: CommandTarget,
    queue: str,
    printer: ItemPrinter,
    lease_timeout: timedelta | None,
    idle_exit: timedelta | None,
) -> None:
    wanted = PREFETCH_DEFAULT if printer.completes else HELD_ITEMS_MAX
    prefetch = min(wanted, printer.limit or wanted)

    async def main(client: Client) -> None:
        await client.get_queue(queue)
        consumer = client.consumer(
            queue,
            prefetch_items=prefetch,
            # What is held must not use up the credit before the printer stops.
            prefetch_bytes=2 * HELD_BYTES_MAX,
            batch_items=min(limits.STREAM_BATCH_ITEMS_DEFAULT, prefetch),
            lease_timeout=lease_timeout,
            idle_timeout=idle_exit,
        )
        waits = _Waits(client, target, queue, lambda: printer.printed)
        signals: list[int] = []

        def stop(number: int) -> None:
            signals.append(number)
            consumer.stop()

        ended = False
        async with consumer, waits.explained():
            with _noticed(stop):
                ended = await printer.run(consumer)
            if ended and not signals:
                # While the printed items are still held: given back, they would count as ready.
                await waits.check_idle_end()

    try:
        target.run(main)
        if printer.broken is not None:
            raise printer.broken
    finally:
        note(f"{printer}.")


async def _run_until_signal(
    consumer: Consumer,
    rules: _Rules,
    tally: _Tally,
    concurrency: int,
    stop_timeout: timedelta,
) -> bool:
    """Returns whether a signal or the limit has stopped the consumer."""
    stopped = False

    async def handle(item: LeasedItem) -> None:
        nonlocal stopped
        tally.started += 1
        if rules.limit is not None and tally.started >= rules.limit:
            stopped = True
            consumer.stop()
        tally.running += 1
        try:
            ended = await run_command(rules.command, item, rules.queue)
        except asyncio.CancelledError:
            tally.released += 1
            raise
        finally:
            tally.running -= 1
        await _settle(item, ended, rules, tally, consumer)

    signals: asyncio.Queue[int] = asyncio.Queue()

    def signalled(number: int) -> None:
        nonlocal stopped
        stopped = True
        signals.put_nowait(number)

    with _noticed(signalled):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(consumer.run(handle, concurrency=concurrency))
            stopping = tasks.create_task(_stop(signals, consumer, running, stop_timeout))
            await asyncio.wait({running})
            stopping.cancel()
    return stopped


@dataclass(slots=True)
class _Waits:
    """Explains why no item comes. The stream itself cannot tell a queue without a leader, or one
    on full storage, from an empty one. `items` returns the number of items that have come.
    """

    client: Client
    target: CommandTarget
    queue: str
    items: Callable[[], int]
    busy: Callable[[], bool] = lambda: False
    """Whether an item is being worked on, so that it is no wonder that none comes."""
    noted: bool = False
    reasons_noted: bool = False

    @contextlib.asynccontextmanager
    async def explained(self) -> AsyncIterator[None]:
        """Within the block, the counts of the queue are read while no item comes. A refusal of that
        is logged by the client with its reason, for example that a partition has no leader. Full
        storage is noted once, and so is why no item has come at all.
        """
        # Owned: ended and awaited here.
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait((watching,))

    async def check_idle_end(self) -> None:
        """Raises Failure if items are ready, and did not come because storage is full. If no item
        has come, notes what the queue has instead.
        """
        with contextlib.suppress(RequestError, TimeoutError):
            async with asyncio.timeout(FULL_CHECK_S):
                if reason := await self._full():
                    raise Failure(reason, ExitCode.UNAVAILABLE)
                if not self.items():
                    await self._note_reasons("No item came")

    async def _watch(self) -> None:
        rest_s, before = WAIT_CHECK_S, self.items()
        while True:
            await asyncio.sleep(rest_s)
            if self.items() == before and not self.busy():
                with contextlib.suppress(RequestError):
                    if self.noted:
                        await self.client.stats(self.queue)
                    elif reason := await self._full():
                        self.noted = True
                        note(f"Waiting: {reason}")
                    elif not self.items() and not self.reasons_noted:
                        self.reasons_noted = await self._note_reasons("Waiting")
            before = self.items()
            rest_s = min(2 * rest_s, WAIT_CHECK_S_MAX)

    async def _note_reasons(self, begin: str) -> bool:
        """Notes why items of the queue are not leased. Returns whether there is something to say:
        not of an empty queue.
        """
        facts = await read_facts(self.client, self.target, self.queue)
        texts = [one.text for one in reasons(facts) if one.kind != "empty"]
        for text in texts:
            note(f"{begin}: {text}")
        return bool(texts)

    async def _full(self) -> str:
        """The sentence on full storage that keeps ready items back; empty: there is none."""
        ready = (await self.client.stats(self.queue)).total.ready
        if not ready:
            return ""
        async with self.target.cluster() as admin:
            seen = (await admin.picture()).conditions
        sentences = [one.condition.sentence for one in seen if one.condition.kind == "storage_full"]
        full = [sentence for sentence in sentences if LEASES_CONTINUE not in sentence]
        verb = "is" if ready == 1 else "are"
        return f"{count(ready, 'item')} of {self.queue} {verb} ready. {full[0]}" if full else ""


@contextlib.contextmanager
def _noticed(notice: Callable[[int], None]) -> Iterator[None]:
    """Within the block, `notice` is called with each SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, notice, number)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _stop(
    signals: "asyncio.Queue[int]",
    consumer: Consumer,
    running: "asyncio.Task[None]",
    stop_timeout: timedelta,
) -> None:
    """The first signal stops new work; the second signal or the timeout ends running commands."""
    await signals.get()
    consumer.stop()
    note(
        f"Stopping: running commands have {format_duration(stop_timeout)}; a second signal ends "
        "them at once."
    )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(stop_timeout.total_seconds()):
            await signals.get()
    running.cancel()


async def _settle(
    item: LeasedItem, ended: Ended, rules: _Rules, tally: _Tally, consumer: Consumer
) -> None:
    try:
        if ended.exit_code == 0:
            await item.complete()
            tally.completed += 1
        elif ended.exit_code == rules.reject_exit_code:
            await item.reject(ended.error)
            tally.rejected += 1
        else:
            await item.retry(delay=rules.delays.of(item.attempt) or None, error=ended.error)
            most = await consumer.max_attempts()
            if 0 < most <= item.attempt:
                tally.died += 1
            else:
                tally.retried += 1
    except LeaseLost:
        tally.lost += 1
        note(f"Item {item.id}: its lease was lost; another consumer may have the item.")
