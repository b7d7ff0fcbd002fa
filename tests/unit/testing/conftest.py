"""The shipped fixtures, as a program's tests get them by `pytest_plugins`."""

from querator.testing.fixtures import (
    querator_client,
    querator_clock,
    querator_harness,
    querator_harness_options,
    querator_node,
    querator_session_client,
    querator_session_harness,
    querator_session_node,
)

__all__ = [
    "querator_client",
    "querator_clock",
    "querator_harness",
    "querator_harness_options",
    "querator_node",
    "querator_session_client",
    "querator_session_harness",
    "querator_session_node",
]
