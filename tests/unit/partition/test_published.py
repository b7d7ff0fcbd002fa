"""Published values of executions: versions, limits, and what happens to them with their Records."""

import pytest

from querator.model.errors import ErrorCode
from querator.model.execution_commands import FireTimers
from querator.model.executions import ArriveKind, Close, GiveBack, Park, Published, RecordKind
from querator.model.limits import PUBLISHED_BYTES_MAX, PUBLISHED_KEYS_MAX
from querator.storage.tables import PUBLISHED
from tests.unit.partition.execution_queue import (
    LEASE_MS,
    RETENTION_MS,
    ExecutionQueue,
    Worker,
    recorded,
    refused,
    step,
)

DONE = Close(RecordKind.COMPLETED, b"result")


def values(**values: bytes) -> tuple[Published, ...]:
    return tuple(Published(key, value) for key, value in values.items())


def versions(queue: ExecutionQueue, *, key: str = "", after: int = 0) -> dict[str, int]:
    return {one.key: one.version for one in queue.values(key=key, after=after).values}


@pytest.fixture
def queue() -> ExecutionQueue:
    return ExecutionQueue(lease_timeout_ms=LEASE_MS)


def test_each_change_has_a_version(queue: ExecutionQueue):
    worker = queue.worker()
    assert queue.values() == queue.values(key="a")
    assert (queue.values().version, queue.values().found, queue.values().closed) == (0, True, False)
    recorded(queue.record(worker, step(1), published=values(state=b"begun", count=b"1")))
    assert queue.published() == {"state": b"begun", "count": b"1"}
    assert versions(queue) == {"state": 1, "count": 2}
    recorded(queue.record(worker, published=values(count=b"2", more=b"")))
    assert queue.published() == {"state": b"begun", "count": b"2", "more": b""}
    assert versions(queue) == {"state": 1, "count": 3, "more": 4}
    assert versions(queue, after=1) == {"count": 3, "more": 4}
    assert versions(queue, key="count", after=2) == {"count": 3}
    assert versions(queue, key="count", after=3) == versions(queue, key="nothing") == {}
    assert queue.values().version == 4


def test_a_value_that_stays_changes_nothing(queue: ExecutionQueue):
    worker = queue.worker()
    recorded(queue.record(worker, published=values(state=b"x")))
    notices = queue.log.applied.effects.notices
    recorded(queue.record(worker, published=values(state=b"x")))
    assert versions(queue) == {"state": 1}
    assert queue.log.applied.effects.notices == notices == 1


def test_the_effects_name_what_has_published_or_ended(queue: ExecutionQueue):
    a, b = queue.worker("a"), queue.worker("b")
    recorded(queue.record(a, published=values(state=b"x")))
    effects = queue.log.applied.effects
    assert (effects.notices, effects.published_ids, effects.ended_ids) == (1, ("a",), ())
    recorded(queue.record(b, published=values(state=b"y"), then=DONE))
    effects = queue.log.applied.effects
    assert (effects.notices, effects.published_ids, effects.ended_ids) == (3, ("b",), ("b",))
    queue.arrive(ArriveKind.TERMINATE)
    effects = queue.log.applied.effects
    assert (effects.notices, effects.published_ids, effects.ended_ids) == (5, (), ("a",))
    assert effects.arrived_numbers == (a.execution,), "its worker hears that the lease is lost"


def test_values_go_with_each_end_of_a_record(queue: ExecutionQueue):
    worker = queue.worker()
    recorded(queue.record(worker, published=values(a=b"1"), then=GiveBack()))
    [worker] = queue.lease()
    recorded(queue.park(worker, names=("go",), published=values(b=b"2")))
    queue.signal()
    [worker] = queue.lease()
    last = queue.view().next_index - 1
    recorded(queue.record(worker, seen=last, published=values(c=b"3"), then=GiveBack(True, "help")))
    queue.arrive(ArriveKind.RETRY)
    [worker] = queue.lease()
    recorded(queue.record(worker, seen=last, published=values(a=b"4"), then=DONE))
    assert queue.published() == {"a": b"4", "b": b"2", "c": b"3"}
    assert queue.values().closed


def test_a_record_that_is_refused_or_repeated_publishes_nothing(queue: ExecutionQueue):
    worker = queue.worker()
    recorded(queue.record(worker, step(1), published=values(state=b"x")))
    queue.signal()
    unseen = queue.record(worker, published=values(state=b"y"), then=Park(names=("go",)))
    assert refused(unseen)[0] is ErrorCode.UNSEEN
    late = queue.record(worker, number=9, published=values(state=b"y"))
    assert refused(late)[0] is ErrorCode.SEQUENCE_GAP
    other = queue.record(Worker(worker.execution, worker.item, 99), published=values(state=b"y"))
    assert refused(other)[0] is ErrorCode.LEASE_LOST
    assert recorded(queue.record(worker, number=1, published=values(state=b"y"))).repeated
    assert queue.published() == {"state": b"x"}
    assert versions(queue) == {"state": 1}


def test_the_keys_of_an_execution_are_bounded(queue: ExecutionQueue):
    worker = queue.worker()
    keys = {f"k{nth}": b"" for nth in range(PUBLISHED_KEYS_MAX)}
    recorded(queue.record(worker, published=values(**keys)))
    result = queue.record(worker, step(1), published=values(k0=b"x", one_more=b""))
    assert refused(result) == (ErrorCode.LIMIT_EXCEEDED, "published")
    assert (result.value, result.limit) == ("65 keys", "64 keys")
    assert queue.published() == keys
    recorded(queue.record(worker, step(1), published=values(k0=b"x")))


def test_their_bytes_are_bounded(queue: ExecutionQueue):
    worker = queue.worker()
    half = PUBLISHED_BYTES_MAX // 2 - 1
    recorded(queue.record(worker, published=values(a=b"x" * half)))
    recorded(queue.record(worker, published=values(b=b"x" * half)))
    result = queue.record(worker, published=values(b=b"x" * (half + 1)))
    assert refused(result) == (ErrorCode.LIMIT_EXCEEDED, "published")
    assert result.value == f"{PUBLISHED_BYTES_MAX + 1} bytes"
    # One that shrinks makes room for another one.
    recorded(queue.record(worker, published=values(a=b"", b=b"x" * (half + 1))))


def test_values_stay_as_long_as_their_execution(queue: ExecutionQueue):
    worker = queue.worker()
    recorded(queue.record(worker, published=values(state=b"x"), then=DONE))
    queue.log.advance(RETENTION_MS - 1)
    assert queue.published() == {"state": b"x"}
    queue.log.advance(1)
    queue.log.one(FireTimers())
    assert not queue.values().found
    with queue.log.environment.snapshot() as txn:
        assert not list(PUBLISHED.rows(txn, queue.log.group))


def test_what_has_another_id_is_not_found(queue: ExecutionQueue):
    queue.worker()
    page = queue.values("other")
    assert (page.found, page.closed, page.values, page.version) == (False, False, (), 0)
