"""pytest plugin: skipped tests with their reason, and whether tests/skips.toml allows them.

A table ends every run that skipped a test or saw an expected failure. With `--strict-skips`, or
when CI is set, a skip that tests/skips.toml does not list fails the run.
"""

import os
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

SKIPS_FILE = Path(__file__).with_name("skips.toml")


@dataclass(frozen=True, slots=True)
class Skip:
    test: str
    reason: str


@dataclass(frozen=True, slots=True)
class AllowedSkip:
    test: str
    reason: str
    why: str

    def allows(self, skip: Skip) -> bool:
        return fnmatchcase(skip.test, self.test) and fnmatchcase(skip.reason, self.reason)


def read_allowed(path: Path) -> list[AllowedSkip]:
    """The entries of skips.toml; an entry without test, reason or why is a TypeError."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("skip", [])
    return [AllowedSkip(**entry) for entry in entries]


def refused(skips: Iterable[Skip], allowed: list[AllowedSkip]) -> list[Skip]:
    return [skip for skip in skips if not any(entry.allows(skip) for entry in allowed)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        default=bool(os.environ.get("CI")),
        help="fail on a skip that tests/skips.toml does not list (default when CI is set)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The workers of a parallel run report to the main process, which counts.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SkipReport(strict=config.getoption("--strict-skips")))


class _SkipReport:
    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._allowed = read_allowed(SKIPS_FILE)
        self._skips: list[Skip] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._skips.append(Skip(report.nodeid, _reason(report)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skips.append(Skip(report.nodeid, _reason(report)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        passed = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._strict and passed and refused(self._skips, self._allowed):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._skips:
            return
        write = terminalreporter.write_line
        unlisted = set(refused(self._skips, self._allowed))
        terminalreporter.section("skipped, and why")
        width = max(len(skip.test) for skip in self._skips)
        for skip, count in sorted(Counter(self._skips).items(), key=lambda row: row[0].test):
            times = f" (×{count})" if count > 1 else ""
            mark = "NOT LISTED " if skip in unlisted else ""
            write(f"{skip.test:<{width}}  {mark}{skip.reason}{times}", red=bool(mark))
        if unlisted and self._strict:
            write("Not listed in tests/skips.toml: the run fails.", red=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    expected_failure = getattr(report, "wasxfail", None)
    if expected_failure is not None:
        return f"expected to fail: {expected_failure.removeprefix('reason: ') or 'no reason given'}"
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)
