"""The command line itself: help texts, the reference page, usage errors."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from querator.cli import querator
from querator.cli.reference import reference

DOCS = Path(__file__).parents[3] / "docs"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", list(commands(querator)), ids=" ".join)
def test_every_command_and_option_is_explained(path: tuple[str, ...]) -> None:
    outcome = CliRunner().invoke(querator, [*path, "--help"])
    assert outcome.exit_code == 0
    assert outcome.output.startswith(f"Usage: querator {' '.join(path)} ")
    command: click.Command = querator
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert command.help
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, f"{option.name} has no help"


def test_the_reference_page_is_that_of_these_commands() -> None:
    assert (DOCS / "cli.md").read_text() == reference(), (
        "generate it again: python -m querator.cli.reference > docs/cli.md"
    )


WORKER = ["worker", "tasks:handle", "--queue", "q"]
NOON = "2026-01-31T12:00:00Z"
REPLAY = ["spark", "replay", "/lake", "q", "--checkpoint", "/checkpoint"]
ARCHIVE = ["spark", "archive", "q", "/lake", "--reader-id", "lake"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["produce", "q", "x", "--json-lines"], "Give only one of"),
        (["produce", "q", "x", "--file", "f"], "Give only one of"),
        (["produce", "q", "--file", "-", "--file", "-"], "give --file - once"),
        (["produce", "q", "--file", "a", "--file", "b", "--dedup-key", "k"], "or one --file"),
        (["produce", "q", "x", "--delay", "4000d"], "--delay is 4000d; at most 10 years."),
        (["produce", "q", "--rate", "0"], "'0' is not a number above 0."),
        (["worker", "m:h", "--queue", "q", "--lease-timeout", "2d"], "is 2d; at most 24h."),
        (
            [*WORKER, "--queue", "mail"],
            "'--queue': a worker serves one queue: start one for each.",
        ),
        (["consume", "q", "--concurrency", "2"], "--concurrency is for --exec COMMAND."),
        (["consume", "q", "--retry-delay", "2s"], "--retry-delay is for --exec COMMAND."),
        (["consume", "q", "--exec", "cat", "--complete"], "--complete is for printed items"),
        (["consume", "q", "--exec", "cat", "--output", "json"], "--output is for printed items"),
        (["queue", "create", "q", "--lease-timeout", "100d"], "is 100d; at most 24h."),
        (["queue", "create", "q", "--dedup-window", "8d"], "is 8d; at most 7d."),
        (["queue", "create", "q", "--partitions", "abc"], "is not a whole number from 1 to 1024"),
        (["completion", "csh"], "'csh' is not one of 'bash', 'zsh', 'fish'"),
        (["produce", "q", "x", "--kind-column", "a"], "need --csv"),
        (["produce", "q", "x", "y", "--dedup-key", "k"], "one PAYLOAD"),
        (
            ["produce", "q", "x", "--dedup-key", "k", "--dedup-prefix", "p"],
            "-prefix and --dedup-key",
        ),
        (
            ["produce", "q", "x", "--dedup-content", "--dedup-key", "k"],
            "--dedup-content and --dedup-key both give the dedup keys: give one.",
        ),
        (
            ["produce", "q", "--dedup-content", "--dedup-prefix", "p"],
            "--dedup-prefix and --dedup-content both give the dedup keys: give one.",
        ),
        (
            ["produce", "q", "--csv", "f", "--dedup-column", "id", "--dedup-prefix", "p"],
            "--dedup-prefix and --dedup-column both give the dedup keys: give one.",
        ),
        (["produce", "q", "x", "--delay", "1s", "--at", "2026-01-31T08:00:00Z"], "not both"),
        (["produce", "q", "x", "--attribute", "novalue"], "name=value"),
        (["retry", "q", "1.0.1", "--dead", "--release"], "one of"),
        (["retry", "q", "1.0.1", "x"], "partition-sequence"),
        (["checkpoint", "q", "1.0.1", "0-1"], "Give one of DATA, --file and --clear."),
        (["checkpoint", "q", "1.0.1", "0-1", "x", "--clear"], "Give one of"),
        (["checkpoint", "q", "1.0.1", "0-1", ""], "Remove a checkpoint with --clear."),
        (["checkpoint", "q", "1.0.1", "0-1", "x" * 65_537], "is longer than 65,536 bytes."),
        (["checkpoint", "q", "1.0.1", "17", "x"], "partition-sequence"),
        (["complete", "q", "1.0.1", "--result", "x"], "A result is for one ITEM: name it."),
        (["complete", "q", "1.0.1", "0-1", "0-2", "--result", "x"], "A result is for one ITEM"),
        (["complete", "q", "1.0.1", "0-1", "--result", "x" * 1_048_577], "than 1,048,576 bytes."),
        (["result", "q"], "Missing argument 'ITEM...'"),
        (["result", "q", "17"], "partition-sequence"),
        (["produce", "q", "--json-lines", "--wait", "1s"], "--wait is for PAYLOAD and --file"),
        (["produce", "q", "x", "--keep-result", "2h"], "--keep-result"),
        (["extend", "q"], "--client-id"),
        (["extend", "q", "1.0.1", "--client-id", "me"], "--client-id"),
        (["dead", "redrive", "q"], "--all"),
        (["dead", "redrive", "q", "0-1", "--all"], "--all"),
        (["queue", "update", "q"], "at least one setting"),
        (["queue", "delete", "q"], "--yes"),
        (["stats", "--interval", "0"], "--interval"),
        (["lease", "q", "--wait", "5"], "duration"),
        (["lease", "q", "--request-timeout", "1h"], "at most 15m"),
        (["worker", "tasks:handle"], "--queue"),
        ([*WORKER, "--prefetch", "7"], "--prefetch is 7, less than --concurrency 8."),
        ([*WORKER, "--retry-delay", "6m"], "--retry-delay-max is 5m, less than --retry-delay 6m."),
        ([*WORKER, "--until-empty", "--idle-exit", "1s"], "Give only one of"),
        ([*WORKER, "--name", "n" * 41], "has 41 characters; at most 40."),
        ([*WORKER, "--processes", "0"], "whole number from 1 to 256"),
        (["spark", "ingest", "in", "q"], "--format"),
        (["spark", "ingest", "in", "q", "--format", "xml"], "'xml' is not one of"),
        (
            ["spark", "ingest", "in", "q", "--format", "csv", "--continuous"],
            "--continuous needs a ch",
        ),
        (["spark", "ingest", "in", "", "--format", "csv"], "is empty: give"),
        (["spark", "archive", "q", "/lake"], "--reader-id"),
        ([*ARCHIVE, "--reader-id", "x" * 129], "Error: --reader-id has 129 bytes: at most 128."),
        ([*ARCHIVE, "--partition-by", "two words"], "Error: --partition-by has 'two words'"),
        ([*ARCHIVE, "--every", "2d"], "Error: --every is 172,800 s: give 0 to 86,400 s."),
        ([*ARCHIVE, "--master", "foo"], "--master is 'foo': give local[*], "),
        (["spark", "archive", "q", __file__, "--reader-id", "lake"], "is a file; an archive is a"),
        (
            ["spark", "copy", "q", "q", "--reader-id", "r", "--checkpoint", "/c"],
            "are both queue q: the copy would never end",
        ),
        ([*ARCHIVE, "--max-items", "500001"], "whole number from 1 to 500000"),
        ([*ARCHIVE, "--conf", "spark.driver.memory"], "name=value"),
        ([*ARCHIVE, "--address", ","], "--address is empty; write HOST:PORT"),
        ([*ARCHIVE, "--tls-cert", "cert.pem"], "Error: --tls-cert and --tls-key go together"),
        (["spark", "copy", "q", "other", "--reader-id", "r"], "--checkpoint"),
        (["spark", "stats"], "'QUEUE...'"),
        (["spark", "stats", "q", "--html", "/no/where/report.html"], "there is no directory /no"),
        (["spark", "stats", "q", "--min-tasks", "10001"], "Error: --min-tasks is '10001': give"),
        (["spark", "redrive", "q", "--reason", "age"], "'age' is not one of"),
        (["spark", "redrive", "q", "--rate", "-1"], "Error: --rate is -1: give items per second"),
        (["spark", "redrive", "q", "--rate", "nan"], "is nan: give items per second"),
        (["spark", "replay", "/lake", "q"], "--checkpoint"),
        ([*REPLAY, "--rate", "1e9"], "up to 10,000,000"),
        ([*REPLAY, "--rate", "fast"], "'fast' is not a valid number."),
        ([*REPLAY, "--from", "2026-02-31"], "is not an instant"),
        ([*REPLAY, "--from", NOON, "--until", NOON], "Error: --from must be before --until."),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_hint(arguments: list[str], words: str) -> None:
    outcome = CliRunner().invoke(querator, arguments)
    assert outcome.exit_code == 2
    assert words in outcome.output


EXAMPLE = "for example 127.0.0.1:4470."


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("foo", f"'foo' is not HOST:PORT, {EXAMPLE}"),
        ("127.0.0.1", f"'127.0.0.1' is not HOST:PORT, {EXAMPLE}"),
        (":99999", f"':99999' is not HOST:PORT, {EXAMPLE}"),
        ("h:99999", "'h:99999': a port is at most 65535, as in 127.0.0.1:4470."),
        ("http://h:4470", f"'http://h:4470' is a URL; write HOST:PORT, {EXAMPLE}"),
        ("a:1,b", f"'b' is not HOST:PORT, {EXAMPLE}"),
    ],
)
@pytest.mark.parametrize("command", [["stats"], ["cluster", "status"], ["produce", "q", "x"]])
def test_a_malformed_address_is_refused_at_once(
    command: list[str], address: str, message: str
) -> None:
    flag = CliRunner().invoke(querator, [*command, "--address", address])
    assert (flag.exit_code, flag.output.splitlines()[-1]) == (2, f"Error: --address: {message}")
    variable = CliRunner().invoke(querator, command, env={"QUERATOR_ADDRESS": address})
    assert variable.exit_code == 2
    assert variable.output.splitlines()[-1] == f"Error: QUERATOR_ADDRESS: {message}"


def test_an_empty_address() -> None:
    outcome = CliRunner().invoke(querator, ["stats", "--address", ""])
    assert outcome.exit_code == 2
    assert f"--address is empty; write HOST:PORT, {EXAMPLE}" in outcome.output


def test_where_java_is_missing_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"pyspark": "4.2.0", "pyarrow": "18.0.0"}.get)
    outcome = CliRunner().invoke(querator, ARCHIVE, env={"JAVA_HOME": "/nowhere"})
    assert outcome.exit_code == 1
    [line] = outcome.output.splitlines()
    assert line.startswith("Error: Spark needs Java 17 or newer: JAVA_HOME is /nowhere")
    assert "pip" not in line


def test_where_spark_is_missing_a_line_has_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    outcome = CliRunner().invoke(querator, ARCHIVE)
    assert outcome.exit_code == 1
    [line] = outcome.output.splitlines()
    assert line.startswith("Error: querator.spark needs querator[spark] (pyspark is not ")
    assert line.endswith("install 'querator[spark]'")


@pytest.mark.parametrize("command", ["ingest", "replay"])
def test_a_path_that_is_not_there_is_named_before_spark_starts(command: str) -> None:
    of_command = {"ingest": ["--format", "csv"], "replay": ["--checkpoint", "/checkpoint"]}
    outcome = CliRunner().invoke(
        querator, ["spark", command, "/no/such", "q", *of_command[command]]
    )
    assert (outcome.exit_code, outcome.output) == (
        2,
        f"Usage: querator spark {command} [OPTIONS] PATH QUEUE\n"
        f"Try 'querator spark {command} --help' for help.\n\n"
        "Error: PATH: there is no file or directory /no/such.\n",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prodcue", "mail"], "No such command 'prodcue'. Did you mean 'produce'?"),
        (["status"], "No such command 'status'. Did you mean 'cluster status'?"),
        (["spark", "archve"], "No such command 'archve'. Did you mean 'archive'?"),
        (["queue", "creat", "q"], "No such command 'creat'. Did you mean 'create'?"),
        (["produce", "q", "--delya", "1s"], "No such option '--delya'. (Did you mean"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["list"], "No such command 'list'. List the queues with: querator queue list"),
        (["purge", "mail"], "No such command 'purge'. Did you mean 'queue purge'?"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(arguments: list[str], words: str) -> None:
    outcome = CliRunner().invoke(querator, arguments)
    assert outcome.exit_code == 2
    assert f"Error: {words}" in outcome.output


def test_the_version_names_the_libraries_under_querator() -> None:
    outcome = CliRunner().invoke(querator, ["--version"])
    assert outcome.exit_code == 0
    lines = [line.split(" ") for line in outcome.output.splitlines()]
    # An environment may have PySpark as well.
    assert [name for name, _ in lines if name != "pyspark"] == [
        "querator", "Python", "grpcio", "protobuf", "lmdb", "pysyncobj",
    ]  # fmt: skip
    assert dict(lines)["Python"] == platform.python_version()
    assert dict(lines)["lmdb"] == metadata.version("lmdb")


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (("lmdb", "pysyncobj", "pyspark"), ["grpcio 1.0", "protobuf 1.0"]),
        (("lmdb", "pysyncobj"), ["grpcio 1.0", "protobuf 1.0", "pyspark 1.0"]),
    ],
)
def test_the_version_names_only_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], named: list[str]
) -> None:
    def version(package: str) -> str:
        if package in missing:
            raise metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    outcome = CliRunner().invoke(querator, ["--version"])
    assert outcome.output.splitlines()[2:] == named


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_calls_querator(shell: str) -> None:
    outcome = CliRunner().invoke(querator, ["completion", shell])
    assert outcome.exit_code == 0
    assert f"_QUERATOR_COMPLETE={shell}_complete" in outcome.output


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("querator pro", ["plain,produce"]),
        ("querator spark re", ["plain,redrive", "plain,replay"]),
        ("querator queue cr", ["plain,create"]),
        ("querator peek --st", ["plain,--state", "plain,--stale"]),
        ("querator peek mail --state sch", ["plain,scheduled"]),
    ],
)
def test_commands_options_and_choices_are_completed(words: str, completions: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "querator"],
        env={
            **os.environ,
            "_QUERATOR_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == completions


def test_the_list_of_commands_loads_none_of_them() -> None:
    program = (
        "import sys\n"
        "from querator.cli import querator\n"
        "querator(['--help'], standalone_mode=False)\n"
        "print(sorted(name for name in sys.modules if name.startswith('querator.cli.')))\n"
        "print('grpc' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == [
        "['querator.cli.shared', 'querator.cli.shared.help']", "False",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("serve", ["querator.client", "starlette", "uvicorn", "prometheus_client"]),
        ("verify", ["starlette", "structlog", "uvicorn", "querator.service"]),
        ("demo", []),
    ],
)
def test_servers_are_loaded_without_libraries_that_they_do_not_use(
    command: str, more: list[str]
) -> None:
    program = (
        "import gc, sys\n"
        "from querator.cli import querator\n"
        f"unused = {{'rich', 'cryptography', *{more}}}\n"
        f"querator.get_command(None, '{command}')\n"
        "print(sorted(unused & set(sys.modules)), gc.isenabled())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[] True"]


@pytest.mark.parametrize("command", [["serve"], ["stats"], ["spark", "ingest"]], ids=" ".join)
def test_what_is_loaded_for_a_command_is_in_no_collection(command: list[str]) -> None:
    program = (
        "import gc, sys\n"
        "from querator.cli import main\n"
        f"sys.argv = ['querator', *{command}, '--help']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(len(gc.get_objects()) < gc.get_freeze_count(), gc.isenabled())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["True True"]
