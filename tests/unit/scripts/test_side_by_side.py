"""scripts/side-by-side: every target is made, all output is shown, and a failure is one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kustomize import ROOT

MAKEFILE = """
.PHONY: first second third fourth bad forever priority
first second third fourth: ; @echo "made $@"
priority: ; @echo "made $$(nice)"
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
    done = run(project, "first", "--", "second", "third", "--", "fourth", "priority")
    assert done.returncode == 0, done.stderr
    assert made(done) == ["fourth", str(os.nice(0)), "first", "second", "third"]


def test_the_first_lane_may_have_the_lowest_priority(project: Path) -> None:
    done = run(project, "--lowest", "priority", "--", "priority")
    assert done.returncode == 0, done.stderr
    assert made(done) == [str(os.nice(0)), "19"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["bad", "first", "--", "second"],
        ["first", "--", "second", "bad", "--", "third"],
        ["first", "--", "second", "--", "bad"],
        ["first", "bad"],
    ],
    ids=" ".join,
)
def test_a_target_that_fails_fails_the_whole(project: Path, arguments: list[str]) -> None:
    done = run(project, *arguments)
    assert done.returncode != 0
    assert "bad" in made(done)


def test_a_failure_of_the_last_lane_stops_the_others(project: Path) -> None:
    done = run(project, "first", "forever", "--", "until-started")
    assert done.returncode != 0
    assert "build/first.log: stopped before its end" in done.stdout
    assert "first" in made(done)


@pytest.mark.parametrize("arguments", [[], ["first", "--"], ["--", "first"]], ids=" ".join)
def test_a_lane_without_targets_is_an_error(project: Path, arguments: list[str]) -> None:
    done = run(project, *arguments)
    assert done.returncode != 0
    assert "lane has no targets" in done.stderr
