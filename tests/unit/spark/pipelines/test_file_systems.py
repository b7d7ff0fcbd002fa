"""A path in a storage that Spark has no package for: the words name the package."""

import pytest

from querator.spark.pipelines.file_systems import missing_file_system, scheme_of


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("s3a://lake/orders", "org.apache.hadoop:hadoop-aws"),
        ("gs://lake/orders", "org.apache.hadoop:hadoop-gcp"),
        ("abfss://lake@account.dfs.core.windows.net/orders", "org.apache.hadoop:hadoop-azure"),
    ],
)
def test_the_package_of_a_cloud_is_named_with_its_version(path: str, package: str) -> None:
    scheme = scheme_of(path)
    assert missing_file_system("path", path, "3.5.0") == (
        f"path is {path}: Spark has no file system for {scheme}://, which is in package {package}. "
        f"Add it with the setting spark.jars.packages={package}:3.5.0, which downloads it when "
        "Spark starts, or give the jars of that package with the setting spark.jars"
    )


def test_the_scheme_of_other_programs_is_corrected() -> None:
    assert missing_file_system("checkpoint", "s3://lake/done", "3.5.0") == (
        "checkpoint is s3://lake/done: Spark has no file system for s3://. Write the path with "
        "s3a://"
    )


def test_any_other_scheme_gets_the_settings_that_add_one() -> None:
    assert missing_file_system("path", "oss://lake", "3.5.0") == (
        "path is oss://lake: Spark has no file system for oss://. Add its package with the setting "
        "spark.jars.packages, or its jar with the setting spark.jars"
    )


@pytest.mark.parametrize(
    ("path", "scheme"), [("/lake", ""), ("lake/x", ""), ("S3A://lake", "s3a"), ("file:/lake", "")]
)
def test_a_scheme_is_what_stands_before_two_slashes(path: str, scheme: str) -> None:
    assert scheme_of(path) == scheme
