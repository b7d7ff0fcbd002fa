"""Waits for the ends of executions of one queue. Those that begin together share one call.

A call names up to EXECUTION_WAIT_IDS_MAX executions. Its answer names those that have ended; the
others join the next call, with the waits that have begun meanwhile. A call that nothing waits for
is cancelled.
"""

import asyncio
from typing import Final

from querator.client import Client
from querator.client.errors import ErrorCode, RequestError, copy_error, make_error
from querator.client.executions import EndedInfo
from querator.model.limits import EXECUTION_WAIT_IDS_MAX

_WAIT_SECONDS: Final = 30.0
"""How long one call waits; then it is made again."""
_FEW: Final = 16
_GATHER_SECONDS: Final = 0.01
"""After an answer, if more than _FEW are left: more of them end meanwhile, and the node looks at
each of them for each call.
"""

_Wait = asyncio.Future[EndedInfo]


class _Call:
    """The executions of one call, each with what waits for it."""

    __slots__ = ("task", "waits")

    def __init__(self) -> None:
        self.waits: dict[str, set[_Wait]] = {}
        self.task: asyncio.Task[None] | None = None


class Endings:
    """Used on one event loop."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._next: _Call | None = None
        """The call that other waits may join, because it is not sent yet."""
        self._where: dict[_Wait, _Call] = {}

    async def wait(self, execution_id: str) -> EndedInfo:
        """Returns when the execution has ended. Raises RequestError, as `ExecutionNotFound`."""
        wait: _Wait = asyncio.get_running_loop().create_future()
        self._join(execution_id, wait)
        try:
            return await wait
        finally:
            self._leave(execution_id, wait)

    def _join(self, execution_id: str, wait: _Wait, pause: float = 0.0) -> None:
        """The wait joins the next call. If there is none, it is sent after the pause."""
        call = self._next
        if call is None or len(call.waits) >= EXECUTION_WAIT_IDS_MAX:
            call = self._next = _Call()
            # Owned by the waits: the last one that leaves cancels it.
            call.task = asyncio.get_running_loop().create_task(self._run(call, pause))
        call.waits.setdefault(execution_id, set()).add(wait)
        self._where[wait] = call

    def _leave(self, execution_id: str, wait: _Wait) -> None:
        """The wait is over. If it was given up, its call may have nothing left to wait for."""
        call = self._where.pop(wait, None)
        if call is None:
            return
        call.waits[execution_id].discard(wait)
        if not call.waits[execution_id]:
            del call.waits[execution_id]
        if not call.waits:
            if self._next is call:
                self._next = None
            assert call.task is not None
            call.task.cancel()

    async def _run(self, call: _Call, pause: float) -> None:
        # Also without a pause, waits that begin in this round of the loop join.
        await asyncio.sleep(pause)
        if self._next is call:
            self._next = None
        try:
            found: dict[str, EndedInfo | None] = {}
            while not found:
                ids = list(call.waits)
                found = await self._client.executions.wait(self._queue, ids, seconds=_WAIT_SECONDS)
        except Exception as error:  # noqa: BLE001 - a task's top: the waits raise it.
            self._fail(call, error)
            return
        for execution_id, ended in found.items():
            for wait in call.waits.pop(execution_id, ()):
                del self._where[wait]
                if ended is None:
                    wait.set_exception(_not_found(execution_id))
                else:
                    wait.set_result(ended)
        pause = _GATHER_SECONDS if len(call.waits) > _FEW else 0.0
        for execution_id, waits in call.waits.items():
            for wait in waits:
                self._join(execution_id, wait, pause)

    def _fail(self, call: _Call, error: Exception) -> None:
        for waits in call.waits.values():
            for wait in waits:
                del self._where[wait]
                wait.set_exception(copy_error(error) if isinstance(error, RequestError) else error)


def _not_found(execution_id: str) -> RequestError:
    return make_error(
        ErrorCode.EXECUTION_NOT_FOUND,
        f"there is no execution {execution_id}",
        field="id",
        value=execution_id,
    )
