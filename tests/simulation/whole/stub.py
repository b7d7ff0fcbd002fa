"""How clients reach a node: calls and answers take time, are lost, and do not wait for ever."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from querator.model.errors import ErrorCode, QueratorError
from querator.node_core import NodeCore
from tests.simulation.timeline import MS, Timeline
from tests.simulation.whole.loop import VirtualLoop
from tests.simulation.whole.node import Lost, WholeNode

Ask = Callable[[NodeCore], Awaitable[Any]]
PAUSED_US = 20 * MS
"""Interval between two checks of a paused process."""


class Shores(Protocol):
    """What clients see of the world."""

    timeline: Timeline
    client_loop: VirtualLoop
    latency_us: int

    @property
    def loss(self) -> float: ...

    def whole_nodes(self) -> list[WholeNode]: ...

    def found(self, text: str) -> None: ...


class NobodyListens(QueratorError):
    """No process listens at the node, so nothing was executed."""

    def __init__(self, name: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, f"nobody listens at {name}")


class Stub:
    """The stub of one client, on the clients' loop."""

    def __init__(self, shores: Shores, chance: random.Random) -> None:
        self._shores = shores
        self._chance = chance
        self._open: dict[asyncio.Future[Any], list[Callable[[], None]]] = {}
        """What cancels the calls that are not answered."""
        self._has_hung_up = False

    def hang_up(self) -> None:
        """The process of the client has ended, and with it its connections."""
        self._has_hung_up = True
        for cancels in self._open.values():
            self._cancel(cancels)

    def _cancel(self, cancels: list[Callable[[], None]]) -> None:
        for cancel in cancels:
            self._shores.timeline.after(self._shores.latency_us, cancel)

    async def call(self, node: WholeNode, ask: Ask, *, patience_s: float) -> Any:
        """Returns the answer of the node. Raises QueratorError when the node has answered with one,
        or when no process listens there. Raises Lost when no answer comes in time, or it is lost.
        """
        shores = self._shores
        timeline, loop = shores.timeline, shores.client_loop
        future = loop.create_future()
        cancels: list[Callable[[], None]] = []
        self._open[future] = cancels
        given_up = False

        def back(result: Any, error: BaseException | None) -> None:
            """Called on the node's side."""
            if self._chance.random() < shores.loss:
                return
            timeline.after(shores.latency_us, lambda: end(result, error))

        def end(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def arrive() -> None:
            if given_up:
                return
            if node.serves and node.paused:
                timeline.after(PAUSED_US, arrive)
            elif node.serves:
                cancels.append(node.call(ask, back))
                if self._has_hung_up:
                    self._cancel(cancels)
            else:
                timeline.after(shores.latency_us, lambda: end(None, NobodyListens(node.name)))

        timeline.after(shores.latency_us, arrive)
        try:
            async with asyncio.timeout(patience_s):
                return await future
        except TimeoutError:
            raise Lost(node.name) from None
        finally:
            given_up = True
            del self._open[future]
            self._cancel(cancels)
