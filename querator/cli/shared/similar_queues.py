"""Names of queues that are similar to a missing one."""

from contextlib import suppress

from querator.client import Client
from querator.model.errors import QueratorError
from querator.model.similar_names import NAMES_MAX, similar_names


async def similar_queues(client: Client, name: str) -> list[str]:
    """The most similar first; none if the names cannot be listed."""
    names: list[str] = []
    with suppress(QueratorError):
        async for info in client.list_queues():
            names.append(info.name)
            if len(names) == NAMES_MAX:
                break
    return similar_names(name, names)
