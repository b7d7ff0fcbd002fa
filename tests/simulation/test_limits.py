"""The checker of limits finds what it is there for, and nothing else."""

from typing import Any

from querator.model.commands import (
    Configure,
    Done,
    FlowSettings,
    Lease,
    LeasedSegment,
    LeaseGrant,
    LeaseResult,
    Refill,
)
from querator.model.lease_limits import LeaseLimits
from querator.model.queues import QueueKind, RateSettings
from tests.simulation.whole.limits import LimitChecker, LimitedEntry
from tests.unit.partition.partition_log import settings

G = 5
RATE = LeaseLimits(items=10, interval_ms=1_000, burst=5)
"""A token every 100 ms."""
CAP = LeaseLimits(leased_max=4)


class Log:
    """The entries of a partition, each with one command. By default nothing is ready."""

    def __init__(self, limits: LeaseLimits | None) -> None:
        self.checker = LimitChecker()
        self.now_ms = 100_000
        self.version = 0
        self.configure(limits)

    def entry(self, command: Any, result: Any, *, ready: int = 0, **after: int) -> None:
        values: dict[str, Any] = {"leased": 0, "reported": 0, "next_ms": 0} | after
        entry = LimitedEntry(self.now_ms, [command], [result], ready, **values)
        self.checker.applied(G, entry)

    def configure(self, limits: LeaseLimits | None, **changes: Any) -> None:
        self.version += 1
        self.entry(Configure(self.version, settings(limits=limits, **changes)), Done(1))

    def lease(self, items: int, *, repeated: bool = False, **after: int) -> None:
        segment = LeasedSegment(1, (1 << items) - 1, 1, items, 10)
        grant = LeaseGrant(7, 0, (segment,), repeated)
        self.entry(Lease(()), LeaseResult((grant,)), **after)

    @property
    def found(self) -> list[str]:
        return self.checker.found


def test_leases_at_the_rate_are_right():
    log = Log(RATE)
    log.lease(5)
    for _ in range(30):
        log.now_ms += 100
        log.lease(1)
    log.now_ms += 10_000
    log.lease(3)
    log.lease(2)
    assert log.found == []


def test_more_than_the_burst_at_once_is_found():
    log = Log(RATE)
    log.lease(3)
    log.lease(3)
    assert log.found == [
        f"group {G}: 6 items were leased in a time of 0.00 tokens and a burst of 5"
    ]


def test_more_than_the_rate_over_a_long_time_is_found():
    log = Log(RATE)
    log.lease(5)
    for _ in range(9):
        log.now_ms += 95
        log.lease(1)
    assert "group 5: 6 items were leased in a time of 0.95 tokens" in log.found[0]


def test_more_than_the_rate_after_a_quiet_time_is_found():
    log = Log(RATE)
    log.now_ms += 60_000
    log.lease(5)
    log.now_ms += 100
    log.lease(2)
    assert "7 items were leased in a time of 1.00 tokens and a burst of 5" in log.found[0]


def test_a_repeated_grant_is_no_lease():
    log = Log(RATE)
    log.lease(5)
    log.lease(5, repeated=True)
    assert log.found == []


def test_other_settings_bring_no_tokens():
    log = Log(RATE)
    log.lease(5)
    log.configure(RATE, max_attempts=3)
    log.lease(1)
    assert log.found


def test_a_rate_of_a_time_counts_in_it():
    log = Log(RATE)
    log.lease(5)
    log.configure(LeaseLimits(100, 1_000, 20))
    log.now_ms += 100
    log.lease(10)
    assert log.found == []
    log.configure(RATE)
    log.now_ms += 100
    log.lease(1)
    log.lease(10)
    assert log.found


def test_a_limit_that_is_set_again_begins_with_its_burst():
    log = Log(RATE)
    log.lease(5)
    log.configure(None)
    log.lease(50)
    log.configure(RATE)
    log.lease(5)
    assert log.found == []


def test_time_that_is_put_back_is_no_reason_to_find_anything():
    log = Log(RATE)
    log.lease(5)
    log.now_ms -= 50_000
    log.lease(5)
    assert log.found == []


def test_more_items_at_a_time_are_found():
    log = Log(CAP)
    log.lease(4, leased=4)
    assert log.found == []
    log.lease(1, leased=5)
    assert log.found == [f"group {G}: 5 items are leased, and 4 may be"]


def test_leases_above_a_lower_number_continue():
    log = Log(CAP)
    log.lease(4, leased=4)
    log.configure(LeaseLimits(leased_max=2))
    log.entry(Refill(), Done(), leased=4)
    assert log.found == []


def test_items_that_wait_beside_tokens_are_found():
    log = Log(RATE)
    log.lease(5)
    log.now_ms += 100
    log.entry(Refill(), Done(), ready=3, next_ms=log.now_ms + 50)
    assert log.found == [f"group {G}: 3 items wait, and there are tokens"]


def test_items_that_wait_beside_a_place_are_found():
    log = Log(CAP)
    log.entry(Refill(), Done(), ready=3, leased=3)
    assert log.found == [f"group {G}: 3 items wait, and there are places"]


def test_items_that_wait_for_tokens_for_ever_are_found():
    log = Log(RATE)
    log.lease(5, ready=3)
    assert log.found == [f"group {G}: 3 items wait for tokens for ever"]


def test_items_that_wait_for_what_comes_are_right():
    log = Log(RATE)
    log.lease(5, ready=3, next_ms=log.now_ms + 100)
    log.now_ms += 100
    log.entry(Refill(), Done(), ready=3, reported=1)
    log.configure(CAP)
    log.entry(Refill(), Done(), ready=3, leased=4)
    assert log.found == []
    assert log.checker.kept_back == 2


def of_keys(log: Log, *names: str, rate: RateSettings | None = None) -> None:
    """Leases an item of each of these keys."""
    flows = FlowSettings(QueueKind.KEYED, rate_limit=rate or RateSettings(10, 1_000, 2))
    values = LimitedEntry(log.now_ms, [], [], 0, 0, 0, 0, flows=flows, names=names)
    log.checker.applied(G, values)


def test_leases_at_the_rate_of_each_key_are_right():
    log = Log(None)
    of_keys(log, "a", "a", "b", "b", "", "", "")
    for _ in range(5):
        log.now_ms += 100
        of_keys(log, "a", "b")
    assert log.found == []


def test_more_than_the_rate_of_a_key_is_found():
    log = Log(None)
    of_keys(log, "a", "b", "a")
    log.now_ms += 99
    of_keys(log, "a")
    assert log.found == [
        f"group {G}: 3 items of a were leased in a time of 0.99 tokens and a burst of 2"
    ]


def test_groups_spend_the_tokens_of_those_above_them():
    log = Log(None)
    of_keys(log, "eu.de", "eu.fr", "eu.it")
    assert "3 items of eu were leased" in log.found[0]


def test_another_rate_of_groups_begins_with_its_burst():
    log = Log(None)
    of_keys(log, "a", "a")
    of_keys(log, "a", rate=RateSettings(1, 1_000, 1))
    assert log.found == []
