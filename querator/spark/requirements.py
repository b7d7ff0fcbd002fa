"""The versions of PySpark and PyArrow that are needed, checked before either is imported."""

from importlib import metadata
from typing import Final

PYSPARK_LEAST: Final = (4, 2)
"""In earlier versions `latestOffset` does not receive the committed offset, so a stream could not
be exactly once.
"""
PYSPARK_BELOW: Final = (4, 4)
PYARROW_LEAST: Final = (18,)
_WAY_OUT: Final = "pip install 'querator[spark]' brings one that fits"


def check_requirements() -> None:
    """Raises ImportError when PySpark or PyArrow is missing or has an unsuitable version."""
    pyspark = _version("pyspark")
    if not PYSPARK_LEAST <= pyspark < PYSPARK_BELOW:
        raise ImportError(
            f"querator.spark needs PySpark {_text(PYSPARK_LEAST)} or newer, below "
            f"{_text(PYSPARK_BELOW)}; this is {_text(pyspark)}; {_WAY_OUT}"
        )
    pyarrow = _version("pyarrow")
    if pyarrow < PYARROW_LEAST:
        raise ImportError(
            f"querator.spark needs PyArrow {_text(PYARROW_LEAST)} or newer; this is "
            f"{_text(pyarrow)}; {_WAY_OUT}"
        )


def _version(package: str) -> tuple[int, ...]:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImportError(f"querator.spark needs {package}; {_WAY_OUT}") from None
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
