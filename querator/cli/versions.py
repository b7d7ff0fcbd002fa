"""The versions that a report of a defect needs. No library is loaded for it."""

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Final

_LIBRARIES: Final = ("grpcio", "protobuf", "lmdb", "pysyncobj", "pyspark")
"""An installation for clients has no lmdb, no pysyncobj and no pyspark."""


def versions() -> Iterator[tuple[str, str]]:
    """Names and versions: Querator first, then Python, then the libraries that are installed."""
    yield "querator", metadata.version("querator")
    yield "Python", platform.python_version()
    for name in _LIBRARIES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
