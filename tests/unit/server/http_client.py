"""A plain HTTP client for the admin port."""

import asyncio
import http.client
from collections.abc import Mapping


async def get(
    address: str, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, Mapping[str, str], str]:
    """Status, headers (names in lower case) and body of one request on its own connection."""
    return await asyncio.to_thread(_get, address, path, method, headers)


def _get(
    address: str, path: str, method: str, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        said = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, said, answer.read().decode()
    finally:
        connection.close()
