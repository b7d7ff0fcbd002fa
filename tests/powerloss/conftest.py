import sys
from pathlib import Path

import pytest

from tests import preload
from tests.powerloss.nodes import Totals


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the power-loss shim is for Linux")
    if preload.compiler() is None:
        pytest.skip("no C compiler for the power-loss shim")
    source = Path(__file__).with_name("shadow.c")
    return preload.build(source, tmp_path_factory.mktemp("shim"))


TOTALS = pytest.StashKey[Totals]()


@pytest.fixture(scope="session")
def totals(request: pytest.FixtureRequest) -> Totals:
    """Totals of the power losses of real nodes, printed at the end."""
    return request.config.stash.setdefault(TOTALS, Totals())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    totals = config.stash.get(TOTALS, None)
    if totals is not None:
        terminalreporter.write_line(f"power losses of nodes: {totals}")
