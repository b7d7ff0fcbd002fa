"""`querator produce`: items from arguments, files, lines, JSON lines or CSV.

Longer than 500 lines: one command whose options depend on each other, and its help, which says so.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.feed import Feed
from querator.cli.shared.item_results import write_results
from querator.cli.shared.item_template import item_retry_options, item_template
from querator.cli.shared.output import count, note, write_json
from querator.cli.shared.parameters import (
    ABOVE_ZERO,
    ATTRIBUTE,
    DELAY,
    EXPIRE_TIMEOUT,
    INSTANT,
    LEASE_TIMEOUT,
    PRIORITY,
    WAIT,
    DurationType,
)
from querator.cli.shared.refused_lines import RefusedLines
from querator.cli.shared.sources import (
    CsvColumns,
    InputLine,
    SourceError,
    read_arguments,
    read_csv,
    read_files,
    read_json_files,
    read_json_lines,
    read_lines,
    with_dedup_keys,
)
from querator.cli.shared.views import ProduceView
from querator.cli.shared.wording import field_name, in_words
from querator.client import Client, Item, Producer
from querator.client.errors import RequestError
from querator.client.options import ProducerOptions
from querator.client.replies import KEEP_RESULT_DEFAULT, ItemResult
from querator.client.values import ON_DUPLICATE, ProducedItem
from querator.model import limits
from querator.model.errors import ERRORS, ErrorCode

PROGRESS_LINES = 1_000
"""The progress of a file is shown after this number of lines."""
_Source = Callable[[], Iterator[InputLine]]
_ITEM_AT_FAULT = {ErrorCode.INVALID_ARGUMENT, ErrorCode.LIMIT_EXCEEDED, ErrorCode.ITEM_TOO_LARGE}


@dataclass(slots=True)
class _Tally:
    template: Item
    """What the options say of all items."""
    produced: int = 0
    duplicates: int = 0
    replaced: int = 0
    refusals: RefusedLines = field(default_factory=RefusedLines)
    failure: RequestError | None = None
    """The failure that ends the run; it is not the fault of one item."""
    failed: InputLine | None = None
    """The first line that `failure` affects."""
    work: asyncio.Timeout | None = None
    """Of all lines that are being produced."""
    ids: list[str] = field(default_factory=list)
    keep_ids: bool = False

    @property
    def refused(self) -> int:
        return self.refusals.total

    def settle(self, line: InputLine, future: "asyncio.Future[ProducedItem]") -> None:
        if future.cancelled() or self.option_failed:
            return
        error = future.exception()
        if error is None:
            item = future.result()
            self.produced += not item.duplicate
            self.duplicates += item.duplicate
            self.replaced += item.replaced is not None
            if self.keep_ids:
                self.ids.append(str(item))
        elif isinstance(error, RequestError):
            self.fail(line, error)

    def fail(self, line: InputLine, error: RequestError) -> None:
        if error.code in _ITEM_AT_FAULT and self._is_of_option(line, error):
            self.failure, self.failed = error, None
            assert self.work is not None
            self.work.reschedule(0)
        elif error.code in _ITEM_AT_FAULT:
            delayed = line.item is not None and line.item.delay is not None
            name = "delay" if delayed and field_name(error) == "enqueue_at" else ""
            self.refusals.add(line.place, in_words(error, of_option=False, name=name))
        elif self.failed is None or line.number < self.failed.number:
            self.failure, self.failed = error, line

    @property
    def option_failed(self) -> bool:
        """Whether an option is at fault: all lines would be refused."""
        return self.failure is not None and self.failed is None

    def _is_of_option(self, line: InputLine, error: RequestError) -> bool:
        """Whether the value at fault is that of an option: then all items have it."""
        name = field_name(error)
        names = ("delay", "enqueue_at") if name == "enqueue_at" else (name,)
        return any(
            (value := getattr(self.template, one, None)) and getattr(line.item, one) == value
            for one in names
        )


@click.command()
@click.argument("queue")
@click.argument("payloads", nargs=-1, metavar="[PAYLOAD]...")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="The whole FILE is one item, or with --json-lines an item for each line; - is standard "
    "input. May be repeated.",
)
@click.option(
    "--json-lines",
    is_flag=True,
    help="Standard input, or each --file, has a JSON object on each line: "
    '{"payload": …, "key": …}.',
)
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    help="Read a CSV file; its first line names the columns. With -, read standard input. Each "
    "row is a JSON object of texts.",
)
@click.option(
    "--payload-column", default="", metavar="COLUMN", help="CSV: this column alone is the payload."
)
@click.option("--reference-column", default="", metavar="COLUMN", help="CSV: the item's reference.")
@click.option("--kind-column", default="", metavar="COLUMN", help="CSV: the item's kind.")
@click.option("--key-column", default="", metavar="COLUMN", help="CSV: the item's key.")
@click.option("--group-column", default="", metavar="COLUMN", help="CSV: the item's group.")
@click.option("--dedup-column", default="", metavar="COLUMN", help="CSV: the item's dedup key.")
@click.option("--kind", default="", help="Kind of work, for example email.")
@click.option(
    "--encoding", default="", help="Encoding of the payload, for example application/json."
)
@click.option("--reference", default="", help="Your own name for the item.")
@click.option(
    "--key",
    default="",
    help="Ordering key: items with the same key go to one partition; with --ordered they are "
    "leased in the order of the input.",
)
@click.option("--group", default="", help="Group, in a fair queue: for example eu.de.")
@click.option(
    "--priority",
    type=PRIORITY,
    metavar="N",
    help="Priority; the lowest is leased first. 0 unless given.",
)
@click.option(
    "--attribute",
    "attributes",
    type=ATTRIBUTE,
    multiple=True,
    help="An attribute of the item; may be repeated.",
)
@click.option("--delay", type=DELAY, help="Not leased before this time has passed.")
@click.option(
    "--at",
    "enqueue_at",
    type=INSTANT,
    help="Not leased before this instant (UTC, unless it has an offset).",
)
@click.option(
    "--expire-timeout",
    type=EXPIRE_TIMEOUT,
    help="The item expires if it is not leased in this time.",
)
@click.option("--lease-timeout", type=LEASE_TIMEOUT, help="How long a lease of the item lasts.")
@item_retry_options
@click.option(
    "--dedup-key",
    default="",
    help=(
        "For one item: it is stored once in the queue's dedup window, even if the command is "
        "repeated."
    ),
)
@click.option(
    "--dedup-prefix",
    default="",
    metavar="TEXT",
    help="The dedup key of line N is TEXT:N, so that a load of the same lines can be repeated "
    "after a failure, within the queue's dedup window (1h by default).",
)
@click.option(
    "--dedup-content",
    is_flag=True,
    help="The dedup key of each item without one is a hash of its kind and payload.",
)
@click.option(
    "--on-duplicate",
    type=click.Choice(ON_DUPLICATE),
    help="What happens if an item with the dedup key waits: the new one is not stored (keep; the "
    "default), takes its place (replace), or does so and starts at its own --delay or --at (bump).",
)
@click.option(
    "--debounce-max",
    type=DurationType(least_ms=limits.DEBOUNCE_MAX_MS_MIN, most_ms=limits.DEBOUNCE_MAX_MS_MAX),
    help="With --on-duplicate bump: the item starts at most this long after the first produce with "
    "its dedup key, 1s to 7d; default: 1h.",
)
@click.option(
    "--keep-result",
    type=DurationType(least_ms=limits.KEEP_RESULT_MS_MIN, most_ms=limits.KEEP_RESULT_MS_MAX),
    help="How long the result of the item is kept after its end, for `querator result`; 1s to 1h.",
)
@click.option(
    "--wait",
    type=WAIT,
    help="Wait up to this time until the items have ended, and show their results: for PAYLOAD and "
    "--file.",
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Keep the order: of the items of each key, and of all items without a key, which go to "
    "one partition.",
)
@click.option(
    "--rate",
    type=ABOVE_ZERO,
    metavar="N",
    help="At most N items per second.",
)
@server_options
@output_option
def produce(
    queue: str,
    payloads: tuple[str, ...],
    files: tuple[str, ...],
    json_lines: bool,
    csv_file: str | None,
    dedup_prefix: str,
    dedup_content: bool,
    ordered: bool,
    rate: float | None,
    wait: timedelta | None,
    target: CommandTarget,
    as_json: bool,
    **fields: object,
) -> None:
    """Put items into QUEUE: each PAYLOAD, each --file, or each line of standard input.

    A payload of several lines comes from a file, or from standard input with --file -. Without
    PAYLOAD and --file each line of standard input is an item, and blank lines are left out.

    Every item is durable when the command ends. Refused lines are counted and reported on standard
    error, and the other lines are produced; then the exit code is 1.

    A line of --json-lines is an object. It has payload (a string, or any JSON value that is stored
    as it is) or payload_base64. Its other fields are optional: kind, encoding, reference,
    attributes, priority, group, key, enqueue_at, delay, expire_timeout, lease_timeout, dedup_key,
    on_duplicate, debounce_max, keep_result, max_attempts, retry (an object of delay, delay_max,
    backoff, jitter). Options of these names hold for items without such a field. The lines of
    `querator queue export` are such lines.

    A row of --csv becomes a JSON object, unless --payload-column names the payload.

    \b
    Examples:
      querator produce mail 'hello' 'and again'
      querator produce mail --delay 5m --kind reminder 'later'
      querator produce mail --wait 30s 'hello'
      querator produce mail --file letter.eml --file other.eml
      ./report | querator produce mail --file -
      seq 1000 | querator produce numbers --rate 100
      querator produce flights --csv flights.csv --key-column tailnum
      echo '{"payload": {"to": "ann"}}' | querator produce mail --json-lines
    """
    columns = _columns(fields, csv_file)
    _check_one_source(payloads, files, json_lines, csv_file)
    dedup_key = fields.pop("dedup_key")
    _check_dedup(
        {
            "--dedup-prefix": bool(dedup_prefix),
            "--dedup-content": dedup_content,
            "--dedup-column": bool(columns.dedup_key) and not dedup_content,
            "--dedup-key": bool(dedup_key),
        }
    )
    _check_single(payloads, files, str(dedup_key), json_lines)
    keyed = dedup_key or dedup_prefix or dedup_content or columns.dedup_key or json_lines
    _check_on_duplicate(fields, keyed=bool(keyed))
    single = bool(payloads or (files and not json_lines))
    _check_wait(fields, wait, single=single)
    template = msgspec.structs.replace(item_template(fields), dedup_key=str(dedup_key))
    if payloads:
        source: _Source = partial(read_arguments, payloads, template)
    elif files:
        source = partial(read_json_files if json_lines else read_files, files, _stdin, template)
    else:
        source = _line_source(json_lines, csv_file, columns, template)
    if dedup_prefix:
        source = partial(with_dedup_keys, source, dedup_prefix)
    tally = _Tally(template, keep_ids=single)
    results: list[ItemResult] = []
    began = time.monotonic()

    async def main(client: Client) -> None:
        await client.get_queue(queue)
        try:
            options = ProducerOptions(ordered=ordered, dedup_by_content=dedup_content)
            await _produce(client, queue, source, tally, options=options, rate=rate)
        except OSError as error:
            raise Failure(f"{error.filename or 'The input'}: {error.strerror}.") from error
        except SourceError as error:
            raise Failure(f"{csv_file}: {error}.") from error
        if wait is not None and tally.ids:
            results.extend(await client.results(queue, tally.ids, timeout=wait))

    finished = False
    try:
        target.run(main)
        finished = True
    finally:
        tally.refusals.close()
        if not finished:
            _explain_stop(tally)
    _report(tally, queue, time.monotonic() - began, results=results, as_json=as_json)
    if tally.refused:
        raise click.exceptions.Exit(ExitCode.WRONG)


def _check_one_source(
    payloads: tuple[str, ...], files: tuple[str, ...], json_lines: bool, csv_file: str | None
) -> None:
    if json_lines and payloads:
        raise click.UsageError(
            "Give only one of payloads and --json-lines, which reads standard input or --file: "
            f"--json-lines --file {payloads[0]}"
        )
    if (csv_file is not None) + (json_lines or bool(files)) + bool(payloads) > 1:
        raise click.UsageError("Give only one of payloads, --file, --json-lines and --csv.")


def _check_dedup(given: dict[str, bool]) -> None:
    options = [option for option, is_given in given.items() if is_given]
    if len(options) > 1:
        both = " and ".join(options[:2])
        raise click.UsageError(f"{both} both give the dedup keys: give one.")


def _check_on_duplicate(fields: dict[str, object], *, keyed: bool) -> None:
    what = fields["on_duplicate"]
    if what is not None and not keyed:
        raise click.UsageError("--on-duplicate needs a dedup key: give --dedup-key.")
    if fields["debounce_max"] is not None and what != "bump":
        raise click.UsageError("--debounce-max needs --on-duplicate bump.")
    if what == "bump" and fields["delay"] is None and fields["enqueue_at"] is None:
        raise click.UsageError("--on-duplicate bump needs --delay or --at.")


def _check_single(
    payloads: tuple[str, ...], files: tuple[str, ...], dedup_key: str, json_lines: bool
) -> None:
    if files.count("-") > 1:
        raise click.UsageError("Standard input can be read once: give --file - once.")
    if dedup_key and (json_lines or len(payloads) + len(files) != 1):
        raise click.UsageError(
            "--dedup-key is for one PAYLOAD or one --file; for many use --dedup-prefix."
        )


def _check_wait(fields: dict[str, object], wait: timedelta | None, *, single: bool) -> None:
    """With --wait, the results are kept also when --keep-result is not given."""
    if wait is None:
        return
    if not single:
        raise click.UsageError("--wait is for PAYLOAD and --file; see: querator result")
    if fields["keep_result"] is None:
        fields["keep_result"] = KEEP_RESULT_DEFAULT


def _columns(fields: dict[str, object], csv_file: str | None) -> CsvColumns:
    names = ("payload", "kind", "key", "group", "reference")
    chosen = {name: str(fields.pop(f"{name}_column")) for name in names}
    columns = CsvColumns(**chosen, dedup_key=str(fields.pop("dedup_column")))
    if csv_file is None and columns != CsvColumns():
        raise click.UsageError("Column options need --csv FILE.")
    return columns


def _stdin() -> BinaryIO:
    # sys.stdin.buffer is not used: the interpreter locks it at its end, when the feed's thread may
    # still be in a read.
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _line_source(
    json_lines: bool, csv_file: str | None, columns: CsvColumns, template: Item
) -> _Source:
    if csv_file is not None and csv_file != "-":
        return partial(_csv_lines, Path(csv_file), columns, template)
    stdin = _stdin()
    if stdin.isatty():
        note("Type one item on each line; Ctrl-D ends.")
    if csv_file is not None:
        return lambda: read_csv(stdin, columns, template)
    return lambda: (read_json_lines if json_lines else read_lines)(stdin, template)


def _csv_lines(path: Path, columns: CsvColumns, template: Item) -> Iterator[InputLine]:
    """Lines of a CSV file. Shows the progress on a terminal."""
    with (
        path.open("rb", buffering=1 << 20) as file,
        click.progressbar(
            length=os.fstat(file.fileno()).st_size,
            label=path.name,
            file=sys.stderr,
            hidden=not sys.stderr.isatty(),
        ) as bar,
    ):
        # A pipe has neither a size nor a position.
        shows = file.seekable()
        for line in read_csv(file, columns, template):
            if shows and line.number % PROGRESS_LINES == 0:
                bar.update(file.tell() - bar.pos)
            yield line
        bar.update((bar.length or 0) - bar.pos)


async def _produce(
    client: Client,
    queue: str,
    source: _Source,
    tally: _Tally,
    *,
    options: ProducerOptions,
    rate: float | None,
) -> None:
    """Fills `tally`. Raises the failure that ended the run, if there is one."""
    try:
        async with (
            client.producer(queue, **options) as producer,
            # It ends when an option fails, without the answers to the lines that are on their way.
            asyncio.timeout(None) as tally.work,
        ):
            await _submit_all(producer, source, tally, rate)
            await producer.flush()
    except TimeoutError:
        if not tally.option_failed:
            raise
    except RequestError as error:
        # On exit the producer raises the first failure, even of lines that are already counted.
        if tally.failure is None and error.code not in _ITEM_AT_FAULT:
            raise
    if tally.failure is not None:
        raise tally.failure


async def _submit_all(
    producer: Producer,
    source: _Source,
    tally: _Tally,
    rate: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    async for chunk in Feed(source):
        for line in chunk:
            if tally.failure is not None:
                return
            if line.item is None:
                tally.refusals.add(line.place, line.problem)
                continue
            if rate is not None:
                # The rate allows no long burst after a slow source.
                due = max(due + 1 / rate, loop.time() - 1)
                if (ahead := due - loop.time()) > 0:
                    await asyncio.sleep(ahead)
            try:
                future = await producer.submit(line.item)
            except RequestError as error:
                if error.code not in _ITEM_AT_FAULT:
                    raise
                tally.fail(line, error)
                continue
            future.add_done_callback(partial(tally.settle, line))


def _explain_stop(tally: _Tally) -> None:
    known = count(tally.produced + tally.duplicates, "item")
    if tally.option_failed:
        return
    if tally.failed is not None:
        note(f"Stopped: {known} acknowledged; {tally.failed.place} is the first that is not.")
    elif tally.produced:
        note(f"Stopped: {known} acknowledged.")
    if tally.failure is not None and ERRORS[tally.failure.code].retriable and tally.produced:
        note("With --dedup-prefix the same command can be repeated without storing items twice.")


def _report(
    tally: _Tally,
    queue: str,
    seconds: float,
    *,
    results: Sequence[ItemResult],
    as_json: bool,
) -> None:
    """`results` are those of the items, if the command has waited for them."""
    if results:
        write_results(results, as_json=as_json)
        return
    if as_json:
        write_json(
            ProduceView(
                produced=tally.produced,
                duplicates=tally.duplicates,
                replaced=tally.replaced,
                refused=tally.refused,
                seconds=round(seconds, 3),
                items_per_second=round(tally.produced / seconds, 1),
                ids=tally.ids if tally.keep_ids else None,
            )
        )
        return
    if tally.keep_ids:
        for item_id in tally.ids:
            click.echo(item_id)
        return
    words = f"Produced {count(tally.produced, 'item')} into {queue} in {seconds:.1f} s"
    if tally.produced > 1:
        words += f" ({tally.produced / seconds:,.0f} per second)"
    if tally.duplicates:
        words += f"; {tally.duplicates:,} were there already"
    if tally.replaced:
        words += f"; {tally.replaced:,} replaced waiting ones"
    if tally.refused:
        words += f"; {count(tally.refused, 'line')} refused"
    click.echo(f"{words}.")
