"""Compiles shadow.c."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shadow.c")
_OPTIONS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-shared", "-fPIC")


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def build(room: Path) -> Path:
    """The library, made in the directory `room`."""
    found = compiler()
    assert found is not None
    library = room / "shadow.so"
    command = [found, *_OPTIONS, "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library
