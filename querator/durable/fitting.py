"""Whether a worker can run an execution. What it cannot run it gives back as pinned: the execution
waits for a worker with another version of its function, and nothing of it has run.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from querator.durable.functions import Durable
from querator.model.executions import UNVERSIONED, GiveBack
from querator.model.limits import ERROR_CHARS_MAX


def versions_of(functions: Iterable[Durable[..., Any]]) -> dict[str, str]:
    """What a worker says of its functions in each lease: their versions, by name."""
    return {function.name: function.version for function in functions}


def without_trial(
    functions: Mapping[str, Durable[..., Any]], name: str, version: str
) -> GiveBack | None:
    """The end of a lease of an execution that has run with `version` and is not tried: the worker
    does not have its function, or only in a version that takes no other executions than its own.
    """
    function = functions.get(name)
    if function is None:
        names = ", ".join(sorted(functions))
        return _pinned(f"the worker has no function {name}; it has {names}")
    if function.upgrade == "never" and version not in (function.version, UNVERSIONED):
        return _pinned(
            f"{name} has upgrade='never': the execution waits for version {version}, and the "
            f"worker has version {function.version}",
            function.version,
        )
    return None


def after_trial(function: Durable[..., Any], version: str, error: Exception) -> GiveBack:
    """The end of a lease of an execution whose journal does not fit the function. If it has run
    with this very version, no other one can be waited for: it is stuck.
    """
    if function.version == version:
        return GiveBack(stuck=True, reason=str(error)[:ERROR_CHARS_MAX])
    return _pinned(str(error), function.version)


def _pinned(reason: str, refused: str = "") -> GiveBack:
    return GiveBack(reason=reason[:ERROR_CHARS_MAX], pinned=True, refused=refused)
