"""Packs calls of one group into one entry; calls that the machine cannot pack end."""

from collections.abc import Sequence

import msgspec

from querator.model.entries import Entry
from querator.model.errors import ErrorCode, QueratorError
from querator.raft.log.journal import Stamped
from querator.raft.machine import Machine
from querator.raft.requests import Call, Outcome


class Packed(msgspec.Struct, frozen=True):
    """An entry that may be appended, and its calls, in order. `time_forward`: with this entry state
    time jumps to the clock.
    """

    stamped: Stamped
    calls: list[Call]
    time_forward: bool = False


class OwnWorkFailed(Exception):
    """The machine's own command cannot be packed: the group would retry it for ever."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def pack(
    machine: Machine,
    calls: list[Call],
    now_ms: int,
    outcome: Outcome,
    *,
    time_back: bool = False,
) -> Packed | None:
    """One entry of all calls that pack; None when there is none. A call that does not pack ends
    with INTERNAL. Raises OwnWorkFailed when that call is the group's own. `time_back`: the group's
    time goes back to `now_ms`.
    """
    try:
        entry = _entry(machine, calls, now_ms)
    except Exception:  # noqa: BLE001 - found and reported call by call
        calls = [call for call in calls if _packs(machine, call, now_ms, outcome)]
        if not calls:
            return None
        entry = _entry(machine, calls, now_ms)
    return Packed(Stamped(entry, now_ms, time_back), calls)


def _entry(machine: Machine, calls: Sequence[Call], now_ms: int) -> Entry:
    return machine.pack([call.proposal for call in calls], now_ms)


def _packs(machine: Machine, call: Call, now_ms: int, outcome: Outcome) -> bool:
    try:
        _entry(machine, [call], now_ms)
    except Exception as error:
        message = f"group {call.group}: the command does not pack: {error!r}"
        refusal = QueratorError(ErrorCode.INTERNAL, message)
        refusal.__cause__ = error
        outcome.errors.append((call, refusal))
        if call.future is None:
            raise OwnWorkFailed(error) from error
        return False
    return True
