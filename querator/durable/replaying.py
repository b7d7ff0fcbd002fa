"""Exported executions, replayed by the code of this process. Nothing of them is run.

What a worker does with changed code before anything runs (`ExecutionMachine.load`) is done with
each journal. An execution that has ended is replayed up to its end: what the code does behind that
may change.
"""

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, Literal

import msgspec

from querator.durable.codec import Codec
from querator.durable.errors import CodecError, NonDeterminism, TurnTooLong, Undecodable
from querator.durable.exports import ExportedExecution, ExportError, read_exports
from querator.durable.fitting import without_trial
from querator.durable.functions import Durable
from querator.durable.machine import ExecutionMachine
from querator.model.executions import OUTCOMES, Close, RecordKind

ReplayOutcome = Literal["fits", "differs", "waits", "damaged"]
"""`waits`: the code is not tried, because `upgrade="never"` keeps the execution at its version."""

_ENDS: Final = OUTCOMES | {RecordKind.TERMINATED}
_WAITING: Final = ("parked", "completed")
"""States of executions whose code had nothing more to do at the end of the journal."""


class ReplayedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay says of a line. `journal` and `code` are both lines, if the code differs at a
    record. `id` is empty if the line is damaged.
    """

    line: int
    outcome: ReplayOutcome
    reason: str = ""
    id: str = ""
    function: str = ""
    run: int = 0
    journal: str = ""
    code: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.outcome in ("differs", "damaged")


def replay_file(
    file: BinaryIO, functions: Mapping[str, Durable[..., Any]], codec: Codec
) -> Iterator[ReplayedExecution]:
    """Replays each line, by the functions of these names."""
    for line, read in read_exports(file):
        if isinstance(read, ExportError):
            yield ReplayedExecution(line=line, outcome="damaged", reason=str(read))
        else:
            yield replay(read, functions, codec, line=line)


def replay(
    exported: ExportedExecution,
    functions: Mapping[str, Durable[..., Any]],
    codec: Codec,
    *,
    line: int = 0,
) -> ReplayedExecution:
    """Replays one journal."""

    def said(outcome: ReplayOutcome, reason: str = "", **lines: str) -> ReplayedExecution:
        return ReplayedExecution(
            line=line, outcome=outcome, reason=reason, id=exported.id,
            function=exported.function, run=exported.run, **lines,
        )  # fmt: skip

    function = functions.get(exported.function)
    if function is None:
        names = ", ".join(sorted(functions))
        return said(
            "differs",
            f'{exported.function} "{exported.id}", run {exported.run}: there is no function '
            f"{exported.function}; there are {names}.",
        )
    unfit = without_trial(functions, exported.function, exported.version)
    if unfit is not None:
        return said("waits", unfit.reason)
    journal = exported.records
    has_ended = journal[-1].note.kind in _ENDS
    machine = ExecutionMachine(function, exported.identity, codec)
    try:
        machine.load(
            journal[:-1] if has_ended else journal, version=exported.version,
            timers=() if has_ended else exported.timers,
        )  # fmt: skip
    except NonDeterminism as error:
        return said("differs", str(error), journal=error.journal, code=error.code)
    except (TurnTooLong, Undecodable) as error:
        return said("differs", str(error))
    try:
        if exported.state in _WAITING and (why := _failure(machine, codec)):
            return said("differs", f"{machine.title}: the code fails where it did not: {why}.")
    finally:
        machine.put_away()
    return said("fits")


def _failure(machine: ExecutionMachine, codec: Codec) -> str:
    """What the function has raised, if it has failed."""
    if machine.stuck:
        return machine.stuck
    end = machine.end
    if not isinstance(end, Close) or end.outcome != RecordKind.FAILED:
        return ""
    try:
        error = codec.decode_error(end.payload)
    except CodecError:
        return "it has raised an exception that cannot be decoded"
    return f"{type(error).__name__}: {error}".rstrip(": ")
