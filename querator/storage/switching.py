"""The interpreter's switch interval, made short for a moment.

A thread that gave the interpreter lock away in a call gets it back when the thread that has it is
asked to stop, a switch interval later. A block of many short calls is therefore quick beside a busy
thread only with a short interval; `lmdb_environment` has the figures.
"""

import sys
import threading
from typing import Final

SWITCH_SECONDS = 0.000_01


class ShortSwitches:
    """A short switch interval inside the block; the last block to end restores the interval.

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
                # Half a microsecond more, for the interpreter cuts to whole ones.
                sys.setswitchinterval(self._interval + 0.000_000_5)


SHORT_SWITCHES: Final = ShortSwitches()
