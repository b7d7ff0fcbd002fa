"""When an execution may be parked, and what wakes it."""

from typing import Final

from querator.durable.attempts import Attempts
from querator.durable.code import ExecutionCode
from querator.durable.operations import WaitKind
from querator.durable.paths import Path
from querator.model.executions import Park
from querator.model.limits import EXECUTION_WAKES_MAX

_TIMERS_MAX: Final = EXECUTION_WAKES_MAX // 2
"""Timers that a parked execution waits for, the earliest ones: the later ones come later."""


def is_idle(code: ExecutionCode, attempts: Attempts) -> bool:
    """Whether nothing is under way in the worker: only arrivals can continue the code."""
    return all(
        each.waits is not WaitKind.SPAWN
        and (each.waits is not WaitKind.STEP or attempts.is_recorded(each))
        for each in code.pending.values()
    )


def park(code: ExecutionCode, attempts: Attempts) -> Park | None:
    """Gives all timers to the partition, and says what the code waits for. None: for nothing."""
    timers = [(timer.due_ms, path) for path, timer in code.loop.timers.items()]
    timers += [(each.retry_at_ms, path) for path, each in attempts.recorded()]
    promises = [
        path
        for path, count in code.awaited.items()
        if count and not code.promises[path].future.done()
    ]
    signals = {each.name for each in code.pending.values() if each.waits is WaitKind.SIGNAL}
    if not timers and not promises and not signals:
        return None
    give_timers(code, attempts)
    if len(promises) + len(signals) > EXECUTION_WAKES_MAX - _TIMERS_MAX:
        return Park(anything=True)
    paths: list[Path] = [path for _, path in sorted(timers)[:_TIMERS_MAX]]
    return Park(tuple(paths + promises), tuple(sorted(signals)))


def give_timers(code: ExecutionCode, attempts: Attempts) -> None:
    """From the next Record on, the partition has the timers that there are."""
    for path, timer in code.loop.timers.items():
        if timer.is_local:
            code.outbox.timers[path] = timer.due_ms
    code.loop.leave_timers()
    for path, operation in attempts.recorded():
        if not operation.retry_is_registered:
            operation.retry_is_registered = True
            code.outbox.timers[path] = operation.retry_at_ms
