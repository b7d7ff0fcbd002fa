"""The docstring of each package lists its modules, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "querator"
PACKAGES = sorted(
    path.parent
    for path in ROOT.rglob("__init__.py")
    if path.parent.name not in ("v1", "discovery", "pyspark_querator")
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_a_package_lists_its_modules(package: Path):
    """A line of the list is indented: a name, at least two spaces, and a description."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    listed = re.findall(r"^    (\w+)  +\S", docstring, re.MULTILINE)
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    assert len(listed) == len(set(listed)), "listed twice"
    assert set(listed) == modules | packages
