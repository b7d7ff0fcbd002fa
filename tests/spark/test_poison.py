"""A batch that run after run begins and none finishes: it is an error, or it is given up, and its
items become dead letters; the query continues after it.
"""

from itertools import count
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from querator import SyncClient
from querator.client.errors import BatchReleased
from querator.spark.options import OptionError
from querator.spark.reader_run import PoisonBatch
from tests.spark.test_stream import WAIT_S, stream
from tests.spark.test_stream_protocol import Query, asked, produce, read, stream_reader

NUMBERS = count()
ONCE = {"maxBatchReplays": "1"}
GIVES_UP = {**ONCE, "poisonPolicy": "deadLetter"}


@pytest.fixture
def queue(client: SyncClient) -> str:
    name = f"poison-{next(NUMBERS)}"
    client.create_queue(f"{name}-dead", dead_queue="")
    client.create_queue(name, partitions=2, dead_queue=f"{name}-dead")
    return name


def dead(client: SyncClient, queue: str) -> list[int]:
    """The dead letters, once all of them have arrived; each was rejected."""
    while client.stats(queue).total.moving:
        pass
    letters = list(client.dead_letters(queue))
    assert {each.dead_letter and each.dead_letter.reason.name for each in letters} <= {"REJECTED"}
    return sorted(int(each.item.payload) for each in letters)


def test_a_batch_that_is_replayed_too_often_is_an_error_that_names_it(node, client, queue):
    produce(client, queue, range(10))
    query = Query(node, queue, **ONCE)
    query.trigger("logged")
    query.begin()
    query.committed -= 1
    with pytest.raises(PoisonBatch) as caught:
        query.begin()
    said = str(caught.value)
    assert f"of reader 'lake' in partition 0 of {queue}" in said
    assert "2 runs of the query have begun since it was given out" in said
    assert "maxBatchReplays is 1" in said
    assert '.option("poisonPolicy", "deadLetter")' in said
    # Nothing has happened to it.
    assert client.stats(queue).total.reserved == 10
    repaired = stream_reader(node, queue)
    parts = repaired.partitions(query.start, query.logged[-1])
    assert sorted(read(repaired, parts)) == list(range(10))


def test_a_batch_in_the_checkpoint_is_given_up(node, client, queue, capsys):
    produce(client, queue, range(10))
    query = Query(node, queue, **GIVES_UP)
    query.trigger("logged")
    start, end = query.start, query.logged[-1]
    stale = stream_reader(node, queue).partitions(start, end)
    assert sum(part.hi - part.lo for part in stale) == 10
    driver = stream_reader(node, queue, **GIVES_UP)
    assert driver.partitions(start, end) == []
    assert "is given up, because 2 runs" in capsys.readouterr().err
    assert dead(client, queue) == list(range(10))
    # A later run does not ask for it either, and it may be acknowledged. Others stay as they were.
    later = stream_reader(node, queue)
    assert later.partitions(start, end) == []
    with pytest.raises(BatchReleased, match="became dead letters"):
        read(later, stale)
    produce(client, queue, range(10, 13))
    news = asked(later, end)
    assert sorted(read(later, later.partitions(end, news))) == [10, 11, 12]
    assert asked(later, news)["p"] == news["p"]
    total = client.stats(queue).total
    assert (total.acknowledged, total.reserved, total.ready) == (3, 0, 0)


def test_a_batch_that_is_not_in_the_checkpoint_is_given_up(node, client, queue):
    produce(client, queue, range(10))
    query = Query(node, queue, maxItemsPerTrigger="4", **GIVES_UP)
    for _ in range(3):
        query.trigger("asked")
    assert len(dead(client, queue)) == 4
    while query.trigger():
        pass
    assert sorted([*query.stored(), *dead(client, queue)]) == list(range(10))


def test_a_batch_that_lacks_only_its_acknowledgement_is_not_judged(node, client, queue):
    produce(client, queue, range(10))
    query = Query(node, queue, **GIVES_UP)
    assert query.trigger()
    for _ in range(3):
        query.die()
        query.begin(available_now=True)
    assert not query.trigger()
    assert query.stored() == list(range(10))
    assert client.stats(queue).total.acknowledged == 10
    assert dead(client, queue) == []


def test_items_are_not_given_up_where_they_would_be_dropped(node, client, queue):
    bare = f"{queue}-dead"
    reader = stream_reader(node, bare, **GIVES_UP)
    with pytest.raises(OptionError, match=f"querator queue update {bare} --dead-queue"):
        asked(reader, reader.initialOffset())


def test_a_query_goes_on_behind_an_item_that_breaks_it(spark, node, client, queue, tmp_path):
    produce(client, queue, range(9))
    seen: list[int] = []

    def keep(batch: Any, number: int) -> None:
        numbers = [int(bytes(row["value"])) for row in batch.collect()]
        if 4 in numbers:
            raise ValueError("four is too much")
        seen.extend(numbers)

    def run() -> None:
        frame = stream(spark, node, queue, maxItemsPerTrigger="3", **GIVES_UP)
        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="four is too much"):
            run()
    run()
    given_up = dead(client, queue)
    assert 4 in given_up
    assert len(given_up) <= 3
    assert sorted([*seen, *given_up]) == list(range(9))
