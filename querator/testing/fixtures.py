"""The fixtures of pytest: `pytest_plugins = ["querator.testing"]` in the top conftest.py."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import uuid_utils

from querator.client import SyncClient
from querator.local import Harness
from querator.sync_node import SyncNode
from querator.testing.clock import FrozenClock


@pytest.fixture
def querator_clock() -> Iterator[FrozenClock]:
    """Freezes the time of `querator_node` and of all clients in this test."""
    with FrozenClock() as clock:
        yield clock


@pytest.fixture
def querator_node(request: pytest.FixtureRequest) -> Iterator[SyncNode]:
    """A node in memory for this test alone. Its time stands still if the test, or one of its
    fixtures, uses `querator_clock`; else time passes.
    """
    clock = None
    if "querator_clock" in request.fixturenames:
        clock = request.getfixturevalue("querator_clock")
    with SyncNode(memory=True, clock=clock) as node:
        yield node


@pytest.fixture
def querator_client(querator_node: SyncNode) -> Iterator[SyncClient]:
    """A client of `querator_node`."""
    with querator_node.client() as client:
        yield client


@pytest.fixture(scope="session")
def querator_session_node() -> Iterator[SyncNode]:
    """A node in memory for all tests of the session, in real time. It saves each test the start of
    a node.
    """
    with SyncNode(memory=True) as node:
        yield node


@pytest.fixture
def querator_session_client(querator_session_node: SyncNode) -> Iterator[SyncClient]:
    """A client of `querator_session_node` in a new namespace: it sees no queue of another test."""
    namespace = f"test-{uuid_utils.uuid7().hex[-12:]}"
    with querator_session_node.client(namespace=namespace) as client:
        yield client


@pytest.fixture(scope="session")
def querator_harness_options() -> Mapping[str, Any]:
    """The arguments of the harnesses: a program's conftest.py overrides it, in the scope session.
    Raises UsageError, because a harness needs functions.
    """
    raise pytest.UsageError(
        "querator_harness needs the durable functions of the program: define a fixture "
        "querator_harness_options with scope='session' that returns the arguments of Harness, "
        "as {'functions': [checkout]}"
    )


@pytest.fixture
def querator_harness(querator_harness_options: Mapping[str, Any]) -> Harness:
    """A harness of durable functions for this test alone."""
    return Harness(**querator_harness_options)


@pytest.fixture(scope="session")
def querator_session_harness(querator_harness_options: Mapping[str, Any]) -> Harness:
    """A harness for all tests of the session, which may have event loops of their own. They share
    its clock and its executions.
    """
    return Harness(**querator_harness_options)
