"""The cause of missing connections, found in the background.

The probe runs on a thread of its own, so that neither the event loop nor the repetition of a call
waits for it. While connections fail, it is repeated after growing pauses.
"""

import asyncio
import contextlib
import threading

from querator.client.errors import AddressFault, ConnectionFailed, ConnectionFault
from querator.client.logs import CONNECTION
from querator.client.transport.backoff import Backoff
from querator.client.transport.probe import PROBE_SECONDS, probe
from querator.wire.tls import Tls

PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MOST = 30.0


class Diagnosis:
    """Why no connection to `address` is made, for one event loop."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self._address = address
        self._tls = tls
        self._backoff = Backoff(first=PAUSE_SECONDS_FIRST, most=PAUSE_SECONDS_MOST)
        self._due = 0.0
        self._running: asyncio.Future[None] | None = None
        self.fault: AddressFault | None = None
        """None while it is not known."""

    def failed(self, error: ConnectionFailed | None = None) -> None:
        """Records that no connection was made, with the error of a call. If that does not name the
        cause, begins to look for it, unless that was done a moment ago.
        """
        for fault in error.faults if error is not None else ():
            if fault.kind is not ConnectionFault.UNKNOWN:
                self.fault = fault
                return
        loop = asyncio.get_running_loop()
        if self._running is not None or loop.time() < self._due:
            return
        self._running = loop.create_future()
        # Not a thread of an executor: the end of the program would wait for the resolution of a
        # name, which may take long.
        thread = threading.Thread(
            target=self._look, args=(loop,), name="querator-probe", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The process has as many threads as it may have.
            self._found(None, loop)

    def succeeded(self) -> None:
        """Records that the node has answered."""
        self.fault = None
        self._due = 0.0
        self._backoff.reset()

    async def examine(self, error: ConnectionFailed | None) -> AddressFault | None:
        """Looks for the cause at this moment, for at most about as long as a probe takes. None: it
        is not found.
        """
        self.fault = None
        self._due = 0.0
        self.failed(error)
        await self.settle()
        return self.fault

    async def settle(self) -> None:
        """Waits for the end of a probe that runs, at most about as long as a probe takes."""
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=PROBE_SECONDS)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        fault = None
        try:
            fault = probe(self._address, self._tls)
        except Exception:  # noqa: BLE001  the top of a thread
            # gRPC's own words remain, and the next failure looks again.
            CONNECTION.debug("The probe of %s has failed", self._address, exc_info=True)
        with contextlib.suppress(RuntimeError):  # The loop has been closed meanwhile.
            loop.call_soon_threadsafe(self._found, fault, loop)

    def _found(self, fault: AddressFault | None, loop: asyncio.AbstractEventLoop) -> None:
        running, self._running = self._running, None
        if running is not None and not running.done():
            running.set_result(None)
        self.fault = fault
        self._due = loop.time() + self._backoff.next()
