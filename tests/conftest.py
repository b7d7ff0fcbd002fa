"""Shared by all tiers of tests: Hypothesis profiles, skip report, no blocking on the loop."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.skip_report"]

# `ci` finds the same examples on every run, so that a red build is red again; `dev` searches for
# others each time. No deadlines: the machine is shared, and a slow example is not a failure.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


def pytest_configure() -> None:
    """Programs that tests interrupt must not inherit an ignored SIGINT, which a shell sets for
    background jobs.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What is loaded for the tests lives as long as they do. Frozen, it is in no collection of
    garbage: these took an eighth of the processor time of the unit tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_blocking_calls() -> Iterator[None]:
    """A blocking call (file, socket, sleep) that Querator makes on an event loop is an error."""
    with blockbuster_ctx("querator") as guard:
        # gRPC joins its poller thread when its last object is freed. That may be garbage of an
        # earlier test, which the collector happens to meet while Querator runs.
        guard.functions["threading.Lock.acquire"].can_block_in("threading.py", "join")
        # The loop of an execution takes turns with the thread of a sync durable function.
        guard.functions["threading.Lock.acquire"].can_block_in("durable/threads.py", "run")
        # The loop of a demo reads /proc and a log, and serves no client.
        for function in guard.functions.values():
            function.can_block_in("cli/spark/driver.py", ("_below", "_run_once", "_last_words"))
        yield
