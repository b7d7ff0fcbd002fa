"""Real PySpark, and real nodes in processes of their own."""

import os
import sys

# Before gRPC is loaded: Spark forks, and gRPC's own handling of forks hangs there.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

import querator.spark.discovery
from querator import SyncClient
from querator.spark.pipelines.session import (
    JAVA_LEAST,
    JavaMissing,
    check_java,
    worker_python,
)
from scripts.spark_archive import options
from tests.integration.process_cluster import ProcessCluster
from tests.ports import keep_to_part

keep_to_part("spark")

# Also for the commands that tests run: each starts Spark for seconds, and took twice the processor
# time to compile code that is used once.
os.environ["SPARK_SUBMIT_OPTS"] = options(Path(sys.prefix) / "spark.jsa")

T = TypeVar("T")
WITHOUT_SESSION = (
    "test_chaos.py",
    "test_demo.py",
    "test_commands.py",
    "test_stream_protocol.py",
    "test_writer_calls.py",
    "test_options.py",
    "test_checkpoints.py",
    "test_following.py",
    "test_layout.py",
    "test_charts.py",
    "test_imports.py",
    "test_interpreter.py",
    "test_unreachable.py",
    "test_tutorial.py",
)
"""Modules without a session, in this order. The others share a session of Spark, which takes
seconds to start: one of two workers has them all, and the other one has these.
"""

if find_spec("pyspark") is None:
    # `make spark` installs PySpark; without it the tier finds no tests, and fails.
    collect_ignore_glob = ["test_*.py"]


class TwoWorkers(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        name = Path(nodeid.partition("::")[0]).name
        return name if name in WITHOUT_SESSION else "session"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoWorkers:
    return TwoWorkers(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts after the shuffling of files."""
    places = {name: place for place, name in enumerate(WITHOUT_SESSION)}
    items.sort(key=lambda item: places.get(item.path.name, -1))


@pytest.fixture(scope="session")
def java() -> None:
    """Skips tests that need Java where it is missing."""
    try:
        check_java()
    except JavaMissing:
        pytest.skip(f"Java {JAVA_LEAST} is not installed")


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for all tests, because it takes seconds to start. The format is found by its
    name, as where the wheel is installed.
    """
    home = tmp_path_factory.mktemp("spark")
    discovery = Path(querator.spark.discovery.__file__).parent
    (home / "path").mkdir()
    (home / "path" / "pyspark_querator").symlink_to(discovery)
    root = Path(querator.__path__[0]).parent
    paths = [str(home / "path"), str(root), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.update(worker_python())
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("querator tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    yield session
    session.stop()


class Nodes:
    """A cluster whose nodes are started and killed from tests that are not coroutines."""

    def __init__(self, home: Path, names: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.members = ProcessCluster(home, names)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def close(self) -> None:
        self.run(self.members.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def endpoint(self) -> str:
        return ",".join(member.address for member in self.members.by_name.values())


def _cluster(home: Path, names: str) -> Iterator[Nodes]:
    nodes = Nodes(home, names)
    nodes.run(nodes.members.start())
    yield nodes
    nodes.close()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of one node, for all tests: each takes queues of its own."""
    yield from _cluster(tmp_path_factory.mktemp("node"), "a")


@pytest.fixture(scope="session")
def client(node: Nodes) -> Iterator[SyncClient]:
    with SyncClient(node.endpoint) as client:
        yield client


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Nodes]:
    """A cluster of three nodes of the test's own."""
    yield from _cluster(tmp_path, "abc")


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of three nodes for the tests of a module: each takes queues of its own."""
    yield from _cluster(tmp_path_factory.mktemp("trio"), "abc")
