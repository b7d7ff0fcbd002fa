"""Test vectors for workers in other languages: `durable-vectors.json`, made by the Python worker.

    python -m tests.clients.durable_vectors             writes the file

docs/durable-protocol.md says what each part means.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from querator.durable.children import _made_id
from querator.durable.code import ExecutionCode
from querator.durable.codec import Codec
from querator.durable.errors import NonDeterminism
from querator.durable.functions import Step
from querator.durable.machine import ExecutionMachine
from querator.durable.marks import patch_path
from querator.durable.operations import Operation, WaitKind, make_effect
from querator.durable.outbox import Sending
from querator.durable.paths import main_line, shown
from querator.durable.promises import ExecutionIdentity, make_token
from querator.durable.seeds import seed
from querator.model.errors import QueratorError
from querator.model.executions import (
    Close,
    JournalRecord,
    NewRun,
    Note,
    RecordKind,
    chance_key,
    decode_path,
    delivery_order,
    encode_path,
    promise_mac,
)
from tests.clients.durable_program import PROGRAM
from tests.unit.durable.memory_partition import (
    IDENTITY,
    START_MS,
    Happening,
    MemoryPartition,
    Worker,
    run_straight,
)

FILE = Path(__file__).with_name("durable-vectors.json")

Vector = dict[str, Any]


def signal(name: str, value: object) -> Happening:
    return lambda partition, now: partition.signal(name, msgspec.json.encode(value), now)


def cancel(reason: bytes) -> Happening:
    return lambda partition, now: partition.cancel(reason, now)


def arrives(
    kind: RecordKind, path: Sequence[int], name: str = "", value: object = None
) -> Happening:
    payload = b"" if kind is RecordKind.CHILD_STARTED else msgspec.json.encode(value)
    return lambda partition, now: partition.arrive(
        Note(kind=kind, path=encode_path(path), name=name, payload=payload, at_ms=now)
    )


PROGRAMS: dict[str, tuple[list[Any], list[tuple[int, Happening]]]] = {
    "steps": ([["step", "a", 1], ["fails", "b", "no"], ["step", "c", {"x": [1, None]}]], []),
    "a retry that is recorded": ([["flaky", "f", 1, 5_000], ["step", "a", 1]], []),
    "retries in the worker": ([["flaky", "f", 2, 10], ["step", "a", 1]], []),
    "a step at most once": ([["once", "a", 1], ["step", "b", 2]], []),
    "a sleep for which it parks": ([["step", "a", 1], ["sleep", 60_000], ["step", "b", 2]], []),
    "signals": (
        [["receive", "s"], ["step", "a", 1], ["receive", "t", 60_000], ["receive", "s"]],
        [(10, signal("s", 1)), (20, signal("s", 2)), (30, signal("t", {"y": 3}))],
    ),
    "a signal that does not come": ([["receive", "t", 60_000], ["step", "a", 1]], []),
    "a promise": (
        [["step", "a", 1], ["promise", "p"], ["step", "b", 2]],
        [(10, arrives(RecordKind.RESOLVED, [2], value="yes"))],
    ),
    "tasks": (
        [
            ["gather", [[["step", "a", 1], ["receive", "s"]], [["sleep", 100], ["step", "b", 2]]]],
            ["step", "c", 3],
        ],
        [(50, signal("s", "word"))],
    ),
    "a race": (
        [["gather", [[["receive", "s", 40]], [["step", "a", 1], ["sleep", 40], ["step", "b", 2]]]]],
        [(40, signal("s", "late"))],
    ),
    "calls": (
        [
            ["call", [["step", "a", 1], ["call", [["step", "b", 2], ["step", "c", 3]]]]],
            ["call", [["receive", "s"], ["step", "d", 4], ["sleep", 60_000]]],
            ["step", "e", 5],
        ],
        [(50, signal("s", 6))],
    ),
    "a child": (
        [["spawn", [["step", "a", 1]]], ["step", "b", 2]],
        [
            (10, arrives(RecordKind.CHILD_STARTED, [1], "program")),
            (20, arrives(RecordKind.CHILD_DONE, [1, 1], "program", [1])),
        ],
    ),
    "a UUID in tasks": ([["uuid"], ["gather", [[["uuid"], ["uuid"]]]], ["step", "a", 1]], []),
    "a patch": ([["step", "a", 1], ["patched", "newer"], ["step", "b", 2]], []),
    "an exception": ([["step", "a", 1], ["raise", "broken"]], []),
    "another run": ([["step", "a", 1], ["again", [["step", "b", 2]]]], []),
    "a cancellation": ([["step", "a", 1], ["receive", "s"]], [(10, cancel(b"enough"))]),
}

CHANGES: dict[str, tuple[str, list[Any]]] = {
    "a step has another name": ("steps", [["step", "other", 1]]),
    "a step is gone": ("steps", [["step", "a", 1], ["step", "c", 2]]),
    "a sleep in the place of a step": ("steps", [["sleep", 10]]),
    "the end comes earlier": ("signals", [["receive", "s"]]),
    "a task is gone": ("tasks", [["gather", [[["step", "a", 1], ["receive", "s"]]]]]),
    "a call in the place of a step": ("steps", [["call", [["step", "a", 1]]]]),
    "a promise in the place of a sleep": (
        "a sleep for which it parks",
        [["step", "a", 1], ["promise", "p"]],
    ),
}  # fmt: skip


BEGINS: dict[str, tuple[list[Any], str]] = {
    "one after the other": ([["step", "a", 1], ["step", "b", 2]], "a sent acknowledged b"),
    "a step that only reads": (
        [["step", "a", 1], ["reads", "b", 2], ["step", "c", 3]],
        "a sent b acknowledged sent acknowledged c",
    ),
    "in tasks": (
        [["gather", [[["step", "a", 1], ["step", "c", 3]], [["step", "b", 2], ["step", "d", 4]]]]],
        "a sent b acknowledged c sent acknowledged d",
    ),
    "at most once": (
        [["once", "a", 1], ["step", "b", 2]],
        "sent acknowledged a sent acknowledged b",
    ),
    "behind a signal": (
        [["gather", [[["step", "a", 1]], [["receive", "s"], ["step", "b", 2]]]]],
        "signal a sent b",
    ),
}
"""Programs, and what happens in their worker: a step ends, a Record is sent, it is acknowledged,
the signal `s` arrives.
"""


def journal_of(operations: list[Any], happens: list[tuple[int, Happening]]) -> list[JournalRecord]:
    partition = MemoryPartition()
    codec = Codec()
    payload = codec.encode(((operations,), {}))
    partition.arrive(Note(kind=RecordKind.STARTED, name="program", at_ms=START_MS, payload=payload))
    run_straight(PROGRAM, partition=partition, happens=happens, codec=codec)
    return [JournalRecord(each.index, without_traceback(each.note)) for each in partition.journal]


def without_traceback(note: Note) -> Note:
    """Tracebacks have the places of files."""
    if b'"traceback"' not in note.payload:
        return note
    said = msgspec.json.decode(note.payload)
    error = said[2] if note.kind == RecordKind.ATTEMPT_FAILED else said
    error.pop("traceback")
    return msgspec.structs.replace(note, payload=msgspec.json.encode(said))


def replayed(journal: list[JournalRecord], timers: Sequence[bytes] = (), seen: int = 0) -> Vector:
    """What a replay of a journal gives: what the code waits for, or how it has ended; or with which
    record, or which timer, the code differs from its journal.
    """
    machine = ExecutionMachine(PROGRAM, IDENTITY, Codec())
    try:
        machine.load(journal, version="former", timers=timers, seen=seen)
    except NonDeterminism as error:
        word, *line = str(error).splitlines()[1].split()
        return {"differs": int(line[0]) if word == "record" else f"timer {line[-1]}"}
    try:
        match machine.end:
            case Close() as close:
                outcome = RecordKind(close.outcome).name
                if close.outcome == RecordKind.FAILED:
                    text = msgspec.json.decode(close.payload)["text"]
                    return {"end": outcome, "text": text}
                return {"end": outcome, "payload": close.payload.decode()}
            case NewRun() as run:
                return {"end": "NEW_RUN", "payload": run.payload.decode(), "unread": run.unread}
        code = machine.code
        waits = [(path, each.waits, each.name) for path, each in code.pending.items()]
        waits += [(path, WaitKind.TIMER, "") for path in code.loop.timers]
        waits += [
            (path, code.promises[path].waits, code.promises[path].name)
            for path, count in code.awaited.items()
            if count
        ]
        return {"waits": sorted([shown(path), waits.value, name] for path, waits, name in waits)}
    finally:
        assert machine.put_away()


def as_json(record: JournalRecord) -> Vector:
    note = record.note
    fields = {
        "index": record.index, "kind": RecordKind(note.kind).name, "path": note.path.hex(),
        "name": note.name, "after": note.after, "at_ms": note.at_ms,
        "payload": note.payload.decode(),
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value or name == "index"}


def replays() -> list[Vector]:
    found: list[Vector] = []
    for name, (operations, happens) in PROGRAMS.items():
        journal = journal_of(operations, happens)
        found.append(
            {
                "name": name,
                "journal": [as_json(each) for each in journal],
                "gives": [replayed(journal[:count]) for count in range(1, len(journal) + 1)],
            }
        )
    return found


def ends(journal: list[JournalRecord]) -> list[JournalRecord]:
    """The journal, for code that only has its first step."""
    payload = Codec().encode((([["step", "a", 1]],), {}))
    start = msgspec.structs.replace(journal[0].note, payload=payload)
    return [JournalRecord(0, start), *journal[1:]]


def changes() -> list[Vector]:
    found: list[Vector] = []
    for name, (of, operations) in CHANGES.items():
        journal = journal_of(*PROGRAMS[of])
        start = msgspec.structs.replace(
            journal[0].note, payload=Codec().encode(((operations,), {}))
        )
        journal[0] = JournalRecord(0, start)
        gives = replayed(journal)
        assert "differs" in gives, name
        found.append({"name": name, "journal": [as_json(each) for each in journal], "gives": gives})
    journal = journal_of([["step", "a", 1], ["receive", "s"]], [(10, signal("s", 2))])[:2]
    timer = encode_path((2,))
    found.append(
        {
            "name": "a sleep is gone",
            "journal": [as_json(each) for each in journal],
            "timers": [timer.hex()],
            "gives": replayed(journal, [timer]),
        }
    )
    journal = journal_of([["step", "a", 1], ["receive", "s"]], [(10, signal("s", 2))])
    found.append(
        {
            "name": "an end before a signal that the code was given",
            "journal": [as_json(each) for each in ends(journal)],
            "seen": journal[-1].index,
            "gives": replayed(ends(journal), seen=journal[-1].index),
        }
    )
    return found


def begins() -> list[Vector]:
    found: list[Vector] = []
    for name, (operations, happens) in BEGINS.items():
        payload = Codec().encode(((operations,), {}))
        partition = MemoryPartition()
        start = Note(kind=RecordKind.STARTED, name="program", at_ms=START_MS, payload=payload)
        journal = [partition.arrive(start)]
        worker = Worker(partition, PROGRAM)
        begun = [[effect.name for effect in worker.begin()]]
        sending: Sending | None = None
        for event in happens.split():
            if event == "sent":
                sending = worker.machine.take()
            elif event == "acknowledged":
                assert sending is not None
                first = partition.record(worker.lease, sending)
                worker.machine.applied(sending.number, first)
            elif event == "signal":
                partition.signal("s", b"1")
                worker.hear()
            else:
                [effect] = [each for each in worker.running.values() if each.name == event]
                worker.finish(effect)
            begun.append([effect.name for effect in worker.begin()])
        assert worker.machine.put_away()
        found.append(
            {
                "name": name,
                "journal": [as_json(each) for each in journal],
                "happens": happens.split(),
                "begins": begun,
            }
        )
    return found


def paths() -> list[Vector]:
    elements = [(1,), (1, 3), (127,), (128,), (300, 1), (16_383, 16_384), (2**32 - 1,), (0, 0, 7)]
    return [
        {"elements": each, "path": path.hex(), "shown": shown(path)}
        for each in elements
        for path in (encode_path(each),)
    ]


def refused_paths() -> list[str]:
    found = ["80", "8000", "ff", "8180808010", "01" + "80"]
    for path in found:
        try:
            decode_path(bytes.fromhex(path))
        except QueratorError:
            continue
        raise AssertionError(path)
    return found


def orders() -> list[Vector]:
    """Records of journals (a worker's has `after`, an arrival has none), and how they are given."""
    journals: list[list[int | None]] = [
        [0, None, 0, None, 3],
        [0, None, None, 1, 1, None, 2],
        [0, 0, None, None, None, 3, 4],
        [0, None, 0, 0, None],
    ]
    found: list[Vector] = []
    for afters in journals:
        journal = [
            JournalRecord(
                index,
                Note(kind=RecordKind.SIGNAL)
                if after is None
                else Note(kind=RecordKind.STEP_DONE, after=after),
            )
            for index, after in enumerate(afters)
        ]
        given = [record.index for record in delivery_order(journal)]
        found.append({"afters": afters, "given": given})
    return found


def identities() -> list[Vector]:
    identities = [
        IDENTITY,
        ExecutionIdentity("default", "shop", 300, 70_000, "order/1", 5, bytes(range(16)), 2),
        ExecutionIdentity("n", "q" * 40, 0, 2**40, "x" * 250, 1, b"\xff" * 16, 1),
    ]
    found: list[Vector] = []
    for each in identities:
        path = encode_path((1, 300))
        proof = promise_mac(each.secret, each.number, each.origin, path)
        made = seed(
            chance_key(each.secret),
            each.origin.to_bytes(8, "big"),
            b"uuid",
            path,
            (2).to_bytes(8, "big"),
        )
        found.append(
            {
                "namespace": each.namespace, "queue": each.queue, "partition": each.partition,
                "execution": each.number, "id": each.id, "run": each.run,
                "origin_run": each.origin, "secret": each.secret.hex(), "path": path.hex(),
                "proof": proof.hex(), "token": make_token(each, path),
                "second_uuid": str(UUID(bytes=made, version=4)),
                "child_id": _made_id(each, path), "step_key": step_key(each, path, "charge"),
            }
        )  # fmt: skip
    return found


def patches() -> list[Vector]:
    return [{"name": name, "path": patch_path(name).hex()} for name in ("newer", "größer")]


def step_key(identity: ExecutionIdentity, path: bytes, name: str) -> str:
    future = ExecutionCode(identity, Codec()).loop.create_future()
    operation = Operation(
        WaitKind.STEP, path, name=name, line=main_line(), site=None, future=future
    )
    operation.step = Step(step_key, name=name)
    return make_effect(operation, identity).step_key


PARTS: dict[str, Callable[[], list[Any]]] = {
    "paths": paths,
    "refused_paths": refused_paths,
    "patches": patches,
    "identities": identities,
    "orders": orders,
    "replays": replays,
    "changes": changes,
    "begins": begins,
}


def text() -> str:
    """A line for each vector."""
    parts = []
    for name, make in PARTS.items():
        rows = ",\n".join(f"  {msgspec.json.encode(each).decode()}" for each in make())
        parts.append(f' "{name}": [\n{rows}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text())
