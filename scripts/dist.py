"""Builds the source archive and, from it, the wheel into dist/, and tries the wheel in empty
environments outside the tree: `make dist`.

    client    the wheel without extras: the commands, and a program against the node below
    server    querator[server]: a node
    spark     querator[spark]: the data source, found by Spark's own name for it; with Java also
              a program and the commands `ingest`, `stats` and `archive`, against the node

Prints the packages and the size of each environment, and the time of the client's import.
`--without NAME` leaves an environment out; the client's program needs the server's.
`--only-build` tries nothing.
"""

import argparse
import contextlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
UV: Final = ROOT / ".venv" / "bin" / "uv"
LOCKS: Final = {"client": "base", "server": "server", "spark": "spark"}
"""Name of an environment → its lock file."""
IMPORT_RUNS: Final = 9
PROGRAM: Final = """
import sys
from querator import SyncClient
with SyncClient(sys.argv[1]) as client:
    client.create_queue("dist")
    client.produce("dist", b"hello")
    [item] = client.lease("dist")
    assert item.payload == b"hello"
    item.complete()
"""
SPARK_PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
from querator.spark import register
spark = SparkSession.builder.master("local[1]").getOrCreate()
register(spark)
source = spark.read.format("querator").option("endpoint", sys.argv[1]).option("queue", "dist-spark")
[row] = source.load().groupBy("state", "kind").count().collect()
assert tuple(row) == ("ready", "ann", 1), row
spark.stop()
"""
# Spark imports the module wherever it is installed: it must not fail where PySpark is missing.
WITHOUT_SPARK: Final = """
import pyspark_querator
assert not hasattr(pyspark_querator, "DefaultSource")
"""
WITH_SPARK: Final = """
import pyspark_querator, querator.spark
assert pyspark_querator.DefaultSource is querator.spark.QueratorDataSource
"""
IMPORT: Final = """
import time
began, began_cpu = time.perf_counter(), time.process_time()
import querator
from querator import Client
print(time.perf_counter() - began, time.process_time() - began_cpu)
"""


class Environment(NamedTuple):
    name: str
    python: Path

    @property
    def querator(self) -> Path:
        return self.python.with_name("querator")


class Size(NamedTuple):
    """`code_bytes`: the byte code, which is part of `all_bytes`."""

    all_bytes: int
    code_bytes: int


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command. Ends this program with its output if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> tuple[Path, Path]:
    """The source archive, and the wheel that is made from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(
        UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable,
        "--out-dir", DIST, cwd=ROOT,
    )  # fmt: skip
    [source], [wheel] = DIST.glob("querator-*.tar.gz"), DIST.glob("querator-*.whl")
    return source, wheel


def strangers(wheel: Path) -> list[str]:
    """Files of the wheel that are in neither of its two packages."""
    ours = re.compile(r"(querator|pyspark_querator)/|querator-[^/]*\.dist-info/")
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not ours.match(name)]


def install(name: str, wheel: Path, home: Path) -> Environment:
    """An empty environment with the locked packages and the wheel, compiled as pip does it."""
    python = home / name / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, home / name, cwd=home)
    pip = (UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", python)
    lock = ROOT / "requirements" / f"{LOCKS[name]}.lock"
    run(*pip, "--require-hashes", "-r", lock, cwd=home)
    run(*pip, "--no-deps", wheel, cwd=home)
    run(UV, "pip", "check", "--quiet", "--python", python, cwd=home)
    return Environment(name, python)


def packages(environment: Environment) -> list[str]:
    listed = run(
        UV, "pip", "list", "--quiet", "--format", "json", "--python", environment.python,
        cwd=ROOT,
    )  # fmt: skip
    return [f"{each['name']} {each['version']}" for each in msgspec.json.decode(listed)]


def size(environment: Environment) -> Size:
    """Sizes of the files in the directory of the packages."""
    [site] = environment.python.parents[1].glob("lib/python*/site-packages")
    files = [path for path in site.rglob("*") if path.is_file()]
    return Size(
        sum(path.stat().st_size for path in files),
        sum(path.stat().st_size for path in files if path.suffix == ".pyc"),
    )


@contextlib.contextmanager
def node(environment: Environment, home: Path) -> Iterator[str]:
    """The address of a node of the environment that runs in the block."""
    command = [environment.querator, "serve", "--data-dir", home / "data", "--new",
               "--listen", "127.0.0.1:0", "--listen-admin", ""]  # fmt: skip
    with (
        (home / "node.log").open("w") as log,
        subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        ready = re.search(r"address=(\S+)", process.stdout.readline())
        try:
            if ready is None:
                raise SystemExit(f"the node did not start:\n{(home / 'node.log').read_text()}")
            yield ready[1]
        finally:
            process.terminate()


def try_client(environment: Environment, server: Environment | None, home: Path) -> None:
    run(environment.querator, "--help", cwd=home)
    run(environment.python, "-c", WITHOUT_SPARK, cwd=home)
    if server is None:
        return
    with node(server, home) as address:
        run(environment.python, "-c", PROGRAM, address, cwd=home)
        run(environment.querator, "stats", "dist", "--address", address, cwd=home)


def try_spark(environment: Environment, server: Environment | None, home: Path) -> None:
    """The data source, and with a node and Java a program and commands as in docs/spark.md."""
    run(environment.python, "-c", WITH_SPARK, cwd=home)
    if server is None or shutil.which("java") is None:
        print("Spark itself is not tried: that needs the node of [server], and Java.")
        return
    home = home / "with-spark"
    home.mkdir()
    (home / "in.csv").write_text("customer,pieces\nann,3\n")
    with node(server, home) as address:
        at = ("--address", address)
        run(environment.querator, "queue", "create", "dist-spark", *at, cwd=home)
        pipeline = (environment.querator, "spark")
        ingest = ("ingest", "in.csv", "dist-spark", "--format", "csv", "--kind", "customer")
        run(*pipeline, *ingest, *at, cwd=home)
        run(environment.python, "-c", SPARK_PROGRAM, address, cwd=home)
        run(*pipeline, "stats", "dist-spark", "--html", "report.html", *at, cwd=home)
        run(*pipeline, "archive", "dist-spark", "lake", "--reader-id", "lake", *at, cwd=home)
        if not list(home.glob("lake/date=*/kind=ann/*.parquet")):
            raise SystemExit("querator spark archive has written no file")


def import_seconds(environment: Environment, home: Path) -> tuple[float, float]:
    """Medians of the import of the client in new processes: by the clock, and of the CPU."""
    runs = [run(environment.python, "-c", IMPORT, cwd=home).split() for _ in range(IMPORT_RUNS)]
    clock, cpu = zip(*runs, strict=True)
    return statistics.median(map(float, clock)), statistics.median(map(float, cpu))


def report(environment: Environment) -> None:
    listed, (all_bytes, code_bytes) = packages(environment), size(environment)
    print(
        f"{environment.name}: {len(listed)} packages, {all_bytes / 1e6:.1f} MB, "
        f"{code_bytes / 1e6:.1f} MB of it byte code"
    )
    print(f"  {', '.join(listed)}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Builds the wheel and tries it.")
    parser.add_argument("--without", action="append", choices=("server", "spark"), default=[])
    parser.add_argument("--only-build", action="store_true", help="try nothing")
    options = parser.parse_args(arguments)
    without = options.without
    source, wheel = build()
    if foreign := strangers(wheel):
        raise SystemExit(f"the wheel has other files than its two packages: {', '.join(foreign)}")
    for path in (source, wheel):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")
    if options.only_build:
        return
    print(f"Trying the wheel in empty environments; leaving out: {', '.join(without) or 'none'}.")
    with tempfile.TemporaryDirectory(prefix="querator-dist-") as scratch:
        home = Path(scratch)
        made = {name: install(name, wheel, home) for name in LOCKS if name not in without}
        try_client(made["client"], made.get("server"), home)
        if "spark" in made:
            try_spark(made["spark"], made.get("server"), home)
        for environment in made.values():
            report(environment)
        clock, cpu = import_seconds(made["client"], home)
        print(f"import of querator and its Client: {clock * 1e3:.0f} ms, CPU {cpu * 1e3:.0f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
