"""Exported executions: what a line has, what a replay of it finds, and lines that are none."""

import asyncio
import contextlib
import io
import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from querator.durable import (
    Codec,
    Durable,
    Retry,
    continue_as_new,
    durable,
    patched,
    produce,
    promise,
    publish,
    random,
    receive,
    sleep,
    spawn,
    step,
    uuid,
)
from querator.durable.exports import ExportedExecution, ExportError, from_json, read_exports
from querator.durable.replaying import ReplayedExecution, replay
from querator.local import Harness
from querator.model.executions import RecordKind, promise_mac
from querator.testing import assert_replays


@step
async def reserve(order: str) -> str:
    return order


@step
async def charge(order: str) -> str:
    return order


@step
async def check(order: str) -> str:
    return order


@durable
async def checkout(order: str) -> str:
    await reserve(order)
    await sleep(60)
    await charge(order)
    return order


@durable(name="checkout")
async def reordered(order: str) -> str:
    await charge(order)
    await sleep(60)
    await reserve(order)
    return order


@durable(name="checkout")
async def guarded(order: str) -> str:
    if patched("check"):
        await check(order)
    return await checkout.function(order)


@durable(name="checkout")
async def with_one_more(order: str) -> str:
    await checkout.function(order)
    return await check(order)


@durable(name="checkout")
async def failing(order: str) -> str:
    await checkout.function(order)
    raise KeyError(order)


@durable
async def by_chance() -> str:
    """What it does follows from chance: only the same numbers replay."""
    for _ in range(20):
        await (reserve if random().random() < 0.5 else charge)(str(uuid())[:1])
    await receive("end")
    return ""


@durable
async def approval() -> str:
    asked = promise(str)
    publish("token", asked.token)
    return await asked


def replayed(exported: ExportedExecution, *functions: Durable[..., Any]) -> ReplayedExecution:
    read = from_json(exported.to_json())
    assert read == exported
    return replay(read, {one.name: one for one in functions}, Codec())


async def ended(function: Durable[..., Any], *args: object) -> ExportedExecution:
    h = Harness([function])
    handle = await h.start(function, *args, id="a")
    with contextlib.suppress(KeyError):
        await handle.result()
    exported = await handle.export()
    assert exported.state in ("completed", "failed")
    return exported


async def parked(function: Durable[..., Any], *args: object) -> ExportedExecution:
    handle = await Harness([function]).start(function, *args, id="a")
    assert (await handle.get()).state == "parked"
    return await handle.export()


# --- what a replay finds --------------------------------------------------------------------------


async def test_the_same_code_fits_at_each_state() -> None:
    for exported in (await ended(checkout, "book"), await parked(checkout, "book")):
        assert replayed(exported, checkout).outcome == "fits"


async def test_a_change_is_named_by_both_lines() -> None:
    found = replayed(await parked(checkout, "book"), reordered)
    assert (found.outcome, found.id, found.function, found.run) == ("differs", "a", "checkout", 1)
    assert "step reserve" in found.journal
    assert "step charge" in found.code
    assert found.journal in found.reason
    assert found.code in found.reason


async def test_a_guarded_change_fits() -> None:
    assert replayed(await parked(checkout, "book"), guarded).outcome == "fits"


async def test_code_that_does_not_wait_for_a_timer_differs() -> None:
    @durable(name="checkout")
    async def without_sleep(order: str) -> str:
        await reserve(order)
        return await charge(order)

    found = replayed(await parked(checkout, "book"), without_sleep)
    assert (found.outcome, "for a timer" in found.journal) == ("differs", True)


async def test_what_comes_behind_the_end_may_change() -> None:
    exported = await ended(checkout, "book")
    assert exported.records[-1].note.kind == RecordKind.COMPLETED
    assert replayed(exported, with_one_more).outcome == "fits"


async def test_a_run_that_has_failed_is_replayed_up_to_its_failure() -> None:
    exported = await ended(failing, "book")
    assert exported.state == "failed"
    assert replayed(exported, checkout).outcome == "fits"
    assert replayed(exported, reordered).outcome == "differs"


async def test_code_that_fails_where_a_run_has_completed_differs() -> None:
    found = replayed(await ended(checkout, "book"), failing)
    assert found.outcome == "differs"
    assert found.reason == (
        "checkout \"a\", run 1: the code fails where it did not: KeyError: 'book'."
    )


async def test_code_that_fails_where_an_execution_waits_differs() -> None:
    @durable
    async def waits() -> str:
        return await receive("word", str)

    @durable(name="waits")
    async def broken() -> str:
        raise ValueError("a defect")

    found = replayed(await parked(waits), broken)
    assert "the code fails where it did not: ValueError: a defect." in found.reason


async def test_chance_is_that_of_the_execution() -> None:
    exported = await parked(by_chance)
    assert replayed(exported, by_chance).outcome == "fits"
    other = msgspec.structs.replace(exported, chance=bytes(16))
    assert replayed(other, by_chance).outcome == "differs"


async def test_a_line_opens_no_promise() -> None:
    """The proof of the token is neither in the line, nor does it follow from what is there."""
    h = Harness([approval])
    handle = await h.start(approval, id="a")
    exported = await handle.export()
    assert replayed(exported, approval).outcome == "fits"
    view = h._queue.view("a")
    assert view is not None
    assert view.secret not in exported.to_json()
    proof = promise_mac(view.secret, view.number, 1, b"\x01")
    for known in (exported.chance, exported.identity.secret):
        assert promise_mac(known, view.number, 1, b"\x01") != proof


async def test_later_runs_and_rewound_ones_replay() -> None:
    @durable
    async def counts(upto: int, reached: int = 0) -> int:
        await reserve(str(random().random()))
        if reached == upto:
            await receive("end")
            return reached
        continue_as_new(upto, reached + 1)

    h = Harness([counts])
    handle = await h.start(counts, 2, id="a")
    third = await handle.export()
    assert third.run == 3
    assert replayed(third, counts).outcome == "fits"
    await handle.rewind(third.records[-1].index)
    rewound = await handle.export()
    assert (rewound.run, rewound.origin_run) == (4, 3)
    assert replayed(rewound, counts).outcome == "fits"


async def test_items_that_were_produced_are_compared() -> None:
    @durable(name="mails")
    async def mails() -> None:
        produce("mail", "hello")
        await receive("answer")

    @durable(name="mails")
    async def without() -> None:
        await receive("answer")

    exported = await parked(mails)
    assert replayed(exported, mails).outcome == "fits"
    found = replayed(exported, without)
    assert (found.outcome, "produced mail" in found.journal) == ("differs", True)


async def test_a_function_that_is_not_there_differs() -> None:
    found = replayed(await parked(checkout, "book"), approval)
    assert found.outcome == "differs"
    assert "there is no function checkout; there are approval." in found.reason


async def test_a_function_that_keeps_its_version_waits() -> None:
    kept = durable(name="checkout", version="2", upgrade="never")(reordered.function)
    found = replayed(await parked(checkout, "book"), kept)
    assert (found.outcome, found.is_wrong) == ("waits", False)


async def test_arguments_that_do_not_decode_differ() -> None:
    @durable(name="checkout")
    async def with_number(order: int) -> None: ...

    found = replayed(await parked(checkout, "book"), with_number)
    assert (found.outcome, "Expected `int`, got `str`" in found.reason) == ("differs", True)


async def test_bytes_of_another_codec_are_kept() -> None:
    exported = await parked(checkout, "book")
    start, done = exported.records
    for payload in (b"\xff\x00", "é\u2028".encode(), b""):
        note = msgspec.structs.replace(done.note, payload=payload)
        kept = msgspec.structs.replace(
            exported, records=(start, msgspec.structs.replace(done, note=note))
        )
        assert (b'"payload_base64":"/wA="' in kept.to_json()) == (payload == b"\xff\x00")
        assert from_json(kept.to_json()) == kept


async def test_a_record_of_a_newer_server_is_named_when_it_is_read() -> None:
    exported = await parked(checkout, "book")
    start, done = exported.records
    newer = msgspec.structs.replace(done, note=msgspec.structs.replace(done.note, kind=60))
    line = msgspec.structs.replace(exported, records=(start, newer)).to_json()
    with pytest.raises(ExportError, match=r"records\[1\]\.kind is '60', which is no kind"):
        from_json(line)


@step(retry=Retry(attempts=3, first=timedelta(seconds=30)))
async def fails(order: str) -> str:
    raise OSError(order)


@durable
async def all_kinds(order: str) -> list[str]:
    """Its journal has attempts, a fold, a promise, a signal, a child, a patch and items."""
    patched("p")
    produce("mail", order)
    with contextlib.suppress(OSError):
        await fails(order)
    asked = promise(str, timeout=timedelta(days=1))
    child = await spawn(checkout, order)
    words = [await receive("word", str), await child, await checkout(order)]
    async with asyncio.timeout(5):
        await receive("end")
    return [*words, await asked]


async def test_a_damaged_line_is_never_an_exception_of_the_replay() -> None:
    """One to three bytes are others: the line is refused, or its journal fits or does not."""
    h = Harness([all_kinds, checkout])
    handle = await h.start(all_kinds, "book", id="a")
    await handle.signal("word", "hello")
    await h.skip(timedelta(minutes=5))
    line = (await handle.export()).to_json()
    kinds = {RecordKind(one.note.kind).name for one in from_json(line).records}
    assert kinds >= {"ATTEMPT_FAILED", "CALL_DONE", "CHILD_DONE", "SIGNAL", "PATCHED", "PRODUCED"}
    functions = {one.name: one for one in (all_kinds, checkout)}
    assert replay(from_json(line), functions, Codec()).outcome == "fits"
    outcomes: Counter[str] = Counter()
    chance = Random(17)
    for _ in range(1_500):
        damaged = bytearray(line)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(line))] = chance.choice(line)
        [(_, read)] = read_exports(io.BytesIO(bytes(damaged).replace(b"\n", b" ")))
        if isinstance(read, ExportError):
            outcomes["refused"] += 1
        else:
            outcomes[replay(read, functions, Codec()).outcome] += 1
    assert min(outcomes[one] for one in ("refused", "differs", "fits")) > 20, outcomes


async def test_an_export_reads_again_what_has_changed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new run begins between the two reads."""

    @durable
    async def again(word: str = "") -> str:
        continue_as_new(await receive("word", str))

    h = Harness([again])
    handle = await h.start(again, id="a")
    calls = h.executions._client.executions
    before, asked = calls.journal, []

    async def journal(queue: str, execution_id: str, first_index: int = 0):
        asked.append(execution_id)
        if len(asked) == 1:
            await handle.signal("word", "next")
        async for record in before(queue, execution_id, first_index):
            yield record

    monkeypatch.setattr(calls, "journal", journal)
    exported = await handle.export()
    assert (exported.run, len(asked)) == (2, 2)
    assert replayed(exported, again).outcome == "fits"


# --- files ----------------------------------------------------------------------------------------


async def test_a_test_asserts_that_a_file_fits(tmp_path: Path) -> None:
    h = Harness([checkout, approval])
    handles = [await h.start(checkout, "book"), await h.start(approval)]
    file = tmp_path / "runs.jsonl"
    file.write_bytes(b"".join([(await one.export()).to_json() for one in handles]))
    assert assert_replays(file, [checkout, approval]) == 2
    with pytest.raises(AssertionError) as raised:
        assert_replays(os.fspath(file), [reordered, approval])
    assert str(raised.value).startswith(f"{file}:1: checkout ")
    assert "step reserve" in str(raised.value)
    file.write_bytes(b"\n")
    with pytest.raises(AssertionError, match="has no executions"):
        assert_replays(file, [checkout])
    with pytest.raises(ValueError, match="functions is empty"):
        assert_replays(file, [])


def line(**changes: object) -> bytes:
    fields = {
        "querator_execution": 1, "id": "a", "function": "f", "version": "1", "run": 1,
        "origin_run": 1, "state": "parked", "namespace": "default", "queue": "shop",
        "partition": 0, "number": 1, "chance": "AAAAAAAAAAAAAAAAAAAAAA==", "timers": ["1.300"],
        "records": [{"index": 0, "kind": "started", "payload": "[[],{}]"}],
    }  # fmt: skip
    return msgspec.json.encode({**fields, **changes})


def record(**changes: object) -> list[dict[str, object]]:
    return [{"index": 0, "kind": "started"}, {"index": 1, "kind": "signal", **changes}]


def test_a_line_has_paths_as_people_see_them() -> None:
    assert from_json(line()).timers == (b"\x01\xac\x02",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GIF89a", "this is no exported execution: JSON is malformed"),
        (b"\xff\xfe", "this is no exported execution"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"id": "a"}', "missing required field `querator_execution`"),
        (line(querator_execution=2), "querator_execution is 2; this version of Querator reads 1"),
        (line(run=-1), "Expected `int` >= 0 - at `$.run`"),
        (line(chance="AAAA"), "chance has 3 bytes; it must have 16"),
        (line(timers=["1.x"]), "timers[0] is '1.x'; it must be like 1.3, or empty"),
        (line(timers=["4294967296"]), "timers[0] is '4294967296'"),
        (line(records=[]), "records does not begin with one of the kind started"),
        (line(records=record()[1:]), "records does not begin with one of the kind started"),
        (line(records=record(kind="hiccup")), "records[1].kind is 'hiccup', which is no kind"),
        (line(records=record(kind="started")), "only the first one may be"),
        (line(records=record(index=0)), "records[1].index is 0; it must be above 0"),
        (
            line(records=record(at_ms=253_402_300_800_000)),
            "<= 253402300799999 - at `$.records[1].at_ms`",
        ),
        (line(records=record(path="1.-2")), "records[1].path is '1.-2'"),
        (line(records=record(kind="step_done", after=7)), "records[1].after is 7; it must be"),
    ],
)
def test_a_line_that_is_none_says_why(data: bytes, words: str) -> None:
    with pytest.raises(ExportError) as raised:
        from_json(data)
    assert words in str(raised.value)


def test_lines_of_a_file_are_numbered_and_the_end_of_a_cut_one_is_named() -> None:
    data = line() + b"\n\nfoo\n" + line() + b"\n" + line()[:-5]
    found = list(read_exports(io.BytesIO(data)))
    assert [number for number, _ in found] == [1, 3, 4, 5]
    assert isinstance(found[1][1], ExportError)
    assert "the file is cut off here" not in str(found[1][1])
    assert str(found[3][1]).startswith("the file is cut off here: this is no exported execution")
    [(_, whole)] = read_exports(io.BytesIO(line()))
    assert isinstance(whole, ExportedExecution)


def test_a_line_that_is_too_long_ends_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querator.durable.exports.LINE_BYTES_MAX", 100)
    [(number, error)] = read_exports(io.BytesIO(b" " * 1_000 + line()))
    assert (number, str(error)) == (1, "the line has over 100 bytes")
