"""Common parts of the runs of minutes (tests.chaos, tests.growth, tests.spark_chaos): a directory
that is kept when something is wrong, and a summary as the last line.
"""

import asyncio
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class Verdict(msgspec.Struct, frozen=True):
    """`code`: the exit code, 0 when all is well. `lines` come before `summary`."""

    code: int
    lines: Sequence[str]
    summary: str


def carry_out(
    home: Path | None,
    prefix: str,
    run: Callable[[Path], Coroutine[Any, Any, T]],
    judge: Callable[[T], Verdict],
    *,
    failed: str,
    kept: Callable[[Path], Sequence[str]] = lambda home: (),
) -> int:
    """Returns the exit code: 1 when `run` raises. `home` None: a new directory whose name begins
    with `prefix`, deleted when all is well. `failed`: the summary of a run that raises; `kept`: the
    text that is printed when something is wrong.
    """
    place = home or Path(tempfile.mkdtemp(prefix=prefix))
    place.mkdir(parents=True, exist_ok=True)
    try:
        verdict = judge(asyncio.run(run(place)))
    except Exception:  # noqa: BLE001 - the top: whatever it is, the directories are kept
        verdict = Verdict(1, [traceback.format_exc()], failed)
    if verdict.code:
        after = [f"kept: {place}", *kept(place)]
    else:
        after = []
        if home is None:
            shutil.rmtree(place)
    for line in (*verdict.lines, *after, verdict.summary):
        say(line)
    return verdict.code


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
