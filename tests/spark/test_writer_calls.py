"""Writers without Spark, in the orders in which Spark calls them, against a real node."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
import uuid_utils
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql.types import ArrayType, StructType

from querator import SyncClient
from querator.cli.demo.local_nodes import free_ports
from querator.client import RetryPolicy
from querator.client.errors import NotFound, TransactionAborted
from querator.model.limits import PAYLOAD_BYTES_MAX
from querator.spark.browsing import BrowseReader
from querator.spark.options import browse_options
from querator.spark.rows import RowsError
from querator.spark.rpc import Unreachable
from querator.spark.sending import RowRefused
from querator.spark.sink_options import sink_options
from querator.spark.writing import BatchWriter, StreamWriter, Task, Written

SOON = timedelta(seconds=30)


def columns(**types: str) -> StructType:
    schema = StructType()
    for name, kind in types.items():
        schema.add(name, kind)
    return schema


VALUE = columns(value="binary")
TASKS = 3


def batches(*texts: str) -> Iterator[Any]:
    for text in texts:
        yield pa.record_batch({"value": pa.array([text.encode()], pa.binary())})


class Queue:
    """A queue of a test's own."""

    def __init__(self, node: Any, *, partitions: int = 2, **settings: Any) -> None:
        self.client = SyncClient(node.endpoint)
        self.name = f"calls-{uuid_utils.uuid7()}"
        self.client.create_queue(self.name, partitions=partitions, **settings)
        self.options = {"endpoint": node.endpoint, "queue": self.name}

    def stream(self, **more: str) -> StreamWriter:
        return StreamWriter(sink_options({**self.options, **more}, of_table={}), VALUE)

    def batch(self, schema: StructType = VALUE, **more: str) -> BatchWriter:
        return BatchWriter(sink_options({**self.options, **more}, of_table={}), schema)

    def found(self, least: int) -> Counter[str]:
        """All values, once there are `least`: those of a committed batch are visible in a
        moment.
        """
        leased = 0
        while leased < least:
            leased += len(self.client.lease(self.name, max_items=100, wait=SOON))
        reader = BrowseReader(browse_options(self.options))
        return Counter(
            value.decode()
            for part in reader.partitions()
            for batch in reader.read(part)
            for value in batch["value"].to_pylist()
        )


@pytest.fixture
def queue(node) -> Iterator[Queue]:
    made = Queue(node)
    yield made
    made.client.close()


class Calls(RuleBasedStateMachine):
    """A streaming query that is interrupted anywhere. Each attempt at a task writes other rows, so
    that an attempt which should not count is detected.
    """

    node: Any = None

    @initialize()
    def begin(self) -> None:
        self.queue = Queue(self.node)
        self.query = str(uuid_utils.uuid7())
        self.number = 0
        self.attempts = 0
        self.staged: dict[int, list[tuple[Written, list[str]]]] = {}
        self.committed = False
        self.last: list[Written] = []
        self.expected: list[str] = []

    def attempt(self, task: int) -> None:
        self.attempts += 1
        texts = [f"{self.number}/{task}/{self.attempts}/{row}" for row in range(self.attempts % 4)]
        writer = self.queue.stream()
        written = writer.write_task(Task(task, self.query, self.number), batches(*texts))
        if texts:
            assert written.committed == self.committed
        self.staged.setdefault(task, []).append((written, texts))

    @rule(task=st.integers(0, TASKS - 1))
    def a_task_is_run_once_more(self, task: int) -> None:
        self.attempt(task)

    @rule(task=st.integers(0, TASKS - 1))
    def a_task_fails_in_the_middle(self, task: int) -> None:
        def rows() -> Iterator[Any]:
            yield from batches(*(f"{self.number}/{task}/failed/{row}" for row in range(6)))
            raise RuntimeError("the plan failed")

        task_of_spark = Task(task, self.query, self.number)
        if self.committed:
            # The task ends before it comes to the row that fails.
            assert self.queue.stream().write_task(task_of_spark, rows()).committed
            return
        with pytest.raises(RuntimeError, match="the plan failed"):
            self.queue.stream().write_task(task_of_spark, rows())

    @rule(data=st.data())
    def the_driver_commits(self, data: st.DataObject) -> None:
        chosen = []
        for task in range(TASKS):
            if task not in self.staged:
                self.attempt(task)
            chosen.append(data.draw(st.sampled_from(self.staged[task])))
        messages = [written for written, _ in chosen]
        self.queue.stream().commit(messages, self.number)
        if not self.committed:
            self.expected += [text for _, texts in chosen for text in texts]
        self.committed, self.last = True, messages

    @precondition(lambda self: self.last)
    @rule(abort=st.booleans())
    def the_answer_of_a_commit_was_lost(self, abort: bool) -> None:
        writer = self.queue.stream()
        if abort:
            writer.abort(self.last, self.last[0].batch)
        else:
            writer.commit(self.last, self.last[0].batch)

    @precondition(lambda self: self.staged and not self.committed)
    @rule()
    def the_driver_gives_up(self) -> None:
        messages = [None, *(attempts[-1][0] for attempts in self.staged.values())]
        self.queue.stream().abort(messages, self.number)
        if any(written.parts for written in messages if written):
            # Another driver that still holds the messages comes too late.
            with pytest.raises(TransactionAborted):
                self.queue.stream().commit([one for one in messages if one], self.number)
        self.staged = {}

    @precondition(lambda self: self.committed)
    @rule()
    def the_driver_dies_and_replays_the_batch(self) -> None:
        self.staged = {}

    @precondition(lambda self: self.committed)
    @rule()
    def the_next_batch_begins(self) -> None:
        self.number += 1
        self.staged, self.committed = {}, False

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.found(len(self.expected)) == Counter(self.expected)
            self.queue.client.close()


def test_any_order_of_calls_writes_each_batch_once(node):
    class OnNode(Calls):
        pass

    OnNode.node = node
    run_state_machine_as_test(
        OnNode, settings=settings(max_examples=40, stateful_step_count=12, deadline=None)
    )


# --- orders that matter, one by one ----------------------------------------------------------


def test_of_two_attempts_at_a_task_the_one_counts_that_spark_names(queue):
    writer = queue.batch()
    first = writer.write_task(Task(0), batches("a"))
    second = writer.write_task(Task(0), batches("b"))
    assert first.attempt != second.attempt
    writer.commit([second])
    assert queue.found(1) == {"b": 1}


def test_a_commit_whose_answer_was_lost_is_aborted_in_vain_and_replayed_for_nothing(queue):
    writer = queue.stream()
    messages = [writer.write_task(Task(0, "q", 7), batches("a", "b"))]
    writer.commit(messages, 7)
    writer.abort(messages, 7)
    replayed = queue.stream().write_task(Task(0, "q", 7), batches("c"))
    assert replayed.committed
    queue.stream().commit([replayed], 7)
    assert queue.found(2) == {"a": 1, "b": 1}


def test_a_replay_takes_no_more_rows_when_it_learns_that_the_batch_is_committed(queue):
    writer = queue.stream()
    writer.commit([writer.write_task(Task(0, "q", 0), batches("a"))], 0)
    taken = 0

    def rows() -> Iterator[Any]:
        nonlocal taken
        while True:
            taken += 1
            yield from batches("b")

    assert queue.stream().write_task(Task(0, "q", 0), rows()).committed
    assert taken < 10


def test_a_batch_without_rows_is_committed_too(queue):
    writer = queue.stream()
    writer.commit([writer.write_task(Task(0, "q", 3), batches())], 3)
    late = writer.write_task(Task(0, "q", 3), batches("late"))
    assert late.committed
    assert queue.found(0) == {}


def test_nothing_is_committed_when_there_are_no_messages(queue):
    queue.batch().commit([])
    queue.batch().abort([None])
    assert queue.found(0) == {}


def test_messages_of_dropped_attempts_commit_nothing(queue):
    writer = queue.batch()
    messages = [writer.write_task(Task(0), batches("a"))]
    writer.abort([None, *messages])
    with pytest.raises(TransactionAborted, match="Start the query or the write again"):
        writer.commit(messages)
    assert queue.found(0) == {}


@pytest.mark.parametrize("more", [{}, {"txnAppId": "nightly", "txnVersion": "3"}])
def test_nothing_stays_staged_of_a_write_all_of_whose_tasks_have_failed(queue, more):
    """No other process knows the name of the write."""
    writer = queue.batch(**more)
    writer.write_task(Task(0), batches("a"))
    assert queue.client.staged_batches(queue.name).batches
    writer.abort([None])
    assert not queue.client.staged_batches(queue.name).batches


def test_a_task_that_ends_after_the_abort_of_its_write_stages_nothing(queue):
    """Spark stops the other tasks of a failed write some seconds after it."""
    writer = queue.batch()
    late = writer.write_task(Task(1), batches("before"))
    writer.abort([None])
    assert not late.committed
    after = writer.write_task(Task(2), batches("after"))
    assert after.committed
    assert not queue.client.staged_batches(queue.name).batches
    assert queue.found(0) == {}


def test_nothing_stays_staged_of_a_failed_batch_of_a_stream_with_a_name(queue):
    writer = queue.stream(txnAppId="named")
    writer.write_task(Task(0, "q", 7), batches("a"))
    writer.abort([None], 7)
    assert not queue.client.staged_batches(queue.name).batches


def test_requests_stay_within_their_limits(queue):
    small = pa.record_batch({"value": pa.array([b"s"] * 2_500, pa.binary())})
    large = pa.record_batch({"value": pa.array([b"l" * 900_000] * 7, pa.binary())})
    writer = queue.batch()
    written = writer.write_task(Task(0), iter([small, large, small]))
    assert written.rows == sum(count for count, _ in written.parts.values()) == 5_007
    writer.commit([written])
    found = queue.found(5_007)
    assert (found["s"], found["l" * 900_000]) == (5_000, 7)


def test_items_of_a_key_keep_the_order_of_their_rows(queue):
    texts = [str(number) for number in range(5_000)]
    batch = pa.record_batch({"value": texts, "key": ["k"] * len(texts)})
    writer = queue.batch(columns(value="string", key="string"))
    writer.commit([writer.write_task(Task(0), iter([batch]))])
    leased: list[str] = []
    while len(leased) < len(texts):
        items = queue.client.lease(queue.name, max_items=500, wait=SOON)
        leased += [bytes(item.payload).decode() for item in items]
    assert leased == texts


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX + 1, 9 << 20, 70 << 20])
def test_a_value_that_is_too_large_is_named_with_the_ways_out(queue, size):
    """Also one that no request could carry."""
    rows = pa.record_batch({"Value": pa.array([b"x", b"y" * size, None], pa.binary())})
    writer = queue.batch(columns(Value="binary"))
    with pytest.raises(RowsError) as caught:
        writer.write_task(Task(0), iter([rows.slice(0, 1), rows.slice(1)]))
    said = str(caught.value)
    assert f"column Value has {size:,} bytes in row 1 of this task (value '{'y' * 60}'…)" in said
    assert "1,048,576 at most" in said
    assert '.where("octet_length(Value) <= 1048576")' in said
    assert '.option("oversizePolicy", "skip")' in said
    assert queue.found(0) == {}


@pytest.mark.parametrize("guarantee", ["transactional", "atLeastOnce"])
def test_values_that_are_too_large_are_left_out_when_that_is_the_policy(queue, capsys, guarantee):
    large, most = b"y" * (PAYLOAD_BYTES_MAX + 1), b"z" * PAYLOAD_BYTES_MAX
    rows = pa.record_batch({"value": [b"a", large, most, large, b"b"], "key": list("abcde")})
    schema = columns(value="binary", key="string")
    writer = queue.batch(schema, oversizePolicy="Skip", guarantee=guarantee)
    written = [writer.write_task(Task(0), iter([rows.slice(4)]))]
    written += [writer.write_task(Task(task), iter([rows, rows])) for task in (1, 2)]
    assert [one.rows for one in written] == [1, 6, 6]
    writer.commit(written)
    expected = Counter({"a": 4, "b": 5, most.decode(): 4})
    assert queue.found(expected.total()) == expected
    said = capsys.readouterr().err
    assert "has left out 8 rows" in said
    assert "1,048,576 bytes; one of them is row 1 of task 1" in said


def test_a_version_below_the_last_one_is_reported_and_a_repeat_is_not(queue, capsys):
    def write(version: int) -> str:
        writer = queue.batch(txnAppId="nightly", txnVersion=str(version))
        writer.commit([writer.write_task(Task(0), batches(f"{version}"))])
        return str(capsys.readouterr().err)

    assert write(20260305) == ""
    assert write(20260305) == ""
    said = write(20260301)
    assert said.startswith(
        "querator: nothing was written: txnVersion is 20260301, and producer 'nightly' has already "
        "committed 20260305."
    )
    assert queue.found(1) == Counter({"20260305": 1})


def test_an_item_that_the_queue_refuses_is_named_by_its_row_and_column(queue):
    rows = pa.record_batch({"value": ["x", "y"], "key": ["k", "k" * 513]})
    writer = queue.batch(columns(value="string", key="string"))
    with pytest.raises(RowRefused) as caught:
        writer.write_task(Task(0), iter([rows]))
    said = str(caught.value)
    assert (
        f"row 1 of this task (value 'y', key '{'k' * 60}'…) is refused for its column key" in said
    )
    assert "512" in said
    assert "513" in said
    assert queue.found(0) == {}


def test_a_repeated_write_of_a_version_is_written_once(queue):
    for text in ("a", "again"):
        writer = queue.batch(txnAppId="nightly", txnVersion="20260301")
        writer.commit([writer.write_task(Task(0), batches(text))])
    assert queue.found(1) == {"a": 1}


def test_a_queue_that_is_not_there(queue):
    with pytest.raises(NotFound, match=r"nothing was written(\.|; did you mean .*\?) Check the"):
        queue.batch(queue="nowhere").check_queue()
    with pytest.raises(NotFound, match=f"did you mean {queue.name}"):
        queue.batch(queue=f"{queue.name}x").check_queue()


def test_a_cluster_that_cannot_be_reached(queue):
    [port] = free_ports(1)
    writer = queue.batch(endpoint=f"127.0.0.1:{port}", retryTimeout="1")
    with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port}\..*--advertise-client"):
        writer.check_queue()
    with pytest.raises(Unreachable, match="--advertise-client"):
        writer.write_task(Task(0), batches("a"))


def test_dedupe_keys_make_a_repeat_harmless(queue):
    rows = pa.record_batch({"value": ["a", "b"], "order": ["1", "2"]})
    for _ in range(2):
        writer = queue.batch(
            columns(value="string", order="string"),
            guarantee="idempotent",
            dedupeKeyColumn="ORDER",
        )
        writer.check_queue()
        writer.commit([writer.write_task(Task(0), iter([rows]))])
    assert queue.found(2) == {"a": 1, "b": 1}


def test_a_column_that_is_the_dedupe_key_is_written_as_well(queue):
    """Its name also says what it is."""
    rows = pa.record_batch({"value": ["a", "b"], "reference": ["1", "2"]})
    writer = queue.batch(
        columns(value="string", reference="string"),
        guarantee="idempotent",
        dedupeKeyColumn="reference",
    )
    for _ in range(2):
        writer.write_task(Task(0), iter([rows]))
    leased: dict[str, str] = {}
    while len(leased) < 2:
        for item in queue.client.lease(queue.name, max_items=2, wait=SOON):
            leased[item.reference] = bytes(item.payload).decode()
    assert leased == {"1": "a", "2": "b"}
    assert queue.client.stats(queue.name).total.produced == 2


def test_empty_texts_are_not_given(queue):
    names = ("key", "kind", "encoding", "reference", "group", "dedupe_key")
    rows = pa.record_batch({"value": ["a", "b"], **{name: ["", None] for name in names}})
    writer = queue.batch(columns(value="string", **dict.fromkeys(names, "string")))
    writer.commit([writer.write_task(Task(0), iter([rows]))])
    assert queue.found(2) == {"a": 1, "b": 1}


def broken_texts() -> Any:
    """`x`, and a byte that is no UTF-8: Spark makes such texts of binary values."""
    bounds = pa.py_buffer(pack("<3i", 0, 1, 2))
    return pa.Array.from_buffers(pa.string(), 2, [None, bounds, pa.py_buffer(b"x\xff")])


@pytest.mark.parametrize("name", ["key", "kind", "dedupe_key"])
def test_a_text_that_is_not_utf8_is_named_by_its_row_and_column(queue, name):
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"a", b"order 7"]), broken_texts()], names=["value", name]
    )
    writer = queue.batch(columns(value="binary", **{name: "string"}))
    words = rf"column {name} is not UTF-8 in row 1 of this task \(value 'order 7'"
    with pytest.raises(RowsError, match=words):
        writer.write_task(Task(0), iter([rows]))


def test_a_header_that_is_not_utf8_is_named_by_its_row_and_column(queue):
    pairs = pa.StructArray.from_arrays(
        [broken_texts(), pa.array([b"1", b"2"])], names=["key", "value"]
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs)
    rows = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), headers], names=["value", "headers"])
    schema = columns(value="binary").add(
        "headers", ArrayType(columns(key="string", value="binary"))
    )
    writer = queue.batch(schema)
    with pytest.raises(RowsError, match="column headers is not UTF-8 in row 1 of this task"):
        writer.write_task(Task(0), iter([rows]))


@pytest.mark.parametrize("size", [9 << 20, 40 << 20])
def test_a_row_that_no_request_can_carry_is_named(queue, size):
    """The large column is not the payload."""
    rows = pa.record_batch({"value": ["a", "b"], "reference": ["r", "r" * size]})
    writer = queue.batch(columns(value="string", reference="string"))
    with pytest.raises(RowRefused) as caught:
        writer.write_task(Task(0), iter([rows]))
    said = str(caught.value)
    assert "row 1 of this task (value 'b', reference 'rrr" in said
    assert "is refused" in said
    assert f"{size:,}"[:2] in said


def test_a_row_of_a_later_batch_is_shown_with_its_own_values(queue):
    rows = pa.record_batch({"value": ["a", "b", None], "key": ["k", "", "order 7"]})
    writer = queue.batch(columns(value="string", key="string"))
    words = r"column value is null in row 5 of this task \(key 'order 7'\)"
    with pytest.raises(RowsError, match=words):
        writer.write_task(Task(0), iter([rows.slice(0, 2), rows.slice(0, 1), rows]))


POLICY = StructType().add("delay", "interval day to second").add("backoff", "string")


def test_items_have_their_own_attempts_and_retry_policy(queue):
    policies = [
        {"delay": timedelta(seconds=90), "backoff": "fixed"},
        {"delay": timedelta(0), "backoff": None},
        None,
    ]
    kind = pa.struct([("delay", pa.duration("us")), ("backoff", pa.string())])
    rows = pa.record_batch(
        {
            "value": ["a", "b", "c"],
            "max_attempts": pa.array([3, 0, None], pa.int32()),
            "retry": pa.array(policies, kind),
        }
    )
    schema = columns(value="string", max_attempts="integer").add("retry", POLICY)
    writer = queue.batch(schema)
    writer.commit([writer.write_task(Task(0), iter([rows]))])
    assert queue.found(3) == {"a": 1, "b": 1, "c": 1}
    leased = {bytes(one.item.payload): one.item for one in queue.client.peek(queue.name)}
    assert [leased[name].max_attempts for name in (b"a", b"b", b"c")] == [3, 0, None]
    assert leased[b"a"].retry == RetryPolicy(timedelta(seconds=90), backoff="fixed")
    assert leased[b"b"].retry == RetryPolicy(timedelta(0))
    assert leased[b"c"].retry is None


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("max_attempts", 65_536, r"max_attempts is 65536 in row 0 .*from 0 to 65535"),
        ("max_attempts", -1, r"max_attempts is -1 in row 0"),
        (
            "retry",
            {"delay": None, "backoff": "fixed"},
            r"retry is no retry policy \(delay is null\)",
        ),
        ("retry", {"delay": timedelta(1), "backoff": "never"}, r"'never'; it must be one of fixed"),
        ("retry", {"delay": timedelta(-1), "backoff": None}, r"retry is no retry policy \(.*delay"),
        ("retry", {"delay": timedelta(99), "backoff": None}, r"row 0 of this task.*delay"),
    ],
)
def test_wrong_attempts_and_policies_are_named(queue, column, value, words):
    kind = pa.struct([("delay", pa.duration("us")), ("backoff", pa.string())])
    made = pa.array([value], kind if column == "retry" else pa.int64())
    schema = columns(value="string").add(column, POLICY if column == "retry" else "long")
    writer = queue.batch(schema)
    with pytest.raises((RowsError, RowRefused), match=words):
        writer.write_task(Task(0), iter([pa.record_batch({"value": ["a"], column: made})]))
    assert queue.found(0) == {}


def test_columns_may_have_large_offsets(queue):
    """As with Spark's useLargeVarTypes."""
    rows = pa.record_batch(
        {
            "value": pa.array([b"a", b"bb", b"ccc"], pa.large_binary()),
            "key": pa.array(["k", "kk", None], pa.large_string()),
            "kind": pa.array([None, "m", "mm"], pa.large_string()),
        }
    )
    writer = queue.batch(columns(value="binary", key="string", kind="string"))
    written = writer.write_task(Task(0), iter([rows.slice(0, 1), rows.slice(1)]))
    writer.commit([written])
    found: dict[str, tuple[str, str]] = {}
    while len(found) < 3:
        for item in queue.client.lease(queue.name, max_items=3, wait=SOON):
            found[bytes(item.payload).decode()] = item.key, item.kind
    assert found == {"a": ("k", ""), "bb": ("kk", "m"), "ccc": ("", "mm")}


@pytest.mark.parametrize("key", [None, ""])
def test_each_row_has_a_dedupe_key_when_that_is_the_guarantee(queue, key):
    rows = pa.record_batch({"value": ["a", "b"], "dedupe_key": pa.array(["1", key], pa.string())})
    writer = queue.batch(columns(value="string", dedupe_key="string"), guarantee="idempotent")
    with pytest.raises(RowsError, match="dedupe_key is null or empty in row 1 of this task"):
        writer.write_task(Task(0), iter([rows]))
    assert queue.found(0) == {}


def test_at_least_once_is_there_at_once(queue):
    writer = queue.batch(guarantee="atLeastOnce")
    message = writer.write_task(Task(0), batches("a"))
    assert queue.found(1) == {"a": 1}
    writer.commit([message])
    writer.abort([message])
    assert queue.found(0) == {"a": 1}


def test_a_write_goes_on_with_the_next_leader(three):
    made = Queue(three, partitions=3)
    with made.client:
        [led, *_] = three.members.by_name.values()

        def rows() -> Iterator[Any]:
            for number in range(60):
                if number == 20:
                    three.run(led.kill())
                yield from batches(str(number))

        writer = made.batch()
        written = writer.write_task(Task(0), rows())
        writer.commit([written])
        assert made.found(60) == Counter(map(str, range(60)))
