"""Instants at a fixed rate, for open loops: a load that does not wait for answers.

asyncio's own timers are late by up to a millisecond, because `epoll` waits for whole ones. This
clock is a timer of the kernel (timerfd_create(2)), which the event loop reads like a socket.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import AsyncGenerator

_NONBLOCK = os.O_NONBLOCK
_COUNT_BYTES = 8


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


async def instants(rate: float) -> AsyncGenerator[float, None]:
    """Yields `rate` instants per second, by the monotonic clock, for ever; each is yielded when it
    has come. A missed instant comes late, and is not dropped.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    loop = asyncio.get_running_loop()
    passed: asyncio.Queue[int] = asyncio.Queue()

    def ring() -> None:
        passed.put_nowait(int.from_bytes(os.read(descriptor, _COUNT_BYTES), sys.byteorder))

    loop.add_reader(descriptor, ring)
    try:
        nanoseconds = round(1e9 / rate)
        interval = _TimeSpec(*divmod(nanoseconds, 1_000_000_000))
        start = time.monotonic()
        spec = _TimerSpec(interval, interval)
        if libc.timerfd_settime(descriptor, 0, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        number = 0
        while True:
            for _ in range(await passed.get()):
                number += 1
                yield start + number * nanoseconds / 1e9
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
