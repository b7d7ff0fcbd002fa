import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

from tests import preload
from tests.ports import keep_to_part
from tests.powerloss.nodes import Totals

keep_to_part("powerloss")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the power-loss shim is for Linux")
    if preload.compiler() is None:
        pytest.skip("no C compiler for the power-loss shim")
    source = Path(__file__).with_name("shadow.c")
    return preload.build(source, tmp_path_factory.mktemp("shim"))


TOTALS = "totals"
"""Name of a test's property with its totals, from any worker."""


@pytest.fixture
def totals(request: pytest.FixtureRequest) -> Iterator[Totals]:
    """Totals of a test's power losses. Those of all tests are printed at the end."""
    found = Totals()
    yield found
    request.node.user_properties.append((TOTALS, astuple(found)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Every report of a test has the test's properties; the one of the teardown is in no category.
    counts = [
        counted
        for report in terminalreporter.getreports("")
        for name, counted in getattr(report, "user_properties", ())
        if name == TOTALS and report.when == "teardown"
    ]
    if counts:
        totals = Totals(*map(sum, zip(*counts, strict=True)))
        terminalreporter.write_line(f"power losses of nodes: {totals}")
