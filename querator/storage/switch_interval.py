"""A short switch interval of the interpreter for the duration of a block.

A thread that released the interpreter lock in a call gets it back only after a switch interval,
when the interpreter asks the thread that holds it to yield. So a block of many short calls is fast
beside a busy thread only with a short interval; `lmdb_environment` has the figures.
"""

import sys
import threading
from typing import Final

SWITCH_SECONDS = 0.000_01


class ShortSwitches:
    """Sets a short switch interval in the block. The last block to end restores the interval.

    The interval belongs to the process, which may run several nodes.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._blocks = 0
        self._interval = 0.0

    def __enter__(self) -> None:
        with self._mutex:
            if self._blocks == 0:
                self._interval = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_SECONDS, self._interval))
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._blocks -= 1
            if self._blocks == 0:
                # Half a microsecond more, because the interpreter truncates to whole microseconds.
                sys.setswitchinterval(self._interval + 0.000_000_5)


SHORT_SWITCHES: Final = ShortSwitches()
