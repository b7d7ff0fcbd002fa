"""Tools for tests of programs that use Querator: a node in memory, its clock, assertions.

    # conftest.py
    pytest_plugins = ["querator.testing"]

    # test_mail.py
    def test_mail_is_sent(querator_client):
        querator_client.create_queue("mail")
        send_welcome(querator_client, "ada@example.org")
        assert_completed(querator_client, "mail", 0)

Only the fixtures need pytest. The other names also serve unittest and scripts. Production code does
not belong here, and nothing else in `querator` imports it. See docs/guides/testing.md, and
docs/testing-durable.md for durable functions.

    asserting   what a test expects of a queue, with a bound on the wait
    clock       FrozenClock: time of a node and its clients, which a test moves
    fixtures    the fixtures of pytest
    replays     journals of real executions, replayed by the code of the test
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from querator.extras import MissingExtra, needed

if TYPE_CHECKING:
    from querator.testing.asserting import (
        assert_completed,
        assert_dead,
        assert_empty,
        dead_letters,
        drain,
        work,
    )
    from querator.testing.clock import FrozenClock
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
    from querator.testing.replays import assert_replays

__all__ = [
    "FrozenClock",
    "assert_completed",
    "assert_dead",
    "assert_empty",
    "assert_replays",
    "dead_letters",
    "drain",
    "querator_client",
    "querator_clock",
    "querator_harness",
    "querator_harness_options",
    "querator_node",
    "querator_session_client",
    "querator_session_harness",
    "querator_session_node",
    "work",
]

_HOMES = {"FrozenClock": "clock", "assert_replays": "replays"}


def pytest_configure(config: object) -> None:
    """pytest calls it when the package is its plug-in. Without it, pytest would pass over the
    fixtures if the packages of a node are missing.
    """
    try:
        __getattr__("querator_node")
    except MissingExtra as missing:
        import pytest

        raise pytest.UsageError(str(missing)) from None


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.startswith("querator_"):
        home = "fixtures"
    else:
        home = _HOMES.get(name, "asserting")
    with needed("server", __name__):
        return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
