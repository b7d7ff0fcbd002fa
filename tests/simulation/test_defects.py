"""The patches that put mended defects back still fit the code. `make mutants` searches for them."""

from pathlib import Path

import pytest

from tests.simulation import mutants
from tests.simulation.defects import MUTANTS, Defect, apply, copy_to, patches
from tests.simulation.whole import mutants as whole_mutants


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    directory = tmp_path_factory.mktemp("project")
    copy_to(directory, only=("querator",))
    return directory


def test_there_are_patches():
    assert len(patches()) >= 11


@pytest.mark.parametrize("defect", patches(), ids=lambda defect: defect.name)
def test_a_patch_fits_the_code(project: Path, defect: Defect):
    for path in apply(defect, project):
        compile(path.read_text(), path, "exec")
    apply(defect, project, reverse=True)


@pytest.mark.parametrize("defect", MUTANTS, ids=lambda defect: defect.name)
def test_a_mutant_is_there(defect: Defect):
    assert callable(
        getattr(whole_mutants if defect.simulator == "whole" else mutants, defect.mutant)
    )
