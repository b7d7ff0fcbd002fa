"""Queues, settings, counts and peeked items."""

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from hypothesis import given
from hypothesis import strategies as st

from querator.model import limits
from querator.model.calls import (
    BrowsedItem,
    DeadOrigin,
    ExecutionTotals,
    PartitionCounts,
    PeekedPage,
    QueueCounts,
    QueuePage,
)
from querator.model.errors import QueratorError
from querator.model.ids import GroupId, QueueId
from querator.model.queues import (
    DEAD_QUEUE_DEFAULT,
    BreakerSettings,
    DedupUntil,
    Fairness,
    GroupSettings,
    Queue,
    QueueKind,
    QueueSettings,
    QueueState,
    RateSettings,
    RetryBackoff,
    RetryWaits,
)
from querator.model.rates import ItemRates
from querator.v1 import admin_service_pb2, items_pb2, queue_service_pb2
from querator.wire import queues
from querator.wire.queues import PageCall, QueueName
from tests.unit.wire import valid_requests as make

ORDERS = QueueName("default", "orders")
rates = st.builds(
    RateSettings,
    items=st.integers(1, limits.RATE_ITEMS_MAX),
    interval_ms=st.integers(limits.RATE_INTERVAL_MS_MIN, limits.RATE_INTERVAL_MS_MAX),
    burst=st.integers(0, limits.RATE_BURST_MAX),
)
settings = st.builds(
    QueueSettings,
    partitions=st.integers(1, limits.PARTITIONS_MAX),
    lease_timeout_ms=st.integers(limits.LEASE_TIMEOUT_MS_MIN, limits.LEASE_TIMEOUT_MS_MAX),
    expire_timeout_ms=st.integers(0, limits.EXPIRE_TIMEOUT_MS_MAX),
    max_attempts=st.integers(0, limits.ATTEMPTS_MAX),
    dead_queue=st.sampled_from(["", "dead"]),
    dedup_window_ms=st.integers(0, limits.DEDUP_WINDOW_MS_MAX),
    partition_items_max=st.integers(0, 2**64 - 1),
    description=st.text(max_size=50),
    replicas=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(QueueKind),
    fairness=st.sampled_from(Fairness),
    group_leased_max=st.integers(0, limits.FLOW_LEASED_MAX),
    groups=st.lists(
        st.builds(
            GroupSettings,
            path=st.from_regex(r"[a-zé]{1,5}(\.[a-z]{1,5}){0,7}", fullmatch=True),
            weight=st.integers(1, limits.GROUP_WEIGHT_MAX),
            leased_max=st.integers(0, limits.FLOW_LEASED_MAX),
            paused=st.booleans(),
            rate_limit=st.none() | rates,
        ),
        max_size=3,
        unique_by=lambda group: group.path,
    ).map(lambda groups: tuple(sorted(groups, key=lambda group: group.path))),
    key_leased_max=st.integers(1, limits.FLOW_LEASED_MAX),
    key_retry_blocks=st.booleans(),
    lease_paused=st.booleans(),
    produce_paused=st.booleans(),
    breaker=st.none()
    | st.builds(
        BreakerSettings,
        failure_percent=st.integers(1, 100),
        outcomes_min=st.integers(1, limits.BREAKER_OUTCOMES_MAX),
        window_ms=st.integers(limits.BREAKER_WINDOW_MS_MIN, limits.BREAKER_WINDOW_MS_MAX),
        open_ms=st.integers(limits.BREAKER_OPEN_MS_MIN, limits.BREAKER_OPEN_MS_MAX),
        probes=st.integers(1, limits.BREAKER_PROBES_MAX),
    ),
    rate_limit=st.none() | rates,
    lease_limit=st.integers(0, limits.LEASE_LIMIT_MAX),
    group_rate_limit=st.none() | rates,
    key_rate_limit=st.none() | rates,
    events_retention_ms=st.just(0)
    | st.integers(limits.EVENTS_RETENTION_MS_MIN, limits.EVENTS_RETENTION_MS_MAX),
)


def queue(of: QueueSettings) -> Queue:
    return Queue(
        namespace="n",
        name="q",
        id=QueueId(7),
        state=QueueState.ACTIVE,
        settings=of,
        settings_version=3,
        created_at_ms=1_234,
        groups=(GroupId(1), GroupId(2)),
    )


@given(settings)
def test_settings_survive_the_way_there_and_back(given_settings: QueueSettings) -> None:
    message = queues.settings_message(given_settings)
    request = admin_service_pb2.CreateQueueRequest(queue="orders", settings=message)
    parsed = queues.parse_create_queue(request.SerializeToString())
    assert (parsed.queue, parsed.settings) == (ORDERS, given_settings)
    there = set(QueueSettings.__struct_fields__)
    # Neither a list without elements nor a message that is not there is sent.
    sent_if_there = ("groups", "breaker", "rate_limit", "group_rate_limit", "key_rate_limit")
    left_out = {name for name in sent_if_there if not getattr(given_settings, name)}
    if given_settings.kind is not QueueKind.EXECUTIONS:
        left_out.add("execution_retention_ms")
    assert set(parsed.given) == there - left_out


def test_unset_settings_have_their_defaults() -> None:
    parsed = queues.parse_create_queue(make.create_queue().SerializeToString())
    assert parsed.settings == QueueSettings(
        max_attempts=limits.ATTEMPTS_DEFAULT, dead_queue=DEAD_QUEUE_DEFAULT
    )
    assert parsed.given == ()


def test_the_default_dead_queue_has_no_dead_queue_and_no_limit_of_attempts() -> None:
    request = admin_service_pb2.CreateQueueRequest(queue=DEAD_QUEUE_DEFAULT)
    parsed = queues.parse_create_queue(request.SerializeToString())
    assert (parsed.settings, parsed.given) == (QueueSettings(), ())


def test_no_limit_and_no_dead_queue_can_be_given() -> None:
    settings = admin_service_pb2.QueueSettings(partitions=0, max_attempts=0, dead_queue="")
    request = admin_service_pb2.CreateQueueRequest(queue="orders", settings=settings)
    parsed = queues.parse_create_queue(request.SerializeToString())
    assert parsed.settings == QueueSettings()
    assert parsed.given == ("max_attempts", "dead_queue"), "0 partitions means the default"


def test_a_retry_policy() -> None:
    settings = admin_service_pb2.QueueSettings(
        retry_delay=make.seconds(2),
        retry_backoff=items_pb2.RETRY_BACKOFF_LINEAR,
        retry_jitter=False,
    )
    request = admin_service_pb2.CreateQueueRequest(queue="orders", settings=settings)
    parsed = queues.parse_create_queue(request.SerializeToString())
    assert parsed.given == ("retry_delay_ms", "retry_backoff", "retry_jitter")
    assert parsed.settings.retry_policy == RetryWaits(
        2_000, 3_600_000, RetryBackoff.LINEAR, jitter=False
    )
    assert queues.settings_message(parsed.settings).retry_delay == make.seconds(2)


def test_the_end_of_dedup_keys():
    settings = admin_service_pb2.QueueSettings(dedup_until=admin_service_pb2.DEDUP_UNTIL_DONE)
    request = admin_service_pb2.CreateQueueRequest(queue="q", settings=settings)
    parsed = queues.parse_create_queue(request.SerializeToString())
    assert parsed.given == ("dedup_until",)
    assert parsed.settings.dedup_until is DedupUntil.DONE
    assert queues.settings_message(parsed.settings).dedup_until == settings.dedup_until
    plain = queues.parse_create_queue(
        admin_service_pb2.CreateQueueRequest(queue="q").SerializeToString()
    )
    assert (plain.settings.dedup_until, plain.given) == (DedupUntil.WINDOW, ())
    request.settings.dedup_until = 7  # type: ignore[assignment]
    with pytest.raises(QueratorError) as caught:
        queues.parse_create_queue(request.SerializeToString())
    assert (caught.value.field, caught.value.value) == ("settings.dedup_until", "7")


def test_aging_of_priorities() -> None:
    settings = admin_service_pb2.QueueSettings(priority_aging=make.seconds(60))
    request = admin_service_pb2.CreateQueueRequest(queue="orders", settings=settings)
    parsed = queues.parse_create_queue(request.SerializeToString())
    assert parsed.given == ("priority_aging_ms",)
    assert parsed.settings.priority_aging_ms == 60_000
    assert queues.settings_message(parsed.settings).priority_aging == make.seconds(60)


def test_an_unknown_backoff_is_refused() -> None:
    # Field 12 of QueueSettings, as a client of another version would send it.
    settings = admin_service_pb2.QueueSettings.FromString(bytes((12 << 3, 9)))
    request = admin_service_pb2.CreateQueueRequest(queue="orders", settings=settings)
    with pytest.raises(QueratorError, match="is not a known backoff") as refused:
        queues.parse_create_queue(request.SerializeToString())
    assert (refused.value.field, refused.value.value) == ("settings.retry_backoff", "9")


def test_update_names_the_fields_of_the_model() -> None:
    request = admin_service_pb2.UpdateQueueRequest(
        queue="orders",
        settings=admin_service_pb2.QueueSettings(max_attempts=3, lease_timeout=make.seconds(9)),
        update_mask=FieldMask(paths=["lease_timeout", "max_attempts", "dedup_window"]),
        expected_version=4,
    )
    assert queues.parse_update_queue(request.SerializeToString()) == queues.UpdateQueueCall(
        ORDERS,
        QueueSettings(max_attempts=3, lease_timeout_ms=9_000, dead_queue=DEAD_QUEUE_DEFAULT),
        ("lease_timeout_ms", "max_attempts", "dedup_window_ms"),
        4,
    )


def test_every_setting_can_be_named_in_the_mask() -> None:
    names = list(admin_service_pb2.QueueSettings.DESCRIPTOR.fields_by_name)
    request = admin_service_pb2.UpdateQueueRequest(
        queue="orders",
        settings=admin_service_pb2.QueueSettings(partitions=1),
        update_mask=FieldMask(paths=names + names),
    )
    parsed = queues.parse_update_queue(request.SerializeToString())
    assert sorted(parsed.mask) == sorted(QueueSettings.__struct_fields__)


def test_names_and_pages() -> None:
    named = admin_service_pb2.GetQueueRequest(queue="orders").SerializeToString()
    assert queues.parse_get_queue(named) == ORDERS
    assert queues.parse_delete_queue(named) == ORDERS
    assert queues.parse_queue_stats(named) == queues.StatsCall(ORDERS, stale=False)
    assert queues.parse_list_queues(b"") == PageCall(QueueName("default", ""), 100, "")
    peek = admin_service_pb2.PeekItemsRequest(
        namespace="n", queue="orders", page_size=5, page_token="t",
        state=items_pb2.ItemState.ITEM_STATE_LEASED,
    )  # fmt: skip
    assert queues.parse_peek_items(peek.SerializeToString()) == PageCall(
        QueueName("n", "orders"), 5, "t", 2
    )
    assert queues.parse_list_dead_letters(named) == PageCall(ORDERS, 100, "")


@given(settings)
def test_a_queue_arrives(of: QueueSettings) -> None:
    data = queues.encode_created_queue(queue(of), created=True)
    created = admin_service_pb2.CreateQueueResponse.FromString(data)
    message = created.queue
    assert created.created
    assert (message.namespace, message.name, message.id) == ("n", "q", 7)
    assert message.state == admin_service_pb2.QueueState.QUEUE_STATE_ACTIVE
    assert queues.check_settings(message.settings, name="q") == of
    assert (message.settings_version, message.created_at.ToMilliseconds()) == (3, 1_234)
    got = admin_service_pb2.GetQueueResponse.FromString(queues.encode_got_queue(queue(of)))
    updated = admin_service_pb2.UpdateQueueResponse.FromString(
        queues.encode_updated_queue(queue(of))
    )
    page = admin_service_pb2.ListQueuesResponse.FromString(
        queues.encode_queue_page(QueuePage((queue(of),), "more"))
    )
    assert got.queue == updated.queue == page.queues[0] == message
    assert page.next_page_token == "more"


def test_states_are_those_of_the_protocol() -> None:
    protocol = {
        name.removeprefix("QUEUE_STATE_"): number
        for name, number in admin_service_pb2.QueueState.items()
        if number
    }
    assert protocol == {state.name: state.value for state in QueueState}


def test_counts_arrive_field_by_field() -> None:
    names = [
        name
        for name in PartitionCounts.__struct_fields__
        if name not in ("waits_for", "state_ms", "behind_ms", "breaker", "limits", "rates")
        and not name.startswith(("oldest", "executions"))
    ]
    values: dict[str, Any] = {name: number for number, name in enumerate(names, start=1)}
    instants: dict[str, Any] = {"oldest_ready_at_ms": 5_000, "oldest_batch_at_ms": 6_000}
    instants["oldest_lease_at_ms"] = 8_000
    one = PartitionCounts(
        **values, **instants, oldest_stage_at_ms=7_000, waits_for=(3, 5),
        rates=(ItemRates(1, 2, 3), ItemRates(4, 5, 4 + values["ready"] / 100), ItemRates(7, 8, 9)),
        executions=ExecutionTotals(1, 2, 3, 4, 5),
    )  # fmt: skip
    zeros: dict[str, Any] = dict.fromkeys(names, 0)
    none = PartitionCounts(**zeros, oldest_ready_at_ms=0, oldest_batch_at_ms=0)
    stats = QueueCounts(queue(QueueSettings()), none, (one, none), durable=True)
    message = admin_service_pb2.GetQueueStatsResponse.FromString(queues.encode_queue_stats(stats))
    assert message.durable
    assert not message.total.HasField("oldest_ready_at")
    assert not message.total.HasField("oldest_batch_at")
    got = message.partitions[0]
    assert {name: getattr(got, name) for name in names} == values
    assert got.oldest_ready_at.ToMilliseconds() == 5_000
    assert list(got.waits_for) == [3, 5]
    assert got.oldest_batch_at.ToMilliseconds() == 6_000
    assert got.oldest_stage_at.ToMilliseconds() == 7_000
    assert not message.total.HasField("oldest_stage_at")
    assert got.oldest_lease_at.ToMilliseconds() == 8_000
    assert not message.total.HasField("oldest_lease_at")
    rates = [got.rates_1m, got.rates_5m, got.rates_15m]
    assert [(one.came, one.completed) for one in rates] == [(1, 2), (4, 5), (7, 8)]
    assert (got.rates_15m.left, got.drain_time.ToSeconds()) == (9, 100)
    assert not message.total.HasField("rates_1m")
    assert not message.total.HasField("drain_time")
    protocol = set(admin_service_pb2.PartitionStats.DESCRIPTOR.fields_by_name)
    instant_names = {"oldest_ready_at", "oldest_batch_at", "oldest_stage_at", "oldest_lease_at"}
    assert protocol == {*names, *instant_names, "waits_for", "breaker", "limits"} | {
        "rates_1m", "rates_5m", "rates_15m", "drain_time",
    }  # fmt: skip


def test_peeked_items_arrive() -> None:
    item = items_pb2.Item(payload=b"p" * 300, kind="k", attributes={"a": "b"})
    stored = queue_service_pb2.ProduceRequest(items=[item]).SerializeToString()
    letter = DeadOrigin(
        origin_queue="origin",
        origin_partition=1,
        origin_seq=2,
        attempts=3,
        reason=1,
        errors=("e",),
        produced_at_ms=4_000,
        died_at_ms=5_000,
    )
    plain = BrowsedItem(
        seq=9,
        state=1,
        attempt=0,
        produced_at_ms=1_000,
        due_at_ms=0,
        lease=0,
        dead_letter=None,
        errors=(),
        item=stored,
    )
    leased = BrowsedItem(
        seq=10,
        state=2,
        attempt=4,
        produced_at_ms=1_000,
        due_at_ms=2_000,
        lease=0x1F,
        dead_letter=letter,
        errors=("x", "y"),
        item=stored,
        client_id="me",
        deadline_ms=6_000,
        leased_at_ms=3_000,
    )
    page = PeekedPage(((0xA, 3, plain), (0xA, 3, leased)), "more")
    data = queues.encode_peeked_items(page)
    message = admin_service_pb2.PeekItemsResponse.FromString(data)
    dead = admin_service_pb2.ListDeadLettersResponse.FromString(queues.encode_dead_letters(page))
    assert message.items == dead.items
    assert message.next_page_token == dead.next_page_token == "more"
    first, second = message.items
    assert (first.partition, first.seq, first.state, first.attempt) == (3, 9, 1, 0)
    assert first.item == second.item == item
    assert not first.HasField("due_at")
    assert not first.HasField("dead_letter")
    assert (first.lease_id, second.lease_id) == ("", "a.3.1f")
    assert (first.client_id, second.client_id) == ("", "me")
    assert not first.HasField("deadline")
    assert not first.HasField("leased_at")
    assert second.leased_at.ToMilliseconds() == 3_000
    assert second.deadline.ToMilliseconds() == 6_000
    assert (second.produced_at.ToMilliseconds(), second.due_at.ToMilliseconds()) == (1_000, 2_000)
    assert list(second.errors) == ["x", "y"]
    assert second.dead_letter.origin_queue == "origin"


def test_small_answers() -> None:
    assert queues.encode_deleted_queue() == b""


def group(path: str, **settings: Any) -> admin_service_pb2.GroupSettings:
    return admin_service_pb2.GroupSettings(path=path, **settings)


@pytest.mark.parametrize(
    ("given_settings", "field", "limit", "value"),
    [
        ({"kind": 5}, "kind", "", "5"),
        ({"fairness": 3}, "fairness", "", "3"),
        ({"group_leased_max": 1_000_001}, "group_leased_max", "1000000", "1000001"),
        ({"key_leased_max": 0}, "key_leased_max", "1", "0"),
        ({"groups": [group("a", weight=0)]}, "groups[0].weight", "1", "0"),
        ({"groups": [group("a", weight=1_001)]}, "groups[0].weight", "1000", "1001"),
        ({"groups": [group("a"), group("b", leased_max=0)]}, "groups[1].leased_max", "1", "0"),
        ({"groups": [group("a"), group("a")]}, "groups[1].path", "", "a"),
        ({"groups": [group("")]}, "groups[0].path", "", ""),
        ({"groups": [group("a..b")]}, "groups[0].path", "", "a..b"),
        ({"groups": [group("a.")]}, "groups[0].path", "", "a."),
        ({"groups": [group(".".join("a" * 9))]}, "groups[0].path", "8 levels", "9 levels"),
        ({"groups": [group("é" * 257)]}, "groups[0].path", "512 bytes", "514 bytes"),
        (
            {"groups": [group(f"g{number}") for number in range(1_001)]},
            "groups",
            "1000 groups",
            "1001 groups",
        ),
    ],
)
def test_settings_of_groups_and_keys_are_refused_by_name(
    given_settings: dict[str, Any], field: str, limit: str, value: str
) -> None:
    request = admin_service_pb2.CreateQueueRequest(
        queue="orders", settings=admin_service_pb2.QueueSettings(**given_settings)
    )
    with pytest.raises(QueratorError) as caught:
        queues.parse_create_queue(request.SerializeToString())
    error = caught.value
    assert (error.field, error.limit, error.value) == (f"settings.{field}", limit, value)
