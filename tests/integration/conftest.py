"""Fixtures: the content of cluster/image's image, built once for all tests that run it."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.pods import need_namespaces
from tests.kustomize import ROOT
from tests.ports import keep_to_part

keep_to_part("integration")

_OF_THE_NETWORK = ("HOME", "LANG", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that cluster/image/install makes of the wheel. It is write-protected. The script's
    environment has the settings of the package index, and nothing of the checkout. Skips the test
    where the tree could not be run. The first of several workers makes it.
    """
    need_namespaces()
    home = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        home = home.parent
    made = home / "image-made"
    with (home / "image-lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            tree = _make_image(Path(tempfile.mkdtemp(prefix="image-", dir=home)))
            made.write_text(str(tree))
    return Path(made.read_text())


def _make_image(home: Path) -> Path:
    home.chmod(0o755)
    tools = Path(sys.executable).parent
    build = [str(tools / "uv"), "build", "--quiet", "--wheel", "--no-build-isolation"]
    subprocess.run(
        [*build, "--python", sys.executable, "--out-dir", str(home)], cwd=ROOT, check=True
    )
    [wheel] = home.glob("*.whl")
    tree = home / "querator"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _OF_THE_NETWORK or name.upper() in _OF_THE_NETWORK
        or name.startswith(("PIP_", "UV_"))
    }  # fmt: skip
    subprocess.run(
        [str(ROOT / "cluster/image/install"), str(wheel), str(ROOT / "requirements"), str(tree)],
        cwd=home,
        env={
            **environment,
            "PATH": os.defpath,
            "PYTHON": str(Path(sys.executable).resolve()),
        },
        check=True,
    )
    subprocess.run(["chmod", "-R", "a-w,a+rX", str(tree)], check=True)
    return tree


TOLD = "told"
"""Name of a test's property with a line for the summary, from any worker."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, line in report.user_properties:
            if name == TOLD and report.when == "call":
                terminalreporter.write_line(str(line))
