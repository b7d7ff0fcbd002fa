"""A node in memory for tests of locks, by the shipped fixtures."""

from querator.testing.fixtures import (
    querator_client,
    querator_clock,
    querator_node,
    querator_session_client,
    querator_session_node,
)

__all__ = [
    "querator_client",
    "querator_clock",
    "querator_node",
    "querator_session_client",
    "querator_session_node",
]
