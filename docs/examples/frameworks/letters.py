"""The program's queue, for code without an event loop."""

import functools
import json
import os
from datetime import timedelta

from querator import SyncClient


@functools.cache
def client() -> SyncClient:
    """Returns the client of this process. Call it in a request or a task, not at import."""
    return SyncClient(os.environ["QUERATOR_ADDRESS"], request_timeout=timedelta(seconds=5))


def send_later(to: str) -> None:
    """Returns when the item is durable."""
    client().produce("mail", json.dumps({"to": to}))
