"""Rates of groups and keys: each has a token bucket."""

from collections import Counter
from typing import Any

import pytest

from querator.model.commands import FlowSettings, RepairTime
from querator.model.limits import MINUTE_MS
from querator.model.queues import GroupSettings, RateSettings
from querator.model.readers import AdvanceReader, OpenReader
from querator.storage.tables import FLOW_DUE, FLOWS
from tests.unit.partition.flow_queue import FlowQueue, fair, keyed
from tests.unit.partition.partition_log import GROUP, seqs

RATE = RateSettings(items=10, interval_ms=1_000, burst=2)
"""A token every 100 ms."""
SLOW = RateSettings(items=1, interval_ms=60_000, burst=1)


def took(log: FlowQueue, items: int = 100) -> Counter[str]:
    return Counter(log.names[seq] for seq in seqs(log.lease(items)))


def due(log: FlowQueue) -> int:
    """In how many ms the leader proposes something; -1: never."""
    at_ms = log.applied.prompt_ms
    return -1 if at_ms is None else at_ms - log.now_ms


def rows(log: FlowQueue) -> tuple[int, int]:
    """Rows of flows apart from the root, and of flows that are due."""
    with log.environment.snapshot() as txn:
        found = [len(list(table.rows(txn, GROUP))) for table in (FLOWS, FLOW_DUE)]
    return found[0] - 1, found[1]


def test_each_group_gets_its_burst_and_then_its_rate():
    log = FlowQueue(fair(rate_limit=RATE))
    log.fill({"a": 20, "b": 20})
    assert log.applied.effects.ready == 4
    assert took(log) == {"a": 2, "b": 2}
    assert (log.applied.effects.ready, due(log)) == (0, 100)
    for _ in range(5):
        log.advance(100)
        assert log.applied.effects.ready == 2
        assert took(log) == {"a": 1, "b": 1}


def test_groups_with_a_rate_of_their_own():
    groups = (GroupSettings("a", rate_limit=SLOW), GroupSettings("b", weight=3))
    log = FlowQueue(fair(rate_limit=RATE, groups=groups))
    log.fill({"a": 9, "b": 9, "c": 9})
    assert took(log) == {"a": 1, "b": 2, "c": 2}
    log.advance(200)
    assert took(log) == {"b": 2, "c": 2}


def test_only_groups_that_are_named_have_a_rate():
    log = FlowQueue(fair(groups=(GroupSettings("a", rate_limit=SLOW),)))
    log.fill({"a": 9, "b": 9})
    log.put("", "")
    assert took(log) == {"a": 1, "b": 9, "": 2}


def test_the_rate_of_a_group_holds_for_those_below_it():
    log = FlowQueue(fair(groups=(GroupSettings("eu", rate_limit=RATE),)))
    log.fill({"eu.de": 9, "eu.fr": 9, "eu": 9, "us": 3})
    found = took(log)
    assert found["us"] == 3
    assert found.total() == 5
    log.advance(100)
    assert took(log).total() == 1


def test_a_group_without_tokens_lets_others_be_leased():
    log = FlowQueue(fair(rate_limit=SLOW))
    log.fill({"a": 9})
    took(log)
    log.fill({"b": 9})
    assert log.applied.effects.ready == 1
    assert took(log) == {"b": 1}


def test_items_that_come_back_need_another_token():
    log = FlowQueue(fair(rate_limit=SLOW))
    log.fill({"a": 2})
    log.release(log.lease())
    assert (log.applied.effects.ready, took(log).total()) == (0, 0)
    log.advance(MINUTE_MS)
    assert took(log) == {"a": 1}


def test_a_group_at_its_limit_of_leased_items_waits_for_no_tokens():
    log = FlowQueue(fair(rate_limit=SLOW, group_leased_max=1))
    log.fill({"a": 9})
    grant = log.lease()
    assert (len(seqs(grant)), due(log)) == (1, -1)
    log.complete(grant)
    assert due(log) == MINUTE_MS


def test_each_key_has_a_rate():
    log = FlowQueue(keyed(rate_limit=SLOW))
    log.put("a", "a", "b")
    assert log.take() == ["a", "b"]
    assert (log.applied.effects.ready, due(log)) == (0, MINUTE_MS)
    log.advance(MINUTE_MS)
    assert log.take() == ["a"]


def test_a_leased_key_waits_for_no_tokens():
    log = FlowQueue(keyed(rate_limit=SLOW))
    log.put("a", "a")
    log.lease()
    assert due(log) == -1


def test_several_items_of_a_key_take_several_tokens():
    log = FlowQueue(keyed(rate_limit=RATE, key_leased_max=5))
    log.put(*["a"] * 9)
    assert log.take() == ["a", "a"]
    log.advance(500)
    assert log.take() == ["a", "a"]


def test_items_without_a_key_have_no_rate():
    log = FlowQueue(keyed(rate_limit=SLOW))
    log.put("", "", "")
    assert log.take() == ["", "", ""]


# --- rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flows", [fair(rate_limit=SLOW), keyed(rate_limit=SLOW)])
def test_an_empty_flow_keeps_its_tokens_until_they_are_all_there(flows: FlowSettings):
    log = FlowQueue(flows)
    log.put("a")
    assert log.take() == ["a"]
    assert rows(log) == (1, 1)
    log.advance(30_000)
    log.put("a")
    assert log.take() == []
    log.advance(30_000)
    assert log.take() == ["a"]
    log.advance(2 * MINUTE_MS)
    assert rows(log) == (0, 0)


def test_a_flow_whose_bucket_is_full_has_no_row():
    log = FlowQueue(keyed(rate_limit=RATE))
    for number in range(20):
        log.put(f"k{number}")
        log.take()
        log.now_ms += 100
    assert rows(log) == (20, 20)
    log.advance(2 * MINUTE_MS)
    assert rows(log) == (0, 0)


def test_many_flows_come_due_together():
    log = FlowQueue(keyed(rate_limit=SLOW), checked=False)
    names = [f"k{number}" for number in range(3_000)]
    for start in range(0, 3_000, 1_000):
        log.put(*[name for name in names[start : start + 1_000] for _ in range(2)])
    taken = 0
    while found := len(log.take(1_000)):
        taken += found
    assert taken == 3_000
    log.advance(MINUTE_MS)
    assert log.applied.effects.ready == 3_000


# --- changes ---------------------------------------------------------------------------------


def test_other_settings_leave_the_tokens():
    log = FlowQueue(fair(rate_limit=RATE))
    log.fill({"a": 9})
    took(log)
    log.set(fair(rate_limit=RATE), max_attempts=7)
    assert log.applied.effects.ready == 0


@pytest.mark.parametrize(("after", "ready"), [({}, 7), ({"rate_limit": SLOW}, 0)])
def test_a_rate_that_changes_is_reviewed(after: dict[str, Any], ready: int):
    log = FlowQueue(fair(rate_limit=RATE))
    log.fill({"a": 9})
    took(log)
    log.set(fair(**after))
    log.advance(0)
    assert log.applied.effects.ready == ready
    assert rows(log)[1] == (0 if ready else 1)


def test_a_rate_that_is_set_later_begins_with_its_burst():
    log = FlowQueue(keyed())
    log.put("a", "a", "a")
    log.take()
    log.set(keyed(rate_limit=SLOW))
    log.advance(0)
    assert [log.take(), log.take()] == [["a"], []]


def test_time_that_an_operator_puts_back_leaves_the_tokens():
    log = FlowQueue(fair(rate_limit=SLOW))
    log.fill({"a": 9})
    log.now_ms += 10**9
    took(log)
    log.now_ms -= 10**9
    log.one(RepairTime(to_ms=log.now_ms))
    log.advance(0)
    assert (log.applied.effects.ready, due(log)) == (0, MINUTE_MS)


def test_readers_take_no_tokens_and_get_what_has_some():
    log = FlowQueue(fair(rate_limit=RATE))
    log.fill({"a": 9})
    epoch = log.one(OpenReader("lake")).epoch
    batch = log.one(AdvanceReader("lake", epoch, 0, 50, 10**6)).batch
    assert batch.count == 2
    assert took(log) == {"a": 2}
