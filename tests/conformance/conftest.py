"""Fixtures: the clusters of a run, and `make`, which gives a test its queues.

Each behaviour runs through each door on each size of cluster, unless a mark names some of them:
`@pytest.mark.doors("unary")`, `@pytest.mark.sizes(3)`. `"streams-1"` is that door of one node only.
In `make ci`, behaviours without a mark run through the streams on three nodes only.
"""

import os
import shutil
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest

from tests.conformance import nodes
from tests.conformance.door import Door
from tests.conformance.make import Make
from tests.conformance.stream_door import StreamDoor
from tests.conformance.stubs import Node
from tests.conformance.unary_door import UnaryDoor
from tests.ports import keep_to_part

keep_to_part("conformance")

DOORS: dict[str, Callable[[Node], Door]] = {"unary": UnaryDoor, "streams": StreamDoor}


_DOORS = ("unary", "streams-3") if os.environ.get("CI") else tuple(DOORS)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "doors(*names): the behaviour exists at these doors only")
    config.addinivalue_line("markers", "sizes(*nodes): the behaviour exists on these clusters only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make" not in metafunc.fixturenames:
        return
    doors = metafunc.definition.get_closest_marker("doors")
    sizes = metafunc.definition.get_closest_marker("sizes")
    metafunc.parametrize(
        "make",
        [
            pytest.param((door, size), id=f"{door}-{size}")
            for size in (sizes.args if sizes else nodes.SIZES)
            for door in _named(doors.args if doors else _DOORS, size)
        ],
        indirect=True,
    )


def _named(doors: Iterable[str], size: int) -> list[str]:
    """The doors that a cluster of this size has."""
    parts = [one.partition("-") for one in doors]
    return [door for door, _, only in parts if not only or int(only) == size]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Starts the nodes, for the workers of this process too."""
    if not session.config.option.collectonly:
        _start(session.config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends the nodes, which must not have logged an error. Their data stays if a test failed."""
    started = session.config.stash.get(_STARTED, None)
    if started is None:
        return
    home, clusters = started
    wrong = [f"a node ended with {code}" for cluster in clusters for code in cluster.stop()]
    wrong += [line for cluster in clusters for line in cluster.errors()]
    if wrong:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print("\n".join(["", *wrong[:20]]))  # noqa: T201 - pytest has no report of its own for it
    if session.exitstatus:
        print(f"\nlogs of the nodes: {home}")  # noqa: T201
    else:
        shutil.rmtree(home)


def _start(config: pytest.Config) -> None:
    if nodes.are_started():
        return
    home = Path(tempfile.mkdtemp(prefix="querator-conformance-"))
    clusters = [nodes.Cluster(size, home) for size in nodes.SIZES]
    config.stash[_STARTED] = (home, clusters)
    for cluster in clusters:
        cluster.start()


_STARTED = pytest.StashKey[tuple[Path, list[nodes.Cluster]]]()


@pytest.fixture(scope="session")
def _clusters(pytestconfig: pytest.Config) -> None:
    """Waits until all nodes serve."""
    _start(pytestconfig)
    for size in nodes.SIZES:
        nodes.wait_until_well(size)


@pytest.fixture
async def make(request: pytest.FixtureRequest, _clusters: None) -> AsyncIterator[Make]:
    """The node that a test uses follows from its name."""
    door, size = request.param
    made = Make(DOORS[door], size, zlib.crc32(request.node.name.encode()))
    yield made
    await made.close()
