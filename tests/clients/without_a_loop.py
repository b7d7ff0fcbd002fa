"""The same as fifteen_lines.py for programs without an event loop."""

import sys

from querator import SyncClient

with SyncClient(sys.argv[1]) as client:
    client.create_queue("greetings")
    with client.producer("greetings") as producer:
        producer.produce_many(["hello", "bonjour", "merhaba"])
    with client.consumer("greetings") as consumer:
        for _, item in zip(range(3), consumer, strict=False):
            print(item.id, item.payload.decode())  # noqa: T201
            item.complete()
