"""Names of queues that are similar to a missing one."""

import difflib
from contextlib import suppress
from typing import Final

from querator.client import Client
from querator.model.errors import QueratorError

NAMES_MAX: Final = 1_000
"""Most names of a namespace among which similar ones are looked for."""
_SIMILAR_MAX: Final = 3


async def similar_queues(client: Client, name: str) -> list[str]:
    """The most similar first; none if the names cannot be listed."""
    names: list[str] = []
    with suppress(QueratorError):
        async for info in client.list_queues():
            names.append(info.name)
            if len(names) == NAMES_MAX:
                break
    return difflib.get_close_matches(name, names, n=_SIMILAR_MAX)
