"""Which path an operation has: a line numbers what one task, or one call in it, begins.

A task numbers, from 1, whatever it begins: its operations, the tasks that it makes, the durable
functions that it calls. A path is these numbers from the main task down, so `1.3` is the third
thing that was begun by the first one of the main task. A number is used once. Therefore nothing is
below the path of an operation, and whatever is below the path of a call belongs to the call. The
bytes of a path are those of `querator.model.executions`.

Paths come from the code's structure alone, so two tasks that run at the same time have the same
paths in each replay, whichever of them is faster.
"""

import random
from typing import TYPE_CHECKING, Final, TypeAlias

from querator.durable.errors import TooDeep
from querator.model.executions import NO_PATH, decode_path, encode_path
from querator.model.limits import EXECUTION_PATH_BYTES_MAX

if TYPE_CHECKING:
    from querator.durable.folds import Scope

Path: TypeAlias = bytes

_OTHERS: Final = encode_path((0,))
"""The line of what no task has begun, for example finalizers of asynchronous generators."""
_SHORT: Final = tuple(encode_path((number,)) for number in range(128))


class TaskLine:
    """What one task, or one call in it, begins: the path above, and the last number used."""

    __slots__ = ("_random", "count", "draws", "full_reads", "is_full", "path", "scope")

    def __init__(self, path: Path, scope: "Scope | None", *, is_full: bool = False) -> None:
        self.path = path
        self.scope = scope
        self.count = 0
        self.draws = 0
        self.full_reads = 0
        self.is_full = is_full
        """Whether it, or the line that has begun it, has read that the journal is filling."""
        self._random: random.Random | None = None

    def next(self) -> Path:
        """Raises TooDeep for a path that is longer than a record can say."""
        self.count = count = self.count + 1
        if count < 0x80:
            path = self.path + _SHORT[count]
        elif count < 0x4000:
            path = b"%b%c%c" % (self.path, count & 0x7F | 0x80, count >> 7)
        else:
            path = self.path + encode_path((count,))
        if len(path) > EXECUTION_PATH_BYTES_MAX:
            raise TooDeep(
                f"the path of an operation has {len(path)} bytes, and at most "
                f"{EXECUTION_PATH_BYTES_MAX}: tasks and calls are too deep within each other"
            )
        return path

    def random(self, seed: bytes) -> random.Random:
        """The source of random numbers of this line; its first call decides the seed."""
        if self._random is None:
            self._random = random.Random(seed)
        return self._random


def main_line() -> TaskLine:
    return TaskLine(NO_PATH, None)


def line_of_others() -> TaskLine:
    return TaskLine(_OTHERS, None)


def shown(path: Path) -> str:
    """`1.3`; the main task itself is `main`."""
    return ".".join(map(str, decode_path(path))) or "main"
