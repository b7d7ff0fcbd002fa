"""The programs of docs/guides/testing.md run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "testing.md"
PROGRAMS = dict(
    re.findall(r'^```python title="([\w.]+)"\n(.*?)^```$', GUIDE.read_text(), re.DOTALL | re.M)
)
"""Name of a file → its text, for each block of the page that has a title."""


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_tests_of_the_guide_pass(folder: Path):
    tests = sum(text.count("\ndef test_") for text in PROGRAMS.values())
    assert tests >= 4
    assert f"{tests} passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_scripts_of_the_guide_run(folder: Path):
    assert run(folder, "script.py") == "1 item\n"
    assert run(folder, "async_script.py") == "hello\n"
