"""Threads for the handlers of `SyncConsumer.run`.

They are daemons: an interpreter that ends does not wait for them. A handler on a thread cannot be
cancelled, and `ThreadPoolExecutor` would keep the process alive until it returns.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


class HandlerThreads:
    """Threads that are started as they are needed. The caller limits the number of calls at a time,
    and thereby the number of threads.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def call(self, function: Callable[[A], R], argument: A) -> "Future[R]":
        """Calls the function on a thread; the future has its outcome. Only one thread may use this
        method.
        """
        outcome: Future[R] = Future()

        def job() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                outcome.set_result(function(argument))
            except Exception as error:  # noqa: BLE001  the caller gets it
                outcome.set_exception(error)
            except BaseException as error:  # noqa: BLE001  it would end the client's event loop
                failed = RuntimeError(f"the handler raised {error!r}")
                failed.__cause__ = error
                outcome.set_exception(failed)

        self._jobs.put(job)
        if not self._idle.acquire(blocking=False):
            self._count += 1
            threading.Thread(
                target=self._work, name=f"querator-handler-{self._count}", daemon=True
            ).start()
        return outcome

    def end(self) -> None:
        """Ends each thread when its call has ended. Does not wait for them."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            self._idle.release()
