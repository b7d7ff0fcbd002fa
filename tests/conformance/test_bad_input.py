"""Names and other bad input: refused by field, limit and value, with nothing disturbed."""

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import ITEM_STATE_READY, Item, SeqRange
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Queue, refusal, span


async def test_names_of_every_allowed_character_work(make: Make):
    queue = make.queue(f"A-Z.a_z-0.9{make.name()}")
    await queue.create()
    await queue.produce("a")
    assert await queue.counts() == {"ready": 1}


async def test_a_name_of_the_most_characters_works(make: Make):
    queue = make.queue(make.name().ljust(255, "x"))
    await queue.create()
    await queue.produce("a")
    assert await queue.counts() == {"ready": 1}


async def test_a_queue_name_of_256_characters_is_refused(make: Make):
    said = await refusal(make.queue("x" * 256).create())
    assert said.facts == ("LIMIT_EXCEEDED", "queue", "255 characters", "256 characters")


async def test_a_queue_name_of_10000_characters_is_refused(make: Make):
    said = await refusal(make.queue("x" * 10_000).create())
    assert said.facts == ("LIMIT_EXCEEDED", "queue", "255 characters", "10000 characters")


async def test_queue_names_that_look_like_paths_are_refused(make: Make):
    for name in ("a/b", "../up", "a\\b", "/"):
        said = await refusal(make.queue(name).create())
        assert (said.code, said.field, said.value) == ("INVALID_ARGUMENT", "queue", name)


async def test_queue_names_of_dots_alone_are_refused(make: Make):
    for name in (".", ".."):
        said = await refusal(make.queue(name).create())
        assert (said.code, said.field) == ("INVALID_ARGUMENT", "queue")


async def test_queue_names_with_spaces_and_control_characters_are_refused(make: Make):
    for name in ("a b", "a\n", "\x00", "a\x7f"):
        said = await refusal(make.queue(name).create())
        assert (said.code, said.field) == ("INVALID_ARGUMENT", "queue")


async def test_queue_names_with_letters_of_other_alphabets_are_refused(make: Make):
    for name in ("größe", "очередь", "q\u202e"):
        said = await refusal(make.queue(name).create())
        assert (said.code, said.field) == ("INVALID_ARGUMENT", "queue")


async def test_an_empty_queue_name_is_refused_by_every_call(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    nameless = Queue("", make.door, make.nodes[0])
    for call in (nameless.produce("a"), nameless.create(), nameless.stats(), nameless.lease(1)):
        said = await refusal(call)
        assert (said.code, said.field) == ("INVALID_ARGUMENT", "queue")
    assert await queue.complete(item) == [DONE]


async def test_a_bad_namespace_is_refused_by_name(make: Make):
    said = await refusal(make.queue(namespace="a/b").create())
    assert (said.code, said.field, said.value) == ("INVALID_ARGUMENT", "namespace", "a/b")


async def test_a_produce_of_nothing_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce())
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "items")


async def test_more_than_1000_items_are_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(*["x"] * 1_001))
    assert said.facts == ("LIMIT_EXCEEDED", "items", "1000 items", "1001 items")
    assert await queue.counts() == {}


async def test_a_payload_of_more_than_1_mib_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(payload=bytes(1_048_577))))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].payload", "1048576 bytes", "1048577 bytes")
    assert await queue.counts() == {}


async def test_a_request_of_more_than_8_mib_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(*[Item(payload=bytes(1_000_000))] * 9))
    assert (said.code, said.field, said.limit) == ("LIMIT_EXCEEDED", "request", "8388608 bytes")
    assert await queue.counts() == {}


async def test_a_kind_of_256_characters_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(kind="ü" * 256)))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].kind", "255 characters", "256 characters")
    await queue.produce(Item(kind="ü" * 255))


async def test_an_encoding_of_256_characters_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(encoding="e" * 256)))
    assert said.facts == (
        "LIMIT_EXCEEDED", "items[0].encoding", "255 characters", "256 characters",
    )  # fmt: skip


async def test_a_reference_of_2001_characters_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(reference="r" * 2_001)))
    assert said.facts == (
        "LIMIT_EXCEEDED", "items[0].reference", "2000 characters", "2001 characters",
    )  # fmt: skip


async def test_a_key_of_513_bytes_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(key="k" * 513)))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].key", "512 bytes", "513 bytes")


async def test_a_group_of_513_bytes_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(group="g" * 513)))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].group", "512 bytes", "513 bytes")


async def test_65_attributes_are_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(attributes={str(n): "" for n in range(65)})))
    assert said.facts == (
        "LIMIT_EXCEEDED", "items[0].attributes", "64 attributes", "65 attributes",
    )  # fmt: skip


async def test_attributes_of_8193_bytes_are_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(attributes={"a": "x" * 8_192})))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].attributes", "8192 bytes", "8193 bytes")


async def test_a_limit_of_attempts_of_65536_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(max_attempts=65_536)))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].max_attempts", "65535", "65536")


async def test_an_item_with_a_lease_timeout_below_a_second_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(lease_timeout=span(0.999))))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].lease_timeout", "1000 ms", "999 ms")


async def test_a_producer_id_of_another_length_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce("a", producer_id=b"short", sequence=1))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "producer_id")


async def test_a_producer_id_without_a_sequence_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce("a", producer_id=make.producer()))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "sequence")


async def test_a_sequence_without_a_producer_id_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce("a", sequence=1))
    assert said.code == "INVALID_ARGUMENT"
    assert await queue.counts() == {}


async def test_ordered_without_a_producer_id_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce("a", ordered=True))
    assert said.code == "INVALID_ARGUMENT"
    assert await queue.counts() == {}


async def test_ordered_with_keys_in_a_queue_of_many_partitions_is_refused(make: Make):
    queue = await make(partitions=2)
    said = await refusal(
        queue.produce(Item(key="k"), producer_id=make.producer(), sequence=1, ordered=True)
    )
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "ordered")


# -- leases


async def test_a_lease_without_a_client_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.lease(1, client=""))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "client_id")


async def test_a_client_of_129_characters_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.lease(1, client="c" * 129))
    assert said.facts == ("LIMIT_EXCEEDED", "client_id", "128 characters", "129 characters")


async def test_a_lease_of_more_than_1000_items_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.lease(1_001))
    assert said.facts == ("LIMIT_EXCEEDED", "max_items", "1000 items", "1001 items")


async def test_a_lease_timeout_below_a_second_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.lease(1, timeout_s=0.5))
    assert said.facts == ("LIMIT_EXCEEDED", "lease_timeout", "1000 ms", "500 ms")


async def test_a_lease_timeout_beyond_a_day_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.lease(1, timeout_s=86_401))
    assert said.facts == ("LIMIT_EXCEEDED", "lease_timeout", "86400000 ms", "86401000 ms")


async def test_a_lease_of_more_than_32_mib_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.lease(1, max_bytes=2**25 + 1))
    assert said.facts == ("LIMIT_EXCEEDED", "max_bytes", "33554432 bytes", "33554433 bytes")


async def test_an_extend_beyond_a_day_is_refused_and_changes_nothing(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    said = await refusal(queue.extend(item.lease_id, timeout_s=86_401))
    assert said.facts == ("LIMIT_EXCEEDED", "lease_timeout", "86400000 ms", "86401000 ms")
    [shown] = await queue.peek()
    assert abs(shown.deadline.ToMilliseconds() / 1000 - item.deadline_s) < 1


async def test_a_retry_of_a_range_beyond_64_bits_is_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    ranges = [SeqRange(first_seq=2**64 - 1, count=5)]
    request = pb.RetryRequest(
        queue=queue.name, leases=[pb.LeaseItems(lease_id=item.lease_id, ranges=ranges)]
    )
    said = await refusal(queue.door.retry(request))
    assert said.field.startswith("leases[0].ranges[0]")
    assert await queue.counts() == {"leased": 1}


# -- what operators ask


async def test_a_queue_of_more_than_1024_partitions_is_refused(make: Make):
    said = await refusal(make.queue().create(partitions=1_025))
    assert said.facts == ("LIMIT_EXCEEDED", "settings.partitions", "1024", "1025")


async def test_a_huge_number_of_partitions_is_refused(make: Make):
    said = await refusal(make.queue().create(partitions=2**32 - 1))
    assert said.facts == ("LIMIT_EXCEEDED", "settings.partitions", "1024", "4294967295")


async def test_more_replicas_than_nodes_are_refused(make: Make):
    queue = make.queue()
    said = await refusal(queue.create(replicas=5))
    assert (said.field, said.limit, said.value) == ("settings.replicas", str(make.size), "5")
    assert (await refusal(queue.get())).code == "QUEUE_NOT_FOUND"


async def test_an_even_number_of_replicas_is_refused(make: Make):
    said = await refusal(make.queue().create(replicas=2))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "settings.replicas")


async def test_a_dedup_window_of_more_than_a_week_is_refused(make: Make):
    said = await refusal(make.queue().create(dedup_window=span(7 * 86_400 + 1)))
    assert said.facts == (
        "LIMIT_EXCEEDED", "settings.dedup_window", "604800000 ms", "604801000 ms",
    )  # fmt: skip


async def test_a_description_of_1001_characters_is_refused(make: Make):
    said = await refusal(make.queue().create(description="d" * 1_001))
    assert said.facts == (
        "LIMIT_EXCEEDED", "settings.description", "1000 characters", "1001 characters",
    )  # fmt: skip


async def test_an_unknown_state_of_items_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.peek(state=77))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "state")


async def test_a_page_of_more_than_1000_items_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.peek(page_size=1_001))
    assert said.facts == ("LIMIT_EXCEEDED", "page_size", "1000", "1001")


async def test_a_page_token_that_is_none_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.peek_page(page_token="what?", state=ITEM_STATE_READY))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "page_token")


async def test_a_refusal_is_not_worth_a_repeat(make: Make):
    queue = await make()
    assert not (await refusal(queue.produce())).retriable


async def test_a_refused_request_disturbs_nothing_else_on_its_connection(make: Make):
    queue = await make()
    for _ in range(3):
        await refusal(queue.produce())
        await queue.produce("a")
        await refusal(queue.complete())
    assert await queue.counts() == {"ready": 3}
