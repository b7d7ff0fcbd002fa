"""scripts/side-by-side: every target is made, all output is shown, and a failure is one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kustomize import ROOT

MAKEFILE = """
.PHONY: lowest first second third good bad forever
lowest first second third good: ; @echo "made $@"
bad: ; @echo "made $@" && false
forever: ; @touch started && exec sleep infinity
until-started: ; @until test -e started; do sleep 0.01; done; false
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with this script and a few targets."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/side-by-side", tmp_path / "scripts")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


def run(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [project / "scripts/side-by-side", *arguments], capture_output=True, text=True, check=False
    )


def made(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("made ")]


def test_every_target_is_made_and_all_output_is_shown(project: Path) -> None:
    done = run(project, "lowest", "first", "second", "--", "third", "good")
    assert done.returncode == 0, done.stderr
    assert made(done) == ["third", "good", "lowest", "first", "second"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["bad", "first", "--", "second"],
        ["lowest", "bad", "--", "second"],
        ["lowest", "first", "--", "bad"],
    ],
    ids=" ".join,
)
def test_a_target_that_fails_fails_the_whole(project: Path, arguments: list[str]) -> None:
    done = run(project, *arguments)
    assert done.returncode != 0
    assert "bad" in made(done)


def test_a_failure_of_the_second_side_stops_the_others(project: Path) -> None:
    done = run(project, "lowest", "first", "forever", "--", "until-started")
    assert done.returncode != 0
    assert "build/beside.log: stopped before its end" in done.stdout
    assert "first" in made(done)
