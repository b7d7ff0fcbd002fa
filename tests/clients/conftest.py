"""Fixtures: a node in memory for each test, and clients of it."""

from collections.abc import AsyncIterator

import pytest

from querator import Client, Node
from tests.ports import keep_to_part

keep_to_part("clients")


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with Node(memory=True) as node:
        yield node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.address) as client:
        yield client
