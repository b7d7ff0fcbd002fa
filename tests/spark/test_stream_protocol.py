"""The stream reader without Spark, called in the orders in which Spark calls it, with its crashes.

The checkpoint is Spark's: offsets that are written ahead, and commits. The sink keeps a batch by
its number, as file sinks do. Whatever happens, it has each item once in the end.
"""

import json  # noqa: TID251 - as Spark does: the text is what it compares
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from querator import SyncClient
from querator.client import Item
from querator.client.errors import (
    AckMismatch,
    BatchNotFound,
    BatchReleased,
    QueueNotFound,
    ReaderFenced,
    Unavailable,
)
from querator.spark.offsets import BatchPart, OffsetError
from querator.spark.options import stream_options
from querator.spark.rpc import Unreachable, cluster
from querator.spark.streaming import QueueStreamReader
from querator.v1 import reader_service_pb2
from tests.spark.conftest import Nodes

Offset = dict[str, Any]
NUMBERS = count()


def stream_reader(node: Nodes, queue: str, **options: Any) -> QueueStreamReader:
    """A reader as in a process that knows nothing yet."""
    least = {"endpoint": node.endpoint, "queue": queue, "readerId": "lake", "pollTimeout": "0"}
    return QueueStreamReader(stream_options({**least, **options}))


def asked(reader: QueueStreamReader, start: Offset) -> Offset:
    """`latestOffset` as Spark calls it: offsets are JSON."""
    end = reader.latestOffset(json.loads(json.dumps(start)), reader.getDefaultReadLimit())
    again: Offset = json.loads(json.dumps(end))
    return again


def read(executor: QueueStreamReader, parts: Any) -> list[int]:
    rows: list[bytes] = []
    for part in parts:
        for batch in executor.read(part):
            rows += batch["value"].to_pylist()
    return [int(row) for row in rows]


def produce(client: SyncClient, queue: str, numbers: Any) -> None:
    client.produce(queue, *[Item(b"%d" % number, key=f"{number % 7}") for number in numbers])


class Query:
    """A query with its checkpoint and its sink; `die` keeps both."""

    def __init__(self, node: Nodes, queue: str, **options: Any) -> None:
        self._make = lambda: stream_reader(node, queue, **options)
        self.executor = self._make()
        self.driver: QueueStreamReader | None = None
        self.logged: list[Offset] = []
        self.committed = 0
        self.seen: dict[int, list[int]] = {}
        self.sink: dict[int, list[int]] = {}

    @property
    def start(self) -> Offset:
        initial = self.executor.initialOffset()
        return self.logged[self.committed - 1] if self.committed else initial

    def begin(self, *, available_now: bool = False) -> QueueStreamReader:
        """Starts a new process: it repeats the batch that may not be done."""
        self.driver = self._make()
        if available_now:
            self.driver.prepareForTriggerAvailableNow()
        if len(self.logged) > self.committed:
            if not self.committed:
                assert self.driver.initialOffset() == self.start
            self._run_batch(self.driver, "committed")
        return self.driver

    def die(self) -> None:
        self.driver = None

    def trigger(self, upto: str = "committed") -> bool:
        """Runs one micro-batch, which may end early, in a crash; False: there was nothing new."""
        driver = self.driver or self.begin()
        end = asked(driver, self.start)
        assert list(end["p"]) == sorted(end["p"], key=int)
        if json.dumps(end) == json.dumps(self.start):
            return False
        if upto != "asked":
            self.logged.append(end)
            self._run_batch(driver, upto)
        if upto != "committed":
            self.die()
        return True

    def _run_batch(self, driver: QueueStreamReader, upto: str) -> None:
        number, end = self.committed, self.logged[-1]
        if upto == "logged":
            return
        parts = driver.partitions(self.start, end)
        if number:
            # It comes when the next batch is planned.
            driver.commit(self.start)
        rows = read(self.executor, parts)
        assert rows
        # The same two offsets have the same items, in the same order.
        assert self.seen.setdefault(number, rows) == rows
        if upto == "read":
            return
        self.sink[number] = rows
        if upto == "stored":
            return
        self.committed += 1

    def stored(self) -> list[int]:
        return sorted(number for rows in self.sink.values() for number in rows)


def machine_of(node: Nodes, client: SyncClient) -> type[RuleBasedStateMachine]:
    class Stream(RuleBasedStateMachine):
        @initialize(partitions=st.integers(1, 3), most=st.sampled_from(["1", "5", "100"]))
        def make(self, partitions: int, most: str) -> None:
            self.queue = f"stream-{next(NUMBERS)}"
            client.create_queue(self.queue, partitions=partitions)
            self.produced = 0
            self.zombie: QueueStreamReader | None = None
            options = {"maxItemsPerTrigger": most, "minPartitions": "3"}
            self.query = Query(node, self.queue, **options)

        @rule(items=st.integers(1, 20))
        def produce(self, items: int) -> None:
            produce(client, self.queue, range(self.produced, self.produced + items))
            self.produced += items

        @rule(upto=st.sampled_from(["asked", "logged", "read", "stored", "committed"]))
        def trigger(self, upto: str) -> None:
            self.query.trigger(upto)

        @rule()
        def restart(self) -> None:
            if self.query.driver is not None:
                asked(self.query.driver, self.query.start)
                self.zombie = self.query.driver
            self.query.begin()

        @rule()
        def lose_a_reply(self) -> None:
            driver = self.query.driver or self.query.begin()
            lost = asked(driver, self.query.start)
            assert asked(driver, self.query.start) == lost

        @rule()
        def run_a_batch_without_data(self) -> None:
            driver = self.query.driver or self.query.begin()
            assert driver.partitions(self.query.start, self.query.start) == []

        @precondition(lambda self: self.zombie is not None)
        @rule()
        def rise(self) -> None:
            """A driver that was believed dead asks, after the next one has asked."""
            assert self.zombie is not None
            driver = self.query.driver or self.query.begin()
            asked(driver, self.query.start)
            with pytest.raises(ReaderFenced):
                asked(self.zombie, self.query.start)

        def teardown(self) -> None:
            if not hasattr(self, "queue"):
                return
            self.query.begin()
            while self.query.trigger():
                pass
            assert self.query.stored() == list(range(self.produced))
            total = client.stats(self.queue).total
            assert (total.acknowledged, total.reserved) == (self.produced, 0)
            client.delete_queue(self.queue)

    return Stream


def test_each_item_once_whatever_the_order_of_calls_and_crashes(node, client):
    run_state_machine_as_test(
        machine_of(node, client),
        settings=settings(max_examples=25, stateful_step_count=20),
    )


# --- what the driver's calls promise ---------------------------------------------------------


@pytest.fixture
def queue(client: SyncClient) -> str:
    name = f"stream-{next(NUMBERS)}"
    client.create_queue(name, partitions=2)
    return name


def test_the_first_offset_is_a_constant_that_asks_nobody():
    options = {"endpoint": "127.0.0.1:1", "queue": "q", "readerId": "lake"}
    reader = QueueStreamReader(stream_options(options))
    assert reader.initialOffset() == {"v": 1, "q": "q", "r": "lake", "p": {}}
    assert reader.reportLatestOffset() is None
    named = QueueStreamReader(stream_options({**options, "namespace": "n"}))
    assert named.initialOffset()["q"] == "n/q"


def test_the_offset_itself_comes_back_when_there_is_nothing(node, client, queue):
    reader = stream_reader(node, queue)
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) is start
    produce(client, queue, range(3))
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end != start
    assert reader.reportLatestOffset() == end
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) is end


def test_limits_of_a_trigger(node, client, queue):
    produce(client, queue, range(100))
    reader = stream_reader(node, queue, maxItemsPerTrigger="40")
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    start = reader.initialOffset()
    sizes = []
    for limit in (ReadMaxRows(10), ReadMaxBytes(1), ReadAllAvailable()):
        end = reader.latestOffset(start, limit)
        parts: Any = reader.partitions(start, end)
        sizes.append(sum(part.hi - part.lo for part in parts))
        start = end
    # One item of each partition is delivered, however small the limit of bytes is.
    assert sizes == [10, 2, 40]


def test_a_batch_in_parts_is_the_batch(node, client, queue):
    produce(client, queue, range(100))
    whole, split = stream_reader(node, queue), stream_reader(node, queue, minPartitions="9")
    start = whole.initialOffset()
    end = asked(whole, start)
    assert len(whole.partitions(start, end)) == 2
    parts = split.partitions(start, end)
    assert len(parts) >= 9
    assert read(whole, parts) == read(split, whole.partitions(start, end))
    assert sorted(read(split, parts)) == list(range(100))


def test_values_may_stay_behind(node, client, queue):
    produce(client, queue, range(3))
    reader = stream_reader(node, queue, includeValue="false")
    start = reader.initialOffset()
    parts = reader.partitions(start, asked(reader, start))
    values = [value for part in parts for batch in reader.read(part) for value in batch["value"]]
    assert [value.as_py() for value in values] == [None] * 3


def test_a_run_that_is_to_end_leaves_what_comes_later(node, client, queue):
    produce(client, queue, range(30))
    query = Query(node, queue, maxItemsPerTrigger="10")
    query.begin(available_now=True)
    produced = 30
    while query.trigger():
        produce(client, queue, range(produced, produced + 10))
        produced += 10
        assert produced <= 100
    assert set(query.stored()) >= set(range(30))
    assert len(query.stored()) < produced
    query.begin(available_now=True)
    while query.trigger():
        pass
    assert query.stored() == list(range(produced))


def test_a_run_that_is_to_end_and_finds_nothing_leaves_what_comes_later(node, client, queue):
    query = Query(node, queue)
    query.begin(available_now=True)
    ended = 0
    produced = 0
    while query.trigger():
        produce(client, queue, range(produced, produced + 10))
        produced += 10
        ended += 1
        assert ended < 10
    assert query.trigger() is False


def test_a_run_that_is_to_end_does_not_end_while_a_partition_cannot_be_asked(three):
    with SyncClient(three.endpoint) as client:
        client.create_queue("q", partitions=3, replicas=1)
        produce(client, "q", range(60))
    query = Query(three, "q", retryTimeout="1")
    query.begin(available_now=True)
    address = cluster(stream_options_of(three, "q").target).leader("", "q", 2)
    [led] = [each for each in three.members.by_name.values() if each.address == address]
    three.run(led.kill())
    # The others continue.
    assert query.trigger()
    assert 0 < len(query.stored()) < 60
    with pytest.raises(Unavailable, match=r"partition 2 of q .* retryTimeout"):
        query.trigger()
    three.run(led.start())
    query.begin(available_now=True)
    while query.trigger():
        pass
    assert query.stored() == list(range(60))


def test_a_stream_follows_when_the_queue_gets_partitions(node, client, queue):
    produce(client, queue, range(20))
    query = Query(node, queue)
    assert query.trigger()
    client.update_queue(queue, partitions=4)
    produce(client, queue, range(20, 60))
    while len(query.stored()) < 60:
        query.trigger()
    assert query.stored() == list(range(60))
    assert set(query.logged[-1]["p"]) > {"0", "1"}


def test_a_partition_that_the_queue_has_no_more_leaves_the_offset_with_the_next_news(
    node, client, queue
):
    reader = stream_reader(node, queue)
    start = {**reader.initialOffset(), "p": {"7": [3, 5]}}
    assert asked(reader, start) == start
    produce(client, queue, range(20))
    end = asked(reader, start)
    assert set(end["p"]) == {"0", "1"}
    assert sorted(read(reader, reader.partitions(start, end))) == list(range(20))


def test_runs_that_repeat_a_batch_are_counted(node, client, queue):
    produce(client, queue, range(5))
    query = Query(node, queue)
    query.trigger("logged")
    for _ in range(3):
        driver = query._make()
        assert driver.partitions(query.start, query.logged[-1])
    request = reader_service_pb2.OpenReaderRequest(queue=queue, reader_id="lake")
    connections = cluster(stream_options_of(node, queue).target)
    opened = connections.open_reader(request, retry_seconds=5)
    [replays] = {
        position.open_batch.replays
        for position in opened.partitions
        if position.HasField("open_batch")
    }
    # Three that repeated it, and this one.
    assert replays == 4


def stream_options_of(node: Nodes, queue: str) -> Any:
    return stream_options({"endpoint": node.endpoint, "queue": queue, "readerId": "lake"})


# --- what is wrong ---------------------------------------------------------------------------


def test_a_queue_that_is_not_there(node):
    reader = stream_reader(node, "nowhere")
    with pytest.raises(QueueNotFound, match="querator queue create"):
        asked(reader, reader.initialOffset())


def test_two_drivers_with_one_reader_id(node, client, queue):
    produce(client, queue, range(5))
    first, second = stream_reader(node, queue), stream_reader(node, queue)
    start = first.initialOffset()
    end = asked(first, start)
    assert asked(second, start) == end
    with pytest.raises(ReaderFenced, match="give each a readerId and a checkpointLocation"):
        asked(first, end)
    assert sorted(read(first, second.partitions(start, end))) == list(range(5))


def test_a_run_is_not_ended_by_its_own_first_attempt_to_begin(node, client, queue, monkeypatch):
    """The first attempt was given up, and comes late."""
    produce(client, queue, range(5))
    connections = cluster(stream_options_of(node, queue).target)
    opened: list[reader_service_pb2.OpenReaderRequest] = []
    ask = type(connections).open_reader

    def noting(self: Any, request: Any, **more: Any) -> Any:
        opened.append(request)
        return ask(self, request, **more)

    monkeypatch.setattr(type(connections), "open_reader", noting)
    reader = stream_reader(node, queue)
    reader.prepareForTriggerAvailableNow()
    connections.open_reader(opened[0], retry_seconds=5)
    end = asked(reader, reader.initialOffset())
    assert sorted(read(reader, reader.partitions(reader.initialOffset(), end))) == list(range(5))
    connections.open_reader(opened[0], retry_seconds=5)
    assert asked(reader, end) == end
    other = reader_service_pb2.OpenReaderRequest(queue=queue, reader_id="lake", request_id="other")
    connections.open_reader(other, retry_seconds=5)
    with pytest.raises(ReaderFenced):
        asked(reader, end)


def test_a_deleted_checkpoint_is_refused_or_adopted(node, client, queue):
    produce(client, queue, range(10))
    before = Query(node, queue, maxItemsPerTrigger="4")
    assert before.trigger()
    assert before.trigger()
    anew = Query(node, queue)
    with pytest.raises(AckMismatch) as caught:
        anew.trigger()
    for way_out in ('"onCheckpointMismatch", "adopt"', "another readerId", "put it back"):
        assert way_out in str(caught.value)
    adopting = Query(node, queue, onCheckpointMismatch="adopt")
    while adopting.trigger():
        pass
    # The second batch was handed out, and never acknowledged.
    assert set(before.sink[0]).isdisjoint(adopting.stored())
    assert sorted({*before.sink[0], *adopting.stored()}) == list(range(10))


def test_what_was_adopted_is_in_the_checkpoint_for_all_partitions(node, client, queue):
    """Also for partitions that have had no items since: the option is for one run."""
    produce(client, queue, range(20))
    before = Query(node, queue)
    while before.trigger():
        pass
    client.produce(queue, Item(b"20", key="1"))
    adopting = Query(node, queue, onCheckpointMismatch="adopt")
    assert adopting.trigger()
    later = Query(node, queue)
    later.logged, later.committed = adopting.logged, adopting.committed
    produce(client, queue, range(21, 40))
    while later.trigger():
        pass
    assert sorted([*before.stored(), *adopting.stored(), *later.stored()]) == list(range(40))


def test_a_run_adopts_also_when_there_is_nothing_to_read(node, client, queue):
    produce(client, queue, range(20))
    before = Query(node, queue)
    while before.trigger():
        pass
    adopting = stream_reader(node, queue, onCheckpointMismatch="adopt")
    start = adopting.initialOffset()
    end = asked(adopting, start)
    assert adopting.partitions(start, end) == []
    assert asked(adopting, end) == end
    assert asked(stream_reader(node, queue), end) == end


def test_a_reader_that_was_made_anew_is_not_gone_on_with(node, client, queue):
    produce(client, queue, range(10))
    query = Query(node, queue, onCheckpointMismatch="adopt")
    while query.trigger():
        pass
    node.run(node.members.querator("reader", "release", queue, "lake", "--remove", "--yes"))
    query.die()
    with pytest.raises(AckMismatch, match="begin with a new checkpointLocation"):
        query.trigger()


def test_a_checkpoint_that_was_set_back(node, client, queue):
    produce(client, queue, range(10))
    query = Query(node, queue)
    assert query.trigger()
    assert not query.trigger()
    query.committed -= 1
    with pytest.raises(BatchNotFound, match='"failOnDataLoss", "false"'):
        query.begin()
    parts = query.executor.partitions(query.start, query.logged[-1])
    assert read(stream_reader(node, queue, failOnDataLoss="false"), parts) == []


def test_a_batch_that_an_operator_has_released(node, client, queue):
    produce(client, queue, range(10))
    query = Query(node, queue)
    query.trigger("logged")
    node.run(node.members.querator("reader", "release", queue, "lake", "--yes"))
    with pytest.raises(BatchReleased, match='"failOnDataLoss", "false"'):
        query.begin()
    with pytest.raises(BatchReleased, match='"failOnDataLoss", "false"'):
        asked(stream_reader(node, queue), query.logged[-1])
    lossy = stream_reader(node, queue, failOnDataLoss="false")
    assert read(lossy, lossy.partitions(query.start, query.logged[-1])) == []
    end = asked(lossy, query.logged[-1])
    assert sorted(read(lossy, lossy.partitions(query.logged[-1], end))) == list(range(10))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": "other"}, "the checkpoint is of queue 'other'"),
        ({"r": "other"}, "the checkpoint is of readerId 'other'"),
        ({"v": 2}, "another version of querator"),
    ],
)
def test_a_checkpoint_of_something_else(node, client, queue, changes, words):
    reader = stream_reader(node, queue)
    with pytest.raises(OffsetError, match=words):
        asked(reader, {**reader.initialOffset(), **changes})


def test_an_executor_that_reaches_nobody():
    options = {
        "endpoint": "127.0.0.1:1",
        "queue": "q",
        "readerId": "lake",
        "retryTimeout": "1",
    }
    reader = QueueStreamReader(stream_options(options))
    with pytest.raises(Unreachable, match="--advertise-client"):
        list(reader.read(BatchPart(0, 1, 0, 1)))


def test_a_batch_is_read_on_from_the_next_leader(three):
    with SyncClient(three.endpoint) as client:
        client.create_queue("q", partitions=1)
        with client.producer("q") as producer:
            producer.produce_many([Item(b"%05d" % n + bytes(1_000)) for n in range(20_000)])
    reader = stream_reader(three, "q", retryTimeout="60")
    start = reader.initialOffset()
    end = asked(reader, start)
    [part] = reader.partitions(start, end)
    leader = cluster(stream_options_of(three, "q").target).leader("", "q", 0)
    [led] = [each for each in three.members.by_name.values() if each.address == leader]
    found: list[bytes] = []
    for batch in reader.read(part):
        if not found:
            three.run(led.kill())
        found += [value[:5] for value in batch["value"].to_pylist()]
    assert found == [b"%05d" % number for number in range(20_000)]
    # The run continues as well: what was read is acknowledged.
    assert asked(reader, end) == end
