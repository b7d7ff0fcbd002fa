import sys
from pathlib import Path

import pytest

from tests.powerloss import shim


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the power-loss shim is for Linux")
    if shim.compiler() is None:
        pytest.skip("no C compiler for the power-loss shim")
    return shim.build(tmp_path_factory.mktemp("shim"))
