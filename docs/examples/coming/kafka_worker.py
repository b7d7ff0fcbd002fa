import asyncio
from datetime import timedelta

from querator import Client, Item


async def main():
    done = []
    async with Client("127.0.0.1:4470") as client:
        await client.create_queue("orders", partitions=4, max_attempts=5)
        async with client.producer("orders") as producer:
            await producer.produce_many(
                Item(b"order %d" % number, key=f"customer-{number % 2}") for number in range(4)
            )
        async with client.consumer("orders", idle_timeout=timedelta(seconds=3)) as consumer:
            async for item in consumer:
                if item.payload == b"order 2" and item.attempt == 1:
                    await item.retry(delay=timedelta(seconds=1))  # others do not wait for it
                else:
                    await item.complete()
                    done.append(item.payload.decode())
        stats = await client.stats("orders")
        print(*sorted(done), sep=", ")
        print("lag:", stats.total.ready)


asyncio.run(main())
