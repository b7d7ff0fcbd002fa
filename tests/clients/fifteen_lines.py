"""A first program with the SDK: produces three items and works on them."""

import asyncio
import sys

from querator import Client


async def main() -> None:
    async with Client(sys.argv[1]) as client:
        await client.create_queue("greetings")
        async with client.producer("greetings") as producer:
            await producer.produce_many(["hello", "bonjour", "merhaba"])
        async with client.consumer("greetings") as consumer:
            for _ in range(3):
                item = await anext(consumer)
                print(item.id, item.payload.decode())  # noqa: T201
                await item.complete()


asyncio.run(main())
