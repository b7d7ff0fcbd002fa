"""tests/README.md names the folders with tests and the helpers, and the folders of tests/unit are
those of querator.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
README = (TESTS / "README.md").read_text()
NAMED = {
    path
    for path in re.findall(r"`([\w./-]+)`", README)
    if path.endswith(("/", ".py", ".toml")) and not path.startswith(("tests/", "querator/"))
} - {"conftest.py"}
"""Paths below tests/: files, and folders with a slash at the end."""

DESCRIBED_AS_A_WHOLE = (
    "chaos", "checkers", "growth", "simulation", "soak", "spark_chaos", "stalls",
)  # fmt: skip
"""Packages whose modules the page does not name."""

WITHOUT_A_PACKAGE = {"checkers", "cluster", "growth", "scripts", "soak", "spark_chaos"}
"""Folders of tests/unit whose tests are not about a package of querator."""


def below_tests(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def modules() -> list[Path]:
    return [path for path in TESTS.rglob("*.py") if "node_modules" not in path.parts]


def is_helper(path: Path) -> bool:
    return (
        not path.name.startswith("test_")
        and path.name not in ("__init__.py", "__main__.py", "conftest.py")
        and path.relative_to(TESTS).parts[0] not in DESCRIBED_AS_A_WHOLE
    )


def test_the_named_paths_exist():
    assert NAMED
    for path in NAMED:
        there = TESTS / path
        assert there.is_dir() if path.endswith("/") else there.is_file(), path


def test_each_folder_with_tests_is_named():
    folders = {below_tests(path.parent) + "/" for path in modules() if path.match("test_*.py")}
    assert folders - NAMED - {"./"} == set()


def test_each_package_that_is_described_as_a_whole_is_named():
    assert {f"{name}/" for name in DESCRIBED_AS_A_WHOLE} <= NAMED


def test_each_helper_is_named():
    assert {below_tests(path) for path in modules() if is_helper(path)} - NAMED == set()


def test_folders_of_unit_tests_are_those_of_packages():
    for folder in {path.parent for path in (TESTS / "unit").rglob("*.py")}:
        inside = folder.relative_to(TESTS / "unit")
        if inside.parts and inside.parts[0] not in WITHOUT_A_PACKAGE:
            assert (ROOT / "querator" / inside / "__init__.py").is_file(), inside


def test_the_page_is_short():
    assert len(README.splitlines()) <= 190
    for line in README.splitlines():
        assert all(len(cell.strip()) <= 120 for cell in line.split("|")), line
