"""Shared options of the commands of `querator spark`, and a run from session to summary."""

import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, Final, TypeVar, cast

import click
import msgspec

from querator.cli.shared.connection import OUTPUT, TLS_FILES, WHERE, decorated
from querator.cli.shared.failures import ExitCode, Failure, explained
from querator.cli.shared.output import count, note, write_details, write_json
from querator.cli.shared.parameters import ATTRIBUTE, NUMBER, WholeNumber
from querator.cli.spark.queues import find_queues
from querator.cli.spark.words import as_typed, sentence
from querator.client import QueueInfo
from querator.extras import install_command
from querator.model.limits import BATCH_ITEMS_MAX
from querator.spark.options import OptionError
from querator.spark.pipelines.session import JavaMissing, check_java, open_session
from querator.spark.pipelines.settings import ARCHIVE_ITEMS, Columns, QueuePlace, SettingsError
from querator.spark.pipelines.summary import (
    BatchProgress,
    Control,
    RedriveSummary,
    Summary,
)
from querator.spark.requirements import check_requirements
from querator.spark.rpc import Unreachable
from querator.wire.tls import TlsError

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE: Final = re.compile(r"\b(ca|cert|key): ")
_MASTER: Final = re.compile(r"local(\[.+\]|-cluster\[.+\])?$|yarn$|\w+://")
PACKAGES: Final = "spark.jars.packages"
"""Spark's setting for packages that it downloads when it starts."""
Run = Callable[[Any, Control], Summary]
"""A pipeline with its settings: takes a session, and returns a summary."""


class At(msgspec.Struct, frozen=True):
    """The address of a cluster, and a namespace."""

    address: str
    namespace: str
    tls_ca: str
    tls_cert: str
    tls_key: str
    retry_seconds: float

    def queue(self, name: str, *, address: str = "") -> QueuePlace:
        """A queue of the namespace; `address` selects another cluster. Raises OptionError,
        SettingsError.
        """
        return QueuePlace(
            endpoint=address or self.address,
            queue=name,
            namespace=self.namespace,
            tls_ca_file=self.tls_ca,
            tls_cert_file=self.tls_cert,
            tls_key_file=self.tls_key,
            retry_seconds=self.retry_seconds,
        )


class Engine(msgspec.Struct, frozen=True):
    """Where Spark runs, and the form of the output."""

    master: str
    conf: Mapping[str, str]
    as_json: bool

    def queues(
        self, *, reads: Sequence[QueuePlace] = (), fills: Sequence[QueuePlace] = ()
    ) -> list[QueueInfo]:
        """The queues of the command, before Spark starts: those that it reads, then those that it
        fills. Raises Failure for a missing one.
        """
        with failures():
            check_requirements()
            check_java()
            note(self.start_words())
            return find_queues(reads=reads, fills=fills)

    def start_words(self) -> str:
        """What the command does in the time before the first figures."""
        words = f"Checking queues, then starting Spark on {self.master}"
        packages = self.conf.get(PACKAGES)
        if packages:
            words = f"{words} with {packages}, which are downloaded the first time"
        return f"{words}: half a minute without figures is usual."

    def run(self, pipeline: Run, *, continuous: bool = False) -> None:
        """Runs a pipeline. Raises Failure, and Exit if a signal ended the run early."""
        # It imports PySpark, which help does without.
        from querator.spark.pipelines.failures import explained as in_one_line

        control = Control(_report)
        with self.session() as spark:
            ended_by = _stops(control)
            # Files that Spark cannot reach are an error of Java.
            with in_one_line():
                summary = pipeline(spark, control)
        conclude(summary, as_json=self.as_json)
        if ended_by and not continuous:
            raise click.exceptions.Exit(128 + ended_by[0])

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A SparkSession, stopped at the end. Raises Failure for its errors."""
        with failures():
            with _quiet(loud="spark.log.level" in self.conf):
                spark = open_session(self.master, self.conf)
            note("Spark runs.")
            try:
                yield spark
            finally:
                spark.stop()


@contextmanager
def settings_of() -> Iterator[None]:
    """For the creation of settings. Raises UsageError."""
    try:
        yield
    except (SettingsError, OptionError) as error:
        raise click.UsageError(sentence(as_typed(str(error)))) from error


@contextmanager
def failures() -> Iterator[None]:
    """Turns the errors of pipelines into a `Failure`."""
    try:
        with explained():
            yield
    except Failure as error:
        raise Failure(as_typed(error.message), ExitCode(error.exit_code)) from error.__cause__
    except ImportError as error:
        words = str(error)
        if "querator[" not in words:
            # A module that a package of the extra needs.
            words = f"{words}: {install_command('spark')}"
        # The command ends the line, so that it can be copied.
        raise Failure(words) from error
    except JavaMissing as error:
        raise Failure(sentence(str(error))) from error
    except (SettingsError, OptionError) as error:
        raise Failure(sentence(as_typed(str(error))), ExitCode.USAGE) from error
    except TlsError as error:
        # It names a file as ca, cert or key.
        words = _FILE.sub(r"--tls-\1: ", str(error))
        raise Failure(sentence(as_typed(words)), ExitCode.USAGE) from error
    except (ValueError, RuntimeError) as error:
        # PipelineFailed, Unreachable and others: each has a one-line message.
        if not type(error).__module__.startswith("querator."):
            raise
        code = ExitCode.UNAVAILABLE if isinstance(error, Unreachable) else ExitCode.WRONG
        raise Failure(sentence(as_typed(str(error))), code) from error


def conclude(summary: Summary, *, as_json: bool) -> None:
    """Prints the summary. Raises Failure if it does not balance."""
    if as_json:
        write_json({**msgspec.structs.asdict(summary), "balanced": summary.balanced})
    else:
        rate = summary.taken.value / summary.seconds if summary.seconds else 0.0
        would_be: tuple[tuple[str, int], ...] = ()
        if isinstance(summary, RedriveSummary) and summary.would_be_sent:
            would_be = (("would be sent back", summary.would_be_sent),)
        write_details(
            [
                (summary.taken.words, summary.taken.value),
                (summary.made.words, summary.made.value),
                *would_be,
                ("left out", summary.left_out),
                ("batches", summary.batches),
                ("seconds", round(summary.seconds, 1)),
                ("a second", round(rate)),
                ("balanced", summary.balanced),
            ]
        )
    if not summary.balanced:
        raise Failure(
            f"It does not balance: {summary.taken.value:,} {summary.taken.words}, "
            f"{summary.left_out:,} left out, and {summary.made.value:,} {summary.made.words}.",
            ExitCode.WRONG,
        )


def _report(progress: BatchProgress) -> None:
    rate = progress.items / progress.seconds if progress.seconds else 0.0
    left = "" if progress.left is None else f", {progress.left:,} left"
    note(f"batch {progress.batch}: {count(progress.items, 'item')}, {rate:,.0f}/s{left}")


@contextmanager
def _quiet(*, loud: bool) -> Iterator[None]:
    """Discards the standard error of Java, which is started in the block, and of its workers: the
    command itself reports errors.
    """
    if loud:
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _stops(control: Control) -> list[int]:
    """Ctrl-C and SIGTERM end the run between two batches, a second signal ends it at once. Returns
    the list to which received signals are added.
    """
    came: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        came.append(number)
        if control.stop.is_set():
            raise KeyboardInterrupt
        control.stop.set()
        note("ends after the batch that is under way; another signal ends it at once")

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    return came


# --- options -----------------------------------------------------------------------------------


def _check_master(_: click.Context, __: click.Parameter, value: str) -> str:
    if _MASTER.match(value) is None:
        raise click.UsageError(
            f"--master is {value!r}: give local[*], local[N], spark://HOST:PORT, yarn or "
            "k8s://HOST:PORT."
        )
    return value


def spark_options(command: _Command) -> _Command:
    """Adds options of the cluster as the argument `at`, which makes a place of a queue's name;
    --master, --conf and --output as `engine`.
    """

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        address: str,
        namespace: str,
        request_timeout: timedelta,
        tls_ca: str,
        tls_cert: str,
        tls_key: str,
        master: str,
        conf: tuple[tuple[str, str], ...],
        output: str,
        **kwargs: Any,
    ) -> Any:
        seconds = max(1.0, request_timeout.total_seconds())
        at = At(
            address=address,
            namespace=namespace,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            retry_seconds=seconds,
        )
        engine = Engine(master, dict(conf), output == "json")
        return command(*args, at=at, engine=engine, **kwargs)

    options = (
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            metavar="URL",
            callback=_check_master,
            help="Where Spark runs: on this machine, or on a cluster of Spark's.",
        ),
        click.option(
            "--conf",
            type=ATTRIBUTE,
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of Spark, such as spark.driver.memory=4g; may be given several times.",
        ),
        *WHERE,
        *TLS_FILES,
        OUTPUT,
    )
    return cast(_Command, decorated(wrapper, options))


def column_options(command: _Command) -> _Command:
    """Adds --value, --key, … as the argument `columns`."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        columns = Columns(**{name: kwargs.pop(name) for name in _COLUMNS})
        return command(*args, columns=columns, **kwargs)

    options = tuple(
        click.option(f"--{name.replace('_', '-')}", default="", metavar="SQL", help=words)
        for name, words in _COLUMNS.items()
    )
    return cast(_Command, decorated(wrapper, options))


_COLUMNS: Final = {
    "value": "The payload: binary or string.",
    "key": "The key, which decides the partition.",
    "kind": "The kind.",
    "encoding": "The encoding of the payload.",
    "reference": "The reference.",
    "headers": "Attributes: array<struct<key: string, value: binary>>.",
    "priority": "The priority, a whole number: the lowest is leased first.",
    "group": "The group.",
    "enqueue_at": "When it may be leased: a timestamp, as in `now() + make_dt_interval(0, 0, 5)`.",
    "dedupe_key": "The dedup key: a second item with it is not stored within the queue's window.",
    "max_attempts": "How many times it is leased at most; 0: no limit.",
    "retry": "The retry policy, as in `named_struct('delay', INTERVAL '60' SECOND)`.",
}

where_option = click.option(
    "--where", default="", metavar="SQL", help="A condition; rows that do not meet it are left out."
)


rate_option = click.option(
    "--rate",
    type=NUMBER,
    default=0.0,
    metavar="N",
    help="Most items per second; default: no limit.",
)


def stream_options(command: _Command) -> _Command:
    """Adds the options for taking items out of a queue."""
    return cast(_Command, decorated(command, _STREAM))


_STREAM: Final = (
    click.option(
        "--reader-id",
        required=True,
        metavar="NAME",
        help="Name of this pipeline, under which the queue records its progress.",
    ),
    click.option(
        "--continuous",
        is_flag=True,
        help="Continue with new items until a signal ends the command.",
    ),
    click.option(
        "--adopt",
        is_flag=True,
        help=(
            "If the checkpoint is behind the queue: continue after the acknowledgements of the "
            "queue."
        ),
    ),
    click.option(
        "--skip-released",
        is_flag=True,
        help="Continue without batches that `querator reader release` has given back to the queue.",
    ),
    click.option(
        "--max-items",
        type=WholeNumber(1, BATCH_ITEMS_MAX),
        default=ARCHIVE_ITEMS,
        show_default=True,
        metavar="N",
        help="Most items in a batch.",
    ),
    click.option(
        "--min-tasks",
        type=WholeNumber(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Least number of tasks for a batch; default: one for each partition of the queue.",
    ),
)
