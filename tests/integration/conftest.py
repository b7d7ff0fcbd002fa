"""What the image of cluster/image holds, made once for all tests that run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.pod_users import Seen
from tests.integration.pods import need_namespaces
from tests.kustomize import ROOT

_OF_THE_NETWORK = ("HOME", "LANG", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that cluster/image/install makes of the wheel, which nobody may write to. What the
    script gets from its environment is how to reach the package index, and nothing of the checkout.
    Skips the test where the tree could not be run.
    """
    need_namespaces()
    home = tmp_path_factory.mktemp("image")
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


RESTARTED = pytest.StashKey[Seen]()
"""What users saw while pods were restarted."""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seen = config.stash.get(RESTARTED, None)
    if seen is not None:
        terminalreporter.write_line(
            f"rolling restart of pods: {seen.produced} items, longest produce {seen.stall_ms} ms, "
            f"batches completed too late {seen.late}"
        )
