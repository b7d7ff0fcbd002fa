"""Requests about executions: where their payloads are, and what is refused by its field."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model import limits
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import ProgressCall
from querator.model.executions import (
    ArriveKind,
    ChildStart,
    Close,
    ExecutionState,
    Fold,
    GiveBack,
    GoOn,
    KeyPolicy,
    NewRun,
    Note,
    Park,
    Published,
    RecordKind,
    Timer,
)
from querator.model.ids import GroupId, LeaseNumber, PartitionNumber, format_lease_id
from querator.v1 import execution_service_pb2 as v1
from querator.wire import executions

LEASE = format_lease_id(GroupId(7), PartitionNumber(2), LeaseNumber(41))
LARGE = b"x" * 1_025
NOW_MS = 1_900_000_000_000
STEP = v1.JournalRecord(kind=v1.RECORD_KIND_STEP_DONE, path=b"\x01")


def parse_progress(data: bytes) -> ProgressCall:
    return executions.parse_progress(data, now_ms=NOW_MS)


def start(**fields: Any) -> bytes:
    given: dict[str, Any] = {"queue": "shop", "id": "a", "function": "f", "version": "1"} | fields
    return v1.StartExecutionRequest(**given).SerializeToString()


def progress(**fields: Any) -> bytes:
    given: dict[str, Any] = {
        "queue": "shop",
        "lease_id": LEASE,
        "item": 3,
        "execution": 5,
        "number": 1,
    } | fields
    return v1.RecordProgressRequest(**given).SerializeToString()


def refusal(parse: Any, data: bytes) -> QueratorError:
    with pytest.raises(QueratorError) as caught:
        parse(data)
    return caught.value


def test_kinds_and_states_have_the_numbers_of_the_model():
    kinds = {name.removeprefix("RECORD_KIND_"): number for name, number in v1.RecordKind.items()}
    assert kinds == {"UNSPECIFIED": 0} | {kind.name: kind.value for kind in RecordKind}
    policies = {name.removeprefix("KEY_POLICY_"): number for name, number in v1.KeyPolicy.items()}
    assert policies == {"UNSPECIFIED": 0} | {one.name: one.value for one in KeyPolicy}
    states = {
        name.removeprefix("EXECUTION_STATE_"): number for name, number in v1.ExecutionState.items()
    }
    assert states == {"UNSPECIFIED": 0} | {state.name: state.value for state in ExecutionState}


def test_a_start_arrives():
    call = executions.parse_start(
        start(
            arguments=LARGE, priority=-3, key_policy=v1.KEY_POLICY_FAIL,
            request_id="r", start_at=Timestamp(seconds=5),
            deadline=Timestamp(seconds=9), request_timeout=Duration(seconds=2),
        )
    )  # fmt: skip
    command = call.command
    assert (call.namespace, call.queue, call.timeout_ms) == ("default", "shop", 2_000)
    assert (command.id, command.function, command.version) == ("a", "f", "1")
    assert (command.place, command.payload, call.attachment) == (1, b"", LARGE)
    assert (command.priority, command.policy, len(command.request)) == (-3, KeyPolicy.FAIL, 16)
    assert (command.start_at_ms, command.deadline_ms) == (5_000, 9_000)
    small = executions.parse_start(start(arguments=b"17")).command
    assert (small.place, small.payload, small.lengths) == (0, b"17", b"")
    assert small.arguments != command.arguments
    assert (small.policy, small.request) == (KeyPolicy.ATTACH, b"")


def test_progress_arrives_with_its_payloads_in_order():
    folded = v1.JournalRecord(kind=v1.RECORD_KIND_CALL_DONE, path=b"\x02", payload=LARGE + b"2")
    call = parse_progress(
        progress(
            seen=4,
            records=[
                v1.JournalRecord(
                    kind=v1.RECORD_KIND_STEP_DONE, path=b"\x01", name="charge", site="a.py:1",
                    after=4, at_ms=9, payload=LARGE,
                ),
                STEP,
            ],
            folds=[v1.Fold(index=8, record=folded, removed=[v1.Fold.Run(first=2, count=3)])],
            timers=[v1.Timer(path=b"\x05", due_ms=99)],
            close=v1.Close(outcome=v1.RECORD_KIND_FAILED, payload=LARGE + b"3", drain=True),
        )
    )  # fmt: skip
    command = call.command
    assert (call.lease_id, command.lease, command.item) == (LEASE, 41, 3)
    assert command.records[0] == Note(
        RecordKind.STEP_DONE, b"\x01", "charge", "a.py:1", 4, 9, place=1
    )
    result = Note(RecordKind.CALL_DONE, b"\x02", place=2)
    assert command.folds == (Fold(8, result, ((2, 3),)),)
    assert command.timers == (Timer(b"\x05", 99),)
    assert command.then == Close(RecordKind.FAILED, place=3, drain=True)
    assert call.attachment == LARGE + LARGE + b"2" + LARGE + b"3"


CHILD = v1.ChildStart(path=b"\x04", id="a/1", function="ship", version="1", arguments=b"17")


def test_children_arrive_with_their_arguments():
    large = v1.ChildStart(
        path=b"\x05", id="a/2", function="ship", version="2", arguments=LARGE, detached=True,
        shielded=True, site="a.py:7",
    )  # fmt: skip
    call = parse_progress(progress(records=[STEP], children=[CHILD, large], cancels=[b"\x03"]))
    small, big = call.command.children
    assert (small.id, small.payload, small.place, small.detached) == ("a/1", b"17", 0, False)
    start_of_it = executions.parse_start(start(arguments=b"17")).command
    assert small.arguments == start_of_it.arguments != big.arguments
    assert big == ChildStart(
        b"\x05", "a/2", "ship", "2", big.arguments, b"", 1, detached=True, shielded=True,
        site="a.py:7",
    )  # fmt: skip
    assert call.command.cancels == (b"\x03",)
    assert call.attachment == LARGE


@pytest.mark.parametrize(
    ("fields", "then"),
    [
        ({}, GoOn()),
        ({"park": v1.Park(paths=[b"\x01"], all_of=True)}, Park((b"\x01",), all_of=True)),
        ({"park": v1.Park(anything=True)}, Park(anything=True)),
        ({"park": v1.Park(names=["go"])}, Park(names=("go",))),
        ({"give_back": v1.GiveBack(stuck=True, reason="why")}, GiveBack(True, "why")),
        (
            {"new_run": v1.NewRun(arguments=b"a", unread=[v1.NewRun.Run(first=3, count=2)])},
            NewRun(b"a", unread=((3, 2),)),
        ),
    ],
)
def test_each_end_of_a_request_arrives(fields, then):
    assert parse_progress(progress(**fields)).command.then == then


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (progress(lease_id="7.2"), "lease_id"),
        (progress(queue=""), "queue"),
        (progress(namespace="a b"), "namespace"),
        (progress(item=0), "item"),
        (progress(version="x" * 65), "version"),
        (progress(version="\n"), "version"),
        (progress(number=0), "number"),
        (progress(number=(1 << 64) - 1), "number"),
        (progress(seen=(1 << 64) - 1), "seen"),
        (progress(records=[v1.JournalRecord(path=b"\x01")]), "records[0].kind"),
        (
            progress(records=[STEP, v1.JournalRecord(kind=v1.RECORD_KIND_SIGNAL, path=b"\x01")]),
            "records[1].kind",
        ),
        (progress(records=[STEP] * 257), "records"),
        (progress(folds=[v1.Fold(index=3)]), "folds[0].record.kind"),
        (progress(timers=[v1.Timer(path=b"\x80", due_ms=1)]), "timers[0].path"),
        (progress(timers=[v1.Timer(path=b"\x01", due_ms=(1 << 64) - 1)]), "timers[0].due_ms"),
        (progress(children=[v1.ChildStart()]), "children[0].path"),
        (progress(children=[CHILD, CHILD]), "children[1].path"),
        (progress(children=[CHILD] * 257), "children"),
        (progress(children=[CHILD], park=v1.Park(names=["go"])), "children"),
        (progress(cancels=[b""]), "cancels[0]"),
        (progress(cancels=[b"\x01"] * 257), "cancels"),
        (progress(close=v1.Close()), "close.outcome"),
        (progress(park=v1.Park()), "park"),
        (progress(extend=Duration(nanos=1)), "extend"),
        (progress(request_timeout=Duration(seconds=901)), "request_timeout"),
        (b"\xff\xff", ""),
    ],
)
def test_malformed_progress_is_refused(data, field):
    assert refusal(parse_progress, data).field == field


def test_folds_beyond_every_journal_are_refused():
    call = v1.JournalRecord(kind=v1.RECORD_KIND_CALL_DONE, path=b"\x02")
    run = v1.Fold.Run(first=(1 << 64) - 9, count=5)
    for fold in (v1.Fold(index=(1 << 64) - 1, record=call),
                 v1.Fold(index=0, record=call, removed=[run])):  # fmt: skip
        error = refusal(parse_progress, progress(records=[call], folds=[fold]))
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert error.field.startswith("folds[0].")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (start(id=""), "id"),
        (start(id="x" * 256), "id"),
        (start(function=""), "function"),
        (start(version=""), "version"),
        (start(arguments=b"x" * ((8 << 20) + 1)), "payloads"),
        (start(start_at=Timestamp(seconds=-1)), "start_at"),
    ],
)
def test_a_malformed_start_is_refused(data, field):
    assert refusal(executions.parse_start, data).field == field


def test_leases_of_activations_arrive():
    request = v1.LeaseActivationsRequest(
        queue="shop", client_id="w", max_activations=9, lease_timeout=Duration(seconds=3),
        request_timeout=Duration(seconds=2),
    )  # fmt: skip
    call = executions.parse_lease(request.SerializeToString())
    assert (call.max_items, call.lease_timeout_ms, call.wait_ms) == (9, 3_000, 2_000)
    assert call.activations
    none = v1.LeaseActivationsRequest(queue="shop", client_id="w").SerializeToString()
    assert refusal(executions.parse_lease, none).field == "max_activations"


def test_arrivals_arrive():
    signal = v1.SignalExecutionRequest(queue="shop", id="a", name="go", payload=LARGE)
    call = executions.parse_signal(signal.SerializeToString())
    assert (call.command.kind, call.command.place, call.attachment) == (
        ArriveKind.SIGNAL, 1, LARGE,
    )  # fmt: skip
    resolve = v1.ResolvePromiseRequest(
        queue="shop", partition=2, execution=5, run=1, path=b"\x01", proof=b"m" * 16, reject=True
    )
    call = executions.parse_resolve(resolve.SerializeToString())
    assert (call.partition, call.command.kind, call.command.mac) == (
        2, ArriveKind.REJECT, b"m" * 16,
    )  # fmt: skip
    resolve.proof = b"short"
    assert refusal(executions.parse_resolve, resolve.SerializeToString()).field == "proof"
    cancel = v1.CancelExecutionRequest(queue="shop", id="a", reason="é" * 1_000)
    call = executions.parse_cancel(cancel.SerializeToString())
    assert call.attachment.decode() == "é" * 1_000
    cancel.reason += "x"
    assert refusal(executions.parse_cancel, cancel.SerializeToString()).field == "reason"


def test_a_wait_is_checked():
    request = v1.WaitExecutionsRequest(
        queue="shop", ids=["b", "a", "b"], wait_timeout=Duration(seconds=2)
    )
    call = executions.parse_wait(request.SerializeToString())
    assert (call.queue, call.ids, call.wait_ms) == ("shop", ("b", "a"), 2_000)
    for fields, field in (
        ({"ids": []}, "ids"),
        ({"ids": ["a", ""]}, "ids[1]"),
        ({"ids": ["x" * 256]}, "ids[0]"),
        ({"ids": [str(nth) for nth in range(1_001)]}, "ids"),
        ({"ids": ["a"], "wait_timeout": Duration(seconds=901)}, "wait_timeout"),
        ({"ids": ["a"], "wait_timeout": Duration(seconds=-1)}, "wait_timeout"),
        ({"ids": ["a"], "queue": "a b"}, "queue"),
    ):
        bad = v1.WaitExecutionsRequest(**({"queue": "shop"} | fields)).SerializeToString()
        error = refusal(executions.parse_wait, bad)
        assert error.field == field
    assert "1001" in refusal(executions.parse_wait, v1.WaitExecutionsRequest(
        queue="shop", ids=[str(nth) for nth in range(1_001)]
    ).SerializeToString()).message.replace(",", "")  # fmt: skip


def test_published_values_arrive():
    sent = [v1.PublishedValue(key="state", value=b"x"), v1.PublishedValue(key="n")]
    command = parse_progress(progress(published=sent)).command
    assert command.published == (Published("state", b"x"), Published("n", b""))
    for values, field in (
        ([v1.PublishedValue(value=b"x")], "published[0].key"),
        ([*sent, v1.PublishedValue(key="n")], "published[2].key"),
        ([v1.PublishedValue(key="a", value=bytes(65_536))], "published"),
        ([v1.PublishedValue(key=str(nth)) for nth in range(65)], "published"),
    ):
        error = refusal(parse_progress, progress(published=values))
        assert error.field == field


def test_a_read_of_published_values_is_checked():
    request = v1.ReadPublishedRequest(
        queue="shop", id="a", key="state", after_version=7, wait_timeout=Duration(seconds=2)
    )
    call = executions.parse_published(request.SerializeToString())
    assert (call.queue, call.id, call.key, call.after) == ("shop", "a", "state", 7)
    assert call.wait_ms == 2_000
    for fields, field in (
        ({"id": ""}, "id"),
        ({"key": "a\n"}, "key"),
        ({"key": "x" * 256}, "key"),
        ({"after_version": 1 << 63}, "after_version"),
        ({"wait_timeout": Duration(seconds=901)}, "wait_timeout"),
    ):
        given: dict[str, Any] = {"queue": "shop", "id": "a"} | fields
        bad = v1.ReadPublishedRequest(**given).SerializeToString()
        assert refusal(executions.parse_published, bad).field == field


def test_reads_are_checked():
    listing = v1.ListExecutionsRequest(queue="shop", state=v1.EXECUTION_STATE_STUCK)
    call = executions.parse_list(listing.SerializeToString())
    assert (call.state, call.page_size) == (ExecutionState.STUCK, limits.PAGE_ITEMS_DEFAULT)
    listing.state = 99  # type: ignore[assignment]
    assert refusal(executions.parse_list, listing.SerializeToString()).field == "state"
    listing = v1.ListExecutionsRequest(queue="shop", page_size=1_001)
    assert refusal(executions.parse_list, listing.SerializeToString()).field == "page_size"
    journal = v1.ReadJournalRequest(queue="shop", id="a", first_index=1 << 63)
    assert refusal(executions.parse_journal, journal.SerializeToString()).field == "first_index"
    get = v1.GetExecutionRequest(queue="shop")
    assert refusal(executions.parse_get, get.SerializeToString()).field == "id"
