"""Answers to queries about groups that this node leads: one handler per type of query."""

from collections.abc import Callable, Coroutine
from typing import Any

Handler = Callable[[Any], Coroutine[Any, Any, Any]]


class QueryAnswers:
    """Registry of the handlers. It is filled while the service is assembled, before the first
    query.
    """

    def __init__(self) -> None:
        self._handlers: dict[type, Handler] = {}

    def register(self, handler: Handler, *types: type) -> None:
        """`handler` answers queries of these types. It raises QueratorError."""
        for one in types:
            assert one not in self._handlers, f"{one.__name__} has a handler"
            self._handlers[one] = handler

    async def answer(self, query: Any) -> Any:
        """Raises QueratorError."""
        return await self._handlers[type(query)](query)
