"""The test vectors for workers in other languages are those of this code."""

import msgspec

from querator.model.executions import WORKER_KINDS, RecordKind
from tests.clients.durable_vectors import FILE, text

MADE_ELSEWHERE = {
    RecordKind.CALL_FAILED_LATER: "as CALL_DONE_LATER",
    RecordKind.CALL_FAILED: "as CALL_DONE",
    RecordKind.TIMER_DONE: "as TIMER_FIRED",
    RecordKind.REJECTED: "as RESOLVED",
    RecordKind.CHILD_REFUSED: "ends a spawn as CHILD_STARTED does",
    RecordKind.CHILD_FAILED: "as CHILD_DONE",
    RecordKind.CHILD_CANCELLED: "as CHILD_DONE",
    RecordKind.CHILD_TERMINATED: "as CHILD_DONE",
    RecordKind.CHILD_LOST: "as CHILD_DONE",
    RecordKind.PRODUCED: "is not delivered, and a worker need not produce items",
}
"""Kinds that no vector has, and why a worker that passes the vectors reads them right."""


def test_the_file_is_what_the_code_makes():
    made = text()
    assert FILE.read_text() == made, "make it again: python -m tests.clients.durable_vectors"
    assert len(made) < 100_000


def test_each_kind_that_is_delivered_is_in_a_vector():
    vectors = msgspec.json.decode(FILE.read_bytes())["replays"]
    found = {RecordKind[record["kind"]] for each in vectors for record in each["journal"]}
    delivered = WORKER_KINDS | {kind for kind in RecordKind if kind >= RecordKind.SIGNAL}
    assert delivered - found - {RecordKind.TERMINATED} == MADE_ELSEWHERE.keys()
