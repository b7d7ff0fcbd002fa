"""Malformed commands of executions are refused by their fields."""

from struct import pack
from typing import Any

import pytest
from msgspec.structs import replace

from querator.model.errors import QueratorError
from querator.model.execution_commands import (
    Arrive,
    RecordProgress,
    StartExecution,
    check_arrive,
    check_record,
    check_start,
)
from querator.model.executions import (
    ArriveKind,
    ChildStart,
    Close,
    Fold,
    GiveBack,
    Note,
    Park,
    Published,
    RecordKind,
    Timer,
)

STEP = Note(RecordKind.STEP_DONE, b"\x01")
CALL = Note(RecordKind.CALL_DONE, b"\x02")
CHILD = ChildStart(b"\x04", "a/1", "f", "1", b"h" * 16)
LARGE = b"x" * 1_025


def start(**changes: Any) -> StartExecution:
    values = {"id": "a", "function": "f", "version": "1", "secret": b"s" * 16,
              "arguments": b"h" * 16} | changes  # fmt: skip
    return StartExecution(**values)


def record(**changes: Any) -> RecordProgress:
    return RecordProgress(**({"execution": 1, "item": 1, "lease": 1, "number": 1} | changes))


def arrive(kind: int = ArriveKind.SIGNAL, **changes: Any) -> Arrive:
    return Arrive(kind, **({"id": "a", "name": "go"} | changes))


def sizes(*numbers: int) -> bytes:
    return pack(f"<{len(numbers)}I", *numbers)


def field_of(check: Any, command: Any) -> str:
    with pytest.raises(QueratorError) as caught:
        check(command)
    assert caught.value.message
    return caught.value.field


def test_well_formed_commands_are_accepted():
    check_start(start(place=1, lengths=sizes(2_000)))
    large = Note(RecordKind.STEP_DONE, b"\x03", place=1)
    end = Close(RecordKind.COMPLETED, place=2)
    check_record(record(records=(STEP, large), then=end, lengths=sizes(1, 2)))
    check_record(record(records=(CALL,), folds=(Fold(0, CALL, ((3, 2),)),)))
    check_arrive(arrive(message_id="m", payload=b"x"))
    check_arrive(Arrive(ArriveKind.RESOLVE, execution=1, run=1, path=b"\x01", mac=b"m" * 16))


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (start(id=""), "id"),
        (start(id="x" * 256), "id"),
        (start(id="a\tb"), "id"),
        (start(function=""), "function"),
        (start(version="v" * 65), "version"),
        (start(priority=1 << 31), "priority"),
        (start(start_at_ms=-1), "start_at"),
        (start(deadline_ms=253_402_300_800_000), "deadline"),
        (start(payload=LARGE), "arguments"),
        (start(place=1), "arguments"),
        (start(lengths=sizes(5)), "payloads"),
    ],
)
def test_a_malformed_start_is_refused(command, field):
    assert field_of(check_start, command) == field


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (record(number=0), "number"),
        (record(lease=0), "lease"),
        (record(item=0), "item"),
        (record(execution=0), "execution"),
        (record(seen=-1), "seen"),
        (record(number=1 << 63), "number"),
        (record(extend_ms=86_400_001), "extend"),
        (record(records=(STEP,) * 257), "records"),
        (record(folds=(Fold(1, CALL),) * 257), "folds"),
        (record(timers=(Timer(b"\x01", 1),) * 257), "timers"),
        (record(records=(STEP, Note(RecordKind.SIGNAL, b"\x01"))), "records[1].kind"),
        (record(records=(Note(RecordKind.STEP_DONE),)), "records[0].path"),
        (record(folds=(Fold(3, STEP),)), "folds[0].record.kind"),
        (record(folds=(Fold(0, CALL),)), "folds[0].index"),
        (record(children=(CHILD,) * 2), "children[1].path"),
        (record(children=(CHILD,) * 257), "children"),
        (record(children=(replace(CHILD, path=b"\x01" * 255),)), "children[0].path"),
        (record(children=(replace(CHILD, id=""),)), "children[0].id"),
        (record(children=(replace(CHILD, function="\n"),)), "children[0].function"),
        (record(children=(replace(CHILD, version="v" * 65),)), "children[0].version"),
        (record(children=(replace(CHILD, site="s" * 256),)), "children[0].site"),
        (record(children=(replace(CHILD, payload=LARGE),)), "children[0].arguments"),
        (record(children=(CHILD,), then=GiveBack()), "children"),
        (record(cancels=(b"",)), "cancels[0]"),
        (record(timers=(Timer(b"", 1),)), "timers[0].path"),
        (record(timers=(Timer(b"\x01", -1),)), "timers[0].due_ms"),
        (record(timers=(Timer(b"\x01", 253_402_300_800_000),)), "timers[0].due_ms"),
        (record(then=Park()), "park"),
        (record(then=Close(RecordKind.TERMINATED)), "close.outcome"),
        (record(then=Close(RecordKind.FAILED, LARGE)), "close"),
        (record(records=(Note(RecordKind.STEP_DONE, b"\x01", payload=LARGE),)), "records[0]"),
        (record(records=(Note(RecordKind.STEP_DONE, b"\x01", place=1),)), "records[0]"),
        (record(records=(STEP,), lengths=sizes(9)), "payloads"),
        (record(records=(Note(RecordKind.STEP_DONE, b"\x01", place=1),) * 2,
                lengths=sizes(9)), "payloads"),
        (record(records=(Note(RecordKind.STEP_DONE, b"\x01", place=1),),
                lengths=sizes((8 << 20) + 1)), "payloads"),
        (record(published=(Published("", b""),)), "published[0].key"),
        (record(published=(Published("a", b""), Published("a\n", b""))), "published[1].key"),
        (record(published=(Published("x" * 256, b""),)), "published[0].key"),
        (record(published=(Published("a", b"1"), Published("a", b"2"))), "published[1].key"),
        (record(published=tuple(Published(str(nth), b"") for nth in range(65))), "published"),
        (record(published=(Published("a", b"x" * 65_536),)), "published"),
    ],
)  # fmt: skip
def test_a_malformed_record_is_refused(command, field):
    assert field_of(check_record, command) == field


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (arrive(99), "kind"),
        (arrive(id=""), "id"),
        (arrive(name=""), "name"),
        (arrive(name="x" * 256), "name"),
        (arrive(message_id="m" * 129), "message_id"),
        (arrive(run=-1), "run"),
        (arrive(payload=LARGE), "payload"),
        (arrive(ArriveKind.CANCEL, payload=b"x" * 4_001), "reason"),
        (arrive(ArriveKind.RESOLVE), "path"),
        (Arrive(ArriveKind.REJECT, execution=1, run=1, path=b"\x01", mac=b"short"), "proof"),
        (Arrive(ArriveKind.REJECT, execution=0, run=1, path=b"\x01", mac=b"m" * 16), "proof"),
    ],
)
def test_a_malformed_arrival_is_refused(command, field):
    assert field_of(check_arrive, command) == field
