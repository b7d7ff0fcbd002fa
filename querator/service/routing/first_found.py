"""Questions to several partitions, of which the first one that finds something answers the call.

A partition that does not answer does not affect the others. Its error ends the call only when no
other one has found something.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from querator.model.errors import QueratorError
from querator.service.routing.outcomes import as_answer

T = TypeVar("T")


async def first_found(
    asks: Mapping[int, Coroutine[Any, Any, Sequence[T]]], doing: str
) -> list[tuple[int, T]]:
    """What the first partition finds, and those that find something at the same time, each with its
    partition. Nothing, if no partition does. `doing`: what the call does, for unexpected errors.
    """
    loop = asyncio.get_running_loop()
    # Owned: ended before this returns.
    asking = {loop.create_task(ask): partition for partition, ask in asks.items()}
    found: list[tuple[int, T]] = []
    errors: list[QueratorError] = []
    left = set(asking)
    try:
        while left and not found:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    found += [(asking[task], one) for one in task.result()]
                elif isinstance(error, Exception):
                    errors.append(as_answer(error, doing))
                else:
                    raise error
    finally:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    if errors and not found:
        raise errors[0]
    return found
