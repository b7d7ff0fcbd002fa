"""`querator execution export` and `replay`: lines, both sides of a difference, and exit codes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from querator.cli import querator
from querator.durable import durable, receive, step
from querator.durable.exports import from_json
from querator.local import Harness
from querator.v1 import execution_service_pb2 as pb
from tests.unit.cli.scripted_cluster import (
    ScriptedCluster,
    scripted_cluster,
    scripted_execution,
    scripted_journal,
)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        yield cluster


class Declined(Exception):
    """What the bank says."""


@step
async def charge(order: str) -> str:
    raise Declined(order)


@step
async def tell(order: str) -> None: ...


@durable
async def checkout(order: str) -> None:
    sys.stdout.write("not for the output")
    try:
        await charge(order)
    except Declined:
        await tell(order)
    await receive("end")


@durable(name="checkout")
async def changed(order: str) -> None:
    await tell(order)
    await receive("end")


OLD, NEW, NONE = [checkout], [changed], [1]
TWICE = [checkout, changed]
HERE = "tests.unit.cli.test_execution_replays"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def lines() -> list[bytes]:
        h = Harness([checkout], errors=[Declined])
        return [(await (await h.start(checkout, "book")).export()).to_json() for _ in range(2)]

    file = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    file.write_bytes(b"".join(asyncio.run(lines())))
    return file


def replayed(file: Path | str, name: str, *options: str) -> Result:
    """In this process, as in the one that the command starts."""
    environment = {"QUERATOR_REPLAY_HERE": "1", "PYTHONHASHSEED": "17"}
    words = ["execution", "replay", str(file), f"{HERE}:{name}", *options]
    return CliRunner().invoke(querator, words, env=environment)


DECLINED = ("--error", f"{HERE}:Declined")


def test_code_that_fits_ends_with_0(runs: Path) -> None:
    shown = replayed(runs, "OLD", *DECLINED)
    assert (shown.exit_code, shown.stdout) == (
        0, "2 executions: 2 fit, 0 do not. Hash seed: 17.\n",
    )  # fmt: skip
    assert "not for the output" in shown.stderr


def test_an_exception_without_its_type_is_another_way_of_the_code(runs: Path) -> None:
    assert replayed(runs, "OLD").exit_code == 1


def test_both_lines_of_each_difference_are_shown(runs: Path) -> None:
    shown = replayed(runs, "NEW", *DECLINED)
    assert shown.exit_code == 1
    assert shown.stdout.count(f"{runs}:1: checkout ") == 1
    assert shown.stdout.count(f"{runs}:2: checkout ") == 1
    assert "  record 1     step charge   cli/test_execution_replays.py:" in shown.stdout
    assert "  now          step tell   cli/test_execution_replays.py:" in shown.stdout
    assert shown.stdout.endswith("2 executions: 0 fit, 2 do not. Hash seed: 17.\n")


def test_the_output_as_json(runs: Path) -> None:
    shown = replayed(runs, "NEW", *DECLINED, "--output", "json")
    summary = msgspec.json.decode(shown.stdout)
    assert (summary["executions"], summary["fits"], summary["differs"]) == (2, 0, 2)
    assert (summary["waits"], summary["damaged"], summary["hash_seed"]) == (0, 0, 17)
    [one, _] = summary["problems"]
    assert (one["line"], one["outcome"], one["function"]) == (1, "differs", "checkout")
    assert one["journal"].startswith("record 1     step charge")
    assert one["code"].startswith("now          step tell")


def test_damaged_lines_are_shown_beside_the_others(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    file.write_bytes(b"foo\n" + runs.read_bytes()[:-20])
    shown = replayed(file, "OLD", *DECLINED)
    assert shown.exit_code == 1
    assert f"{file}:1: this is no exported execution: " in shown.stdout
    assert f"{file}:3: the file is cut off here: " in shown.stdout
    assert "3 executions: 1 fit, 0 do not, 2 lines are damaged." in shown.stdout


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("TWICE", 2, "two with the name checkout"),
        ("NONE", 2, "has 1, which is not marked with @durable"),
        ("Declined", 2, "has no durable functions."),
        ("MISSING", 2, "has no 'MISSING'"),
    ],
)
def test_functions_that_no_worker_can_run(runs: Path, name: str, code: int, words: str) -> None:
    shown = replayed(runs, name)
    assert (shown.exit_code, words in shown.stderr) == (code, True), shown.output


def test_files_without_executions(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    shown = replayed(file, "OLD")
    assert (shown.exit_code, "No such file or directory" in shown.stderr) == (1, True)
    file.touch()
    shown = replayed(file, "OLD")
    assert (shown.exit_code, shown.stdout) == (1, f"{file} has no executions.\n")


def test_many_problems_are_counted(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("querator.cli.execution_replays._SHOWN_MAX", 3)
    file = tmp_path / "foreign.jsonl"
    file.write_text("x\n" * 5)
    shown = replayed(file, "OLD")
    assert shown.stdout.count("this is no exported execution") == 3
    assert "… and 2 others." in shown.stdout


BY_SET = """
from querator.durable import durable, receive, step

@step
async def note(word: str) -> None: ...

@durable
async def notes() -> None:
    for word in {"a", "b", "c", "d", "e", "f", "g", "h"}:
        await step(note.function, name=word)(word)
    await receive("end")
"""


def test_a_fresh_process_finds_the_order_of_a_set(tmp_path: Path) -> None:
    @durable
    async def notes() -> None:
        for word in "abcdefgh":
            await step(tell.function, name=word)(word)
        await receive("end")

    async def line() -> bytes:
        return (await (await Harness([notes]).start(notes)).export()).to_json()

    (tmp_path / "runs.jsonl").write_bytes(asyncio.run(line()))
    (tmp_path / "notes.py").write_text(BY_SET)
    command = ("execution", "replay", "runs.jsonl", "notes", "--hash-seed", "2")
    shown = subprocess.run(
        [sys.executable, "-m", "querator", *command],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    assert shown.returncode == 1, shown.stderr
    assert "notes.py:10" in shown.stdout
    assert "Hash seed: 2." in shown.stdout


# --- export ---------------------------------------------------------------------------------------


def answers(cluster: ScriptedCluster, *names: str) -> None:
    """Executions with these ids and one journal."""
    journal = scripted_journal()
    chance = bytes(range(16))

    def get(data: bytes) -> pb.GetExecutionResponse:
        request = pb.GetExecutionRequest.FromString(data)
        response = scripted_execution(id=request.id, run=2, records=len(journal.records))
        if request.for_replay:
            response.replay.CopyFrom(
                pb.ExecutionReplay(origin_run=1, chance=chance, timers=[b"\x03"], next_index=9)
            )
        return response

    cluster.answers["GetExecution"] = get
    cluster.answers["ReadJournal"] = journal
    cluster.answers["ListExecutions"] = pb.ListExecutionsResponse(
        executions=[
            pb.Execution(id=one, state=pb.EXECUTION_STATE_PARKED) for one in names
        ]
    )  # fmt: skip


def exported(cluster: ScriptedCluster, *words: str) -> Result:
    command = ["execution", "export", "--address", cluster.address, *words]
    return CliRunner().invoke(querator, command)


def test_each_execution_is_a_line(cluster: ScriptedCluster) -> None:
    answers(cluster, "a", "b", "c")
    shown = exported(cluster, "shop", "--limit", "2")
    assert (shown.exit_code, shown.stderr) == (0, "2 executions of shop written.\n")
    one, other = [from_json(line) for line in shown.stdout_bytes.splitlines()]
    assert [one.id, other.id] == ["a", "b"]
    assert (one.queue, one.run, one.origin_run, one.timers) == ("shop", 2, 1, (b"\x03",))
    assert len(one.records) == len(scripted_journal().records)
    many = [f"e{nth}" for nth in range(20)]
    shown = exported(cluster, "shop", *many)
    assert [from_json(line).id for line in shown.stdout_bytes.splitlines()] == many
    shown = exported(cluster, "shop", "x", "y", "x")
    assert [from_json(line).id for line in shown.stdout_bytes.splitlines()] == ["x", "y"]


def test_ids_and_filters_are_not_for_each_other(cluster: ScriptedCluster) -> None:
    for options in (("--state", "parked"), ("--function", "f"), ("--limit", "1")):
        shown = exported(cluster, "shop", "a", *options)
        assert (shown.exit_code, "Give ids, or" in shown.stderr) == (2, True)


def test_an_execution_that_always_changes_is_named(cluster: ScriptedCluster) -> None:
    answers(cluster, "a")
    cluster.answers["ReadJournal"] = pb.ReadJournalResponse()
    shown = exported(cluster, "shop")
    assert shown.exit_code == 1
    assert "execution a has changed while its journal was read, 10 times" in shown.stderr
