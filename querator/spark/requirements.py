"""The versions of PySpark and PyArrow that are needed, checked before either is imported."""

from importlib import metadata
from typing import Final

from querator.extras import MissingExtra, install_command

PYSPARK_LEAST: Final = (4, 2)
"""In earlier versions `latestOffset` does not receive the committed offset, so a stream could not
be exactly once.
"""
PYSPARK_BELOW: Final = (4, 4)
PYARROW_LEAST: Final = (18,)


def check_requirements() -> None:
    """Raises ImportError when PySpark or PyArrow has an unsuitable version, and MissingExtra, which
    is one, when it is missing.
    """
    pyspark = _version("pyspark")
    if not PYSPARK_LEAST <= pyspark < PYSPARK_BELOW:
        raise ImportError(
            f"querator.spark needs PySpark {_text(PYSPARK_LEAST)} or newer, below "
            f"{_text(PYSPARK_BELOW)}; this is {_text(pyspark)}: {install_command('spark')}"
        )
    pyarrow = _version("pyarrow")
    if pyarrow < PYARROW_LEAST:
        raise ImportError(
            f"querator.spark needs PyArrow {_text(PYARROW_LEAST)} or newer; this is "
            f"{_text(pyarrow)}: {install_command('spark')}"
        )


def _version(package: str) -> tuple[int, ...]:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise MissingExtra("spark", "querator.spark", package) from None
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
