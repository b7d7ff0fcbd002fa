"""Libraries in C that tests preload into nodes: compiled when they are needed."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

_OPTIONS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-shared", "-fPIC")


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def build(source: Path, room: Path) -> Path:
    """Builds the library in the directory `room`, and returns its path."""
    found = compiler()
    assert found is not None
    library = room / source.with_suffix(".so").name
    command = [found, *_OPTIONS, "-o", str(library), str(source), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library
