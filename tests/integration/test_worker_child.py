"""One worker process: how it is asked to stop."""

import os
import signal
import sys
from multiprocessing.connection import wait
from pathlib import Path

from querator.worker.child import AGAIN_S, Child, ChildPlace

BOUND_S = 60


def ends_after_two_signals(child: Child, fifo: str) -> None:
    """Handles signals only after a byte in `fifo`; those of one kind then count once."""
    received: list[int] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    child.ready()
    with open(fifo, "rb") as pipe:
        pipe.read(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while len(received) < 2:
        signal.pause()
    # More requests may come while the interpreter ends, and takes its handlers back.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(7)


def test_a_busy_process_hears_the_second_request(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    place = ChildPlace(1)
    place.start(ends_after_two_signals, str(fifo))
    try:
        assert place.link is not None
        assert wait([place.link], BOUND_S)
        assert place.has_reported()
        place.ask()
        place.ask()
        fifo.write_bytes(b"x")
        while (ended := place.reap()) is None:
            assert place.process is not None
            wait([place.process.sentinel], AGAIN_S)
            place.press(0.0)
    finally:
        place.kill()
    assert ended[1] == 7
