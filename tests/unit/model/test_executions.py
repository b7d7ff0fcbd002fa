"""The values of executions: paths, the order of delivery, and what is refused as malformed."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.errors import ErrorCode, QueratorError
from querator.model.executions import (
    ARRIVAL,
    FOLD_KINDS,
    WORKER_KINDS,
    Close,
    ExecutionState,
    Fold,
    GiveBack,
    GoOn,
    JournalRecord,
    Note,
    Park,
    RecordKind,
    Then,
    check_fold,
    check_note,
    check_path,
    check_text,
    check_then,
    decode_path,
    delivery_order,
    encode_path,
    is_below,
    promise_mac,
)
from querator.model.limits import EXECUTION_PATH_BYTES_MAX, EXECUTION_WAKES_MAX

ELEMENTS = st.lists(st.integers(0, (1 << 32) - 1), max_size=12)
STEP = Note(RecordKind.STEP_DONE, encode_path([1, 2]), "charge", "shop.py:41", at_ms=1)


def refused(call, *arguments, **named) -> QueratorError:
    with pytest.raises(QueratorError) as caught:
        call(*arguments, **named)
    return caught.value


def note(**changes) -> Note:
    return msgspec.structs.replace(STEP, **changes)


@given(ELEMENTS)
def test_a_path_gives_its_elements_back(elements):
    assert decode_path(encode_path(elements)) == tuple(elements)


@given(ELEMENTS, ELEMENTS)
def test_below_is_a_prefix_of_whole_elements(one, other):
    expected = len(one) > len(other) and one[: len(other)] == other
    assert is_below(encode_path(one), encode_path(other)) == expected
    assert is_below(encode_path([*other, *one]), encode_path(other)) == bool(one)


def test_a_path_of_a_large_element_does_not_begin_with_a_small_one():
    assert encode_path([1, 300]) == b"\x01\xac\x02"
    assert not is_below(encode_path([300]), encode_path([44]))


@pytest.mark.parametrize("path", [b"\x80", b"\x01\xff", b"\x80\x00", b"\xff\xff\xff\xff\x7f"])
def test_bytes_that_are_no_path_are_refused(path):
    error = refused(decode_path, path, field="records[2].path")
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "records[2].path")
    assert path.hex() in error.value


def test_the_path_of_an_operation_is_neither_empty_nor_too_long():
    assert refused(check_path, b"", field="path").code is ErrorCode.INVALID_ARGUMENT
    check_path(b"", field="path", empty=True)
    check_path(b"\x01" * EXECUTION_PATH_BYTES_MAX, field="path")
    error = refused(check_path, b"\x01" * (EXECUTION_PATH_BYTES_MAX + 1), field="path")
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert error.limit == f"{EXECUTION_PATH_BYTES_MAX} bytes"


def record(index: int, kind: RecordKind, after: int = 0) -> JournalRecord:
    return JournalRecord(index, Note(kind, after=after))


def indexes(journal: list[JournalRecord]) -> list[int]:
    return [entry.index for entry in delivery_order(journal)]


def test_arrivals_come_before_the_first_record_that_had_seen_them():
    started, step, signal = RecordKind.STARTED, RecordKind.STEP_DONE, RecordKind.SIGNAL
    journal = [
        record(0, started), record(1, signal), record(2, step), record(3, signal),
        record(4, step, after=3), record(5, signal),
    ]  # fmt: skip
    assert indexes(journal) == [0, 2, 1, 3, 4, 5]


def test_a_fold_in_the_place_of_an_arrival_is_delivered_as_the_arrival():
    step, folded = RecordKind.STEP_DONE, RecordKind.CALL_DONE_LATER
    journal = [record(0, RecordKind.STARTED), record(1, folded), record(2, step)]
    assert indexes(journal) == [0, 2, 1]


@given(st.integers(0, 1 << 30))
def test_a_replay_gives_what_a_live_run_was_given(seed):
    """A live run: arrivals are appended at once and given later, records are given and appended."""
    draw = random.Random(seed)
    journal, given_live, pending, after = [record(0, RecordKind.STARTED)], [0], [], 0
    for index in range(1, 30):
        if draw.random() < 0.5:
            pending.append(index)
            journal.append(record(index, RecordKind.SIGNAL))
            continue
        for _ in range(draw.randint(0, len(pending))):
            after = pending.pop(0)
            given_live.append(after)
        given_live.append(index)
        journal.append(record(index, RecordKind.STEP_DONE, after))
    assert indexes(journal) == given_live + pending


def test_kinds_and_states_say_their_class():
    assert all(kind < ARRIVAL for kind in WORKER_KINDS | FOLD_KINDS)
    assert record(3, RecordKind.CALL_FAILED_LATER).is_arrival
    assert [state.name for state in ExecutionState if not state.closed] == [
        "RUNNABLE", "PARKED", "STUCK", "PINNED",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (note(kind=RecordKind.SIGNAL), "note.kind"),
        (note(kind=RecordKind.COMPLETED), "note.kind"),
        (note(kind=99), "note.kind"),
        (note(path=b""), "note.path"),
        (note(name="a\nb"), "note.name"),
        (note(name="x" * 256), "note.name"),
        (note(site="é" * 128), "note.site"),
        (note(after=-1), "note.after"),
        (note(at_ms=-1), "note.at_ms"),
        (note(at_ms=253_402_300_800_000), "note.at_ms"),
    ],
)
def test_a_malformed_note_is_refused_by_its_field(bad, field):
    assert refused(check_note, bad, field="note").field == field


def test_a_note_is_accepted():
    check_note(STEP, field="note")
    check_note(note(name="", site=""), field="note")


CALL = note(kind=RecordKind.CALL_DONE)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Fold(3, STEP), "fold.record.kind"),
        (Fold(-1, CALL), "fold.index"),
        (Fold(9, CALL, ((2, 0),)), "fold.removed[0]"),
        (Fold(9, CALL, ((0, 2),)), "fold.removed[0]"),
        (Fold(9, CALL, ((2, 3), (4, 1))), "fold.removed[1]"),
        (Fold(9, CALL, ((2, 3), (8, 2))), "fold.removed"),
    ],
)
def test_a_malformed_fold_is_refused_by_its_field(bad, field):
    assert refused(check_fold, bad, field="fold").field == field


def test_a_fold_is_accepted():
    check_fold(Fold(9, CALL, ((2, 3), (5, 4))), field="fold")
    check_fold(Fold(1, CALL), field="fold")
    check_fold(Fold(0, CALL, ((2, 30),)), field="fold")


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Park(), "park"),
        (Park(names=("go",), anything=True), "park"),
        (Park(names=("x",) * (EXECUTION_WAKES_MAX + 1)), "park"),
        (Park((b"\x01",), ("go",), all_of=True), "park.names"),
        (Park((b"\x01", b"\x80")), "park.paths[1]"),
        (Park(names=("",)), "park.names[0]"),
        (Close(RecordKind.TERMINATED), "close.outcome"),
        (GiveBack(stuck=True), "give_back.reason"),
        (GiveBack(pinned=True), "give_back.reason"),
        (GiveBack(True, "both", True), "give_back.pinned"),
        (GiveBack(refused="2"), "give_back.refused_version"),
        (GiveBack(False, "no", True, "v" * 65), "give_back.refused_version"),
        (GiveBack(False, "no", True, "a\tb"), "give_back.refused_version"),
        (GiveBack(reason="x" * 1_001), "give_back.reason"),
    ],
)
def test_a_malformed_end_is_refused_by_its_field(bad, field):
    assert refused(check_then, bad).field == field


@pytest.mark.parametrize(
    "end",
    [
        GoOn(),
        Park((b"\x01",), all_of=True),
        Park(anything=True),
        Close(RecordKind.FAILED, b"x"),
        GiveBack(),
        GiveBack(reason="no function f", pinned=True),
        GiveBack(reason="unlike it", pinned=True, refused="2"),
    ],
)
def test_an_end_is_accepted_and_survives_the_log(end):
    check_then(end)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(end), type=Then) == end


def test_names_are_printable_and_bounded():
    check_text("order/17 é", field="id")
    assert refused(check_text, "", field="id").code is ErrorCode.INVALID_ARGUMENT
    assert refused(check_text, "a\0b", field="id").code is ErrorCode.INVALID_ARGUMENT
    assert refused(check_text, "a\ud800", field="id").code is ErrorCode.INVALID_ARGUMENT
    error = refused(check_text, "é" * 128, field="id")
    assert (error.code, error.value) == (ErrorCode.LIMIT_EXCEEDED, "256 bytes")


def test_the_proof_of_a_promise_is_of_one_secret_execution_run_and_path():
    secret, path = b"s" * 16, b"\x01"
    proofs = {
        promise_mac(secret, 7, 1, path), promise_mac(b"t" * 16, 7, 1, path),
        promise_mac(secret, 8, 1, path), promise_mac(secret, 7, 2, path),
        promise_mac(secret, 7, 1, b"\x02"),
    }  # fmt: skip
    assert len(proofs) == 5
    assert promise_mac(secret, 7, 1, path) in proofs
