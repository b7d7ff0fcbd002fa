"""Programs in other languages: their requirements, how each is built, and how it is run.

The folder of a language has a script `build`, which builds the program in a copy of the folder that
contains the proto files. The copies are kept in `build/clients`, one for each state of the sources,
so that only the first run has to build.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROTOS = ROOT / "proto"
BUILD_S = 400
"""Longest duration of a build, with all downloads from registries, while others use the machine."""

_LEFT_OUT = shutil.ignore_patterns("README.md", "node_modules", "target")


@dataclass(frozen=True)
class Language:
    tools: tuple[str, ...]
    failover: tuple[str, ...]
    """The command that runs the program, in the directory in which it was built."""


LANGUAGES = {
    "go": Language(("go",), ("./bin/failover",)),
    "java": Language(("javac", "mvn"), ("java", "-jar", "target/failover.jar")),
    "node": Language(("node", "npm"), ("node", "failover.js")),
}


def made(name: str) -> Path:
    """The directory with the programs of a language, and `proto`. Skips the test where a tool is
    missing.
    """
    for tool in LANGUAGES[name].tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    builds = ROOT / "build" / "clients"
    builds.mkdir(parents=True, exist_ok=True)
    with (
        (builds / f"{name}-lock").open("wb") as lock,
        tempfile.TemporaryDirectory(dir=builds, prefix=f"{name}-") as scratch,
    ):
        # The first of several workers builds, and the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = Path(scratch) / name
        shutil.copytree(HERE / name, fresh, ignore=_LEFT_OUT)
        shutil.copytree(PROTOS, fresh / "proto")
        kept = builds / f"{name}-{_digest(fresh)}"
        if not kept.exists():
            _build(fresh)
            _keep(fresh, kept)
    return kept


def _digest(folder: Path) -> str:
    """Digest of the names and contents of all files."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _build(folder: Path) -> None:
    result = subprocess.run(
        ["sh", "build"],
        cwd=folder,
        env={**os.environ, "PROTOC": f"{sys.executable} -m grpc_tools.protoc"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout.decode(errors="replace")[-8000:]


def _keep(fresh: Path, kept: Path) -> None:
    """Keeps the whole directory or nothing; another run may have built the same meanwhile."""
    try:
        fresh.rename(kept)
    except OSError:
        if not kept.exists():
            raise
