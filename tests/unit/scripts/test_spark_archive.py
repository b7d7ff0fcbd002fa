"""scripts/spark_archive: Java gets the archive only where there is one."""

from pathlib import Path

from querator.spark.pipelines.session import QUICK_JAVA
from scripts.spark_archive import options


def test_java_gets_the_archive_in_quotes_where_there_is_one(tmp_path: Path):
    archive = tmp_path / "of spark.jsa"
    assert options(archive) == QUICK_JAVA
    archive.touch()
    assert options(archive) == QUICK_JAVA
    archive.write_bytes(b"classes")
    assert options(archive).startswith(QUICK_JAVA)
    assert f'"-XX:SharedArchiveFile={archive}"' in options(archive)
