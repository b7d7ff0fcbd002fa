"""The packages that bring Spark the file systems of the clouds."""

from typing import Final

_PACKAGES: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "gs": "org.apache.hadoop:hadoop-gcp",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "wasb": "org.apache.hadoop:hadoop-azure",
    "wasbs": "org.apache.hadoop:hadoop-azure",
}
"""Packages by scheme. A package has the version of Spark's own Hadoop."""
_MEANT: Final = {"s3": "s3a", "s3n": "s3a", "gcs": "gs", "adl": "abfss", "az": "abfss"}
"""Schemes of other programs for the same storage."""


def scheme_of(path: str) -> str:
    """The scheme of a path such as s3a://bucket/name; empty if it has none."""
    scheme, found, _ = path.partition("://")
    return scheme.lower() if found else ""


def missing_file_system(name: str, path: str, version: str) -> str:
    """The words for a path whose file system Spark does not have. `name` is the setting with the
    path, and `version` that of Spark's Hadoop.
    """
    scheme = scheme_of(path)
    if scheme in _MEANT:
        return (
            f"{name} is {path}: Spark has no file system for {scheme}://. Write the path with "
            f"{_MEANT[scheme]}://"
        )
    package = _PACKAGES.get(scheme)
    if package is None:
        return (
            f"{name} is {path}: Spark has no file system for {scheme}://. Add its package with the "
            "setting spark.jars.packages, or its jar with the setting spark.jars"
        )
    return (
        f"{name} is {path}: Spark has no file system for {scheme}://, which is in package "
        f"{package}. Add it with the setting spark.jars.packages={package}:{version}, which "
        "downloads it when Spark starts, or give the jars of that package with the setting "
        "spark.jars"
    )
