"""`map`: a child for each of many items, in portions whose records become one.

A portion is a called durable function. It starts a child for each of its items, a few at a time,
and its result is the list of theirs. So when it has returned, one record is left of it (`folds`),
and the journal of 100,000 children has fewer than 2,500 records. Each portion counts its own
children: what it does does not depend on the others, which a replay may not run.
"""

import asyncio
import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from querator.durable import context
from querator.durable.children import SpawnOptions
from querator.durable.functions import Durable, checked_function
from querator.durable.operations import Site, site_of

if TYPE_CHECKING:
    from querator.durable.code import ExecutionCode

T = TypeVar("T")
V = TypeVar("V")

PORTION_ITEMS: Final = 100
_PORTIONS_OPEN: Final = 4
"""Portions at work at the same time: a slow child holds up a part of the others."""
PARALLEL_MAX: Final = 500
"""Half of the children that may be open: others have room, too."""
_Portion = tuple[list[Any], list[tuple[int, bytes]]]
"""Results in the order of the items, and exceptions with the places of their items."""


@overload
def map(
    function: Durable[[V], Coroutine[Any, Any, T]],
    items: Iterable[V],
    /,
    *,
    parallel: int = ...,
    return_exceptions: Literal[False] = ...,
) -> Coroutine[Any, Any, list[T]]: ...


@overload
def map(
    function: Durable[[V], T],
    items: Iterable[V],
    /,
    *,
    parallel: int = ...,
    return_exceptions: Literal[False] = ...,
) -> Coroutine[Any, Any, list[T]]: ...


@overload
def map(
    function: Durable[[V], Any],
    items: Iterable[V],
    /,
    *,
    parallel: int = ...,
    return_exceptions: bool,
) -> Coroutine[Any, Any, list[Any]]: ...


def map(
    function: Any,
    items: Iterable[Any],
    /,
    *,
    parallel: int = 100,
    return_exceptions: bool = False,
) -> Coroutine[Any, Any, list[Any]]:
    """`await map(ship, parcels)`: a child for each item, up to `parallel` at a time (500 at most),
    and their results in the order of the items.

    As with `asyncio.gather`, the first exception is raised at once: children at work continue, and
    no other one is started. `return_exceptions`: exceptions are among the results. A cancellation
    cancels the children that are at work. The results of 100 items that follow each other have
    1 MiB together, as one value has.
    """
    code = context.code_or_raise("map")
    site = site_of(sys._getframe(1))
    return map_with(
        code, function, items, parallel=parallel, return_exceptions=return_exceptions, site=site
    )


def map_with(
    code: "ExecutionCode",
    function: Any,
    items: Iterable[Any],
    *,
    parallel: int,
    return_exceptions: bool,
    site: Site,
) -> Coroutine[Any, Any, list[Any]]:
    """Raises TypeError and ValueError at once."""
    checked_function(function)
    if type(parallel) is not int:
        raise TypeError(f"parallel is {parallel!r}; it must be a whole number")
    if not 1 <= parallel <= PARALLEL_MAX:
        raise ValueError(f"parallel is {parallel}; it must be from 1 to {PARALLEL_MAX}")
    mapping = _Mapping(code, function, return_exceptions, site)
    return mapping.run(list(items), parallel)


class _Mapping:
    """One call of `map`."""

    def __init__(
        self,
        code: "ExecutionCode",
        function: Durable[..., Any],
        return_exceptions: bool,
        site: Site,
    ) -> None:
        self._code = code
        self._function = function
        self._return_exceptions = return_exceptions
        self._site = site
        self._has_failed = False

    async def run(self, items: Sequence[Any], parallel: int) -> list[Any]:
        parts = [
            items[first : first + PORTION_ITEMS] for first in range(0, len(items), PORTION_ITEMS)
        ]
        lanes = max(1, min(_PORTIONS_OPEN, parallel, len(parts)))
        turn = asyncio.Semaphore(lanes)
        portions = [self._in_turn(turn, part, parallel // lanes) for part in parts]
        found: list[Any] = []
        for portion in await asyncio.gather(*portions):
            found += portion
        return found

    async def _in_turn(
        self, turn: asyncio.Semaphore, items: Sequence[Any], parallel: int
    ) -> list[Any]:
        async with turn:
            if self._has_failed:
                return []
            try:
                return await self._portion(items, parallel)
            except Exception:
                self._has_failed = True
                raise

    async def _portion(self, items: Sequence[Any], parallel: int) -> list[Any]:
        async def portion() -> Any:
            turn = asyncio.Semaphore(parallel)
            outcomes = await asyncio.gather(*(self._one(turn, item) for item in items))
            errors = [
                (place, self._code.codec.encode_error(outcome.error))
                for place, outcome in enumerate(outcomes)
                if isinstance(outcome, _Failure)
            ]
            return [one for one in outcomes if not isinstance(one, _Failure)], errors

        kind: Any = self._function.result_type
        portion.__annotations__["return"] = tuple[list[kind], list[tuple[int, bytes]]]
        called: Durable[..., Any] = Durable(portion, name=self._function.name)
        result: _Portion = await self._code.call(called, (), {}, self._site)
        values, errors = result
        for place, data in errors:
            values.insert(place, self._code.codec.decode_error(data))
        return values

    async def _one(self, turn: asyncio.Semaphore, item: Any) -> Any:
        async with turn:
            if self._has_failed:
                return None
            try:
                options = SpawnOptions()
                child = await self._code.spawn(self._function, (item,), {}, options, self._site)
                return await child
            except Exception as error:
                if self._return_exceptions:
                    return _Failure(error)
                # At once: others of this turn of the code do not begin.
                self._has_failed = True
                raise


class _Failure:
    """An exception among the results."""

    def __init__(self, error: Exception) -> None:
        self.error = error
