"""`python -m scripts.spark_archive FILE` makes an archive of what Java loads at Spark's start.

With it Java maps the classes (170 MB) and need not read, check and link thousands of them: a start
takes half the processor time. Java passes over an archive of other versions of Java or Spark. The
file is empty where Java is missing.
"""

import os
import sys
import tempfile
from pathlib import Path

from querator.spark.pipelines.session import QUICK_JAVA, JavaMissing, open_session


def options(archive: Path) -> str:
    """SPARK_SUBMIT_OPTS for quick starts, with this archive if it is there."""
    if not archive.exists() or not archive.stat().st_size:
        return QUICK_JAVA
    return f'{QUICK_JAVA} -Xlog:disable "-XX:SharedArchiveFile={archive}"'


def main(archive: Path) -> None:
    # Java crashes on half an archive: it gets its name when it is whole.
    half = archive.with_suffix(".half")
    half.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f'{QUICK_JAVA} -Xlog:disable "-XX:ArchiveClassesAtExit={half}"'
    )
    try:
        session = open_session("local[1]", {})
    except JavaMissing as missing:
        print(f"no archive for Spark: {missing}")
        archive.write_bytes(b"")
        return
    with tempfile.TemporaryDirectory() as home:
        session.range(10).write.parquet(f"{home}/rows")
        session.read.parquet(f"{home}/rows").groupBy("id").count().collect()
    process = session.sparkContext._gateway.proc
    session.stop()
    # Java writes the archive at its end, for which it waits for the end of its input.
    process.stdin.close()
    code = process.wait()
    if code:
        sys.exit(f"Java ended with {code}, and its archive may not be whole")
    half.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
