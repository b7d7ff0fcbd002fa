"""Items of fair and keyed queues that replace the waiting item of their dedup key."""

from typing import Any

import pytest

from querator.model.commands import FlowSettings, LeaseItems, Refusal, Retry
from querator.model.errors import ErrorCode
from querator.model.queues import DedupUntil, QueueKind
from querator.partition.flow_queries import flow_page
from tests.unit.partition.flow_queue import FlowQueue, fair, keyed, names_of, weights
from tests.unit.partition.partition_log import GROUP, produce, seqs
from tests.unit.partition.test_duplicates import BUMP, KEEP, REPLACE, counted, special, waiting


def queue_of(flows: FlowSettings, **changes: Any) -> FlowQueue:
    return FlowQueue(flows, dedup_until=DedupUntil.DONE, **changes)


def ask(queue: FlowQueue, name: str, **more: Any) -> int:
    """Produces an item of this group or key. Returns its sequence."""
    return queue.put(name, specials=(special(queue, **more),))[0]


def leased(queue: FlowQueue, items: int = 100) -> list[int]:
    return seqs(queue.lease(items))


def counts_of(queue: FlowQueue) -> dict[str, tuple[int, int, int]]:
    """Items, ready ones and leased ones of each group or key."""
    with queue.environment.snapshot() as txn:
        page = flow_page(txn, GROUP, after=b"", limit=100)
    return {
        flow.name.decode(): (flow.items, flow.ready, flow.leased)
        for flow in page.flows
        if flow.name
    }


def retry_later(queue: FlowQueue, lease: int, delay_ms: int) -> None:
    queue.one(Retry((LeaseItems(lease),), retry_at_ms=queue.now_ms + delay_ms, error="it fails"))


# --- fair queues -----------------------------------------------------------------------------


def test_a_replaced_item_leaves_its_place_in_its_group():
    queue = queue_of(fair())
    ask(queue, "eu")
    queue.put("eu", "us")
    ask(queue, "eu")
    assert counts_of(queue) == {"eu": (2, 2, 0), "us": (1, 1, 0)}
    assert [seq for seq in leased(queue) if seq != 3] == [4, 2]


def test_an_item_of_another_group_is_placed_as_a_new_one():
    queue = queue_of(fair())
    ask(queue, "eu")
    queue.put("eu", "us")
    ask(queue, "us")
    assert counts_of(queue) == {"eu": (1, 1, 0), "us": (2, 2, 0)}
    assert [seq for seq in leased(queue) if seq != 2] == [3, 4]


def test_a_group_whose_only_item_is_replaced_from_another_group_goes():
    queue = queue_of(fair())
    ask(queue, "eu.de")
    ask(queue, "us")
    assert counts_of(queue) == {"us": (1, 1, 0)}
    assert queue.take() == ["us"]
    assert counts_of(queue) == {}


def test_a_group_whose_only_item_is_replaced_keeps_its_turn():
    queue = queue_of(fair(groups=weights(eu=1, us=1)))
    queue.fill({"us": 10})
    ask(queue, "eu")
    for _ in range(20):
        ask(queue, "eu")
    taken = queue.take(2)
    assert sorted(taken) == ["eu", "us"]
    assert counts_of(queue) == {"us": (9, 9, 0)}


def test_replaced_items_do_not_count_for_the_limit_of_their_group():
    queue = queue_of(fair(group_leased_max=1))
    ask(queue, "eu")
    first = queue.lease()
    second = ask(queue, "eu")
    assert counts_of(queue) == {"eu": (2, 1, 1)}
    assert queue.applied.effects.ready == 0, "the group has its limit leased"
    assert leased(queue) == []
    third = ask(queue, "eu")
    assert (second, third, leased(queue)) == (2, 3, [])
    queue.complete(first)
    assert queue.applied.effects.ready == 1
    assert leased(queue) == [third]


def test_a_bumped_item_leaves_its_group_until_it_is_due():
    queue = queue_of(fair())
    ask(queue, "eu")
    ask(queue, "eu", what=BUMP, delay_ms=5_000)
    assert counts_of(queue) == {"eu": (1, 0, 0)}
    assert leased(queue) == []
    queue.advance(5_000)
    assert counts_of(queue) == {"eu": (1, 1, 0)}
    assert leased(queue) == [2]


def test_items_of_one_entry_replace_each_other_from_group_to_group():
    queue = queue_of(fair())
    results = queue.entry(
        *(
            produce([b"x"], specials=(special(queue),), flows=names_of([name]))
            for name in ("eu", "us", "eu", "asia.jp")
        )
    )
    assert [result.replaced for result in results] == [(), ((0, 1),), ((0, 2),), ((0, 3),)]
    assert counts_of(queue) == {"asia": (1, 1, 0), "asia.jp": (1, 1, 0)}
    assert leased(queue) == [4]


def test_priorities_of_a_group_hold_for_what_replaces():
    queue = queue_of(fair())
    ask(queue, "eu")
    queue.put("eu")
    ask(queue, "eu", priority=5)
    assert leased(queue) == [2, 3]


# --- keyed queues ----------------------------------------------------------------------------


def test_a_replaced_item_leaves_its_place_in_its_key():
    queue = queue_of(keyed())
    ask(queue, "a")
    queue.put("a", "a")
    ask(queue, "a")
    order = []
    for _ in range(3):
        grant = queue.lease()
        order += seqs(grant)
        queue.complete(grant)
    assert order == [4, 2, 3]


def test_an_item_that_replaces_a_leased_one_waits_for_the_end_of_its_key():
    queue = queue_of(keyed())
    ask(queue, "a")
    grant = queue.lease()
    ask(queue, "a")
    assert counts_of(queue) == {"a": (2, 1, 1)}
    assert leased(queue) == []
    assert ask(queue, "a") == 3
    assert waiting(queue) == {1: ("LEASED", 0), 3: ("READY", 0)}
    queue.complete(grant)
    assert leased(queue) == [3]


def test_an_item_of_another_key_goes_to_the_end_of_its_key():
    queue = queue_of(keyed())
    ask(queue, "a")
    queue.put("b", "a")
    ask(queue, "b")
    assert counts_of(queue) == {"a": (1, 1, 0), "b": (2, 2, 0)}
    first = queue.lease()
    assert sorted(seqs(first)) == [2, 3]
    queue.complete(first)
    assert leased(queue) == [4]


def test_what_replaces_a_retried_item_keeps_back_its_key_until_the_same_instant():
    queue = queue_of(keyed())
    ask(queue, "a")
    queue.put("a")
    retry_later(queue, queue.lease().lease, 5_000)
    assert leased(queue) == []
    ask(queue, "a")
    assert waiting(queue) == {2: ("READY", 0), 3: ("SCHEDULED", 5_000)}
    assert leased(queue) == [], "the later item of the key waits"
    ask(queue, "a")
    assert leased(queue) == []
    queue.advance(5_000)
    grant = queue.lease()
    assert seqs(grant) == [4]
    queue.complete(grant)
    assert leased(queue) == [2]


def test_items_of_one_entry_that_replace_a_retried_one_keep_back_its_key():
    queue = queue_of(keyed())
    ask(queue, "a")
    queue.put("a")
    retry_later(queue, queue.lease().lease, 5_000)
    queue.entry(
        *(produce([b"x"], specials=(special(queue),), flows=names_of(["a"])) for _ in range(3))
    )
    assert waiting(queue) == {2: ("READY", 0), 5: ("SCHEDULED", 5_000)}
    assert leased(queue) == []
    queue.advance(5_000)
    assert leased(queue) == [5]


def test_a_retried_item_that_is_bumped_lets_its_key_go_on():
    queue = queue_of(keyed())
    ask(queue, "a")
    queue.put("a")
    retry_later(queue, queue.lease().lease, 60_000)
    ask(queue, "a", what=BUMP, delay_ms=5_000)
    assert waiting(queue) == {2: ("READY", 0), 3: ("SCHEDULED", 5_000)}
    assert queue.applied.effects.ready == 1
    assert leased(queue) == [2]


def test_a_retried_item_that_is_bumped_to_now_takes_its_place():
    queue = queue_of(keyed())
    ask(queue, "a")
    queue.put("a")
    retry_later(queue, queue.lease().lease, 60_000)
    ask(queue, "a", what=BUMP, delay_ms=1)
    assert leased(queue) == [3]


def test_a_retried_item_that_is_replaced_from_another_key_frees_its_own():
    queue = queue_of(keyed())
    ask(queue, "a")
    queue.put("a")
    retry_later(queue, queue.lease().lease, 5_000)
    ask(queue, "b")
    assert waiting(queue) == {2: ("READY", 0), 3: ("SCHEDULED", 5_000)}
    assert leased(queue) == [2]
    queue.advance(5_000)
    assert leased(queue) == [3]


def test_a_retried_item_that_shares_its_place_frees_its_key():
    queue = queue_of(keyed())
    queue.put("a", "a", specials=(special(queue, what=KEEP),))
    retry_later(queue, queue.lease().lease, 5_000)
    assert leased(queue) == []
    ask(queue, "a")
    assert waiting(queue) == {2: ("READY", 0), 3: ("SCHEDULED", 5_000)}
    assert leased(queue) == [2]


def test_a_queue_whose_retried_items_step_aside_keeps_nothing_back():
    queue = queue_of(keyed(key_retry_blocks=False))
    ask(queue, "a")
    queue.put("a")
    retry_later(queue, queue.lease().lease, 5_000)
    ask(queue, "a")
    assert leased(queue) == [2]


def test_priorities_do_not_matter_for_places_of_keys():
    queue = queue_of(keyed())
    ask(queue, "a", priority=3)
    queue.put("a")
    ask(queue, "a", priority=-3)
    assert leased(queue) == [3]


@pytest.mark.parametrize("flows", [fair(), keyed()])
def test_items_without_a_group_or_key_replace_each_other(flows: FlowSettings):
    queue = queue_of(flows)
    ask(queue, "")
    queue.put("")
    ask(queue, "")
    assert counted(queue, "replaced") == [1]
    assert leased(queue) == [3, 2]


@pytest.mark.parametrize("flows", [fair(), keyed()])
def test_a_refused_request_replaces_nothing(flows: FlowSettings):
    queue = queue_of(flows, items_max=2)
    ask(queue, "a")
    queue.put("a")
    two = (special(queue), special(queue, 1, "l"))
    refused = queue.produce(2, specials=two, flows=names_of(["a", "b"]))
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.QUEUE_FULL
    assert counts_of(queue) == {"a": (2, 2, 0)}
    assert ask(queue, "a", what=REPLACE) == 5
    assert (flows.kind is QueueKind.KEYED) == (leased(queue) == [5])
