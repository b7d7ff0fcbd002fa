"""Journals of real executions, replayed by the code of the test."""

from collections.abc import Iterable
from os import PathLike, fspath
from typing import Any, Final

from querator.durable import Codec, Durable
from querator.durable.exports import opened
from querator.durable.replaying import replay_file
from querator.durable.worker import functions_by_name, make_codec

_SHOWN_MAX: Final = 10


def assert_replays(
    path: str | PathLike[str],
    functions: Iterable[Durable[..., Any]],
    *,
    errors: Iterable[type[Exception]] = (),
    codec: Codec | None = None,
) -> int:
    """Asserts that the functions do what the journals of a file say: lines of `querator execution
    export`, or of `handle.export()`. Returns the number of executions; a file without any fails.

    No step is run, and no server is asked. `errors` and `codec` are as for `Worker`. Each message
    names the line of the file, the line of the journal and the line of the code.
    """
    name = fspath(path)
    named = functions_by_name(functions)
    wrong: list[str] = []
    count = 0
    with opened(name) as file:
        for one in replay_file(file, named, make_codec(codec, errors)):
            count += 1
            if one.is_wrong:
                wrong.append(f"{name}:{one.line}: {one.reason}")
    if wrong:
        others = len(wrong) - _SHOWN_MAX
        more = [f"… and {others} others"] if others > 0 else []
        raise AssertionError("\n".join([*wrong[:_SHOWN_MAX], *more]))
    if not count:
        raise AssertionError(f"{name} has no executions")
    return count
